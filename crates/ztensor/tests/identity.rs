//! Content ids of files: the same through every format, layout of the file and number of threads.

mod common;

#[cfg(feature = "remote")]
#[path = "remote/server.rs"]
#[allow(dead_code, reason = "tests of remote files use all of it")]
mod server;

use std::borrow::Cow;
use std::path::Path;

use common::fixtures;
use proptest::prelude::*;
use ztensor::catalog::Storage;
use ztensor::export::{ExportFormat, ExportOptions, TensorList, export};
use ztensor::id::{Evidence, model_id, object_id, tensor_id};
use ztensor::source::MapMode;
use ztensor::{
    Array, Attributes, Checksum, Compression, DType, Effort, Layout, OpenOptions, Reader, Tensor, Value,
    WriteOptions, Writer,
};

/// Bytes that compress a little.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    (0..len)
        .map(|n| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            if n % 2 == 0 { state as u8 } else { (state % 5) as u8 + 60 }
        })
        .collect()
}

fn dense(dtype: DType, shape: &[u64], seed: u64) -> Tensor<'static> {
    let len = dtype.byte_len(shape.iter().product()).unwrap() as usize;
    let mut bytes = noise(len, seed);
    if dtype == DType::Bool {
        bytes.iter_mut().for_each(|byte| *byte &= 1);
    }
    Tensor::from_bytes(shape, dtype, bytes).unwrap()
}

/// A model that every format holds that holds these types.
fn model(types: &[DType]) -> Vec<(String, Tensor<'static>)> {
    let mut tensors = Vec::new();
    for (index, &dtype) in types.iter().enumerate() {
        for (number, shape) in [&[3u64, 4][..], &[7], &[2, 3, 4]].into_iter().enumerate() {
            tensors.push((format!("layers.{index}.{number}"), dense(dtype, shape, index as u64 * 9 + 1)));
        }
    }
    // Longer than a piece of every kind, and none a multiple of any.
    tensors.push(("long".to_owned(), dense(types[0], &[3, 700_001], 5)));
    tensors.push(("longer".to_owned(), dense(types[0], &[5_000_001], 6)));
    tensors
}

fn expected(tensors: &[(String, Tensor<'_>)]) -> ztensor::ContentId {
    model_id(tensors.iter().map(|(name, tensor)| (name, object_id(tensor).unwrap())))
}

fn write_zt(path: &Path, tensors: &[(String, Tensor<'_>)], options: WriteOptions) {
    let mut writer = Writer::create(path).unwrap();
    writer.set_attribute("made by", "a test");
    for (name, tensor) in tensors {
        writer.write_object_with(name, tensor, options).unwrap();
    }
    writer.finish().unwrap();
}

/// The id of a file by every way of reading it.
fn id(path: &Path) -> ztensor::ContentId {
    let ids: Vec<_> = [(1, MapMode::Auto), (3, MapMode::Auto), (1, MapMode::Never), (3, MapMode::Never)]
        .into_iter()
        .map(|(threads, mode)| {
            let reader = OpenOptions::default().threads(threads).map(mode).open(path).unwrap();
            let ids = reader.content_ids(Evidence::Bytes, None).unwrap();
            assert_eq!(ids.tensors.len(), reader.len());
            assert_eq!(model_id(ids.tensors.iter().map(|(name, id)| (name, *id))), ids.model);
            ids.model
        })
        .collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    ids[0]
}

const COMMON: [DType; 9] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::I64,
    DType::I32,
    DType::I16,
    DType::I8,
    DType::U8,
    DType::Bool,
];

#[test]
fn a_model_has_one_id_in_every_format() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let tensors = model(&COMMON);
    let id_of_model = expected(&tensors);
    let options = |compression, checksum| WriteOptions { compression, checksum };
    let all = [
        ("raw.zt", options(Compression::None, Checksum::None)),
        ("crc.zt", options(Compression::None, Checksum::Crc32c)),
        ("zstd.zt", options(Compression::Zstd(1), Checksum::Sha256)),
        ("z4ai.zt", options(Compression::Z4ai(Effort::Fast), Checksum::None)),
    ];
    for (name, options) in all {
        write_zt(&path(name), &tensors, options);
        assert_eq!(id(&path(name)), id_of_model, "{name}");
    }
    let attributes: Attributes = [("note".to_owned(), Value::from("x"))].into_iter().collect();
    let mut reversed = tensors.clone();
    reversed.reverse();
    let source = TensorList { tensors: reversed, attributes };
    let formats = [
        ("m.safetensors", ExportFormat::Safetensors, None),
        ("m.zstn", ExportFormat::Zstn, None),
        ("m.npz", ExportFormat::Npz, None),
        ("deflated.npz", ExportFormat::Npz, Some(1)),
    ];
    for (name, format, deflate) in formats {
        let options = ExportOptions::default().deflate(deflate).drop_attributes(true);
        export(&source, path(name), format, &options).unwrap();
        assert_eq!(id(&path(name)), id_of_model, "{name}");
    }
    // GGUF has fewer types.
    let types =
        [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I64, DType::I32, DType::I16, DType::I8];
    let tensors = model(&types);
    let source = TensorList { tensors: tensors.clone(), attributes: Attributes::new() };
    export(&source, path("m.gguf"), ExportFormat::Gguf, &ExportOptions::default()).unwrap();
    export(&source, path("b.safetensors"), ExportFormat::Safetensors, &ExportOptions::default()).unwrap();
    assert_eq!(id(&path("m.gguf")), expected(&tensors));
    assert_eq!(id(&path("b.safetensors")), expected(&tensors));
}

#[test]
fn shards_are_one_model() {
    let folder = tempfile::tempdir().unwrap();
    let tensors = model(&[DType::F32, DType::BF16]);
    let whole = expected(&tensors);
    for (extension, format) in [("safetensors", ExportFormat::Safetensors), ("zstn", ExportFormat::Zstn)] {
        let place = folder.path().join(extension);
        std::fs::create_dir(&place).unwrap();
        for (index, part) in tensors.chunks(tensors.len().div_ceil(3)).enumerate() {
            let name = format!("model-{:05}-of-00003.{extension}", index + 1);
            let source = TensorList { tensors: part.to_vec(), attributes: Attributes::new() };
            export(&source, place.join(name), format, &ExportOptions::default()).unwrap();
        }
        assert_eq!(id(&place), whole, "{extension}");
    }
    let place = folder.path().join("zt");
    std::fs::create_dir(&place).unwrap();
    for (index, part) in tensors.chunks(tensors.len().div_ceil(2)).enumerate() {
        let compression = if index == 0 { Compression::Zstd(1) } else { Compression::Z4ai(Effort::Fast) };
        let options = WriteOptions { compression, checksum: Checksum::None };
        write_zt(&place.join(format!("model-{:05}-of-00002.zt", index + 1)), part, options);
    }
    assert_eq!(id(&place), whole);
}

#[test]
fn ties_are_names_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let (tied, apart) = (folder.path().join("tied.zt"), folder.path().join("apart.zt"));
    let weights: Vec<f32> = (0..1000).map(|n| n as f32).collect();
    let mut writer = Writer::create(&tied).unwrap();
    writer.add("a", &[1000], &weights).unwrap();
    writer.tie("b", "a").unwrap();
    writer.finish().unwrap();
    let mut writer = Writer::create(&apart).unwrap();
    writer.add("a", &[1000], &weights).unwrap();
    writer.add("b", &[1000], &weights).unwrap();
    writer.finish().unwrap();
    assert_eq!(id(&tied), id(&apart));
    let reader = Reader::open(&tied).unwrap();
    assert_eq!(reader.tensor_content_id("a").unwrap(), reader.tensor_content_id("b").unwrap());
    assert_ne!(reader.content_id().unwrap(), model_id([("a", reader.tensor_content_id("a").unwrap())]));
    assert!(reader.tensor_content_id("c").is_err());
}

#[test]
fn packed_elements_that_are_tied_keep_their_shapes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.zt");
    let tensors: Vec<(String, Tensor<'_>)> = [3u64, 4]
        .into_iter()
        .map(|count| {
            (format!("t{count}"), Tensor::from_bytes(&[count][..], DType::U4, vec![0x21, 0xf3]).unwrap())
        })
        .collect();
    write_zt(&path, &tensors, WriteOptions::default());
    assert_eq!(id(&path), expected(&tensors));
    let reader = Reader::open(&path).unwrap();
    assert_eq!(
        reader.tensor_content_id("t3").unwrap(),
        tensor_id(DType::U4, &[3], &[0x21, 0x03]).unwrap(),
        "bits behind the last element"
    );
}

#[test]
fn every_sample_of_every_format_has_the_ids_of_its_tensors_in_memory() {
    let mut seen = 0;
    for format in ["gguf", "hdf5", "npz", "onnx", "pickle", "safetensors", "zstn", "zt"] {
        for entry in std::fs::read_dir(fixtures::folder(format)).unwrap() {
            let path = entry.unwrap().path();
            let Ok(reader) = Reader::open(&path) else { continue };
            for (name, _) in reader.objects() {
                let Ok(tensor) = reader.read_owned(name) else { continue };
                let what = format!("{} {name}", path.display());
                match (object_id(&tensor), reader.tensor_content_id(name)) {
                    (Ok(one), Ok(other)) => assert_eq!(one, other, "{what}"),
                    // What has no id in memory has none in a file.
                    (Err(one), Err(other)) => assert_eq!(one.rule(), other.rule(), "{what}"),
                    (one, other) => panic!("{what}: {one:?} {other:?}"),
                }
                seen += 1;
            }
        }
    }
    assert!(seen > 300, "{seen}");
}

#[test]
fn no_sample_holds_what_its_format_cannot() {
    let mut seen = std::collections::BTreeSet::new();
    let mut sequential = std::collections::BTreeSet::new();
    for folder in ["gguf", "hdf5", "npz", "onnx", "pickle", "safetensors", "zstn", "zt"] {
        for entry in std::fs::read_dir(fixtures::folder(folder)).unwrap() {
            let path = entry.unwrap().path();
            let Ok(reader) = Reader::open(&path) else { continue };
            let (format, what) = (reader.format(), path.display());
            let can = format.capabilities();
            seen.insert(format.name());
            if !reader.attributes().is_empty() {
                assert_ne!(can.metadata, ztensor::format::Metadata::None, "{what}");
            }
            for (name, object) in reader.objects() {
                let sparse = matches!(object.layout, Layout::SparseCsr | Layout::SparseCoo);
                assert!(can.sparse || !sparse, "{what} {name}");
                let quantized =
                    object.layout == Layout::QuantizedGroup || object.component("blocks").is_some();
                assert!(can.quantized || !quantized, "{what} {name}");
                for (_, component) in &object.components {
                    for encoding in ["zstd", "z4ai", "deflate", "lzf"] {
                        let used = component.encoding().split('+').any(|one| one == encoding);
                        assert!(!used || can.encodings.contains(&encoding), "{what} {name}: {encoding}");
                    }
                    let (end, encoding) = (component.len, component.encoding());
                    if let Storage::Encoded(decoder) = &component.storage
                        && can.sequential.contains(&encoding)
                        && end > 0
                    {
                        // The last byte costs all of them.
                        assert!(decoder.work(&(end - 1..end)) >= end, "{what} {name}: {encoding}");
                        sequential.insert((format.name(), encoding.to_owned()));
                    }
                    let digest = component.digest.as_ref().map(ToString::to_string).unwrap_or_default();
                    let kind = digest.split(':').next().unwrap_or_default();
                    assert!(kind.is_empty() || can.checksums.contains(&kind), "{what} {name}: {digest}");
                }
            }
        }
    }
    assert_eq!(seen.len(), 8, "{seen:?}");
    for (format, encoding) in [("zt", "zstd"), ("npz", "deflate"), ("onnx", "protobuf")] {
        assert!(sequential.contains(&(format, encoding.to_owned())), "{sequential:?}");
    }
}

#[test]
fn sparse_and_quantized_tensors_have_one_id_in_memory_and_in_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.zt");
    let array = |dtype, bytes: Vec<u8>| Array::new(dtype, bytes);
    let u64s = |numbers: &[u64]| array(DType::U64, numbers.iter().flat_map(|n| n.to_le_bytes()).collect());
    let csr = [
        (Cow::Borrowed("values"), array(DType::F32, noise(12, 1))),
        (Cow::Borrowed("indices"), u64s(&[3, 1, 2])),
        (Cow::Borrowed("indptr"), u64s(&[0, 2, 2, 3])),
    ];
    let blocks = [(Cow::Borrowed("blocks"), array(DType::U8, noise(18 * 100, 2)))];
    let attributes: Attributes = [("ggml_type".to_owned(), Value::from(2i64))].into_iter().collect();
    let tensors = vec![
        ("csr".to_owned(), Tensor::new(&[3u64, 4][..], Layout::SparseCsr, csr, None).unwrap()),
        (
            "q4".to_owned(),
            Tensor::new(&[100u64, 32][..], Layout::from_name("gguf.q4_0"), blocks, Some(attributes)).unwrap(),
        ),
    ];
    write_zt(&path, &tensors, WriteOptions { compression: Compression::Zstd(3), checksum: Checksum::Crc32c });
    assert_eq!(id(&path), expected(&tensors));
    // The same blocks in a GGUF file.
    let source = TensorList { tensors: tensors[1..].to_vec(), attributes: Attributes::new() };
    let gguf = folder.path().join("m.gguf");
    export(&source, &gguf, ExportFormat::Gguf, &ExportOptions::default()).unwrap();
    assert_eq!(
        Reader::open(&gguf).unwrap().tensor_content_id("q4").unwrap(),
        Reader::open(&path).unwrap().tensor_content_id("q4").unwrap()
    );
}

#[test]
fn stored_digests_are_evidence_on_request_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.zt");
    let tensors = model(&[DType::F32]);
    let options = WriteOptions { compression: Compression::None, checksum: Checksum::Blake3 };
    write_zt(&path, &tensors, options);
    let whole = id(&path);
    let stored =
        |path: &Path| Reader::open(path).unwrap().content_ids(Evidence::StoredDigests, None).unwrap().model;
    assert_eq!(stored(&path), whole);
    let reader = Reader::open(&path).unwrap();
    assert_eq!(reader.verify_all(None).unwrap().checked, tensors.len() as u64);
    let place = reader.get("long").unwrap().components[0].1.extent().unwrap();
    drop(reader);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[place.offset as usize + 100] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(stored(&path), whole, "the file says that it holds the same");
    assert_ne!(id(&path), whole, "it does not");
    assert!(Reader::open(&path).unwrap().verify("long").is_err());
    // The digest of a compressed tensor covers the frame, and says nothing about its content.
    let packed = folder.path().join("packed.zt");
    write_zt(&packed, &tensors, WriteOptions { compression: Compression::Zstd(1), ..options });
    assert_eq!(stored(&packed), whole);
}

#[test]
fn what_has_no_id_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.safetensors");
    let header = r#"{"flag":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(&[1, 2]);
    std::fs::write(&path, bytes).unwrap();
    let error = Reader::open(&path).unwrap().content_id().unwrap_err();
    assert_eq!(error.rule(), Some("bool.value"));
    assert!(error.to_string().contains("flag"), "{error}");
    // What exceeds the limits is not decoded.
    let zt = folder.path().join("m.zt");
    write_zt(
        &zt,
        &model(&[DType::F32]),
        WriteOptions { compression: Compression::Zstd(1), checksum: Checksum::None },
    );
    let limited = OpenOptions::default().max_total(1000).open(&zt).unwrap();
    assert_eq!(limited.content_id().unwrap_err().kind(), ztensor::ErrorKind::Limit);
    // And a call can be cancelled.
    let reader = Reader::open(&zt).unwrap();
    let stopped = reader.content_ids(Evidence::Bytes, Some(&|_: u64| false)).unwrap_err();
    assert_eq!(stopped.kind(), ztensor::ErrorKind::Cancelled);
    let seen = std::sync::atomic::AtomicU64::new(0);
    let watch = |bytes: u64| seen.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed) < u64::MAX;
    reader.content_ids(Evidence::Bytes, Some(&watch)).unwrap();
    let total: u64 = reader.objects().map(|(_, object)| object.byte_len()).sum();
    assert_eq!(seen.into_inner(), total);
}

#[test]
fn damaged_frames_have_no_id() {
    let folder = tempfile::tempdir().unwrap();
    for (name, compression) in
        [("zstd.zt", Compression::Zstd(1)), ("z4ai.zt", Compression::Z4ai(Effort::Fast))]
    {
        let path = folder.path().join(name);
        write_zt(&path, &model(&[DType::F32]), WriteOptions { compression, checksum: Checksum::None });
        let place = Reader::open(&path).unwrap().get("longer").unwrap().components[0].1.extent().unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        let end = (place.offset + place.len) as usize;
        bytes[end - place.len as usize / 2..end].fill(0x5a);
        std::fs::write(&path, bytes).unwrap();
        let error = Reader::open(&path).unwrap().content_id().unwrap_err();
        assert!(error.to_string().contains("longer"), "{name}: {error}");
    }
}

#[test]
fn the_base_of_a_model_delta_is_known_by_its_id() {
    use ztensor::delta::{ApplyOptions, MakeOptions, apply, apply_chain, apply_in_place, make};
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let tensors = model(&[DType::F32]);
    write_zt(&path("base.zt"), &tensors, WriteOptions::default());
    write_zt(&path("tuned.zt"), &tensors[1..], WriteOptions::default());
    write_zt(&path("last.zt"), &tensors[2..], WriteOptions::default());
    make(path("base.zt"), path("tuned.zt"), path("1.z4dm"), &MakeOptions::default()).unwrap();
    make(path("tuned.zt"), path("last.zt"), path("2.z4dm"), &MakeOptions::default()).unwrap();
    let with = |id| ApplyOptions { base_id: Some(id), ..ApplyOptions::default() };
    let (right, wrong) = (expected(&tensors), expected(&tensors[1..]));
    apply(path("base.zt"), path("1.z4dm"), path("out.zt"), &with(right)).unwrap();
    let error = apply(path("base.zt"), path("1.z4dm"), path("no.zt"), &with(wrong)).unwrap_err();
    assert_eq!(error.kind(), ztensor::ErrorKind::Mismatch);
    assert!(error.to_string().contains(&right.to_string()) && !path("no.zt").exists());
    // Of a chain, the id is that of the first base.
    let deltas = [path("1.z4dm"), path("2.z4dm")];
    apply_chain(path("base.zt"), &deltas, path("last2.zt"), &with(right)).unwrap();
    assert_eq!(id(&path("last2.zt")), expected(&tensors[2..]));
    apply_in_place(path("base.zt"), path("1.z4dm"), &with(wrong)).unwrap_err();
    apply_in_place(path("base.zt"), path("1.z4dm"), &with(right)).unwrap();
    assert_eq!(id(&path("base.zt")), wrong);
}

#[cfg(feature = "remote")]
#[test]
fn remote_files_have_the_same_id() {
    let folder = tempfile::tempdir().unwrap();
    let server = server::Server::start();
    let mut tensors = model(&[DType::F32, DType::BF16]);
    for number in 0..600 {
        tensors.push((format!("small.{number}"), dense(DType::F16, &[16], number + 1)));
    }
    let whole = expected(&tensors);
    for compression in [Compression::None, Compression::Zstd(1), Compression::Z4ai(Effort::Fast)] {
        let path = folder.path().join("m.zt");
        write_zt(&path, &tensors, WriteOptions { compression, checksum: Checksum::None });
        let url = server.put("m.zt", &std::fs::read(&path).unwrap(), Some("1"));
        server.requests();
        let reader = OpenOptions::default().threads(2).open(&url).unwrap();
        assert_eq!(reader.content_id().unwrap(), whole, "{compression:?}");
        let requests = server.requests().len();
        assert!(requests < 200, "{compression:?}: {requests} requests for 600 small tensors");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn any_tensor_has_the_id_of_its_bytes(
        dtype in prop::sample::select(&DType::ALL[..]),
        shape in prop::collection::vec(0u64..6, 0..4),
        seed in any::<u64>(),
        compression in prop::sample::select(&[Compression::None, Compression::Zstd(1), Compression::Z4ai(Effort::Fast)][..]),
    ) {
        let tensor = dense(dtype, &shape, seed);
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes).unwrap();
        writer.write_object_with("t", &tensor, WriteOptions { compression, checksum: Checksum::None }).unwrap();
        writer.finish().unwrap();
        let reader = Reader::from_bytes(bytes).unwrap();
        let data = &tensor.component("data").unwrap().bytes;
        prop_assert_eq!(reader.tensor_content_id("t").unwrap(), tensor_id(dtype, &shape, data).unwrap());
    }
}
