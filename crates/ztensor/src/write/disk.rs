//! The file operations that new files and edits consist of, one function each.
//!
//! Everything that changes a file or a folder on behalf of the writer or an
//! edit goes through here, so that tests can watch it: record each step, look
//! at the files between two steps, or let a step fail.

use std::fs::File;
use std::io::{self, IoSlice};
use std::path::Path;

use crate::platform;

/// One change of a file or a folder, about to be made.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(test), allow(dead_code))] // only tests look inside
pub(crate) enum Step<'a> {
    /// A folder entry appears for a file that was just made.
    Create(&'a Path, &'a File),
    /// Bytes are written at an offset.
    Write(&'a File, u64, &'a [u8]),
    /// A file gets a length.
    SetLen(&'a File, u64),
    /// The disk has all earlier changes of a file's bytes and length when this is done.
    Sync(&'a File),
    /// A folder entry gets another name, replacing what had it.
    Rename(&'a Path, &'a Path),
    /// A folder entry disappears.
    Remove(&'a Path),
    /// The disk has all earlier changes of folder entries when this is done.
    SyncFolder,
}

#[cfg(not(test))]
#[inline(always)]
fn step(_: Step<'_>) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
use watch::step;

/// Says that `file` was made under `path`.
pub(crate) fn created(path: &Path, file: &File) -> io::Result<()> {
    step(Step::Create(path, file))
}

/// Writes all bytes at an offset.
pub(crate) fn write_at(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    step(Step::Write(file, offset, bytes))?;
    platform::write_all_at(file, bytes, offset)
}

/// Writes pieces one after another at an offset, perhaps not all of them; says how many bytes.
pub(crate) fn write_vectored_at(file: &File, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    let mut at = offset;
    for piece in pieces {
        step(Step::Write(file, at, piece))?;
        at += piece.len() as u64;
    }
    platform::write_vectored_at(file, pieces, offset)
}

/// Asks the disk for `len` bytes from `offset` on, without changing the file's length: writing
/// them is then cheaper, and a full disk is noticed before the work and not after it.
pub(crate) fn reserve(file: &File, offset: u64, len: u64) -> io::Result<()> {
    platform::reserve(file, offset, len)
}

/// Cuts or extends a file.
pub(crate) fn set_len(file: &File, len: u64) -> io::Result<()> {
    step(Step::SetLen(file, len))?;
    file.set_len(len)
}

/// Waits until the disk has the file's bytes and length.
pub(crate) fn sync(file: &File) -> io::Result<()> {
    step(Step::Sync(file))?;
    file.sync_all()
}

/// Puts `from` in the place of `to` by means of `rename`.
pub(crate) fn rename(from: &Path, to: &Path, rename: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    step(Step::Rename(from, to))?;
    rename()
}

/// Removes a folder entry.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    step(Step::Remove(path))?;
    std::fs::remove_file(path)
}

/// Waits until the disk has the folder entry of `path`.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    step(Step::SyncFolder)?;
    platform::sync_folder(folder(path))
}

/// The folder that `path` lies in.
pub(crate) fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[cfg(test)]
pub(crate) mod watch {
    //! How tests see the steps that the current thread takes.

    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use super::*;

    type Watcher = Box<dyn FnMut(Step<'_>) -> io::Result<()>>;

    thread_local! {
        static WATCHER: RefCell<Option<Watcher>> = const { RefCell::new(None) };
    }

    /// Runs `work` while `watcher` sees each step before it is taken, and may fail it.
    pub(crate) fn during<T>(
        watcher: impl FnMut(Step<'_>) -> io::Result<()> + 'static,
        work: impl FnOnce() -> T,
    ) -> T {
        struct Unset;
        impl Drop for Unset {
            fn drop(&mut self) {
                WATCHER.set(None);
            }
        }
        WATCHER.set(Some(Box::new(watcher)));
        let _unset = Unset;
        work()
    }

    /// Runs `work` with every step from number `at` on failing, as after a kill; returns whether any did.
    pub(crate) fn killed_at(at: usize, work: impl FnOnce()) -> bool {
        let taken = Rc::new(Cell::new(0));
        let counted = taken.clone();
        let watcher = move |_: Step<'_>| {
            counted.set(counted.get() + 1);
            match counted.get() <= at {
                true => Ok(()),
                false => Err(io::Error::other("killed")),
            }
        };
        during(watcher, work);
        taken.get() > at
    }

    /// A watcher that fails every write for want of space. Other steps, such as removing files, work.
    pub(crate) fn full_disk(step: Step<'_>) -> io::Result<()> {
        match step {
            Step::Write(..) => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        }
    }

    pub(crate) fn step(step: Step<'_>) -> io::Result<()> {
        // Taken out meanwhile: what the watcher itself does is not watched.
        let Some(mut watcher) = WATCHER.take() else { return Ok(()) };
        let result = watcher(step);
        WATCHER.set(Some(watcher));
        result
    }
}
