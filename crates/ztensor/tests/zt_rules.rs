//! One file per numbered rule of `docs/spec/zt.md`, each breaking just that rule.

mod common;

use minicbor::Encoder;
use ztensor::{ErrorKind, Reader};

use common::conformance;

type Cbor<'a> = Encoder<&'a mut Vec<u8>>;

/// A file with the given manifest behind `data`, which starts at byte 64.
fn file(data: &[u8], manifest: &[u8]) -> Vec<u8> {
    let mut bytes = b"ZTEN1000".to_vec();
    bytes.resize(64, 0);
    bytes.extend_from_slice(data);
    bytes.extend_from_slice(manifest);
    bytes.extend_from_slice(&(manifest.len() as u64).to_le_bytes());
    bytes.extend_from_slice(b"ZTEN1000");
    bytes
}

fn cbor(build: impl FnOnce(&mut Cbor<'_>)) -> Vec<u8> {
    let mut out = Vec::new();
    build(&mut Encoder::new(&mut out));
    out
}

fn text(e: &mut Cbor<'_>, text: &str) {
    e.str(text).unwrap();
}

/// `{"version": "1.2.0", "objects": {…}}` with `objects` pairs written by `build`.
fn manifest(objects: u64, build: impl FnOnce(&mut Cbor<'_>)) -> Vec<u8> {
    cbor(|e| {
        e.map(2).unwrap();
        text(e, "version");
        text(e, "1.2.0");
        text(e, "objects");
        e.map(objects).unwrap();
        build(e);
    })
}

/// What a component says of itself; `None` leaves the key out.
#[derive(Clone)]
struct Part {
    role: &'static str,
    dtype: Option<&'static str>,
    offset: Option<u64>,
    length: Option<u64>,
    uncompressed: Option<u64>,
    encoding: Option<&'static str>,
    digest: Option<&'static str>,
}

fn part(role: &'static str, dtype: &'static str, offset: u64, length: u64) -> Part {
    Part {
        role,
        dtype: Some(dtype),
        offset: Some(offset),
        length: Some(length),
        uncompressed: None,
        encoding: None,
        digest: None,
    }
}

fn component(e: &mut Cbor<'_>, part: &Part) {
    let texts = [("dtype", part.dtype), ("encoding", part.encoding), ("digest", part.digest)];
    let numbers =
        [("offset", part.offset), ("length", part.length), ("uncompressed_length", part.uncompressed)];
    let count = texts.iter().filter(|(_, value)| value.is_some()).count()
        + numbers.iter().filter(|(_, value)| value.is_some()).count();
    e.map(count as u64).unwrap();
    for (key, value) in texts {
        if let Some(value) = value {
            text(e, key);
            text(e, value);
        }
    }
    for (key, value) in numbers {
        if let Some(value) = value {
            text(e, key);
            e.u64(value).unwrap();
        }
    }
}

fn object(e: &mut Cbor<'_>, name: &str, layout: &str, shape: &[u64], parts: &[Part]) {
    text(e, name);
    e.map(3).unwrap();
    text(e, "shape");
    e.array(shape.len() as u64).unwrap();
    for &size in shape {
        e.u64(size).unwrap();
    }
    text(e, "format");
    text(e, layout);
    text(e, "components");
    e.map(parts.len() as u64).unwrap();
    for part in parts {
        text(e, part.role);
        component(e, part);
    }
}

/// A file of one object; `data` is its blob area.
fn one(data: &[u8], layout: &str, shape: &[u64], parts: &[Part]) -> Vec<u8> {
    file(data, &manifest(1, |e| object(e, "w", layout, shape, parts)))
}

/// A dense `u8` tensor of 64 bytes, its component changed by `change`.
fn dense(change: impl FnOnce(&mut Part)) -> Vec<u8> {
    let mut data = part("data", "u8", 64, 64);
    change(&mut data);
    one(&[7; 64], "dense", &[64], &[data])
}

fn u64s(numbers: &[u64]) -> Vec<u8> {
    let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    bytes.resize(bytes.len().next_multiple_of(64), 0);
    bytes
}

/// A 2 × 3 CSR matrix of two values with the given indices and pointers.
fn csr(indices: &[u64], indptr: &[u64]) -> Vec<u8> {
    let blobs = [vec![0; 64], u64s(indices), u64s(indptr)].concat();
    let parts = [
        part("values", "f32", 64, 8),
        part("indices", "u64", 128, indices.len() as u64 * 8),
        part("indptr", "u64", 192, indptr.len() as u64 * 8),
    ];
    one(&blobs, "sparse_csr", &[2, 3], &parts)
}

fn coo(coords: &[u64]) -> Vec<u8> {
    let blobs = [vec![0; 64], u64s(coords)].concat();
    let parts = [part("values", "f32", 64, 8), part("coords", "u64", 128, coords.len() as u64 * 8)];
    one(&blobs, "sparse_coo", &[2, 3], &parts)
}

/// Opens and reads everything, sparse contents too; the first rule that fails.
fn broken_rule(bytes: Vec<u8>) -> Option<&'static str> {
    conformance::open_hostile(&bytes, "zt").err();
    let outcome = Reader::from_bytes(bytes).and_then(|reader| {
        reader.keys().try_for_each(|name| {
            let tensor = reader.read_owned(name)?;
            match tensor.layout.name() {
                "sparse_csr" => tensor.into_csr::<f32>().map(drop),
                "sparse_coo" => tensor.into_coo::<f32>().map(drop),
                _ => Ok(()),
            }
        })
    });
    match outcome {
        Ok(()) => None,
        Err(error) => Some(error.rule().unwrap_or_else(|| panic!("no rule is named: {error}"))),
    }
}

/// An object of a layout that is not known, whose only component has a logical type.
fn typed(storage: &str, logical: &str, len: u64) -> Vec<u8> {
    let manifest = manifest(1, |e| {
        text(e, "w");
        e.map(3).unwrap();
        text(e, "shape");
        e.array(1).unwrap().u64(3).unwrap();
        text(e, "format");
        text(e, "custom.layout");
        text(e, "components");
        e.map(1).unwrap();
        text(e, "x");
        e.map(4).unwrap();
        for (key, value) in [("dtype", storage), ("type", logical)] {
            text(e, key);
            text(e, value);
        }
        for (key, value) in [("offset", 64), ("length", len)] {
            text(e, key);
            e.u64(value).unwrap();
        }
    });
    file(&[7; 64], &manifest)
}

/// A component that says it decodes to `len` bytes.
fn zstd_part(role: &'static str, dtype: &'static str, len: u64) -> Part {
    Part { uncompressed: Some(len), encoding: Some("zstd"), ..part(role, dtype, 64, 17) }
}

/// Two names of one blob, the second with another encoding and decoded length.
fn one_blob_twice(encoding: Option<&'static str>, uncompressed: u64) -> Vec<u8> {
    let manifest = manifest(2, |e| {
        object(e, "a", "dense", &[17], &[part("data", "u8", 64, 17)]);
        let other = Part { uncompressed: Some(uncompressed), encoding, ..part("data", "u8", 64, 17) };
        object(e, "b", "dense", &[uncompressed], &[other]);
    });
    file(&[7; 64], &manifest)
}

/// The rules, in the order of the document, and files that break each.
fn rules() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let valid = dense(|_| ());
    let footer = valid.len() - 16;
    let changed = |at: usize, new: &[u8]| {
        let mut bytes = valid.clone();
        bytes[at..at + new.len()].copy_from_slice(new);
        bytes
    };
    let with_manifest = |manifest: Vec<u8>| file(&[7; 64], &manifest);
    let nested = cbor(|e| {
        e.map(3).unwrap();
        text(e, "version");
        text(e, "1.2.0");
        text(e, "objects");
        e.map(0).unwrap();
        text(e, "attributes");
        e.map(1).unwrap();
        text(e, "deep");
        for _ in 0..1000 {
            e.array(1).unwrap();
        }
        e.null().unwrap();
    });
    // The checksum of a file that the library wrote: its last sixteen bytes before the footer.
    let checked = {
        let mut bytes = Vec::new();
        let mut writer = ztensor::Writer::new(&mut bytes).unwrap();
        writer.add("w", &[3], &[1u8, 2, 3]).unwrap();
        writer.finish().unwrap();
        bytes
    };
    let value = checked.len() - 32;
    let flipped = |at: usize| {
        let mut bytes = checked.clone();
        bytes[at] ^= 1;
        bytes
    };
    let named = |text: &str, skip: usize| {
        checked.windows(text.len()).rposition(|window| window == text.as_bytes()).unwrap() + skip
    };
    let not_bytes = with_manifest(cbor(|e| {
        e.map(3).unwrap();
        text(e, "version");
        text(e, "1.2.0");
        text(e, "objects");
        e.map(0).unwrap();
        text(e, "manifest_checksum");
        text(e, "another kind");
    }));
    let without = |key: &'static str| {
        with_manifest(manifest(1, |e| {
            text(e, "w");
            e.map(2).unwrap();
            for other in ["shape", "format", "components"].into_iter().filter(|other| *other != key) {
                text(e, other);
                match other {
                    "shape" => drop(e.array(0).unwrap()),
                    "format" => text(e, "other"),
                    _ => drop(e.map(0).unwrap()),
                }
            }
        }))
    };
    let keys = |keys: &[&str], values: u64| {
        with_manifest(cbor(|e| {
            e.map(2 + keys.len() as u64).unwrap();
            text(e, "version");
            text(e, "1.2.0");
            text(e, "objects");
            e.map(0).unwrap();
            for key in keys {
                text(e, key);
                e.u64(values).unwrap();
            }
        }))
    };
    let many: Vec<String> = (0..300).map(|n| format!("unknown {n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let frame = zstd::bulk::compress(&[7; 64], 3).unwrap();
    let zstd_file = |blob: &[u8], declared: u64| {
        let mut data = part("data", "u8", 64, blob.len() as u64);
        data.encoding = Some("zstd");
        data.uncompressed = Some(declared);
        one(blob, "dense", &[declared], &[data])
    };
    let weights = z4ai::compress(&[7; 64], &z4ai::Options::default()).unwrap();
    // A frame of version 1, which has no checksums.
    let old_frame = common::fixtures::bytes("../../../z4ai/tests/data/v1", "z4ai_opaque_store.blob");
    let z4ai_file = |blob: &[u8], declared: u64| {
        let mut data = part("data", "u8", 64, blob.len() as u64);
        data.encoding = Some("z4ai");
        data.uncompressed = Some(declared);
        one(blob, "dense", &[declared], &[data])
    };
    let two = |first: Part, second: Part| {
        file(
            &[7; 192],
            &manifest(2, |e| {
                let (a, b) = (first.length.unwrap(), second.length.unwrap());
                object(e, "a", "dense", &[a], &[first]);
                object(e, "b", "dense", &[b], &[second]);
            }),
        )
    };
    let v01 = {
        let manifest = cbor(|e| {
            e.array(1).unwrap().map(1).unwrap();
            text(e, "name");
            text(e, "w");
        });
        let mut bytes = b"ZTEN0001".to_vec();
        bytes.extend_from_slice(&manifest);
        bytes.extend_from_slice(&(manifest.len() as u64).to_le_bytes());
        bytes
    };
    vec![
        ("zt.short", vec![b"ZTEN1000".to_vec(), valid[..23].to_vec()]),
        ("zt.footer-magic", vec![changed(footer + 8, b"ZTEN1001"), valid[..valid.len() - 1].to_vec()]),
        ("zt.manifest-limit", vec![changed(footer, &((1u64 << 30) + 1).to_le_bytes())]),
        ("zt.manifest-length", vec![changed(footer, &(1u64 << 30).to_le_bytes())]),
        (
            "zt.manifest-cbor",
            vec![with_manifest(vec![0xff]), with_manifest(vec![0xa1]), with_manifest(vec![0x00])],
        ),
        ("zt.manifest-trailing", vec![with_manifest([manifest(0, |_| ()), vec![0]].concat())]),
        (
            "zt.version",
            vec![with_manifest(cbor(|e| {
                e.map(1).unwrap();
                text(e, "objects");
                e.map(0).unwrap();
            }))],
        ),
        (
            "zt.objects",
            vec![with_manifest(cbor(|e| {
                e.map(1).unwrap();
                text(e, "version");
                text(e, "1.2.0");
            }))],
        ),
        ("zt.key-duplicate", vec![keys(&["mine", "mine"], 1), keys(&["objects"], 0)]),
        ("zt.key-count", vec![keys(&many, 1)]),
        ("zt.attribute-depth", vec![with_manifest(nested)]),
        (
            "name.duplicate",
            vec![file(
                &[7; 64],
                &manifest(2, |e| {
                    object(e, "w", "dense", &[64], &[part("data", "u8", 64, 64)]);
                    object(e, "w", "dense", &[64], &[part("data", "u8", 64, 64)]);
                }),
            )],
        ),
        (
            "object.shape",
            vec![
                without("shape"),
                with_manifest(manifest(1, |e| {
                    text(e, "w");
                    e.map(1).unwrap();
                    text(e, "shape");
                    e.array(1).unwrap().i64(-1).unwrap();
                })),
            ],
        ),
        ("object.rank", vec![one(&[7; 64], "dense", &[1; 65], &[part("data", "u8", 64, 1)])]),
        (
            "object.overflow",
            vec![
                one(&[7; 64], "dense", &[1 << 32, 1 << 32], &[part("data", "u8", 64, 0)]),
                one(&[7; 64], "dense", &[1 << 62], &[part("data", "f64", 64, 0)]),
            ],
        ),
        ("object.format", vec![without("format"), one(&[], "", &[], &[])]),
        ("object.components", vec![without("components")]),
        ("component.dtype", vec![dense(|data| data.dtype = None), dense(|data| data.dtype = Some("f128"))]),
        ("component.offset", vec![dense(|data| data.offset = None)]),
        ("component.length", vec![dense(|data| data.length = None)]),
        ("component.alignment", vec![dense(|data| data.offset = Some(65))]),
        (
            "component.range",
            vec![
                dense(|data| data.offset = Some(0)),
                dense(|data| data.offset = Some(128)),
                dense(|data| data.offset = Some(u64::MAX - 63)),
                dense(|data| data.length = Some(u64::MAX)),
            ],
        ),
        (
            "component.uncompressed-length",
            vec![
                dense(|data| data.encoding = Some("zstd")),
                dense(|data| data.uncompressed = Some(63)),
                zstd_file(&frame, 1 << 40),
                z4ai_file(&weights, 1 << 50),
            ],
        ),
        ("component.digest", vec![dense(|data| data.digest = Some("sha256:12"))]),
        (
            "component.overlap",
            vec![
                two(part("data", "u8", 64, 128), part("data", "u8", 128, 64)),
                two(part("data", "u8", 64, 128), part("data", "u8", 64, 64)),
                one_blob_twice(Some("zstd"), 17),
                one_blob_twice(Some("zstd"), 64),
                one_blob_twice(Some("lz77"), 17),
            ],
        ),
        (
            "component.elements",
            vec![
                // Three doubles and seven bytes, in every place that no other rule counts.
                one(&[7; 64], "custom.layout", &[3], &[part("x", "f64", 64, 31)]),
                one(&[7; 64], "dense", &[24], &[part("data", "u8", 64, 24), part("extra", "f64", 64, 31)]),
                typed("f64", "from.the.future", 31),
                typed("f64", "complex128", 31),
                typed("f64", "complex128", 40),
                one(
                    &[7; 256],
                    "quantized_group",
                    &[64],
                    &[
                        part("packed_weight", "i32", 64, 31),
                        part("scales", "f32", 128, 64),
                        part("zeros", "f32", 192, 64),
                    ],
                ),
                one(&[7; 64], "custom.layout", &[3], &[zstd_part("x", "f64", 31)]),
            ],
        ),
        (
            "zstd.frame",
            vec![
                zstd_file(&frame[..frame.len() - 1], 64),
                zstd_file(&[0; 40], 64),
                zstd_file(&frame, 65),
                zstd_file(&[&frame[..], &frame[..]].concat(), 64),
            ],
        ),
        (
            "z4ai.frame",
            vec![
                z4ai_file(&weights[..weights.len() - 1], 64),
                z4ai_file(&[0; 40], 64),
                z4ai_file(&[], 0),
                z4ai_file(&weights, 65),
                z4ai_file(&[&weights[..], &weights[..]].concat(), 64),
                z4ai_file(&old_frame, 3000),
            ],
        ),
        (
            "layout.dense",
            vec![
                one(&[7; 64], "dense", &[63], &[part("data", "u8", 64, 64)]),
                one(&[7; 64], "dense", &[64], &[part("values", "u8", 64, 64)]),
            ],
        ),
        (
            "layout.csr",
            vec![
                csr(&[0, 3], &[0, 1, 2]),
                csr(&[0, 2], &[0, 3, 2]),
                csr(&[0, 2], &[1, 1, 2]),
                csr(&[0, 2], &[0, 1, 1]),
                csr(&[0, 2], &[0, 1]),
                csr(&[0], &[0, 1, 1]),
            ],
        ),
        ("layout.coo", vec![coo(&[0, 2, 0, 1]), coo(&[0, 1, 0, 3]), coo(&[0, 1, 0])]),
        ("layout.quantized", vec![one(&[7; 64], "quantized_group", &[64], &[part("scales", "f32", 64, 64)])]),
        ("zt.v01-entry", vec![v01]),
        (
            "zt.manifest-checksum",
            // The version, the shape's size, the type's name, and each part of the value.
            [named("1.2.0", 4), named("dense", 0), value, value + 8, value + 12, value + 15]
                .map(flipped)
                .into_iter()
                .chain([not_bytes])
                .collect(),
        ),
    ]
}

#[test]
fn every_file_breaks_the_rule_it_is_named_for() {
    for (rule, files) in rules() {
        for (index, bytes) in files.into_iter().enumerate() {
            assert_eq!(broken_rule(bytes), Some(rule), "file {index}");
        }
    }
}

#[test]
fn the_files_these_are_made_from_are_valid() {
    assert_eq!(broken_rule(dense(|_| ())), None);
    assert_eq!(broken_rule(csr(&[0, 2], &[0, 1, 2])), None);
    assert_eq!(broken_rule(coo(&[0, 1, 0, 2])), None);
    assert_eq!(broken_rule(typed("f64", "from.the.future", 32)), None);
    assert_eq!(broken_rule(typed("f64", "complex128", 32)), None);
    assert_eq!(broken_rule(typed("u8", "u4", 31)), None);
    assert_eq!(broken_rule(one(&[7; 64], "custom.layout", &[3], &[part("x", "f64", 64, 32)])), None);
    assert_eq!(broken_rule(one_blob_twice(None, 17)), None);
}

#[test]
fn very_many_names_of_which_one_comes_twice() {
    const COUNT: u64 = 100_000;
    let many = |last: u64| {
        let objects = manifest(COUNT, |e| {
            for number in (0..COUNT - 1).chain([last]) {
                object(e, &number.to_string(), "dense", &[64], &[part("data", "u8", 64, 64)]);
            }
        });
        file(&[7; 64], &objects)
    };
    assert_eq!(broken_rule(many(COUNT)), None);
    assert_eq!(Reader::from_bytes(many(0)).unwrap_err().rule(), Some("name.duplicate"));
}

#[test]
fn objects_that_only_pass_through_survive_every_damage() {
    let frame = zstd::bulk::compress(&[7; 32], 3).unwrap();
    let blobs = [&[1; 64][..], &[2; 64], &frame].concat();
    let manifest = manifest(5, |e| {
        let extra = [part("data", "u8", 64, 24), part("extra", "f64", 64 + 64, 32)];
        object(e, "extra", "dense", &[24], &extra);
        object(e, "again", "dense", &[24], &extra[..1]);
        object(e, "as floats", "dense", &[6], &[part("data", "f32", 64, 24)]);
        object(e, "custom", "custom.layout", &[3], &[part("x", "f64", 64 + 64, 32)]);
        let encoded = Part {
            uncompressed: Some(32),
            encoding: Some("zstd"),
            ..part("x", "f64", 64 + 128, frame.len() as u64)
        };
        object(e, "encoded", "custom.layout", &[3], &[encoded]);
    });
    conformance::run(&file(&blobs, &manifest), "zt");
    conformance::run(&typed("f64", "from.the.future", 32), "zt");
}

#[test]
fn the_document_and_the_tests_list_the_same_rules() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/spec/zt.md");
    let document = std::fs::read_to_string(path).unwrap();
    let written: Vec<(usize, String)> = document
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| ")?.split(" | ");
            let number = cells.next()?.parse().ok()?;
            Some((number, cells.next()?.trim_matches('`').to_owned()))
        })
        .collect();
    let numbers: Vec<usize> = written.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=written.len()).collect::<Vec<_>>(), "rules are numbered in order");
    let tested: Vec<&str> = rules().into_iter().map(|(rule, _)| rule).collect();
    assert_eq!(written.into_iter().map(|(_, name)| name).collect::<Vec<_>>(), tested);
}

#[test]
fn other_versions_and_encodings_are_refused_by_name() {
    for version in ["2.0.0", "0.9", "1x", "", "10.1"] {
        let manifest = cbor(|e| {
            e.map(2).unwrap();
            text(e, "version");
            text(e, version);
            text(e, "objects");
            e.map(0).unwrap();
        });
        let error = Reader::from_bytes(file(&[], &manifest)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(version), "{error}");
    }
    let unknown = dense(|data| {
        data.encoding = Some("lz77");
        data.uncompressed = Some(64);
    });
    let reader = Reader::from_bytes(unknown).unwrap();
    let error = reader.read("w").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("lz77") && error.to_string().contains("\"w\""), "{error}");
}

#[test]
fn keys_in_unusual_spellings_mean_the_same() {
    // "shape" with a two-byte length, and "format" in two pieces: well-formed, though no writer does it.
    let spelled = manifest(1, |e| {
        text(e, "w");
        e.map(3).unwrap();
        e.writer_mut().extend_from_slice(b"\x78\x05shape");
        e.array(1).unwrap().u64(64).unwrap();
        e.writer_mut().extend_from_slice(b"\x7f\x63for\x63mat\xff");
        text(e, "dense");
        text(e, "components");
        e.map(1).unwrap();
        text(e, "data");
        component(e, &part("data", "u8", 64, 64));
    });
    assert_eq!(Reader::from_bytes(file(&[7; 64], &spelled)).unwrap().read("w").unwrap(), [7; 64]);
    let twice = manifest(1, |e| {
        text(e, "w");
        e.map(2).unwrap();
        e.writer_mut().extend_from_slice(b"\x78\x05shape\x80\x65shape\x80");
    });
    assert_eq!(Reader::from_bytes(file(&[], &twice)).unwrap_err().rule(), Some("zt.key-duplicate"));
}

/// The bytes of a file that the library wrote, with the checksum's entry changed by `change`.
fn rewritten(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = ztensor::Writer::new(&mut bytes).unwrap();
    writer.add("w", &[3], &[1u8, 2, 3]).unwrap();
    writer.finish().unwrap();
    let len = u64::from_le_bytes(bytes[bytes.len() - 16..][..8].try_into().unwrap()) as usize;
    let start = bytes.len() - 16 - len;
    let mut manifest = bytes[start..bytes.len() - 16].to_vec();
    change(&mut manifest);
    bytes.truncate(start);
    bytes.extend_from_slice(&manifest);
    bytes.extend_from_slice(&(manifest.len() as u64).to_le_bytes());
    bytes.extend_from_slice(b"ZTEN1000");
    bytes
}

#[test]
fn a_checksum_that_an_editor_copied_to_another_manifest_is_ignored() {
    /// The key and the value, with their heads.
    const ENTRY: usize = 1 + 17 + 1 + 16;
    assert_eq!(broken_rule(rewritten(|_| ())), None);
    // In front of the rest, where an editor that keeps unknown keys may put it.
    let moved = rewritten(|manifest| {
        let entry = manifest.split_off(manifest.len() - ENTRY);
        let rest = manifest.split_off(1);
        manifest.extend(entry);
        manifest.extend(rest);
    });
    assert_eq!(broken_rule(moved.clone()), None);
    // Still the last entry, but of a manifest that lies elsewhere and says something else.
    let bytes = rewritten(|_| ());
    let (data, manifest) = (&bytes[..67], &bytes[67..bytes.len() - 16]);
    let mut manifest = manifest.to_vec();
    let at = manifest.windows(5).position(|window| window == b"dense").unwrap();
    manifest[at] = b'D';
    let copied = file(&[data, &[0; 64]].concat()[64..], &manifest);
    assert_eq!(broken_rule(copied), None);
    // Whatever became of it, the next edit writes a right one.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.zt");
    std::fs::write(&path, moved).unwrap();
    let mut writer = ztensor::Writer::append(&path).unwrap();
    writer.add("x", &[1], &[1u8]).unwrap();
    writer.finish().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes.windows(17).filter(|window| window == b"manifest_checksum").count(), 2);
    assert_eq!(broken_rule(bytes.clone()), None);
    let version = bytes.windows(5).rposition(|window| window == b"1.2.0").unwrap();
    bytes[version + 4] ^= 1;
    assert_eq!(broken_rule(bytes), Some("zt.manifest-checksum"));
}

/// All that a file says: names, shapes, types, layouts, attributes and contents.
fn contents(bytes: Vec<u8>) -> ztensor::Result<String> {
    let reader = Reader::from_bytes(bytes)?;
    let mut said = format!("{:?}", reader.attributes());
    for (name, object) in reader.objects() {
        said += &format!("{name:?} {:?} {:?} {:?}", object.shape, object.layout, object.attributes);
        for (role, component) in &object.components {
            let bytes = reader.read_component(name, role)?;
            said += &format!("{role} {:?} {:?} {bytes:?}", component.dtype, component.type_name());
        }
    }
    Ok(said)
}

#[test]
fn every_flipped_bit_is_noticed() {
    use ztensor::{Checksum, Compression};
    let mut bytes = Vec::new();
    let mut writer = ztensor::Writer::new(&mut bytes).unwrap();
    writer.set_attribute("step", 7);
    writer.set_attribute("author", "test");
    for (name, compression, checksum) in [
        ("a.weight", Compression::None, Checksum::Crc32c),
        ("b.weight", Compression::None, Checksum::Sha256),
        ("c.weight", Compression::Zstd(3), Checksum::Crc32c),
        ("d.weight", Compression::Z4ai(ztensor::Effort::Fast), Checksum::Sha256),
    ] {
        let values: Vec<f32> = (0..24).map(|n| n as f32).collect();
        writer.add_with(name, &[4, 6], &values).compress(compression).checksum(checksum).write().unwrap();
    }
    writer.tie("e.weight", "a.weight").unwrap();
    writer.finish().unwrap();
    let expected = contents(bytes.clone()).unwrap();
    let reader = Reader::from_bytes(bytes.clone()).unwrap();
    let blobs: Vec<_> = reader
        .objects()
        .flat_map(|(_, object)| &object.components)
        .map(|(_, component)| component.extent().unwrap())
        .map(|extent| extent.offset as usize..(extent.offset + extent.len) as usize)
        .collect();
    let manifest =
        bytes.len() - 16 - u64::from_le_bytes(bytes[bytes.len() - 16..][..8].try_into().unwrap()) as usize;
    // Zeros between blobs, which nothing reads.
    let padding = |at: usize| (8..manifest).contains(&at) && !blobs.iter().any(|blob| blob.contains(&at));
    // The name of the checksum: without it the file is one of those that have none.
    let key = bytes.windows(17).rposition(|window| window == b"manifest_checksum").unwrap();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            match contents(flipped) {
                Err(_) => {}
                Ok(said) => {
                    assert!(
                        padding(at) || (key..key + 17).contains(&at),
                        "byte {at}, bit {bit} is not noticed"
                    );
                    assert_eq!(said, expected, "byte {at}, bit {bit} changes what is read");
                }
            }
        }
    }
}
