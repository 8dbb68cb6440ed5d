//! `.zt` version 2: the format's own conformance files, files of its reference implementation, writing,
//! canonical form, shards, and hostile input.
#![cfg_attr(not(unix), allow(dead_code, unused_imports))] // what only tests with links or signals use

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use common::{conformance, fixtures};
use serde_json::Value as Json;
use sha2::{Digest as _, Sha256};
use ztensor::export::{ExportFormat, ExportOptions, export, export_to};
use ztensor::format::zt2;
use ztensor::source::MapMode;
use ztensor::{DType, ErrorKind, Format, Layout, OpenOptions, Reader, Result, Value, Verification};

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

/// Copies files into a folder of their own.
fn folder_with(files: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in files {
        let bytes = fixtures::bytes("zt2", &format!("written/{file}"));
        std::fs::write(folder.path().join(file), bytes).unwrap();
    }
    folder
}

const SHARDED: [&str; 3] = ["sharded.zt", "sharded-00001-of-00002.zt", "sharded-00002-of-00002.zt"];

fn read_all(path: &Path) -> Result<usize> {
    let reader = Reader::open(path)?;
    reader.keys().try_fold(0, |sum, name| Ok(sum + reader.read(name)?.len()))
}

#[test]
fn shards_are_found_by_name_by_digest_and_in_a_store() {
    let folder = folder_with(&SHARDED);
    let root = folder.path().join("sharded.zt");
    assert_eq!(read_all(&root).unwrap(), 384 + 200 + 12);
    // Renamed: by size and digest.
    std::fs::rename(folder.path().join(SHARDED[1]), folder.path().join("other.zt")).unwrap();
    assert_eq!(read_all(&root).unwrap(), 384 + 200 + 12);
    // In a content-addressed store.
    let bytes = std::fs::read(folder.path().join(SHARDED[2])).unwrap();
    let blobs = folder.path().join("blobs/sha256");
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::rename(folder.path().join(SHARDED[2]), blobs.join(hex(Sha256::digest(bytes)))).unwrap();
    assert_eq!(read_all(&root).unwrap(), 384 + 200 + 12);
    // Not there: listing works, what is here can be read, the rest is missed by name.
    std::fs::remove_dir_all(folder.path().join("blobs")).unwrap();
    let reader = Reader::open(&root).unwrap();
    assert_eq!(reader.len(), 3);
    assert_eq!(reader.read("head").unwrap().len(), 12);
    let error = reader.read("blk.1.w").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("sharded-00002-of-00002.zt"), "{error}");
    // Without a path there is no place to look.
    let memory = Reader::from_bytes(std::fs::read(&root).unwrap()).unwrap();
    assert_eq!(memory.read("blk.1.w").unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn another_file_in_place_of_a_shard_is_noticed() {
    for (what, damage) in [
        ("longer", &(|bytes: &mut Vec<u8>| bytes.push(0)) as &dyn Fn(&mut Vec<u8>)),
        ("no magic", &|bytes| bytes[0] = 0),
        ("another version", &|bytes| {
            let at = bytes.len() - 16;
            bytes[at] = 3;
        }),
    ] {
        let folder = folder_with(&SHARDED);
        let shard = folder.path().join(SHARDED[1]);
        let mut bytes = std::fs::read(&shard).unwrap();
        damage(&mut bytes);
        std::fs::write(&shard, bytes).unwrap();
        let error = read_all(&folder.path().join("sharded.zt")).unwrap_err();
        assert_eq!(error.rule(), Some("zt2.ShardIdentity"), "{what}: {error}");
    }
    // Bytes that no part refers to are noticed when whole shards are compared.
    let folder = folder_with(&SHARDED);
    let shard = folder.path().join(SHARDED[1]);
    let mut bytes = std::fs::read(&shard).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    let reader = Reader::open(folder.path().join("sharded.zt")).unwrap();
    reader.read("blk.0.w").unwrap();
    assert_eq!(reader.verify_all(None).unwrap_err().rule(), Some("zt2.ShardIdentity"));
}

#[cfg(unix)]
#[test]
fn overlays_never_leave_their_folder() {
    // The base as a link that leads out of the folder, or a hard link to it.
    let outside = folder_with(&["overlay-base.zt"]);
    let base = outside.path().join("overlay-base.zt");
    for link in [true, false] {
        let folder = folder_with(&["overlay.zt"]);
        let place = folder.path().join("overlay-base.zt");
        match link {
            true => std::os::unix::fs::symlink(&base, &place).unwrap(),
            false => std::fs::hard_link(&base, &place).unwrap(),
        }
        let reader = Reader::open(folder.path().join("overlay.zt")).unwrap();
        assert_eq!(reader.read("emb").unwrap_err().rule(), Some("path.outside"));
        reader.read("emb.lora_a").unwrap();
    }
    let folder = folder_with(&["overlay.zt", "overlay-base.zt"]);
    assert_eq!(read_all(&folder.path().join("overlay.zt")).unwrap(), 256 + 32 + 128 + 256);
}

#[cfg(unix)]
#[test]
fn a_file_is_no_shard_of_itself() {
    // The root's table names a shard of the root's own size that only the root has.
    let folder = folder_with(&["overlay.zt"]);
    let path = folder.path().join("overlay.zt");
    let size = std::fs::metadata(&path).unwrap().len();
    let mut bytes = std::fs::read(&path).unwrap();
    let at = find(&bytes, b"dsize").unwrap() + 5;
    assert_eq!(bytes[at..at + 3], [0x19, 0x30, 0xe8]);
    bytes[at + 1..at + 3].copy_from_slice(&(size as u16).to_be_bytes());
    rehash(&mut bytes);
    std::fs::write(&path, &bytes).unwrap();
    std::os::unix::fs::symlink("overlay.zt", folder.path().join("overlay-base.zt")).unwrap();
    let error = Reader::open(&path).unwrap().read("emb").unwrap_err();
    assert_eq!(error.rule(), Some("zt2.ShardIdentity"), "{error}");
    assert!(error.to_string().contains("itself"), "{error}");
}

#[test]
fn a_base_that_changes_under_its_overlay_is_noticed() {
    let folder = folder_with(&["overlay.zt", "overlay-base.zt"]);
    let base = folder.path().join("overlay-base.zt");
    let reader = OpenOptions::default().map(MapMode::Never).open(folder.path().join("overlay.zt")).unwrap();
    reader.read("emb").unwrap();
    let mut bytes = std::fs::read(&base).unwrap();
    bytes[4096] ^= 1;
    std::fs::write(&base, &bytes).unwrap();
    assert_eq!(reader.read("emb").unwrap_err().kind(), ErrorKind::Mismatch);
    assert_eq!(reader.verify("emb").unwrap_err().rule(), Some("zt2.Digest"));
    std::fs::write(&base, &bytes[..4100]).unwrap();
    assert_eq!(reader.read("emb").unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn a_folder_of_one_sharded_model_opens_as_that_model() {
    let folder = folder_with(&SHARDED);
    let reader = Reader::open(folder.path()).unwrap();
    assert_eq!(reader.len(), 3);
    assert_eq!(reader.read("blk.0.w").unwrap().len(), 384);
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// Gives a file whose manifest was changed the hash of the new one.
fn rehash(bytes: &mut [u8]) {
    let footer = bytes.len() - 40;
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let (offset, len) = (number(footer), number(footer + 8));
    let hash = xxh3(&bytes[offset..offset + len]);
    bytes[footer + 16..footer + 24].copy_from_slice(&hash.to_le_bytes());
}

fn xxh3(bytes: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(bytes)
}

/// A file with this manifest behind 4096 bytes of zeros and `data` at 4096.
fn file(manifest: &[u8], data: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x89ZT2\r\n\x1a\n".to_vec();
    bytes.resize(4096, 0);
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    let offset = bytes.len() as u64;
    bytes.extend_from_slice(manifest);
    bytes.extend_from_slice(&offset.to_le_bytes());
    bytes.extend_from_slice(&(manifest.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&xxh3(manifest).to_le_bytes());
    bytes.extend_from_slice(&[2, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend_from_slice(b"\x89ZT2\r\n\x1a\n");
    bytes
}

/// CBOR by hand: text, numbers, arrays and maps whose keys are given in order.
enum Cbor {
    N(u64),
    /// A range of that length, at a place of its own.
    Blob(u64),
    T(&'static str),
    A(Vec<Cbor>),
    M(Vec<(&'static str, Cbor)>),
}
use Cbor::{A, Blob, M, N, T};

impl Cbor {
    fn head(out: &mut Vec<u8>, major: u8, number: u64) {
        match number {
            0..=23 => out.push(major << 5 | number as u8),
            24..=0xff => out.extend([major << 5 | 24, number as u8]),
            0x100..=0xffff => {
                out.push(major << 5 | 25);
                out.extend((number as u16).to_be_bytes());
            }
            0x1_0000..=0xffff_ffff => {
                out.push(major << 5 | 26);
                out.extend((number as u32).to_be_bytes());
            }
            _ => {
                out.push(major << 5 | 27);
                out.extend(number.to_be_bytes());
            }
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        let text = |out: &mut Vec<u8>, text: &str| {
            Self::head(out, 3, text.len() as u64);
            out.extend_from_slice(text.as_bytes());
        };
        match self {
            N(number) => Self::head(out, 0, *number),
            Blob(_) => panic!("its place is not known"),
            T(chars) => text(out, chars),
            A(items) => {
                Self::head(out, 4, items.len() as u64);
                items.iter().for_each(|item| item.put(out));
            }
            M(pairs) => {
                let mut pairs: Vec<_> = pairs.iter().collect();
                pairs.sort_by_key(|(key, _)| (key.len(), *key));
                Self::head(out, 5, pairs.len() as u64);
                for (key, value) in pairs {
                    text(out, key);
                    value.put(out);
                }
            }
        }
    }
}

/// A file of one object `t`.
fn object(
    shape: &[u64],
    layout: &'static str,
    mut parts: Vec<(&'static str, Cbor)>,
    attributes: Option<Cbor>,
) -> Vec<u8> {
    for (number, (_, part)) in parts.iter_mut().enumerate() {
        let M(entries) = part else { continue };
        for (_, value) in entries {
            if let Blob(len) = value {
                *value = A(vec![N(4096 * (1 + number as u64)), N(*len)]);
            }
        }
    }
    let mut entry = vec![
        ("shape", A(shape.iter().map(|&size| N(size)).collect())),
        ("layout", T(layout)),
        ("parts", M(parts)),
    ];
    entry.extend(attributes.map(|attributes| ("attributes", attributes)));
    let mut manifest = Vec::new();
    M(vec![("objects", M(vec![("t", M(entry))]))]).put(&mut manifest);
    file(&manifest, &[0; 3 * 4096])
}

fn part(dtype: &'static str, len: u64) -> Cbor {
    M(vec![("dtype", T(dtype)), ("blob", Blob(len))])
}

fn typed(dtype: &'static str, logical: &'static str, len: u64) -> Cbor {
    M(vec![("dtype", T(dtype)), ("type", T(logical)), ("blob", Blob(len))])
}

fn group(bits: u64, size: u64, axis: u64, form: &'static str, zero: Cbor) -> Option<Cbor> {
    let packing = M(vec![("word", T("u8")), ("order", T("lsb_first")), ("per_word", N(8 / bits.max(1)))]);
    Some(M(vec![
        ("bits", N(bits)),
        ("group_size", N(size)),
        ("axis", N(axis)),
        ("packing", packing),
        ("scale_form", T(form)),
        ("zero_point", zero),
    ]))
}

fn no_zero() -> Cbor {
    M(vec![("form", T("none"))])
}

/// Rules of layouts that the reference does not check.
#[test]
fn every_layout_has_its_rules() {
    let mx = |block: u64| Some(M(vec![("block_size", N(block)), ("scale_form", T("e8m0_exponent"))]));
    let blocks = |elements: u64, bytes: u64| {
        Some(M(vec![("elems_per_block", N(elements)), ("block_bytes", N(bytes))]))
    };
    let scales = |len| typed("u8", "f8_e8m0", len);
    let cases: Vec<(&str, &str, Vec<u8>)> = vec![
        (
            "",
            "coo",
            object(
                &[4],
                "zt.sparse_coo/1",
                vec![("values", part("f32", 8)), ("coords", part("u32", 8))],
                None,
            ),
        ),
        (
            "zt2.LayoutRule",
            "coo of a scalar",
            object(
                &[],
                "zt.sparse_coo/1",
                vec![("values", part("f32", 8)), ("coords", part("u32", 8))],
                None,
            ),
        ),
        (
            "zt2.LayoutRule",
            "coo values",
            object(
                &[4],
                "zt.sparse_coo/1",
                vec![("values", part("f32", 4)), ("coords", part("u32", 8))],
                None,
            ),
        ),
        (
            "zt2.LayoutRule",
            "coo coords",
            object(
                &[4, 4],
                "zt.sparse_coo/1",
                vec![("values", part("f32", 4)), ("coords", part("u32", 4))],
                None,
            ),
        ),
        (
            "zt2.LayoutRule",
            "coo i32",
            object(
                &[4],
                "zt.sparse_coo/1",
                vec![("values", part("f32", 8)), ("coords", part("i32", 8))],
                None,
            ),
        ),
        (
            "zt2.Shape",
            "csr rows",
            object(
                &[u64::MAX, 1],
                "zt.sparse_csr/1",
                vec![("values", part("f32", 0)), ("indices", part("u32", 0)), ("indptr", part("u32", 0))],
                None,
            ),
        ),
        (
            "",
            "group",
            object(
                &[4, 4],
                "zt.quant_group/1",
                vec![("data", part("u8", 8)), ("scales", part("f32", 16))],
                group(4, 4, 1, "f32_factors", no_zero()),
            ),
        ),
        (
            "",
            "a scale for each row",
            object(
                &[4, 4],
                "zt.quant_group/1",
                vec![("data", part("u8", 8)), ("scales", part("f32", 16))],
                group(4, 0, 0, "f32_factors", no_zero()),
            ),
        ),
        (
            "",
            "a scale for each element",
            object(
                &[4, 4],
                "zt.quant_group/1",
                vec![("data", part("u8", 8)), ("scales", part("f32", 64))],
                group(4, 0, 0, "f32_factors", no_zero()),
            ),
        ),
        (
            "zt2.LayoutRule",
            "group bits",
            object(
                &[4, 4],
                "zt.quant_group/1",
                vec![("data", part("u8", 8)), ("scales", part("f32", 16))],
                group(3, 4, 1, "f32_factors", no_zero()),
            ),
        ),
        (
            "zt2.LayoutRule",
            "group axis",
            object(
                &[4, 4],
                "zt.quant_group/1",
                vec![("data", part("u8", 8)), ("scales", part("f32", 16))],
                group(4, 4, 2, "f32_factors", no_zero()),
            ),
        ),
        (
            "zt2.LayoutRule",
            "group size",
            object(
                &[4, 4],
                "zt.quant_group/1",
                vec![("data", part("u8", 8)), ("scales", part("f32", 16))],
                group(4, 3, 1, "f32_factors", no_zero()),
            ),
        ),
        (
            "zt2.LayoutRule",
            "group data",
            object(
                &[4, 4],
                "zt.quant_group/1",
                vec![("data", part("u8", 7)), ("scales", part("f32", 16))],
                group(4, 4, 1, "f32_factors", no_zero()),
            ),
        ),
        (
            "zt2.LayoutRule",
            "group scales",
            object(
                &[4, 4],
                "zt.quant_group/1",
                vec![("data", part("u8", 8)), ("scales", part("f32", 12))],
                group(4, 4, 1, "f32_factors", no_zero()),
            ),
        ),
        (
            "zt2.LayoutRule",
            "group form",
            object(
                &[4, 4],
                "zt.quant_group/1",
                vec![("data", part("u8", 8)), ("scales", part("f32", 16))],
                group(4, 4, 1, "f16_factors", no_zero()),
            ),
        ),
        (
            "zt2.LayoutRule",
            "group without zeros",
            object(
                &[4, 4],
                "zt.quant_group/1",
                vec![("data", part("u8", 8)), ("scales", part("f32", 16))],
                group(4, 4, 1, "f32_factors", M(vec![("form", T("tensor")), ("packing", T("plain"))])),
            ),
        ),
        (
            "zt2.LayoutRule",
            "group attributes",
            object(
                &[4, 4],
                "zt.quant_group/1",
                vec![("data", part("u8", 8)), ("scales", part("f32", 16))],
                None,
            ),
        ),
        (
            "",
            "mx",
            object(
                &[2, 4],
                "zt.mx/1",
                vec![("data", typed("u8", "f4_e2m1", 4)), ("scales", scales(4))],
                mx(2),
            ),
        ),
        (
            "zt2.LayoutRule",
            "mx block",
            object(
                &[2, 4],
                "zt.mx/1",
                vec![("data", typed("u8", "f4_e2m1", 4)), ("scales", scales(4))],
                mx(3),
            ),
        ),
        (
            "zt2.LayoutRule",
            "mx of a scalar",
            object(&[], "zt.mx/1", vec![("data", typed("u8", "f4_e2m1", 4)), ("scales", scales(4))], mx(2)),
        ),
        (
            "zt2.LayoutRule",
            "mx data",
            object(&[2, 4], "zt.mx/1", vec![("data", part("i8", 4)), ("scales", scales(4))], mx(2)),
        ),
        (
            "zt2.LayoutRule",
            "mx scales",
            object(
                &[2, 4],
                "zt.mx/1",
                vec![("data", typed("u8", "f4_e2m1", 4)), ("scales", part("u8", 4))],
                mx(2),
            ),
        ),
        ("", "gguf", object(&[64], "gguf.q4_0/1", vec![("data", part("u8", 36))], blocks(32, 18))),
        (
            "",
            "gguf of another size",
            object(&[64], "gguf.q4_0/1", vec![("data", part("u8", 40))], blocks(32, 20)),
        ),
        (
            "zt2.LayoutRule",
            "gguf bytes",
            object(&[64], "gguf.q4_0/1", vec![("data", part("u8", 35))], blocks(32, 18)),
        ),
        (
            "zt2.LayoutRule",
            "gguf blocks",
            object(&[33], "gguf.q4_0/1", vec![("data", part("u8", 18))], blocks(32, 18)),
        ),
        (
            "zt2.LayoutRule",
            "gguf of nothing",
            object(&[64], "gguf.q4_0/1", vec![("data", part("u8", 36))], blocks(0, 18)),
        ),
        (
            "zt2.LayoutRule",
            "gguf type",
            object(&[64], "gguf.q4_0/1", vec![("data", part("i8", 36))], blocks(32, 18)),
        ),
        (
            "zt2.DenseSize",
            "more than 2^64 bytes",
            object(&[1 << 62], "dense", vec![("data", part("f64", 8))], None),
        ),
        (
            "zt2.Shape",
            "from left to right",
            object(&[1 << 63, 2, 0], "dense", vec![("data", part("u8", 0))], None),
        ),
        ("", "nothing first", object(&[0, 1 << 63, 2], "dense", vec![("data", part("u8", 0))], None)),
    ];
    for (rule, what, bytes) in cases {
        let opened = conformance::open_hostile(&bytes, "zt");
        match rule {
            "" => drop(Reader::from_bytes(bytes).unwrap_or_else(|error| panic!("{what}: {error}"))),
            rule => {
                assert_eq!(opened.expect_err(what).rule(), Some(rule), "{what}");
                let structural = OpenOptions::default().structural(true);
                let source = std::sync::Arc::new(ztensor::source::MemorySource::new(bytes));
                let reader = structural.open_source(source);
                assert_eq!(reader.is_ok(), rule == "zt2.LayoutRule", "{what}");
                if let Ok(reader) = reader {
                    assert!(matches!(reader.get("t").unwrap().layout, Layout::Other(_)));
                    reader.read_owned("t").unwrap();
                }
            }
        }
    }
}

#[test]
fn hostile_numbers_are_refused_before_memory_is_taken() {
    let encoded = |stored: u64, decoded: u64| {
        let part = M(vec![
            ("dtype", T("u8")),
            ("blob", A(vec![N(4096), N(stored)])),
            ("encoding", T("zt.zstd-seekable/1")),
            ("decoded_length", N(decoded)),
        ]);
        object(&[decoded], "dense", vec![("data", part)], None)
    };
    // A length that nothing stored can hold: refused by the limit, or by the stream.
    for decoded in [1 << 20, 1 << 40, 1 << 60] {
        let error = conformance::open_hostile(&encoded(17, decoded), "zt").unwrap_err();
        let known = error.kind() == ErrorKind::Limit || error.rule() == Some("zt2.Encoding");
        assert!(known, "{decoded}: {error}");
    }
    for blob in [[u64::MAX - 4095, 4096], [4096, u64::MAX], [1 << 63, 0]] {
        let part = M(vec![("dtype", T("u8")), ("blob", A(blob.map(N).into()))]);
        let bytes = object(&[blob[1]], "dense", vec![("data", part)], None);
        assert_eq!(conformance::open_hostile(&bytes, "zt").unwrap_err().rule(), Some("zt2.BlobBounds"));
    }
    // Digests that nothing matches open, and are noticed when they are compared.
    let part = M(vec![("dtype", T("u8")), ("blob", A(vec![N(4096), N(1)])), ("digest", T("xxh3:00"))]);
    let reader = Reader::from_bytes(object(&[1], "dense", vec![("data", part)], None)).unwrap();
    assert_eq!(reader.verify("t").unwrap_err().rule(), Some("zt2.Digest"));
    let part = M(vec![("dtype", T("u8")), ("blob", A(vec![N(4096), N(1)])), ("digest", T("crc9:00"))]);
    let reader = Reader::from_bytes(object(&[1], "dense", vec![("data", part)], None)).unwrap();
    assert_eq!(reader.verify("t").unwrap(), Verification::NoDigest);
}

#[test]
fn edits_are_refused_with_what_to_do() {
    let folder = folder_with(&["identity-4k.zt"]);
    let path = folder.path().join("identity-4k.zt");
    let before = std::fs::read(&path).unwrap();
    let errors = [
        ztensor::Writer::append(&path).err().unwrap(),
        ztensor::remove_tensors(&path, folder.path().join("new.zt"), &["head"]).unwrap_err(),
        ztensor::compact(&path).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(
            error.to_string().contains("version 2") && error.to_string().contains("ztensor convert"),
            "{error}"
        );
    }
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

fn convert(reader: &Reader, options: &ExportOptions<'_>) -> Reader {
    let file = tempfile::NamedTempFile::with_suffix(".zt").unwrap();
    export(reader, file.path(), ExportFormat::Zt2, options).unwrap();
    let bytes = std::fs::read(file.path()).unwrap();
    let reader = Reader::from_bytes(bytes).unwrap();
    reader.verify_all(None).unwrap();
    reader
}

fn to_version_1(reader: &Reader) -> Reader {
    let mut bytes = Vec::new();
    let mut writer = ztensor::Writer::new(&mut bytes).unwrap();
    for (key, value) in reader.attributes() {
        writer.set_attribute(key.clone(), value.clone());
    }
    let names: Vec<&str> = reader.keys().collect();
    writer.write_from(reader, &names, Default::default(), None).unwrap();
    writer.finish().unwrap();
    Reader::from_bytes(bytes).unwrap()
}

/// What two files say about their tensors, but for the width of sparse indices.
fn same_tensors(a: &Reader, b: &Reader, what: &str) {
    let names = |reader: &Reader| reader.keys().map(str::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(names(a), names(b), "{what}");
    for name in a.keys() {
        let (x, y) = (a.read_owned(name).unwrap(), b.read_owned(name).unwrap());
        assert_eq!((&x.shape, &x.layout), (&y.shape, &y.layout), "{what}: {name}");
        let sorted = |tensor: &ztensor::Tensor<'_>| {
            let mut own: Vec<_> = tensor
                .attributes
                .iter()
                .flat_map(|own| own.iter())
                .map(|(k, v)| format!("{k} {v:?}"))
                .collect();
            own.sort();
            own
        };
        assert_eq!(sorted(&x), sorted(&y), "{what}: {name}");
        assert_eq!(x.components.len(), y.components.len());
        for (role, array) in &x.components {
            let other = y.component(role).unwrap();
            let wide = |array: &ztensor::Array<'_>| match array.dtype {
                DType::U32
                    if matches!(x.layout, Layout::SparseCsr | Layout::SparseCoo) && role != "values" =>
                {
                    array
                        .to_vec::<u32>()
                        .unwrap()
                        .into_iter()
                        .flat_map(|n| u64::from(n).to_le_bytes())
                        .collect()
                }
                _ => array.bytes.to_vec(),
            };
            assert_eq!(array.unknown_type, other.unknown_type, "{what}: {name}");
            assert!(wide(array) == wide(other), "{what}: {name}: {role}");
            let narrow = |dtype| if dtype == DType::U32 { DType::U64 } else { dtype };
            assert_eq!(narrow(array.dtype), narrow(other.dtype), "{what}: {name}");
        }
    }
}

#[test]
fn versions_convert_both_ways_without_loss() {
    for entry in expected().iter().filter(|entry| entry["canonical_rewrite"].is_object()) {
        let file = entry["file"].as_str().unwrap();
        let original = Reader::open(path(entry)).unwrap();
        for options in [
            ExportOptions::default(),
            ExportOptions::default().canonical(true),
            ExportOptions::default().zstd(Some(3)).threads(2),
        ] {
            let again = convert(&original, &options);
            same_tensors(&original, &again, file);
            assert_eq!(original.attributes().len(), again.attributes().len());
        }
        let one = to_version_1(&original);
        assert_eq!(one.format(), Format::Zt);
        same_tensors(&original, &one, file);
        same_tensors(&original, &convert(&one, &ExportOptions::default()), file);
    }
    // Everything that version 1.2 files and GGUF files of the samples hold.
    for (format, extension) in [("zt", "zt"), ("gguf", "gguf"), ("safetensors", "safetensors")] {
        for sample in std::fs::read_dir(fixtures::folder(format)).unwrap() {
            let path = sample.unwrap().path();
            if path.extension().is_none_or(|found| found != extension) {
                continue;
            }
            let Ok(original) = Reader::open(&path) else { continue };
            let options = ExportOptions::default();
            let mut bytes = Vec::new();
            match export_to(&original, &mut bytes, ExportFormat::Zt2, &options) {
                Ok(()) => {
                    let two = Reader::from_bytes(bytes).unwrap();
                    same_tensors(&original, &two, &path.display().to_string());
                    same_tensors(&original, &to_version_1(&two), &path.display().to_string());
                }
                Err(error) => assert!(
                    matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Mismatch),
                    "{}: {error}",
                    path.display()
                ),
            }
        }
    }
}

#[test]
fn every_element_type_goes_through() {
    let tensors = DType::ALL.into_iter().flat_map(|dtype| {
        [vec![6], vec![], vec![0, 3], vec![2, 4]].into_iter().enumerate().map(
            move |(number, shape): (usize, Vec<u64>)| {
                let len = dtype.byte_len(shape.iter().product()).unwrap();
                let used = shape.iter().product::<u64>() * u64::from(dtype.bits()) % 8;
                let mut bytes: Vec<u8> = (0..len)
                    .map(|n| if dtype == DType::Bool { n as u8 & 1 } else { (n as u8).wrapping_mul(37) })
                    .collect();
                if let Some(last) = bytes.last_mut().filter(|_| used > 0) {
                    *last &= (1 << used) - 1;
                }
                (format!("{dtype}.{number}"), ztensor::Tensor::from_bytes(shape, dtype, bytes).unwrap())
            },
        )
    });
    let list = ztensor::export::TensorList { tensors: tensors.collect(), ..Default::default() };
    for options in [
        ExportOptions::default(),
        ExportOptions::default().canonical(true),
        ExportOptions::default().zstd(Some(1)),
    ] {
        let mut bytes = Vec::new();
        export_to(&list, &mut bytes, ExportFormat::Zt2, &options).unwrap();
        let reader = Reader::from_bytes(bytes).unwrap();
        assert_eq!(reader.verify_all(None).unwrap().unchecked, 0);
        for (name, tensor) in &list.tensors {
            assert_eq!(&reader.read_owned(name).unwrap(), tensor, "{name}");
        }
        assert_eq!(zt2::canonical::check(&reader).unwrap().is_empty(), options.canonical);
    }
}

#[test]
fn equal_parts_share_a_blob() {
    let tensor =
        |value: u8| ztensor::Tensor::from_bytes(vec![100_000], DType::U8, vec![value; 100_000]).unwrap();
    let mut nearly = vec![1; 100_000];
    nearly[99_999] = 2;
    let nearly = ztensor::Tensor::from_bytes(vec![100_000], DType::I8, nearly).unwrap();
    let list = ztensor::export::TensorList {
        tensors: vec![
            ("b".into(), tensor(1)),
            ("a".into(), tensor(1)),
            ("c".into(), nearly),
            ("d".into(), tensor(1)),
            ("e".into(), tensor(3)),
        ],
        ..Default::default()
    };
    let mut bytes = Vec::new();
    export_to(&list, &mut bytes, ExportFormat::Zt2, &ExportOptions::default()).unwrap();
    let reader = Reader::from_bytes(bytes).unwrap();
    let offset = |name: &str| reader.get(name).unwrap().components[0].1.extent().unwrap().offset;
    assert_eq!((offset("a"), offset("d")), (offset("b"), offset("b")));
    assert_eq!([offset("b"), offset("c"), offset("e")].iter().collect::<BTreeSet<_>>().len(), 3);
}

/// Sources hand out large tensors in pieces, so that one larger than memory can be written.
#[test]
fn large_tensors_are_streamed() {
    use std::borrow::Cow;
    struct Generated {
        object: ztensor::Object,
        attributes: ztensor::Attributes,
    }
    const LEN: u64 = 40 << 20;
    const STEP: usize = 1 << 20;
    impl ztensor::export::ExportSource for Generated {
        fn objects(&self) -> Vec<(&str, Cow<'_, ztensor::Object>)> {
            vec![("a", Cow::Borrowed(&self.object)), ("b", Cow::Borrowed(&self.object))]
        }
        fn attributes(&self) -> &ztensor::Attributes {
            &self.attributes
        }
        fn fetch(&self, _: usize) -> Result<ztensor::Tensor<'_>> {
            panic!("a tensor that is streamed is not fetched")
        }
        fn streams(&self, _: usize, _: &str) -> bool {
            true
        }
        fn pieces(&self, _: usize, _: &str, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
            (0..LEN as usize / STEP).try_for_each(|number| each(&vec![number as u8; STEP]))
        }
    }
    let data = ztensor::Component::plain(DType::U8, ztensor::Extent::new(0, LEN));
    let source =
        Generated { object: ztensor::Object::dense(vec![LEN], data), attributes: Default::default() };
    let folder = tempfile::tempdir().unwrap();
    for (file, options) in [
        ("raw.zt", ExportOptions::default()),
        ("canonical.zt", ExportOptions::default().canonical(true)),
        ("zstd.zt", ExportOptions::default().zstd(Some(1)).threads(2)),
    ] {
        let path = folder.path().join(file);
        let (written, peak) =
            common::allocations::peak(|| export(&source, &path, ExportFormat::Zt2, &options));
        written.unwrap();
        assert!(peak < LEN as usize / 2, "{file}: {peak} bytes were allocated");
        let reader = Reader::open(&path).unwrap();
        reader.verify_all(None).unwrap();
        let rows = reader.read_rows("b", 7 * STEP as u64 - 1..7 * STEP as u64 + 1).unwrap();
        assert_eq!(rows, [6, 7]);
        if options.zstd.is_none() {
            let size = std::fs::metadata(&path).unwrap().len();
            assert!(size < LEN + (1 << 20), "{file}: both names share one blob, {size}");
        }
        // From a file on, too: raw and encoded parts in pieces.
        let again = folder.path().join("again.zt");
        export(&reader, &again, ExportFormat::Zt2, &ExportOptions::default()).unwrap();
        assert_eq!(Reader::open(&again).unwrap().read("a").unwrap(), reader.read("a").unwrap());
    }
}

#[test]
fn what_cannot_be_held_is_refused_by_name() {
    let dense = || ztensor::Tensor::from_bytes(vec![1], DType::U8, vec![0]).unwrap();
    let refused = |name: &str,
                   tensor: ztensor::Tensor<'static>,
                   attributes: Vec<(&str, Value)>,
                   options: &ExportOptions<'_>| {
        let list = ztensor::export::TensorList {
            tensors: vec![(name.to_owned(), tensor)],
            attributes: attributes.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
        };
        let mut out = Vec::new();
        export_to(&list, &mut out, ExportFormat::Zt2, options).unwrap_err().to_string()
    };
    let plain = ExportOptions::default();
    assert!(refused("", dense(), vec![], &plain).contains("zt2.Name"));
    assert!(refused("a\0", dense(), vec![], &plain).contains("zt2.Name"));
    assert!(refused("t", dense(), vec![("", Value::Null)], &plain).contains("drop or convert"));
    let tag = Value::Tag(1, Box::new(Value::Null));
    assert!(refused("t", dense(), vec![("date", tag)], &plain).contains("\"date\""));
    let bad_bool = ztensor::Tensor::from_bytes(vec![1], DType::Bool, vec![2]).unwrap();
    assert!(refused("t", bad_bool, vec![], &plain).contains("neither 0 nor 1"));
    let bad_nibble = ztensor::Tensor::from_bytes(vec![1], DType::F4E2M1, vec![0x10]).unwrap();
    assert!(refused("t", bad_nibble, vec![], &plain).contains("behind element 1"));
    let coo = |coords: Vec<u64>| {
        let coords: Vec<u8> = coords.iter().flat_map(|n| n.to_le_bytes()).collect();
        let parts = [
            ("values".into(), ztensor::Array::new(DType::U8, vec![1, 2])),
            ("coords".into(), ztensor::Array::new(DType::U64, coords)),
        ];
        ztensor::Tensor::new(vec![3], Layout::SparseCoo, parts, None).unwrap()
    };
    assert!(refused("t", coo(vec![1, 1]), vec![], &plain).contains("zt2.LayoutData"));
    let canonical = ExportOptions::default().canonical(true);
    assert!(refused("e\u{301}", dense(), vec![], &canonical).contains("normalization form C"));
    assert!(refused("t", dense(), vec![], &canonical.clone().zstd(Some(3))).contains("raw parts only"));
    assert!(refused("t", dense(), vec![], &ExportOptions::default().zstd(Some(23))).contains("1 to 22"));
}
