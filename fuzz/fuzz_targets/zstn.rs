//! Packed files of any damage: an error, or a file that packs and unpacks to itself; and
//! whatever opens reads as the restored file does.
#![no_main]

use std::hash::Hasher;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use twox_hash::XxHash3_64;
use ztensor::source::MemorySource;
use ztensor::zstn::{self, PackOptions, UnpackOptions};
use ztensor::{OpenOptions, Reader};

const LIMIT: u64 = 1 << 20;

fn open(bytes: &[u8]) -> ztensor::Result<Reader> {
    let options = OpenOptions::default().threads(1).max_component(LIMIT);
    options.open_source(Arc::new(MemorySource::new(bytes.to_vec())))
}

fn unpack(bytes: &[u8]) -> ztensor::Result<Vec<u8>> {
    let mut restored = Vec::new();
    let options = UnpackOptions { threads: 1, limits: ztensor::Limits::default().max_total(LIMIT), ..Default::default() };
    zstn::unpack_source(Arc::new(MemorySource::new(bytes.to_vec())), &mut restored, &options)?;
    Ok(restored)
}

/// Makes length, end and checksum right, or all damage would be found by them.
fn repair(file: &mut [u8]) {
    let total = file.len();
    if !file.starts_with(b"ZSTN\x04") || total < 48 {
        return;
    }
    let prefix: [u8; 8] = file[..8].try_into().unwrap();
    file[total - 8..].copy_from_slice(&prefix);
    file[total - 24..total - 16].copy_from_slice(&(total as u64).to_le_bytes());
    let index_len = u64::from_le_bytes(file[total - 40..total - 32].try_into().unwrap());
    let Some(index_at) = (total as u64 - 40).checked_sub(index_len) else { return };
    let mut hasher = XxHash3_64::new();
    hasher.write(&prefix);
    hasher.write(&file[index_at as usize..total - 16]);
    file[total - 16..total - 8].copy_from_slice(&hasher.finish().to_le_bytes());
}

fuzz_target!(|file: &[u8]| {
    if !zstn::is_packed(file) {
        return;
    }
    let mut file = file.to_vec();
    repair(&mut file);
    let restored = unpack(&file);
    if let Ok(reader) = open(&file) {
        let original = restored.as_ref().ok().map(|bytes| open(bytes).expect("its header was checked"));
        for name in reader.keys() {
            let tensor = reader.read_owned(name);
            if let Some(original) = &original {
                assert_eq!(tensor.unwrap(), original.read_owned(name).unwrap());
            }
        }
    }
    if let Ok(restored) = restored {
        let mut packed = Vec::new();
        let source = Arc::new(MemorySource::new(restored.clone()));
        let options = PackOptions { threads: 1, ..Default::default() };
        if zstn::pack_source(source, &mut packed, &options).is_ok() {
            assert!(unpack(&packed).unwrap() == restored);
        }
    }
});
