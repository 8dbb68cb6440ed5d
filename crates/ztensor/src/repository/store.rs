//! The folder or the object store that a repository lies in: a few operations on small files,
//! none of which replaces a file that is there.

use std::fs::File;
use std::io::ErrorKind as Io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::names::LOCK;
use crate::base::parallel;
use crate::error::{Error, ErrorKind, Result};
use crate::platform;
use crate::remote::store::{self, Entry, NewFile};
use crate::remote::{self, Options, Place};
use crate::source::{self, MapMode, Source};
use crate::trusted;
use crate::write::Writer;
use crate::write::atomic::sync_folder;
use crate::write::destination::Destination;
use crate::write::disk;

/// How long a lock is waited for.
const PATIENCE: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(20);

/// Where a repository is.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    root: PathBuf,
    remote: Options,
    local: Option<PathBuf>,
    /// Requests to a store at a time.
    connections: usize,
}

/// A small file that is about to be written.
pub(crate) struct SmallFile<'a> {
    pub(crate) name: String,
    pub(crate) bytes: &'a [u8],
    /// Whether it takes the place of one that is there; otherwise that one has the same bytes, by its name.
    pub(crate) replace: bool,
}

/// The lock of a repository in a folder, until it is dropped: closing the file releases it.
pub(crate) struct Lock {
    _file: Option<File>,
}

impl Store {
    pub(crate) fn new(root: &Path, remote: Options) -> Result<Store> {
        let (local, connections) = match remote::place(root)? {
            Place::Local(path) => (Some(path), 1),
            Place::Remote(location) => (None, store::connections(&location, &remote)?),
        };
        Ok(Store { root: root.to_owned(), remote, local, connections })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn is_local(&self) -> bool {
        self.local.is_some()
    }

    /// Small files that are read at a time: all that a store may be asked for, one of a folder.
    pub(crate) fn connections(&self) -> usize {
        self.connections
    }

    pub(crate) fn remote(&self) -> &Options {
        &self.remote
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        match &self.local {
            Some(folder) => folder.join(name),
            None => store::join(&self.root, name),
        }
    }

    /// All bytes of a small file; `None` if there is none.
    pub(crate) fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        match store::read(self.path(name), limit, &self.remote) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes a small file where none is; `false` if there is one. The disk has it when this returns.
    pub(crate) fn write_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let path = self.path(name);
        if self.local.is_none() {
            return store::write_new(path, bytes, &self.remote);
        }
        let written =
            NewFile::create(Destination::explicit(path, false), &self.remote).and_then(|mut file| {
                file.write(bytes)?;
                file.finish(true)
            });
        match written {
            Ok(()) => Ok(true),
            Err(error) if is_taken(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes small files in this order: what a later one names is there before it. The disk has all of
    /// them when this returns; it is asked for all at once, which takes about as long as for one.
    pub(crate) fn write_in_order(&self, files: &[SmallFile<'_>], threads: usize) -> Result<()> {
        let Some((last, first)) = files.split_last() else { return Ok(()) };
        if self.local.is_none() {
            parallel::for_each(threads, first.iter().collect(), |file| self.write_small(file))?;
            return self.write_small(last);
        }
        let mut new = Vec::with_capacity(files.len());
        for file in files {
            let path = self.path(&file.name);
            let there = match file.replace {
                // One that was killed may have left another.
                true => store::read(&path, file.bytes.len() as u64, &self.remote)
                    .is_ok_and(|bytes| bytes == file.bytes),
                false => path.exists(),
            };
            if !there {
                let to = Destination::explicit(path, file.replace);
                let mut created = NewFile::create(to, &self.remote)?;
                created.write(file.bytes)?;
                new.push(created);
            }
        }
        parallel::for_each(threads, new.iter_mut().collect(), |file: &mut NewFile| file.sync())?;
        for created in new {
            match created.finish(false) {
                Err(error) if !is_taken(&error) => return Err(error),
                _ => {}
            }
        }
        // Also of files that were there: who wrote them may not have got so far.
        let mut folders: Vec<PathBuf> = files.iter().map(|file| self.path(&file.name)).collect();
        folders.dedup_by(|a, b| a.parent() == b.parent());
        parallel::for_each(threads, folders, |path| sync_folder(&path))
    }

    fn write_small(&self, file: &SmallFile<'_>) -> Result<()> {
        match file.replace {
            true => self.replace(&file.name, file.bytes),
            false => self.write_new(&file.name, file.bytes).map(drop),
        }
    }

    /// Writes a small file in the place of what is there: for what can be made again from the rest.
    pub(crate) fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut file = NewFile::create(Destination::explicit(self.path(name), true), &self.remote)?;
        file.write(bytes)?;
        file.finish(true)
    }

    /// The files below a prefix; those that are being written are left out.
    pub(crate) fn list(&self, prefix: &str) -> Result<Vec<Entry>> {
        let mut found = store::list(self.path(prefix), &self.remote)?;
        found.retain(|entry| !entry.name.split('/').any(|part| part.starts_with('.')));
        Ok(found)
    }

    /// Removes a file; it is no error if there is none.
    pub(crate) fn delete(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        if self.local.is_none() {
            return store::delete(path, &self.remote);
        }
        match disk::remove(&path) {
            Err(error) if error.kind() != Io::NotFound => {
                Err(Error::io("cannot remove", error).in_file(path))
            }
            _ => Ok(()),
        }
    }

    /// Opens a large file.
    pub(crate) fn source(&self, name: &str) -> Result<Arc<dyn Source>> {
        source::open(self.path(name), MapMode::Auto, &self.remote)
    }

    /// Opens a large file whose length is known, which saves asking a store for it.
    pub(crate) fn sized_source(&self, name: &str, len: u64) -> Result<Arc<dyn Source>> {
        source::open_sized(self.path(name), MapMode::Auto, &self.remote, len)
    }

    /// A writer of a new `.zt` file, which the disk has when it is finished.
    pub(crate) fn writer(&self, name: &str) -> Result<Writer<'static>> {
        let path = self.path(name);
        let to = Destination::explicit(&path, false);
        if self.local.is_none() {
            return Writer::create_remote(to, &self.remote);
        }
        self.make_folder(name)?;
        Writer::create_durable(to)
    }

    fn make_folder(&self, name: &str) -> Result<()> {
        match self.path(name).parent().filter(|_| self.local.is_some()) {
            Some(folder) => std::fs::create_dir_all(folder)
                .map_err(|error| Error::io("cannot create", error).in_file(folder)),
            None => Ok(()),
        }
    }

    /// Takes the lock: writers share it while they change a ref, collection of garbage has it alone.
    /// Stores have none.
    pub(crate) fn lock(&self, alone: bool) -> Result<Lock> {
        let Some(folder) = &self.local else { return Ok(Lock { _file: None }) };
        let path = folder.join(LOCK);
        let failed = |error| Error::io("cannot lock", error).in_file(&path);
        let file = trusted::append(&path).map_err(failed)?;
        let start = Instant::now();
        loop {
            let taken = match alone {
                true => platform::try_lock_exclusive(&file),
                false => platform::try_lock_shared(&file),
            };
            if taken.map_err(failed)? {
                return Ok(Lock { _file: Some(file) });
            }
            if start.elapsed() >= PATIENCE {
                let cause = std::io::Error::new(
                    Io::WouldBlock,
                    "another process is writing to this repository: try again when it is done",
                );
                return Err(failed(cause));
            }
            std::thread::sleep(POLL);
        }
    }
}

/// Whether an error says that there is no such file.
pub(crate) fn is_absent(error: &Error) -> bool {
    error.kind() == ErrorKind::NotFound
        || error.io_error().is_some_and(|cause| matches!(cause.kind(), Io::NotFound | Io::NotADirectory))
}

fn is_taken(error: &Error) -> bool {
    error.io_error().is_some_and(|cause| cause.kind() == Io::AlreadyExists)
}
