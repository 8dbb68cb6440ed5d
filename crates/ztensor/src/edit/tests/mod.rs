//! Every edit, watched step by step.

mod behaviour;
pub(crate) mod crashes;
mod faults;
mod readers;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::catalog::{Component, Extent, Object, Storage};
use crate::decode::UnknownEncoding;
use crate::delta::{ApplyOptions, MakeOptions, apply_in_place, make};
use crate::edit::{compact, merge, remove_tensors, repair, replace_tensor, replace_tensor_as};
use crate::source::MapMode;
use crate::{Checksum, Compression, DType, OpenOptions, Reader, Value, Writer};

/// A folder in memory where there is one, since thousands of states are written.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn numbers(len: usize, seed: u32) -> Vec<f32> {
    (0..len).map(|n| (n as u32).wrapping_mul(2_654_435_761).wrapping_add(seed) as f32).collect()
}

/// A file with everything that edits must keep.
fn make_base(path: &Path) {
    let mut writer = Writer::create(path).unwrap();
    writer.set_attribute("author", "test");
    writer.add_with("a", &[20, 20], &numbers(400, 1)).checksum(Checksum::Crc32c).write().unwrap();
    writer.add("b", &[100], &numbers(100, 2)).unwrap();
    writer.tie("b.tied", "b").unwrap();
    let packed = writer.add_with("packed", &[1000], &[7u8; 1000]);
    packed.compress(Compression::Zstd(3)).checksum(Checksum::Sha256).write().unwrap();
    writer.add_csr("sparse", [2, 3], &[1.0f64, 2.0], &[0, 2], &[0, 1, 2]).unwrap();
    writer.add("scalar", &[], &[3u8]).unwrap();
    writer.add::<f32>("empty", &[0, 4], &[]).unwrap();
    // What a later version might have written.
    let (extent, _) = writer.write_blob(b"stored in a way to come", Checksum::None, None).unwrap();
    let storage = Storage::Encoded(Arc::new(UnknownEncoding::new("future", extent)));
    let mut component = Component::new(DType::U8, 50, storage);
    component.unknown.push("hint".into(), vec![0x05]);
    let mut object = Object::dense([50u64].as_slice(), component);
    object.unknown.push("lineage".into(), vec![0x63, b'a', b'b', b'c']);
    object.set_attribute("note", Value::Array(vec![Value::Null, 7u8.into()]));
    writer.catalog.insert("future", object).unwrap();
    writer.catalog.unknown.push("x-root".into(), vec![0x81, 0x01]);
    writer.catalog.version = Some("1.7.0".into());
    writer.finish().unwrap();
}

/// A second file, to merge.
fn make_other(path: &Path) {
    let mut writer = Writer::create(path).unwrap();
    writer.set_attribute("author", "test");
    writer.set_attribute("second", 2u8);
    writer.add_with("other", &[64], &numbers(64, 9)).checksum(Checksum::Sha256).write().unwrap();
    writer.finish().unwrap();
}

/// All that a file says, with the bytes as they are stored, but not where they lie.
#[derive(Debug, Clone, PartialEq)]
struct Snapshot {
    root: String,
    objects: BTreeMap<String, (String, Vec<Vec<u8>>)>,
}

fn snapshot(path: &Path) -> crate::Result<Snapshot> {
    snapshot_of(&OpenOptions::default().map(MapMode::Never).open(path)?)
}

fn snapshot_of(reader: &Reader) -> crate::Result<Snapshot> {
    reader.verify_all(None)?;
    let catalog = reader.catalog();
    let mut objects = BTreeMap::new();
    for (name, object) in reader.objects() {
        let mut text =
            format!("{:?} {:?} {:?} {:?}", object.shape, object.layout, object.attributes, object.unknown);
        let mut blobs = Vec::new();
        for (role, component) in &object.components {
            text += &format!(
                " {role} {:?} {:?} {} {} {:?} {:?}",
                component.dtype,
                component.type_name(),
                component.len,
                component.encoding(),
                component.digest,
                component.unknown
            );
            blobs.push(catalog.sources.bytes(component.extent().unwrap())?.into_owned());
        }
        objects.insert(name.to_owned(), (text, blobs));
    }
    let order: Vec<&str> = reader.keys().collect();
    let root = format!("{order:?} {:?} {:?} {:?}", catalog.attributes, catalog.unknown, catalog.version);
    Ok(Snapshot { root, objects })
}

/// One edit: how its folder is prepared, and what it does to the file there.
struct Edit {
    name: &'static str,
    prepare: fn(&Path),
    run: fn(&Path) -> crate::Result<()>,
}

fn plain(path: &Path) {
    make_base(path);
    make_other(&sibling(path));
}

/// A file at which an editor was killed.
fn torn(path: &Path) {
    plain(path);
    let mut writer = Writer::append(path).unwrap();
    writer.add("lost", &[3000], &numbers(3000, 4)).unwrap();
    let journal = std::fs::read(journal_of(path)).unwrap();
    drop(writer);
    std::fs::write(journal_of(path), journal).unwrap();
    let mut bytes = std::fs::read(path).unwrap();
    bytes.extend_from_slice(&[0xAA; 3000]);
    std::fs::write(path, bytes).unwrap();
}

/// A model, and in the place of the second file the delta that makes another one of it.
fn family(path: &Path) {
    let write = |path: &Path, tuned: bool| {
        let mut writer = Writer::create(path).unwrap();
        writer.set_attribute("author", "test");
        writer.set_attribute("steps", u8::from(tuned));
        let mut changed = numbers(400, 1);
        changed[7] += f32::from(u8::from(tuned));
        writer.add_with("a", &[20, 20], &changed).checksum(Checksum::Crc32c).write().unwrap();
        writer.add("kept", &[100], &numbers(100, 2)).unwrap();
        writer.tie("kept.tied", "kept").unwrap();
        let (name, seed) = if tuned { ("new", 3) } else { ("gone", 4) };
        writer.add(name, &[300], &numbers(300, seed)).unwrap();
        writer.add("scalar", &[], &[3u8]).unwrap();
        writer.finish().unwrap();
    };
    write(path, false);
    let folder = scratch();
    let target = folder.path().join("tuned.zt");
    write(&target, true);
    make(path, &target, sibling(path), &MakeOptions::default()).unwrap();
}

fn sibling(path: &Path) -> PathBuf {
    path.with_file_name("other.zt")
}

fn journal_of(path: &Path) -> PathBuf {
    super::journal::path_of(path).unwrap()
}

fn append(path: &Path) -> crate::Result<()> {
    let mut writer = Writer::append(path)?;
    writer.set_attribute("edited", true);
    writer.add_with("new", &[300], &numbers(300, 5)).checksum(Checksum::Crc32c).write()?;
    writer.add("small", &[3], &[1u8, 2, 3])?;
    writer.tie("new.tied", "a")?;
    writer.finish().map(drop)
}

const EDITS: &[Edit] = &[
    Edit { name: "append", prepare: plain, run: append },
    Edit { name: "append after a crash", prepare: torn, run: append },
    Edit {
        name: "replace",
        prepare: plain,
        run: |path| replace_tensor_as(path, "a", &numbers(400, 77)).map(drop),
    },
    Edit {
        name: "replace after a crash",
        prepare: torn,
        run: |path| replace_tensor_as(path, "a", &numbers(400, 77)).map(drop),
    },
    Edit {
        name: "replace a tied tensor",
        prepare: plain,
        run: |path| replace_tensor(path, "b", &[9; 400]).map(drop),
    },
    Edit {
        name: "remove",
        prepare: plain,
        run: |path| remove_tensors(path, path, &["b", "sparse"]).map(drop),
    },
    Edit {
        name: "remove after a crash",
        prepare: torn,
        run: |path| remove_tensors(path, path, &["b"]).map(drop),
    },
    Edit { name: "merge", prepare: plain, run: |path| merge(&[path, &sibling(path)], path).map(drop) },
    Edit {
        name: "compact",
        prepare: |path| {
            plain(path);
            append(path).unwrap();
        },
        run: |path| compact(path).map(drop),
    },
    Edit { name: "compact after a crash", prepare: torn, run: |path| compact(path).map(drop) },
    Edit { name: "repair", prepare: torn, run: |path| repair(path).map(drop) },
    Edit {
        name: "apply a model delta",
        prepare: family,
        run: |path| apply_in_place(path, sibling(path), &ApplyOptions::default()).map(drop),
    },
];

/// Runs an edit in a fresh folder: the states before and after it.
fn before_and_after(edit: &Edit) -> (Snapshot, Snapshot) {
    let folder = scratch();
    let path = folder.path().join("model.zt");
    (edit.prepare)(&path);
    let before = snapshot(&path).unwrap();
    (edit.run)(&path).unwrap();
    (before, snapshot(&path).unwrap())
}

/// The names in a folder.
fn listing(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn extent_of(path: &Path, name: &str) -> Extent {
    Reader::open(path).unwrap().get(name).unwrap().components[0].1.extent().unwrap()
}
