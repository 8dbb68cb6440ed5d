//! Whole model folders: every weight file packed, everything else copied.

use std::path::{Path, PathBuf};

use ztensor::{Destination, zstn};

use super::args::{Pack, Unpack};
use super::files::{self, Run};
use super::pack::{VARIANT, pack_file, packed_name, restored_name, unpack_file};
use crate::failure::{FINE, Failure, Outcome};
use crate::human;

/// Extensions of the files that are packed, best first: only files of the first kind that a folder
/// has, since the others are the same weights again.
const WEIGHTS: [&str; 9] = ["safetensors", "gguf", "bin", "pt", "pth", "zt", "npz", "onnx", "h5"];

/// Packs the weights of a folder, beside them or into another folder with everything else.
pub fn pack(options: &Pack, run: Run) -> Outcome {
    let folder = &options.input;
    let weights = weights(folder)?;
    let target = options.output.as_deref().unwrap_or(folder);
    std::fs::create_dir_all(target).map_err(|error| cannot(target, &error))?;
    let (mut before, mut after) = (0, 0);
    for path in &weights {
        let packed = target.join(packed_name(path).file_name().unwrap_or_default());
        let stats = pack_file(options, path, None, packed, run)?;
        (before, after) = (before + stats.original_len, after + stats.packed_len);
    }
    for index in indexes(folder)? {
        write_index(&index, target, options.force)?;
    }
    if !is_same(folder, target) {
        copy_others(folder, target, options.force)?;
    }
    if weights.len() > 1 {
        run.say_smaller(folder, before, after);
    }
    if weights.iter().any(|path| files::has_suffix(path, ".safetensors")) {
        let folder = human::path(target);
        run.say(format_args!(
            "load it with z4ai.enable_hf() and from_pretrained({folder:?}, variant=\"{VARIANT}\")"
        ));
    }
    Ok(FINE)
}

/// Restores every packed file of a folder.
pub fn unpack(options: &Unpack, run: Run) -> Outcome {
    let folder = &options.input;
    let target = options.output.as_deref().unwrap_or(folder);
    let mut packed = Vec::new();
    for path in list(folder)? {
        let mut head = [0; 4];
        let read =
            std::fs::File::open(&path).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut head));
        if read.is_ok() && zstn::is_packed(&head) {
            packed.push(path);
        }
    }
    if packed.is_empty() {
        return Err(Failure::usage(format!("{} has no packed files", human::path(folder))));
    }
    std::fs::create_dir_all(target).map_err(|error| cannot(target, &error))?;
    for path in packed {
        let restored = target.join(restored_name(&path).file_name().unwrap_or_default());
        unpack_file(&path, None, restored, options.force, run)?;
    }
    Ok(FINE)
}

fn cannot(path: &Path, error: &std::io::Error) -> Failure {
    Failure::io(format!("{}: {}", human::path(path), human::cause(error)))
}

fn is_same(a: &Path, b: &Path) -> bool {
    a.canonicalize().ok().is_some_and(|a| b.canonicalize().ok() == Some(a))
}

/// The files directly in a folder, sorted.
fn list(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = std::fs::read_dir(folder).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    let mut paths: Vec<PathBuf> =
        entries.map_err(|error| cannot(folder, &error))?.iter().map(|entry| entry.path()).collect();
    paths.retain(|path| path.is_file() && !name(path).starts_with('.'));
    paths.sort();
    Ok(paths)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn is_packed_name(path: &Path) -> bool {
    name(path).contains(&format!(".{VARIANT}")) || files::has_suffix(path, ".zstn")
}

/// The weight files that are to be packed.
fn weights(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let all = list(folder)?;
    for kind in WEIGHTS {
        let suffix = format!(".{kind}");
        let found: Vec<PathBuf> = all
            .iter()
            .filter(|path| files::has_suffix(path, &suffix) && !is_packed_name(path))
            .cloned()
            .collect();
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Err(Failure::usage(format!("{} has no weight files (.{})", human::path(folder), WEIGHTS.join(", ."))))
}

fn indexes(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut paths = list(folder)?;
    paths.retain(|path| files::has_suffix(path, ".safetensors.index.json"));
    Ok(paths)
}

/// Writes `model.safetensors.index.z4ai.json`, which names the packed shards.
fn write_index(index: &Path, target: &Path, force: bool) -> Result<(), Failure> {
    let bad = |why: String| Failure::bad_file(format!("{}: {why}", human::path(index)));
    let text = std::fs::read(index).map_err(|error| cannot(index, &error))?;
    let mut document: serde_json::Value =
        serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
    let map = document.get_mut("weight_map").and_then(serde_json::Value::as_object_mut);
    for file in map.ok_or_else(|| bad("it has no \"weight_map\"".to_owned()))?.values_mut() {
        let shard = file.as_str().unwrap_or_default().to_owned();
        *file = name(&packed_name(Path::new(&shard))).into();
    }
    let path = target.join(name(index).replace(".index.json", &format!(".index.{VARIANT}.json")));
    let destination = Destination::derived(target, path.file_name().unwrap_or_default())?.overwrite(force);
    destination.check()?;
    ztensor::write_atomically(destination, |out| {
        writeln!(out, "{document:#}").map_err(|error| ztensor::Error::io("cannot write", error))
    })?;
    Ok(())
}

/// Copies configuration and tokenizer, but no weights and no indexes of them.
fn copy_others(folder: &Path, target: &Path, force: bool) -> Result<(), Failure> {
    for path in list(folder)? {
        let weights = WEIGHTS.iter().any(|kind| files::has_suffix(&path, &format!(".{kind}")));
        let copy = Destination::derived(target, name(&path))?.overwrite(force);
        if weights
            || is_packed_name(&path)
            || name(&path).ends_with(".index.json")
            || (!force && copy.is_taken()?)
        {
            continue;
        }
        let mut file = std::fs::File::open(&path).map_err(|error| cannot(&path, &error))?;
        ztensor::write_atomically(copy, |out| {
            std::io::copy(&mut file, out).map(drop).map_err(|error| ztensor::Error::io("cannot copy", error))
        })?;
    }
    Ok(())
}
