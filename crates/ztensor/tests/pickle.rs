//! The reader of `.pt`, `.pth`, `.bin` and `.pkl` against torch, NumPy and
//! pickle, and against hostile files.

mod common;

use common::{conformance, fixtures};
use ztensor::{ErrorKind, Reader, Value};

#[test]
fn samples_read_as_their_makers_say() {
    assert!(fixtures::check("pickle").len() >= 30);
}

fn conforms(files: &[&str]) {
    for file in files {
        conformance::run(&fixtures::bytes("pickle", file), "pt");
    }
}

#[test]
fn archives_conform() {
    conforms(&["plain.pt", "views.pt", "sparse.pt", "quantized.pt", "big_endian.pt"]);
}

#[test]
fn unusual_archives_conform() {
    conforms(&["checkpoint.pt", "module.pt", "script.pt", "deflated.pt", "no_crc.pt"]);
}

#[test]
fn legacy_files_conform() {
    conforms(&["types_legacy.pt", "views_legacy.pt", "checkpoint_legacy.pt", "module_legacy.pt"]);
}

#[test]
fn pickles_conform() {
    for file in ["numpy_protocol2.pkl", "numpy_protocol5.pkl", "torch_protocol5.pkl", "python2.pkl"] {
        conformance::run(&fixtures::bytes("pickle", file), "pkl");
    }
    // Protocol 0 has no mark of its own: the extension tells.
    conformance::run_by_extension(PROTOCOL_0, "pkl");
}

/// `{"a": numpy.array([1, 2], "u1"), "b": [1.5]}` in lines of text.
const PROTOCOL_0: &[u8] = b"(dVa\ncnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR\
    (I1\n(I2\ntcnumpy\ndtype\n(S'u1'\nI00\nI01\ntR(I3\nS'|'\nNNNI-1\nI-1\nI0\ntbI00\nS'\\x01\\x02'\ntb\
    sVb\n(lF1.5\nas.";

#[test]
fn tensors_without_data_are_listed_and_say_why() {
    let reader = Reader::from_bytes(fixtures::bytes("pickle", "absent.pt")).unwrap();
    assert_eq!(reader.keys().collect::<Vec<_>>(), ["meta", "objects", "text", "fine"]);
    assert_eq!(reader.get("meta").unwrap().shape[..], [2, 3]);
    for (name, why) in [("meta", "meta tensor"), ("objects", "O8"), ("text", "U1")] {
        let error = reader.read(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}");
        assert!(error.to_string().contains(why), "{error}");
        assert_eq!(reader.get(name).unwrap().attribute("absent"), Some(&Value::Bool(true)));
    }
    assert_eq!(reader.read_as::<f32>("fine").unwrap(), [1.0]);
}

#[test]
fn parts_of_tensors_have_their_attributes() {
    let reader = Reader::from_bytes(fixtures::bytes("pickle", "quantized.pt")).unwrap();
    let attribute = |tensor: &str, name| reader.get(tensor).unwrap().attribute(name).cloned();
    assert_eq!(attribute("per_tensor", "scale"), Some(Value::Float(0.1)));
    assert_eq!(attribute("per_tensor", "zero_point"), Some(Value::Int(10)));
    assert_eq!(attribute("per_tensor", "torch_dtype"), Some(Value::from("quint8")));
    assert_eq!(attribute("per_channel", "axis"), Some(Value::Int(0)));
    let reader = Reader::from_bytes(fixtures::bytes("pickle", "sparse.pt")).unwrap();
    let attribute = |tensor: &str, name| reader.get(tensor).unwrap().attribute(name).cloned();
    assert_eq!(attribute("coo", "coalesced"), Some(Value::Bool(true)));
    assert_eq!(attribute("bsr", "values_shape"), Some(Value::from(vec![4u64, 2, 2])));
}

#[test]
fn what_is_contiguous_is_viewed_and_what_is_tied_is_shared() {
    for file in ["views.pt", "views_legacy.pt"] {
        let reader = Reader::from_bytes(fixtures::bytes("pickle", file)).unwrap();
        for name in ["base", "tied", "rows", "row", "empty_at_end"] {
            assert_eq!(reader.view(name).unwrap(), reader.read(name).unwrap(), "{file}: {name}");
        }
        for name in ["transposed", "every_other", "expanded", "conjugated", "negated"] {
            assert!(reader.view(name).is_err(), "{file}: {name}");
        }
        let start = |name| reader.view(name).unwrap().as_ptr();
        assert_eq!(start("base"), start("tied"), "{file}");
        assert_eq!(start("rows") as usize - start("base") as usize, 24, "{file}");
        // A part of a lazily conjugated tensor is a part of the whole.
        let whole = reader.read("conjugated").unwrap();
        assert_eq!(reader.read_rows("conjugated", 2..5).unwrap(), &whole[16..40], "{file}");
    }
}
