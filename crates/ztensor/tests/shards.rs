//! Models in several files: indexes, folders, download caches.

mod common;

#[cfg(unix)]
use std::os::unix::fs::symlink;
use std::path::Path;

use ztensor::export::{ExportFormat, ExportOptions, TensorList, export};
use ztensor::source::MapMode;
use ztensor::{Attributes, DType, ErrorKind, OpenOptions, Reader, Tensor, Value};

/// Writes a file with tensors of these names, of one element that is the name's length.
fn shard(path: &Path, names: &[&str], format: ExportFormat, deflate: Option<u32>) {
    let tensor = |name: &str| Tensor::from_bytes(&[1u64][..], DType::U8, vec![name.len() as u8]).unwrap();
    let tensors = names.iter().map(|name| (name.to_string(), tensor(name))).collect();
    let mut attributes = Attributes::new();
    if format == ExportFormat::Safetensors {
        attributes.insert("format".to_owned(), Value::from("pt"));
        attributes.insert("first".to_owned(), Value::from(names.first().copied().unwrap_or_default()));
    }
    let source = TensorList { tensors, attributes };
    export(&source, path, format, &ExportOptions::default().deflate(deflate)).unwrap();
}

fn safetensors(folder: &Path, file: &str, names: &[&str]) {
    shard(&folder.join(file), names, ExportFormat::Safetensors, None);
}

fn index(folder: &Path, name: &str, map: &[(&str, &str)]) -> std::path::PathBuf {
    let map: serde_json::Map<_, _> =
        map.iter().map(|(name, file)| (name.to_string(), (*file).into())).collect();
    let path = folder.join(name);
    let json = serde_json::json!({"metadata": {"total_size": 5, "x": [1.5, null]}, "weight_map": map});
    std::fs::write(&path, json.to_string()).unwrap();
    path
}

const PARTS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

fn model(folder: &Path) -> std::path::PathBuf {
    safetensors(folder, PARTS[0], &["a", "bb"]);
    safetensors(folder, PARTS[1], &["ccc"]);
    index(folder, "model.safetensors.index.json", &[("a", PARTS[0]), ("bb", PARTS[0]), ("ccc", PARTS[1])])
}

fn check(reader: &Reader) {
    let mut names: Vec<_> = reader.keys().collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "bb", "ccc"]);
    for name in names {
        assert_eq!(reader.read(name).unwrap(), [name.len() as u8], "{name}");
    }
}

#[test]
fn an_index_and_its_folder_open_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let index = model(folder.path());
    for path in [&index, folder.path()] {
        for mode in [MapMode::Auto, MapMode::Never] {
            let reader = OpenOptions::default().map(mode).open(path).unwrap();
            check(&reader);
            assert_eq!(reader.format().name(), "safetensors");
            assert_eq!(reader.attributes()["format"], Value::from("pt"));
            // Where shards differ, all are kept.
            assert_eq!(reader.attributes()["first"], Value::from(vec!["a", "ccc"]));
            assert_eq!(reader.view("ccc").is_ok(), mode == MapMode::Auto);
        }
    }
    // Without the index, the folder is the union of its parts; each part still opens alone.
    std::fs::remove_file(&index).unwrap();
    check(&Reader::open(folder.path()).unwrap());
    assert_eq!(Reader::open(folder.path().join(PARTS[1])).unwrap().len(), 1);
}

#[test]
fn shards_may_be_of_any_format_and_compressed() {
    let folder = tempfile::tempdir().unwrap();
    shard(&folder.path().join("one.bin"), &["a", "bb"], ExportFormat::Npz, Some(6));
    shard(&folder.path().join("two.bin"), &["ccc"], ExportFormat::Npz, Some(6));
    let map = [("a", "one.bin"), ("bb", "one.bin"), ("ccc", "two.bin")];
    let index = index(folder.path(), "pytorch_model.bin.index.json", &map);
    for path in [index.as_path(), folder.path()] {
        let reader = Reader::open(path).unwrap();
        check(&reader);
        assert_eq!(reader.get("ccc").unwrap().components[0].1.encoding(), "deflate");
        assert_eq!(reader.get("ccc").unwrap().components[0].1.extent().unwrap().source, 1);
    }
}

#[cfg(unix)]
#[test]
fn a_download_cache_with_symlinks_opens() {
    let cache = tempfile::tempdir().unwrap();
    let (blobs, snapshot) = (cache.path().join("blobs"), cache.path().join("snapshots/0123"));
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::create_dir_all(&snapshot).unwrap();
    let real = tempfile::tempdir().unwrap();
    model(real.path());
    for entry in std::fs::read_dir(real.path()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap();
        let blob = name.to_string_lossy().replace('.', "_"); // blobs have no extension
        std::fs::copy(&path, blobs.join(&blob)).unwrap();
        symlink(Path::new("../../blobs").join(&blob), snapshot.join(name)).unwrap();
    }
    check(&Reader::open(snapshot.join("model.safetensors.index.json")).unwrap());
    check(&Reader::open(&snapshot).unwrap());
    assert_eq!(Reader::open(snapshot.join(PARTS[0])).unwrap().len(), 2);
}

#[test]
fn folders_prefer_one_format_and_name_what_is_ambiguous() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let error = Reader::open(path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    std::fs::write(path.join("README.md"), "text").unwrap();
    std::fs::write(path.join("config.json"), "{}").unwrap();
    shard(&path.join("one.npz"), &["a"], ExportFormat::Npz, None);
    assert_eq!(Reader::open(path).unwrap().format().name(), "npz");
    shard(&path.join("two.npz"), &["a"], ExportFormat::Npz, None);
    let error = Reader::open(path).unwrap_err().to_string();
    assert!(error.contains("one.npz") && error.contains("two.npz"), "{error}");
    safetensors(path, "model.safetensors", &["bb"]);
    safetensors(path, ".hidden.safetensors", &["bb"]);
    assert_eq!(Reader::open(path).unwrap().format().name(), "safetensors");
    safetensors(path, "again.safetensors", &["bb"]);
    let error = Reader::open(path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(
        error.to_string().contains("2 separate models") && error.to_string().contains("again.safetensors")
    );
}

#[test]
fn missing_shards_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(folder.path());
    std::fs::remove_file(folder.path().join(PARTS[1])).unwrap();
    let error = Reader::open(&path).unwrap_err();
    assert!(error.file().unwrap().ends_with(PARTS[1]), "{error}");
    let index = path.file_name().unwrap().to_str().unwrap();
    assert!(error.to_string().contains(&format!("listed in {index}")), "{error}");
    std::fs::remove_file(&path).unwrap();
    let error = Reader::open(folder.path()).unwrap_err();
    assert_eq!(error.rule(), Some("shards.missing"), "{error}");
    assert!(error.to_string().contains("missing: 00002"), "{error}");
}

#[cfg(unix)]
#[test]
fn every_broken_rule_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = &folder.path().join("model");
    std::fs::create_dir(path).unwrap();
    model(path);
    safetensors(folder.path(), "outside.safetensors", &["a"]);
    symlink("loop", path.join("loop")).unwrap();
    let open = |map: &[(&str, &str)]| Reader::open(index(path, "x.index.json", map)).unwrap_err();
    for file in ["../outside.safetensors", "/etc/passwd", "sub/x", "..", ".", "", "C:x", "a\\b", "a\0"] {
        let error = open(&[("a", file)]);
        assert_eq!((error.rule(), error.tensor()), (Some("shards.name"), Some("a")), "{file}: {error}");
    }
    let error = open(&[("missing", PARTS[0])]);
    assert_eq!((error.rule(), error.tensor()), (Some("shards.missing"), Some("missing")));
    // In another shard than the index says.
    assert_eq!(open(&[("a", PARTS[1])]).rule(), Some("shards.missing"));
    assert_eq!(open(&[]).rule(), Some("shards.empty"));
    assert_eq!(open(&[("a", "absent.safetensors")]).kind(), ErrorKind::Io);
    assert_eq!(open(&[("a", "loop")]).kind(), ErrorKind::Io);
    // An index as a shard is not followed.
    assert_eq!(open(&[("a", "model.safetensors.index.json")]).kind(), ErrorKind::UnknownFormat);
    let json = |text: &str| {
        std::fs::write(path.join("y.index.json"), text).unwrap();
        Reader::open(path.join("y.index.json")).unwrap_err()
    };
    assert_eq!(json("{}").kind(), ErrorKind::Unsupported);
    assert_eq!(json("[]").rule(), Some("json.syntax"));
    assert_eq!(json(r#"{"weight_map":{"a":"x","a":"x"}}"#).rule(), Some("shards.duplicate"));
    assert_eq!(json(r#"{"weight_map":{},"weight_map":{}}"#).rule(), Some("shards.duplicate"));
    assert_eq!(json(r#"{"weight_map":{"a":1}}"#).rule(), Some("json.syntax"));
    assert_eq!(json(&format!(r#"{{"x":{}"#, "[".repeat(1000))).rule(), Some("json.depth"));
    let good = std::fs::read(path.join("model.safetensors.index.json")).unwrap();
    for cut in 0..good.len() {
        std::fs::write(path.join("z.index.json"), &good[..cut]).unwrap();
        assert!(Reader::open(path.join("z.index.json")).is_err(), "cut at {cut}");
    }
}

#[test]
fn a_damaged_shard_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(folder.path());
    std::fs::write(folder.path().join(PARTS[1]), b"damaged").unwrap();
    let error = Reader::open(path).unwrap_err();
    assert!(error.file().unwrap().ends_with(PARTS[1]), "{error}");
}
