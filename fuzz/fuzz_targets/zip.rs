//! Zip archives of any damage, whatever format is inside: an error, or tensors
//! of the size they declare.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use ztensor::OpenOptions;
use ztensor::source::MemorySource;

fuzz_target!(|file: &[u8]| {
    if !file.starts_with(b"PK") {
        return; // other formats have their own targets
    }
    let options = OpenOptions::default().threads(1).max_component(1 << 20);
    let Ok(reader) = options.open_source(Arc::new(MemorySource::new(file.to_vec()))) else { return };
    for (name, object) in reader.objects() {
        let Ok(tensor) = reader.read_object(name) else { continue };
        for (role, component) in &object.components {
            assert_eq!(tensor.component(role).unwrap().bytes.len() as u64, component.len);
        }
    }
});
