//! Arrays and archives of any damage: an error, or tensors of the size they
//! declare; and what was read is written again as the same tensors.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use ztensor::export::{ExportFormat, ExportOptions, export_to};
use ztensor::source::MemorySource;
use ztensor::{OpenOptions, Reader};

fn open(bytes: Vec<u8>) -> ztensor::Result<Reader> {
    // Checksums would keep the fuzzer from getting anywhere.
    let options = OpenOptions::default().threads(1).max_component(1 << 20).verify(false);
    options.open_source(Arc::new(MemorySource::new(bytes)))
}

fuzz_target!(|file: &[u8]| {
    // Other formats have their own targets.
    if !file.starts_with(b"PK\x03\x04") && !file.starts_with(b"\x93NUMPY") {
        return;
    }
    let Ok(reader) = open(file.to_vec()) else { return };
    if reader.format() != ztensor::Format::Npz {
        return;
    }
    let mut readable = true;
    for (name, object) in reader.objects() {
        let Ok(tensor) = reader.read_owned(name) else {
            readable = false;
            continue;
        };
        for (role, component) in &object.components {
            assert_eq!(tensor.component(role).unwrap().bytes.len() as u64, component.len);
        }
    }
    let mut written = Vec::new();
    let options = ExportOptions::default();
    if readable && export_to(&reader, &mut written, ExportFormat::Npz, &options).is_ok() {
        let Ok(again) = open(written) else {
            // An archive without arrays, but in folders, is known by its extension only.
            let known = |(name, object): (&str, &ztensor::Object)| {
                object.layout.name() != "npz.file" && !name.contains('/')
            };
            assert!(!reader.objects().any(known));
            return;
        };
        assert_eq!(again.len(), reader.len());
        for name in reader.keys() {
            assert_eq!(again.read_owned(name).unwrap(), reader.read_owned(name).unwrap());
        }
    }
});
