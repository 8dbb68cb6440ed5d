//! Models that break a rule, built field by field.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{self, processor_time};
use ztensor::source::MapMode;
use ztensor::{Error, ErrorKind, OpenOptions, Reader};

/// A protobuf message under construction.
#[derive(Clone, Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint_bytes(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn varint(mut self, field: u64, value: u64) -> Self {
        self.varint_bytes(field << 3);
        self.varint_bytes(value);
        self
    }

    fn bytes(mut self, field: u64, bytes: impl AsRef<[u8]>) -> Self {
        self.varint_bytes(field << 3 | 2);
        self.varint_bytes(bytes.as_ref().len() as u64);
        self.0.extend_from_slice(bytes.as_ref());
        self
    }

    fn message(self, field: u64, inner: Message) -> Self {
        self.bytes(field, inner.0)
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

fn new() -> Message {
    Message::default()
}

const FLOAT: u64 = 1;
const INT64: u64 = 7;

fn tensor(name: &str, kind: u64, dims: &[i64]) -> Message {
    let tensor = dims.iter().fold(new(), |message, &dim| message.varint(1, dim as u64));
    tensor.varint(2, kind).bytes(8, name)
}

fn model(graph: Message) -> Vec<u8> {
    new().varint(1, 10).message(7, graph).0
}

fn with_tensor(tensor: Message) -> Vec<u8> {
    model(new().message(5, tensor))
}

/// A model of one tensor with raw data.
pub fn dense_model(name: &str, kind: u64, dims: &[i64], data: &[u8]) -> Vec<u8> {
    with_tensor(tensor(name, kind, dims).bytes(9, data))
}

fn open(bytes: Vec<u8>) -> Result<Reader, Error> {
    Reader::from_bytes(bytes)
}

/// The rule that opening, or else reading everything, says is broken.
fn broken_rule(bytes: Vec<u8>) -> Option<&'static str> {
    let reader = match open(bytes) {
        Err(error) => return error.rule(),
        Ok(reader) => reader,
    };
    let failure = reader.objects().find_map(|(name, object)| {
        object.components.iter().find_map(|(role, _)| reader.read_component(name, role).err())
    });
    failure.and_then(|error| error.rule())
}

#[track_caller]
fn refused(tensor: Message, rule: &str) {
    assert_eq!(broken_rule(with_tensor(tensor)), Some(rule));
}

#[test]
fn shapes_and_sizes_must_agree() {
    refused(tensor("t", FLOAT, &[2]).bytes(9, [0; 7]), "onnx.size");
    refused(tensor("t", FLOAT, &[2]).bytes(9, [0; 12]), "onnx.size");
    refused(tensor("t", FLOAT, &[2]), "onnx.no-data");
    refused(tensor("t", FLOAT, &[-1]).bytes(9, []), "onnx.dims");
    refused(tensor("t", FLOAT, &[i64::MIN]).bytes(9, []), "onnx.dims");
    refused(tensor("t", FLOAT, &[i64::MAX, i64::MAX]).bytes(9, []), "object.overflow");
    refused(tensor("t", FLOAT, &[i64::MAX]).bytes(9, []), "object.overflow");
    refused(tensor("t", FLOAT, &[1; 65]).bytes(9, [0; 4]), "object.rank");
    refused(tensor("t", INT64, &[4]).bytes(7, [1, 2, 3]), "onnx.size");
    refused(tensor("t", INT64, &[2]).bytes(7, [1, 2, 3]), "onnx.size");
    refused(tensor("t", INT64, &[3]).bytes(7, [1, 0x80]), "onnx.size");
    refused(tensor("t", INT64, &[2]).bytes(7, [1, 0x80]), "onnx.varint");
    refused(tensor("t", INT64, &[1]).bytes(7, [0xff; 10]), "onnx.varint");
    refused(tensor("t", 8, &[2]).bytes(6, "one"), "onnx.size");
    refused(tensor("t", 27, &[1]).bytes(5, [0x40]), "onnx.six-bits");
    let packed_dims = new().bytes(1, [2, 0x80]).varint(2, FLOAT).bytes(8, "t");
    refused(packed_dims, "onnx.wire");
    // Zero dimensions and empty data are fine, also beside huge ones.
    assert!(open(with_tensor(tensor("t", FLOAT, &[0, i64::MAX]))).is_ok());
    assert!(open(with_tensor(tensor("t", FLOAT, &[0]).bytes(9, []))).is_ok());
}

#[test]
fn elements_are_given_once_and_in_their_field() {
    let t = || tensor("t", FLOAT, &[1]);
    refused(t().bytes(9, [0; 4]).bytes(4, [0; 4]), "onnx.two-data");
    refused(t().bytes(9, [0; 4]).bytes(9, [0; 4]), "onnx.twice");
    refused(t().bytes(5, [0]), "onnx.field");
    refused(t().varint(2, FLOAT).bytes(9, [0; 4]), "onnx.twice");
    let entry = |key: &str, value: &str| new().bytes(1, key).bytes(2, value);
    let external = |tensor: Message| tensor.varint(14, 1).message(13, entry("location", "w"));
    refused(external(t().bytes(9, [0; 4])), "onnx.two-data");
    refused(external(t().bytes(4, [0; 4])), "onnx.two-data");
    refused(t().bytes(9, [0; 4]).message(13, entry("location", "w")), "onnx.two-data");
    refused(t().varint(14, 2), "onnx.location");
    refused(t().varint(14, 1), "onnx.external-path");
    for number in ["-1", "", "+1", " 1", "1e3", "18446744073709551616", "0x10"] {
        refused(external(t()).message(13, entry("offset", number)), "onnx.external-range");
    }
    refused(external(t()).message(13, entry("offset", "18446744073709551615")), "onnx.external-range");
    refused(external(t()).message(13, entry("length", "5")), "onnx.size");
    for path in ["/etc/passwd", "../w", "a/../../w", "C:\\w", "\\\\host\\w", ""] {
        let t = t().varint(14, 1).message(13, entry("location", path));
        refused(t, "path.outside");
    }
}

#[test]
fn typed_fields_may_come_in_pieces_and_unpacked() {
    let floats = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let unpacked = |field: u64, value: f32| new().raw(&[(field << 3 | 5) as u8]).raw(&value.to_le_bytes()).0;
    let t = tensor("t", FLOAT, &[4]).bytes(4, floats(&[1.0])).raw(&unpacked(4, 2.0)).raw(&unpacked(4, 3.0));
    let reader = open(with_tensor(t.bytes(4, floats(&[4.0])))).unwrap();
    assert_eq!(reader.read("t").unwrap(), floats(&[1.0, 2.0, 3.0, 4.0]));
    let t = tensor("t", INT64, &[3]).varint(7, 300).varint(7, u64::MAX).bytes(7, [5]);
    let reader = open(with_tensor(t)).unwrap();
    let expected: Vec<u8> = [300i64, -1, 5].iter().flat_map(|n| n.to_le_bytes()).collect();
    assert_eq!(reader.read("t").unwrap(), expected);
    // No writer splits a tensor into thousands of pieces.
    let t = (0..5000).fold(tensor("t", INT64, &[10_000]), |t, _| t.bytes(7, [1]).varint(7, 1));
    refused(t, "onnx.pieces");
}

#[test]
fn names_are_text_and_unique() {
    let t = |name: &str| tensor(name, FLOAT, &[1]).bytes(9, [0; 4]);
    let twice = model(new().message(5, t("a")).message(5, t("a")));
    assert_eq!(broken_rule(twice), Some("name.duplicate"));
    assert_eq!(broken_rule(with_tensor(t(""))), Some("onnx.name"));
    let no_text = tensor("", FLOAT, &[1]).0;
    let no_text = new().raw(&no_text[..no_text.len() - 2]).bytes(8, b"\xff\xfe").bytes(9, [0; 4]);
    assert_eq!(broken_rule(with_tensor(no_text)), Some("onnx.utf8"));
    for name in ["a\0b", "/etc/passwd", "../x", &"n".repeat(1 << 20)] {
        assert!(open(with_tensor(t(name))).unwrap().read(name).is_ok());
    }
}

#[test]
fn the_wire_is_checked() {
    let bad = |bytes: &[u8]| {
        let file = [b"\x08\x0a".as_slice(), bytes].concat();
        broken_rule_named(&file)
    };
    assert_eq!(
        bad(b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        Some("onnx.wire"),
        "a length of 2^64 - 1"
    );
    assert_eq!(bad(b"\x3a\xff\xff\xff\xff\x07"), Some("onnx.wire"), "a length of 2^31 - 1");
    assert_eq!(bad(b"\x3a\x80\x80\x80\x80\x08"), Some("onnx.wire"), "a length of 2^31");
    assert_eq!(
        bad(&[[0x3a].as_slice(), &[0x80; 4000]].concat()),
        Some("onnx.varint"),
        "a number without end"
    );
    assert_eq!(bad(b"\x3b"), Some("onnx.wire"), "a group");
    assert_eq!(bad(b"\x3f"), Some("onnx.wire"), "wire type 7");
    assert_eq!(bad(b"\x02\x00"), Some("onnx.wire"), "field 0");
    assert_eq!(bad(b"\x3a\x02\x0a\x05"), Some("onnx.wire"), "a field that leaves its message");
    assert_eq!(bad(b""), Some("onnx.no-graph"));
    assert_eq!(bad(b"\x3a\x00\x3a\x00"), Some("onnx.twice"), "two graphs");
}

/// As [`broken_rule`], for bytes that are a model only by name.
fn broken_rule_named(bytes: &[u8]) -> Option<&'static str> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.onnx");
    std::fs::write(&path, bytes).unwrap();
    Reader::open(path).err().and_then(|error| error.rule())
}

#[test]
fn nested_graphs_end_somewhere_and_their_names_stay_in_proportion() {
    let nest = |levels: usize, label: &str| {
        let mut graph = new();
        for _ in 0..levels {
            let attribute = new().bytes(1, "body").message(6, graph);
            graph = new().message(1, new().bytes(2, label).bytes(4, "Loop").message(5, attribute));
        }
        model(graph)
    };
    assert!(open(nest(30, "loop")).is_ok());
    for levels in [40, 1000, 20_000] {
        assert_eq!(broken_rule(nest(levels, "n")), Some("onnx.depth"));
    }
    // One long label over many tensors would be copied into each of their names.
    let leaf = tensor("", FLOAT, &[0]);
    let inner = (0..20_000).fold(new(), |graph, index| {
        graph.message(5, new().raw(&leaf.0[..leaf.0.len() - 2]).bytes(8, format!("{index}")))
    });
    let attribute = new().bytes(1, "body").message(6, inner);
    let node = new().bytes(2, "n".repeat(100_000)).bytes(4, "Loop").message(5, attribute);
    assert_eq!(broken_rule(model(new().message(1, node))), Some("onnx.names"));
    // Made-up names that all collide cost no more than others.
    let start = processor_time();
    let attribute = new().bytes(1, "value").message(5, new().raw(&leaf.0));
    let node = new().bytes(2, "same").bytes(4, "Fill").message(5, attribute);
    let graph = (0..50_000).fold(new(), |graph, _| graph.message(1, node.clone()));
    assert_eq!(open(model(graph)).unwrap().len(), 50_000);
    assert!(processor_time() - start < Duration::from_secs(20), "quadratic");
}

#[test]
fn sparse_tensors_stay_inside_their_shape() {
    let sparse = |values: &[f32], indices: &[i64], index_dims: &[i64], dims: &[i64]| {
        let floats: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let numbers: Vec<u8> = indices.iter().flat_map(|v| v.to_le_bytes()).collect();
        let message = new()
            .message(1, tensor("s", FLOAT, &[values.len() as i64]).bytes(9, floats))
            .message(2, tensor("i", INT64, index_dims).bytes(9, numbers));
        broken_rule(model(new().message(15, dims.iter().fold(message, |m, &d| m.varint(3, d as u64)))))
    };
    assert_eq!(sparse(&[1.0, 2.0], &[0, 5], &[2], &[2, 3]), None);
    let rule = Some("onnx.sparse");
    assert_eq!(sparse(&[1.0, 2.0], &[0, 6], &[2], &[2, 3]), rule);
    assert_eq!(sparse(&[1.0, 2.0], &[-1, 5], &[2], &[2, 3]), rule);
    assert_eq!(sparse(&[1.0, 2.0], &[5, 0], &[2], &[2, 3]), rule);
    assert_eq!(sparse(&[1.0, 2.0], &[1, 1], &[2], &[2, 3]), rule);
    assert_eq!(sparse(&[1.0], &[0, 3], &[1, 2], &[2, 3]), rule);
    assert_eq!(sparse(&[1.0], &[0], &[1, 1], &[2, 3]), rule);
    assert_eq!(sparse(&[1.0], &[0], &[1], &[]), rule);
    assert_eq!(sparse(&[1.0], &[0], &[1], &[i64::MAX, i64::MAX]), rule);
    assert_eq!(sparse(&[1.0, 2.0, 3.0], &[0, 1, 2], &[3], &[2]), rule);
    assert_eq!(sparse(&[1.0], &[0], &[1], &[-2]), Some("onnx.dims"));
    let no_values = new().message(2, tensor("i", INT64, &[0])).varint(3, 4);
    assert_eq!(broken_rule(model(new().message(15, no_values))), rule);
    let no_indices = new().message(1, tensor("s", FLOAT, &[1]).bytes(9, [0; 4])).varint(3, 4);
    assert_eq!(broken_rule(model(new().message(15, no_indices))), rule);
}

/// A model with one external tensor of four bytes, in a folder of its own.
fn external_model(folder: &Path, location: &str, offset: u64) -> PathBuf {
    let entry = |key: &str, value: &str| new().bytes(1, key).bytes(2, value);
    let t = tensor("t", FLOAT, &[1]).varint(14, 1);
    let t = t.message(13, entry("location", location)).message(13, entry("offset", &offset.to_string()));
    std::fs::create_dir_all(folder).unwrap();
    let path = folder.join("model.onnx");
    std::fs::write(&path, with_tensor(t)).unwrap();
    path
}

#[cfg(unix)]
#[test]
fn external_data_lies_inside_its_file_and_its_folder() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("model");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("w"), [1, 2, 3, 4, 5, 6]).unwrap();
    std::fs::write(dir.path().join("secret"), b"do not read").unwrap();
    std::os::unix::fs::symlink("../secret", folder.join("link")).unwrap();
    std::fs::hard_link(dir.path().join("secret"), folder.join("hard")).unwrap();
    for mode in [MapMode::Auto, MapMode::Never] {
        let read = |location: &str, offset: u64| {
            let path = external_model(&folder, location, offset);
            OpenOptions::default().map(mode).open(path).unwrap().read("t")
        };
        assert_eq!(read("w", 2).unwrap(), [3, 4, 5, 6]);
        for offset in [3, 7, u64::MAX - 4] {
            assert_eq!(read("w", offset).unwrap_err().rule(), Some("range.outside"));
        }
        for location in ["link", "hard"] {
            assert_eq!(read(location, 0).unwrap_err().rule(), Some("path.outside"), "{location}");
        }
        assert_eq!(read("absent", 0).unwrap_err().kind(), ErrorKind::Io);
    }
}

#[cfg(unix)]
#[test]
fn a_model_in_a_hugging_face_cache_finds_its_data() {
    let dir = tempfile::tempdir().unwrap();
    let repo = dir.path().join("models--org--name");
    let snapshot = repo.join("snapshots/0123abc");
    let built = external_model(&repo.join("blobs"), "model.onnx_data", 0);
    std::fs::rename(built, repo.join("blobs/aaaa")).unwrap();
    std::fs::write(repo.join("blobs/bbbb"), [9; 4]).unwrap();
    std::fs::create_dir_all(&snapshot).unwrap();
    std::os::unix::fs::symlink("../../blobs/aaaa", snapshot.join("model.onnx")).unwrap();
    std::os::unix::fs::symlink("../../blobs/bbbb", snapshot.join("model.onnx_data")).unwrap();
    let reader = Reader::open(snapshot.join("model.onnx")).unwrap();
    assert_eq!(reader.read("t").unwrap(), [9; 4]);
}

#[test]
fn models_over_two_gibibytes_open_at_once() {
    const BIG: u64 = (2 << 30) + 8;
    let small = tensor("small", FLOAT, &[1]).bytes(9, [1, 2, 3, 4]);
    let mut big = tensor("big", FLOAT, &[(BIG / 4) as i64]);
    big.varint_bytes(9 << 3 | 2);
    big.varint_bytes(BIG);
    let mut graph = Message::default();
    graph.varint_bytes(5 << 3 | 2);
    graph.varint_bytes(big.0.len() as u64 + BIG);
    let after = new().message(5, small);
    let mut head = new().varint(1, 10);
    head.varint_bytes(7 << 3 | 2);
    head.varint_bytes((graph.0.len() + big.0.len()) as u64 + BIG + after.0.len() as u64);
    let head = [head.0, graph.0, big.0].concat();
    let file = tempfile::NamedTempFile::with_suffix(".onnx").unwrap();
    common::write_all_at(file.as_file(), &head, 0).unwrap();
    // What is not written is a hole: the file takes a few blocks of disk.
    common::write_all_at(file.as_file(), &after.0, head.len() as u64 + BIG).unwrap();
    common::write_all_at(file.as_file(), &[7; 4], head.len() as u64 + BIG - 4).unwrap();
    for mode in [MapMode::Auto, MapMode::Never] {
        let reader = OpenOptions::default().map(mode).open(file.path()).unwrap();
        assert_eq!(reader.read("small").unwrap(), [1, 2, 3, 4]);
        assert_eq!(reader.get("big").unwrap().byte_len(), BIG);
        assert_eq!(reader.read_rows("big", BIG / 4 - 2..BIG / 4).unwrap(), [0, 0, 0, 0, 7, 7, 7, 7]);
    }
}
