//! Where the shards of a file are: beside it by name, in a content-addressed store beside it, or any
//! `.zt` file of its folder with the size and the digest that the table of shards gives.
//!
//! Nothing outside the folder is ever opened. A shard's own table of shards is not followed, so that
//! there are no chains and no cycles; a file that names itself as a shard is refused.

use std::path::Path;
use std::sync::Arc;

use super::manifest::Shard;
use super::{Footer, never_matches};
use crate::digest::Digest;
use crate::error::{Error, Result, quoted};
use crate::format::Context;
use crate::platform;
use crate::remote::{self, store::join};
use crate::source::{FileSource, MapMode, Source, Sources, sibling};

/// Files of a folder that are looked at for one of the right size.
const MAX_LISTED: usize = 10_000;
/// What is hashed at a time.
const HASHED_PIECE: usize = 1 << 20;

/// Adds the shards, each to be opened when something is read from it.
pub(super) fn push_onto(sources: &mut Sources, shards: Vec<Shard>, context: &Context) {
    for shard in shards {
        let context = context.clone();
        sources.push_lazy(shard.name.to_string(), move || {
            let opened = match &context.path {
                Some(root) if remote::is_url(root) || context.files.is_some() => {
                    open_remote(root, &shard, &context)
                }
                Some(root) => open_local(root, &shard, context.map_mode),
                None => Err(Error::invalid("the file has shards beside it: open it by its path")),
            };
            opened.map_err(|error| error.within(format_args!("shard {}", quoted(&shard.name))))
        });
    }
}

#[cold]
fn mistaken(what: impl Into<String>) -> Error {
    Error::corrupt("zt2.ShardIdentity", what)
}

/// `<stem>-<shard>.zt`
fn positional(root: &Path, shard: &Shard) -> String {
    let stem = root.file_stem().unwrap_or_default().to_string_lossy();
    format!("{stem}-{}.zt", shard.name)
}

/// `blobs/<algorithm>/<hex>`
fn addressed(shard: &Shard) -> String {
    format!("blobs/{}", shard.digest.to_string().replacen(':', "/", 1))
}

fn open_remote(root: &Path, shard: &Shard, context: &Context) -> Result<Arc<dyn Source>> {
    let folder = root.parent().unwrap_or(root);
    let named = context.open(&join(folder, &positional(root, shard)));
    let source = match named {
        Err(error) if is_missing(&error) && context.files.is_some() => {
            context.open(&join(folder, &addressed(shard)))?
        }
        source => source?,
    };
    check(&*source, shard).map_err(|error| error.in_file(source.label()))?;
    Ok(source)
}

fn open_local(root: &Path, shard: &Shard, mode: MapMode) -> Result<Arc<dyn Source>> {
    let mut refused = None;
    for location in [positional(root, shard), addressed(shard)] {
        match open_one(root, &location, shard, mode) {
            Ok(source) => return Ok(Arc::new(source)),
            Err(error) if is_missing(&error) => {}
            // Another file of that name: the shard may have been renamed.
            Err(error) if error.rule() == Some("zt2.ShardIdentity") => drop(refused.get_or_insert(error)),
            Err(error) => return Err(error),
        }
    }
    if let Some(found) = by_identity(root, shard, mode)? {
        return Ok(Arc::new(found));
    }
    Err(refused.unwrap_or_else(|| {
        Error::not_found(format!(
            "there is neither a file {} beside {} nor a .zt file of {} bytes with the digest {}",
            quoted(&positional(root, shard)),
            root.display(),
            shard.size,
            shard.digest
        ))
    }))
}

fn is_missing(error: &Error) -> bool {
    error.io_error().is_some_and(|cause| cause.kind() == std::io::ErrorKind::NotFound)
}

fn open_one(root: &Path, location: &str, shard: &Shard, mode: MapMode) -> Result<FileSource> {
    let source = sibling::open(root, location, mode)?;
    check(&source, shard).and_then(|()| not_itself(root, &source)).map_err(|e| e.in_file(source.label()))?;
    Ok(source)
}

/// Refuses a file as its own shard.
fn not_itself(root: &Path, source: &FileSource) -> Result<()> {
    match platform::is_file_at(root, source.file()) {
        true => Err(mistaken("a file cannot be a shard of itself")),
        false => Ok(()),
    }
}

/// What is checked whenever a shard is opened: its size, both magics and the version.
fn check(source: &dyn Source, shard: &Shard) -> Result<()> {
    if source.len() != shard.size {
        return Err(mistaken(format!("it has {} bytes, not {}", source.len(), shard.size)));
    }
    let framed = Footer::read(source).map(drop);
    framed.map_err(|error| mistaken(format!("it is not a .zt file of version 2: {error}")))
}

/// The `.zt` file of the folder that has the size and the digest of the shard.
fn by_identity(root: &Path, shard: &Shard, mode: MapMode) -> Result<Option<FileSource>> {
    let folder = match root.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let cannot = |error| Error::io("cannot list the folder", error).in_file(folder);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(cannot)?.take(MAX_LISTED) {
        let name = entry.map_err(cannot)?.file_name();
        let is_zt = Path::new(&name).extension().is_some_and(|extension| extension == "zt");
        if let Some(name) = name.to_str().filter(|_| is_zt) {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    for name in names {
        let fits = std::fs::metadata(folder.join(&name)).is_ok_and(|file| file.len() == shard.size);
        if !fits {
            continue;
        }
        // Files that may not be opened from here are not candidates.
        let Ok(source) = open_one(root, &name, shard, mode) else { continue };
        if compare(&source, &shard.digest).is_ok() {
            return Ok(Some(source));
        }
    }
    Ok(None)
}

/// Compares a whole file with the digest that the table of shards gives.
pub(super) fn compare(source: &dyn Source, digest: &Digest) -> Result<()> {
    if never_matches(digest) {
        return Err(mistaken(format!("no file has the digest {digest}")));
    }
    let mut hasher = digest
        .hasher()
        .ok_or_else(|| Error::unsupported(format!("the digest {digest} is of an unknown kind")))?;
    let mut buffer = vec![0; HASHED_PIECE.min(source.len() as usize)];
    let mut at = 0;
    while at < source.len() {
        let len = (buffer.len() as u64).min(source.len() - at) as usize;
        source.read_at(at, &mut buffer[..len])?;
        hasher.update(&buffer[..len]);
        at += len as u64;
    }
    let found = hasher.finish();
    match found == *digest {
        true => Ok(()),
        false => Err(mistaken(format!("the file has the digest {found}, not {digest}"))),
    }
}
