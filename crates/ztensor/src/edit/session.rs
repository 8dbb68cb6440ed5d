//! One edit of one file, from taking the lock to the last sync.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::catalog::Catalog;
use crate::edit::journal::Journal;
use crate::edit::lock::{self, Lock};
use crate::error::{Error, Result};
use crate::format::{zt, zt2};
use crate::platform;
use crate::source::{FileSource, MapMode, Source};
use crate::write::disk;

/// A file whose editor we are. Dropped before [`commit`](Session::commit), it
/// leaves the file as it was.
#[derive(Debug)]
pub(crate) struct Session {
    /// The file itself, behind any symlinks.
    target: PathBuf,
    file: File,
    lock: Lock,
    /// Length of the good state, which ends with a footer.
    good_len: u64,
    /// Bytes of an interrupted edit that were cut off at the start.
    pub(crate) dropped: u64,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing was changed; the journal may describe an interrupted edit.
    Locked,
    /// The file is whole, so that the journal is only a lock.
    Whole,
    /// The journal names the good length; the file may be longer.
    Begun,
    /// The journal is gone.
    Done,
}

impl Session {
    /// Takes the lock, cuts off what an interrupted edit left, and reads the catalog.
    /// The catalog's source is never mapped.
    pub(crate) fn open(path: &Path) -> Result<(Session, Catalog)> {
        let path = &crate::remote::local(path)?;
        Self::open_unnamed(path).map_err(|error| error.in_file(path))
    }

    fn open_unnamed(path: &Path) -> Result<(Session, Catalog)> {
        let cannot_open = |error| Error::io("cannot open for editing", error).in_file(path);
        let target = std::fs::canonicalize(path).map_err(cannot_open)?;
        let (file, lock) = loop {
            let file = platform::open_nonblocking(&target, true).map_err(cannot_open)?;
            let metadata = file.metadata().map_err(cannot_open)?;
            if metadata.is_file() && platform::link_count(&file).map_err(cannot_open)? > 1 {
                return Err(Error::unsupported(
                    "this file has several names (hard links): an edit under one of them could not be \
                     undone under another after a crash; copy the file, then edit the copy",
                ));
            }
            if !metadata.is_file() {
                return Err(Error::invalid("this is not a regular file"));
            }
            // Before a journal appears beside something that is no `.zt` file.
            let mut head = [0; 8];
            let read = platform::read_at(&file, &mut head, 0).map_err(cannot_open)?;
            check_magic(&head[..read])?;
            let lock = Lock::take(&target, &metadata)?;
            // Another editor may have put a new file in its place meanwhile.
            if platform::is_file_at(&target, &file) {
                break (file, lock);
            }
            lock.release()?;
        };
        let mut session = Session { target, file, lock, good_len: 0, dropped: 0, stage: Stage::Locked };
        session.recover()?;
        let source = session.source()?;
        session.good_len = source.len();
        let catalog = zt::parse_committed(source)?;
        session.stage = Stage::Whole;
        Ok((session, catalog))
    }

    /// Finishes what a crashed editor could not: undoes its unfinished edit.
    fn recover(&mut self) -> Result<()> {
        let source = self.source()?;
        let Some(journal) = self.lock.read()? else { return Ok(()) };
        if journal.good_len < source.len() && journal.applies_to(&*source)? {
            self.dropped = source.len() - journal.good_len;
            self.set_len(journal.good_len)?;
            self.sync()?;
        }
        Ok(())
    }

    /// The file as it is now. It takes no lock, since it would replace ours.
    fn source(&self) -> Result<Arc<dyn Source>> {
        let file = self.file.try_clone().map_err(|error| self.failed("cannot open", error))?;
        Ok(Arc::new(FileSource::unlocked(file, self.target.clone(), MapMode::Never)?))
    }

    /// Length of the good state.
    pub(crate) fn good_len(&self) -> u64 {
        self.good_len
    }

    /// Writes the journal. From here on bytes may be written behind the good length.
    pub(crate) fn begin(&mut self) -> Result<()> {
        self.lock.write(&Journal::describe(&*self.source()?, self.good_len)?)?;
        self.lock.sync_folder()?;
        self.stage = Stage::Begun;
        Ok(())
    }

    /// Makes the state that ends at `len` the good one; the disk must have all of it.
    /// From here on bytes that only the earlier state named may be overwritten.
    pub(crate) fn advance(&mut self, len: u64) -> Result<()> {
        self.lock.write(&Journal::describe(&*self.source()?, len)?)?;
        self.good_len = len;
        Ok(())
    }

    /// Writes bytes, and leaves it to the caller to say where that failed.
    pub(crate) fn write_raw(&self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        disk::write_at(&self.file, offset, bytes)
    }

    pub(crate) fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.write_raw(offset, bytes).map_err(|error| self.failed("cannot write", error))
    }

    pub(crate) fn set_len(&self, len: u64) -> Result<()> {
        disk::set_len(&self.file, len).map_err(|error| self.failed("cannot change the length", error))
    }

    pub(crate) fn sync(&self) -> Result<()> {
        disk::sync(&self.file).map_err(|error| self.failed("cannot sync", error))
    }

    /// Whether no reader has the file open. If so, none can open it until the edit ends.
    pub(crate) fn claim_alone(&self) -> bool {
        lock::claim_alone(&self.file)
    }

    /// Checks that the file still has its name, so that the edit is not made in vain.
    pub(crate) fn check_name(&self) -> Result<()> {
        match platform::is_file_at(&self.target, &self.file) {
            true => Ok(()),
            false => Err(Error::io(
                "the edit was not made",
                std::io::Error::new(
                    std::io::ErrorKind::NotFound,
                    "the file was moved, replaced or deleted meanwhile",
                ),
            )
            .in_file(&self.target)),
        }
    }

    /// Clears and removes the journal, which makes the edit final. The disk has it all when this returns.
    ///
    /// Cleared first: where a file that is open for reading keeps its name until it is closed (Windows without POSIX
    /// semantics, Wine), the next editor can still open the journal, and would take the edit back.
    pub(crate) fn commit(mut self) -> Result<()> {
        self.check_name()?;
        self.lock.clear()?;
        self.stage = Stage::Whole;
        self.lock.remove()?;
        self.stage = Stage::Done;
        self.lock.sync_folder()
    }

    fn failed(&self, doing: &str, error: std::io::Error) -> Error {
        Error::io(doing, error).in_file(&self.target)
    }

    fn roll_back(&self) -> Result<()> {
        if self.stage == Stage::Locked {
            return self.lock.release();
        }
        if self.stage == Stage::Begun && self.source()?.len() > self.good_len {
            self.set_len(self.good_len)?;
            self.sync()?;
        }
        self.lock.remove()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.stage != Stage::Done {
            // Should this fail, the journal stays and names the good length:
            // readers open that, and the next editor cuts the file there.
            let _ = self.roll_back();
        }
    }
}

/// Refuses what does not start like a `.zt` file of the version that is written.
pub(crate) fn check_magic(head: &[u8]) -> Result<()> {
    if head == zt::MAGIC {
        return Ok(());
    }
    zt2::refuse_edit(head)?;
    Err(Error::unsupported(match head == zt::v01::MAGIC {
        true => "files of version 0.1 cannot be edited: migrate this one to the current version first",
        false => "only .zt files can be edited, and this is not one",
    }))
}
