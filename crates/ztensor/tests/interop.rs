//! Files exchanged with ztensor 1.2.3, the release that files in the field come from.
//!
//! Skipped, with the reason, where that release cannot be installed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use serde_json::{Value, json};
use ztensor::edit::Placement;
use ztensor::{Checksum, Compression, DType, Reader, Writer};

/// Runs the other version's script.
fn peer(command: &str, folder: Option<&Path>) -> (Option<i32>, String) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/interop/ztensor_1_2_3.py");
    match Command::new("python3").arg(script).arg(command).args(folder).output() {
        Ok(output) => {
            let text =
                [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            (output.status.code(), text.concat())
        }
        Err(error) => (Some(77), format!("there is no python3: {error}")),
    }
}

/// The other version, for one test at a time; `None` where it is not to be had.
///
/// A process that one test starts has copies of the other's descriptors for a moment,
/// and then a file is not the other's alone, to be changed in place.
fn take_peer() -> Option<MutexGuard<'static, ()>> {
    static THERE: OnceLock<bool> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let there = THERE.get_or_init(|| match peer("setup", None) {
        (Some(0), _) => true,
        (Some(77), why) => {
            println!("skipped: {why}");
            false
        }
        (_, why) => panic!("{why}"),
    });
    there.then_some(turn)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The name that the Python interface gives a storage type.
fn long_name(dtype: DType) -> String {
    let name = dtype.storage_name();
    let kind = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let long = match kind {
        "f" => "float",
        "bf" => "bfloat",
        "i" => "int",
        "u" => "uint",
        other => other,
    };
    format!("{long}{}", &name[kind.len()..])
}

/// What a file says, in the form that the script compares.
fn describe(path: &Path) -> Value {
    let reader = Reader::open(path).unwrap();
    reader.verify_all(None).unwrap();
    let object = |(name, object): (&str, &ztensor::Object)| {
        let parts = object.components.iter();
        let parts = parts
            .map(|(role, _)| (role.to_string(), hex(&reader.read_component(name, role).unwrap()).into()));
        let value = json!({
            "shape": object.shape.to_vec(),
            "dtype": long_name(object.dtype().unwrap()),
            "format": object.layout.name(),
            "components": parts.collect::<serde_json::Map<_, Value>>(),
        });
        (name.to_owned(), value)
    };
    Value::Object(reader.objects().map(object).collect())
}

fn floats(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|n| (n * 7 + seed) as f32 / 3.0).collect()
}

fn write_plain(path: &Path, compression: Compression, checksum: Checksum) {
    let mut writer = Writer::create(path).unwrap();
    macro_rules! add {
        ($($name:literal: $type:ty),*) => {$(
            let data: Vec<$type> = (0..60u8).map(|n| n as $type).collect();
            writer.add_with($name, &[3, 4, 5], &data).compress(compression).checksum(checksum).write().unwrap();
        )*};
    }
    add!("f64": f64, "f32": f32, "i64": i64, "i32": i32, "i16": i16, "i8": i8, "u64": u64, "u32": u32, "u16": u16, "u8": u8);
    let halves: Vec<half::f16> = floats(50, 1).into_iter().map(half::f16::from_f32).collect();
    writer.add_with("f16", &[50], &halves).compress(compression).checksum(checksum).write().unwrap();
    let brains: Vec<half::bf16> = floats(50, 2).into_iter().map(half::bf16::from_f32).collect();
    writer.add_with("bf16", &[50], &brains).compress(compression).checksum(checksum).write().unwrap();
    writer.add::<f32>("empty", &[0, 4], &[]).unwrap();
    writer.add("scalar", &[], &[2.5f32]).unwrap();
    writer.tie("tied", "f32").unwrap();
    writer.set_attribute("author", "us");
    writer.finish().unwrap();
}

#[test]
fn it_reads_what_we_write_and_edit() {
    let Some(_turn) = take_peer() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| -> PathBuf { folder.path().join(name) };
    write_plain(&file("plain.zt"), Compression::None, Checksum::None);
    write_plain(&file("crc.zt"), Compression::None, Checksum::Crc32c);
    write_plain(&file("zstd.zt"), Compression::Zstd(9), Checksum::Sha256);
    let mut writer = Writer::create(file("sparse.zt")).unwrap();
    writer.add_csr("csr", [2, 3], &[1f32, 2.0], &[0, 2], &[0, 1, 2]).unwrap();
    writer.add_coo("coo", &[2, 3], &[1f64, 2.0], &[0, 1, 2, 0]).unwrap();
    writer.finish().unwrap();

    std::fs::copy(file("crc.zt"), file("appended.zt")).unwrap();
    let mut writer = Writer::append(file("appended.zt")).unwrap();
    writer.add_with("later", &[100], &floats(100, 3)).checksum(Checksum::Sha256).write().unwrap();
    writer.add_with("packed", &[100], &[5u8; 100]).compress(Compression::Zstd(3)).write().unwrap();
    writer.finish().unwrap();

    let new: Vec<u8> = bytemuck::cast_slice(&floats(120, 4)).to_vec();
    std::fs::copy(file("appended.zt"), file("replaced.zt")).unwrap();
    let placement = ztensor::replace_tensor(file("replaced.zt"), "f64", &new).unwrap();
    assert_eq!(placement, Placement::InPlace);
    std::fs::copy(file("appended.zt"), file("replaced_behind.zt")).unwrap();
    let placement = ztensor::replace_tensor(file("replaced_behind.zt"), "f32", &new[..240]).unwrap();
    assert_eq!(placement, Placement::Appended, "it is tied");

    ztensor::remove_tensors(file("appended.zt"), file("removed.zt"), &["f32", "i8"]).unwrap();
    ztensor::merge(&[file("appended.zt"), file("sparse.zt")], file("merged.zt")).unwrap();
    std::fs::copy(file("replaced_behind.zt"), file("compacted.zt")).unwrap();
    ztensor::compact(file("compacted.zt")).unwrap();

    for path in files(folder.path()) {
        std::fs::write(path.with_extension("json"), describe(&path).to_string()).unwrap();
    }
    let (code, text) = peer("check", Some(folder.path()));
    println!("{text}");
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(text.matches("tensors agree").count(), files(folder.path()).len());
}

#[test]
fn we_read_our_files_after_it_edited_them() {
    let Some(_turn) = take_peer() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| -> PathBuf { folder.path().join(name) };
    write_plain(&file("ours.zt"), Compression::None, Checksum::Crc32c);
    let checksums = |name: &str| {
        let bytes = std::fs::read(file(name)).unwrap();
        let len = u64::from_le_bytes(bytes[bytes.len() - 16..][..8].try_into().unwrap()) as usize;
        let manifest = &bytes[bytes.len() - 16 - len..];
        manifest.windows(17).filter(|window| window == b"manifest_checksum").count()
    };
    assert_eq!(checksums("ours.zt"), 1);
    let (code, text) = peer("edit", Some(folder.path()));
    assert_eq!(code, Some(0), "{text}");
    for name in ["appended.zt", "replaced.zt", "removed.zt"] {
        // It drops what it does not know: no checksum of another manifest is left.
        assert_eq!(checksums(name), 0, "{name}");
        let reader = Reader::open(file(name)).unwrap();
        reader.verify_all(None).unwrap();
        assert_eq!(reader.read_as::<u8>("u8").unwrap(), (0..60).collect::<Vec<u8>>(), "{name}");
        assert_eq!(reader.contains("later"), name == "appended.zt");
        assert_eq!(reader.contains("f64"), name != "removed.zt");
        drop(reader);
        // Our next edit gives it one again.
        let mut writer = Writer::append(file(name)).unwrap();
        writer.add("more", &[1], &[1u8]).unwrap();
        writer.finish().unwrap();
        assert_eq!(checksums(name), 1, "{name}");
        Reader::open(file(name)).unwrap().verify_all(None).unwrap();
    }
    let replaced = Reader::open(file("replaced.zt")).unwrap();
    assert_eq!(replaced.read_as::<f64>("f64").unwrap(), [1.0; 60]);
}

#[test]
fn we_read_and_edit_what_it_writes() {
    let Some(_turn) = take_peer() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (code, text) = peer("make", Some(folder.path()));
    assert_eq!(code, Some(0), "{text}");
    let made = files(folder.path());
    assert_eq!(made.len(), 13);
    for path in made {
        let expected = std::fs::read_to_string(path.with_extension("json")).unwrap();
        let expected: Value = serde_json::from_str(&expected).unwrap();
        assert_eq!(describe(&path), expected, "{}", path.display());
        // And it reads them again after each kind of edit.
        let mut writer = Writer::append(&path).unwrap();
        writer.add("ours", &[3], &[1u8, 2, 3]).unwrap();
        writer.finish().unwrap();
        assert_eq!(ztensor::replace_tensor(&path, "ours", &[4, 5, 6]).unwrap(), Placement::InPlace);
        if path.ends_with("dense-0-sha256.zt") {
            assert_eq!(ztensor::replace_tensor(&path, "float64", &[0; 192]).unwrap(), Placement::InPlace);
            ztensor::remove_tensors(&path, &path, &["uint8"]).unwrap();
        }
        if path.ends_with("appended.zt") {
            ztensor::compact(&path).unwrap();
        }
        std::fs::write(path.with_extension("json"), describe(&path).to_string()).unwrap();
    }
    let (code, text) = peer("check", Some(folder.path()));
    assert_eq!(code, Some(0), "{text}");
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|ext| ext == "zt")).collect();
    paths.sort();
    paths
}
