//! Files made by hand: each breaks a rule, or claims sizes that it does not have.

use crate::common::conformance;
use ztensor::{ErrorKind, Layout, OpenOptions, Reader, Verification};

pub(super) fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// Gives a file whose manifest was changed the hash of the new one.
pub(super) fn rehash(bytes: &mut [u8]) {
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
    let folder = super::shards::folder_with(&["identity-4k.zt"]);
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
