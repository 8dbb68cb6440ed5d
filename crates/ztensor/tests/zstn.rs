//! Packed files: version 3 samples are read, what version 4 packs is restored byte for byte.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::conformance::{self, Random};
use common::{allocations, fixtures};
use ztensor::source::MemorySource;
use ztensor::zstn::{self, PackOptions, PackStats, UnpackOptions};
use ztensor::{Effort, Error, ErrorKind, Format, OpenOptions, Reader, Result, WriteOptions, Writer};

/// Weights as bf16: a few exponents, random mantissas.
fn weights(count: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let weight = |_| {
        let bits = random.next();
        let exponent = 120 - (bits >> 32).trailing_zeros().min(8) as u16;
        ((bits as u16 & 0x807f) | exponent << 7).to_le_bytes()
    };
    (0..count).flat_map(weight).collect()
}

/// A `.safetensors` file of these tensors, one behind the other.
fn file(tensors: &[(&str, &str, &[u64], &[u8])]) -> Vec<u8> {
    let mut header = r#"{"__metadata__":{"format":"pt"}"#.to_owned();
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let (start, end) = (data.len(), data.len() + bytes.len());
        header +=
            &format!(r#","{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{end}]}}"#);
        data.extend_from_slice(bytes);
    }
    header += "}   ";
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

/// A little of everything: tied, empty, scalar and incompressible tensors.
fn model() -> Vec<u8> {
    let (embed, noise) = (weights(4000, 1), {
        let mut random = Random(5);
        (0..999).map(|_| random.next() as u8).collect::<Vec<_>>()
    });
    let small = weights(600, 3);
    file(&[
        ("embed", "BF16", &[100, 40], &embed),
        ("noise", "U8", &[999], &noise),
        ("empty", "F32", &[3, 0], &[]),
        ("w", "F32", &[20, 15], &small),
        ("head", "BF16", &[100, 40], &embed),
        ("scalar", "F64", &[], &[1, 2, 3, 4, 5, 6, 7, 8]),
        ("noise again", "I8", &[27, 37], &noise),
    ])
}

fn pack_with(bytes: &[u8], options: &PackOptions<'_>) -> Result<(Vec<u8>, PackStats)> {
    let mut packed = Vec::new();
    let source = Arc::new(MemorySource::new(bytes.to_vec()));
    let stats = zstn::pack_source(source, &mut packed, options)?;
    assert_eq!((stats.original_len, stats.packed_len), (bytes.len() as u64, packed.len() as u64));
    Ok((packed, stats))
}

fn pack(bytes: &[u8]) -> Vec<u8> {
    pack_with(bytes, &PackOptions::default()).unwrap().0
}

fn unpack(packed: &[u8]) -> Result<Vec<u8>> {
    let mut restored = Vec::new();
    let source = Arc::new(MemorySource::new(packed.to_vec()));
    let len = zstn::unpack_source(source, &mut restored, &UnpackOptions::default())?;
    assert_eq!(len, restored.len() as u64);
    Ok(restored)
}

fn sample(name: &str) -> Vec<u8> {
    fixtures::bytes("zstn", name)
}

fn assert_same_tensors(packed: &Reader, original: &Reader) {
    assert_eq!(packed.format(), Format::Zstn);
    assert_eq!(packed.keys().collect::<Vec<_>>(), original.keys().collect::<Vec<_>>());
    assert_eq!(packed.attributes(), original.attributes());
    for name in original.keys() {
        assert_eq!(packed.read_owned(name).unwrap(), original.read_owned(name).unwrap(), "{name}");
    }
}

#[test]
fn version_3_samples_are_restored_and_read() {
    for name in ["zstn_mixed", "zstn_opaque", "zstn_no_tensors"] {
        let (packed, original) = (sample(&format!("{name}.blob")), sample(&format!("{name}.orig")));
        assert!(unpack(&packed).unwrap() == original, "{name}");
        let info = zstn::inspect_source(Arc::new(MemorySource::new(packed.clone()))).unwrap();
        assert_eq!((info.version, info.original_len), (3, original.len() as u64));
        if name == "zstn_opaque" {
            let error = Reader::from_bytes(packed).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("unpack"), "{error}");
            continue;
        }
        let (packed, original) = (Reader::from_bytes(packed).unwrap(), Reader::from_bytes(original).unwrap());
        assert_same_tensors(&packed, &original);
    }
    let info = zstn::inspect(fixtures::folder("zstn").join("zstn_mixed.blob")).unwrap();
    let last = info.tensors.last().unwrap();
    assert_eq!((last.name.as_str(), last.same_as), ("lm_head.weight", Some(0)));
    assert!(info.header.unwrap().ends_with("}   "));
}

/// Packed files as they were first written. `WRITE_GOLDEN=1` writes those that are missing.
#[test]
fn golden_files_stay_readable() {
    for (name, original, effort) in [
        ("mixed_v4", "zstn_mixed.orig", Effort::Default),
        ("mixed_v4_max", "zstn_mixed.orig", Effort::Max),
        ("opaque_v4", "zstn_opaque.orig", Effort::Fast),
    ] {
        let (path, original) = (fixtures::folder("zstn").join(format!("{name}.zstn")), sample(original));
        if !path.exists() && std::env::var_os("WRITE_GOLDEN").is_some() {
            let (packed, _) = pack_with(&original, &PackOptions { effort, ..Default::default() }).unwrap();
            std::fs::write(&path, packed).unwrap();
        }
        let packed = std::fs::read(&path).unwrap();
        assert!(unpack(&packed).unwrap() == original, "{name}");
        let info = zstn::inspect(&path).unwrap();
        assert_eq!((info.version, info.header.is_none()), (4, name == "opaque_v4"), "{name}");
        if info.header.is_some() {
            let [packed, original] = [packed, original].map(|bytes| Reader::from_bytes(bytes).unwrap());
            assert_same_tensors(&packed, &original);
        }
    }
}

#[test]
fn the_hostile_sample_is_refused_without_memory() {
    let bytes = sample("zstn_data_len_2_40.bin");
    let (outcome, peak) = allocations::peak(|| unpack(&bytes));
    assert_eq!(outcome.unwrap_err().rule(), Some("zstn.v3"));
    assert!(peak < 1 << 20, "{peak}");
    assert!(Reader::from_bytes(bytes).is_err());
}

#[test]
fn whatever_is_packed_is_restored() {
    let mut files = vec![model(), file(&[]), b"\x02\0\0\0\0\0\0\0{}".to_vec()];
    for name in ["dtypes.safetensors", "shapes.safetensors", "names.safetensors", "nothing.safetensors"] {
        files.push(fixtures::bytes("safetensors", name));
    }
    for bytes in files {
        for effort in Effort::all() {
            let (packed, stats) = pack_with(&bytes, &PackOptions { effort, ..Default::default() }).unwrap();
            assert!(!stats.opaque);
            assert!(unpack(&packed).unwrap() == bytes);
            let (packed, original) =
                (Reader::from_bytes(packed).unwrap(), Reader::from_bytes(bytes.clone()).unwrap());
            assert_eq!(stats.tensors, original.len() as u64);
            assert_same_tensors(&packed, &original);
        }
    }
}

#[test]
fn equal_tensors_are_stored_once_and_not_tied() {
    let (packed, stats) = pack_with(&model(), &PackOptions::default()).unwrap();
    assert_eq!((stats.tensors, stats.shared, stats.opaque), (7, 2, false));
    assert!(stats.packed_len < 12_000, "{stats:?}");
    let info = zstn::inspect_source(Arc::new(MemorySource::new(packed.clone()))).unwrap();
    let told: Vec<_> = info.tensors.iter().map(|t| (t.name.as_str(), t.encoding, t.same_as)).collect();
    assert_eq!(
        told,
        [
            ("embed", "z4ai", None),
            ("noise", "raw", None),
            ("empty", "raw", None),
            ("w", "z4ai", None),
            ("head", "z4ai", Some(0)),
            ("scalar", "raw", None),
            ("noise again", "raw", Some(1)),
        ]
    );
    assert_eq!(info.tensors[4].stored_len, info.tensors[0].stored_len);
    let reader = Reader::from_bytes(packed).unwrap();
    // Bytes that did not shrink are viewed in place, but never as two tensors.
    assert_eq!(reader.view("noise").unwrap(), reader.read("noise again").unwrap());
    assert!(reader.view("noise again").is_err());
    assert_eq!(reader.view_as::<f64>("scalar").unwrap().len(), 1);
    let names: Vec<&str> = reader.keys().collect();
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes).unwrap();
    writer.write_from(&reader, &names, WriteOptions::default(), None).unwrap();
    writer.finish().unwrap();
    let copy = Reader::from_bytes(bytes).unwrap();
    let extent = |name| copy.get(name).unwrap().components[0].1.extent();
    assert_ne!(extent("embed"), extent("head"));
    assert_eq!(reader.verify_all(None).unwrap().unchecked, 1, "a raw one that is shared has no digest");
}

#[test]
fn rows_are_decoded_alone() {
    let data = weights(1 << 20, 9);
    let bytes = file(&[("w", "BF16", &[1024, 1024], &data), ("v", "BF16", &[1 << 20], &data)]);
    let mut packed = pack(&bytes);
    let extent =
        Reader::from_bytes(packed.clone()).unwrap().get("w").unwrap().components[0].1.extent().unwrap();
    packed[extent.offset as usize + 1000] ^= 1;
    let reader = Reader::from_bytes(packed.clone()).unwrap();
    assert_eq!(reader.read("w").unwrap_err().rule(), Some("z4ai.frame"));
    assert_eq!(reader.read_rows("w", 900..901).unwrap(), &data[900 * 2048..901 * 2048]);
    assert_eq!(reader.read_rows("v", 1_000_000..1_000_001).unwrap(), &data[2_000_000..2_000_002]);
    let limited = OpenOptions::default().max_component(1 << 20);
    let limited = limited.open_source(Arc::new(MemorySource::new(packed))).unwrap();
    assert_eq!(limited.read("v").unwrap_err().kind(), ErrorKind::Limit);
}

#[test]
fn files_that_break_a_rule_are_packed_as_they_are() {
    let good = model();
    let one = |header: &str, data: usize| {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![7; data]].concat()
    };
    let entry = r#""a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}"#;
    for bytes in [
        [&good[..], b"trailing"].concat(),
        good[..good.len() - 5].to_vec(),
        one(&format!("{{{entry}}}"), 5),
        one(&format!("{{{entry},{entry}}}"), 4),
        one(r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}"#, 6),
        one(r#"{"a":{"dtype":"X9","shape":[4],"data_offsets":[0,4]}}"#, 4),
        one(r#"{"__metadata__":{"a":1}}"#, 0),
    ] {
        let (packed, stats) = pack_with(&bytes, &PackOptions::default()).unwrap();
        assert!(stats.opaque && stats.tensors == 0);
        assert!(unpack(&packed).unwrap() == bytes);
        assert_eq!(Reader::from_bytes(packed).unwrap_err().kind(), ErrorKind::Unsupported);
    }
    for foreign in
        [&b""[..], b"1234567", b"hello, this is text", &good[..100], &pack(&good), b"\x02\0\0\0\0\0\0\0[]"]
    {
        assert!(pack_with(foreign, &PackOptions::default()).is_err());
    }
}

/// Files of other formats are cut at their tensors and restored byte for byte.
#[test]
fn every_other_format_is_packed_and_restored() {
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    for path in [
        "pickle/checkpoint.pt",
        "gguf/types.gguf",
        "npz/shapes.npz",
        "hdf5/types_v0.h5",
        "onnx/raw.onnx",
        "zt/dtypes.zt",
    ] {
        let bytes = std::fs::read(data.join(path)).unwrap();
        let (packed, stats) = pack_with(&bytes, &PackOptions::default()).unwrap();
        assert!(
            stats.opaque && stats.format == Some(Reader::open(data.join(path)).unwrap().format()),
            "{path}"
        );
        assert!(unpack(&packed).unwrap() == bytes, "{path}");
        let error = Reader::from_bytes(packed).unwrap_err();
        assert!(error.to_string().contains("z4ai unpack"), "{error}");
    }
    let error = pack_with(b"<!DOCTYPE html><html></html>", &PackOptions::default()).unwrap_err();
    assert!(error.to_string().contains("web page"), "{error}");
}

#[test]
fn every_flipped_bit_is_noticed() {
    let embed = weights(300, 11);
    let good = file(&[
        ("a", "BF16", &[20, 15], &embed),
        ("x", "U8", &[3], &[1, 2, 3]),
        ("s", "F64", &[], &[1, 2, 3, 4, 5, 6, 7, 8]),
        ("b", "BF16", &[300], &embed),
    ]);
    for packed in [pack(&good), pack(&[&good[..], b"!"].concat())] {
        assert!(packed.windows(8).filter(|window| window == &[0; 8]).count() < packed.len());
        for at in 0..packed.len() {
            for bit in 0..8 {
                let mut damaged = packed.clone();
                damaged[at] ^= 1 << bit;
                assert!(unpack(&damaged).is_err(), "bit {bit} of byte {at}");
            }
        }
        for cut in 0..packed.len() {
            assert!(unpack(&packed[..cut]).is_err(), "{cut}");
        }
        assert!(unpack(&[&packed[..], b"\0"].concat()).is_err());
    }
}

#[test]
fn damaged_files_are_survived() {
    conformance::run(&pack(&model()), "zstn");
    conformance::run(&sample("zstn_mixed.blob"), "zstn");
    conformance::run(&sample("zstn_no_tensors.blob"), "zstn");
    for (how, bytes) in conformance::mutations(&sample("zstn_mixed.blob"), 500) {
        // Without checksums wrong bytes can come out, but never more or fewer.
        if let Ok(restored) = unpack(&bytes) {
            assert!(restored.len() <= 43_000, "{how}");
        }
    }
}

#[test]
fn the_bytes_do_not_depend_on_the_number_of_threads() {
    let (large, small) = (weights(1 << 20, 13), weights(1000, 15));
    let names: Vec<String> = (0..40).map(|n| format!("small {n}")).collect();
    let mut tensors = vec![("large", "BF16", &[1024, 1024][..], &large[..])];
    tensors.extend(names.iter().map(|name| (name.as_str(), "F16", &[1000][..], &small[..])));
    let bytes = file(&tensors);
    let [one, two, five] =
        [1, 2, 5].map(|threads| pack_with(&bytes, &PackOptions { threads, ..Default::default() }).unwrap().0);
    assert!(one == two && two == five);
    assert!(unpack(&one).unwrap() == bytes);
}

#[test]
fn packing_and_unpacking_cost_a_few_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let data: Vec<Vec<u8>> = (0..96).map(|n| weights(1 << 19, n)).collect();
    let names: Vec<String> = (0..96).map(|n| n.to_string()).collect();
    let tensors: Vec<_> =
        names.iter().zip(&data).map(|(name, data)| (&**name, "BF16", &[512, 1024][..], &data[..])).collect();
    std::fs::write(path("m.safetensors"), file(&tensors)).unwrap();
    drop(data);
    let pack_options = PackOptions { threads: 1, ..Default::default() };
    let (stats, peak) =
        allocations::peak(|| zstn::pack(path("m.safetensors"), path("m.zstn"), &pack_options));
    assert_eq!(stats.unwrap().original_len, std::fs::metadata(path("m.safetensors")).unwrap().len());
    assert!(peak < 32 << 20, "packing 96 MiB took {peak} bytes");
    let options = UnpackOptions { threads: 1, ..Default::default() };
    let (len, peak) = allocations::peak(|| zstn::unpack(path("m.zstn"), path("back"), &options));
    len.unwrap();
    assert!(peak < 40 << 20, "unpacking 96 MiB took {peak} bytes");
    assert!(std::fs::read(path("back")).unwrap() == std::fs::read(path("m.safetensors")).unwrap());
}

#[test]
fn nothing_appears_under_the_final_name_unless_it_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("m.safetensors"), model()).unwrap();
    let done = AtomicU64::new(0);
    let stop = |bytes| done.fetch_add(bytes, Ordering::Relaxed) + bytes < 3000;
    let options = PackOptions { observer: Some(&stop), ..Default::default() };
    let error = zstn::pack(path("m.safetensors"), path("m.zstn"), &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    zstn::pack(path("m.safetensors"), path("m.zstn"), &PackOptions::default()).unwrap();
    let mut damaged = std::fs::read(path("m.zstn")).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 64;
    std::fs::write(path("bad.zstn"), damaged).unwrap();
    std::fs::write(path("old"), "old").unwrap();
    for output in ["new", "old"] {
        let error = zstn::unpack(path("bad.zstn"), path(output), &UnpackOptions::default()).unwrap_err();
        assert!(error.to_string().contains("bad.zstn"), "{error}");
    }
    let options = UnpackOptions { limits: ztensor::Limits::default().max_total(100), ..Default::default() };
    assert_eq!(zstn::unpack(path("m.zstn"), path("new"), &options).unwrap_err().kind(), ErrorKind::Limit);
    let missing = zstn::unpack(path("none.zstn"), path("new"), &UnpackOptions::default()).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Io);
    assert_eq!(std::fs::read(path("old")).unwrap(), b"old");
    let mut left: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["bad.zstn", "m.safetensors", "m.zstn", "old"]);
}

#[test]
fn a_folder_and_a_name_of_another_format_open_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let original = Reader::from_bytes(model()).unwrap();
    std::fs::write(path("model.z4ai.safetensors"), pack(&model())).unwrap();
    assert_same_tensors(&ztensor::open(path("model.z4ai.safetensors")).unwrap(), &original);
    std::fs::rename(path("model.z4ai.safetensors"), path("model.zstn")).unwrap();
    let reader = ztensor::open(folder.path()).unwrap();
    assert_eq!(reader.read("embed").unwrap(), original.read("embed").unwrap());
}

/// A file with these entries and blobs, its checksum right.
fn crafted(mode: u8, blobs: &[u8], entries: &[(u8, u32, u64, u64)], content: u64) -> Vec<u8> {
    use std::hash::Hasher;
    let prefix = [b'Z', b'S', b'T', b'N', 4, mode, 0, 0];
    let mut bytes = [&prefix[..], blobs].concat();
    let mut index = Vec::new();
    for (kind, crc, value, len) in entries {
        index.push(*kind);
        index.extend_from_slice(&crc.to_le_bytes());
        index.extend_from_slice(&value.to_le_bytes());
        index.extend_from_slice(&len.to_le_bytes());
    }
    bytes.extend_from_slice(&index);
    let total = bytes.len() as u64 + 40;
    let lengths = [index.len() as u64, content, total].map(u64::to_le_bytes).concat();
    let mut hasher = twox_hash::XxHash3_64::new();
    [&prefix[..], &index, &lengths].into_iter().for_each(|part| hasher.write(part));
    bytes.extend_from_slice(&lengths);
    bytes.extend_from_slice(&hasher.finish().to_le_bytes());
    bytes.extend_from_slice(&prefix);
    bytes
}

fn outcome(bytes: &[u8]) -> Option<&'static str> {
    let rule = |error: Error| error.rule();
    unpack(bytes).err().or_else(|| Reader::from_bytes(bytes.to_vec()).err()).and_then(rule)
}

fn rules() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let good = pack(&model());
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] ^= byte;
        bytes
    };
    let crc = crc32c::crc32c(&[7; 8]);
    let header = br#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}"#;
    let head = [&(header.len() as u64).to_le_bytes()[..], header].concat();
    let (head_len, head_crc) = (head.len() as u64, crc32c::crc32c(&head));
    let tensors = |entries: &[(u8, u32, u64, u64)], data: u64| {
        let mut all = vec![(1, head_crc, head_len, head_len)];
        all.extend_from_slice(entries);
        let mut blobs = head.clone();
        blobs.resize(head.len().next_multiple_of(8), 0);
        blobs.resize(blobs.len() + data as usize, 7);
        crafted(0, &blobs, &all, head_len + all[1..].iter().map(|entry| entry.3).sum::<u64>())
    };
    assert_eq!(outcome(&tensors(&[(1, crc, 8, 8)], 8)), None);
    let raw = |blobs: &[u8], entries: &[(u8, u32, u64, u64)], content| crafted(1, blobs, entries, content);
    assert_eq!(outcome(&raw(&[7; 8], &[(1, crc, 8, 8), (2, 0, 0, 8)], 16)), None);
    let huge_header = z4ai::compress(&vec![b' '; 2 << 20], &z4ai::Options::default()).unwrap();
    let huge_len = huge_header.len() as u64;
    let last = good.len();
    vec![
        ("zstn.short", vec![b"ZSTN".to_vec(), b"ZSTN\x04\0\0\0".to_vec(), good[..47].to_vec()]),
        ("zstn.end", vec![changed(last - 1, 1), changed(6, 1), good[..last - 1].to_vec()]),
        ("zstn.mode", vec![crafted(2, &[], &[], 0)]),
        ("zstn.length", vec![changed(last - 24, 1), [&good[..], &good[last - 40..]].concat()]),
        ("zstn.index-length", vec![changed(last - 40, 1), changed(last - 36, 1)]),
        ("zstn.checksum", vec![changed(last - 16, 1), changed(last - 41, 1), changed(last - 32, 1)]),
        (
            "zstn.kind",
            vec![raw(&[7; 8], &[(3, 0, 8, 8)], 8), raw(&[7; 8], &[(1, crc, 8, 8), (2, 1, 0, 8)], 16)],
        ),
        (
            "zstn.blobs",
            vec![
                raw(&[7; 9], &[(1, crc, 8, 8)], 8),
                raw(&[7; 8], &[(1, crc, 9, 9)], 9),
                raw(&[7; 8], &[(1, crc, u64::MAX, u64::MAX)], u64::MAX),
                raw(&[7; 8], &[(0, 0, u64::MAX, 8)], 8),
            ],
        ),
        (
            "zstn.content-length",
            vec![
                raw(&[7; 8], &[(1, crc, 8, 9)], 9),
                raw(&[7; 8], &[(1, crc, 8, 8)], 9),
                raw(&[7; 8], &[(0, 0, 8, 1 << 40)], 1 << 40),
                raw(&[7; 8], &[(0, 0, 8, 8), (2, 0, 0, 8)], 8),
            ],
        ),
        (
            "zstn.reference",
            vec![
                raw(&[7; 8], &[(1, crc, 8, 8), (2, 0, 1, 8)], 16),
                raw(&[7; 8], &[(1, crc, 8, 8), (2, 0, 0, 8), (2, 0, 1, 8)], 24),
                raw(&[7; 8], &[(1, crc, 8, 8), (2, 0, 0, 7)], 15),
                raw(&[7; 8], &[(1, crc, 8, 8), (2, 0, u64::MAX, 8)], 16),
            ],
        ),
        (
            "zstn.header",
            vec![
                crafted(0, &[], &[], 0),
                crafted(0, &[7; 4], &[(1, crc32c::crc32c(&[7; 4]), 4, 4)], 4),
                crafted(0, &[9; 8], &[(1, crc32c::crc32c(&[9; 8]), 8, 8)], 8),
                crafted(0, &huge_header, &[(0, 0, huge_len, 2 << 20)], 2 << 20),
            ],
        ),
        ("zstn.tensors", vec![tensors(&[(1, crc32c::crc32c(&[7; 4]), 4, 4), (2, 0, 1, 4)], 4)]),
        (
            "zstn.padding",
            vec![raw(
                &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7],
                &[(1, crc32c::crc32c(&[1]), 1, 1), (1, crc32c::crc32c(&[0, 0, 0, 0, 0, 0, 0, 7]), 8, 8)],
                9,
            )]
            .into_iter()
            .map(|mut bytes| {
                bytes[10] = 1;
                bytes
            })
            .collect(),
        ),
        ("z4ai.frame", vec![raw(&[7; 8], &[(0, 0, 8, 8)], 8)]),
        ("zstn.v3", vec![sample("zstn_data_len_2_40.bin")]),
    ]
}

#[test]
fn every_file_breaks_the_rule_it_is_named_for() {
    for (rule, files) in rules() {
        for (index, bytes) in files.iter().enumerate() {
            assert_eq!(outcome(bytes), Some(rule), "file {index}");
        }
    }
    let wrong = crafted(1, &[7; 8], &[(1, 1, 8, 8)], 8);
    assert_eq!(unpack(&wrong).unwrap_err().kind(), ErrorKind::Mismatch);
    let newer = b"ZSTN\x05\0\0\0".to_vec();
    assert!(unpack(&newer).unwrap_err().to_string().contains("version 5"));
}

#[test]
fn the_document_and_the_tests_list_the_same_rules() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/spec/zstn.md");
    let text = std::fs::read_to_string(path).unwrap();
    let told: Vec<(usize, &str)> = text
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| ")?.split(" | ");
            Some((cells.next()?.parse().ok()?, cells.next()?.strip_prefix('`')?.strip_suffix('`')?))
        })
        .collect();
    let expected: Vec<_> =
        rules().into_iter().map(|(rule, _)| rule).enumerate().map(|(n, r)| (n + 1, r)).collect();
    assert_eq!(told, expected);
}
