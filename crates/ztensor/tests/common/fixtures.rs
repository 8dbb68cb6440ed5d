//! Sample files and what their makers say is in them.
//!
//! Each folder `tests/data/<format>/` has files written by the format's own
//! library, the script that wrote them, and `expected.json`:
//!
//! ```json
//! {"file": {"tensor": {"dtype": "f32", "shape": [2, 3], "layout": "dense", "hex": "0000…"}}}
//! ```
//!
//! `layout` may be left out for dense tensors; `sha256` may stand for `hex`;
//! objects of several components have `"components": {"role": {"dtype": …, "hex": …}}`
//! in place of `dtype` and `hex`. The key `""` of a file holds its attributes.

use std::path::PathBuf;

use serde_json::Value as Json;
use sha2::Digest;
use ztensor::source::MapMode;
use ztensor::{Array, DType, OpenOptions, Reader, Value};

/// The folder of a format's samples.
pub fn folder(format: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(format)
}

/// The bytes of one sample.
pub fn bytes(format: &str, file: &str) -> Vec<u8> {
    std::fs::read(folder(format).join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Compares every sample of a format with what is expected, mapped and unmapped.
/// Returns the names of the files.
pub fn check(format: &str) -> Vec<String> {
    let expected: Json = serde_json::from_slice(&bytes(format, "expected.json")).unwrap();
    let files = expected.as_object().unwrap();
    assert!(!files.is_empty());
    for (file, tensors) in files {
        for mode in [MapMode::Auto, MapMode::Never] {
            let reader = OpenOptions::default().map(mode).open(folder(format).join(file));
            compare(&reader.unwrap_or_else(|error| panic!("{file}: {error}")), tensors, file);
        }
    }
    files.keys().cloned().collect()
}

/// Compares one open file with what is expected of it.
pub fn compare(reader: &Reader, expected: &Json, file: &str) {
    let expected = expected.as_object().unwrap();
    let mut names: Vec<&str> = expected.keys().map(String::as_str).filter(|name| !name.is_empty()).collect();
    let mut found: Vec<&str> = reader.keys().collect();
    names.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, names, "{file}: names");
    for name in names {
        let (what, wanted) = (format!("{file}: {name}"), &expected[name]);
        let tensor = reader.read_owned(name).unwrap_or_else(|error| panic!("{what}: {error}"));
        let shape: Vec<u64> =
            wanted["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
        assert_eq!(&tensor.shape[..], &shape[..], "{what}: shape");
        assert_eq!(tensor.layout.name(), wanted["layout"].as_str().unwrap_or("dense"), "{what}: layout");
        match wanted["components"].as_object() {
            None => check_array(tensor.component("data").unwrap(), wanted, &what),
            Some(components) => {
                assert_eq!(tensor.components.len(), components.len(), "{what}: components");
                for (role, wanted) in components {
                    check_array(tensor.component(role).unwrap(), wanted, &format!("{what}: {role}"));
                }
            }
        }
    }
    if let Some(attributes) = expected.get("") {
        let found: Json = reader.attributes().iter().map(|(key, value)| (key.clone(), json(value))).collect();
        assert_eq!(&found, attributes, "{file}: attributes");
    }
}

fn check_array(array: &Array<'_>, wanted: &Json, what: &str) {
    let dtype = wanted["dtype"].as_str().unwrap();
    assert_eq!(Some(array.dtype), DType::from_name(dtype), "{what}: dtype");
    match (wanted["hex"].as_str(), wanted["sha256"].as_str()) {
        (Some(bytes), _) => assert_eq!(hex(&array.bytes), bytes, "{what}: bytes"),
        (None, Some(digest)) => {
            assert_eq!(hex(&sha2::Sha256::digest(&array.bytes)), digest, "{what}: digest");
        }
        (None, None) => panic!("{what}: neither hex nor sha256 is given"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An attribute as JSON has it.
fn json(value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(value) => Json::from(*value),
        Value::Int(value) => match (u64::try_from(*value), i64::try_from(*value)) {
            (Ok(value), _) => Json::from(value),
            (_, Ok(value)) => Json::from(value),
            _ => Json::from(value.to_string()),
        },
        Value::Float(value) => Json::from(*value),
        Value::Text(value) => Json::from(value.as_str()),
        Value::Bytes(value) => Json::from(hex(value)),
        Value::Array(values) => values.iter().map(json).collect(),
        Value::Map(pairs) => pairs
            .iter()
            .map(|(key, value)| {
                (key.as_text().map_or_else(|| format!("{key:?}"), str::to_owned), json(value))
            })
            .collect::<serde_json::Map<_, _>>()
            .into(),
        Value::Tag(_, value) => json(value),
    }
}
