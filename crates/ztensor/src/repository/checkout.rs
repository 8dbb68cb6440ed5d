//! Checkout: the files of a version, byte for byte.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::manifest::{FileEntry, Segment};
use super::object::ObjectType;
use super::restore::{THREAD_SPAN, check_id};
use super::version::Version;
use crate::base::pool::BufferPool;
use crate::base::{CACHE_BLOCK, parallel};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{ContentId, TensorHasher, TensorTree};
use crate::platform;
use crate::progress::{Observer, advance, finish};
use crate::remote::store::NewFile;
use crate::remote::{Options, is_url};
use crate::source::{FileSource, MapMode, Source};
use crate::write::atomic::{rename_folder_new, scratch_folder, sync_folder};
use crate::write::destination::Destination;
use crate::write::disk;

/// Shorter files are written without asking the disk for room. (case: benchmark/repository.py, speed)
const WORTH_RESERVING: u64 = 1 << 20;

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

    /// What threads do to a file, each for itself: a segment, or a span of a large object if they may share it.
    fn jobs<'f>(&self, file: &'f FileEntry, threads: usize, shared: bool) -> Result<Vec<Job<'f>>> {
        let mut jobs = Vec::with_capacity(file.segments.len());
        let mut at = 0;
        for segment in &file.segments {
            let len = self.manifest().segment_len(segment);
            let spans = match segment {
                Segment::Object(index, _) if shared && threads > 1 && len > 2 * THREAD_SPAN => {
                    let of = &self.manifest().object(*index)?.of;
                    let left = AtomicU64::new(len.div_ceil(THREAD_SPAN));
                    Some(Arc::new(Spans { tree: TensorTree::new(of.dtype, &of.shape)?, left }))
                }
                _ => None,
            };
            let step = if spans.is_some() { THREAD_SPAN } else { len.max(1) };
            for start in (0..len).step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
                let range = start..len.min(start.saturating_add(step));
                jobs.push(Job { at, segment, range, spans: spans.clone() });
            }
            at += len;
        }
        Ok(jobs)
    }

    /// Whether a file is what it would be replaced by.
    fn is_same(&self, file: &FileEntry, path: &Path, options: &CheckoutOptions<'_>) -> Result<bool> {
        let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(false) };
        if !metadata.is_file() || metadata.len() != self.manifest().file_len(file) {
            return Ok(false);
        }
        let source = FileSource::open(path, MapMode::Never)?;
        let (pool, differs) = (BufferPool::default(), AtomicBool::new(false));
        let threads = parallel::resolve(options.threads);
        parallel::for_each(threads, self.jobs(file, threads, true)?, |job| {
            if differs.load(Ordering::Relaxed) {
                return Ok(());
            }
            let same = match job.segment {
                Segment::Literal(bytes) => {
                    let mut same = true;
                    job.read(&source, &pool, |at, piece| {
                        same &= bytes.get(at as usize..).is_some_and(|rest| rest.starts_with(piece));
                        Ok(())
                    })?;
                    same
                }
                Segment::Object(index, _) => {
                    let object = self.manifest().object(*index)?;
                    match job.id(&object.of, &source, &pool) {
                        Ok(found) => found.is_none_or(|found| found == object.id),
                        // Bytes that are no elements of the type have no id.
                        Err(error) if error.kind() != ErrorKind::Io => false,
                        Err(error) => return Err(error),
                    }
                }
            };
            differs.fetch_or(!same, Ordering::Relaxed);
            advance(options.observer, 0)
        })?;
        Ok(!differs.into_inner())
    }

    /// Writes a file. Each thread decodes, hashes and writes objects of its own, so that bytes are still in
    /// its caches when they are written.
    fn restore(&self, file: &FileEntry, folder: &Path, options: &CheckoutOptions<'_>) -> Result<()> {
        let path = open_folders(folder, &file.path)?;
        let name = path.file_name().unwrap_or_default();
        let parent = path.parent().unwrap_or(folder);
        let to = Destination::derived(parent, name)?.overwrite(options.overwrite);
        let out = NewFile::create(to, &Options::default())?;
        let Some((target, _)) = out.temporary() else {
            return Err(Error::invalid("the version has a file here, but this is a device"));
        };
        // All of its room at once: a full disk is noticed before the work, and writing is cheaper.
        let len = self.manifest().file_len(file);
        if len >= WORTH_RESERVING {
            let reserved = disk::reserve(target, 0, len).and_then(|()| disk::set_len(target, len));
            reserved.map_err(|error| Error::io("cannot write", error))?;
        }
        let write = |at: u64, bytes: &[u8]| {
            disk::write_at(target, at, bytes).map_err(|error| Error::io("cannot write", error))?;
            advance(options.observer, bytes.len() as u64)
        };
        let threads = parallel::resolve(options.threads);
        let jobs = self.jobs(file, threads, self.objects().is_local())?;
        parallel::for_each(threads, jobs, |job| {
            let (object, name) = match job.segment {
                Segment::Literal(bytes) => return write(job.at, bytes),
                Segment::Object(index, name) => (self.manifest().object(*index)?, name),
            };
            let objects = self.objects();
            let restored = match &job.spans {
                None => objects.restore(&object.id, 1, |skip, bytes| write(job.at + skip, bytes)),
                Some(spans) => {
                    let mut span = spans.tree.span(job.range.start);
                    let each = |skip, bytes: &[u8]| {
                        span.update(bytes)?;
                        write(job.at + skip, bytes)
                    };
                    let done = objects.pieces(&object.id, job.range.clone(), 1, each);
                    done.and_then(|()| match spans.finish()? {
                        Some(found) => check_id(&object.id, &found),
                        None => Ok(()),
                    })
                }
            };
            restored.map_err(|error| if name.is_empty() { error } else { error.in_tensor(name) })
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

/// Part of a file that a thread restores or compares.
struct Job<'f> {
    /// Where the segment starts in the file.
    at: u64,
    segment: &'f Segment,
    /// The part of the segment.
    range: Range<u64>,
    /// What the part is hashed with, if it is not all of the segment.
    spans: Option<Arc<Spans>>,
}

/// An object that several threads have spans of.
struct Spans {
    tree: TensorTree,
    /// Spans that are not done.
    left: AtomicU64,
}

impl Spans {
    /// One more span is done; the id, if that was the last.
    fn finish(&self) -> Result<Option<ContentId>> {
        match self.left.fetch_sub(1, Ordering::AcqRel) {
            1 => self.tree.finish().map(Some),
            _ => Ok(None),
        }
    }
}

impl Job<'_> {
    /// Passes the bytes that a file has in its place on, with their places in the segment.
    fn read(
        &self,
        source: &dyn Source,
        pool: &BufferPool,
        mut each: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut buffer = pool.take((CACHE_BLOCK as u64).min(self.range.end - self.range.start))?;
        for start in self.range.clone().step_by(CACHE_BLOCK) {
            let len = (CACHE_BLOCK as u64).min(self.range.end - start);
            let piece = &mut buffer[..len as usize];
            source.read_at(self.at + start, piece)?;
            each(start, piece)?;
        }
        pool.put(buffer);
        Ok(())
    }

    /// The id of the bytes that a file has in the place of an object, unless other spans are not done yet.
    fn id(&self, of: &ObjectType, source: &dyn Source, pool: &BufferPool) -> Result<Option<ContentId>> {
        match &self.spans {
            None => {
                let mut hasher = TensorHasher::new(of.dtype, &of.shape)?;
                self.read(source, pool, |_, piece| hasher.update(piece))?;
                hasher.finish().map(Some)
            }
            Some(spans) => {
                let mut span = spans.tree.span(self.range.start);
                self.read(source, pool, |_, piece| span.update(piece))?;
                spans.finish()
            }
        }
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
