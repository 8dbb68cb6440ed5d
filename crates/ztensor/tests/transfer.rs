//! Tensors moved from a file of any format into a `.zt` file.

mod common;

use common::fixtures;
use ztensor::{Checksum, Compression, ErrorKind, OpenOptions, Reader, Verification, WriteOptions, Writer};

/// Moves every tensor of `reader` into a new file in memory.
fn moved(reader: &Reader, options: WriteOptions) -> ztensor::Result<Reader> {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes)?;
    let names: Vec<&str> = reader.keys().collect();
    writer.write_from(reader, &names, options, None)?;
    writer.finish()?;
    Reader::from_bytes(bytes)
}

#[test]
fn every_sample_keeps_its_tensors() {
    let samples = [
        ("zt", "dtypes.zt"),
        ("zt", "sparse.zt"),
        ("zt", "zstd_crc32c.zt"),
        ("zt", "legacy_v01.zt"),
        ("zt", "dtypes.zt.expected.npz"),
    ];
    for (format, sample) in samples {
        let reader = Reader::open(fixtures::folder(format).join(sample)).unwrap();
        for compression in [Compression::None, Compression::Zstd(3)] {
            for checksum in [Checksum::None, Checksum::Crc32c] {
                let copy = moved(&reader, WriteOptions { compression, checksum }).unwrap();
                assert!(copy.keys().eq(reader.keys()), "{sample}");
                for name in reader.keys() {
                    assert_eq!(
                        copy.read_owned(name).unwrap(),
                        reader.read_owned(name).unwrap(),
                        "{sample}: {name}"
                    );
                    let verified = copy.verify(name).unwrap() == Verification::Checked;
                    assert_eq!(verified, checksum != Checksum::None, "{sample}: {name}");
                }
            }
        }
    }
}

/// A file with a tensor under two names, and an equal one that is not tied.
fn tied(checksum: Checksum) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes).unwrap();
    writer.add_with("a", &[64], &[1u8; 64]).checksum(checksum).write().unwrap();
    writer.add("equal", &[64], &[1u8; 64]).unwrap();
    writer.tie("b", "a").unwrap();
    writer.finish().unwrap();
    bytes
}

#[test]
fn ties_stay_ties_and_equals_stay_apart() {
    let reader = Reader::from_bytes(tied(Checksum::None)).unwrap();
    for compression in [Compression::None, Compression::Zstd(1)] {
        let copy = moved(&reader, WriteOptions { compression, ..Default::default() }).unwrap();
        let extent = |name: &str| copy.get(name).unwrap().require("data").unwrap().extent().unwrap();
        assert_eq!(extent("a"), extent("b"));
        assert_ne!(extent("a"), extent("equal"));
    }
}

#[test]
fn damage_is_not_copied() {
    let mut bytes = tied(Checksum::Crc32c);
    bytes[64] ^= 1;
    let reader = Reader::from_bytes(bytes.clone()).unwrap();
    for compression in [Compression::None, Compression::Zstd(1)] {
        let error = moved(&reader, WriteOptions { compression, ..Default::default() }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        assert_eq!(error.tensor(), Some("a"));
    }
    let source = std::sync::Arc::new(ztensor::source::MemorySource::new(bytes));
    let trusting = OpenOptions::default().verify(false).open_source(source).unwrap();
    moved(&trusting, WriteOptions::default()).unwrap();
}

#[test]
fn names_that_are_there_already_are_refused_before_their_bytes_are_written() {
    let reader = Reader::from_bytes(tied(Checksum::None)).unwrap();
    let mut writer = Writer::new(std::io::sink()).unwrap();
    writer.add("equal", &[1], &[0u8]).unwrap();
    let error = writer.write_from(&reader, &["a", "equal"], WriteOptions::default(), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("equal"), "{error}");
    assert_eq!(
        writer.write_from(&reader, &["missing"], WriteOptions::default(), None).unwrap_err().kind(),
        ErrorKind::NotFound
    );
}
