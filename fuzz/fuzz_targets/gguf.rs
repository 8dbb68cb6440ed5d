//! GGUF files of any damage: an error, or tensors of the size they declare; and
//! what can be written again reads the same.
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
    if !file.starts_with(b"GGUF") {
        return;
    }
    let Ok(reader) = open(file.to_vec()) else { return };
    for (name, object) in reader.objects() {
        let tensor = reader.read_object(name).unwrap();
        for (role, component) in &object.components {
            assert_eq!(tensor.component(role).unwrap().bytes.len() as u64, component.len);
        }
        if let Ok(dense) = tensor.dequantize() {
            assert_eq!(Some(dense.data.len() as u64), object.elements());
        }
    }
    let mut written = Vec::new();
    let options = ExportOptions::default();
    if export_to(&reader, &mut written, ExportFormat::Gguf, &options).is_ok() {
        let again = open(written).unwrap();
        assert!(again.keys().eq(reader.keys()));
        // NaNs differ from themselves, so compare what is printed.
        assert_eq!(format!("{:?}", again.attributes()), format!("{:?}", reader.attributes()));
        for (name, object) in reader.objects() {
            assert_eq!(again.get(name).unwrap().shape, object.shape);
        }
    }
});
