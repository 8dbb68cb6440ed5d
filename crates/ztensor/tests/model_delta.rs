//! Model deltas: version 1 samples are applied, what version 2 makes comes back byte for byte.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::conformance::{self, Random};
use common::{allocations, fixtures};
use ztensor::model_delta::{self, ApplyOptions, Info, MakeOptions, MakeStats};
use ztensor::source::MemorySource;
use ztensor::zstn::{self, PackOptions};
use ztensor::{Compression, DType, Effort, ErrorKind, Reader, Result, Tensor, WriteOptions, Writer};

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

/// The same weights after a little training: some last bits differ.
fn tuned(weights: &[u8], seed: u64) -> Vec<u8> {
    let mut random = Random(seed | 1);
    let mut tuned = weights.to_vec();
    tuned.iter_mut().step_by(2).for_each(|low| *low ^= u8::from(random.below(4) == 0));
    tuned
}

type Row<'a> = (&'a str, &'a str, &'a [u64], &'a [u8]);

/// A `.safetensors` file of these tensors, one behind the other, and some bytes at the end.
fn file_with(tensors: &[Row<'_>], trailing: &[u8]) -> Vec<u8> {
    let mut header = r#"{"__metadata__":{"format":"pt"}"#.to_owned();
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let (start, end) = (data.len(), data.len() + bytes.len());
        header +=
            &format!(r#","{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{end}]}}"#);
        data.extend_from_slice(bytes);
    }
    header += "}  ";
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data, trailing].concat()
}

fn file(tensors: &[Row<'_>]) -> Vec<u8> {
    file_with(tensors, &[])
}

struct Family {
    base: Vec<u8>,
    target: Vec<u8>,
}

/// A model, and what a fine-tune made of it: tensors changed, renamed, grown, added, dropped, tied.
fn family() -> Family {
    let [a, b, c, d, e] = [1, 2, 3, 4, 5].map(|seed| weights(4000, seed));
    let embed = weights(6000, 6);
    let grown = [&tuned(&embed, 7)[..], &weights(300, 8)].concat();
    let base = file(&[
        ("embed", "BF16", &[200, 30], &embed),
        ("frozen", "BF16", &[100, 40], &a),
        ("tuned", "BF16", &[100, 40], &b),
        ("model.old", "BF16", &[100, 40], &c),
        ("model.both", "BF16", &[100, 40], &d),
        ("dropped", "BF16", &[4000], &e),
    ]);
    let (fresh, both) = (weights(4000, 9), tuned(&d, 10));
    let target = file(&[
        ("tuned", "BF16", &[100, 40], &tuned(&b, 11)),
        ("new", "BF16", &[100, 40], &c),
        ("both", "BF16", &[100, 40], &both),
        ("frozen", "BF16", &[100, 40], &a),
        ("empty", "BF16", &[0], &[]),
        ("embed", "BF16", &[210, 30], &grown),
        ("fresh", "BF16", &[100, 40], &fresh),
        ("tied", "BF16", &[4000], &fresh),
    ]);
    Family { base, target }
}

fn memory(bytes: &[u8]) -> Arc<MemorySource<Vec<u8>>> {
    Arc::new(MemorySource::new(bytes.to_vec()))
}

fn make_with(base: &[u8], target: &[u8], options: &MakeOptions<'_>) -> Result<(Vec<u8>, MakeStats)> {
    let mut delta = Vec::new();
    let stats = model_delta::make_to(memory(base), memory(target), &mut delta, options)?;
    assert_eq!(stats.delta_len, delta.len() as u64);
    Ok((delta, stats))
}

fn make(base: &[u8], target: &[u8]) -> Vec<u8> {
    make_with(base, target, &MakeOptions::default()).unwrap().0
}

fn apply(base: &[u8], delta: &[u8]) -> Result<Vec<u8>> {
    let mut target = Vec::new();
    let len = model_delta::apply_to(memory(base), memory(delta), &mut target, &ApplyOptions::default())?;
    assert_eq!(len, target.len() as u64);
    Ok(target)
}

fn info(delta: &[u8]) -> Info {
    model_delta::info_source(memory(delta)).unwrap()
}

fn sample(name: &str) -> Vec<u8> {
    fixtures::bytes("z4dm", name)
}

#[test]
fn version_1_samples_are_applied() {
    for name in ["z4dm_finetune", "z4dm_reupload"] {
        let [base, delta, target] = ["base", "blob", "orig"].map(|kind| sample(&format!("{name}.{kind}")));
        assert!(apply(&base, &delta).unwrap() == target, "{name}");
        assert_eq!(info(&delta).version, 1);
        let mut wrong = base.clone();
        *wrong.last_mut().unwrap() ^= 1;
        let error = apply(&wrong, &delta).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    }
    let changes = info(&sample("z4dm_finetune.blob")).changes;
    assert!(changes.iter().any(|change| change.how == "copy") && changes.iter().any(|c| c.how == "delta"));
}

/// A delta as it was first written. `WRITE_GOLDEN=1` writes it where it is missing.
#[test]
fn a_golden_delta_stays_readable() {
    let folder = fixtures::folder("z4dm");
    let [base, delta, target] = ["base", "z4dm", "orig"].map(|kind| folder.join(format!("family_v2.{kind}")));
    if !delta.exists() && std::env::var_os("WRITE_GOLDEN").is_some() {
        let family = family();
        std::fs::write(&delta, make(&family.base, &family.target)).unwrap();
        std::fs::write(&base, family.base).unwrap();
        std::fs::write(&target, family.target).unwrap();
    }
    let [base, delta, target] = [base, delta, target].map(|path| std::fs::read(path).unwrap());
    assert!(apply(&base, &delta).unwrap() == target);
    let info = info(&delta);
    assert_eq!(info.version, 2);
    for how in ["copy", "delta", "full", "same"] {
        assert!(info.changes.iter().any(|change| change.how == how), "no {how}");
    }
}

#[test]
fn each_tensor_takes_its_smallest_form() {
    let Family { base, target } = family();
    for effort in Effort::all() {
        let options = MakeOptions { effort, ..Default::default() };
        let (delta, stats) = make_with(&base, &target, &options).unwrap();
        assert!(apply(&base, &delta).unwrap() == target);
        let told = (stats.copied, stats.renamed, stats.deltas, stats.full, stats.shared);
        assert_eq!(told, (1, 1, 3, 1, 1), "{stats:?}");
        // Only what is new takes more than a few bits per weight.
        assert!(stats.delta_len < 14_000, "{stats:?}");
        let changes = info(&delta).changes;
        let told: Vec<_> =
            changes.iter().map(|c| (c.name.as_str(), c.how, c.from.as_deref(), c.len)).collect();
        assert_eq!(
            told,
            [
                ("tuned", "delta", Some("tuned"), 8000),
                ("new", "copy", Some("model.old"), 8000),
                ("both", "delta", Some("model.both"), 8000),
                ("frozen", "copy", Some("frozen"), 8000),
                ("embed", "delta", Some("embed"), 12_000),
                ("embed", "full", None, 600),
                ("fresh", "full", None, 8000),
                ("tied", "same", None, 8000),
            ]
        );
    }
}

#[test]
fn a_delta_is_never_larger_than_the_packed_target() {
    let Family { base, target } = family();
    let unrelated = file(&[("frozen", "BF16", &[100, 40], &weights(4000, 77))]);
    for (base, target) in
        [(&base, &unrelated), (&unrelated, &target), (&unrelated, &unrelated), (&base, &base)]
    {
        let (delta, stats) = make_with(base, target, &MakeOptions::default()).unwrap();
        assert!(apply(base, &delta).unwrap() == **target);
        let mut packed = Vec::new();
        zstn::pack_source(memory(target), &mut packed, &PackOptions::default()).unwrap();
        let tensors = Reader::from_bytes(target.to_vec()).unwrap().len();
        assert!(delta.len() <= packed.len() + 128 + 64 * tensors, "{stats:?}, packed {}", packed.len());
    }
}

#[test]
fn files_that_break_rules_come_back_as_they_were() {
    let Family { base, target } = family();
    let embed = weights(6000, 6);
    let one = |header: &str, data: &[u8]| {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
    };
    let entry = |name: &str, from: usize| {
        let to = from + 12_000;
        format!(r#""{name}":{{"dtype":"BF16","shape":[200,30],"data_offsets":[{from},{to}]}}"#)
    };
    let gap = [&[1, 2, 3][..], &embed, b"behind"].concat();
    for (odd, copied) in [
        (file_with(&[("embed", "BF16", &[200, 30], &embed)], b"trailing bytes"), 1),
        (one(&format!("{{{}}}", entry("embed", 3)), &gap), 1),
        (one(&format!("{{{},{}}}", entry("embed", 3), entry("over", 5)), &gap), 1),
        (one(&format!("{{{},{}}}", entry("embed", 3), entry("embed", 4)), &gap), 0),
        (one(&format!(r#"{{{},"x":{{"dtype":"Q9"}},"y":7}}"#, entry("embed", 3)), &gap), 1),
        (one("{ this is no JSON", &gap), 0),
        (target[..target.len() - 100].to_vec(), 1),
    ] {
        let (delta, stats) = make_with(&base, &odd, &MakeOptions::default()).unwrap();
        assert_eq!(stats.copied, copied, "{stats:?}");
        assert!(apply(&base, &delta).unwrap() == odd);
        // Such a file can be a base, too.
        let delta = make(&odd, &target);
        assert!(apply(&odd, &delta).unwrap() == target);
    }
    assert!(make_with(&base, b"no tensor file", &MakeOptions::default()).is_err());
}

fn zt(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes).unwrap();
    write(&mut writer);
    writer.finish().unwrap();
    bytes
}

#[test]
fn zt_files_are_restored_byte_for_byte() {
    let Family { base, target } = family();
    let (base_reader, reader) =
        (Reader::from_bytes(base.clone()).unwrap(), Reader::from_bytes(target).unwrap());
    let names: Vec<&str> = reader.keys().collect();
    let plain = zt(|writer| {
        writer.set_attribute("made by", "hand");
        writer.write_from(&reader, &names, WriteOptions::default(), None).unwrap();
        writer.tie("another name", "new").unwrap();
        writer.add_csr("sparse", [2, 3], &[1.0f32, 2.0], &[0i32, 2], &[0i32, 1, 2]).unwrap();
    });
    let delta = make(&base, &plain);
    assert!(delta.len() < 16_000);
    assert!(apply(&base, &delta).unwrap() == plain);
    let compressed = zt(|writer| {
        let options = WriteOptions { compression: Compression::Z4ai(Effort::Default), ..Default::default() };
        writer.write_from(&reader, &names, options, None).unwrap();
    });
    assert!(apply(&base, &make(&base, &compressed)).unwrap() == compressed);
    // The base is known by its tensors, not by its file.
    let delta = make(&base, &plain);
    let mut packed = Vec::new();
    zstn::pack_source(memory(&base), &mut packed, &PackOptions::default()).unwrap();
    let mut backwards: Vec<&str> = base_reader.keys().collect();
    backwards.reverse();
    let other =
        zt(|writer| writer.write_from(&base_reader, &backwards, WriteOptions::default(), None).unwrap());
    for base in [packed, other] {
        assert!(apply(&base, &delta).unwrap() == plain);
    }
}

#[test]
fn other_formats_come_back_as_the_same_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let npz = fixtures::folder("npz");
    let sample = std::fs::read_dir(npz).unwrap().map(|entry| entry.unwrap().path());
    let sample = sample.filter(|path| path.extension().is_some_and(|e| e == "npz"));
    let sample =
        sample.filter(|path| ztensor::open(path).is_ok_and(|reader| reader.len() > 3)).min().unwrap();
    let original = ztensor::open(&sample).unwrap();
    std::fs::write(path("base.safetensors"), family().base).unwrap();
    model_delta::make(path("base.safetensors"), &sample, path("d.z4dm"), &MakeOptions::default()).unwrap();
    let options = ApplyOptions::default();
    model_delta::apply(path("base.safetensors"), path("d.z4dm"), path("back"), &options).unwrap();
    let back = ztensor::open(path("back")).unwrap();
    assert_eq!(back.keys().collect::<Vec<_>>(), original.keys().collect::<Vec<_>>());
    for name in original.keys() {
        assert_eq!(back.read_owned(name).unwrap(), original.read_owned(name).unwrap());
    }
    let mut left: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["back", "base.safetensors", "d.z4dm"]);
}

#[test]
fn any_other_base_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (a, b) = (weights(400, 1), weights(400, 2));
    let rows: [Row<'_>; 2] = [("a", "BF16", &[20, 20], &a), ("b", "BF16", &[20, 20], &b)];
    let target = file(&[("a", "BF16", &[20, 20], &tuned(&a, 3)), ("b", "BF16", &[20, 20], &b)]);
    let delta = make(&file(&rows), &target);
    std::fs::write(path("d.z4dm"), &delta).unwrap();
    let mut flipped = file(&rows);
    *flipped.last_mut().unwrap() ^= 1;
    for wrong in [
        flipped,
        file(&rows[..1]),
        file(&[("a", "BF16", &[20, 20], &b), ("b", "BF16", &[20, 20], &a)]),
        file(&[("a", "BF16", &[20, 20], &a), ("c", "BF16", &[20, 20], &b)]),
        file(&[("a", "F16", &[20, 20], &a), rows[1]]),
        file(&[("a", "BF16", &[400], &a), rows[1]]),
        file(&[rows[0], rows[1], ("c", "BF16", &[20, 20], &b)]),
    ] {
        std::fs::write(path("base"), wrong).unwrap();
        let error = model_delta::apply(path("base"), path("d.z4dm"), path("out"), &ApplyOptions::default());
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        assert!(error.to_string().contains("base"), "{error}");
        assert!(!path("out").exists());
    }
    // The same tensors in another order are the same model.
    assert!(apply(&file(&[rows[1], rows[0]]), &delta).unwrap() == target);
}

#[test]
fn chains_are_checked_link_by_link() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut data = weights(4000, 1);
    for step in 0..4 {
        std::fs::write(path(&step.to_string()), file(&[("w", "BF16", &[100, 40], &data)])).unwrap();
        data = tuned(&data, 2 * step + 100);
    }
    let delta = |from: u64, to: u64| -> PathBuf {
        let delta = path(&format!("{from}-{to}.z4dm"));
        let (from, to) = (path(&from.to_string()), path(&to.to_string()));
        model_delta::make(from, to, &delta, &MakeOptions::default()).unwrap();
        delta
    };
    let deltas = [delta(0, 1), delta(1, 2), delta(2, 3)];
    let options = ApplyOptions::default();
    model_delta::apply_chain(path("0"), &deltas, path("out"), &options).unwrap();
    assert!(std::fs::read(path("out")).unwrap() == std::fs::read(path("3")).unwrap());
    std::fs::remove_file(path("out")).unwrap();
    for wrong in [vec![0, 2], vec![1, 0], vec![0, 2, 1], vec![0, 0]] {
        let chain: Vec<_> = wrong.iter().map(|&index: &usize| &deltas[index]).collect();
        let error = model_delta::apply_chain(path("0"), &chain, path("out"), &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        assert!(error.to_string().contains("do not follow"), "{error}");
    }
    let error = model_delta::apply_chain(path("1"), &deltas, path("out"), &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch);
    assert!(model_delta::apply_chain::<&Path>(path("0"), &[], path("out"), &options).is_err());
    let left = std::fs::read_dir(&folder).unwrap().count();
    assert_eq!(left, 7, "no output and no intermediate file is left");
    let (first, second) = (model_delta::info(&deltas[0]).unwrap(), model_delta::info(&deltas[1]).unwrap());
    assert_eq!(first.target, second.base);
}

#[test]
fn every_flipped_bit_is_noticed() {
    let (a, b) = (weights(300, 1), weights(300, 2));
    let base = file(&[("a", "BF16", &[300], &a), ("b", "BF16", &[300], &b), ("u", "U8", &[3], &[1, 2, 3])]);
    let target = file(&[
        ("a", "BF16", &[300], &tuned(&a, 3)),
        ("b", "BF16", &[300], &b),
        ("c", "BF16", &[200], &weights(200, 4)),
        ("u", "U8", &[3], &[4, 5, 6]),
    ]);
    let delta = make(&base, &target);
    for at in 0..delta.len() {
        for bit in 0..8 {
            let mut damaged = delta.clone();
            damaged[at] ^= 1 << bit;
            assert!(apply(&base, &damaged).is_err(), "bit {bit} of byte {at}");
        }
        assert!(apply(&base, &delta[..at]).is_err());
    }
    assert!(apply(&base, &[&delta[..], b"\0"].concat()).is_err());
}

#[test]
fn damaged_deltas_are_survived() {
    let base = sample("z4dm_finetune.base");
    for (how, bytes) in conformance::mutations(&sample("z4dm_finetune.blob"), 3000) {
        let (applied, peak) = allocations::peak(|| apply(&base, &bytes));
        if let Ok(target) = applied {
            // Without checksums wrong bytes can come out.
            assert!(target.len() < 200_000, "{how}");
        }
        assert!(peak < 32 << 20, "{how}: {peak}");
    }
    let Family { base, target } = family();
    let delta = make(&base, &target);
    for (how, bytes) in conformance::mutations(&delta, 500) {
        assert!(bytes == delta || apply(&base, &bytes).is_err(), "{how}");
    }
}

#[test]
fn the_bytes_do_not_depend_on_the_number_of_threads() {
    let Family { base, target } = family();
    let [one, two, five] = [1, 2, 5]
        .map(|threads| make_with(&base, &target, &MakeOptions { threads, ..Default::default() }).unwrap().0);
    assert!(one == two && two == five);
}

#[test]
fn making_and_applying_cost_a_few_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let write = |name: &str, tune: bool| {
        let mut writer = Writer::create(path(name)).unwrap();
        for n in 0..64 {
            let base = weights(1 << 19, n);
            let data = if tune { tuned(&base, n) } else { base };
            let tensor = Tensor::from_bytes(&[512, 1024][..], DType::BF16, &data[..]).unwrap();
            writer.write_object(&n.to_string(), &tensor).unwrap();
        }
        writer.finish().unwrap()
    };
    let size = write("base.zt", false);
    write("target.zt", true);
    let options = MakeOptions { threads: 1, ..Default::default() };
    let (made, peak) =
        allocations::peak(|| model_delta::make(path("base.zt"), path("target.zt"), path("d"), &options));
    let stats = made.unwrap();
    assert!(stats.deltas == 64 && stats.delta_len < size / 4, "{stats:?}");
    assert!(peak < 24 << 20, "making a delta of {size} bytes took {peak}");
    let options = ApplyOptions { threads: 1, ..Default::default() };
    let (applied, peak) =
        allocations::peak(|| model_delta::apply(path("base.zt"), path("d"), path("out"), &options));
    assert_eq!(applied.unwrap(), size);
    assert!(peak < 40 << 20, "applying a delta to {size} bytes took {peak}");
    assert!(std::fs::read(path("out")).unwrap() == std::fs::read(path("target.zt")).unwrap());
}

/// A delta with this index and these blobs, its checksum right.
fn crafted(blobs: &[u8], index: &[u8], target_len: u64) -> Vec<u8> {
    crafted_for(&[0; 48], blobs, index, target_len)
}

/// The same, with these digests of base and target.
fn crafted_for(digests: &[u8], blobs: &[u8], index: &[u8], target_len: u64) -> Vec<u8> {
    use std::hash::Hasher;
    let prefix = [b'Z', b'4', b'D', b'M', 2, 0, 0, 0];
    let mut bytes = [&prefix[..], blobs, index].concat();
    let total = bytes.len() as u64 + 96;
    let mut footer = digests.to_vec();
    let len = index.len() as u64;
    footer.extend([len, len, target_len, total].into_iter().flat_map(u64::to_le_bytes));
    let mut hasher = twox_hash::XxHash3_64::new();
    [&prefix[..], index, &footer].into_iter().for_each(|part| hasher.write(part));
    bytes.extend_from_slice(&footer);
    bytes.extend_from_slice(&hasher.finish().to_le_bytes());
    bytes.extend_from_slice(&prefix);
    bytes
}

/// An index of segments: kind, content, blob, CRC, value, name and role in the base.
fn index(segments: &[(u8, u64, u64, u32, u64, &str)]) -> Vec<u8> {
    let mut index = (segments.len() as u64).to_le_bytes().to_vec();
    for (kind, content, blob, crc, value, base) in segments {
        index.push(*kind);
        index.extend_from_slice(&content.to_le_bytes());
        index.extend_from_slice(&blob.to_le_bytes());
        index.extend_from_slice(&crc.to_le_bytes());
        index.extend_from_slice(&value.to_le_bytes());
        let (name, role) = base.split_once('/').unwrap_or((base, base));
        for text in ["", name, role] {
            index.extend_from_slice(&(text.len() as u32).to_le_bytes());
            index.extend_from_slice(text.as_bytes());
        }
    }
    index
}

fn rules() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let Family { base, target } = family();
    let good = make(&base, &target);
    let changed = |from_end: usize| {
        let mut bytes = good.clone();
        let at = bytes.len() - from_end;
        bytes[at] ^= 1;
        bytes
    };
    let one = |blobs: &[u8], segments: &[(u8, u64, u64, u32, u64, &str)], len| {
        crafted(blobs, &index(segments), len)
    };
    let crc = crc32c::crc32c(&[7; 8]);
    let raw = (1, 8, 8, crc, 0, "");
    vec![
        ("z4dm.short", vec![b"Z4DM".to_vec(), good[..103].to_vec()]),
        ("z4dm.end", vec![changed(1), changed(2), good[..good.len() - 1].to_vec()]),
        ("z4dm.length", vec![changed(24), [&good[..], &good[good.len() - 96..]].concat()]),
        ("z4dm.index-length", vec![changed(41), changed(44)]),
        ("z4dm.checksum", vec![changed(16), changed(97), changed(96), changed(32)]),
        (
            "z4dm.index",
            vec![
                crafted(&[], &[0; 7], 0),
                crafted(&[], &[0; 9], 0),
                crafted(&[], &[255; 8], 0),
                crafted(&[7; 8], &index(&[raw])[..30], 8),
                one(&[7; 8], &[(1, 8, 8, crc, 0, "a")], 8),
                one(&[7; 8], &[(0, 8, 8, 1, 0, "")], 8),
            ],
        ),
        ("z4dm.kind", vec![one(&[7; 8], &[(5, 8, 8, 0, 0, "")], 8)]),
        (
            "z4dm.blobs",
            vec![
                one(&[7; 9], &[raw], 8),
                one(&[7; 7], &[raw], 8),
                one(&[7; 8], &[(2, 8, 8, 0, 0, "a")], 8),
                one(&[7; 8], &[(0, 8, u64::MAX, 0, 0, "")], 8),
            ],
        ),
        (
            "z4dm.content-length",
            vec![
                one(&[7; 8], &[(1, 9, 8, crc, 0, "")], 9),
                one(&[7; 8], &[raw], 9),
                one(&[7; 8], &[(0, 1 << 50, 8, 0, 0, "")], 1 << 50),
                one(&[], &[(2, u64::MAX, 0, 0, 0, "a"), (2, 2, 0, 0, 0, "a")], 1),
            ],
        ),
        (
            "z4dm.reference",
            vec![
                one(&[7; 8], &[raw, (4, 8, 0, 0, 1, "")], 16),
                one(&[7; 8], &[raw, (4, 7, 0, 0, 0, "")], 15),
                one(&[7; 8], &[raw, (4, 8, 0, 0, 0, ""), (4, 8, 0, 0, 1, "")], 24),
            ],
        ),
        // Only a delta for the right base gets this far: see `a_blob_that_is_no_delta`.
        ("z4dm.delta", vec![]),
        ("z4dm.v1", vec![[&sample("z4dm_finetune.blob")[..], b"!"].concat()]),
    ]
}

#[test]
fn every_file_breaks_the_rule_it_is_named_for() {
    for (rule, files) in rules() {
        for (number, bytes) in files.iter().enumerate() {
            let error = model_delta::info_source(memory(bytes)).unwrap_err();
            assert_eq!(error.rule(), Some(rule), "file {number}: {error}");
            assert!(apply(&family().base, bytes).is_err());
        }
    }
    let newer = model_delta::info_source(memory(b"Z4DM\x03\0\0\0")).unwrap_err();
    assert!(newer.to_string().contains("version 3"), "{newer}");
}

#[test]
fn decoding_the_base_again_and_again_is_charged() {
    const LEN: u64 = 80_000;
    let base = zt(|writer| {
        for (name, byte) in [("a", 1u8), ("b", 2)] {
            let bytes = vec![byte; LEN as usize];
            writer.add_with(name, &[LEN], &bytes).compress(Compression::Zstd(3)).write().unwrap();
        }
    });
    // The digest of this base, as a delta for it has it.
    let good = make(&base, &base);
    let digests = good[good.len() - 96..good.len() - 48].to_vec();
    let options = ApplyOptions {
        threads: 1,
        limits: ztensor::Limits::default().max_total(5 * LEN),
        ..ApplyOptions::default()
    };
    let refused = |places: &[&str]| {
        let segments: Vec<_> = places.iter().map(|place| (2, 1, 0, 0, 7, *place)).collect();
        let delta = crafted_for(&digests, &[], &index(&segments), places.len() as u64);
        let error =
            model_delta::apply_to(memory(&base), memory(&delta), &mut Vec::new(), &options).unwrap_err();
        error.kind()
    };
    // What one segment after another takes from the same tensor is decoded once.
    assert_eq!(refused(&["a/data"; 1000]), ErrorKind::Mismatch);
    assert_eq!(refused(&["a/data", "b/data", "a/data", "b/data"]), ErrorKind::Mismatch);
    assert_eq!(refused(&["a/data", "b/data"].repeat(500)), ErrorKind::Limit);
}

#[test]
fn a_blob_that_is_no_delta_is_refused() {
    // Version 1 has no checksums: put a frame where a delta is said to be.
    let (base, mut delta) = (sample("z4dm_finetune.base"), sample("z4dm_finetune.blob"));
    let at = delta.windows(5).position(|window| window == b"Z4DL\x02").unwrap();
    delta[at..at + 5].copy_from_slice(b"Z4AI\x01");
    assert_eq!(apply(&base, &delta).unwrap_err().rule(), Some("z4dm.delta"));
}

#[test]
fn the_document_and_the_tests_list_the_same_rules() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/spec/z4dm.md");
    let text = std::fs::read_to_string(path).unwrap();
    let told: Vec<(usize, &str)> = text
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| ")?.split(" | ");
            Some((cells.next()?.parse().ok()?, cells.next()?.strip_prefix('`')?.strip_suffix('`')?))
        })
        .collect();
    let rules: Vec<_> =
        rules().into_iter().map(|(rule, _)| rule).enumerate().map(|(n, r)| (n + 1, r)).collect();
    assert_eq!(told, rules);
}

#[test]
fn a_zt_file_is_changed_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let Family { base, target } = family();
    std::fs::write(path("target.safetensors"), &target).unwrap();
    let reader = Reader::from_bytes(base).unwrap();
    let names: Vec<&str> = reader.keys().collect();
    for compression in [Compression::None, Compression::Z4ai(Effort::Default)] {
        let mut writer = Writer::create(path("model.zt")).unwrap();
        let options = WriteOptions { compression, checksum: ztensor::Checksum::Crc32c };
        writer.write_from(&reader, &names, options, None).unwrap();
        writer.set_attribute("step", "1");
        writer.finish().unwrap();
        let before = std::fs::read(path("model.zt")).unwrap();
        model_delta::make(path("model.zt"), path("target.safetensors"), path("d"), &MakeOptions::default())
            .unwrap();

        // A wrong delta, and one that is given up half way, leave the file as it was.
        std::fs::write(path("other"), make(&target, &family().base)).unwrap();
        let wrong = model_delta::apply_in_place(path("model.zt"), path("other"), &ApplyOptions::default());
        assert_eq!(wrong.unwrap_err().kind(), ErrorKind::Mismatch);
        let stop = |_: u64| false;
        let options = ApplyOptions { observer: Some(&stop), ..Default::default() };
        let stopped = model_delta::apply_in_place(path("model.zt"), path("d"), &options).unwrap_err();
        assert_eq!(stopped.kind(), ErrorKind::Cancelled);
        assert!(std::fs::read(path("model.zt")).unwrap() == before);

        let open = ztensor::open(path("model.zt")).unwrap();
        let stats =
            model_delta::apply_in_place(path("model.zt"), path("d"), &ApplyOptions::default()).unwrap();
        assert_eq!((stats.kept, stats.written, stats.removed), (2, 6, 3));
        assert_eq!(
            open.read("tuned").unwrap(),
            reader.read("tuned").unwrap(),
            "open readers see what they saw"
        );
        let now = ztensor::open(path("model.zt")).unwrap();
        let expected = Reader::from_bytes(target.clone()).unwrap();
        assert_eq!(now.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        assert_eq!(now.attributes(), expected.attributes());
        for name in expected.keys() {
            assert_eq!(now.read_owned(name).unwrap(), expected.read_owned(name).unwrap(), "{name}");
        }
        assert_eq!(now.verify("tuned").unwrap(), ztensor::Verification::Checked);
        drop((open, now));
        ztensor::compact(path("model.zt")).unwrap();
        // It is the target now: what was made for that applies.
        let back =
            model_delta::apply_in_place(path("model.zt"), path("other"), &ApplyOptions::default()).unwrap();
        assert!(back.written > 0);
        let now = ztensor::open(path("model.zt")).unwrap();
        assert_eq!(now.read("dropped").unwrap(), reader.read("dropped").unwrap());
        std::fs::remove_file(path("model.zt")).unwrap();
    }
    std::fs::write(path("plain.safetensors"), family().base).unwrap();
    let error = model_delta::apply_in_place(path("plain.safetensors"), path("d"), &ApplyOptions::default());
    assert!(error.unwrap_err().to_string().contains("only .zt files"));
}
