//! Version 2 `.zt` files of any damage, with the hash of the manifest put right so that what lies behind
//! it is reached: an error, or tensors of the size they declare; and what was read is written again as the
//! same tensors, also in canonical form.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use twox_hash::XxHash3_64;
use ztensor::export::{ExportFormat, ExportOptions, export_to};
use ztensor::format::zt2;
use ztensor::source::MemorySource;
use ztensor::{ErrorKind, OpenOptions, Reader};

const MAGIC: &[u8; 8] = b"\x89ZT2\r\n\x1a\n";

fn open(bytes: Vec<u8>) -> ztensor::Result<Reader> {
    let options = OpenOptions::default().threads(1).max_component(1 << 20);
    options.open_source(Arc::new(MemorySource::new(bytes)))
}

/// Gives the footer the hash of the manifest that it names.
fn rehash(file: &mut [u8]) -> Option<()> {
    let footer = file.len().checked_sub(40)?;
    let number = |at: usize| Some(u64::from_le_bytes(*file.get(at..)?.first_chunk()?));
    let (offset, len) = (usize::try_from(number(footer)?).ok()?, usize::try_from(number(footer + 8)?).ok()?);
    let hash = XxHash3_64::oneshot(file.get(offset..offset.checked_add(len)?)?);
    file.get_mut(footer + 16..footer + 24)?.copy_from_slice(&hash.to_le_bytes());
    Some(())
}

fuzz_target!(|file: &[u8]| {
    // Other formats have their own targets.
    if !file.starts_with(MAGIC) {
        return;
    }
    let mut file = file.to_vec();
    let _ = rehash(&mut file);
    let Ok(reader) = open(file) else { return };
    let _ = reader.verify_all(None);
    let _ = zt2::content_digest(&reader);
    let _ = zt2::canonical::check(&reader);
    for name in reader.keys() {
        if let Ok(tensor) = reader.read_owned(name) {
            let _ = tensor.dequantize();
        }
    }
    // Bytes in memory have no folder to look for shards in.
    if reader.catalog().sources.len() > 1 {
        return;
    }
    for canonical in [false, true] {
        let mut written = Vec::new();
        let options = ExportOptions::default().canonical(canonical);
        match export_to(&reader, &mut written, ExportFormat::Zt2, &options) {
            Err(error) => assert_ne!(error.kind(), ErrorKind::InvalidArgument, "{error}"),
            Ok(()) => {
                let again = open(written).unwrap();
                assert_eq!(again.len(), reader.len());
                for name in reader.keys() {
                    let (old, new) = (reader.read_owned(name).unwrap(), again.read_owned(name).unwrap());
                    assert_eq!(old.shape, new.shape);
                    assert_eq!(old.layout, new.layout);
                    for (role, array) in &old.components {
                        assert_eq!(Some(array), new.component(role));
                    }
                }
                if canonical {
                    assert_eq!(zt2::canonical::check(&again).unwrap(), []);
                }
            }
        }
    }
});
