//! The safetensors reader against the format's own library, and against hostile files.

mod common;

use common::conformance;

/// A file with this header and this many bytes of data.
fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data, 7);
    bytes
}

const SAMPLE: &str = r#"{"__metadata__":{"format":"pt","a\n":"\u00e9"},
    "w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
    "e":{"dtype":"I8","shape":[0],"data_offsets":[24,24]},
    "s":{"dtype":"BF16","shape":[],"data_offsets":[24,26]}}"#;

#[test]
fn conforms() {
    conformance::run(&file(SAMPLE, 26), "safetensors");
}
