//! Checkout: the files of a version, byte for byte.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use super::manifest::{FileEntry, Segment};
use super::version::Version;
use crate::base::parallel;
use crate::error::{Error, Result};
use crate::platform;
use crate::progress::{Observer, advance, finish};
use crate::remote::store::NewFile;
use crate::remote::{Options, is_url};
use crate::write::atomic::{rename_folder_new, scratch_folder, sync_folder};
use crate::write::destination::Destination;

/// Objects that are decoded at a time, at least one: bytes for each thread. (limit)
const AHEAD: u64 = 64 << 20;

/// How to check a version out.
#[derive(Clone, Copy, Default)]
pub struct CheckoutOptions<'a> {
    /// Replace files that are there. Without it, the folder must be new or empty.
    pub overwrite: bool,
    /// Threads to use; 0 is one per core.
    pub threads: usize,
    /// Wait until the disk has it all.
    pub durable: bool,
    /// Is told how many bytes are done, and may cancel.
    pub observer: Option<&'a dyn Observer>,
}

/// What was checked out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CheckedOut {
    /// Files that were written.
    pub files: u64,
    /// Files that were there already, with the same bytes.
    pub unchanged: u64,
    /// Bytes of the files that were written.
    pub bytes: u64,
}

impl Version {
    /// Restores all files below a folder. Each object is compared with its id.
    ///
    /// A new folder appears when all of its files are complete; in one that is there, each file does.
    pub fn checkout(&self, folder: impl AsRef<Path>, options: &CheckoutOptions<'_>) -> Result<CheckedOut> {
        let folder = folder.as_ref();
        if is_url(folder) {
            return Err(Error::unsupported("the target of a checkout must be a folder").in_file(folder));
        }
        let there = match std::fs::read_dir(folder) {
            Ok(mut entries) => Some(entries.next().is_some()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(Error::io("cannot read", error).in_file(folder)),
        };
        if there == Some(true) && !options.overwrite {
            let message = "this folder is not empty: choose another one, or allow overwriting (--force)";
            return Err(Error::invalid(message).in_file(folder));
        }
        if there.is_some() {
            return self.restore_into(folder, options);
        }
        let parent = match folder.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let failed = |error| Error::io("cannot create", error).in_file(parent);
        std::fs::create_dir_all(parent).map_err(failed)?;
        let name =
            folder.file_name().ok_or_else(|| Error::invalid("a folder needs a name").in_file(folder))?;
        let scratch = Scratch(Some(scratch_folder(parent, &format!(".{}.", name.to_string_lossy()))?));
        let done = self.restore_into(scratch.path(), options)?;
        scratch.rename(folder, options.durable)?;
        Ok(done)
    }

    fn restore_into(&self, folder: &Path, options: &CheckoutOptions<'_>) -> Result<CheckedOut> {
        let mut done = CheckedOut::default();
        for file in &self.manifest().files {
            let path = folder.join(&file.path);
            let len = self.manifest().file_len(file);
            if options.overwrite && self.is_same(file, &path, options)? {
                done.unchanged += 1;
                advance(options.observer, len)?;
                continue;
            }
            self.restore(file, folder, options).map_err(|error| error.in_file(&path))?;
            done.files += 1;
            done.bytes += len;
        }
        finish(options.observer)?;
        Ok(done)
    }

    /// Whether a file is what it would be replaced by.
    fn is_same(&self, file: &FileEntry, path: &Path, options: &CheckoutOptions<'_>) -> Result<bool> {
        use crate::source::{FileSource, MapMode, Source};
        let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(false) };
        if !metadata.is_file() || metadata.len() != self.manifest().file_len(file) {
            return Ok(false);
        }
        let source = FileSource::open(path, MapMode::Never)?;
        let mut at = 0;
        let mut differs = false;
        for segment in &file.segments {
            let len = self.manifest().segment_len(segment);
            let source: &dyn Source = &source;
            let bytes = source.bytes(at, len)?;
            differs |= match segment {
                Segment::Literal(literal) => *literal != *bytes,
                Segment::Object(index, _) => {
                    let object = self.manifest().object(*index)?;
                    // Bytes that are no elements of the type have no id.
                    object.of.id(&bytes).map_or(true, |id| id != object.id)
                }
            };
            if differs {
                return Ok(false);
            }
            at += len;
            advance(options.observer, 0)?;
        }
        Ok(true)
    }

    fn restore<'f>(&self, file: &'f FileEntry, folder: &Path, options: &CheckoutOptions<'_>) -> Result<()> {
        let path = open_folders(folder, &file.path)?;
        let name = path.file_name().unwrap_or_default();
        let parent = path.parent().unwrap_or(folder);
        let to = Destination::derived(parent, name)?.overwrite(options.overwrite);
        let mut out = NewFile::create(to, &Options::default())?;
        let threads = parallel::resolve(options.threads);
        let most = AHEAD * threads as u64;
        let items: Vec<(u64, &Segment)> =
            file.segments.iter().map(|segment| (self.manifest().segment_len(segment), segment)).collect();
        let total = items.iter().map(|(len, _)| *len).fold(0, u64::saturating_add).min(most);
        let make = |segment: &'f Segment| match segment {
            Segment::Literal(bytes) => Ok((Cow::Borrowed(&bytes[..]), bytes.len())),
            Segment::Object(index, name) => {
                let object = self.manifest().object(*index)?;
                let threads = parallel::share(threads, object.len, total);
                let bytes = self.objects().pooled_verified(&object.id, threads);
                let bytes =
                    bytes.map_err(|error| if name.is_empty() { error } else { error.in_tensor(name) })?;
                Ok((Cow::Owned(bytes), object.len as usize))
            }
        };
        parallel::in_order(threads, items, most, make, |(bytes, len)| {
            out.write(&bytes[..len])?;
            if let Cow::Owned(buffer) = bytes {
                self.objects().recycle(buffer);
            }
            advance(options.observer, len as u64)
        })?;
        out.finish(options.durable)?;
        if file.executable {
            let failed = |error| Error::io("cannot set the mode", error);
            let mode = platform::mode_of(&std::fs::metadata(&path).map_err(failed)?) & 0o777;
            platform::set_mode(&path, mode | (mode & 0o444) >> 2).map_err(failed)?;
        }
        Ok(())
    }
}

/// Makes the folders on the way to a file. A symbolic link in the place of one would lead out of the
/// folder that is restored into.
fn open_folders(folder: &Path, path: &str) -> Result<PathBuf> {
    let mut at = folder.to_owned();
    let mut parts = path.split('/').peekable();
    while let Some(part) = parts.next() {
        at.push(part);
        if parts.peek().is_none() {
            break;
        }
        let failed = |error| Error::io("cannot create", error).in_file(&at);
        match std::fs::create_dir(&at) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(error)),
            _ => {}
        }
        if !std::fs::symlink_metadata(&at).map_err(failed)?.is_dir() {
            let message = "the version has a folder here, but this is not one";
            return Err(Error::invalid(message).in_file(&at));
        }
    }
    Ok(at)
}

/// A folder that is removed unless it gets its name.
struct Scratch(Option<PathBuf>);

impl Scratch {
    fn path(&self) -> &Path {
        self.0.as_deref().unwrap_or(Path::new(""))
    }

    fn rename(mut self, to: &Path, durable: bool) -> Result<()> {
        let failed = |error| Error::io("cannot finish", error).in_file(to);
        // As readable as other new folders: the random one is private.
        platform::set_mode(self.path(), 0o755).map_err(failed)?;
        rename_folder_new(self.path(), to)?;
        self.0 = None;
        if durable {
            sync_folder(to)?;
        }
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            let _ = std::fs::remove_dir_all(path); // hidden, and in no way
        }
    }
}
