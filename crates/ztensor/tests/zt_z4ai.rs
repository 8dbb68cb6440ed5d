//! `.zt` files whose tensors are frames of the weight codec.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::conformance::{self, Random};
use ztensor::source::{MapMode, MemorySource, Source};
use ztensor::{
    Checksum, Compression, DType, Effort, ErrorKind, Layout, OpenOptions, Reader, Tensor, WriteOptions,
    Writer,
};

fn z4ai(effort: Effort) -> WriteOptions {
    WriteOptions { compression: Compression::Z4ai(effort), checksum: Checksum::None }
}

/// Weights as bf16: a few exponents, random mantissas.
fn weights(count: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed | 1);
    let weight = |_| {
        let bits = random.next();
        let exponent = 120 - (bits >> 32).trailing_zeros().min(8) as u16;
        ((bits as u16 & 0x807f) | exponent << 7).to_le_bytes()
    };
    (0..count).flat_map(weight).collect()
}

fn bf16<'a>(shape: &[u64], bytes: &'a [u8]) -> Tensor<'a> {
    Tensor::from_bytes(shape, DType::BF16, bytes).unwrap()
}

fn file(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes).unwrap();
    write(&mut writer);
    writer.finish().unwrap();
    bytes
}

fn encoding(reader: &Reader, name: &str) -> String {
    reader.get(name).unwrap().component("data").unwrap().encoding().to_owned()
}

/// The bytes of a tensor as they lie in the file.
fn stored(reader: &Reader, name: &str) -> Vec<u8> {
    let extent = reader.get(name).unwrap().component("data").unwrap().extent().unwrap();
    reader.catalog().sources.bytes(extent).unwrap().into_owned()
}

#[test]
fn every_type_and_effort_round_trips() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random(7);
    let data: Vec<u8> = (0..16 * 4096).map(|_| (random.next() >> 60) as u8).collect();
    for effort in Effort::all() {
        for dtype in DType::ALL {
            let path = folder.path().join(format!("{dtype}.zt"));
            let shape = [64, 8, 8];
            let len = dtype.byte_len(4096).unwrap() as usize;
            let tensor = Tensor::from_bytes(&shape[..], dtype, &data[..len]).unwrap();
            let scalar =
                Tensor::from_bytes(&[][..], dtype, &data[..dtype.byte_len(1).unwrap() as usize]).unwrap();
            let empty = Tensor::from_bytes(&[3, 0, 5][..], dtype, &[][..]).unwrap();
            let mut writer = Writer::create(&path).unwrap();
            let options = WriteOptions { checksum: Checksum::Crc32c, ..z4ai(effort) };
            let tensors = [("x", &tensor), ("scalar", &scalar), ("empty", &empty)];
            writer.write_many(&tensors, options).unwrap();
            writer.finish().unwrap();
            for mode in [MapMode::Auto, MapMode::Never] {
                let reader = OpenOptions::default().map(mode).open(&path).unwrap();
                assert_eq!(encoding(&reader, "x"), "z4ai", "{dtype}");
                for (name, tensor) in tensors {
                    assert_eq!(&reader.read_owned(name).unwrap(), tensor, "{dtype}");
                }
                let row = dtype.byte_len(64).unwrap() as usize;
                assert_eq!(reader.read_rows("x", 3..17).unwrap(), &data[3 * row..17 * row], "{dtype}");
                assert_eq!(reader.verify_all(None).unwrap().checked, 3);
            }
        }
    }
}

#[test]
fn sparse_tensors_too() {
    let columns: Vec<u64> = (0..5000).map(|n| n % 50).collect();
    let starts: Vec<u64> = (0..=100).map(|n| n * 50).collect();
    let values = vec![1.5f32; 5000];
    let bytes = file(|writer| {
        let parts = [
            ("values".into(), ztensor::Array::from_slice(&values)),
            ("indices".into(), ztensor::Array::from_slice(&columns)),
            ("indptr".into(), ztensor::Array::from_slice(&starts)),
        ];
        let tensor = Tensor::new(&[100, 50][..], Layout::SparseCsr, parts, None).unwrap();
        writer.write_object_with("s", &tensor, z4ai(Effort::Default)).unwrap();
    });
    assert!(bytes.len() < 10_000);
    let csr = Reader::from_bytes(bytes).unwrap().read_owned("s").unwrap().into_dense::<f32>().unwrap();
    assert_eq!(csr.data, vec![1.5; 5000]);
}

#[test]
fn rows_decode_only_their_chunks() {
    let data = weights(1 << 20, 3);
    let mut bytes = file(|writer| {
        writer.write_object_with("w", &bf16(&[1024, 1024], &data), z4ai(Effort::Default)).unwrap();
    });
    let extent = {
        let reader = Reader::from_bytes(bytes.clone()).unwrap();
        for rows in [0..1, 17..18, 500..700, 1023..1024, 0..1024, 5..5] {
            let expected = &data[rows.start as usize * 2048..rows.end as usize * 2048];
            assert_eq!(reader.read_rows("w", rows).unwrap(), expected);
        }
        let mut part = vec![0; 1001];
        reader.read_range_into("w", 999_999..1_001_000, &mut part).unwrap();
        assert_eq!(part, &data[999_999..1_001_000]);
        reader.get("w").unwrap().component("data").unwrap().extent().unwrap()
    };
    assert!(extent.len < data.len() as u64 * 3 / 4);
    // Damage in the first chunk fails only reads that touch it.
    bytes[extent.offset as usize + 1000] ^= 4;
    let reader = Reader::from_bytes(bytes).unwrap();
    assert_eq!(reader.read("w").unwrap_err().rule(), Some("z4ai.frame"));
    assert_eq!(reader.read_rows("w", 0..1).unwrap_err().rule(), Some("z4ai.frame"));
    assert_eq!(reader.read_rows("w", 1000..1024).unwrap(), &data[1000 * 2048..]);
}

#[test]
fn what_does_not_shrink_is_stored_as_it_is() {
    let mut random = Random(1);
    let noise: Vec<u8> = (0..4096).map(|_| random.next() as u8).collect();
    let bytes = file(|writer| {
        writer
            .add_with("n", &[4096], &noise)
            .compress(Compression::from_effort("default").unwrap())
            .write()
            .unwrap();
    });
    let reader = Reader::from_bytes(bytes).unwrap();
    assert_eq!(encoding(&reader, "n"), "raw");
    assert_eq!(reader.view("n").unwrap(), noise);
    let error = Compression::from_effort("fastest").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("\"fast\", \"default\""), "{error}");
}

#[test]
fn ties_stay_ties_through_every_way_of_writing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tied.zt");
    let data = weights(5000, 9);
    let mut writer = Writer::create(&path).unwrap();
    writer.write_object_with("embed", &bf16(&[100, 50], &data), z4ai(Effort::Default)).unwrap();
    writer.tie("head", "embed").unwrap();
    writer.finish().unwrap();
    let reader = Reader::open(&path).unwrap();
    for options in [z4ai(Effort::Fast), WriteOptions::default()] {
        let copy = file(|writer| writer.write_from(&reader, &["embed", "head"], options, None).unwrap());
        let copy = Reader::from_bytes(copy).unwrap();
        let extent = |name| copy.get(name).unwrap().component("data").unwrap().extent();
        assert_eq!(extent("embed"), extent("head"));
        assert_eq!(copy.read("head").unwrap(), data);
    }
}

#[test]
fn edits_copy_frames_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let data = weights(5000, 11);
    let write = |name: &str, file: &str| {
        let mut writer = Writer::create(path(file)).unwrap();
        let options = WriteOptions { checksum: Checksum::Sha256, ..z4ai(Effort::Default) };
        writer.write_object_with(name, &bf16(&[5000], &data), options).unwrap();
        writer.add("plain", &[3], &[1f32, 2.0, 3.0]).unwrap();
        writer.finish().unwrap();
    };
    write("w", "a.zt");
    write("v", "b.zt");
    let frame = stored(&Reader::open(path("a.zt")).unwrap(), "w");
    ztensor::remove_tensors(path("b.zt"), path("c.zt"), &["plain"]).unwrap();
    ztensor::merge(&[path("a.zt"), path("c.zt")], path("m.zt")).unwrap();
    let mut writer = Writer::append(path("m.zt")).unwrap();
    writer.write_object_with("u", &bf16(&[50, 100], &data), z4ai(Effort::Fast)).unwrap();
    writer.finish().unwrap();
    ztensor::replace_tensor(path("m.zt"), "plain", &[0; 12]).unwrap();
    ztensor::compact(path("m.zt")).unwrap();
    let reader = Reader::open(path("m.zt")).unwrap();
    assert_eq!(reader.keys().collect::<Vec<_>>(), ["w", "plain", "v", "u"]);
    for name in ["w", "v"] {
        assert_eq!(stored(&reader, name), frame);
        assert_eq!(reader.verify(name).unwrap(), ztensor::Verification::Checked);
        assert_eq!(reader.read(name).unwrap(), data);
    }
    assert_eq!(reader.read("u").unwrap(), data);
    let refused = ztensor::replace_tensor(path("m.zt"), "w", &data).unwrap_err();
    assert!(refused.to_string().contains("z4ai"), "{refused}");
}

#[test]
fn the_bytes_do_not_depend_on_the_number_of_threads() {
    let data = weights(3 << 20, 5);
    let files = [1, 2, 5].map(|threads| {
        file(|writer| {
            writer.set_threads(threads);
            let small: Vec<Tensor<'_>> = (0..7).map(|n| bf16(&[500], &data[n * 1000..][..1000])).collect();
            let names: Vec<String> = (0..7).map(|n| n.to_string()).collect();
            let all: Vec<_> = names.iter().map(String::as_str).zip(&small).collect();
            writer.write_many(&all, z4ai(Effort::Default)).unwrap();
            writer.write_object_with("w", &bf16(&[3 << 10, 1 << 10], &data), z4ai(Effort::Default)).unwrap();
        })
    });
    assert!(files[0] == files[1] && files[1] == files[2]);
    for threads in [1, 3] {
        let source = Arc::new(MemorySource::new(files[0].clone()));
        let reader = OpenOptions::default().threads(threads).open_source(source).unwrap();
        assert_eq!(reader.read("w").unwrap(), data);
    }
}

#[test]
fn limits_are_obeyed_and_views_refused() {
    let data = weights(5000, 13);
    let bytes = file(|writer| {
        writer.write_object_with("w", &bf16(&[100, 50], &data), z4ai(Effort::Default)).unwrap();
    });
    let source = Arc::new(MemorySource::new(bytes));
    let limited = OpenOptions::default().max_component(9999).open_source(source).unwrap();
    assert_eq!(limited.read("w").unwrap_err().kind(), ErrorKind::Limit);
    assert_eq!(limited.read_rows("w", 0..99).unwrap(), &data[..9900]);
    let refused = limited.view("w").unwrap_err();
    assert!(refused.to_string().contains("z4ai"), "{refused}");
}

#[test]
fn every_flipped_bit_of_a_frame_is_noticed() {
    let data = weights(600, 15);
    let bytes = file(|writer| {
        writer.write_object_with("w", &bf16(&[20, 30], &data), z4ai(Effort::Default)).unwrap();
    });
    let reader = Reader::from_bytes(bytes.clone()).unwrap();
    let extent = reader.get("w").unwrap().component("data").unwrap().extent().unwrap();
    for at in extent.offset..extent.offset + extent.len {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at as usize] ^= 1 << bit;
            let read = Reader::from_bytes(damaged).unwrap().read("w");
            assert!(read.is_err(), "bit {bit} of byte {at}");
        }
    }
}

#[test]
fn damaged_files_are_errors() {
    let data = weights(300, 17);
    let bytes = file(|writer| {
        writer.write_object_with("w", &bf16(&[10, 30], &data), z4ai(Effort::Default)).unwrap();
        writer.write_object_with("v", &bf16(&[300], &data), z4ai(Effort::Fast)).unwrap();
        writer.tie("u", "v").unwrap();
    });
    conformance::run(&bytes, "zt");
}

/// Memory that cannot be mapped, as a file on some network, and how many bytes were read of it.
#[derive(Debug)]
struct Unmapped(Vec<u8>, AtomicU64);

impl Source for Unmapped {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn label(&self) -> &str {
        "unmapped"
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> ztensor::Result<()> {
        self.1.fetch_add(out.len() as u64, Ordering::Relaxed);
        out.copy_from_slice(&self.0[offset as usize..][..out.len()]);
        Ok(())
    }

    fn mapped(&self) -> ztensor::Result<&[u8]> {
        Err(ztensor::Error::unsupported("not this one"))
    }
}

#[test]
fn rows_of_what_is_not_mapped_take_the_chunks_that_hold_them() {
    let data = weights(4 << 20, 3);
    let tensor = bf16(&[4096, 1024], &data);
    let bytes = file(|writer| writer.write_many(&[("w", &tensor)], z4ai(Effort::Default)).unwrap());
    let source = Arc::new(Unmapped(bytes, AtomicU64::new(0)));
    let reader = OpenOptions::default().open_source(source.clone()).unwrap();
    let stored = reader.get("w").unwrap().stored_len();
    for (rows, most) in [(100..110, stored / 10), (0..1, stored / 20), (1000..2000, stored / 3)] {
        source.1.store(0, Ordering::Relaxed);
        let found = reader.read_rows("w", rows.clone()).unwrap();
        assert!(found == data[rows.start as usize * 2048..rows.end as usize * 2048], "{rows:?}");
        let read = source.1.load(Ordering::Relaxed);
        assert!(read < most, "{rows:?}: {read} of {stored}");
    }
}
