//! Decoded sizes that the stored bytes do not earn, and legitimate files that decode to much more
//! than they store.

use std::sync::Arc;

use ztensor::source::MemorySource;
use ztensor::{Compression, Effort, Error, ErrorKind, Limits, OpenOptions, Reader, Result, Writer};

/// A `.zt` file of `count` tensors of `len` zeros.
fn zeros(compression: Compression, count: usize, len: usize) -> Vec<u8> {
    let tensor = vec![0u8; len];
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes).unwrap();
    for index in 0..count {
        writer.add_with(&index.to_string(), &[len as u64], &tensor).compress(compression).write().unwrap();
    }
    writer.finish().unwrap();
    bytes
}

fn open(bytes: &[u8], limits: Limits) -> Reader {
    let source = Arc::new(MemorySource::new(bytes.to_vec()));
    OpenOptions::default().limits(limits).open_source(source).unwrap()
}

fn is_limit<T>(result: Result<T>) -> Error {
    let error = result.err().expect("a limit refuses this");
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
    error
}

/// Names of all tensors, as requests with buffers of their own.
fn read_all(reader: &Reader, buffers: &mut [Vec<u8>]) -> Result<()> {
    let names: Vec<&str> = reader.keys().collect();
    let requests = names.iter().zip(buffers).map(|(name, out)| (*name, "data", &mut out[..]));
    reader.read_many(requests.collect(), None)
}

#[test]
fn every_reading_call_is_held_to_the_total() {
    for compression in [Compression::Zstd(3), Compression::Z4ai(Effort::Max)] {
        let file = zeros(compression, 3, 100_000);
        let mut buffers = vec![vec![1; 100_000]; 3];

        let enough = open(&file, Limits::default().max_total(300_000));
        read_all(&enough, &mut buffers).unwrap();
        enough.verify_all(None).unwrap();
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out).unwrap();
        let names: Vec<&str> = enough.keys().collect();
        writer.write_from(&enough, &names, Default::default(), None).unwrap();

        let reader = open(&file, Limits::default().max_total(299_999));
        buffers.iter_mut().for_each(|buffer| buffer.fill(1));
        is_limit(read_all(&reader, &mut buffers));
        assert!(buffers.iter().flatten().all(|&byte| byte == 1), "refused before anything was written");
        is_limit(reader.check_limits(reader.keys()));
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out).unwrap();
        is_limit(writer.write_from(&reader, &names, Default::default(), None));
        let mut out = Vec::new();
        let format = ztensor::export::ExportFormat::Safetensors;
        is_limit(ztensor::export::export_to(&reader, &mut out, format, &Default::default()));
        assert!(out.is_empty());
        // A call is charged for what it does, not for what others did before.
        for name in names {
            assert_eq!(reader.read(name).unwrap().len(), 100_000);
        }

        let small = open(&file, Limits::default().max_total(99_999));
        is_limit(small.read("0"));
        is_limit(small.read_as::<u8>("0"));
        is_limit(small.read_object("0"));
        is_limit(small.read_rows("0", 0..100_000));
        is_limit(small.read_range_into("0", 0..100_000, &mut vec![0; 100_000]));
        assert_eq!(small.read_rows("0", 0..99_999).unwrap().len(), 99_999);
        let part = |out| ztensor::Subarray {
            name: "0",
            item: 1,
            sizes: &[100_000],
            offsets: &[0],
            lengths: &[100_000],
            out,
        };
        is_limit(small.read_parts(vec![part(&mut vec![0; 100_000])], None));
    }
}

#[test]
fn a_part_of_a_stream_costs_everything_before_it() {
    let file = zeros(Compression::Zstd(3), 1, 100_000);
    let reader = open(&file, Limits::default().max_total(50_000));
    assert_eq!(reader.read_rows("0", 0..50_000).unwrap().len(), 50_000);
    is_limit(reader.read_rows("0", 99_999..100_000));
    // Frames of the weight codec are decoded by chunks.
    let file = zeros(Compression::Z4ai(Effort::Fast), 1, 100_000);
    let reader = open(&file, Limits::default().max_total(50_000));
    assert_eq!(reader.read_rows("0", 99_999..100_000).unwrap(), [0]);
}

#[test]
fn the_largest_component_holds_for_raw_bytes_and_the_total_does_not() {
    let file = zeros(Compression::None, 3, 1000);
    let reader = open(&file, Limits::default().max_component(999));
    is_limit(reader.read("0"));
    is_limit(reader.read_object("0"));
    is_limit(reader.read_range_into("0", 0..1000, &mut [0; 1000]));
    let reader = open(&file, Limits::default().max_total(1));
    assert_eq!(reader.read("0").unwrap().len(), 1000);
    read_all(&reader, &mut vec![vec![0; 1000]; 3]).unwrap();
}

/// A `.zt` file that stores `frame`, which decodes to `len` bytes, `count` times.
fn frames(frame: &[u8], len: u64, count: u64) -> Vec<u8> {
    let step = (frame.len() as u64).next_multiple_of(64);
    let mut bytes = b"ZTEN1000".to_vec();
    let mut manifest = Vec::new();
    let mut e = minicbor::Encoder::new(&mut manifest);
    e.map(2).unwrap().str("version").unwrap().str("1.2.0").unwrap();
    e.str("objects").unwrap().map(count).unwrap();
    for index in 0..count {
        let offset = 64 + index * step;
        bytes.resize(offset as usize, 0);
        bytes.extend_from_slice(frame);
        e.str(&index.to_string()).unwrap().map(3).unwrap();
        e.str("shape").unwrap().array(1).unwrap().u64(len).unwrap();
        e.str("format").unwrap().str("dense").unwrap();
        e.str("components").unwrap().map(1).unwrap().str("data").unwrap().map(5).unwrap();
        e.str("dtype").unwrap().str("u8").unwrap().str("encoding").unwrap().str("z4ai").unwrap();
        e.str("offset").unwrap().u64(offset).unwrap();
        e.str("length").unwrap().u64(frame.len() as u64).unwrap();
        e.str("uncompressed_length").unwrap().u64(len).unwrap();
    }
    bytes.extend_from_slice(&manifest);
    bytes.extend_from_slice(&(manifest.len() as u64).to_le_bytes());
    bytes.extend_from_slice(b"ZTEN1000");
    bytes
}

#[test]
fn a_file_of_frames_of_zeros_is_refused_by_default_and_the_refusal_names_the_option() {
    // 96 tensors of 64 MiB: 6 GiB from less than 500 kB.
    const LEN: u64 = 64 << 20;
    let options = z4ai::Options { effort: Effort::Max, ..z4ai::Options::default() };
    let frame = z4ai::compress(&vec![0; LEN as usize], &options).unwrap();
    let bomb = frames(&frame, LEN, 96);
    assert!(bomb.len() < 500_000, "{}", bomb.len());
    let reader = open(&bomb, Limits::default());
    assert_eq!(reader.read("0").unwrap().len() as u64, LEN, "one tensor alone is fine");
    let error = is_limit(reader.check_limits(reader.keys()));
    assert!(error.to_string().contains("--max-total-bytes"), "{error}");
    is_limit(reader.verify_all(None));
    let mut out = Vec::new();
    let names: Vec<&str> = reader.keys().collect();
    let mut writer = Writer::new(&mut out).unwrap();
    is_limit(writer.write_from(&reader, &names, Default::default(), None));
    for raised in [Limits::default().max_total(6 << 30), Limits::NONE] {
        open(&bomb, raised).check_limits(reader.keys()).unwrap();
    }
}

#[test]
fn zeros_in_a_file_that_holds_data_are_fine() {
    // Optimizer state before the first step: as many zeros as weights, twice.
    let mut state = 1u64;
    let weights: Vec<u8> = (0..1 << 20)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .collect();
    let zeros = vec![0u8; 1 << 20];
    for compression in [Compression::Zstd(3), Compression::Z4ai(Effort::Max)] {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes).unwrap();
        for (name, data) in [("weight", &weights), ("exp_avg", &zeros), ("exp_avg_sq", &zeros)] {
            writer.add_with(name, &[1 << 20], data).compress(compression).write().unwrap();
        }
        writer.finish().unwrap();
        let reader = open(&bytes, Limits::default());
        read_all(&reader, &mut vec![vec![1; 1 << 20]; 3]).unwrap();
        // The ratio alone has room for them, whatever their number: they would fit without the floor.
        let total: u64 = reader.objects().map(|(_, object)| object.byte_len()).sum();
        assert!(total <= bytes.len() as u64 * Limits::RATIO);
    }
}

#[test]
fn overlapping_raw_tensors_count_beyond_the_size_of_the_file() {
    // A safetensors file cannot overlap; views of one storage in a .pt file, or ties, can.
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes).unwrap();
    writer.add("0", &[1 << 20], &vec![7u8; 1 << 20]).unwrap();
    for index in 1..100 {
        writer.tie(&index.to_string(), "0").unwrap();
    }
    writer.finish().unwrap();
    let reader = open(&bytes, Limits::default().max_total(50 << 20));
    let mut buffers = vec![vec![0; 1 << 20]; 100];
    is_limit(read_all(&reader, &mut buffers));
    reader.check_limits(reader.keys()).unwrap(); // readers that know ties hold them once
    read_all(&open(&bytes, Limits::default()), &mut buffers).unwrap();
}

#[test]
fn hdf5_chunks_that_lie_mostly_outside_their_dataset_are_refused() {
    // 1 x 100 elements in chunks of 2^20 x 1: 10 kB, of which 400 MiB would be decoded for 400 bytes.
    let reader = Reader::from_bytes(include_bytes!("hdf5/tall_chunks.h5")).unwrap();
    let error = is_limit(reader.read("x"));
    assert!(error.to_string().contains("chunks"), "{error}");
    is_limit(reader.read_rows("x", 0..1));
    // What is decoded and dropped counts, too: here before the index is read.
    let bytes = include_bytes!("hdf5/tall_chunks.h5");
    let limited = open(bytes, Limits::default().max_total((400 << 20) - 1));
    is_limit(limited.check_limits(["x"]));
    open(bytes, Limits::default().max_total(400 << 20)).check_limits(["x"]).unwrap();
}

#[test]
fn no_sample_of_any_format_meets_the_default_limits() {
    let mut checked = 0;
    let mut folders = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let Ok(reader) = Reader::open(&path) else { continue }; // not every sample is a file alone
            reader.check_limits(reader.keys()).unwrap();
            checked += reader.len();
        }
    }
    assert!(checked > 100, "{checked}");
}

#[test]
fn deltas_are_applied_within_limits() {
    use ztensor::delta::{ApplyOptions, MakeOptions, apply, make};
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let numbers: Vec<u32> = (0..50_000).map(|n: u32| n.wrapping_mul(2_654_435_761)).collect();
    for (file, change) in [("base.zt", 0), ("tuned.zt", 1)] {
        let mut writer = Writer::create(path(file)).unwrap();
        writer.add_with("same", &[50_000], &numbers).compress(Compression::Zstd(3)).write().unwrap();
        let changed: Vec<u32> = numbers.iter().map(|n| n ^ change).collect();
        writer.add("changed", &[50_000], &changed).unwrap();
        writer.finish().unwrap();
    }
    make(path("base.zt"), path("tuned.zt"), path("d.z4dm"), &MakeOptions::default()).unwrap();
    let target = std::fs::metadata(path("tuned.zt")).unwrap().len();
    let apply_with = |limits| {
        let options = ApplyOptions { limits, ..ApplyOptions::default() };
        apply(path("base.zt"), path("d.z4dm"), path("out.zt"), &options)
    };
    is_limit(apply_with(Limits::default().max_total(target - 1)));
    is_limit(apply_with(Limits::default().max_component(199_999)));
    assert!(!path("out.zt").exists());
    assert_eq!(apply_with(Limits::default()).unwrap(), target);
    assert_eq!(std::fs::read(path("out.zt")).unwrap(), std::fs::read(path("tuned.zt")).unwrap());
}
