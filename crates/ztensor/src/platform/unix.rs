//! What POSIX systems share.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::Errno;

use super::{LINK, NOT_REGULAR, Opened};
use crate::base::trusted::refused;

/// Write permission of the group and of everyone. (structural)
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;
const ROOT: u32 = 0;

/// Reads once at an offset.
#[inline]
pub(crate) fn read_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<usize> {
    file.read_at(out, offset)
}

/// Fills `out` from an offset on.
#[inline]
pub(crate) fn read_exact_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<()> {
    file.read_exact_at(out, offset)
}

/// Writes all bytes at an offset.
#[inline]
pub(crate) fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    file.write_all_at(bytes, offset)
}

/// Writes pieces one after another at an offset, perhaps not all of them; says how many bytes.
#[inline]
pub(crate) fn write_vectored_at(file: &File, pieces: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
    Ok(rustix::io::pwritev(file, pieces, offset)?)
}

/// Opens whatever a path names for reading, and for writing if asked; a pipe does not block it.
pub(crate) fn open_nonblocking(path: &Path, write: bool) -> io::Result<File> {
    // Opening a FIFO would otherwise block until a writer opens it.
    OpenOptions::new().read(true).write(write).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)
}

/// Opens what is there, unless it is a link; a pipe does not block it.
pub(crate) fn open_no_follow(path: &Path, options: &mut OpenOptions) -> io::Result<Opened> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    match options.custom_flags(flags.bits() as i32).open(path) {
        Ok(file) => Ok(Ok(file)),
        Err(error) if is(&error, Errno::LOOP) => Ok(Err(LINK)),
        Err(error) if is(&error, Errno::NXIO) || is(&error, Errno::ISDIR) => Ok(Err(NOT_REGULAR)),
        Err(error) => Err(error),
    }
}

/// Opens a canonical path, of which no part is a link; one that has become a link since fails.
pub(crate) fn open_without_links(path: &Path) -> io::Result<File> {
    let folder_flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | super::FOLDER_ONLY;
    // Not blocking: opening a FIFO would otherwise block until a writer opens it.
    let file_flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mut parts = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name),
        _ => None,
    });
    let mut folder: OwnedFd = rustix::fs::open("/", folder_flags, Mode::empty())?;
    let Some(mut name) = parts.next() else { return Err(io::ErrorKind::IsADirectory.into()) };
    for next in parts {
        folder = openat(&folder, name, folder_flags, Mode::empty())?;
        name = next;
    }
    Ok(openat(&folder, name, file_flags, Mode::empty())?.into())
}

/// Whether a name can be that of a file in a folder, beyond being one path component.
pub(crate) fn is_file_name(_: &str) -> bool {
    true
}

/// Why a file that is trusted for where it is must not be believed: its owner, or other writers.
/// The owner of the file that it describes is trusted too, and that file's writers.
pub(crate) fn distrust(_: &File, found: &Metadata, of: Option<&Metadata>) -> io::Result<Option<String>> {
    let owner = found.uid();
    if owner != user() && owner != ROOT && of.is_none_or(|of| of.uid() != owner) {
        return Ok(Some(format!("it belongs to another user (user id {owner})")));
    }
    let allowed = of.map_or(0, |of| of.mode() & OTHERS_WRITE);
    if found.mode() & OTHERS_WRITE & !allowed != 0 {
        return Ok(Some(format!("other users can write to it (mode {:o})", found.mode() & 0o777)));
    }
    Ok(None)
}

/// The permissions of a file that is about to be created.
pub(crate) fn create_with_mode(options: &mut OpenOptions, mode: u32) {
    options.mode(mode);
}

/// Likewise for a temporary file.
pub(crate) fn temporary_mode(builder: &mut tempfile::Builder<'_, '_>, mode: u32) {
    builder.permissions(PermissionsExt::from_mode(mode));
}

/// Permission bits of a file.
pub(crate) fn mode_of(metadata: &Metadata) -> u32 {
    metadata.mode() & 0o7777
}

/// Changes the permission bits of what a path names.
pub(crate) fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode))
}

/// Makes `name` in `root`, and the folders above it that are missing, for this user alone; refuses
/// folders of others, or that others can write to and replace things in.
pub(crate) fn private_folder(root: &Path, name: &str) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(root)?;
    let metadata = std::fs::metadata(root)?;
    let (owner, mode) = (metadata.uid(), metadata.mode());
    if mode & 0o002 != 0 && mode & STICKY == 0 {
        return Err(refused(root, &format!("every user can write to it (mode {:o})", mode & 0o7777)));
    }
    if owner != user() && owner != ROOT {
        return Err(refused(root, &format!("it belongs to another user (user id {owner})")));
    }
    let folder = root.join(name);
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let metadata = std::fs::symlink_metadata(&folder)?;
    if !metadata.is_dir() || metadata.uid() != user() {
        let found = if metadata.is_dir() { "it belongs to another user" } else { "it is not a folder" };
        return Err(refused(&folder, found));
    }
    if metadata.mode() & OTHERS_WRITE != 0 {
        set_mode(&folder, 0o700)?;
    }
    Ok(())
}

/// The user whose permissions the process has.
pub(crate) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Device and inode number.
#[cfg(test)]
pub(crate) fn identity(file: &File) -> io::Result<(u64, u64)> {
    let metadata = file.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Whether `path` leads to that very file.
pub(crate) fn is_file_at(path: &Path, file: &File) -> bool {
    match (std::fs::metadata(path), file.metadata()) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

/// How many names a file has.
pub(crate) fn link_count(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.nlink())
}

/// Whether bytes flow through what a path leads to: a character device, or a pipe without a name
/// that `/dev/stdout` or `/dev/fd/N` stands for. Opening a named pipe could wait forever.
pub(crate) fn is_stream(path: &Path) -> bool {
    let Ok(metadata) = std::fs::metadata(path) else { return false };
    let kind = metadata.file_type();
    let nameless = || std::fs::canonicalize(path).is_err();
    kind.is_char_device() || ((kind.is_fifo() || kind.is_socket()) && metadata.nlink() <= 1 && nameless())
}

/// The error of a chain of links that does not end.
pub(crate) fn too_many_links() -> io::Error {
    Errno::LOOP.into()
}

/// Takes the file's lock (`flock`) shared, if it is to be had. It ends when the file is closed.
pub(crate) fn try_lock_shared(file: &File) -> io::Result<bool> {
    try_lock(file, FlockOperation::NonBlockingLockShared)
}

/// Takes the file's lock for this process alone, if it is to be had.
pub(crate) fn try_lock_exclusive(file: &File) -> io::Result<bool> {
    try_lock(file, FlockOperation::NonBlockingLockExclusive)
}

fn try_lock(file: &File, operation: FlockOperation) -> io::Result<bool> {
    loop {
        match flock(file, operation) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Gives a complete temporary file its name; `replace` says whether it may take that of another.
pub(crate) fn persist(file: tempfile::NamedTempFile, to: &Path, replace: bool) -> io::Result<()> {
    let renamed = if replace { file.persist(to) } else { file.persist_noclobber(to) };
    renamed.map(drop).map_err(|error| error.error)
}

/// Gives a file or a folder another name, if nothing has that name yet.
#[allow(clippy::disallowed_methods)] // called by `write::atomic`
pub(crate) fn rename_if_absent(from: &Path, to: &Path) -> io::Result<()> {
    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            // File systems without that flag.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
            renamed => return renamed.map_err(io::Error::from),
        }
    }
    // Renaming a folder replaces an empty one at most.
    match std::fs::symlink_metadata(to) {
        Ok(_) => Err(Errno::EXIST.into()),
        Err(_) => std::fs::rename(from, to),
    }
}

/// Waits until the disk has the entries of a folder.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Bytes of a page of memory.
pub(crate) fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}
