//! Writing other formats: what is written reads back the same, equals what the
//! format's own library writes, and what cannot be written is refused by name.

mod common;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use common::fixtures;
use proptest::prelude::*;
use safetensors::tensor::{Dtype, TensorView};
use ztensor::export::{ExportFormat, ExportOptions, ExportSource, TensorList, export, export_to};
use ztensor::source::MemorySource;
use ztensor::zstn::{self, PackOptions};
use ztensor::{Attributes, DType, Effort, ErrorKind, Layout, Object, Reader, Result, Tensor, Value};

fn exported(source: &dyn ExportSource, format: ExportFormat, options: &ExportOptions<'_>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    export_to(source, &mut bytes, format, options)?;
    Ok(bytes)
}

/// A dense tensor of that type with bytes made from `seed`.
fn tensor(dtype: DType, shape: &[u64], seed: u8) -> Tensor<'static> {
    let len = dtype.byte_len(shape.iter().product()).unwrap();
    let bytes: Vec<u8> = (0..len).map(|n| (n as u8).wrapping_mul(31).wrapping_add(seed)).collect();
    Tensor::from_bytes(shape, dtype, bytes).unwrap()
}

fn list(tensors: Vec<(String, Tensor<'static>)>, attributes: &[(&str, &str)]) -> TensorList<'static> {
    let attributes = attributes.iter().map(|(key, value)| (key.to_string(), Value::from(*value))).collect();
    TensorList { tensors, attributes }
}

fn types(format: ExportFormat) -> Vec<DType> {
    let numpy = |dtype: DType| dtype.numpy_name().is_some_and(|name| name.starts_with(['<', '|']));
    DType::ALL
        .into_iter()
        .filter(|dtype| match format {
            ExportFormat::Safetensors => dtype.safetensors_name().is_some(),
            _ => numpy(*dtype),
        })
        .collect()
}

fn tensors(format: ExportFormat) -> impl Strategy<Value = Vec<(String, Tensor<'static>)>> {
    let shape = prop::collection::vec(0u64..5, 0..4);
    let dtype = prop::sample::select(types(format));
    let one = (dtype, shape, any::<u8>()).prop_map(|(dtype, mut shape, seed)| {
        if dtype.size().is_none() {
            shape.push(4); // packed elements fill whole bytes
        }
        tensor(dtype, &shape, seed)
    });
    prop::collection::hash_map("[a-z層é .\"\\\\]{1,6}", one, 0..6).prop_map(|map| {
        let mut tensors: Vec<_> = map.into_iter().filter(|(name, _)| !name.contains("..")).collect();
        tensors.retain(|(name, _)| !name.starts_with('\\'));
        tensors
    })
}

fn same(reader: &Reader, source: &TensorList<'_>) {
    assert_eq!(reader.len(), source.tensors.len());
    for (name, tensor) in &source.tensors {
        assert_eq!(&reader.read_owned(name).unwrap(), tensor, "{name}");
    }
}

proptest! {
    #[test]
    fn safetensors_read_back_the_same_and_equal_the_librarys(
        tensors in tensors(ExportFormat::Safetensors),
        note in prop::option::of(any::<String>()),
    ) {
        let attributes: Vec<_> = note.iter().map(|note| ("note", &**note)).collect();
        let source = list(tensors, &attributes);
        let bytes = exported(&source, ExportFormat::Safetensors, &ExportOptions::default()).unwrap();
        let reader = Reader::from_bytes(bytes.clone()).unwrap();
        same(&reader, &source);
        prop_assert_eq!(reader.attributes(), &source.attributes);
        for (name, tensor) in &source.tensors {
            let offset = reader.get(name).unwrap().components[0].1.extent().unwrap().offset;
            prop_assert_eq!(offset % tensor.dtype().unwrap().alignment() as u64, 0, "{}", name);
        }
        let views = source.tensors.iter().map(|(name, tensor)| {
            let dtype: Dtype =
                serde_json::from_value(tensor.dtype().unwrap().safetensors_name().unwrap().into()).unwrap();
            let shape = tensor.shape.iter().map(|n| *n as usize).collect();
            (name, TensorView::new(dtype, shape, &tensor.component("data").unwrap().bytes).unwrap())
        });
        let metadata = note.map(|note| HashMap::from([("note".to_owned(), note)]));
        prop_assert!(bytes == safetensors::serialize(views, metadata).unwrap());
    }

    #[test]
    fn npz_read_back_the_same(tensors in tensors(ExportFormat::Npz), deflate in prop::option::of(1u32..=9)) {
        let source = list(tensors, &[]);
        let bytes = exported(&source, ExportFormat::Npz, &ExportOptions::default().deflate(deflate)).unwrap();
        if bytes.starts_with(b"PK\x05") {
            return Ok(()); // nothing in it to know it by
        }
        let reader = Reader::from_bytes(bytes).unwrap();
        same(&reader, &source);
        for (name, _) in &source.tensors {
            match deflate {
                None => {
                    let extent = reader.get(name).unwrap().components[0].1.extent().unwrap();
                    prop_assert_eq!(extent.offset % 64, 0, "{}", name);
                    reader.view(name).unwrap();
                }
                Some(_) => prop_assert_eq!(reader.get(name).unwrap().components[0].1.encoding(), "deflate"),
            }
        }
    }
}

proptest! {
    #[test]
    fn a_packed_file_is_what_packing_a_safetensors_file_gives(
        tensors in tensors(ExportFormat::Safetensors),
        effort in prop::sample::select(Effort::all().collect::<Vec<_>>()),
        tied in any::<bool>(),
    ) {
        let mut tensors = tensors;
        if let Some((_, first)) = tensors.first().filter(|_| tied) {
            let copy = first.clone();
            tensors.push(("another name of the first".to_owned(), copy));
        }
        let source = list(tensors, &[("note", "packed")]);
        let options = ExportOptions::default().effort(effort, None).threads(2);
        let packed = exported(&source, ExportFormat::Zstn, &options).unwrap();
        let plain = exported(&source, ExportFormat::Safetensors, &ExportOptions::default()).unwrap();
        let mut expected = Vec::new();
        let pack = PackOptions { effort, ..PackOptions::default() };
        zstn::pack_source(Arc::new(MemorySource::new(plain)), &mut expected, &pack).unwrap();
        prop_assert!(packed == expected);
        same(&Reader::from_bytes(packed).unwrap(), &source);
    }
}

#[test]
fn arrays_equal_numpys_byte_for_byte() {
    for name in ["c.npy", "scalar.npy"] {
        let bytes = fixtures::bytes("npz", name);
        let reader = Reader::from_bytes(bytes.clone()).unwrap();
        assert!(exported(&reader, ExportFormat::Npy, &ExportOptions::default()).unwrap() == bytes, "{name}");
    }
}

#[test]
fn every_numpy_sample_survives_a_round_trip() {
    let expected: serde_json::Value =
        serde_json::from_slice(&fixtures::bytes("npz", "expected.json")).unwrap();
    for (file, tensors) in expected.as_object().unwrap() {
        let reader = Reader::open(fixtures::folder("npz").join(file)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("again.npz");
        export(&reader, &path, ExportFormat::Npz, &ExportOptions::default()).unwrap();
        fixtures::compare(&Reader::open(&path).unwrap(), tensors, file);
    }
}

/// A source whose second tensor cannot be read.
struct Failing(TensorList<'static>);

impl ExportSource for Failing {
    fn objects(&self) -> Vec<(&str, Cow<'_, Object>)> {
        self.0.objects()
    }

    fn attributes(&self) -> &Attributes {
        ExportSource::attributes(&self.0)
    }

    fn fetch(&self, index: usize) -> Result<Tensor<'_>> {
        match index {
            0 => self.0.fetch(0),
            _ => Err(ztensor::Error::corrupt("test.broken", "it is broken")),
        }
    }
}

#[test]
fn a_failed_export_leaves_the_old_file_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let two =
        vec![("a".to_owned(), tensor(DType::F32, &[2], 1)), ("b".to_owned(), tensor(DType::F32, &[2], 2))];
    let failing = Failing(list(two, &[]));
    for format in [ExportFormat::Safetensors, ExportFormat::Npz] {
        let path = folder.path().join("out").with_extension(format.name());
        std::fs::write(&path, "old").unwrap();
        let error = export(&failing, &path, format, &ExportOptions::default()).unwrap_err();
        assert_eq!((error.rule(), error.tensor()), (Some("test.broken"), Some("b")));
        let stop = |_: u64| false;
        let options = ExportOptions::default().observer(Some(&stop));
        assert_eq!(export(&failing.0, &path, format, &options).unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

#[test]
fn what_a_target_cannot_hold_is_refused_by_name() {
    use ExportFormat::{Npy, Npz, Safetensors};
    let good = || ("good".to_owned(), tensor(DType::F32, &[2], 1));
    let with = |name: &str, tensor| list(vec![good(), (name.to_owned(), tensor)], &[]);
    let sparse = Tensor::new(
        &[2u64, 2][..],
        Layout::SparseCoo,
        [
            (Cow::Borrowed("values"), ztensor::Array::from_slice(&[1f32])),
            (Cow::Borrowed("coords"), ztensor::Array::from_slice(&[0u64, 1])),
        ],
        None,
    )
    .unwrap()
    .into_owned();
    let mut attributed = tensor(DType::F32, &[1], 1);
    attributed.attributes = Some(Box::new(Attributes::from([("k".to_owned(), Value::from("v"))])));
    for (format, source, what) in [
        (Safetensors, with("bad", sparse.clone()), "sparse_coo"),
        (Npz, with("bad", sparse), "sparse_coo"),
        (Safetensors, with("bad", tensor(DType::C128, &[1], 1)), "complex128"),
        (Safetensors, with("bad", tensor(DType::I4, &[2], 1)), "i4"),
        (Safetensors, with("bad", tensor(DType::F4E2M1, &[3], 1)), "whole bytes"),
        (Safetensors, with("__metadata__", tensor(DType::F32, &[1], 1)), "attributes"),
        (Safetensors, with("bad", attributed.clone()), "attributes"),
        (Npz, with("bad", attributed.clone()), "attributes"),
        (Npz, with("bad", tensor(DType::BF16, &[1], 1)), "bf16"),
        (Npz, with("bad", tensor(DType::F8E5M2, &[1], 1)), "f8_e5m2"),
        (Npz, with("../bad", tensor(DType::F32, &[1], 1)), "name"),
        (Npz, with("../bad", tensor(DType::F32, &[1], 1)), "name"),
        (Npz, with("good", tensor(DType::F32, &[1], 1)), "name"),
        (Npy, with("bad", tensor(DType::F32, &[1], 1)), "exactly one"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let error = export(&source, &path, format, &ExportOptions::default()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::InvalidArgument), "{error}");
        assert!(error.to_string().contains(what), "{what}: {error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is written before");
        if format != Npy {
            assert_eq!(error.tensor(), Some(&*source.tensors[1].0), "{error}");
        }
    }
    // Attributes can be left out when the caller says so.
    let mut source = with("attributed", attributed);
    source.attributes.insert("number".to_owned(), Value::from(1u64));
    source.attributes.insert("text".to_owned(), Value::from("kept"));
    for format in [Safetensors, Npz] {
        assert!(exported(&source, format, &ExportOptions::default()).is_err());
        let bytes = exported(&source, format, &ExportOptions::default().drop_attributes(true)).unwrap();
        let kept = Reader::from_bytes(bytes).unwrap().attributes().len();
        assert_eq!(kept, usize::from(format == Safetensors));
    }
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let source = list(
        (0..40)
            .map(|n| (format!("t{n}"), tensor(types(ExportFormat::Npz)[n % 10], &[n as u64], n as u8)))
            .collect(),
        &[],
    );
    for (format, deflate) in
        [(ExportFormat::Safetensors, None), (ExportFormat::Npz, None), (ExportFormat::Npz, Some(6))]
    {
        let options = ExportOptions::default().deflate(deflate);
        assert!(exported(&source, format, &options).unwrap() == exported(&source, format, &options).unwrap());
    }
    assert_eq!(ExportFormat::from_path("a/b.SafeTensors"), Some(ExportFormat::Safetensors));
    assert_eq!(ExportFormat::from_path("a/b"), None);
}
