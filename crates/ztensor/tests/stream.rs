//! One tensor, piece by piece: what is read back, what is refused, what is left behind.

use std::io::Write;

use proptest::prelude::*;
use ztensor::write::CreateOptions;
use ztensor::{
    Checksum, Compression, DType, Effort, ErrorKind, Format, Reader, Tensor, Verification, WriteOptions,
    Writer, ZtVersion,
};

const ALL: [Compression; 5] = [
    Compression::None,
    Compression::Zstd(1),
    Compression::Zstd(9),
    Compression::Z4ai(Effort::Fast),
    Compression::Z4ai(Effort::Default),
];

fn weights(len: usize) -> Vec<u8> {
    let mut state = 7u32;
    (0..len / 4)
        .flat_map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 8) as f32 / 1e7 - 0.8).to_le_bytes()
        })
        .collect()
}

fn streamed(
    data: &[u8],
    dtype: DType,
    shape: &[u64],
    options: WriteOptions,
    pieces: &[usize],
    threads: usize,
) -> Vec<u8> {
    streamed_as(ZtVersion::V1, data, dtype, shape, options, pieces, threads)
}

fn streamed_as(
    version: ZtVersion,
    data: &[u8],
    dtype: DType,
    shape: &[u64],
    options: WriteOptions,
    pieces: &[usize],
    threads: usize,
) -> Vec<u8> {
    let mut file = Vec::new();
    let mut writer = Writer::new_version(&mut file, version).unwrap();
    writer.set_threads(threads);
    writer.add("before", &[3], &[1f32, 2.0, 3.0]).unwrap();
    let mut stream = writer.stream("t", shape, dtype, options).unwrap();
    let (mut rest, mut sizes) = (data, pieces.iter().cycle());
    while !rest.is_empty() {
        let (piece, after) = rest.split_at((*sizes.next().unwrap()).min(rest.len()));
        stream.write_all(piece).unwrap();
        rest = after;
    }
    assert_eq!(stream.remaining(), 0);
    stream.finish().unwrap();
    writer.add("after", &[3], &[4f32, 5.0, 6.0]).unwrap();
    writer.finish().unwrap();
    file
}

#[test]
fn what_is_streamed_is_read_back_with_every_codec_and_checksum() {
    let data = weights(40 << 20);
    let shape = [10, 1 << 20];
    for compression in ALL {
        for checksum in [Checksum::None, Checksum::Crc32c, Checksum::Sha256, Checksum::Blake3] {
            let options = WriteOptions { compression, checksum };
            let file = streamed(&data, DType::F32, &shape, options, &[1 << 20, 777_777, 3], 0);
            let reader = Reader::from_bytes(file).unwrap();
            assert_eq!(reader.keys().collect::<Vec<_>>(), ["before", "t", "after"]);
            assert!(reader.read("t").unwrap() == data, "{compression:?} {checksum:?}");
            assert_eq!(reader.read_as::<f32>("after").unwrap(), [4.0, 5.0, 6.0]);
            if checksum != Checksum::None {
                assert_eq!(reader.verify("t").unwrap(), Verification::Checked);
            }
            if compression == ALL[0] || compression == ALL[3] {
                continue;
            }
            assert!(reader.get("t").unwrap().stored_len() < data.len() as u64, "{compression:?}");
        }
    }
}

/// What version 2 has of codecs and of checksums.
const OF_VERSION_2: [Compression; 3] = [Compression::None, Compression::Zstd(1), Compression::Zstd(9)];

#[test]
fn what_is_streamed_into_version_2_is_read_back() {
    let data = weights(20 << 20);
    let shape = [5, 1 << 20];
    for compression in OF_VERSION_2 {
        for (checksum, digest) in [(Checksum::None, "xxh3:"), (Checksum::Sha256, "sha256:")] {
            let options = WriteOptions { compression, checksum };
            let stream = |pieces: &[usize], threads| {
                streamed_as(ZtVersion::V2, &data, DType::F32, &shape, options, pieces, threads)
            };
            let file = stream(&[1 << 20, 777_777, 3], 0);
            assert!(file == stream(&[100_001], 1), "neither pieces nor threads change the bytes");
            let reader = Reader::from_bytes(file).unwrap();
            assert_eq!((reader.format(), reader.len()), (Format::Zt2, 3));
            assert!(reader.read("t").unwrap() == data, "{compression:?} {checksum:?}");
            assert_eq!(reader.verify("t").unwrap(), Verification::Checked);
            let component = reader.get("t").unwrap().component("data").unwrap();
            assert!(component.digest.as_ref().unwrap().to_string().starts_with(digest));
            if compression != Compression::None {
                assert!(component.stored_len() < data.len() as u64, "{compression:?}");
            }
        }
        let options = WriteOptions { compression, checksum: Checksum::None };
        for (data, shape) in [(&[1, 2, 3, 4][..], &[][..]), (&[], &[0, 4])] {
            let file = streamed_as(ZtVersion::V2, data, DType::F32, shape, options, &[3], 0);
            assert_eq!(Reader::from_bytes(file).unwrap().read("t").unwrap(), data);
        }
    }
}

#[test]
fn version_2_refuses_what_no_reader_takes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.zt");
    let create = || Writer::create_with(&path, &CreateOptions::default().version(ZtVersion::V2)).unwrap();
    let plain = WriteOptions::default();
    for options in [
        WriteOptions { compression: Compression::Z4ai(Effort::Fast), ..plain },
        WriteOptions { checksum: Checksum::Crc32c, ..plain },
        WriteOptions { checksum: Checksum::Blake3, ..plain },
    ] {
        let mut writer = create();
        let error = writer.stream("t", &[2], DType::F32, options).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let tensor = Tensor::from_bytes(&[2u64][..], DType::U8, &[1, 2][..]).unwrap();
        assert!(writer.write_object_with("t", &tensor, options).is_err());
    }
    for name in ["", "a\0b", &"x".repeat(1025)] {
        assert!(create().stream(name, &[2], DType::F32, plain).is_err(), "{name}");
        assert!(create().add(name, &[2], &[1f32, 2.0]).is_err(), "{name}");
        let mut writer = create();
        writer.add("first", &[2], &[1f32, 2.0]).unwrap();
        writer.tie(name, "first").unwrap();
        assert!(writer.finish().is_err(), "{name}");
    }
    let refused = |name: &str, count: u64, dtype: DType, bytes: &[u8]| {
        let mut writer = create();
        let mut stream = writer.stream(name, &[count], dtype, plain)?;
        stream.push(bytes)?;
        stream.finish()
    };
    assert!(refused("flags", 2, DType::Bool, &[1, 2]).is_err());
    let error = refused("nibbles", 3, DType::F4E2M1, &[0x11, 0x11]).unwrap_err();
    assert!(error.to_string().contains("last byte"), "{error}");
    assert!(refused("half a tensor", 3, DType::F32, &[0; 8]).is_err());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
    let mut writer = create();
    writer.set_attribute("", 1);
    assert_eq!(writer.finish().unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn the_bytes_depend_neither_on_pieces_nor_on_threads() {
    let data = weights(34 << 20);
    for compression in ALL {
        let options = WriteOptions { compression, checksum: Checksum::Crc32c };
        let shape = [(34 << 20) / 4];
        let one = streamed(&data, DType::F32, &shape, options, &[data.len()], 1);
        let other = streamed(&data, DType::F32, &shape, options, &[100_000, 1], 3);
        assert!(one == other, "{compression:?}");
    }
    // A frame of the weight codec is the one of a tensor that is there at once.
    let options = WriteOptions { compression: Compression::Z4ai(Effort::Default), checksum: Checksum::None };
    let mut file = Vec::new();
    let mut writer = Writer::new(&mut file).unwrap();
    writer.add("before", &[3], &[1f32, 2.0, 3.0]).unwrap();
    let shape = [(34 << 20) / 4u64];
    let tensor = Tensor::from_bytes(&shape[..], DType::F32, &data[..]).unwrap();
    writer.write_object_with("t", &tensor, options).unwrap();
    writer.add("after", &[3], &[4f32, 5.0, 6.0]).unwrap();
    writer.finish().unwrap();
    assert!(file == streamed(&data, DType::F32, &shape, options, &[65_536], 2));
}

#[test]
fn scalars_and_empty_tensors_stream() {
    for compression in ALL {
        let options = WriteOptions { compression, checksum: Checksum::Crc32c };
        let reader = Reader::from_bytes(streamed(&[1, 2, 3, 4], DType::F32, &[], options, &[1], 0)).unwrap();
        assert_eq!(reader.read("t").unwrap(), [1, 2, 3, 4]);
        let reader = Reader::from_bytes(streamed(&[], DType::F32, &[0, 4], options, &[1], 0)).unwrap();
        assert_eq!(reader.get("t").unwrap().shape.as_slice(), [0, 4]);
        assert!(reader.read("t").unwrap().is_empty());
    }
}

#[test]
fn wrong_lengths_values_and_names_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.zt");
    for compression in ALL {
        let options = WriteOptions { compression, checksum: Checksum::None };
        let mut writer = Writer::create(&path).unwrap();
        writer.add("a", &[1], &[1f32]).unwrap();
        assert!(writer.stream("a", &[2], DType::F32, options).is_err());
        assert!(writer.stream("b", &[u64::MAX, 9], DType::F32, options).is_err());
        let mut stream = writer.stream("b", &[2], DType::F32, options).unwrap();
        assert_eq!(stream.push(&[0; 9]).unwrap_err().kind(), ErrorKind::InvalidArgument);
        stream.push(&[0; 7]).unwrap();
        assert_eq!(stream.remaining(), 1);
        assert!(stream.finish().unwrap_err().to_string().contains("1 bytes of 8 are missing"));
        // The writer has half a tensor in it.
        assert!(writer.add("c", &[1], &[1f32]).unwrap_err().to_string().contains("not finished"));
        assert!(writer.finish().is_err());
        assert!(!path.exists(), "{compression:?}");

        let mut writer = Writer::create(&path).unwrap();
        let mut stream = writer.stream("flags", &[2], DType::Bool, options).unwrap();
        assert_eq!(stream.push(&[2]).unwrap_err().rule(), Some("bool.value"));
    }
    let mut writer = Writer::create(&path).unwrap();
    let level = WriteOptions { compression: Compression::Zstd(99), checksum: Checksum::None };
    assert!(writer.stream("b", &[2], DType::F32, level).is_err());
    drop(writer);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
}

#[test]
fn a_stream_that_is_dropped_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.zt");
    let mut writer = Writer::create(&path).unwrap();
    let mut stream = writer.stream("t", &[1 << 20], DType::U8, WriteOptions::default()).unwrap();
    stream.write_all(&[1; 1000]).unwrap();
    drop(stream);
    assert!(writer.finish().is_err());
    assert!(!path.exists());
}

#[test]
fn streams_append_to_a_file_that_exists() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.zt");
    let mut writer = Writer::create(&path).unwrap();
    writer.add("a", &[1], &[1f32]).unwrap();
    writer.finish().unwrap();
    let before = std::fs::read(&path).unwrap();
    let data = weights(20 << 20);
    for (name, compression) in ["b", "c", "d"].into_iter().zip([ALL[0], ALL[1], ALL[4]]) {
        let options = WriteOptions { compression, checksum: Checksum::Crc32c };
        let mut writer = Writer::append(&path).unwrap();
        let mut stream = writer.stream(name, &[5 << 20], DType::F32, options).unwrap();
        stream.push(&data[..12_345_678]).unwrap();
        if name == "b" {
            drop(stream);
            drop(writer);
            let reader = ztensor::open(&path).unwrap();
            assert_eq!(
                reader.read("a").unwrap(),
                1f32.to_le_bytes(),
                "until it is finished, it is what it was"
            );
            assert_eq!(reader.len(), 1);
            ztensor::repair(&path).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), before);
            continue;
        }
        stream.push(&data[12_345_678..]).unwrap();
        stream.finish().unwrap();
        writer.finish().unwrap();
    }
    let reader = ztensor::open(&path).unwrap();
    assert!(reader.read("c").unwrap() == data && reader.read("d").unwrap() == data);
}

#[test]
fn pipes_become_frames() {
    for len in [0, 1000, 40 << 20] {
        let data = weights(len);
        let options = z4ai::Options { kind: z4ai::Kind::F32, ..z4ai::Options::default() };
        let mut frame = Vec::new();
        let sizes = ztensor::write::compress_stream(&mut &data[..], &mut frame, &options).unwrap();
        assert_eq!(sizes, (len as u64, frame.len() as u64));
        assert!(frame == z4ai::compress(&data, &options).unwrap());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_tensor_streams_into_version_2(
        dtype in prop::sample::select(&DType::ALL[..]),
        shape in prop::collection::vec(0u64..7, 0..4),
        byte in any::<u8>(),
        pieces in prop::collection::vec(1usize..40, 1..4),
        choice in 0usize..OF_VERSION_2.len(),
    ) {
        let count: u64 = shape.iter().product();
        let len = dtype.byte_len(count).unwrap();
        let mask = if dtype == DType::Bool { 1 } else { 255 };
        let mut data: Vec<u8> = (0..len).map(|n| (n as u8).wrapping_mul(byte) & mask).collect();
        let unused = (8 - count * u64::from(dtype.bits()) % 8) % 8;
        if let Some(last) = data.last_mut() {
            *last &= 0xff >> unused; // what is behind the last element must be 0
        }
        let options = WriteOptions { compression: OF_VERSION_2[choice], checksum: Checksum::None };
        let file = streamed_as(ZtVersion::V2, &data, dtype, &shape, options, &pieces, 1);
        let reader = Reader::from_bytes(file).unwrap();
        prop_assert_eq!(reader.get("t").unwrap().component("data").unwrap().dtype, dtype);
        prop_assert_eq!(reader.read("t").unwrap(), data);
        prop_assert_eq!(reader.verify("t").unwrap(), Verification::Checked);
    }

    #[test]
    fn any_tensor_streams(
        dtype in prop::sample::select(&DType::ALL[..]),
        shape in prop::collection::vec(0u64..7, 0..4),
        byte in any::<u8>(),
        pieces in prop::collection::vec(1usize..40, 1..4),
        choice in 0usize..ALL.len(),
    ) {
        let len = dtype.byte_len(shape.iter().product()).unwrap();
        let mask = if dtype == DType::Bool { 1 } else { 255 };
        let data: Vec<u8> = (0..len).map(|n| (n as u8).wrapping_mul(byte) & mask).collect();
        let options = WriteOptions { compression: ALL[choice], checksum: Checksum::Blake3 };
        let reader = Reader::from_bytes(streamed(&data, dtype, &shape, options, &pieces, 1)).unwrap();
        prop_assert_eq!(reader.read("t").unwrap(), data);
        prop_assert_eq!(reader.verify("t").unwrap(), Verification::Checked);
    }
}
