//! The GGUF reader and writer against the format's own library, and against hostile files.

mod common;

use std::path::Path;

use common::{conformance, fixtures};
use ztensor::export::{ExportFormat, ExportOptions, ExportSource, TensorList, export_to};
use ztensor::gguf::{self, GgmlType};
use ztensor::{Array, Attributes, DType, Error, ErrorKind, Layout, Reader, Tensor, Value};

fn exported(source: &dyn ExportSource) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    export_to(source, &mut bytes, ExportFormat::Gguf, &ExportOptions::default())?;
    Ok(bytes)
}

#[test]
fn samples_hold_what_the_library_wrote() {
    let files = fixtures::check("gguf");
    assert_eq!(files.len(), 7);
}

#[test]
fn conforms() {
    for file in ["types.gguf", "shapes.gguf", "values.gguf", "big_endian.gguf"] {
        conformance::run(&fixtures::bytes("gguf", file), "gguf");
    }
}

#[test]
fn block_tensors_are_viewed_in_place_and_dequantized_on_request() {
    let reader = Reader::open(fixtures::folder("gguf").join("types.gguf")).unwrap();
    let mut dequantized = 0;
    for ggml_type in GgmlType::ALL {
        let name = format!("w.{}", ggml_type.name().to_uppercase());
        let tensor = reader.read_object(&name).unwrap();
        if ggml_type.is_block() {
            let object = reader.get(&name).unwrap();
            assert_eq!(object.layout.name(), ggml_type.layout_name());
            assert_eq!(object.attribute("ggml_type"), Some(&Value::from(ggml_type.id())));
            let viewed = reader.view_component(&name, "blocks").unwrap();
            assert_eq!(viewed.len() as u64, 3 * ggml_type.block_bytes());
            assert_eq!(viewed.as_ptr(), tensor.component("blocks").unwrap().bytes.as_ptr());
        }
        let integer =
            matches!(ggml_type, GgmlType::F64 | GgmlType::I8 | GgmlType::I16 | GgmlType::I32 | GgmlType::I64);
        let role = if ggml_type.is_block() { "blocks" } else { "data" };
        match tensor.dequantize() {
            Err(error) => assert!(integer, "{name}: {error}"),
            Ok(dense) => {
                assert_eq!(dense.shape, tensor.shape);
                let mut expected = vec![0.0; dense.data.len()];
                let blocks = &tensor.component(role).unwrap().bytes;
                gguf::dequantize(ggml_type, blocks, &mut expected, 1).unwrap();
                let bits = |data: &[f32]| data.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&dense.data), bits(&expected));
                dequantized += 1;
            }
        }
    }
    assert_eq!(dequantized, GgmlType::ALL.len() - 5);
}

#[test]
fn big_endian_blocks_are_marked_and_not_dequantized() {
    let reader = Reader::open(fixtures::folder("gguf").join("big_endian.gguf")).unwrap();
    let tensor = reader.read_object("blocks").unwrap();
    assert_eq!(tensor.attribute("byte_order"), Some(&Value::from("big")));
    assert_eq!(tensor.dequantize().unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(exported(&reader).unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(reader.view("F32").is_err(), "turning bytes round takes a copy");
    assert!(reader.view("I8").is_ok(), "single bytes have no order");
}

#[test]
fn a_file_of_the_library_is_written_again_byte_by_byte() {
    for file in ["types.gguf", "shapes.gguf", "values.gguf", "split-00002-of-00003.gguf"] {
        let bytes = fixtures::bytes("gguf", file);
        let reader = Reader::open(fixtures::folder("gguf").join(file)).unwrap();
        assert!(exported(&reader).unwrap() == bytes, "{file}");
    }
}

#[test]
fn tensors_from_anywhere_are_written_and_read_back() {
    let q8_0 = Tensor::new(
        [2u64, 32].as_slice(),
        Layout::Other("gguf.q8_0".into()),
        [("blocks".into(), Array::new(DType::U8, vec![3; 68]))],
        None,
    );
    let scalar = Tensor::from_slice([].as_slice(), &[2.5f32]);
    let half = Tensor::from_bytes([3u64].as_slice(), DType::BF16, vec![1, 2, 3, 4, 5, 6]);
    let tensors = [("blocks", q8_0), ("scalar", scalar), ("half", half)];
    let tensors = tensors.map(|(name, tensor)| (name.to_owned(), tensor.unwrap())).to_vec();
    let attributes: Attributes = [
        ("general.architecture".to_owned(), Value::from("test")),
        ("general.alignment".to_owned(), 256.into()),
        ("a.list".to_owned(), vec![1, -1].into()),
    ]
    .into_iter()
    .collect();
    let list = TensorList { tensors, attributes };
    let bytes = exported(&list).unwrap();
    assert_eq!(bytes.len() % 256, 0);
    let reader = Reader::from_bytes(bytes).unwrap();
    assert_eq!(reader.attributes(), &list.attributes);
    for (name, tensor) in &list.tensors {
        let mut read = reader.read_owned(name).unwrap();
        read.attributes = None;
        assert_eq!(&read, tensor, "{name}");
        assert_eq!(reader.get(name).unwrap().components[0].1.extent().unwrap().offset % 256, 0);
    }
}

#[test]
fn what_the_format_cannot_hold_is_refused_by_name() {
    let one = |name: &str, shape: &[u64], dtype| {
        let bytes = vec![0; dtype_len(shape, dtype)];
        TensorList {
            tensors: vec![(name.to_owned(), Tensor::from_bytes(shape, dtype, bytes).unwrap())],
            attributes: Attributes::new(),
        }
    };
    let refusals = [
        (one("w", &[1], DType::U16), "elements of the type u16"),
        (one("w", &[1], DType::Bool), "elements of the type bool"),
        (one(&"w".repeat(65), &[1], DType::F32), "names of more than 64 bytes"),
        (one("w", &[1; 5], DType::F32), "tensors of more than 4 dimensions"),
    ];
    for (list, why) in refusals {
        let error = exported(&list).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
        assert_eq!(error.tensor(), Some(list.tensors[0].0.as_str()));
    }
    let mut list = one("w", &[1], DType::F32);
    list.attributes.insert("odd".into(), Value::Null);
    assert!(exported(&list).unwrap_err().to_string().contains("\"odd\""));
    let mut bytes = Vec::new();
    let options = ExportOptions::default().drop_attributes(true);
    export_to(&list, &mut bytes, ExportFormat::Gguf, &options).unwrap();
    assert!(Reader::from_bytes(bytes).unwrap().attributes().is_empty());
    list.attributes = [("general.alignment".to_owned(), Value::from(24))].into_iter().collect();
    assert!(exported(&list).is_err());
    let short = Tensor::new(
        [2u64, 32].as_slice(),
        Layout::Other("gguf.q8_0".into()),
        [("blocks".into(), Array::new(DType::U8, vec![3; 67]))],
        None,
    );
    let list = TensorList { tensors: vec![("w".into(), short.unwrap())], attributes: Attributes::new() };
    assert_eq!(exported(&list).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

fn dtype_len(shape: &[u64], dtype: DType) -> usize {
    dtype.byte_len(shape.iter().product()).unwrap() as usize
}

#[test]
fn opening_reads_headers_only() {
    let mut file = File::default();
    file.pair("a", 4, &7u32.to_le_bytes());
    file.tensor("w", &[1 << 20], 0, 0);
    file.data = vec![1; 4 << 20];
    let read = conformance::bytes_read_to_open(file.bytes());
    assert!(read <= 192 << 10, "opening read {read} bytes");
}

/// A GGUF file made by hand, right or wrong.
#[derive(Default)]
struct File {
    pairs: (u64, Vec<u8>),
    tensors: (u64, Vec<u8>),
    data: Vec<u8>,
}

fn string(text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

impl File {
    fn pair(&mut self, key: impl AsRef<[u8]>, kind: u32, value: &[u8]) {
        self.pairs.0 += 1;
        self.pairs.1.extend([&string(key)[..], &kind.to_le_bytes(), value].concat());
    }

    /// `shape` is in the order of the file: innermost first.
    fn tensor(&mut self, name: impl AsRef<[u8]>, shape: &[u64], kind: u32, offset: u64) {
        self.tensors.0 += 1;
        self.tensors.1.extend(string(name));
        self.tensors.1.extend((shape.len() as u32).to_le_bytes());
        shape.iter().for_each(|size| self.tensors.1.extend(size.to_le_bytes()));
        self.tensors.1.extend(kind.to_le_bytes());
        self.tensors.1.extend(offset.to_le_bytes());
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(self.tensors.0.to_le_bytes());
        bytes.extend(self.pairs.0.to_le_bytes());
        bytes.extend(&self.pairs.1);
        bytes.extend(&self.tensors.1);
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(&self.data);
        bytes
    }

    fn open(&self) -> Result<Reader, Error> {
        let bytes = self.bytes();
        let outcome = conformance::open_hostile(&bytes, "gguf");
        let reader = Reader::from_bytes(bytes);
        assert_eq!(outcome.is_ok(), reader.is_ok());
        reader
    }

    /// The rule that the file breaks.
    fn rule(&self) -> &'static str {
        self.open().unwrap_err().rule().unwrap_or("")
    }
}

fn with_pair(kind: u32, value: &[u8]) -> File {
    let mut file = File::default();
    file.pair("key", kind, value);
    file
}

fn with_tensor(shape: &[u64], kind: u32, offset: u64, data: usize) -> File {
    let mut file = File { data: vec![7; data], ..File::default() };
    file.tensor("w", shape, kind, offset);
    file
}

const HUGE: [u64; 6] = [u64::MAX, 1 << 63, i64::MAX as u64, 1 << 32, (1 << 31) - 1, 1 << 31];

#[test]
fn counts_and_lengths_are_held_against_the_bytes_left() {
    for huge in HUGE {
        for at in [8, 16] {
            let mut bytes = with_tensor(&[1], 0, 0, 4).bytes();
            bytes[at..at + 8].copy_from_slice(&huge.to_le_bytes());
            let error = Reader::from_bytes(bytes).unwrap_err();
            assert_eq!(error.rule(), Some("gguf.count"));
        }
        assert_eq!(with_pair(8, &huge.to_le_bytes()).rule(), "gguf.count");
        for kind in [0u32, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12] {
            let array = [&kind.to_le_bytes()[..], &huge.to_le_bytes(), &[1; 100]].concat();
            assert_eq!(with_pair(9, &array).rule(), "gguf.count");
        }
    }
    // More arrays of small numbers than is reasonable: each takes a value in memory.
    let array = [&7u32.to_le_bytes()[..], &(3u64 << 20).to_le_bytes(), &vec![1; 3 << 20]].concat();
    assert_eq!(with_pair(9, &array).open().unwrap_err().kind(), ErrorKind::Limit);
}

#[test]
fn values_of_no_type_are_refused_by_name() {
    assert_eq!(with_pair(13, &[0; 8]).rule(), "gguf.value-type");
    assert_eq!(with_pair(u32::MAX, &[0; 8]).rule(), "gguf.value-type");
    assert_eq!(with_pair(7, &[2]).rule(), "gguf.bool");
    let nested = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes(), &[0; 40]].concat();
    let error = with_pair(9, &nested).open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("\"key\": the value is an array of arrays"), "{error}");
    let array = [&13u32.to_le_bytes()[..], &1u64.to_le_bytes(), &[0; 40]].concat();
    assert_eq!(with_pair(9, &array).rule(), "gguf.value-type");
    let mut taken = File::default();
    taken.pair("gguf.types", 4, &[0; 4]);
    assert_eq!(taken.open().unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn text_that_is_not_text_stays_bytes_but_names_must_be_text() {
    let file = with_pair(8, &string(b"\xff\xfe"));
    let reader = file.open().unwrap();
    assert_eq!(reader.attributes()["key"], Value::Bytes(b"\xff\xfe".to_vec()));
    assert_eq!(exported(&reader).unwrap(), file.bytes());
    let mut file = File::default();
    file.pair(b"\xff", 4, &[0; 4]);
    assert_eq!(file.rule(), "gguf.utf8");
    let mut file = File::default();
    file.tensor(b"\xed\xa0\x80", &[], 24, 0);
    assert_eq!(file.rule(), "gguf.utf8");
}

#[test]
fn keys_and_names_are_there_once() {
    let mut file = with_pair(4, &[0; 4]);
    file.pair("key", 4, &[0; 4]);
    assert_eq!(file.rule(), "gguf.key-duplicate");
    let mut file = with_tensor(&[1], 0, 0, 64);
    file.tensor("w", &[1], 0, 32);
    assert_eq!(file.rule(), "name.duplicate");
    // Odd names are names.
    let mut file = File { data: vec![0; 4], ..File::default() };
    for name in ["", "a\0b", "../../etc/passwd", &"x".repeat(1 << 20)] {
        file.pair(name, 4, &[0; 4]);
        file.tensor(name, &[1], 0, 0);
    }
    assert_eq!(file.open().unwrap().len(), 4);
}

#[test]
fn shapes_neither_overflow_nor_split_blocks() {
    assert_eq!(with_tensor(&[1; 65], 0, 0, 4).rule(), "gguf.rank");
    assert_eq!(with_tensor(&[1; 64], 0, 0, 4).open().unwrap().get("w").unwrap().shape.len(), 64);
    for shape in [&[u64::MAX, 2][..], &[1 << 32, 1 << 32], &[u64::MAX], &[1 << 63, 4]] {
        assert_eq!(with_tensor(shape, 0, 0, 64).rule(), "gguf.shape");
    }
    assert_eq!(
        with_tensor(&[u64::MAX, 0, u64::MAX], 0, 0, 0).open().unwrap().get("w").unwrap().byte_len(),
        0
    );
    for shape in [&[][..], &[31], &[33], &[1, 32], &[u64::MAX]] {
        assert_eq!(with_tensor(shape, 2, 0, 64).rule(), "gguf.block");
    }
    assert_eq!(with_tensor(&[u64::MAX / 32 * 32, 2], 2, 0, 64).rule(), "gguf.shape");
    assert_eq!(with_tensor(&[256], 14, 0, 209).rule(), "gguf.range");
    assert!(with_tensor(&[256], 14, 0, 210).open().is_ok());
}

#[test]
fn data_lies_inside_the_file_and_aligned() {
    assert_eq!(with_tensor(&[1], 0, 4, 64).rule(), "gguf.offset");
    assert_eq!(with_tensor(&[1], 0, u64::MAX - 31, 64).rule(), "gguf.overflow");
    for offset in [64, 1 << 31, 1 << 32, 1 << 62, 1 << 63] {
        assert_eq!(with_tensor(&[1], 0, offset, 64).rule(), "gguf.range");
    }
    assert_eq!(with_tensor(&[17], 0, 0, 64).rule(), "gguf.range");
    assert!(with_tensor(&[0], 0, 64, 64).open().is_ok(), "nothing, at the end");
    assert_eq!(with_tensor(&[0], 0, 96, 64).rule(), "gguf.range");
    let two = |offset| {
        let mut file = with_tensor(&[16], 0, 0, 128);
        file.tensor("v", &[16], 0, offset);
        file
    };
    assert_eq!(two(32).rule(), "component.overlap");
    assert!(two(0).open().is_ok(), "tied tensors");
    assert!(two(64).open().is_ok());
}

#[test]
fn alignment_is_a_power_of_two() {
    let aligned = |kind: u32, value: &[u8]| {
        let mut file = with_tensor(&[1], 0, 0, 4);
        file.pair("general.alignment", kind, value);
        file
    };
    for alignment in [0u32, 3, 33, u32::MAX] {
        let file = aligned(4, &alignment.to_le_bytes());
        assert_eq!(file.rule(), "gguf.alignment");
        let message = file.open().unwrap_err().to_string();
        assert!(message.contains(&format!("general.alignment is {alignment} instead")), "{message}");
    }
    assert_eq!(aligned(10, &32u64.to_le_bytes()).rule(), "gguf.alignment");
    assert_eq!(aligned(5, &32u32.to_le_bytes()).rule(), "gguf.alignment");
    assert_eq!(aligned(8, &string("32")).rule(), "gguf.alignment");
    assert_eq!(aligned(4, &(1u32 << 31).to_le_bytes()).rule(), "gguf.range");
    assert!(aligned(4, &32u32.to_le_bytes()).open().is_ok());
}

#[test]
fn unknown_types_reach_to_the_next_tensor() {
    let mut file = with_tensor(&[5, 7], 99, 32, 32 + 64 + 10);
    file.tensor("before", &[1], 0, 0);
    file.tensor("q8_1", &[64], 9, 96);
    let reader = file.open().unwrap();
    let object = reader.get("w").unwrap();
    assert_eq!(object.layout.name(), "gguf.unknown");
    assert_eq!(&object.shape[..], [7, 5]);
    assert_eq!(object.attribute("ggml_type"), Some(&Value::from(99)));
    assert_eq!(reader.view_component("w", "blocks").unwrap(), [7; 64]);
    assert_eq!(reader.view_component("q8_1", "blocks").unwrap(), [7; 10]);
    assert_eq!(reader.read_object("w").unwrap().dequantize().unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(with_tensor(&[1], 1 << 31, 0, 4).rule(), "gguf.type");
}

#[test]
fn other_versions_are_refused_by_number() {
    for version in [0u32, 1, 4, 1 << 16, 1 << 24, u32::MAX] {
        let mut bytes = File::default().bytes();
        bytes[4..8].copy_from_slice(&version.to_le_bytes());
        let error = Reader::from_bytes(bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("GGUF version"), "{error}");
    }
    assert!(File::default().open().unwrap().is_empty());
}

#[test]
fn many_tiny_tensors_take_time_and_memory_in_proportion() {
    let mut file = File { data: vec![0; 32 * 50_000], ..File::default() };
    for i in 0..50_000 {
        file.tensor(format!("{i}"), &[1], if i % 2 == 0 { 0 } else { 77 }, 32 * i);
        file.pair(format!("{i}"), 0, &[1]);
    }
    assert_eq!(file.open().unwrap().len(), 50_000);
}

/// The samples of a split model, changed by `change`, opened by the first part's path.
fn open_split(change: impl Fn(&Path)) -> Result<Reader, Error> {
    let folder = tempfile::tempdir().unwrap();
    for part in 1..=3 {
        let name = format!("split-0000{part}-of-00003.gguf");
        std::fs::write(folder.path().join(&name), fixtures::bytes("gguf", &name)).unwrap();
    }
    change(folder.path());
    Reader::open(folder.path().join("split-00001-of-00003.gguf"))
}

#[test]
fn parts_belong_together() {
    let reader = open_split(|_| {}).unwrap();
    assert_eq!(reader.keys().collect::<Vec<_>>(), ["w0", "w1", "w2", "w3", "w4"]);
    assert!(!reader.attributes().contains_key("split.count"));
    assert!(!reader.attributes().contains_key("gguf.types"));

    let part = |folder: &Path, n: u32| folder.join(format!("split-0000{n}-of-00003.gguf"));
    let missing = open_split(|folder| std::fs::remove_file(part(folder, 3)).unwrap());
    let error = missing.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("split-00003-of-00003.gguf"), "{error}");

    let swapped = open_split(|folder| {
        std::fs::copy(part(folder, 2), part(folder, 3)).unwrap();
    });
    let error = swapped.unwrap_err();
    assert_eq!(error.rule(), Some("gguf.split"));
    assert!(error.file().unwrap().ends_with("split-00003-of-00003.gguf"));

    // A part of another model: the right number, other tensors.
    let other = open_split(|folder| {
        let mut file = File { data: vec![0; 4], ..File::default() };
        file.pair("split.no", 2, &2u16.to_le_bytes());
        file.pair("split.count", 2, &3u16.to_le_bytes());
        file.pair("split.tensors.count", 5, &5i32.to_le_bytes());
        file.tensor("w0", &[1], 0, 0);
        std::fs::write(part(folder, 3), file.bytes()).unwrap();
    });
    assert_eq!(other.unwrap_err().rule(), Some("name.duplicate"));
    let fewer = open_split(|folder| {
        let mut file = File::default();
        file.pair("split.no", 2, &2u16.to_le_bytes());
        file.pair("split.count", 2, &3u16.to_le_bytes());
        file.pair("split.tensors.count", 5, &5i32.to_le_bytes());
        std::fs::write(part(folder, 3), file.bytes()).unwrap();
    });
    assert_eq!(fewer.unwrap_err().rule(), Some("gguf.split"));
    let contradicting = open_split(|folder| {
        let mut file = File { data: vec![0; 4], ..File::default() };
        file.pair("split.no", 2, &2u16.to_le_bytes());
        file.pair("split.count", 2, &3u16.to_le_bytes());
        file.pair("split.tensors.count", 5, &5i32.to_le_bytes());
        file.pair("a.count", 4, &8u32.to_le_bytes());
        file.tensor("w4", &[1], 0, 0);
        std::fs::write(part(folder, 3), file.bytes()).unwrap();
    });
    let error = contradicting.unwrap_err();
    assert_eq!(error.rule(), Some("gguf.split"));
    assert!(error.to_string().contains("a.count"), "{error}");
}

#[test]
fn parts_are_found_by_name_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = fixtures::bytes("gguf", "split-00001-of-00003.gguf");
    let path = folder.path().join("renamed.gguf");
    std::fs::write(&path, &bytes).unwrap();
    let error = Reader::open(&path).unwrap_err();
    assert_eq!(error.rule(), Some("gguf.split"));
    assert!(error.to_string().contains("-00001-of-00003.gguf"), "{error}");
    // One part alone: in memory, or any but the first.
    let reader = Reader::from_bytes(bytes).unwrap();
    assert_eq!(reader.keys().collect::<Vec<_>>(), ["w0", "w1"]);
    assert_eq!(reader.attributes()["split.count"], Value::from(3));
    let second = fixtures::folder("gguf").join("split-00002-of-00003.gguf");
    assert_eq!(Reader::open(second).unwrap().keys().collect::<Vec<_>>(), ["w2", "w3"]);
}
