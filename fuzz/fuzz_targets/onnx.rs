//! ONNX models of any damage: an error, or tensors of the size they declare.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use ztensor::source::MemorySource;
use ztensor::{Format, OpenOptions};

fuzz_target!(|file: &[u8]| {
    let options = OpenOptions::default().threads(1).max_component(1 << 20);
    let Ok(reader) = options.open_source(Arc::new(MemorySource::new(file.to_vec()))) else { return };
    // Other formats have their own targets.
    if reader.format() != Format::Onnx {
        return;
    }
    for (name, object) in reader.objects() {
        let Ok(tensor) = reader.read_object(name) else { continue };
        for (role, component) in &object.components {
            assert_eq!(tensor.component(role).unwrap().bytes.len() as u64, component.len);
        }
    }
});
