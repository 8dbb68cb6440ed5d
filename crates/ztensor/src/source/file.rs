use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use memmap2::{MmapOptions, MmapRaw};

use crate::edit::journal;
use crate::error::{Error, Result};
use crate::format::zt::MAGIC;
use crate::platform::{self, Mapped};
use crate::source::{CowRegion, Source, check_range};

/// Whether a file may be mapped.
///
/// Truncating a mapped file kills the process that touches the lost
/// part (`SIGBUS`); [`MapMode::Never`] reads instead and gets an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MapMode {
    /// Map when a view is asked for; reads that copy do not need the mapping.
    #[default]
    Auto,
    /// Never map: every byte is read, and views are refused.
    Never,
}

/// A regular file: mapped on demand, or read at positions.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    path: PathBuf,
    label: String,
    len: u64,
    mode: MapMode,
    /// The read-only mapping that `&[u8]` is made from, or why there is none.
    map: OnceLock<std::result::Result<memmap2::Mmap, String>>,
    /// The mapping whose writable pages are handed out; never read from here.
    cow: OnceLock<Option<MmapRaw>>,
    /// The file opened again with `O_DIRECT`.
    direct: OnceLock<Option<File>>,
    /// Length and time of the last change when the file was opened, if its lock could not be had.
    unlocked: Option<(u64, SystemTime)>,
}

/// How long to wait for an editor that is overwriting a tensor in place. Any process that can
/// read a file can hold its lock, so correctness must not depend on getting it.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// The same while a trusted journal says that an editor is at work.
const EDITOR_PATIENCE: Duration = Duration::from_secs(10);

impl FileSource {
    /// Opens a regular file. Anything else that a path can name (a folder, a
    /// pipe, a device) is refused without blocking on it.
    pub fn open(path: impl AsRef<Path>, mode: MapMode) -> Result<FileSource> {
        let path = path.as_ref();
        let file = platform::open_nonblocking(path, false)
            .map_err(|error| Error::io("cannot open", error).in_file(path))?;
        Self::from_file(file, path, mode)
    }

    /// Only the first `len` bytes: what follows them is not part of the file yet.
    pub(crate) fn limited_to(mut self, len: u64) -> FileSource {
        self.len = self.len.min(len);
        self
    }

    /// A source over an open file; `path` is for messages and for siblings.
    ///
    /// The lock of a file decides how it is read, never whether: only `.zt` files, which can be
    /// edited in place, are locked, and one whose lock is held for long is read without mapping it.
    pub fn from_file(file: File, path: impl Into<PathBuf>, mode: MapMode) -> Result<FileSource> {
        Self::with_patience(file, path.into(), mode, LOCK_PATIENCE)
    }

    fn with_patience(file: File, path: PathBuf, mode: MapMode, patience: Duration) -> Result<FileSource> {
        // The lock before the length: an editor that holds it is about to change both.
        let locked = || {
            hold_shared(&file, patience) || (journal::is_beside(&path) && hold_shared(&file, EDITOR_PATIENCE))
        };
        if !is_editable(&file) || locked() {
            return Self::unlocked(file, path, mode);
        }
        let mut source = Self::unlocked(file, path, MapMode::Never)?;
        let metadata = source.file.metadata();
        let changed = metadata.and_then(|metadata| Ok((metadata.len(), metadata.modified()?)));
        let failed = |error| Error::io("cannot examine", error).in_file(&source.path);
        source.unlocked = Some(changed.map_err(failed)?);
        Ok(source)
    }

    /// After a read without the lock: whether the file is still the one that was opened. An editor
    /// may have written new bytes where the old ones were.
    fn check_unchanged(&self) -> Result<()> {
        let Some(opened) = self.unlocked else { return Ok(()) };
        let metadata = self.file.metadata();
        let now = metadata.and_then(|metadata| Ok((metadata.len(), metadata.modified()?)));
        match now {
            Ok(now) if now == opened => Ok(()),
            Ok(_) => {
                let cause = io::Error::new(io::ErrorKind::WouldBlock, "open it again");
                let what = "the file was changed while its lock could not be had";
                Err(Error::io(what, cause).in_file(&self.path))
            }
            Err(error) => Err(Error::io("cannot examine", error).in_file(&self.path)),
        }
    }

    /// The same for the editor of a file, who needs no lock against itself.
    pub(crate) fn unlocked(file: File, path: PathBuf, mode: MapMode) -> Result<FileSource> {
        let metadata = file.metadata().map_err(|error| Error::io("cannot examine", error).in_file(&path))?;
        if !metadata.is_file() {
            let what = if metadata.is_dir() { "a folder" } else { "not a regular file" };
            return Err(Error::invalid(format!("this is {what}; a tensor file is needed")).in_file(&path));
        }
        Ok(FileSource {
            file,
            label: path.display().to_string(),
            path,
            len: metadata.len(),
            mode,
            map: OnceLock::new(),
            cow: OnceLock::new(),
            direct: OnceLock::new(),
            unlocked: None,
        })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    fn refuse_map(&self) -> std::result::Result<(), String> {
        if self.unlocked.is_some() {
            return Err(
                "another program holds the lock of this file, and may change it: read it instead".into()
            );
        }
        if self.mode == MapMode::Never {
            return Err("this reader was told not to map files: read it instead".into());
        }
        if usize::try_from(self.len).is_err() {
            return Err("the file is larger than the address space: read it instead".into());
        }
        Ok(())
    }

    fn map(&self) -> std::result::Result<memmap2::Mmap, String> {
        self.refuse_map()?;
        // SAFETY: the mapping is read-only and private to this source. Our own
        // editors never change bytes under a mapping, because every source that maps a `.zt` file,
        // the only kind they edit, holds its lock shared (`refuse_map`). What other programs do to a mapped file cannot be
        // prevented; the crate documents it and offers `MapMode::Never`.
        unsafe { MmapOptions::new().len(self.len as usize).map(&self.file) }
            .map_err(|error| format!("mapping failed ({error}): read it instead"))
    }
}

/// Whether the file is of the one kind that editors change in place.
fn is_editable(file: &File) -> bool {
    let mut head = [0; MAGIC.len()];
    platform::read_exact_at(file, &mut head, 0).is_ok() && head == *MAGIC
}

/// Takes the file's lock shared, so that no editor overwrites bytes in place
/// that are mapped, or between two reads of them. It is released when the file is closed.
/// Says whether it was to be had.
fn hold_shared(file: &File, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        match platform::try_lock_shared(file) {
            Ok(true) => return true,
            Ok(false) => {
                if Instant::now() >= deadline {
                    return false;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            // File systems without locks: nothing to hold, and no editor can
            // claim the file either.
            Err(_) => return true,
        }
    }
}

impl Source for FileSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn label(&self) -> &str {
        &self.label
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        check_range(self.len, offset, out.len() as u64).map_err(|error| error.in_file(&self.path))?;
        platform::read_exact_at(&self.file, out, offset).map_err(|error| {
            let doing = match error.kind() {
                io::ErrorKind::UnexpectedEof => "the file became shorter while it was read",
                _ => "cannot read",
            };
            Error::io(doing, error).in_file(&self.path)
        })?;
        self.check_unchanged()
    }

    fn is_uncached(&self, offset: u64) -> bool {
        platform::is_uncached(&self.file, offset)
    }

    fn read_direct(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        check_range(self.len, offset, out.len() as u64).map_err(|error| error.in_file(&self.path))?;
        let direct = self.direct.get_or_init(|| platform::open_direct(&self.file));
        match direct.as_ref().map(|file| platform::read_direct(file, offset, out)) {
            Some(Ok(true)) => self.check_unchanged(),
            // What fails there is read the usual mode, which also says what is wrong.
            _ => self.read_at(offset, out),
        }
    }

    fn read_direct_all(&self, parts: &mut [(u64, &mut [u8])]) -> Result<()> {
        for (offset, out) in &*parts {
            check_range(self.len, *offset, out.len() as u64).map_err(|error| error.in_file(&self.path))?;
        }
        let direct = self.direct.get_or_init(|| platform::open_direct(&self.file));
        match direct.as_ref().map(|file| platform::read_direct_all(file, parts)) {
            Some(Ok(true)) => self.check_unchanged(),
            _ => parts.iter_mut().try_for_each(|(offset, out)| self.read_at(*offset, out)),
        }
    }

    fn mapped(&self) -> Result<&[u8]> {
        if self.len == 0 {
            return Ok(&[]); // an empty range cannot be mapped, and need not be
        }
        match self.map.get_or_init(|| self.map()) {
            Ok(map) => Ok(map),
            Err(why) => Err(Error::unsupported(why.clone()).in_file(&self.path)),
        }
    }

    fn prefetch(&self, offset: u64, len: u64) {
        let inside = check_range(self.len, offset, len).is_ok();
        if let (true, Some(Ok(map))) = (inside, self.map.get()) {
            platform::populate(map, offset as usize, len as usize);
        }
    }

    fn will_read(&self, ranges: &[(u64, u64)]) {
        for &(offset, len) in ranges {
            platform::will_read(&self.file, offset, len);
        }
    }

    fn evict(&self, offset: u64, len: u64) {
        let page = platform::page_size();
        let end = offset.saturating_add(len).min(self.len);
        // Pages at both ends belong to other tensors, too; behind the last byte there is none.
        let end = if end == self.len { end.next_multiple_of(page) } else { end / page * page };
        let start = offset.next_multiple_of(page);
        let Some(len) = end.checked_sub(start).and_then(std::num::NonZeroU64::new) else { return };
        let shared = self
            .map
            .get()
            .and_then(|map| map.as_ref().ok())
            .map(|map| Mapped::Shared(map.as_ptr().cast_mut()));
        let private =
            self.cow.get().and_then(|map| map.as_ref()).map(|map| Mapped::Private(map.as_mut_ptr()));
        let maps: smallvec::SmallVec<[Mapped; 2]> = shared.into_iter().chain(private).collect();
        // SAFETY: the range is whole pages of both mappings, which are as long as the file.
        unsafe { platform::evict(&self.file, &maps, start, len) };
    }

    fn copy_on_write(&self) -> Option<CowRegion> {
        let map = self.cow.get_or_init(|| {
            if self.len == 0 || self.refuse_map().is_err() {
                return None;
            }
            let mut options = MmapOptions::new();
            // Without this the kernel reserves swap for a copy of every page,
            // and files larger than memory cannot be mapped.
            options.len(self.len as usize).no_reserve_swap();
            // SAFETY: the mapping becomes raw at once: no reference to its
            // bytes is ever made here, only its address is handed out.
            unsafe { options.map_copy(&self.file) }.ok().map(MmapRaw::from)
        });
        map.as_ref().map(|map| CowRegion { ptr: map.as_mut_ptr(), len: map.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OpenOptions, Writer};

    fn model(path: &Path) {
        let mut writer = Writer::create(path).unwrap();
        writer.add("w", &[3], &[1f32, 2.0, 3.0]).unwrap();
        writer.finish().unwrap();
    }

    fn impatient(path: &Path) -> FileSource {
        let file = File::open(path).unwrap();
        FileSource::with_patience(file, path.to_owned(), MapMode::Auto, Duration::ZERO).unwrap()
    }

    /// Any process that can read a file can hold its lock.
    fn locked(path: &Path) -> File {
        let other = File::open(path).unwrap();
        assert!(platform::try_lock_exclusive(&other).unwrap());
        other
    }

    #[test]
    fn a_file_whose_lock_is_held_is_read_without_mapping() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.zt");
        model(&path);
        let held = locked(&path);
        let source = impatient(&path);
        assert!(!source.is_mapped() && source.copy_on_write().is_none());
        let reader = OpenOptions::default().open_source(std::sync::Arc::new(source)).unwrap();
        assert_eq!(reader.read_as::<f32>("w").unwrap(), [1.0, 2.0, 3.0]);
        assert!(reader.view("w").unwrap_err().to_string().contains("lock"));
        // With the patience that everyone has, the same.
        let reader = OpenOptions::default().open(&path).unwrap();
        assert_eq!(reader.read_as::<f32>("w").unwrap(), [1.0, 2.0, 3.0]);
        drop(held);
        assert!(impatient(&path).is_mapped());
    }

    #[test]
    fn what_changes_while_it_is_read_without_the_lock_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.zt");
        model(&path);
        let held = locked(&path);
        let source = impatient(&path);
        let mut head = [0; 8];
        source.read_at(0, &mut head).unwrap();
        let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        File::options().write(true).open(&path).unwrap().set_modified(then).unwrap();
        let error = source.read_at(0, &mut head).unwrap_err();
        assert!(error.to_string().contains("open it again"), "{error}");
        drop(held);
    }

    #[test]
    fn files_that_nobody_edits_are_not_locked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.npy");
        std::fs::write(&path, b"\x93NUMPY and more").unwrap();
        let held = locked(&path);
        assert!(impatient(&path).is_mapped());
        drop(held);
        let source = impatient(&path);
        drop(locked(&path)); // the source holds none either
        drop(source);
    }
}
