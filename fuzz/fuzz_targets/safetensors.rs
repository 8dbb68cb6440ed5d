//! Safetensors files of any damage: an error, or tensors of the size they
//! declare; and what was read is written again as the same tensors.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use ztensor::export::{ExportFormat, ExportOptions, export_to};
use ztensor::source::MemorySource;
use ztensor::{OpenOptions, Reader};

fn open(bytes: Vec<u8>) -> ztensor::Result<Reader> {
    let options = OpenOptions::default().threads(1).max_component(1 << 20);
    options.open_source(Arc::new(MemorySource::new(bytes)))
}

fuzz_target!(|file: &[u8]| {
    // Other formats have their own targets.
    if file.get(8) != Some(&b'{') {
        return;
    }
    let Ok(reader) = open(file.to_vec()) else { return };
    if reader.format() != ztensor::Format::Safetensors {
        return;
    }
    let mut written = Vec::new();
    export_to(&reader, &mut written, ExportFormat::Safetensors, &ExportOptions::default()).unwrap();
    let again = open(written).unwrap();
    assert_eq!(again.attributes(), reader.attributes());
    assert_eq!(again.len(), reader.len());
    for name in reader.keys() {
        assert_eq!(again.read_owned(name).unwrap(), reader.read_owned(name).unwrap());
    }
});
