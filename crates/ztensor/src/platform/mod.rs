//! What differs between operating systems: positioned reads and writes, opening without following
//! links, locks, identity and permissions of files, renames, and control of the page cache.
//!
//! Every module has the same functions; the rest of the crate knows no system. `unix.rs` is what
//! POSIX systems share, `linux.rs` and `bsd.rs` (macOS and the BSDs) add to it; `wasm.rs` has no files.
//! A system that cannot do something says so in the function's comment there.

#[cfg(all(unix, not(target_os = "linux")))]
mod bsd;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod o_direct;
#[cfg(unix)]
mod unix;
#[cfg(not(any(unix, windows)))]
mod wasm;
#[cfg(windows)]
mod windows;

#[cfg(all(unix, not(target_os = "linux")))]
pub(crate) use bsd::*;
#[cfg(target_os = "linux")]
pub(crate) use linux::*;
#[cfg(unix)]
pub(crate) use unix::*;
#[cfg(not(any(unix, windows)))]
pub(crate) use wasm::*;
#[cfg(windows)]
pub(crate) use windows::*;

use std::fs::File;

/// What opening a path without following a link found: a file or anything else that can be opened (look
/// at its metadata), or what it is instead.
pub(crate) type Opened = Result<File, &'static str>;

/// A symbolic link, or another kind of reparse point.
#[cfg(any(unix, windows))]
const LINK: &str = "it is a symbolic link";

/// A pipe without a reader, a socket, a folder.
#[cfg(any(unix, windows))]
const NOT_REGULAR: &str = "it is not a regular file";

/// Pages of a mapping that are not needed any more.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code))] // others have no such advice
pub(crate) enum Mapped {
    /// The first byte of a read-only mapping.
    Shared(*mut u8),
    /// The first byte of a copy-on-write mapping: what was written to it must stay.
    Private(*mut u8),
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn bytes_are_read_and_written_at_positions() {
        let dir = tempfile::tempdir().unwrap();
        let file =
            File::options().read(true).write(true).create_new(true).open(dir.path().join("f")).unwrap();
        write_all_at(&file, b"0123456789", 5).unwrap();
        let pieces = [io::IoSlice::new(b""), io::IoSlice::new(b"ab"), io::IoSlice::new(b"cd")];
        let written = write_vectored_at(&file, &pieces, 7).unwrap();
        assert!((1..=4).contains(&written));
        write_all_at(&file, &b"abcd"[written..], 7 + written as u64).unwrap();
        let mut found = [9; 15];
        read_exact_at(&file, &mut found, 0).unwrap();
        assert_eq!(&found, b"\0\0\0\0\x0001abcd6789");
        assert_eq!(read_at(&file, &mut found, 13).unwrap(), 2);
        let error = read_exact_at(&file, &mut found, 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(read_at(&file, &mut found, 1 << 40).unwrap(), 0);
    }

    /// Locks are advisory everywhere: the bytes of a locked file can be read and written.
    #[test]
    fn a_lock_excludes_locks_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"bytes").unwrap();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let (one, two, three) = (open(), open(), open());
        assert!(try_lock_shared(&one).unwrap() && try_lock_shared(&two).unwrap());
        assert!(!try_lock_exclusive(&three).unwrap());
        write_all_at(&three, b"BYTES", 0).unwrap();
        drop((one, two));
        assert!(try_lock_exclusive(&three).unwrap());
        let four = open();
        assert!(!try_lock_shared(&four).unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"BYTES");
        write_all_at(&four, b"bytes", 0).unwrap();
        drop(three);
        assert!(try_lock_shared(&four).unwrap());
    }

    #[test]
    fn a_file_is_told_from_another_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["a", "b"] {
            std::fs::write(path(name), name).unwrap();
        }
        let file = File::open(path("a")).unwrap();
        assert!(is_file_at(&path("a"), &file) && !is_file_at(&path("b"), &file));
        assert!(!is_file_at(&path("none"), &file));
        assert_eq!(link_count(&file).unwrap(), 1);
        std::fs::hard_link(path("a"), path("c")).unwrap();
        assert!(is_file_at(&path("c"), &file));
        assert_eq!(link_count(&file).unwrap(), 2);
    }

    #[test]
    fn a_folder_gets_a_name_that_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["from", "taken"] {
            std::fs::create_dir(path(name)).unwrap();
        }
        assert!(rename_if_absent(&path("from"), &path("taken")).is_err());
        rename_if_absent(&path("from"), &path("to")).unwrap();
        assert!(path("to").is_dir() && !path("from").exists());
        sync_folder(dir.path()).unwrap();
    }
}
