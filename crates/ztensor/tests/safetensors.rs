//! The safetensors reader against the format's own library, and against hostile files.

mod common;

use common::{conformance, fixtures};
use safetensors::SafeTensors;
use ztensor::{DType, ErrorKind, Reader};

/// A file with this header and this many bytes of data.
fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend((0..data).map(|n| n as u8));
    bytes
}

/// One tensor `t` with these fields, and this many bytes of data.
fn one(dtype: &str, shape: &str, offsets: &str, data: usize) -> Vec<u8> {
    file(&format!(r#"{{"t":{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}}}}}"#), data)
}

const SAMPLE: &str = r#"{"__metadata__":{"format":"pt","a\n":"\u00e9"},
    "w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24],"later":[{"x":-1.5e3},null]},
    "e":{"dtype":"I8","shape":[0],"data_offsets":[24,24]},
    "s":{"dtype":"BF16","shape":[],"data_offsets":[24,26]}}  "#;

#[test]
fn samples_hold_what_their_library_wrote() {
    let files = fixtures::check("safetensors");
    assert!(files.len() >= 4);
}

#[test]
fn conforms() {
    conformance::run(&file(SAMPLE, 26), "safetensors");
    for name in ["dtypes.safetensors", "shapes.safetensors", "names.safetensors", "nothing.safetensors"] {
        conformance::run(&fixtures::bytes("safetensors", name), "safetensors");
    }
}

#[test]
fn packed_types_of_six_bits_are_read() {
    for (name, dtype) in [("\"F6_E2M3\"", DType::F6E2M3), ("\"F6_E3M2\"", DType::F6E3M2)] {
        let reader = Reader::from_bytes(one(name, "[2,4]", "[0,6]", 6)).unwrap();
        assert_eq!(reader.get("t").unwrap().dtype(), Some(dtype));
        assert_eq!(reader.view("t").unwrap(), [0, 1, 2, 3, 4, 5]);
    }
}

#[test]
fn tensors_are_viewed_where_they_lie() {
    let bytes = file(SAMPLE, 26);
    let path = tempfile::NamedTempFile::with_suffix(".safetensors").unwrap();
    std::fs::write(path.path(), &bytes).unwrap();
    let reader = Reader::open_mmap(path.path()).unwrap();
    let extent = reader.get("s").unwrap().components[0].1.extent().unwrap();
    assert_eq!((extent.offset, extent.len), (bytes.len() as u64 - 2, 2));
    assert_eq!(reader.view("s").unwrap(), [24, 25]);
    assert_eq!(reader.keys().collect::<Vec<_>>(), ["w", "e", "s"]);
    assert!(reader.get("s").unwrap().shape.is_empty());
}

#[test]
fn opening_reads_the_header_only() {
    let header = r#"{"big":{"dtype":"U8","shape":[8000000],"data_offsets":[0,8000000]}}"#;
    let read = conformance::bytes_read_to_open(file(header, 8_000_000));
    assert!(read < 200_000, "{read} bytes were read");
}

#[test]
fn content_decides_before_the_name() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["model.bin", "model", "model.pt", "model.SafeTensors"] {
        let path = folder.path().join(name);
        std::fs::write(&path, file(SAMPLE, 26)).unwrap();
        assert_eq!(Reader::open(&path).unwrap().format().name(), "safetensors", "{name}");
    }
    let pointer = folder.path().join("lfs.safetensors");
    std::fs::write(&pointer, "version https://git-lfs.github.com/spec/v1\noid sha256:00\n").unwrap();
    let message = Reader::open(&pointer).unwrap_err().to_string();
    assert!(message.contains("Git LFS"), "{message}");
}

#[test]
fn every_broken_rule_is_named() {
    let two = |a: &str, b: &str| {
        let entry = |offsets: &str| format!(r#"{{"dtype":"U8","shape":[4],"data_offsets":{offsets}}}"#);
        file(&format!(r#"{{"a":{},"b":{}}}"#, entry(a), entry(b)), 8)
    };
    let deep = format!(r#"{{"t":{{"x":{}}}}}"#, "[".repeat(1000));
    let mut not_utf8 = one("\"U8\"", "[1]", "[0,1]", 1);
    not_utf8[10] = 0xff;
    let mut long = file("{}", 0);
    long[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let mut over_limit = file("{}", 0);
    over_limit[..8].copy_from_slice(&100_000_001u64.to_le_bytes());
    let cases: &[(&str, Vec<u8>)] = &[
        ("safetensors.header-length", long),
        ("safetensors.header-length", over_limit),
        ("safetensors.utf8", not_utf8),
        ("safetensors.start", file(" {}", 0)),
        ("safetensors.start", file("[]", 0)),
        ("json.syntax", file("{", 0)),
        ("json.syntax", file("{} x", 0)),
        ("json.syntax", file(r#"{"a":1}"#, 0)),
        ("json.syntax", file(r#"{"a\ud800":{}}"#, 0)),
        ("json.depth", file(&deep, 0)),
        (
            "name.duplicate",
            two("[0,4]", "[4,8]").to_vec().iter().map(|b| if *b == b'b' { b'a' } else { *b }).collect(),
        ),
        ("safetensors.duplicate", one("\"U8\",\"dtype\":\"U8\"", "[1]", "[0,1]", 1)),
        ("safetensors.duplicate", file(r#"{"__metadata__":{},"__metadata__":{}}"#, 0)),
        ("safetensors.duplicate", file(r#"{"__metadata__":{"k":"1","k":"2"}}"#, 0)),
        ("safetensors.metadata", file(r#"{"__metadata__":{"k":1}}"#, 0)),
        ("safetensors.entry", file(r#"{"t":{"dtype":"U8","shape":[0]}}"#, 0)),
        ("safetensors.offsets", one("\"U8\"", "[9]", "[0,9]", 8)),
        ("safetensors.offsets", one("\"U8\"", "[0]", "[1,0]", 1)),
        ("safetensors.size", one("\"U8\"", "[9]", "[0,8]", 8)),
        ("safetensors.size", one("\"F32\"", "[]", "[0,8]", 8)),
        ("safetensors.sub-byte", one("\"F4\"", "[3]", "[0,2]", 2)),
        ("safetensors.sub-byte", one("\"F6_E2M3\"", "[3]", "[0,3]", 3)),
        ("safetensors.overflow", one("\"U8\"", "[4294967296,4294967296,0]", "[0,0]", 0)),
        ("safetensors.overflow", one("\"U8\"", "[18446744073709551615]", "[0,8]", 8)),
        ("json.syntax", one("\"U8\"", "[-1]", "[0,1]", 1)),
        ("json.syntax", one("\"U8\"", "[1e400]", "[0,1]", 1)),
        ("json.syntax", one("\"U8\"", "[1]", "[0,1,2]", 1)),
        ("json.syntax", one("\"U8\"", "[1]", "[0,18446744073709551616]", 1)),
        ("object.rank", one("\"U8\"", &format!("[{}1]", "1,".repeat(64)), "[0,1]", 1)),
        ("safetensors.contiguous", two("[0,4]", "[3,7]")),
        ("safetensors.contiguous", two("[1,5]", "[4,8]")),
        ("safetensors.contiguous", two("[0,4]", "[0,4]")),
        ("safetensors.trailing", one("\"U8\"", "[4]", "[0,4]", 5)),
        ("safetensors.trailing", file("{}", 1)),
    ];
    for (rule, bytes) in cases {
        let shown = String::from_utf8_lossy(&bytes[8..bytes.len().min(120)]).into_owned();
        // Named, because a file this broken is not known by its content any more.
        let error = conformance::open_hostile(bytes, "safetensors").expect_err(&shown);
        assert_eq!(error.rule(), Some(*rule), "{shown}: {error}");
        assert!(error.file().is_some());
    }
    let unknown =
        conformance::open_hostile(&one("\"F128\"", "[1]", "[0,16]", 16), "safetensors").unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::Unsupported);
    assert!(unknown.to_string().contains("F128") && unknown.tensor() == Some("t"), "{unknown}");
}

/// What is left of a download that stopped is told from other damage, with what is missing.
#[test]
fn truncated_files_say_how_many_bytes_are_missing() {
    let header = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#;
    let whole = file(header, 8);
    let message = |bytes: &[u8]| conformance::open_hostile(bytes, "safetensors").unwrap_err().to_string();
    let cut = message(&whole[..whole.len() - 3]);
    let total = whole.len();
    assert!(cut.contains(&format!("truncated: 3 of its {total} bytes are missing")), "{cut}");
    assert!(message(&whole[..40]).contains("ends within its header"), "{}", message(&whole[..40]));
    let damaged = message(&one("\"U8\"", "[0]", "[9223372036854775807,9223372036854775807]", 1));
    assert!(!damaged.contains("truncated"), "{damaged}");
    let blank = message(&[0; 1000]);
    assert!(blank.contains("zero bytes") && blank.contains(".safetensors"), "{blank}");
}

#[test]
fn unusual_names_are_names() {
    let long = "n".repeat(1 << 20);
    for name in ["", "..", "/a", "a\u{0}b", &long] {
        let mut json = serde_json::to_string(name).unwrap();
        json = format!(r#"{{{json}:{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#);
        let reader = Reader::from_bytes(file(&json, 1)).unwrap();
        assert_eq!(reader.read(name).unwrap(), [0]);
    }
}

#[test]
fn many_tensors_open_in_linear_time() {
    let count = 200_000;
    let entries: Vec<_> = (0..count)
        .map(|n| format!(r#""t{n}":{{"dtype":"U8","shape":[1],"data_offsets":[{n},{}]}}"#, n + 1))
        // Backwards, so that the ranges must be sorted.
        .rev()
        .collect();
    let bytes = file(&format!("{{{}}}", entries.join(",")), count);
    assert!(conformance::open_hostile(&bytes, "safetensors").is_ok());
}

/// Whatever is accepted here means the same to the format's own library.
#[test]
fn accepted_files_mean_the_same_to_the_library() {
    let samples = [file(SAMPLE, 26), fixtures::bytes("safetensors", "dtypes.safetensors")];
    let mut accepted = 0;
    for sample in &samples {
        for (how, bytes) in conformance::mutations(sample, 60_000) {
            let Ok(reader) = Reader::from_bytes(bytes.clone()) else {
                continue;
            };
            if reader.format().name() != "safetensors" {
                continue;
            }
            accepted += 1;
            let theirs = SafeTensors::deserialize(&bytes).unwrap_or_else(|error| panic!("{how}: {error}"));
            assert_eq!(reader.len(), theirs.len(), "{how}");
            for (name, object) in reader.objects() {
                let tensor = theirs.tensor(name).unwrap();
                assert_eq!(reader.view(name).unwrap(), tensor.data(), "{how}");
                let dtype = object.dtype().unwrap();
                assert_eq!(dtype.safetensors_name().unwrap(), tensor.dtype().to_string(), "{how}");
                let shape: Vec<u64> = tensor.shape().iter().map(|n| *n as u64).collect();
                assert_eq!(&object.shape[..], &shape[..], "{how}");
            }
        }
    }
    assert!(accepted > 1_000, "only {accepted} of the mutated files were accepted");
}
