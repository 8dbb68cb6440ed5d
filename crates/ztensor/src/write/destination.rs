//! Where a new file goes: a name that was chosen, or one that was derived from another file's.
//!
//! The two differ in symbolic links. A path that a person typed may be a link to the place they
//! mean; a name that a program made up (`model.zstn` for `model.safetensors`) in a folder that may
//! be a download must never lead out of that folder.

use std::ffi::OsStr;
use std::io;
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result};
use crate::platform::{self, is_stream};
use crate::remote::{self, Options, Place};
use crate::write::disk;

/// As many links as Linux follows in one path. (structural)
const MOST_LINKS: usize = 40;

/// The place of a new file, and what may happen to what is there.
///
/// Functions that write files take anything that converts into one: a path is
/// [`explicit`](Destination::explicit) and replaces what is there.
///
/// ```
/// use ztensor::Destination;
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let folder = folder.path();
/// let new = Destination::derived(folder, "model.zstn")?;
/// new.check()?;
/// assert!(Destination::derived(folder, "../model.zstn").is_err());
/// # Ok::<(), ztensor::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    path: PathBuf,
    /// A name that a program made up: the last component is never followed if it is a link.
    derived: bool,
    overwrite: bool,
    private: bool,
}

/// What a destination resolves to in the file system.
#[derive(Debug)]
pub(crate) enum Resolved {
    /// A file that is written beside `target` and renamed to it. `replace` says whether the
    /// rename may take the place of what is there.
    File { target: PathBuf, mode: u32, replace: bool },
    /// A character device, or the pipe behind `/dev/stdout`: bytes are written to it as they come.
    Stream(PathBuf),
}

impl Destination {
    /// A file called `name` in `folder`: for names that are derived from those of other files.
    ///
    /// A symbolic link of that name is not followed, and whatever has the name is not replaced,
    /// unless [`overwrite`](Destination::overwrite) says so: then the link itself is replaced.
    pub fn derived(folder: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<Destination> {
        let (folder, name) = (folder.as_ref(), name.as_ref());
        let mut components = Path::new(name).components();
        match (components.next(), components.next()) {
            (Some(Component::Normal(only)), None)
                if only == name && platform::is_file_name(&name.to_string_lossy()) => {}
            _ => {
                let message = format!("{name:?} is not the name of a file in a folder");
                return Err(Error::invalid(message).in_file(folder));
            }
        }
        Ok(Destination { path: folder.join(name), derived: true, overwrite: false, private: false })
    }

    /// The file or URL that `path` names: for paths that a person chose.
    ///
    /// A symbolic link counts as there already; with `overwrite`, the file that it leads to is
    /// replaced. Character devices and `/dev/stdout` are written to and never replaced.
    pub fn explicit(path: impl AsRef<Path>, overwrite: bool) -> Destination {
        Destination { path: path.as_ref().to_owned(), derived: false, overwrite, private: false }
    }

    /// Whether what has the name is replaced.
    pub fn overwrite(mut self, overwrite: bool) -> Destination {
        self.overwrite = overwrite;
        self
    }

    /// Only the owner may read the new file.
    #[cfg_attr(not(feature = "remote"), allow(dead_code))]
    pub(crate) fn private(mut self) -> Destination {
        self.private = true;
        self
    }

    /// The path, for messages and for looking at the file when it is complete.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Refuses what is there already, unless it may be replaced: before work is done in vain.
    /// The file is looked for once more when it gets its name.
    pub fn check(&self) -> Result<()> {
        match !self.overwrite && self.is_taken()? {
            true => Err(self.taken()),
            false => Ok(()),
        }
    }

    /// Whether the name is taken: by a file, a folder, or a symbolic link to anything or nothing.
    /// A device that is written to, not replaced, takes no name.
    pub fn is_taken(&self) -> Result<bool> {
        let path = match self.place()? {
            Place::Local(path) => path,
            Place::Remote(_) => return remote::store::exists(&self.path, &Options::default()),
        };
        match std::fs::symlink_metadata(&path) {
            Ok(_) => Ok(self.derived || !is_stream(&path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Error::io("cannot examine", error).in_file(path)),
        }
    }

    pub(crate) fn place(&self) -> Result<Place> {
        match self.derived {
            true => Ok(Place::Local(self.path.clone())),
            false => remote::place(&self.path),
        }
    }

    /// A folder for files that are needed until the new one is complete.
    pub(crate) fn scratch_folder(&self) -> PathBuf {
        match !self.derived && is_stream(&self.path) {
            true => std::env::temp_dir(),
            false => disk::folder(&self.path).to_owned(),
        }
    }

    /// Looks at what is there, at `path`, which is this destination's in the file system.
    pub(crate) fn resolve(&self, path: &Path) -> Result<Resolved> {
        let failed = |error| Error::io("cannot create", error).in_file(path);
        if !self.derived && is_stream(path) {
            return Ok(Resolved::Stream(path.to_owned()));
        }
        let there = match std::fs::symlink_metadata(path) {
            Ok(_) if !self.overwrite => return Err(self.taken()),
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };
        let (target, there) = match there {
            Some(there) if there.is_symlink() && !self.derived => {
                let target = follow(path).map_err(failed)?;
                let there = std::fs::symlink_metadata(&target).ok();
                (target, there)
            }
            there => (path.to_owned(), there),
        };
        let mode = match there {
            Some(there) if there.is_dir() => {
                return Err(Error::invalid("this is a folder; a file name is needed").in_file(path));
            }
            Some(there) if there.is_symlink() => 0o666,
            // A file put in the place of a device or a pipe would take it from everyone.
            Some(there) if !there.is_file() => {
                return Err(Error::invalid("this is a device or a pipe, not a file").in_file(path));
            }
            // The mode is kept; bits that would let the file run as its owner are not.
            Some(there) => platform::mode_of(&there) & 0o777,
            // What an ordinary new file gets; the process's mask applies.
            None => 0o666,
        };
        let mode = if self.private { 0o600 } else { mode };
        Ok(Resolved::File { target, mode, replace: self.overwrite })
    }

    /// The error of a name that is taken.
    pub(crate) fn taken(&self) -> Error {
        let found = match std::fs::symlink_metadata(&self.path) {
            Ok(there) if there.is_symlink() => "a symbolic link of this name exists already",
            _ => "it exists already",
        };
        let cause = format!("{found}: choose another name, or ask for it to be replaced");
        Error::io("cannot create", io::Error::new(io::ErrorKind::AlreadyExists, cause)).in_file(&self.path)
    }
}

impl<P: AsRef<Path>> From<P> for Destination {
    fn from(path: P) -> Destination {
        Destination::explicit(path, true)
    }
}

/// The end of a chain of links: what is there, or where the file would be that a dangling link names.
fn follow(path: &Path) -> io::Result<PathBuf> {
    match std::fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        target => return target,
    }
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        match std::fs::read_link(&path) {
            Ok(link) => path = disk::folder(&path).join(link),
            Err(_) => return Ok(path),
        }
    }
    Err(platform::too_many_links())
}

#[cfg(test)]
#[cfg_attr(not(unix), allow(dead_code, unused_imports))] // what only tests with links use
mod tests {
    #[cfg(unix)]
    use std::os::unix::fs::{FileTypeExt, symlink};

    use super::*;
    use crate::write::atomic::write_atomically;

    fn write(to: impl Into<Destination>, bytes: &[u8]) -> Result<()> {
        write_atomically(to, |out| out.write_all(bytes).map_err(|error| Error::io("cannot write", error)))
    }

    fn exists(error: &Error) -> bool {
        error.io_error().is_some_and(|cause| cause.kind() == io::ErrorKind::AlreadyExists)
    }

    #[cfg(unix)]
    #[test]
    fn a_derived_name_never_leads_out_of_its_folder() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("model");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(dir.path().join("precious"), b"keep").unwrap();
        for (name, leads_to) in [("new", "../planted"), ("old", "../precious"), ("loop", "loop")] {
            symlink(leads_to, folder.join(name)).unwrap();
            let derived = Destination::derived(&folder, name).unwrap();
            assert!(exists(&derived.check().unwrap_err()), "{name}");
            assert!(exists(&write(derived.clone(), b"x").unwrap_err()), "{name}");
            assert!(folder.join(name).is_symlink());
            write(derived.overwrite(true), b"x").unwrap();
            assert!(!folder.join(name).is_symlink(), "the link itself is replaced");
            assert_eq!(std::fs::read(folder.join(name)).unwrap(), b"x");
        }
        assert_eq!(std::fs::read(dir.path().join("precious")).unwrap(), b"keep");
        assert!(!dir.path().join("planted").exists());
        for name in ["", ".", "..", "../x", "/x", "a/b", "a/"] {
            assert!(Destination::derived(&folder, name).is_err(), "{name:?}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn an_explicit_path_follows_links_only_to_overwrite() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for (link, target) in [("dangling", "made"), ("twice", "dangling2"), ("full", "there")] {
            symlink(target, path(link)).unwrap();
        }
        symlink("made2", path("dangling2")).unwrap();
        std::fs::write(path("there"), b"old").unwrap();
        for (link, end) in [("dangling", "made"), ("twice", "made2"), ("full", "there")] {
            assert!(exists(&write(Destination::explicit(path(link), false), b"new").unwrap_err()));
            write(Destination::explicit(path(link), true), b"new").unwrap();
            assert!(path(link).is_symlink());
            assert_eq!(std::fs::read(path(end)).unwrap(), b"new", "{link}");
        }
        symlink("loop", path("loop")).unwrap();
        assert!(write(path("loop"), b"x").is_err());
    }

    #[test]
    fn a_file_that_appears_meanwhile_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        for destination in [
            Destination::derived(dir.path(), "a").unwrap(),
            Destination::explicit(dir.path().join("b"), false),
        ] {
            let path = destination.path().to_owned();
            let written = write_atomically(destination, |_| {
                std::fs::write(&path, b"another program's").unwrap();
                Ok(())
            });
            assert!(exists(&written.unwrap_err()));
            assert_eq!(std::fs::read(&path).unwrap(), b"another program's");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "a temporary file was left");
    }

    #[cfg(unix)]
    #[test]
    fn devices_are_written_to_and_stay() {
        let null = Path::new("/dev/null");
        write(Destination::explicit(null, false), b"gone").unwrap();
        write(Destination::explicit(null, true), b"gone").unwrap();
        assert!(std::fs::symlink_metadata(null).unwrap().file_type().is_char_device());
        assert_eq!(write("/dev/full", b"x").unwrap_err().kind(), crate::ErrorKind::Io);
        let (mut reader, writer) = std::io::pipe().unwrap();
        let path = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer));
        write(Destination::explicit(&path, false), b"through").unwrap();
        drop(writer);
        let mut found = Vec::new();
        io::Read::read_to_end(&mut reader, &mut found).unwrap();
        assert_eq!(found, b"through");
    }
}
