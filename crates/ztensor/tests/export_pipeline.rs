//! The pipeline of exports: every stored byte is read once, checksums are compared on the way, and the
//! output does not depend on the number of threads.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::conformance::CountingSource;
use ztensor::export::{ExportFormat, ExportOptions, export_to};
use ztensor::source::MemorySource;
use ztensor::{
    Checksum, Compression, DType, Effort, ErrorKind, OpenOptions, Reader, Result, Tensor, WriteOptions,
    Writer,
};

/// Lengths below and above those of groups and pieces.
const LENS: [u64; 5] = [100, 3 << 20, 9 << 20, 12 << 20, (4 << 20) + 4];

fn file(compression: Compression, checksum: Checksum) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes).unwrap();
    for (index, len) in LENS.into_iter().enumerate() {
        let data: Vec<u8> = (0..len).map(|n| ((n * n + n / 97) >> 3) as u8 ^ index as u8).collect();
        let tensor = Tensor::from_bytes(&[len / 4][..], DType::F32, data).unwrap();
        let options = WriteOptions { compression, checksum };
        writer.write_object_with(&format!("t{index}"), &tensor, options).unwrap();
    }
    writer.finish().unwrap();
    bytes
}

fn exported(reader: &Reader, format: ExportFormat, threads: usize) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    export_to(reader, &mut out, format, &ExportOptions::default().threads(threads))?;
    Ok(out)
}

fn cases() -> impl Iterator<Item = (Compression, Checksum)> {
    let compressions = [Compression::None, Compression::Zstd(1), Compression::Z4ai(Effort::Fast)];
    let checksums = [Checksum::None, Checksum::Crc32c, Checksum::Sha256];
    compressions.into_iter().flat_map(move |one| checksums.into_iter().map(move |other| (one, other)))
}

const TARGETS: [ExportFormat; 5] =
    [ExportFormat::Safetensors, ExportFormat::Gguf, ExportFormat::Npz, ExportFormat::Zstn, ExportFormat::Zt2];

#[test]
fn every_stored_byte_is_read_once() {
    for (compression, checksum) in cases() {
        let bytes = file(compression, checksum);
        let source = Arc::new(CountingSource { bytes, read: AtomicU64::new(0) });
        let reader = OpenOptions::default().open_source(source.clone()).unwrap();
        let stored: u64 = reader.objects().map(|(_, object)| object.stored_len()).sum();
        for format in TARGETS {
            source.read.store(0, Ordering::Relaxed);
            exported(&reader, format, 2).unwrap();
            let read = source.read.load(Ordering::Relaxed);
            // Indexes of frames are read before the frames.
            let most = stored + (1 << 20);
            assert!(read <= most, "{format}, {compression:?}, {checksum:?}: {read} of {stored} bytes");
        }
    }
}

#[test]
fn damage_is_noticed_on_the_way_to_every_target() {
    for checksum in [Checksum::Crc32c, Checksum::Sha256] {
        for compression in [Compression::None, Compression::Zstd(1)] {
            let good = file(compression, checksum);
            let reader = Reader::from_bytes(good.clone()).unwrap();
            let places: Vec<u64> =
                reader.objects().map(|(_, object)| object.components[0].1.extent().unwrap().offset).collect();
            for (index, place) in places.into_iter().enumerate() {
                let mut bad = good.clone();
                bad[place as usize + 40] ^= 1;
                let reader = Reader::from_bytes(bad).unwrap();
                for format in TARGETS {
                    let error = exported(&reader, format, 2).unwrap_err();
                    let name = format!("t{index}");
                    assert_eq!(error.kind(), ErrorKind::Mismatch, "{format} {name}: {error}");
                    assert_eq!(error.tensor(), Some(&*name), "{format}: {error}");
                }
            }
        }
    }
}

#[test]
fn the_output_does_not_depend_on_the_number_of_threads() {
    for (compression, checksum) in cases() {
        let bytes = file(compression, checksum);
        let mapped = OpenOptions::default().open_source(Arc::new(MemorySource::new(bytes.clone()))).unwrap();
        let source = Arc::new(CountingSource { bytes, read: AtomicU64::new(0) });
        let read = OpenOptions::default().threads(3).open_source(source).unwrap();
        for format in TARGETS {
            let expected = exported(&mapped, format, 1).unwrap();
            for threads in [2, 5] {
                let found = exported(&read, format, threads).unwrap();
                assert!(found == expected, "{format}, {compression:?}, {checksum:?}, {threads} threads");
            }
        }
    }
}
