//! ONNX models: what onnx itself wrote, and what a stranger might.
#![cfg_attr(not(unix), allow(dead_code, unused_imports))] // what only tests with links or signals use

mod common;
#[path = "onnx/hostile.rs"]
mod hostile;

use common::{conformance, fixtures};
use ztensor::{ErrorKind, Format, Reader};

#[test]
fn fixtures_read_as_onnx_reads_them() {
    let files = fixtures::check("onnx");
    assert_eq!(files.len(), 5);
    let reader = Reader::open(fixtures::folder("onnx").join("raw.onnx")).unwrap();
    assert_eq!(reader.format(), Format::Onnx);
}

#[test]
fn damaged_models_are_errors() {
    for file in ["graphs.onnx", "sparse.onnx"] {
        conformance::run(&fixtures::bytes("onnx", file), "onnx");
    }
    // The larger ones are damaged here and there.
    for file in ["raw.onnx", "typed.onnx", "external.onnx", "unreadable.onnx"] {
        for (_, damaged) in conformance::mutations(&fixtures::bytes("onnx", file), 2_000) {
            let _ = conformance::open_hostile(&damaged, "onnx");
        }
    }
}

#[test]
fn opening_reads_headers_only() {
    let data = vec![7; 8 << 20];
    let model = hostile::dense_model("big", 1, &[2 << 20], &data);
    assert!(model.len() > data.len());
    assert!(conformance::bytes_read_to_open(model) < 300 << 10);
}

#[test]
fn raw_data_is_viewed_in_place_and_any_range_can_be_read() {
    let folder = fixtures::folder("onnx");
    let raw = Reader::open(folder.join("raw.onnx")).unwrap();
    for (name, object) in raw.objects() {
        if object.byte_len() > 0 {
            assert_eq!(raw.view(name).unwrap(), raw.read(name).unwrap(), "{name}");
        }
    }
    let typed = Reader::open(folder.join("typed.onnx")).unwrap();
    assert!(typed.view("f32.7").is_ok() && typed.view("complex128.7").is_ok());
    assert_eq!(typed.view("i64.7").unwrap_err().kind(), ErrorKind::Unsupported);
    for (name, object) in typed.objects() {
        let whole = typed.read(name).unwrap();
        let sources = &typed.catalog().sources;
        if let ztensor::object::Storage::Encoded(decoder) = &object.components[0].1.storage {
            for start in 0..whole.len() {
                for end in start..=whole.len() {
                    let mut part = vec![0; end - start];
                    decoder.decode(sources, start as u64..end as u64, &mut part, 1).unwrap();
                    assert_eq!(part, whole[start..end], "{name} {start}..{end}");
                }
            }
        }
    }
}

#[test]
fn every_part_of_sparse_coordinates_can_be_read() {
    let reader = Reader::open(fixtures::folder("onnx").join("sparse.onnx")).unwrap();
    for name in ["linear", "rows"] {
        let whole = reader.read_component(name, "coords").unwrap();
        let ztensor::object::Storage::Encoded(decoder) =
            &reader.get(name).unwrap().component("coords").unwrap().storage
        else {
            panic!("coordinates are decoded");
        };
        for start in 0..whole.len() {
            for end in start..=whole.len() {
                let mut part = vec![0; end - start];
                let sources = &reader.catalog().sources;
                decoder.decode(sources, start as u64..end as u64, &mut part, 1).unwrap();
                assert_eq!(part, whole[start..end], "{name} {start}..{end}");
            }
        }
    }
}

#[test]
fn what_cannot_be_read_is_listed_and_refused_by_name() {
    let reader = Reader::open(fixtures::folder("onnx").join("unreadable.onnx")).unwrap();
    for (name, layout, word) in [
        ("strings", "onnx.string", "strings"),
        ("segment", "onnx.segment", "segment"),
        ("future", "onnx.unknown", "99"),
    ] {
        assert_eq!(reader.get(name).unwrap().layout.name(), layout);
        let error = reader.read(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(error.tensor(), Some(name));
        assert!(error.to_string().contains(word), "{error}");
    }
    assert!(reader.read("plain").is_ok());
}

#[test]
fn external_data_needs_the_models_path() {
    let bytes = std::fs::read(fixtures::folder("onnx").join("external.onnx")).unwrap();
    let reader = Reader::from_bytes(bytes).unwrap();
    assert_eq!(reader.len(), 3);
    let error = reader.read("e.f32").unwrap_err();
    assert!(error.to_string().contains("weights/external.bin"), "{error}");
}

#[test]
fn a_model_beyond_two_gibibytes_is_viewed_in_place() {
    const ROWS: u64 = 3 << 10;
    const LEN: u64 = ROWS << 20;
    fn varint(mut number: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while number >= 0x80 {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
        bytes
    }
    // dims, data_type (uint8), name, raw_data: all but the data itself.
    let tensor =
        [&b"\x08"[..], &varint(ROWS), b"\x08", &varint(1 << 20), b"\x10\x02\x42\x01w\x4a", &varint(LEN)]
            .concat();
    let graph = [&b"\x2a"[..], &varint(tensor.len() as u64 + LEN), &tensor].concat();
    let model = [&b"\x08\x0a\x3a"[..], &varint(graph.len() as u64 + LEN), &graph].concat();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.onnx");
    std::fs::write(&path, &model).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    // The data is a hole in the file, but for one mark.
    file.set_len(model.len() as u64 + LEN).unwrap();
    let mark = model.len() as u64 + (3000 << 20);
    common::write_all_at(&file, b"row 3000", mark).unwrap();

    let reader = ztensor::Reader::open(&path).unwrap();
    assert_eq!(&reader.get("w").unwrap().shape[..], [ROWS, 1 << 20]);
    assert_eq!(&reader.view("w").unwrap()[3000 << 20..][..8], b"row 3000");
    assert_eq!(&reader.read_rows("w", 3000..3001).unwrap()[..8], b"row 3000");
}
