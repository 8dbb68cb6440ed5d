//! Models in several files: an index that says which tensor is in which file,
//! or a folder. They open as one catalog with several sources.
//!
//! An index (`*.index.json`) names its shards by plain file names, which are
//! looked up in the folder of the index itself and nowhere else. Symlinks are
//! followed, because that is how download caches keep their snapshots; what a
//! link leads to is only ever read as a tensor file.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use indexmap::IndexMap;

use crate::base::parallel;
use crate::catalog::{Catalog, Decode, DecodeStored, Extent, Object, Storage, StridedView};
use crate::error::{Error, Result, quoted};
use crate::format::json::Scanner;
use crate::format::{Context, Format, distributed, folder_extensions, parse};
use crate::remote::{self, store};
use crate::source::{MapMode, Sources};
use crate::tensor::value::{Attributes, Value};

/// A larger index is refused before it is read: it would name millions of tensors.
const MAX_INDEX: u64 = 256 << 20;

/// Whether a path is to be opened here rather than as a tensor file.
pub(crate) fn handles(path: &Path) -> bool {
    is_index(path) || is_folder(path)
}

/// Whether a file's name is that of an index.
pub(crate) fn is_index(name: &Path) -> bool {
    extension(name).as_deref() == Some("json")
}

/// Whether a path is a folder; a URL is one if it ends like one.
fn is_folder(path: &Path) -> bool {
    match remote::is_url(path) {
        true => path.as_os_str().as_encoded_bytes().ends_with(b"/"),
        false => path.is_dir(),
    }
}

/// Opens an index or a folder. `path` is what the caller said; a URL may have a query,
/// which is no part of its name.
pub(crate) fn open(path: &Path, name: &Path, context: &Context) -> Result<Catalog> {
    match is_folder(name) {
        true => open_folder(name, context),
        false if file_name(name) == distributed::NAME => {
            distributed::open(name.parent().unwrap_or(Path::new("")), context)
        }
        false => open_index(path, name, context),
    }
}

fn extension(path: &Path) -> Option<String> {
    Some(path.extension()?.to_str()?.to_ascii_lowercase())
}

/// The files directly in a folder.
fn files_in(folder: &Path, context: &Context) -> Result<Vec<PathBuf>> {
    if let Some(files) = &context.files {
        return Ok(files.names().into_iter().map(|name| folder.join(name)).collect());
    }
    if remote::is_url(folder) {
        let listing = store::list(folder, &context.remote)?;
        let direct = listing.into_iter().filter(|entry| !entry.name.contains('/'));
        return Ok(direct.map(|entry| store::join(folder, &entry.name)).collect());
    }
    let listing = std::fs::read_dir(folder).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    let listing = listing.map_err(|error| Error::io("cannot list the folder", error).in_file(folder))?;
    Ok(listing.into_iter().map(|entry| entry.path()).filter(|path| path.is_file()).collect())
}

pub(crate) fn open_folder(folder: &Path, context: &Context) -> Result<Catalog> {
    let mut files = files_in(folder, context)?;
    files.retain(|path| !hidden(path));
    files.sort_unstable();
    if files.iter().any(|path| file_name(path) == distributed::NAME) {
        return distributed::open(folder, context);
    }
    for (extension_name, driver) in folder_extensions() {
        let suffix = format!(".{extension_name}.index.json");
        let indexes: Vec<_> = files.iter().filter(|path| file_name(path).ends_with(&suffix)).collect();
        if !indexes.is_empty() {
            let index = only(&indexes, folder, "indexes")?;
            return open_index(index, index, context);
        }
        let parts: Vec<_> =
            files.iter().filter(|path| extension(path).as_deref() == Some(extension_name)).collect();
        if !parts.is_empty() {
            check_complete(&parts).map_err(|error| error.in_file(folder))?;
        }
        let parts = without_shards(&parts, context)?;
        match &parts[..] {
            [] => continue,
            // A split file finds its other parts itself.
            [first, rest @ ..] if rest.is_empty() || driver.format == Format::Gguf && numbered(&parts) => {
                return open_file(first, context);
            }
            several if numbered(several) || driver.merges_files => {
                let paths: Vec<&Path> = several.iter().map(|path| path.as_path()).collect();
                return Shards::open(&paths, context)?.finish().map_err(|error| match error.rule() {
                    // Files that share names are models of their own, not parts of one.
                    Some("name.duplicate") if !numbered(several) => separate(several, folder),
                    _ => error,
                });
            }
            several => {
                return only(several, folder, "tensor files").and_then(|path| open_file(path, context));
            }
        }
    }
    Err(Error::not_found("there is no tensor file in this folder").in_file(folder))
}

/// Leaves out files that another one, of version 2 of `.zt`, has as its shards.
fn without_shards<'a>(paths: &[&'a PathBuf], context: &Context) -> Result<Vec<&'a PathBuf>> {
    let mut shards = Vec::new();
    for path in paths.iter().filter(|path| extension(path).as_deref() == Some("zt")) {
        let prefix = format!("{}-", path.file_stem().unwrap_or_default().to_string_lossy());
        if !paths.iter().any(|other| file_name(other).starts_with(&prefix)) {
            continue;
        }
        let catalog = open_file(path, context)?;
        if catalog.format == Format::Zt2 {
            let named = (1..catalog.sources.len() as u32).map(|shard| catalog.sources.label(shard));
            shards.extend(named.map(|shard| format!("{prefix}{shard}.zt")));
        }
    }
    Ok(paths.iter().copied().filter(|path| !shards.iter().any(|shard| *shard == file_name(path))).collect())
}

fn hidden(path: &Path) -> bool {
    file_name(path).starts_with('.')
}

fn file_name(path: &Path) -> Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

/// The only file there is, or an error that lists what there is.
fn only<'a>(paths: &[&'a PathBuf], folder: &Path, what: &str) -> Result<&'a PathBuf> {
    match paths {
        [path] => Ok(path),
        several => {
            let names: Vec<_> = several.iter().take(8).map(|path| file_name(path)).collect();
            let message =
                format!("this folder has {} {what}: open one of {}", several.len(), names.join(", "));
            Err(Error::invalid(message).in_file(folder))
        }
    }
}

/// Several models in one folder: one of them has to be named.
fn separate(paths: &[&PathBuf], folder: &Path) -> Error {
    let names: Vec<_> = paths.iter().take(8).map(|path| file_name(path)).collect();
    let more = if paths.len() > 8 { ", …" } else { "" };
    let message = format!(
        "this folder has {} separate models (the same tensor names in several files): open one of {}{more}",
        paths.len(),
        names.join(", ")
    );
    Error::invalid(message).in_file(folder)
}

/// Refuses numbered parts of which some are missing.
fn check_complete(paths: &[&PathBuf]) -> Result<()> {
    let numbers: Option<Vec<(String, usize, usize)>> = paths.iter().map(|path| part(path)).collect();
    let Some(numbers) = numbers else { return Ok(()) };
    let (stem, _, count) = &numbers[0];
    if numbers.iter().any(|(other, _, total)| other != stem || total != count) || numbers.len() >= *count {
        return Ok(());
    }
    let first = numbers.iter().map(|(_, number, _)| *number).min().unwrap_or(1).min(1);
    let missing: Vec<String> = (first..first + *count)
        .filter(|number| !numbers.iter().any(|(_, there, _)| there == number))
        .take(8)
        .map(|number| format!("{number:05}"))
        .collect();
    Err(Error::corrupt(
        "shards.missing",
        format!(
            "{} of {count} shards are there; missing: {} (incomplete download?)",
            numbers.len(),
            missing.join(", ")
        ),
    ))
}

/// The stem, number and count of `…-00001-of-0000N`.
fn part(path: &Path) -> Option<(String, usize, usize)> {
    let stem = path.file_stem()?.to_str()?;
    let (stem, count) = stem.rsplit_once("-of-")?;
    let (stem, number) = stem.rsplit_once('-')?;
    Some((stem.to_owned(), number.parse().ok()?, count.parse().ok()?))
}

/// Whether files are the parts `…-00001-of-0000N` of one set, all of them.
fn numbered(paths: &[&PathBuf]) -> bool {
    let parts: Option<Vec<_>> = paths.iter().map(|path| part(path)).collect();
    parts.is_some_and(|parts| {
        let count = parts.len();
        parts.iter().enumerate().all(|(index, part)| {
            part.0 == parts[0].0 && part.2 == count && part.1 == parts[0].1 + index && parts[0].1 <= 1
        })
    })
}

pub(super) fn open_file(path: &Path, context: &Context) -> Result<Catalog> {
    parse(context.open(path)?, &context.at(path))
}

pub(crate) fn open_index(path: &Path, name: &Path, context: &Context) -> Result<Catalog> {
    let index = read_index(path, context).map_err(|error| error.in_file(name))?;
    let folder = name.parent().unwrap_or(Path::new(""));
    let paths: Vec<PathBuf> = index.keys().map(|file| store::join(folder, file)).collect();
    let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
    let shards = Shards::open(&paths, context).map_err(|error| absent(error, &paths, name))?;
    for ((file, names), catalog) in index.iter().zip(&shards.catalogs) {
        let there = |tensor: &String| catalog.objects.contains_key(tensor.as_str());
        if let Some(tensor) = names.iter().find(|tensor| !there(tensor)) {
            let message = format!("the index says that it is in {}, but it is not", quoted(file));
            return Err(Error::corrupt("shards.missing", message).in_tensor(tensor).in_file(name));
        }
    }
    shards.finish().map_err(|error| error.in_file(name))
}

/// Says of a shard that is not there which index lists it, and how many others are absent.
fn absent(error: Error, shards: &[&Path], index: &Path) -> Error {
    let missing = error.io_error().is_some_and(|cause| cause.kind() == std::io::ErrorKind::NotFound);
    if !missing || remote::is_url(index) {
        return error;
    }
    let others = shards.iter().filter(|shard| !shard.exists()).count().saturating_sub(1);
    let others = match others {
        0 => String::new(),
        1 => ", and so is one other shard".to_owned(),
        count => format!(", and so are {count} other shards"),
    };
    let file = error.file().unwrap_or_default().to_owned();
    let cause = std::io::Error::from(std::io::ErrorKind::NotFound);
    let message =
        format!("this shard is missing (listed in {}{others}): incomplete download?", file_name(index));
    Error::io_message(message, cause).in_file(file)
}

/// The tensors' names by shard.
fn read_index(path: &Path, context: &Context) -> Result<BTreeMap<String, Vec<String>>> {
    let source = context.open_as(path, MapMode::Never)?;
    if source.len() > MAX_INDEX {
        return Err(Error::limit(format!(
            "the index has {} bytes; at most {MAX_INDEX} are read",
            source.len()
        )));
    }
    let bytes = source.bytes(0, source.len())?;
    let text = std::str::from_utf8(&bytes)
        .map_err(|error| Error::corrupt("shards.utf8", format!("the index is not UTF-8: {error}")))?;
    let mut weight_map: Option<IndexMap<String, String>> = None;
    let mut scanner = Scanner::new(text);
    scanner.object(|scanner, key| {
        if key != "weight_map" {
            return scanner.skip();
        }
        let mut map = IndexMap::new();
        scanner.object(|scanner, name| {
            let file = scanner.string()?.into_owned();
            match map.insert(name.into_owned(), file) {
                None => Ok(()),
                Some(_) => Err(Error::corrupt("shards.duplicate", "the index names a tensor twice")),
            }
        })?;
        match weight_map.replace(map) {
            None => Ok(()),
            Some(_) => Err(Error::corrupt("shards.duplicate", "the index has two weight maps")),
        }
    })?;
    scanner.end()?;
    let weight_map = weight_map.ok_or_else(|| {
        Error::unsupported("this JSON file is not an index of shards: it has no \"weight_map\"")
    })?;
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, file) in weight_map {
        if !is_plain_name(&file) {
            let message = format!("the shard {} is not a plain file name", quoted(&file));
            return Err(Error::corrupt("shards.name", message).in_tensor(name));
        }
        files.entry(file).or_default().push(name);
    }
    Ok(files)
}

/// A name that can only mean a file of the same folder.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let drive = name.as_bytes().get(1) == Some(&b':');
    let plain =
        !(name.is_empty() || name == "." || name == ".." || drive || name.contains(['/', '\\', '\0']));
    plain && crate::platform::is_file_name(name)
}

/// Catalogs of single files on their way to become one.
struct Shards {
    catalogs: Vec<Catalog>,
}

impl Shards {
    /// Opens and parses shards; remote ones several at a time.
    fn open(paths: &[&Path], context: &Context) -> Result<Shards> {
        const AT_A_TIME: usize = 16;
        let threads = if paths.iter().any(|path| remote::is_url(path)) { AT_A_TIME } else { 1 };
        let slots: Vec<OnceLock<Catalog>> = paths.iter().map(|_| OnceLock::new()).collect();
        parallel::for_each(threads, paths.iter().zip(&slots).collect(), |(path, slot)| {
            let _ = slot.set(open_file(path, context)?); // it is empty until now
            Ok(())
        })?;
        Ok(Shards { catalogs: slots.into_iter().filter_map(OnceLock::into_inner).collect() })
    }

    /// One catalog of all. A tensor that two shards have is an error.
    fn finish(self) -> Result<Catalog> {
        let Some(first) = self.catalogs.first() else {
            return Err(Error::corrupt("shards.empty", "the index names no shards"));
        };
        let mut merged = Catalog::new(first.format, Sources::default());
        let mut attributes: IndexMap<String, Vec<Value>> = IndexMap::new();
        for mut catalog in self.catalogs {
            let base = merged.sources.len() as u32;
            let objects = std::mem::take(&mut catalog.objects);
            for name in std::mem::take(&mut catalog.unsafe_globals) {
                if !merged.unsafe_globals.contains(&name) {
                    merged.unsafe_globals.push(name);
                }
            }
            for (key, value) in std::mem::take(&mut catalog.attributes) {
                let values = attributes.entry(key).or_default();
                if !values.contains(&value) {
                    values.push(value);
                }
            }
            let sources = Arc::new(std::mem::take(&mut catalog.sources));
            for index in 0..sources.len() as u32 {
                let shard = sources.clone();
                merged.sources.push_lazy(sources.label(index), move || shard.get(index).cloned());
            }
            merged.objects.reserve(objects.len());
            for (name, object) in objects {
                let object = moved(object, &sources, base);
                merged.insert(name, object).map_err(|error| error.in_file(sources.label(0)))?;
            }
        }
        merged.attributes = attributes.into_iter().map(one_or_all).collect::<Attributes>();
        Ok(merged)
    }
}

/// What all shards say of an attribute, or the list of what they say.
fn one_or_all((key, mut values): (String, Vec<Value>)) -> (String, Value) {
    match values.len() {
        1 => (key, values.remove(0)),
        _ => (key, Value::Array(values)),
    }
}

/// The same object in a catalog where its sources start at `base`.
pub(super) fn moved(mut object: Object, sources: &Arc<Sources>, base: u32) -> Object {
    for (_, component) in &mut object.components {
        match &mut component.storage {
            Storage::Plain(extent) => extent.source += base,
            Storage::Inline(_) => {}
            Storage::Encoded(inner) => {
                let moved = Moved { inner: inner.clone(), sources: sources.clone(), base };
                component.storage = Storage::Encoded(Arc::new(moved));
            }
        }
    }
    object
}

/// A decoder that knows its sources by the numbers they had in its own shard.
#[derive(Debug)]
struct Moved {
    inner: Arc<dyn Decode>,
    sources: Arc<Sources>,
    base: u32,
}

impl Decode for Moved {
    fn encoding(&self) -> &str {
        self.inner.encoding()
    }

    fn stored_len(&self) -> u64 {
        self.inner.stored_len()
    }

    fn extent(&self) -> Option<Extent> {
        let extent = self.inner.extent()?;
        Some(Extent { source: extent.source + self.base, ..extent })
    }

    fn work(&self, range: &Range<u64>) -> u64 {
        self.inner.work(range)
    }

    fn content_extent(&self) -> Option<Extent> {
        let extent = self.inner.content_extent()?;
        Some(Extent { source: extent.source + self.base, ..extent })
    }

    fn extents(&self, _: &Sources) -> Result<Vec<Extent>> {
        let extents = self.inner.extents(&self.sources)?.into_iter();
        Ok(extents.map(|extent| Extent { source: extent.source + self.base, ..extent }).collect())
    }

    fn strided_view(&self, shape: &[u64], item: usize) -> Option<StridedView> {
        let mut view = self.inner.strided_view(shape, item)?;
        view.extent.source += self.base;
        Some(view)
    }

    fn decode(&self, _: &Sources, range: Range<u64>, out: &mut [u8], threads: usize) -> Result<()> {
        let decoded = self.inner.decode(&self.sources, range, out, threads);
        decoded.map_err(|error| error.in_file(self.sources.label(0)))
    }

    fn decode_in_order(&self, _: &Sources, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Option<Result<()>> {
        let decoded = self.inner.decode_in_order(&self.sources, each)?;
        Some(decoded.map_err(|error| error.in_file(self.sources.label(0))))
    }

    fn stored(&self) -> Option<&dyn DecodeStored> {
        self.inner.stored()
    }

    fn decoding_verifies(&self) -> bool {
        self.inner.decoding_verifies()
    }

    fn verify(&self, _: &Sources, threads: usize) -> Option<Result<()>> {
        let verified = self.inner.verify(&self.sources, threads)?;
        Some(verified.map_err(|error| error.in_file(self.sources.label(0))))
    }
}
