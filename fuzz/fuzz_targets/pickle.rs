//! Pickles of any damage, alone, in torch archives and in old torch files: an
//! error, or tensors of the size they declare.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use ztensor::source::MemorySource;
use ztensor::{Format, OpenOptions};

/// An archive of stored members without checksums, so that the fuzzer need not guess any.
fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in members {
        let sizes = [[0; 4], (data.len() as u32).to_le_bytes(), (data.len() as u32).to_le_bytes()].concat();
        let lengths = [(name.len() as u16).to_le_bytes(), [0; 2]].concat();
        directory.extend(b"PK\x01\x02\x14\0\x14\0\0\0\0\0\0\0\x21\0".iter().chain(&sizes).chain(&lengths));
        directory.extend([0; 10]);
        directory.extend((out.len() as u32).to_le_bytes());
        directory.extend(name.as_bytes());
        out.extend(b"PK\x03\x04\x14\0\0\0\0\0\0\0\x21\0".iter().chain(&sizes).chain(&lengths));
        out.extend(name.as_bytes());
        out.extend(*data);
    }
    let count = (members.len() as u16).to_le_bytes();
    let end = [(directory.len() as u32).to_le_bytes(), (out.len() as u32).to_le_bytes()].concat();
    out.extend(directory);
    out.extend([&b"PK\x05\x06\0\0\0\0"[..], &count, &count, &end, &[0; 2]].concat());
    out
}

/// Whatever a file is, scanning it ends, and a dangerous name that opening reports is found.
fn scan(file: &[u8]) -> Vec<String> {
    let report = ztensor::scan::scan_bytes("model.pt", file);
    report
        .findings
        .into_iter()
        .filter(|finding| finding.severity == ztensor::scan::Severity::Dangerous)
        .map(|finding| finding.what)
        .collect()
}

fn check(file: Vec<u8>) {
    let dangerous = scan(&file);
    let options = OpenOptions::default().threads(1).max_component(1 << 20);
    let Ok(reader) = options.open_source(Arc::new(MemorySource::new(file))) else { return };
    if reader.format() != Format::Pickle {
        return;
    }
    assert!(reader.unsafe_globals().is_empty() || !dangerous.is_empty());
    for (name, object) in reader.objects() {
        let Ok(tensor) = reader.read_object(name) else { continue };
        for (role, component) in &object.components {
            assert_eq!(tensor.component(role).unwrap().bytes.len() as u64, component.len);
        }
    }
}

fuzz_target!(|pickle: &[u8]| {
    check([b"\x80\x04", pickle, b"N."].concat());
    let order: &[u8] = if pickle.len() % 2 == 0 { b"little" } else { b"big" };
    check(archive(&[
        ("x/data.pkl", pickle),
        ("x/byteorder", order),
        ("x/data/0", &[7; 24]),
        ("x/data/1", &[8; 64]),
        ("x/constants.pkl", b")."),
    ]));
    const START: &[u8] = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.}.";
    check([START, pickle].concat());
});
