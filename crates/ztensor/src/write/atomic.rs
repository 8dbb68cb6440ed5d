//! Files that appear under their name only when they are complete.

use std::io::{self, IoSlice, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::disk;
use crate::error::{Error, Result};
use crate::remote::{self, Options, Place, Upload};

/// Asking the disk for less than this costs more than it saves.
const WORTH_RESERVING: u64 = 1 << 20;

/// A file that appears under its name when it is complete. Dropped before
/// [`commit`](AtomicFile::commit), it leaves nothing behind.
#[derive(Debug)]
pub(crate) enum AtomicFile {
    Local(LocalFile),
    /// Uploaded in parts, which the store shows when all are there.
    Remote(Box<Upload>),
}

impl AtomicFile {
    /// Starts a file that will replace what `path`, or a URL, names.
    pub(crate) fn create(path: &Path) -> Result<AtomicFile> {
        Self::create_with(path, &Options::default())
    }

    /// The same for a store that has to be told how to reach it.
    pub(crate) fn create_with(path: &Path, options: &Options) -> Result<AtomicFile> {
        match remote::place(path)? {
            Place::Local(path) => LocalFile::create(&path).map(AtomicFile::Local),
            Place::Remote(location) => Ok(AtomicFile::Remote(Box::new(Upload::create(&location, options)?))),
        }
    }

    /// Says that `len` more bytes will be written, at least.
    pub(crate) fn reserve(&mut self, len: u64) -> io::Result<()> {
        match self {
            AtomicFile::Local(file) => file.reserve(len),
            AtomicFile::Remote(_) => Ok(()),
        }
    }

    /// Puts the file under its name; `durable` waits until the disk has it, as a store
    /// always does.
    pub(crate) fn commit(self, durable: bool) -> Result<()> {
        match self {
            AtomicFile::Local(file) => file.commit(durable),
            AtomicFile::Remote(upload) => upload.finish(),
        }
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            AtomicFile::Local(file) => file.write(bytes),
            AtomicFile::Remote(upload) => upload.write(bytes),
        }
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            AtomicFile::Local(file) => file.write_vectored(pieces),
            AtomicFile::Remote(upload) => upload.write_vectored(pieces),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(()) // a file has no buffer of its own, and an upload sends parts when they are full
    }
}

/// A file being written beside its final place.
#[derive(Debug)]
pub(crate) struct LocalFile {
    temporary: NamedTempFile,
    target: PathBuf,
    position: u64,
    /// Up to where the disk keeps room for it.
    reserved: u64,
}

impl LocalFile {
    /// Starts a file that will replace `path`. A symlink is followed, so that the
    /// file it names is replaced; the mode of an existing file is kept.
    fn create(path: &Path) -> Result<LocalFile> {
        let failed = |error| Error::io("cannot create", error).in_file(path);
        let target = match std::fs::canonicalize(path) {
            Ok(target) => target,
            Err(error) if error.kind() == io::ErrorKind::NotFound => dangling(path),
            Err(error) => return Err(failed(error)),
        };
        let folder = disk::folder(&target);
        let mode = match std::fs::metadata(&target) {
            Ok(there) if there.is_dir() => {
                return Err(Error::invalid("this is a folder; a file name is needed").in_file(path));
            }
            // A file put in the place of a device or a pipe would take it from everyone.
            Ok(there) if !there.is_file() => {
                return Err(Error::invalid("this is a device or a pipe, not a file").in_file(path));
            }
            Ok(there) => there.permissions(),
            // What an ordinary new file gets; the process's mask applies.
            Err(_) => PermissionsExt::from_mode(0o666),
        };
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let temporary = tempfile::Builder::new()
            .prefix(&format!(".{name}."))
            .suffix(".tmp")
            .permissions(mode)
            .tempfile_in(folder)
            .map_err(failed)?;
        disk::created(temporary.path(), temporary.as_file()).map_err(failed)?;
        Ok(LocalFile { temporary, target, position: 0, reserved: 0 })
    }

    fn reserve(&mut self, len: u64) -> io::Result<()> {
        let end = self.position.saturating_add(len);
        if len >= WORTH_RESERVING && end > self.reserved {
            disk::reserve(self.temporary.as_file(), self.position, len)?;
            self.reserved = end;
        }
        Ok(())
    }

    fn commit(self, durable: bool) -> Result<()> {
        let failed = |error| Error::io("cannot finish", error).in_file(&self.target);
        if self.reserved > self.position {
            disk::set_len(self.temporary.as_file(), self.position).map_err(failed)?; // gives back the rest
        }
        if durable {
            disk::sync(self.temporary.as_file()).map_err(failed)?;
        }
        let (target, from) = (self.target.clone(), self.temporary.path().to_owned());
        let rename = || self.temporary.persist(&target).map(drop).map_err(|error| error.error);
        disk::rename(&from, &target, rename)
            .map_err(|error| Error::io("cannot finish", error).in_file(&target))?;
        if durable {
            sync_folder(&target)?;
        }
        Ok(())
    }
}

impl Write for LocalFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        disk::write_at(self.temporary.as_file(), self.position, bytes)?;
        self.position += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let written = disk::write_vectored_at(self.temporary.as_file(), self.position, pieces)?;
        self.position += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(()) // the file has no buffer of its own
    }
}

/// Writes a new file beside `path` and puts it there when it is complete: for files
/// that this library has no writer for. When `write` fails nothing is left of it.
pub fn write_atomically(
    path: &Path,
    write: impl FnOnce(&mut (dyn Write + Send)) -> Result<()>,
) -> Result<()> {
    let mut file = io::BufWriter::with_capacity(256 << 10, AtomicFile::create(path)?);
    write(&mut file).map_err(|error| error.in_file(path))?;
    match file.into_inner() {
        Ok(file) => file.commit(false),
        Err(error) => Err(Error::io("cannot write", error.into_error()).in_file(path)),
    }
}

/// Waits until the disk has the folder entry of `path`.
pub(crate) fn sync_folder(path: &Path) -> Result<()> {
    disk::sync_folder(path)
        .map_err(|error| Error::io("cannot sync the folder", error).in_file(disk::folder(path)))
}

/// Where a path leads that names no file yet: itself, or the end of a dangling symlink.
fn dangling(path: &Path) -> PathBuf {
    match std::fs::read_link(path) {
        Ok(link) if link.is_absolute() => link,
        Ok(link) => path.parent().unwrap_or(Path::new("")).join(link),
        Err(_) => path.to_owned(),
    }
}
