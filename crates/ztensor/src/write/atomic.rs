//! Files that appear under their name only when they are complete.

#![allow(clippy::disallowed_methods)] // the one module that creates files

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::error::{Error, Result};
use crate::platform;
use crate::remote::{Options, Place, Upload};
use crate::write::destination::{Destination, Resolved};
use crate::write::disk;
use crate::write::writer::WRITE_BUFFER;

/// A file that appears under its name when it is complete. Dropped before
/// [`commit`](AtomicFile::commit), it leaves nothing behind.
#[derive(Debug)]
pub(crate) enum AtomicFile {
    Local(LocalFile),
    /// Uploaded in parts, which the store shows when all are there.
    Remote(Box<Upload>),
}

impl AtomicFile {
    /// Starts a new file.
    pub(crate) fn create(to: &Destination) -> Result<AtomicFile> {
        Self::create_with(to, &Options::default())
    }

    /// The same for a store that has to be told how to reach it.
    pub(crate) fn create_with(to: &Destination, options: &Options) -> Result<AtomicFile> {
        match to.place()? {
            Place::Local(path) => LocalFile::create(to, &path).map(AtomicFile::Local),
            Place::Remote(location) => Ok(AtomicFile::Remote(Box::new(Upload::create(&location, options)?))),
        }
    }

    /// The file while it is written and where it is until it gets its name, if it is one of this
    /// machine: for callers that write to any position of it.
    pub(crate) fn temporary(&self) -> Option<(&File, &Path)> {
        match self {
            AtomicFile::Local(LocalFile { out: Out::Temporary { file, .. }, .. }) => {
                Some((file.as_file(), file.path()))
            }
            _ => None,
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

/// A file without a name, for bytes that are read again by this process alone. It is gone when it is
/// closed, however the process ends.
pub(crate) fn unnamed(folder: Option<&Path>) -> io::Result<File> {
    match folder {
        Some(folder) => tempfile::tempfile_in(folder),
        None => tempfile::tempfile(),
    }
}

/// A file being written beside its final place, or a device being written to.
#[derive(Debug)]
pub(crate) struct LocalFile {
    out: Out,
    target: PathBuf,
    position: u64,
    /// Up to where the disk keeps room for it.
    reserved: u64,
}

#[derive(Debug)]
enum Out {
    Temporary { file: NamedTempFile, replace: bool },
    Stream(File),
}

impl LocalFile {
    fn create(to: &Destination, path: &Path) -> Result<LocalFile> {
        let failed = |error| Error::io("cannot create", error).in_file(path);
        let (out, target) = match to.resolve(path)? {
            Resolved::Stream(path) => {
                (Out::Stream(File::options().write(true).open(&path).map_err(failed)?), path)
            }
            Resolved::File { target, mode, replace } => {
                let name = target.file_name().unwrap_or_default().to_string_lossy();
                let prefix = format!(".{name}.");
                let mut builder = tempfile::Builder::new();
                builder.prefix(&prefix).suffix(".tmp");
                platform::temporary_mode(&mut builder, mode);
                let file = builder
                    .tempfile_in(disk::folder(&target))
                    .map_err(|error| cannot_create(disk::folder(&target), error).in_file(path))?;
                disk::created(file.path(), file.as_file()).map_err(failed)?;
                (Out::Temporary { file, replace }, target)
            }
        };
        Ok(LocalFile { out, target, position: 0, reserved: 0 })
    }

    fn reserve(&mut self, len: u64) -> io::Result<()> {
        let Out::Temporary { file, .. } = &self.out else { return Ok(()) };
        let end = self.position.saturating_add(len);
        if len >= WRITE_BUFFER as u64 && end > self.reserved {
            disk::reserve(file.as_file(), self.position, len)?;
            self.reserved = end;
        }
        Ok(())
    }

    fn commit(self, durable: bool) -> Result<()> {
        let LocalFile { out, target, position, reserved } = self;
        let failed = |error| Error::io("cannot finish", error).in_file(&target);
        let Out::Temporary { file, replace } = out else { return Ok(()) };
        if reserved > position {
            disk::set_len(file.as_file(), position).map_err(failed)?; // gives back the rest
        }
        if durable {
            disk::sync(file.as_file()).map_err(failed)?;
        }
        let from = file.path().to_owned();
        disk::rename(&from, &target, || platform::persist(file, &target, replace)).map_err(failed)?;
        if durable {
            sync_folder(&target)?;
        }
        Ok(())
    }
}

impl Write for LocalFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.out {
            Out::Temporary { file, .. } => disk::write_at(file.as_file(), self.position, bytes)?,
            Out::Stream(device) => device.write_all(bytes)?,
        }
        self.position += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let written = match &mut self.out {
            Out::Temporary { file, .. } => disk::write_vectored_at(file.as_file(), self.position, pieces)?,
            Out::Stream(device) => device.write_vectored(pieces)?,
        };
        self.position += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(()) // the file has no buffer of its own
    }
}

/// A file without a lasting name, for results on the way to `output`; it goes when it is dropped.
pub(crate) fn scratch_file(output: &Destination, suffix: &str) -> Result<NamedTempFile> {
    tempfile::Builder::new()
        .prefix(".z4dm.")
        .suffix(suffix)
        .tempfile_in(output.scratch_folder())
        .map_err(|error| Error::io("cannot create", error).in_file(output.path()))
}

/// Writes a new file beside its place and puts it there when it is complete: for files
/// that this library has no writer for. When `write` fails nothing is left of it.
pub fn write_atomically(
    to: impl Into<Destination>,
    write: impl FnOnce(&mut (dyn Write + Send)) -> Result<()>,
) -> Result<()> {
    let to = to.into();
    let path = to.path();
    let mut file = io::BufWriter::with_capacity(256 << 10, AtomicFile::create(&to)?);
    write(&mut file).map_err(|error| error.in_file(path))?;
    match file.into_inner() {
        Ok(file) => file.commit(false),
        Err(error) => Err(Error::io("cannot write", error.into_error()).in_file(path)),
    }
}

/// Gives a complete file its name. Like any new file, it takes the place of another one only where
/// that was asked for.
pub fn rename_new(from: &Path, to: &Destination) -> Result<()> {
    let failed = |error| Error::io("cannot finish", error).in_file(to.path());
    match to.resolve(to.path())? {
        Resolved::File { target, replace: true, .. } => std::fs::rename(from, target).map_err(failed),
        Resolved::File { target, .. } => {
            let temporary = tempfile::TempPath::try_from_path(from).map_err(failed)?;
            temporary.persist_noclobber(target).map_err(|error| {
                let (cause, temporary) = (error.error, error.path);
                let _ = temporary.keep(); // what was downloaded is not lost
                failed(cause)
            })
        }
        Resolved::Stream(_) => Err(Error::invalid("this is a device, not a file").in_file(to.path())),
    }
}

/// Moves a file to another name of the same file system, in the place of what has it.
pub(crate) fn move_file(from: &Path, to: &Path) -> Result<()> {
    disk::rename(from, to, || std::fs::rename(from, to))
        .map_err(|error| Error::io("cannot move into place", error).in_file(to))
}

/// Gives a folder its name, if nothing has that name yet.
pub(crate) fn rename_folder_new(from: &Path, to: &Path) -> Result<()> {
    disk::rename(from, to, || platform::rename_if_absent(from, to))
        .map_err(|error| Error::io("cannot finish", error).in_file(to))
}

/// A new folder with a random name in `folder`, for what is moved when it is complete.
pub(crate) fn scratch_folder(folder: &Path, prefix: &str) -> Result<PathBuf> {
    let made = tempfile::Builder::new().prefix(prefix).suffix(".tmp").tempdir_in(folder);
    made.map(tempfile::TempDir::keep).map_err(|error| cannot_create(folder, error).in_file(folder))
}

/// Waits until the disk has the folder entry of `path`.
pub(crate) fn sync_folder(path: &Path) -> Result<()> {
    disk::sync_folder(path)
        .map_err(|error| Error::io("cannot sync the folder", error).in_file(disk::folder(path)))
}

/// Why no file could be created in `folder`, without the temporary name that was tried.
fn cannot_create(folder: &Path, error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::NotFound && !folder.exists() {
        let error = io::Error::from(io::ErrorKind::NotFound);
        return Error::io_message(
            format!("cannot create: the folder {} does not exist", folder.display()),
            error,
        );
    }
    let plain = match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        // The temporary file's path is in the text; the kind says the same without it.
        None => error.kind().into(),
    };
    Error::io("cannot create", plain)
}
