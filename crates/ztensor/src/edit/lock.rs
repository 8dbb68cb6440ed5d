//! One editor at a time: the lock on the journal.
//!
//! Readers lock the file itself, so editors lock its journal: an editor and any
//! number of readers can have one file open.

use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use crate::edit::journal::{self, Journal};
use crate::error::{Error, Result};
use crate::platform;
use crate::trusted::{self, Access, Found};
use crate::write::disk;

/// The right to edit one file, held until it is dropped or its process ends.
#[derive(Debug)]
pub(crate) struct Lock {
    journal: File,
    path: PathBuf,
}

impl Lock {
    /// Takes the lock of a file, making its journal if there is none.
    /// `of` is the file: who may read it must be able to read the journal.
    pub(crate) fn take(target: &Path, of: &Metadata) -> Result<Lock> {
        let path =
            journal::path_of(target).map_err(|error| Error::io("cannot open", error).in_file(target))?;
        loop {
            let Some(journal) = open(&path, of).map_err(|error| unwritable(error, &path))? else {
                continue;
            };
            match platform::try_lock_exclusive(&journal) {
                Ok(true) => {}
                Ok(false) => return Err(busy(&journal).in_file(target)),
                Err(error) => {
                    return Err(Error::io("edits need a file system with locks", error).in_file(target));
                }
            }
            // The editor before us may have removed the journal that we waited at.
            if platform::is_file_at(&path, &journal) {
                let lock = Lock { journal, path };
                return match lock.sign() {
                    Ok(()) => Ok(lock),
                    Err(error) => lock.release().and(Err(error)),
                };
            }
        }
    }

    /// Says who holds the lock, unless that would erase what a crashed editor left.
    fn sign(&self) -> Result<()> {
        match self.read()? {
            Some(_) => Ok(()),
            None => self.clear(),
        }
    }

    /// Makes the journal say who holds the lock, and nothing of the file. It is not synced.
    pub(crate) fn clear(&self) -> Result<()> {
        disk::write_at(&self.journal, 0, &Journal::lock_only().encode())
            .map_err(|error| self.failed("cannot write the journal", error))
    }

    /// What a crashed editor left in the journal, if it got that far.
    pub(crate) fn read(&self) -> Result<Option<Journal>> {
        let journal = Journal::read(&self.journal);
        let journal = journal.map_err(|error| self.failed("cannot read the journal", error))?;
        Ok(journal.filter(Journal::describes))
    }

    /// Writes the journal; when this returns, the disk has its bytes.
    pub(crate) fn write(&self, journal: &Journal) -> Result<()> {
        disk::write_at(&self.journal, 0, &journal.encode())
            .and_then(|()| disk::sync(&self.journal))
            .map_err(|error| self.failed("cannot write the journal", error))
    }

    /// Gives up the lock. A journal that describes a state of the file stays.
    pub(crate) fn release(&self) -> Result<()> {
        match self.read()? {
            Some(_) => Ok(()),
            None => self.remove(),
        }
    }

    /// Removes the journal.
    pub(crate) fn remove(&self) -> Result<()> {
        disk::remove(&self.path).map_err(|error| self.failed("cannot remove the journal", error))
    }

    /// Waits until the disk knows of all changes of the folder.
    pub(crate) fn sync_folder(&self) -> Result<()> {
        disk::sync_folder(&self.path).map_err(|error| self.failed("cannot sync the folder", error))
    }

    fn failed(&self, doing: &str, error: io::Error) -> Error {
        Error::io(doing, error).in_file(&self.path)
    }
}

/// Opens or makes the journal of the file that `of` describes; `None` if it vanished in between.
fn open(path: &Path, of: &Metadata) -> io::Result<Option<File>> {
    match trusted::create(path, Access::Write, platform::mode_of(of) & 0o666) {
        Ok(file) => {
            disk::created(path, &file)?;
            return Ok(Some(file));
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    match trusted::open(path, Access::Write, Some(of))? {
        Found::File(file) => Ok(Some(file)),
        Found::Absent => Ok(None),
        Found::Untrusted(why) => {
            Err(io::Error::other(format!("{why}, so it is not trusted: remove it if no edit is in progress")))
        }
    }
}

fn unwritable(error: io::Error, journal: &Path) -> Error {
    let why = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "cannot write the journal of this edit (the folder must be writable too)"
        }
        _ => "cannot write the journal of this edit",
    };
    Error::io(why, error).in_file(journal)
}

fn busy(journal: &File) -> Error {
    // The other editor may not have written its name yet.
    let editor = match Journal::read(journal) {
        Ok(Some(journal)) => journal.editor,
        _ => "another editor".to_owned(),
    };
    let cause = io::Error::new(io::ErrorKind::WouldBlock, "try again when it is done");
    Error::io(format!("{editor} is editing this file"), cause)
}

/// Claims a file for changing bytes in place: only when no reader has it open.
pub(crate) fn claim_alone(file: &File) -> bool {
    matches!(platform::try_lock_exclusive(file), Ok(true))
}
