//! Files that are trusted for where they are: journals, cache blocks, partial downloads.
//!
//! Nothing in such a file proves where it comes from, so the file system has to: it is opened
//! without following a link and without waiting at a pipe, it is a regular file, it belongs to
//! this user (or to the owner of the file that it describes), and no other user can write to it.
#![allow(clippy::disallowed_methods)] // creates files exclusively, and private folders

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::path::Path;

use crate::platform;

/// What was found under a name.
#[derive(Debug)]
pub enum Found {
    /// A file that can be trusted.
    File(File),
    /// Nothing.
    Absent,
    /// Something that another user may have put there, or could change, and why.
    Untrusted(String),
}

/// What an opened file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading only.
    Read,
    /// Reading, and writing anywhere.
    Write,
    /// Reading, and writing at the end.
    Append,
}

/// Opens a file that is there. `of` is the file that it describes, whose owner is trusted too, and
/// whose writers may be its writers.
pub fn open(path: &Path, access: Access, of: Option<&Metadata>) -> io::Result<Found> {
    let mut options = OpenOptions::new();
    options.read(true).write(access == Access::Write).append(access == Access::Append);
    let file = match platform::open_no_follow(path, &mut options) {
        Ok(Ok(file)) => file,
        Ok(Err(why)) => return Ok(Found::Untrusted(why.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Absent),
        Err(error) => return Err(error),
    };
    let found = file.metadata()?;
    if !found.is_file() {
        return Ok(Found::Untrusted("it is not a regular file".into()));
    }
    Ok(match platform::distrust(&file, &found, of)? {
        Some(why) => Found::Untrusted(why),
        None => Found::File(file),
    })
}

/// Creates a file where none is; an error of the kind `AlreadyExists` if there is anything.
pub fn create(path: &Path, access: Access, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).append(access == Access::Append).create_new(true);
    platform::create_with_mode(&mut options, mode);
    options.open(path)
}

/// Opens a file to go on at its end, or creates it; refuses one that cannot be trusted.
pub fn append(path: &Path) -> io::Result<File> {
    loop {
        match open(path, Access::Append, None)? {
            Found::File(file) => return Ok(file),
            Found::Untrusted(why) => return Err(refused(path, &why)),
            // No more than its owner may write to it, whatever the mask: it would be refused later.
            Found::Absent => match create(path, Access::Append, 0o644) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => return created,
            },
        }
    }
}

/// The error for a file that cannot be trusted.
pub fn refused(path: &Path, why: &str) -> io::Error {
    let message = format!("{} is not trusted: {why}; remove it, or choose another folder", path.display());
    io::Error::new(io::ErrorKind::PermissionDenied, message)
}

/// Makes a folder, and those above it that are missing, for this user alone.
///
/// A folder that is there is used if it belongs to this user and no other can write to it. Folders
/// that others can write to are refused, except those where they cannot replace what is not theirs
/// (with the sticky bit, like `/tmp`): in these, only a folder of our own is used.
pub fn private_folder(root: &Path, name: &str) -> io::Result<()> {
    platform::private_folder(root, name)
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;
    use crate::platform::user as us;

    /// The superuser's id. (structural)
    const ROOT: u32 = 0;

    fn untrusted(path: &Path, of: Option<&Metadata>) -> bool {
        matches!(open(path, Access::Read, of).unwrap(), Found::Untrusted(_))
    }

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }

    #[test]
    fn links_pipes_folders_and_files_of_others_are_not_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        assert!(matches!(open(&path("none"), Access::Read, None).unwrap(), Found::Absent));
        std::fs::write(path("ours"), b"x").unwrap();
        set_mode(&path("ours"), 0o644);
        assert!(matches!(open(&path("ours"), Access::Write, None).unwrap(), Found::File(_)));
        symlink("ours", path("link")).unwrap();
        symlink("nowhere", path("dangling")).unwrap();
        std::fs::create_dir(path("folder")).unwrap();
        let pipe = std::process::Command::new("mkfifo").arg(path("pipe")).status().unwrap();
        assert!(pipe.success());
        for name in ["link", "dangling", "folder", "pipe"] {
            assert!(untrusted(&path(name), None), "{name}");
            assert!(append(&path(name)).is_err(), "{name}");
        }
        assert!(!path("nowhere").exists());
        // Waits for no reader of the pipe either.
        assert!(!matches!(open(&path("pipe"), Access::Write, None), Ok(Found::File(_))));
        for mode in [0o664, 0o646, 0o666] {
            set_mode(&path("ours"), mode);
            assert!(untrusted(&path("ours"), None), "{mode:o}");
            let of = std::fs::metadata(path("ours")).unwrap();
            assert!(!untrusted(&path("ours"), Some(&of)), "as writable as the file it describes");
        }
    }

    #[test]
    fn the_owner_decides() {
        if us() != ROOT {
            return; // only root can give files away
        }
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["theirs", "data"] {
            std::fs::write(path(name), b"x").unwrap();
            set_mode(&path(name), 0o644);
            std::os::unix::fs::chown(path(name), Some(65534), None).unwrap();
        }
        std::fs::write(path("ours"), b"x").unwrap();
        assert!(untrusted(&path("theirs"), None));
        assert!(untrusted(&path("theirs"), Some(&std::fs::metadata(path("ours")).unwrap())));
        assert!(!untrusted(&path("theirs"), Some(&std::fs::metadata(path("data")).unwrap())));
        assert!(append(&path("theirs")).is_err());
    }

    #[test]
    fn folders_are_private_and_those_of_everyone_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("made/root");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
        private_folder(&root, "a").unwrap();
        assert_eq!((mode(&root), mode(&root.join("a"))), (0o700, 0o700));
        set_mode(&root.join("a"), 0o775);
        private_folder(&root, "a").unwrap();
        assert_eq!(mode(&root.join("a")), 0o700);
        set_mode(&root, 0o777);
        let error = private_folder(&root, "a").unwrap_err();
        assert!(error.to_string().contains("every user can write to it"), "{error}");
        set_mode(&root, 0o1777);
        private_folder(&root, "a").unwrap();
        symlink(dir.path(), root.join("link")).unwrap();
        assert!(private_folder(&root, "link").is_err());
        if us() == ROOT {
            std::os::unix::fs::chown(root.join("a"), Some(65534), None).unwrap();
            assert!(private_folder(&root, "a").is_err());
            std::os::unix::fs::chown(&root, Some(65534), None).unwrap();
            assert!(private_folder(&root, "b").is_err());
        }
    }
}
