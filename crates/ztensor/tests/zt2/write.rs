//! Writing version 2, and converting between versions.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::common::fixtures;
use ztensor::export::{ExportFormat, ExportOptions, TensorList, export, export_to};
use ztensor::format::zt2;
use ztensor::{
    Compression, DType, ErrorKind, Format, Layout, Reader, Result, Value, WriteOptions, ZtVersion,
};

use super::*;

fn convert(reader: &Reader, options: &ExportOptions<'_>) -> Reader {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.zt");
    export(reader, &path, ExportFormat::Zt2, options).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let reader = Reader::from_bytes(bytes).unwrap();
    reader.verify_all(None).unwrap();
    reader
}

fn to_version_1(reader: &Reader) -> Reader {
    let mut bytes = Vec::new();
    let mut writer = ztensor::Writer::new(&mut bytes).unwrap();
    for (key, value) in reader.attributes() {
        writer.set_attribute(key.clone(), value.clone());
    }
    let names: Vec<&str> = reader.keys().collect();
    writer.write_from(reader, &names, Default::default(), None).unwrap();
    writer.finish().unwrap();
    Reader::from_bytes(bytes).unwrap()
}

/// What two files say about their tensors, but for the width of sparse indices.
fn same_tensors(a: &Reader, b: &Reader, what: &str) {
    let names = |reader: &Reader| reader.keys().map(str::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(names(a), names(b), "{what}");
    for name in a.keys() {
        let (x, y) = (a.read_owned(name).unwrap(), b.read_owned(name).unwrap());
        assert_eq!((&x.shape, &x.layout), (&y.shape, &y.layout), "{what}: {name}");
        let sorted = |tensor: &ztensor::Tensor<'_>| {
            let mut own: Vec<_> = tensor
                .attributes
                .iter()
                .flat_map(|own| own.iter())
                .map(|(k, v)| format!("{k} {v:?}"))
                .collect();
            own.sort();
            own
        };
        assert_eq!(sorted(&x), sorted(&y), "{what}: {name}");
        assert_eq!(x.components.len(), y.components.len());
        for (role, array) in &x.components {
            let other = y.component(role).unwrap();
            let wide = |array: &ztensor::Array<'_>| match array.dtype {
                DType::U32
                    if matches!(x.layout, Layout::SparseCsr | Layout::SparseCoo) && role != "values" =>
                {
                    array
                        .to_vec::<u32>()
                        .unwrap()
                        .into_iter()
                        .flat_map(|n| u64::from(n).to_le_bytes())
                        .collect()
                }
                _ => array.bytes.to_vec(),
            };
            assert_eq!(array.unknown_type, other.unknown_type, "{what}: {name}");
            assert!(wide(array) == wide(other), "{what}: {name}: {role}");
            let narrow = |dtype| if dtype == DType::U32 { DType::U64 } else { dtype };
            assert_eq!(narrow(array.dtype), narrow(other.dtype), "{what}: {name}");
        }
    }
}

#[test]
fn versions_convert_both_ways_without_loss() {
    for entry in expected().iter().filter(|entry| entry["canonical_rewrite"].is_object()) {
        let file = entry["file"].as_str().unwrap();
        let original = Reader::open(path(entry)).unwrap();
        for options in [
            ExportOptions::default(),
            ExportOptions::default().canonical(true),
            ExportOptions::default().zstd(Some(3)).threads(2),
        ] {
            let again = convert(&original, &options);
            same_tensors(&original, &again, file);
            assert_eq!(original.attributes().len(), again.attributes().len());
        }
        let one = to_version_1(&original);
        assert_eq!(one.format(), Format::Zt);
        same_tensors(&original, &one, file);
        same_tensors(&original, &convert(&one, &ExportOptions::default()), file);
    }
    // Everything that version 1.2 files and GGUF files of the samples hold.
    for (format, extension) in [("zt", "zt"), ("gguf", "gguf"), ("safetensors", "safetensors")] {
        for sample in std::fs::read_dir(fixtures::folder(format)).unwrap() {
            let path = sample.unwrap().path();
            if path.extension().is_none_or(|found| found != extension) {
                continue;
            }
            let Ok(original) = Reader::open(&path) else { continue };
            let options = ExportOptions::default();
            let mut bytes = Vec::new();
            match export_to(&original, &mut bytes, ExportFormat::Zt2, &options) {
                Ok(()) => {
                    let two = Reader::from_bytes(bytes).unwrap();
                    same_tensors(&original, &two, &path.display().to_string());
                    same_tensors(&original, &to_version_1(&two), &path.display().to_string());
                }
                Err(error) => assert!(
                    matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Mismatch),
                    "{}: {error}",
                    path.display()
                ),
            }
        }
    }
}

/// The same by a [`ztensor::Writer`], tensor by tensor.
fn by_writer(reader: &Reader, compression: Compression) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut writer = ztensor::Writer::new_version(&mut bytes, ZtVersion::V2)?;
    for (key, value) in reader.attributes() {
        writer.set_attribute(key.clone(), value.clone());
    }
    let names: Vec<&str> = reader.keys().collect();
    let options = WriteOptions { compression, ..WriteOptions::default() };
    writer.write_from(reader, &names, options, None)?;
    writer.finish()?;
    Ok(bytes)
}

#[test]
fn the_writer_holds_what_an_export_holds() {
    let mut held = 0;
    for (format, extension) in [("zt", "zt"), ("gguf", "gguf"), ("safetensors", "safetensors")] {
        for sample in std::fs::read_dir(fixtures::folder(format)).unwrap() {
            let path = sample.unwrap().path();
            let Ok(original) = Reader::open(&path) else { continue };
            if path.extension().is_none_or(|found| found != extension) {
                continue;
            }
            let what = path.display().to_string();
            let mut exported = Vec::new();
            let export = export_to(&original, &mut exported, ExportFormat::Zt2, &ExportOptions::default());
            for compression in [Compression::None, Compression::Zstd(3)] {
                match (&export, by_writer(&original, compression)) {
                    (Ok(()), Ok(written)) => {
                        let (a, b) = (
                            Reader::from_bytes(exported.clone()).unwrap(),
                            Reader::from_bytes(written).unwrap(),
                        );
                        assert_eq!(b.format(), Format::Zt2);
                        b.verify_all(None).unwrap();
                        same_tensors(&a, &b, &what);
                        assert_eq!(a.content_id().unwrap(), b.content_id().unwrap(), "{what}");
                        assert_eq!(zt2::content_digest(&a).ok(), zt2::content_digest(&b).ok(), "{what}");
                        held += 1;
                    }
                    (Err(_), Err(_)) => {}
                    (export, writer) => {
                        panic!("{what}: {export:?} but {:?}", writer.map(|bytes| bytes.len()))
                    }
                }
            }
        }
    }
    assert!(held > 20, "{held}");
}

#[test]
fn a_writer_and_an_export_of_raw_tensors_make_the_same_file() {
    let (a, b): (Vec<f32>, Vec<u8>) = ((0..5000).map(|n| n as f32).collect(), vec![7; 3 << 20]);
    let mut written = Vec::new();
    let mut writer = ztensor::Writer::new_version(&mut written, ZtVersion::V2).unwrap();
    writer.set_attribute("step", 7);
    writer.add("model.a", &[50, 100], &a).unwrap();
    writer.add("b", &[3 << 20], &b).unwrap();
    writer.add("empty", &[0, 4], &[0f32; 0]).unwrap();
    writer.finish().unwrap();
    let tensor = |shape: &[u64], array| {
        ztensor::Tensor::new(shape, Layout::Dense, [(Cow::Borrowed("data"), array)], None).unwrap()
    };
    let list = TensorList {
        tensors: vec![
            ("model.a".to_owned(), tensor(&[50, 100], ztensor::Array::from_slice(&a))),
            ("b".to_owned(), tensor(&[3 << 20], ztensor::Array::from_slice(&b))),
            ("empty".to_owned(), tensor(&[0, 4], ztensor::Array::from_slice(&[0f32; 0]))),
        ],
        attributes: [("step".to_owned(), Value::from(7))].into_iter().collect(),
    };
    for threads in [1, 2] {
        let mut exported = Vec::new();
        let options = ExportOptions::default().threads(threads);
        export_to(&list, &mut exported, ExportFormat::Zt2, &options).unwrap();
        assert!(exported == written, "{threads} threads");
    }
}

#[test]
fn every_element_type_goes_through() {
    let tensors = DType::ALL.into_iter().flat_map(|dtype| {
        [vec![6], vec![], vec![0, 3], vec![2, 4]].into_iter().enumerate().map(
            move |(number, shape): (usize, Vec<u64>)| {
                let len = dtype.byte_len(shape.iter().product()).unwrap();
                let used = shape.iter().product::<u64>() * u64::from(dtype.bits()) % 8;
                let mut bytes: Vec<u8> = (0..len)
                    .map(|n| if dtype == DType::Bool { n as u8 & 1 } else { (n as u8).wrapping_mul(37) })
                    .collect();
                if let Some(last) = bytes.last_mut().filter(|_| used > 0) {
                    *last &= (1 << used) - 1;
                }
                (format!("{dtype}.{number}"), ztensor::Tensor::from_bytes(shape, dtype, bytes).unwrap())
            },
        )
    });
    let list = ztensor::export::TensorList { tensors: tensors.collect(), ..Default::default() };
    for options in [
        ExportOptions::default(),
        ExportOptions::default().canonical(true),
        ExportOptions::default().zstd(Some(1)),
    ] {
        let mut bytes = Vec::new();
        export_to(&list, &mut bytes, ExportFormat::Zt2, &options).unwrap();
        let reader = Reader::from_bytes(bytes).unwrap();
        assert_eq!(reader.verify_all(None).unwrap().unchecked, 0);
        for (name, tensor) in &list.tensors {
            assert_eq!(&reader.read_owned(name).unwrap(), tensor, "{name}");
        }
        assert_eq!(zt2::canonical::check(&reader).unwrap().is_empty(), options.canonical);
    }
}

#[test]
fn equal_parts_share_a_blob() {
    let tensor =
        |value: u8| ztensor::Tensor::from_bytes(vec![100_000], DType::U8, vec![value; 100_000]).unwrap();
    let mut nearly = vec![1; 100_000];
    nearly[99_999] = 2;
    let nearly = ztensor::Tensor::from_bytes(vec![100_000], DType::I8, nearly).unwrap();
    let list = ztensor::export::TensorList {
        tensors: vec![
            ("b".into(), tensor(1)),
            ("a".into(), tensor(1)),
            ("c".into(), nearly),
            ("d".into(), tensor(1)),
            ("e".into(), tensor(3)),
        ],
        ..Default::default()
    };
    let mut bytes = Vec::new();
    export_to(&list, &mut bytes, ExportFormat::Zt2, &ExportOptions::default()).unwrap();
    let reader = Reader::from_bytes(bytes).unwrap();
    let offset = |name: &str| reader.get(name).unwrap().components[0].1.extent().unwrap().offset;
    assert_eq!((offset("a"), offset("d")), (offset("b"), offset("b")));
    assert_eq!([offset("b"), offset("c"), offset("e")].iter().collect::<BTreeSet<_>>().len(), 3);
}

/// Sources hand out large tensors in pieces, so that one larger than memory can be written.
#[test]
fn large_tensors_are_streamed() {
    use std::borrow::Cow;
    struct Generated {
        object: ztensor::Object,
        attributes: ztensor::Attributes,
    }
    const LEN: u64 = 40 << 20;
    const STEP: usize = 1 << 20;
    impl ztensor::export::ExportSource for Generated {
        fn objects(&self) -> Vec<(&str, Cow<'_, ztensor::Object>)> {
            vec![("a", Cow::Borrowed(&self.object)), ("b", Cow::Borrowed(&self.object))]
        }
        fn attributes(&self) -> &ztensor::Attributes {
            &self.attributes
        }
        fn fetch(&self, _: usize) -> Result<ztensor::Tensor<'_>> {
            panic!("a tensor that is streamed is not fetched")
        }
        fn streams(&self, _: usize, _: &str) -> bool {
            true
        }
        fn pieces(&self, _: usize, _: &str, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
            (0..LEN as usize / STEP).try_for_each(|number| each(&vec![number as u8; STEP]))
        }
    }
    let data = ztensor::Component::plain(DType::U8, ztensor::Extent::new(0, LEN));
    let source =
        Generated { object: ztensor::Object::dense(vec![LEN], data), attributes: Default::default() };
    let folder = tempfile::tempdir().unwrap();
    for (file, options) in [
        ("raw.zt", ExportOptions::default()),
        ("canonical.zt", ExportOptions::default().canonical(true)),
        ("zstd.zt", ExportOptions::default().zstd(Some(1)).threads(2)),
    ] {
        let path = folder.path().join(file);
        let (written, peak) =
            common::allocations::peak(|| export(&source, &path, ExportFormat::Zt2, &options));
        written.unwrap();
        assert!(peak < LEN as usize / 2, "{file}: {peak} bytes were allocated");
        let reader = Reader::open(&path).unwrap();
        reader.verify_all(None).unwrap();
        let rows = reader.read_rows("b", 7 * STEP as u64 - 1..7 * STEP as u64 + 1).unwrap();
        assert_eq!(rows, [6, 7]);
        if options.zstd.is_none() {
            let size = std::fs::metadata(&path).unwrap().len();
            assert!(size < LEN + (1 << 20), "{file}: both names share one blob, {size}");
        }
        // From a file on, too: raw and encoded parts in pieces.
        let again = folder.path().join("again.zt");
        export(&reader, &again, ExportFormat::Zt2, &ExportOptions::default()).unwrap();
        assert_eq!(Reader::open(&again).unwrap().read("a").unwrap(), reader.read("a").unwrap());
    }
}

#[test]
fn what_cannot_be_held_is_refused_by_name() {
    let dense = || ztensor::Tensor::from_bytes(vec![1], DType::U8, vec![0]).unwrap();
    let refused = |name: &str,
                   tensor: ztensor::Tensor<'static>,
                   attributes: Vec<(&str, Value)>,
                   options: &ExportOptions<'_>| {
        let list = ztensor::export::TensorList {
            tensors: vec![(name.to_owned(), tensor)],
            attributes: attributes.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
        };
        let mut out = Vec::new();
        export_to(&list, &mut out, ExportFormat::Zt2, options).unwrap_err().to_string()
    };
    let plain = ExportOptions::default();
    assert!(refused("", dense(), vec![], &plain).contains("zt2.Name"));
    assert!(refused("a\0", dense(), vec![], &plain).contains("zt2.Name"));
    assert!(refused("t", dense(), vec![("", Value::Null)], &plain).contains("drop or convert"));
    let tag = Value::Tag(1, Box::new(Value::Null));
    assert!(refused("t", dense(), vec![("date", tag)], &plain).contains("\"date\""));
    let bad_bool = ztensor::Tensor::from_bytes(vec![1], DType::Bool, vec![2]).unwrap();
    assert!(refused("t", bad_bool, vec![], &plain).contains("neither 0 nor 1"));
    let bad_nibble = ztensor::Tensor::from_bytes(vec![1], DType::F4E2M1, vec![0x10]).unwrap();
    assert!(refused("t", bad_nibble, vec![], &plain).contains("behind element 1"));
    let coo = |coords: Vec<u64>| {
        let coords: Vec<u8> = coords.iter().flat_map(|n| n.to_le_bytes()).collect();
        let parts = [
            ("values".into(), ztensor::Array::new(DType::U8, vec![1, 2])),
            ("coords".into(), ztensor::Array::new(DType::U64, coords)),
        ];
        ztensor::Tensor::new(vec![3], Layout::SparseCoo, parts, None).unwrap()
    };
    assert!(refused("t", coo(vec![1, 1]), vec![], &plain).contains("zt2.LayoutData"));
    let canonical = ExportOptions::default().canonical(true);
    assert!(refused("e\u{301}", dense(), vec![], &canonical).contains("normalization form C"));
    assert!(refused("t", dense(), vec![], &canonical.clone().zstd(Some(3))).contains("raw parts only"));
    assert!(refused("t", dense(), vec![], &ExportOptions::default().zstd(Some(23))).contains("1 to 22"));
}
