//! `.zt` version 2: the format's own conformance files, files of its reference implementation, writing,
//! canonical form, shards, and hostile input.
#![cfg_attr(not(unix), allow(dead_code, unused_imports))] // what only tests with links or signals use

mod common;
#[path = "zt2/rules.rs"]
mod rules;
#[path = "zt2/shards.rs"]
mod shards;
#[path = "zt2/write.rs"]
mod write;

use std::collections::BTreeSet;
use std::path::PathBuf;

use common::{conformance, fixtures};
use serde_json::Value as Json;
use sha2::{Digest as _, Sha256};
use ztensor::export::{ExportFormat, ExportOptions, export_to};
use ztensor::format::zt2;
use ztensor::source::MapMode;
use ztensor::{DType, ErrorKind, Format, OpenOptions, Reader, Result, Value};

fn expected() -> Vec<Json> {
    let all: Json = serde_json::from_slice(&fixtures::bytes("zt2", "expected.json")).unwrap();
    all["files"].as_array().unwrap().clone()
}

fn path(entry: &Json) -> PathBuf {
    fixtures::folder("zt2").join(entry["file"].as_str().unwrap())
}

fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The object as the file has it: parts by their names there.
fn part_role<'a>(layout: &str, part: &'a str) -> &'a str {
    if layout.starts_with("gguf.") && part == "data" { "blocks" } else { part }
}

/// Opens a file and does what the entry asks for.
fn run(entry: &Json) -> Result<Reader> {
    let reader = Reader::open(path(entry))?;
    let expect = &entry["expect"];
    let object = expect["object"].as_str();
    match expect["op"].as_str().unwrap() {
        "open" => {}
        "view" => drop(reader.view(object.unwrap())?),
        "assemble" => drop(reader.read_object(object.unwrap())?),
        "verify" => match object {
            Some(object) => drop(reader.verify(object)?),
            None => {
                let summary = reader.verify_all(None)?;
                let undigested = entry["content_digest"].is_null() && entry["tensors"].is_array();
                assert_eq!(summary.unchecked > 0, undigested, "{}", entry["file"]);
            }
        },
        other => panic!("unknown operation {other}"),
    }
    Ok(reader)
}

#[test]
fn every_conformance_file_is_accepted_or_rejected_by_its_rule() {
    let (mut accepted, mut rejected) = (0, 0);
    for entry in expected() {
        let (file, expect) = (&entry["file"], &entry["expect"]);
        let outcome = run(&entry);
        match expect["outcome"].as_str().unwrap() {
            "accept" | "accept-data-shard" => {
                let reader = outcome.unwrap_or_else(|error| panic!("{file}: {error}"));
                assert_eq!(reader.format(), Format::Zt2);
                accepted += 1;
            }
            "reject" => {
                let error = outcome.expect_err(&file.to_string());
                let rule = format!("zt2.{}", expect["rule"].as_str().unwrap());
                assert_eq!(error.rule(), Some(&*rule), "{file}: {error}");
                assert!(error.to_string().contains(&rule), "{error}");
                if expect["op"] != "open" {
                    Reader::open(path(&entry)).unwrap();
                }
                rejected += 1;
            }
            "unsupported" => {
                assert_eq!(outcome.expect_err(&file.to_string()).kind(), ErrorKind::Unsupported);
                Reader::open(path(&entry)).unwrap();
            }
            other => panic!("unknown outcome {other}"),
        }
    }
    assert_eq!((accepted, rejected), (41, 57));
}

#[test]
fn tensors_are_those_that_the_reference_reads() {
    for entry in expected().iter().filter(|entry| entry["tensors"].is_array()) {
        for mode in [MapMode::Auto, MapMode::Never] {
            let reader = OpenOptions::default().map(mode).open(path(entry)).unwrap();
            compare(&reader, entry);
        }
    }
}

fn compare(reader: &Reader, entry: &Json) {
    let file = &entry["file"];
    let tensors = entry["tensors"].as_array().unwrap();
    assert_eq!(reader.len(), tensors.len(), "{file}");
    for wanted in tensors {
        let (name, layout) = (wanted["name"].as_str().unwrap(), wanted["layout"].as_str().unwrap());
        let object = reader.get(name).unwrap();
        let shape: Vec<u64> =
            wanted["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
        assert_eq!(object.shape.as_slice(), shape, "{file}: {name}");
        let parts = wanted["parts"].as_object().unwrap();
        assert_eq!(object.components.len(), parts.len(), "{file}: {name}");
        for (part, wanted) in parts {
            let component = object.require(part_role(layout, part)).unwrap();
            assert_eq!(component.len, wanted["nbytes"].as_u64().unwrap(), "{file}: {name}");
            let digest = component.digest.as_ref().map(|digest| digest.to_string());
            assert_eq!(digest.as_deref(), wanted["digest"].as_str(), "{file}: {name}");
            assert_eq!(component.encoding(), wanted["encoding"].as_str().unwrap_or("raw"));
            if let Some(sha256) = wanted["sha256"].as_str() {
                // The files whose contents break a rule are read part by part.
                let bytes = OpenOptions::default().verify(false).open(path(entry)).unwrap();
                let bytes = bytes.read_component(name, part_role(layout, part)).unwrap();
                assert_eq!(hex(Sha256::digest(&bytes)), sha256, "{file}: {name}: {part}");
            }
        }
        if let Some(sha256) = wanted["dense_sha256"].as_str() {
            assert_eq!(hex(Sha256::digest(dense(reader, name))), sha256, "{file}: {name}");
        }
        if let Some(sha256) = wanted["dequantized_f32_sha256"].as_str() {
            let numbers = reader.read_object(name).unwrap().dequantize().unwrap().data;
            let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            assert_eq!(hex(Sha256::digest(bytes)), sha256, "{file}: {name}");
        }
        if wanted["dequantized"].is_string() {
            let numbers = reader.read_object(name).unwrap().dequantize().unwrap().data;
            assert!(numbers.iter().all(|number| number.is_nan()), "{file}: {name}");
        }
        if !wanted["attributes"].is_null() && !layout.starts_with("gguf.") {
            let own = object.attributes.as_deref().cloned().unwrap_or_default();
            check_attributes(
                own.into_iter().map(|(key, value)| (Value::Text(key), value)),
                &wanted["attributes"],
            );
        }
    }
    if !entry["attributes"].is_null() {
        let own = reader.attributes().clone();
        check_attributes(own.into_iter().map(|(key, value)| (Value::Text(key), value)), &entry["attributes"]);
    }
}

/// A sparse tensor with its zeros.
fn dense(reader: &Reader, name: &str) -> Vec<u8> {
    let tensor = reader.read_object(name).unwrap();
    macro_rules! bytes {
        ($($dtype:ident $rust:ty),*) => {
            match tensor.dtype().unwrap() {
                $(DType::$dtype => bytemuck_bytes(&tensor.into_dense::<$rust>().unwrap().data),)*
                other => panic!("{other}"),
            }
        };
    }
    fn bytemuck_bytes<T: ztensor::Element>(elements: &[T]) -> Vec<u8> {
        ztensor::Array::from_slice(elements).bytes.into_owned()
    }
    bytes!(F32 f32, F64 f64, I64 i64, I32 i32, I16 i16, I8 i8, U8 u8, Bool u8, U16 u16, F16 half::f16, BF16 half::bf16)
}

/// A tagged value of the list of expected ones.
fn value(json: &Json) -> Value {
    let (kind, json) = json.as_object().unwrap().iter().next().unwrap();
    match kind.as_str() {
        "uint" | "nint" => Value::Int(json.as_str().unwrap().parse().unwrap()),
        "float_bits" => {
            Value::Float(f64::from_bits(u64::from_str_radix(json.as_str().unwrap(), 16).unwrap()))
        }
        "text" => Value::Text(json.as_str().unwrap().to_owned()),
        "bytes_hex" => {
            let hex = json.as_str().unwrap();
            let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
            Value::Bytes((0..hex.len()).step_by(2).map(byte).collect())
        }
        "bool" => Value::Bool(json.as_bool().unwrap()),
        "null" => Value::Null,
        "array" => Value::Array(json.as_array().unwrap().iter().map(value).collect()),
        "map" => {
            let pairs = json.as_array().unwrap().iter();
            Value::Map(pairs.map(|pair| (value(&pair[0]), value(&pair[1]))).collect())
        }
        other => panic!("unknown kind {other}"),
    }
}

fn check_attributes(found: impl Iterator<Item = (Value, Value)>, wanted: &Json) {
    // NaN is not equal to itself, so that the texts are compared.
    assert_eq!(format!("{:?}", Value::Map(found.collect())), format!("{:?}", value(wanted)));
}

#[test]
fn content_digests_are_those_of_the_reference() {
    let mut checked = 0;
    for entry in expected().iter().filter(|entry| entry["tensors"].is_array()) {
        let found = zt2::content_digest(&Reader::open(path(entry)).unwrap());
        match entry["content_digest"].as_object() {
            None => assert_eq!(found.unwrap_err().kind(), ErrorKind::Unsupported, "{}", entry["file"]),
            Some(wanted) => {
                let [sha256, xxh3] = found.unwrap();
                assert_eq!(sha256.to_string(), wanted["sha256"].as_str().unwrap(), "{}", entry["file"]);
                assert_eq!(xxh3.to_string(), wanted["xxh3"].as_str().unwrap(), "{}", entry["file"]);
                checked += 1;
            }
        }
    }
    assert!(checked > 20);
    let other = Reader::open(fixtures::folder("safetensors").join("dtypes.safetensors")).unwrap();
    assert_eq!(zt2::content_digest(&other).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn canonical_form_is_judged_as_by_the_specification() {
    for entry in expected().iter().filter(|entry| entry["canonical"].is_object()) {
        let reader = Reader::open(path(entry)).unwrap();
        let found = zt2::canonical::check(&reader).unwrap();
        let rules: BTreeSet<u64> = found.iter().map(|violation| u64::from(violation.rule)).collect();
        let wanted = entry["canonical"]["rules_broken"].as_array().unwrap();
        let wanted: BTreeSet<u64> = wanted.iter().map(|rule| rule.as_u64().unwrap()).collect();
        assert_eq!(rules, wanted, "{}: {found:?}", entry["file"]);
        assert!(found.is_sorted_by_key(|violation| violation.byte));
        for violation in &found {
            let text = violation.to_string();
            assert!(text.starts_with(&format!("byte {}: ", violation.byte)), "{text}");
            assert!(text.contains(&format!("[canonical rule {}: ", violation.rule)), "{text}");
        }
    }
}

#[test]
fn padding_and_reserved_are_part_of_canonical_form() {
    let good = fixtures::bytes("zt2", "written/canonical.zt");
    let check = |bytes: Vec<u8>| zt2::canonical::check(&Reader::from_bytes(bytes).unwrap()).unwrap();
    assert_eq!(check(good.clone()), []);
    let mut padding = good.clone();
    padding[100] = 1;
    let mut reserved = good.clone();
    let at = reserved.len() - 12;
    reserved[at] = 1;
    for (bytes, byte) in [(padding, 100), (reserved, at as u64)] {
        let found = check(bytes);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].rule, found[0].byte), (1, byte));
    }
}

fn canonical(reader: &Reader) -> Vec<u8> {
    let mut out = Vec::new();
    export_to(reader, &mut out, ExportFormat::Zt2, &ExportOptions::default().canonical(true)).unwrap();
    out
}

#[test]
fn canonical_files_are_byte_for_byte_those_of_the_reference() {
    let mut checked = 0;
    for entry in expected() {
        let Some(wanted) = entry["canonical_rewrite"].as_object() else { continue };
        let reader = Reader::open(path(&entry)).unwrap();
        let bytes = canonical(&reader);
        assert_eq!(bytes.len() as u64, wanted["size"].as_u64().unwrap(), "{}", entry["file"]);
        assert_eq!(hex(Sha256::digest(&bytes)), wanted["sha256"].as_str().unwrap(), "{}", entry["file"]);
        let again = Reader::from_bytes(bytes.clone()).unwrap();
        assert_eq!(zt2::canonical::check(&again).unwrap(), [], "{}", entry["file"]);
        assert_eq!(canonical(&again), bytes, "{}", entry["file"]);
        checked += 1;
    }
    assert_eq!(checked, 22);
}

#[test]
fn conforms() {
    for file in [
        "corpus/valid/csr-data-valid.zt",
        "corpus/valid/attributes-kitchen-sink.zt",
        "corpus/valid/unknown-ltype-structural.zt",
        "corpus/valid/data-shard.zt",
        "written/identity-4k.zt",
        "written/identity-zstd.zt",
        "written/appended.zt",
    ] {
        conformance::run(&fixtures::bytes("zt2", file), "zt");
    }
}

#[test]
fn opening_reads_both_ends_only() {
    let mut bytes = Vec::new();
    let list = ztensor::export::TensorList {
        tensors: vec![(
            "big".into(),
            ztensor::Tensor::from_bytes(vec![8_000_000], DType::U8, vec![7; 8_000_000]).unwrap(),
        )],
        ..Default::default()
    };
    export_to(&list, &mut bytes, ExportFormat::Zt2, &ExportOptions::default()).unwrap();
    let read = conformance::bytes_read_to_open(bytes);
    assert!(read < 200_000, "{read} bytes were read");
}
