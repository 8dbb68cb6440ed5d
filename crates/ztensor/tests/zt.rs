//! The `.zt` container as a whole: sample files, round trips, places and threads.

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{conformance, fixtures};
use proptest::prelude::*;
use ztensor::object::Role;
use ztensor::source::{MapMode, MemorySource};
use ztensor::{
    Array, Attributes, Checksum, Compression, DType, ErrorKind, Layout, OpenOptions, Reader, Tensor, Value,
    Verification, WriteOptions, Writer,
};

/// Files that an independent writer made, each with its values in an `.npz` beside it.
const SAMPLES: [&str; 9] = [
    "append_base.zt",
    "appended.zt",
    "dtypes.zt",
    "legacy_v01.zt",
    "raw_crc32c.zt",
    "sparse.zt",
    "zstd19_sha256.zt",
    "zstd3.zt",
    "zstd_crc32c.zt",
];

#[test]
fn sample_files_hold_what_their_writer_says() {
    for sample in SAMPLES {
        let path = fixtures::folder("zt").join(sample);
        let expected = Reader::open(path.with_extension("zt.expected.npz")).unwrap();
        for mode in [MapMode::Auto, MapMode::Never] {
            let reader = OpenOptions::default().map(mode).open(&path).unwrap();
            for name in expected.keys() {
                let (tensor, role) = match reader.contains(name) {
                    true => (name, "data"),
                    false => name.rsplit_once('.').unwrap(),
                };
                let wanted = expected.read(name).unwrap();
                assert_eq!(reader.read_component(tensor, role).unwrap(), wanted, "{sample}: {name}");
                let object = reader.get(tensor).unwrap();
                if object.layout == Layout::Dense {
                    assert_eq!(object.shape, expected.get(name).unwrap().shape, "{sample}: {name}");
                }
            }
            let components: usize = reader.objects().map(|(_, object)| object.components.len()).sum();
            assert_eq!(components, expected.len(), "{sample}");
        }
    }
}

#[test]
fn sample_files_tell_how_they_are_stored() {
    let open = |sample: &str| Reader::open(fixtures::folder("zt").join(sample)).unwrap();
    let both = open("zstd_crc32c.zt");
    assert_eq!(both.get("w").unwrap().component("data").unwrap().encoding(), "zstd");
    assert_eq!(both.verify("w").unwrap(), Verification::Checked);
    assert_eq!(both.verify_all(None).unwrap().checked, both.len() as u64);
    assert_eq!(open("zstd3.zt").verify("w").unwrap(), Verification::NoDigest);
    let quantized = open("sparse.zt");
    assert_eq!(quantized.get("q").unwrap().attribute("bits"), Some(&Value::Int(4)));
    assert_eq!(quantized.get("q").unwrap().layout, Layout::QuantizedGroup);
}

#[test]
fn damaged_samples_are_survived() {
    for sample in ["dtypes.zt", "legacy_v01.zt", "sparse.zt"] {
        conformance::run(&fixtures::bytes("zt", sample), "zt");
    }
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes).unwrap();
    writer.set_attribute("note", vec!["a", "b"]);
    let options = WriteOptions { compression: Compression::Zstd(3), checksum: Checksum::Sha256 };
    let tensor = Tensor::from_slice(&[16u64, 4][..], &[1.5f32; 64]).unwrap();
    writer.write_object_with("packed", &tensor, options).unwrap();
    writer.finish().unwrap();
    conformance::run(&bytes, "zt");
}

#[test]
fn opening_reads_the_manifest_and_nothing_else() {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes).unwrap();
    writer.add("large", &[1 << 22], &vec![1u8; 1 << 22]).unwrap();
    writer.finish().unwrap();
    let read = conformance::bytes_read_to_open(bytes);
    assert!(read < 20_000, "{read} bytes were read to open a file with one tensor");
}

fn elements(dtype: DType) -> impl Strategy<Value = (Vec<u64>, Vec<u8>)> {
    prop::collection::vec(0u64..5, 0..4).prop_flat_map(move |shape| {
        let len = dtype.byte_len(shape.iter().product()).unwrap() as usize;
        (Just(shape), prop::collection::vec(any::<u8>(), len))
    })
}

fn tensors() -> impl Strategy<Value = Tensor<'static>> {
    let dense = prop::sample::select(&DType::ALL[..]).prop_flat_map(|dtype| {
        elements(dtype).prop_map(move |(shape, bytes)| Tensor::from_bytes(shape, dtype, bytes).unwrap())
    });
    let csr = (1u64..6, 1u64..6).prop_flat_map(|(rows, columns)| {
        prop::collection::vec(prop::collection::btree_set(0..columns, 0..=columns as usize), rows as usize)
            .prop_map(move |places| {
                let indices: Vec<u64> = places.iter().flatten().copied().collect();
                let ends = places.iter().scan(0, |end, row| {
                    *end += row.len() as u64;
                    Some(*end)
                });
                let indptr: Vec<u64> = std::iter::once(0).chain(ends).collect();
                let values: Vec<f32> = (0..indices.len()).map(|n| n as f32 + 0.5).collect();
                let part = |role: &'static str, dtype, bytes: &[u8]| {
                    (Role::Borrowed(role), Array::new(dtype, bytes.to_vec()))
                };
                let parts = [
                    part("values", DType::F32, bytemuck::cast_slice(&values)),
                    part("indices", DType::U64, bytemuck::cast_slice(&indices)),
                    part("indptr", DType::U64, bytemuck::cast_slice(&indptr)),
                ];
                Tensor::new(&[rows, columns][..], Layout::SparseCsr, parts, None).unwrap()
            })
    });
    let other = (any::<Vec<u8>>(), "[a-z.]{1,12}", any::<i64>()).prop_map(|(bytes, layout, number)| {
        let attributes = Attributes::from_iter([("n".to_owned(), Value::from(number))]);
        let parts = [(Role::Owned("blob".to_owned()), Array::new(DType::U8, bytes))];
        let layout = Layout::from_name(&format!("x.{layout}"));
        Tensor::new(&[3u64, 0][..], layout, parts, Some(attributes)).unwrap()
    });
    prop_oneof![4 => dense, 1 => csr, 1 => other]
}

fn options() -> impl Strategy<Value = WriteOptions> {
    let compression = prop_oneof![Just(Compression::None), (1..=22i32).prop_map(Compression::Zstd)];
    let checksum = prop::sample::select(&[Checksum::None, Checksum::Crc32c, Checksum::Sha256][..]);
    (compression, checksum).prop_map(|(compression, checksum)| WriteOptions { compression, checksum })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_is_written_is_read(tensors in prop::collection::btree_map(".{0,12}", (tensors(), options()), 0..6)) {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes).unwrap();
        for (name, (tensor, options)) in &tensors {
            writer.write_object_with(name, tensor, *options).unwrap();
        }
        let size = writer.finish().unwrap();
        prop_assert_eq!(size, bytes.len() as u64);
        let reader = Reader::from_bytes(bytes).unwrap();
        prop_assert!(reader.keys().eq(tensors.keys()));
        for (name, (tensor, options)) in &tensors {
            prop_assert_eq!(&reader.read_owned(name).unwrap(), tensor);
            prop_assert_eq!(&reader.read_object(name).unwrap(), tensor);
            let verified = reader.verify(name).unwrap();
            prop_assert_eq!(verified == Verification::NoDigest, options.checksum == Checksum::None);
        }
    }

    #[test]
    fn rows_are_parts_of_the_whole(
        (shape, bytes) in elements(DType::I16),
        compressed in any::<bool>(),
        cut in any::<prop::sample::Index>(),
    ) {
        prop_assume!(!shape.is_empty());
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file).unwrap();
        let tensor = Tensor::from_bytes(&shape[..], DType::I16, &bytes[..]).unwrap();
        let compression = if compressed { Compression::Zstd(1) } else { Compression::None };
        writer.write_object_with("w", &tensor, WriteOptions { compression, ..Default::default() }).unwrap();
        writer.finish().unwrap();
        let reader = Reader::from_bytes(file).unwrap();
        let row = bytes.len().checked_div(shape[0] as usize).unwrap_or(0);
        let start = cut.index(shape[0] as usize + 1) as u64;
        for end in start..=shape[0] {
            let expected = &bytes[start as usize * row..end as usize * row];
            prop_assert_eq!(reader.read_rows("w", start..end).unwrap(), expected);
        }
        prop_assert_eq!(reader.read_rows("w", 0..shape[0] + 1).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}

/// A model of `count` tensors with different contents.
fn model(path: &Path, count: usize, options: WriteOptions) -> Vec<(String, Vec<u8>)> {
    let mut random = conformance::Random(7);
    let tensors: Vec<(String, Vec<u8>)> = (0..count)
        .map(|index| (format!("layer.{index}"), (0..10_000).map(|_| (random.next() % 17) as u8).collect()))
        .collect();
    let objects: Vec<Tensor<'_>> =
        tensors.iter().map(|(_, bytes)| Tensor::from_slice(&[10_000u64][..], bytes).unwrap()).collect();
    let mut writer = Writer::create(path).unwrap();
    let named: Vec<_> =
        tensors.iter().zip(&objects).map(|((name, _), tensor)| (name.as_str(), tensor)).collect();
    writer.write_many(&named, options).unwrap();
    writer.finish().unwrap();
    tensors
}

/// A batch request for a whole model, last tensor first.
fn requests<'a>(
    tensors: &'a [(String, Vec<u8>)],
    buffers: &'a mut [Vec<u8>],
) -> Vec<(&'a str, &'a str, &'a mut [u8])> {
    let pairs = tensors.iter().zip(buffers).rev();
    pairs.map(|((name, _), out)| (name.as_str(), "data", &mut out[..])).collect()
}

#[test]
fn many_threads_read_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.zt");
    let options = WriteOptions { compression: Compression::Zstd(1), checksum: Checksum::Crc32c };
    let tensors = model(&path, 40, options);
    let reader = Reader::open(&path).unwrap();
    std::thread::scope(|scope| {
        for offset in 0..8 {
            let (reader, tensors) = (&reader, &tensors);
            scope.spawn(move || {
                for index in 0..tensors.len() {
                    let (name, bytes) = &tensors[(index + offset * 5) % tensors.len()];
                    assert_eq!(&reader.read(name).unwrap(), bytes);
                }
            });
        }
    });
    let mut buffers = vec![vec![0; 10_000]; tensors.len()];
    reader.read_many(requests(&tensors, &mut buffers), None).unwrap();
    assert!(tensors.iter().zip(&buffers).all(|((_, bytes), buffer)| bytes == buffer));
}

#[test]
fn the_bytes_do_not_depend_on_the_number_of_threads() {
    // Large enough that zstd cuts it into jobs.
    let large: Vec<u8> = (0..40u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 28) as u8).collect();
    let files = [1, 2, 5].map(|threads| {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes).unwrap();
        writer.set_threads(threads);
        let name = |index: usize| format!("small {index}");
        for index in 0..5 {
            let data = &large[index * 1000..][..100_000];
            writer.add_with(&name(index), &[100_000], data).compress(Compression::Zstd(3)).write().unwrap();
        }
        let len = [large.len() as u64];
        writer.add_with("large", &len, &large).compress(Compression::Zstd(1)).write().unwrap();
        writer.finish().unwrap();
        bytes
    });
    assert!(files[0] == files[1] && files[1] == files[2]);
    assert_eq!(Reader::from_bytes(files[2].clone()).unwrap().read("large").unwrap(), large);
}

#[test]
fn a_file_larger_than_memory_is_mapped_and_read_in_part() {
    const LARGE: u64 = 1 << 40;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse.zt");
    // A small file's manifest, moved behind a terabyte that the disk never sees.
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes).unwrap();
    writer.add("small", &[64], &[3u8; 64]).unwrap();
    writer.finish().unwrap();
    let mut manifest = vec![0xa2];
    for text in ["version", "1.2.0", "objects"] {
        manifest.push(0x60 + text.len() as u8);
        manifest.extend_from_slice(text.as_bytes());
    }
    let mut objects = Vec::new();
    minicbor::Encoder::new(&mut objects)
        .map(1)
        .and_then(|e| e.str("w")?.map(3)?.str("shape")?.array(2)?.u64(LARGE >> 20)?.u64(1 << 20))
        .and_then(|e| e.str("format")?.str("dense")?.str("components")?.map(1)?.str("data")?.map(3))
        .and_then(|e| e.str("dtype")?.str("u8")?.str("offset")?.u64(64)?.str("length")?.u64(LARGE))
        .unwrap();
    manifest.extend_from_slice(&objects);
    let file = std::fs::File::create(&path).unwrap();
    if file.set_len(64 + LARGE).is_err() {
        println!("skipped: this file system has no sparse files of a terabyte");
        return;
    }
    common::write_all_at(&file, b"ZTEN1000", 0).unwrap();
    common::write_all_at(&file, b"row 1000", 64 + (1000 << 20)).unwrap();
    common::write_all_at(&file, &manifest, 64 + LARGE).unwrap();
    let footer = [&(manifest.len() as u64).to_le_bytes()[..], b"ZTEN1000"].concat();
    common::write_all_at(&file, &footer, 64 + LARGE + manifest.len() as u64).unwrap();

    let reader = Reader::open_mmap(&path).unwrap();
    assert_eq!(reader.view("w").unwrap().len() as u64, LARGE);
    assert_eq!(&reader.view("w").unwrap()[1000 << 20..][..8], b"row 1000");
    assert_eq!(&reader.read_rows("w", 1000..1001).unwrap()[..8], b"row 1000");
    let source = reader.catalog().sources.get(0).unwrap();
    // Windows charges a copy of every page to memory and page file, and refuses what they cannot hold.
    assert!(source.copy_on_write().is_some() || cfg!(windows), "a copy-on-write mapping needs no swap");
    let limited = OpenOptions::default().max_component(1 << 30).open(&path).unwrap();
    assert_eq!(limited.read("w").unwrap_err().kind(), ErrorKind::Limit);
}

#[test]
fn unaligned_memory_is_read_and_its_views_say_why_not() {
    struct Shifted(Vec<u8>);
    impl AsRef<[u8]> for Shifted {
        fn as_ref(&self) -> &[u8] {
            &self.0[1..]
        }
    }
    let mut bytes = vec![0];
    let mut writer = Writer::new(&mut bytes).unwrap();
    writer.add("w", &[2], &[1.5f64, 2.5]).unwrap();
    writer.finish().unwrap();
    let reader = OpenOptions::default().open_source(Arc::new(MemorySource::new(Shifted(bytes)))).unwrap();
    assert_eq!(reader.read_as::<f64>("w").unwrap(), [1.5, 2.5]);
    let view = reader.view_as::<f64>("w");
    if let Err(error) = view {
        assert!(error.to_string().contains("aligned") && error.to_string().contains("read"), "{error}");
    } else {
        assert_eq!(reader.view("w").unwrap().as_ptr().align_offset(8), 0);
    }
    assert_eq!(reader.read_object("w").unwrap().into_dense::<f64>().unwrap().data, [1.5, 2.5]);
}

#[test]
fn wrong_calls_say_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.zt");
    let mut writer = Writer::create(&path).unwrap();
    writer.add("w", &[2], &[1f32, 2.0]).unwrap();
    let twice = writer.add("w", &[2], &[1f32, 2.0]).unwrap_err();
    assert!(twice.to_string().contains("already"), "{twice}");
    assert_eq!(writer.add("x", &[3], &[1f32]).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let level = writer.add_with("x", &[1], &[1f32]).compress(Compression::Zstd(23)).write().unwrap_err();
    assert!(level.to_string().contains("23"), "{level}");
    assert!(writer.add_csr("s", [1, 1], &[1f32], &[-1i64], &[0u64, 1]).is_err());
    assert_eq!(writer.tie("t", "missing").unwrap_err().kind(), ErrorKind::NotFound);
    writer.finish().unwrap();

    let reader = Reader::open(&path).unwrap();
    assert_eq!(reader.view_as::<f64>("w").unwrap_err().kind(), ErrorKind::InvalidArgument);
    let missing = reader.read("W").unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(missing.to_string().contains("did you mean \"w\"") && missing.to_string().contains("model.zt"));
    assert_eq!(reader.read_into("w", &mut [0; 7]).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let unmapped = OpenOptions::default().map(MapMode::Never).open(&path).unwrap();
    assert_eq!(unmapped.view("w").unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(unmapped.read_as::<f32>("w").unwrap(), [1.0, 2.0]);
}

#[test]
fn flipped_bits_of_checked_tensors_are_noticed() {
    for (compression, checksum) in
        [(Compression::None, Checksum::Crc32c), (Compression::Zstd(3), Checksum::Sha256)]
    {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes).unwrap();
        let data: Vec<f32> = (0..1000).map(|n| (n % 10) as f32).collect();
        writer.add_with("w", &[1000], &data).compress(compression).checksum(checksum).write().unwrap();
        writer.finish().unwrap();
        let extent =
            Reader::from_bytes(bytes.clone()).unwrap().get("w").unwrap().require("data").unwrap().extent();
        let extent = extent.unwrap();
        for at in (extent.offset..extent.offset + extent.len).step_by(7) {
            let mut bytes = bytes.clone();
            bytes[at as usize] ^= 4;
            let reader = Reader::from_bytes(bytes).unwrap();
            assert_eq!(reader.read("w").unwrap_err().kind(), ErrorKind::Mismatch);
            assert_eq!(reader.verify("w").unwrap_err().kind(), ErrorKind::Mismatch);
            assert_eq!(reader.verify_all(None).unwrap_err().kind(), ErrorKind::Mismatch);
        }
    }
}

#[cfg(unix)]
#[test]
fn things_that_are_not_files_are_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("empty.zt"), b"").unwrap();
    let empty = Reader::open(path("empty.zt")).unwrap_err();
    assert!(empty.to_string().contains("empty"), "{empty}");
    assert!(Reader::from_bytes(Vec::new()).is_err());
    assert_eq!(Reader::open(path("missing.zt")).unwrap_err().kind(), ErrorKind::Io);
    std::os::unix::fs::symlink(path("loop.zt"), path("loop.zt")).unwrap();
    assert_eq!(Reader::open(path("loop.zt")).unwrap_err().kind(), ErrorKind::Io);
    let fifo = path("pipe.zt");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    assert_eq!(Reader::open(&fifo).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(Reader::open("/dev/zero").unwrap_err().kind(), ErrorKind::InvalidArgument);
    std::fs::write(path("text.zt"), b"just some text").unwrap();
    let text = Reader::open(path("text.zt")).unwrap_err();
    assert!(text.to_string().contains("text file") && text.to_string().contains("text.zt"), "{text}");
}

#[cfg(unix)]
#[test]
fn an_unfinished_file_never_appears() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.zt");
    std::fs::write(&path, b"the old one").unwrap();
    let mut writer = Writer::create(&path).unwrap();
    writer.add("w", &[1], &[1u8]).unwrap();
    drop(writer);
    assert_eq!(std::fs::read(&path).unwrap(), b"the old one");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left behind");

    // A symlink is followed, and the mode of the file it names is kept.
    let link = folder.path().join("link.zt");
    std::os::unix::fs::symlink("model.zt", &link).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
    Writer::create_durable(&link).unwrap().finish().unwrap();
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o640);
    assert!(Reader::open(&path).unwrap().is_empty());
}

#[test]
fn an_observer_sees_every_byte_and_can_stop() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.zt");
    let tensors = model(&path, 8, WriteOptions::default());
    let reader = Reader::open(&path).unwrap();
    let seen = std::sync::atomic::AtomicU64::new(0);
    let mut buffers = vec![vec![0; 10_000]; tensors.len()];
    let watch = |bytes| {
        seen.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
        true
    };
    reader.read_many(requests(&tensors, &mut buffers), Some(&watch)).unwrap();
    assert_eq!(seen.into_inner(), 80_000);
    assert_eq!(
        reader.read_many(requests(&tensors, &mut buffers), Some(&|_| false)).unwrap_err().kind(),
        ErrorKind::Cancelled
    );
}

#[test]
fn tied_tensors_are_stored_once_and_equal_ones_are_not_tied() {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes).unwrap();
    writer.add("a", &[64], &[1u8; 64]).unwrap();
    writer.add("equal", &[64], &[1u8; 64]).unwrap();
    writer.tie("tied", "a").unwrap();
    writer.finish().unwrap();
    let reader = Reader::from_bytes(bytes).unwrap();
    let extent = |name: &str| reader.get(name).unwrap().require("data").unwrap().extent().unwrap();
    assert_eq!(extent("a"), extent("tied"));
    assert_ne!(extent("a"), extent("equal"));
}

/// A sink that changes the mapped file at `path` before each write: what another thread that uses
/// an array while it is saved would do, at the worst moments.
struct Meddling<'a> {
    out: &'a mut Vec<u8>,
    file: std::fs::File,
    len: usize,
    round: u8,
}

impl std::io::Write for Meddling<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.round += 1;
        common::write_all_at(&self.file, &vec![self.round; self.len], 0)?;
        self.out.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Memory of `len` bytes that `Meddling` changes.
fn changing(folder: &Path, len: usize) -> (ztensor::source::FileSource, std::fs::File) {
    let path = folder.join("memory");
    std::fs::write(&path, vec![0; len]).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    (ztensor::source::FileSource::open(&path, MapMode::Auto).unwrap(), file)
}

#[test]
fn memory_that_changes_while_it_is_saved_matches_its_checksum() {
    use ztensor::source::Source;
    let dir = tempfile::tempdir().unwrap();
    for len in [3 << 19, 5 << 20] {
        for checksum in [Checksum::Crc32c, Checksum::Sha256] {
            let (source, file) = changing(dir.path(), len);
            let mut out = Vec::new();
            let sink = Meddling { out: &mut out, file, len, round: 0 };
            let mut writer = Writer::new(sink).unwrap();
            let data = source.mapped().unwrap();
            writer.add_with("w", &[len as u64], data).checksum(checksum).write().unwrap();
            writer.finish().unwrap();
            let saved = Reader::from_bytes(out).unwrap().read("w").unwrap();
            assert!(saved.iter().any(|byte| *byte != 0), "nothing was changed while it was saved");
        }
    }
}

#[test]
fn archives_of_memory_that_changes_are_whole_or_refused() {
    use ztensor::export::{ExportFormat, ExportOptions, TensorList, export_to};
    use ztensor::source::Source;
    let dir = tempfile::tempdir().unwrap();
    let len = 3 << 20;
    for deflate in [None, Some(1)] {
        let (source, file) = changing(dir.path(), len);
        let mut out = Vec::new();
        let data = Array::from_slice(source.mapped().unwrap());
        let tensor =
            Tensor::new([len as u64].as_slice(), Layout::Dense, [(Role::Borrowed("data"), data)], None);
        let list = TensorList { tensors: vec![("w".into(), tensor.unwrap())], ..TensorList::default() };
        let mut sink = Meddling { out: &mut out, file, len, round: 0 };
        let options = ExportOptions::default().deflate(deflate);
        match export_to(&list, &mut sink, ExportFormat::Npz, &options) {
            Ok(()) => drop(Reader::from_bytes(out).unwrap().read("w").unwrap()),
            Err(error) => assert!(error.to_string().contains("changed while it was written"), "{error}"),
        }
    }
}

#[test]
fn large_raw_tensors_with_checksums_are_read_in_pieces_and_damage_is_found_in_each() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.zt");
    // More than two pieces of 4 MiB, and a shorter last one.
    let data: Vec<u8> = (0..(9 << 20) + 17).map(|n: usize| ((n * 7) >> 3) as u8).collect();
    let mut writer = Writer::create(&path).unwrap();
    writer.add_with("x", &[data.len() as u64], &data).checksum(Checksum::Crc32c).write().unwrap();
    writer.finish().unwrap();
    assert_eq!(ztensor::open(&path).unwrap().read("x").unwrap(), data);

    let bytes = std::fs::read(&path).unwrap();
    for damaged in [100, 4 << 20, (5 << 20) + 1, (9 << 20) + 16] {
        let mut bytes = bytes.clone();
        bytes[64 + damaged] ^= 1;
        let reader = ztensor::Reader::from_bytes(bytes).unwrap();
        assert_eq!(reader.read("x").unwrap_err().kind(), ErrorKind::Mismatch, "byte {damaged}");
    }
}

#[test]
fn compressed_tensors_with_checksums_are_hashed_and_decoded_from_one_read() {
    let data: Vec<f32> = (0..300_000).map(|n| (n as f32).sin()).collect();
    for compression in [Compression::Zstd(3), Compression::Z4ai(ztensor::Effort::Fast)] {
        for map in [MapMode::Auto, MapMode::Never] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("packed.zt");
            let mut writer = Writer::create(&path).unwrap();
            let add = writer.add_with("x", &[data.len() as u64], &data);
            add.compress(compression).checksum(Checksum::Sha256).write().unwrap();
            writer.finish().unwrap();
            let open = || ztensor::OpenOptions::default().map(map).open(&path).unwrap();
            assert_eq!(open().read_as::<f32>("x").unwrap(), data);

            let mut bytes = std::fs::read(&path).unwrap();
            bytes[64 + 1000] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(open().read_as::<f32>("x").unwrap_err().kind(), ErrorKind::Mismatch);
        }
    }
}
