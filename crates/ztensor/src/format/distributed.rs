//! Distributed checkpoints: a folder with one `.zt` file per rank and a `checkpoint.json` that says
//! which chunk of which tensor is where. They open as one catalog of whole tensors.
//!
//! Every number in `checkpoint.json` is a claim: chunks have to lie inside their tensors, cover them,
//! and be what the rank files say they are; rank files have to be the ones that were saved.

use std::path::Path;
use std::sync::Arc;

use indexmap::IndexMap;
use sha2::{Digest as _, Sha256};

use super::shards::{self, moved};
use crate::catalog::{Catalog, Component, Layout, Object, Shape, Storage, elements};
use crate::decode::Assembled;
use crate::dtype::DType;
use crate::error::{Error, Result, quoted};
use crate::format::Context;
use crate::format::json::Scanner;
use crate::remote::store;
use crate::source::{self, MapMode, Source, Sources};
use crate::tensor::value::Value;

/// The file that makes a folder a checkpoint; it is written last.
pub(crate) const NAME: &str = "checkpoint.json";
const FORMAT: &str = "ztensor.distributed";
/// A larger one is refused before it is read.
const MAX_JSON: u64 = 1 << 30;
/// Longer values that are not tensors are not shown as attributes.
const MAX_VALUE: u64 = 1 << 20;

/// What `checkpoint.json` says.
#[derive(Default)]
struct Checkpoint {
    format: Option<String>,
    version: Option<u64>,
    files: Vec<RankFile>,
    tensors: IndexMap<String, Entry>,
    objects: IndexMap<String, Plain>,
}

/// A rank's file as it was when it was saved.
#[derive(Default)]
struct RankFile {
    name: String,
    length: u64,
    digest: String,
}

/// A whole tensor.
#[derive(Default)]
struct Entry {
    dtype: String,
    shape: Shape,
    chunks: Vec<Chunk>,
}

/// A box of a tensor, stored as a tensor of its own.
#[derive(Default)]
struct Chunk {
    file: u64,
    object: String,
    offsets: Vec<u64>,
    sizes: Vec<u64>,
}

/// A value that is not a tensor.
#[derive(Default)]
struct Plain {
    file: u64,
    object: String,
    kind: String,
}

/// Opens the checkpoint in `folder`.
pub(crate) fn open(folder: &Path, context: &Context) -> Result<Catalog> {
    let index = store::join(folder, NAME);
    let checkpoint = read(&index, context).map_err(|error| error.in_file(&index))?;
    let mut merged = Catalog::new(super::Format::Zt, Sources::default());
    let mut ranks = Vec::with_capacity(checkpoint.files.len());
    for file in &checkpoint.files {
        let path = store::join(folder, &file.name);
        let mut rank = shards::open_file(&path, context)?;
        check_file(&rank, file).map_err(|error| error.in_file(&path))?;
        let base = merged.sources.len() as u32;
        let objects = std::mem::take(&mut rank.objects);
        let sources = Arc::new(std::mem::take(&mut rank.sources));
        for index in 0..sources.len() as u32 {
            let shard = sources.clone();
            merged.sources.push_lazy(sources.label(index), move || shard.get(index).cloned());
        }
        let objects: IndexMap<Box<str>, Object> =
            objects.into_iter().map(|(name, object)| (name, moved(object, &sources, base))).collect();
        ranks.push(objects);
    }
    for (name, entry) in checkpoint.tensors {
        let object = tensor(&entry, &ranks).map_err(|error| error.in_tensor(&*name).in_file(&index))?;
        merged.insert(name, object)?;
    }
    for (name, value) in checkpoint.objects {
        let text = plain(&value, &ranks, &merged.sources).map_err(|error| error.in_file(&index))?;
        merged.attributes.insert(name, Value::Text(text));
    }
    Ok(merged)
}

/// A value that is not a tensor, as the JSON text that it is stored as.
fn plain(value: &Plain, ranks: &[IndexMap<Box<str>, Object>], sources: &Sources) -> Result<String> {
    let object = find(ranks, value.file, &value.object)?;
    let component = object.require("data")?;
    if value.kind != "json" || component.len > MAX_VALUE {
        return Ok(format!("({} value of {} bytes)", value.kind, component.len));
    }
    let mut bytes = source::zeroed(component.len)?;
    component.storage.read(sources, 0..component.len, &mut bytes, 1)?;
    String::from_utf8(bytes)
        .map_err(|_| Error::corrupt("distributed.value", format!("{} is not UTF-8", quoted(&value.object))))
}

fn find<'a>(ranks: &'a [IndexMap<Box<str>, Object>], file: u64, name: &str) -> Result<&'a Object> {
    let rank = usize::try_from(file).ok().and_then(|file| ranks.get(file));
    rank.and_then(|rank| rank.get(name)).ok_or_else(|| {
        Error::corrupt("distributed.chunk", format!("file {file} has no object {}", quoted(name)))
    })
}

/// A tensor, put together from its chunks when it is read.
fn tensor(entry: &Entry, ranks: &[IndexMap<Box<str>, Object>]) -> Result<Object> {
    let dtype = DType::ALL.into_iter().find(|dtype| dtype.python_name() == entry.dtype).ok_or_else(|| {
        Error::unsupported(format!("the element type {} is not one this version knows", quoted(&entry.dtype)))
    })?;
    let corrupt = |why: String| Error::corrupt("distributed.chunk", why);
    let count = elements(&entry.shape);
    let len = count.and_then(|count| dtype.byte_len(count));
    let (Some(count), Some(len)) = (count, len.filter(|_| dtype.bits() % 8 == 0)) else {
        return Err(corrupt(format!(
            "a tensor of dtype {dtype} and shape {:?} does not have whole bytes below 2^64",
            entry.shape
        )));
    };
    let mut covered = 0u64;
    let mut chunks = Vec::with_capacity(entry.chunks.len());
    for chunk in &entry.chunks {
        let object = find(ranks, chunk.file, &chunk.object)?;
        let data = object.require("data")?;
        let size = elements(&chunk.sizes).unwrap_or(u64::MAX);
        if object.layout != Layout::Dense || data.dtype != dtype || Some(data.len) != dtype.byte_len(size) {
            return Err(corrupt(format!(
                "{} is not a tensor of dtype {dtype} and shape {:?}",
                quoted(&chunk.object),
                chunk.sizes
            )));
        }
        covered = covered.saturating_add(size);
        let whole = chunk.sizes[..] == entry.shape[..] && chunk.offsets.iter().all(|offset| *offset == 0);
        if whole && entry.chunks.len() == 1 {
            return Ok(Object::dense(entry.shape.clone(), data.clone()));
        }
        chunks.push((chunk.offsets.clone(), chunk.sizes.clone(), data.clone()));
    }
    if covered != count {
        return Err(corrupt(format!("its chunks have {covered} of its {count} elements")));
    }
    let assembled = Assembled::new(u64::from(dtype.bits()) / 8, &entry.shape, chunks)?;
    Ok(Object::dense(entry.shape.clone(), Component::new(dtype, len, Storage::Encoded(Arc::new(assembled)))))
}

/// Refuses a rank file that is not the one that was saved.
fn check_file(rank: &Catalog, file: &RankFile) -> Result<()> {
    let source: &Arc<dyn Source> = rank.sources.get(0)?;
    if source.len() != file.length {
        return Err(Error::corrupt(
            "distributed.file",
            format!(
                "it has {} bytes, but was saved with {}: truncated or changed",
                source.len(),
                file.length
            ),
        ));
    }
    let footer = source.bytes(source.len().saturating_sub(16), source.len().min(16))?;
    let manifest = footer.first_chunk::<8>().map_or(0, |len| u64::from_le_bytes(*len));
    let tail = manifest.saturating_add(16).min(source.len()).min(MAX_JSON);
    let found: String = Sha256::digest(&*source.bytes(source.len() - tail, tail)?)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    match file.digest == format!("sha256:{found}") {
        true => Ok(()),
        false => Err(Error::mismatch("it is not the file that was saved: changed, or from another save")),
    }
}

fn read(path: &Path, context: &Context) -> Result<Checkpoint> {
    let source = context.open_as(path, MapMode::Never)?;
    if source.len() > MAX_JSON {
        return Err(Error::limit(format!("it has {} bytes; at most {MAX_JSON} are read", source.len())));
    }
    let bytes = source.bytes(0, source.len())?;
    let text = std::str::from_utf8(&bytes)
        .map_err(|error| Error::corrupt("distributed.utf8", format!("it is not UTF-8: {error}")))?;
    let mut checkpoint = Checkpoint::default();
    let mut scanner = Scanner::new(text);
    scanner.object(|scanner, key| match &*key {
        "format" => {
            checkpoint.format = Some(scanner.string()?.into_owned());
            Ok(())
        }
        "version" => {
            checkpoint.version = Some(scanner.u64()?);
            Ok(())
        }
        "files" => scanner.array(|scanner| {
            let file = rank_file(scanner)?;
            checkpoint.files.push(file);
            Ok(())
        }),
        "tensors" => scanner.object(|scanner, name| {
            let entry = entry(scanner)?;
            checkpoint.tensors.insert(name.into_owned(), entry);
            Ok(())
        }),
        "objects" => scanner.object(|scanner, name| {
            let value = plain_entry(scanner)?;
            checkpoint.objects.insert(name.into_owned(), value);
            Ok(())
        }),
        _ => scanner.skip(),
    })?;
    scanner.end()?;
    match (checkpoint.format.as_deref(), checkpoint.version) {
        (Some(FORMAT), Some(1)) => Ok(checkpoint),
        (Some(FORMAT), Some(2)) => Err(Error::unsupported(
            "this checkpoint is stored as differences from another one: ztensor.distributed.rebase makes it \
             full, consolidate makes a file of it",
        )),
        (Some(FORMAT), Some(version)) => {
            Err(Error::unsupported(format!("version {version} of {FORMAT}; this version reads 1")))
        }
        _ => Err(Error::unsupported("this is not the checkpoint.json of a distributed checkpoint")),
    }
}

fn rank_file(scanner: &mut Scanner<'_>) -> Result<RankFile> {
    let mut file = RankFile::default();
    scanner.object(|scanner, key| {
        match &*key {
            "name" => file.name = scanner.string()?.into_owned(),
            "length" => file.length = scanner.u64()?,
            "digest" => file.digest = scanner.string()?.into_owned(),
            _ => scanner.skip()?,
        }
        Ok(())
    })?;
    match shards::is_plain_name(&file.name) {
        true => Ok(file),
        false => Err(Error::corrupt(
            "distributed.file",
            format!("the file {} is not a plain file name", quoted(&file.name)),
        )),
    }
}

fn entry(scanner: &mut Scanner<'_>) -> Result<Entry> {
    let mut entry = Entry::default();
    scanner.object(|scanner, key| {
        match &*key {
            "dtype" => entry.dtype = scanner.string()?.into_owned(),
            "shape" => entry.shape = numbers(scanner)?.into(),
            "chunks" => scanner.array(|scanner| {
                let chunk = chunk(scanner)?;
                entry.chunks.push(chunk);
                Ok(())
            })?,
            _ => scanner.skip()?,
        }
        Ok(())
    })?;
    Ok(entry)
}

fn chunk(scanner: &mut Scanner<'_>) -> Result<Chunk> {
    let mut chunk = Chunk::default();
    scanner.object(|scanner, key| {
        match &*key {
            "file" => chunk.file = scanner.u64()?,
            "object" => chunk.object = scanner.string()?.into_owned(),
            "offsets" => chunk.offsets = numbers(scanner)?,
            "sizes" => chunk.sizes = numbers(scanner)?,
            _ => scanner.skip()?,
        }
        Ok(())
    })?;
    Ok(chunk)
}

fn plain_entry(scanner: &mut Scanner<'_>) -> Result<Plain> {
    let mut value = Plain::default();
    scanner.object(|scanner, key| {
        match &*key {
            "file" => value.file = scanner.u64()?,
            "object" => value.object = scanner.string()?.into_owned(),
            "kind" => value.kind = scanner.string()?.into_owned(),
            _ => scanner.skip()?,
        }
        Ok(())
    })?;
    Ok(value)
}

fn numbers(scanner: &mut Scanner<'_>) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    scanner.array(|scanner| {
        numbers.push(scanner.u64()?);
        Ok(())
    })?;
    Ok(numbers)
}
