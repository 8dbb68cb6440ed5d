//! `.zt` files of any damage: an error, or tensors of the size they declare; and
//! what was read is written again as the same tensors.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use ztensor::source::MemorySource;
use ztensor::{OpenOptions, Reader, WriteOptions, Writer};

fn open(bytes: Vec<u8>) -> ztensor::Result<Reader> {
    let options = OpenOptions::default().threads(1).max_component(1 << 20);
    options.open_source(Arc::new(MemorySource::new(bytes)))
}

fuzz_target!(|file: &[u8]| {
    // Other formats have their own targets.
    if !file.starts_with(b"ZTEN") {
        return;
    }
    let Ok(reader) = open(file.to_vec()) else { return };
    // Tensors that decode to what they declare; the others are errors.
    let names: Vec<&str> = reader.keys().filter(|name| reader.read_owned(name).is_ok()).collect();
    let mut written = Vec::new();
    let mut writer = Writer::new(&mut written).unwrap();
    writer.write_from(&reader, &names, WriteOptions::default(), None).unwrap();
    writer.finish().unwrap();
    let again = open(written).unwrap();
    assert_eq!(again.len(), names.len());
    for name in names {
        assert_eq!(again.read_owned(name).unwrap(), reader.read_owned(name).unwrap());
    }
});
