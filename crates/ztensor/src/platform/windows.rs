//! Windows.
//!
//! What differs for users: a file that is mapped can be neither replaced nor truncated until its
//! readers are closed; symbolic links need a privilege to make, none to follow; permissions are
//! inherited from the folder, so a mode says no more than "read-only".

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::os::windows::ffi::{OsStrExt, OsStringExt};
use std::os::windows::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::os::windows::io::AsRawHandle;
use std::path::Path;
use std::{iter, mem, ptr};

use windows_sys::Win32::Foundation::{
    CloseHandle, ERROR_IO_PENDING, ERROR_LOCK_VIOLATION, GetLastError, HANDLE, LocalFree,
};
use windows_sys::Win32::Security::Authorization::{GetSecurityInfo, SE_FILE_OBJECT};
use windows_sys::Win32::Security::{
    EqualSid, GetTokenInformation, IsWellKnownSid, OWNER_SECURITY_INFORMATION, PSID, TOKEN_QUERY, TOKEN_USER,
    TokenUser, WinBuiltinAdministratorsSid, WinLocalSystemSid,
};
use windows_sys::Win32::Storage::FileSystem::{
    BY_HANDLE_FILE_INFORMATION, FILE_ATTRIBUTE_REPARSE_POINT, FILE_FLAG_BACKUP_SEMANTICS,
    FILE_FLAG_OPEN_REPARSE_POINT, GetFileInformationByHandle, GetFinalPathNameByHandleW,
    LOCKFILE_EXCLUSIVE_LOCK, LOCKFILE_FAIL_IMMEDIATELY, LockFileEx, MoveFileExW, VOLUME_NAME_DOS,
};
use windows_sys::Win32::System::IO::OVERLAPPED;
use windows_sys::Win32::System::Memory::{PrefetchVirtualMemory, WIN32_MEMORY_RANGE_ENTRY};
use windows_sys::Win32::System::SystemInformation::{GetSystemInfo, SYSTEM_INFO};
use windows_sys::Win32::System::Threading::{GetCurrentProcess, OpenProcessToken};

use super::{LINK, Mapped, NOT_REGULAR, Opened};
use crate::base::trusted::refused;

/// Locks exclude reads and writes of the bytes that they cover, so they cover one that no file has:
/// the lock is advisory, as on other systems. (structural)
const LOCKED_BYTE: u64 = 1 << 62;

/// Reads once at an offset. At and behind the end there is nothing to read.
pub(crate) fn read_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<usize> {
    file.seek_read(out, offset)
}

/// Fills `out` from an offset on.
pub(crate) fn read_exact_at(file: &File, mut out: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !out.is_empty() {
        match file.seek_read(out, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                out = &mut out[read..];
                offset += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes all bytes at an offset.
pub(crate) fn write_all_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.seek_write(bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes the first piece that is not empty: vectored writes need whole pages and no buffering.
pub(crate) fn write_vectored_at(file: &File, pieces: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
    match pieces.iter().find(|piece| !piece.is_empty()) {
        Some(piece) => file.seek_write(piece, offset),
        None => Ok(0),
    }
}

/// Opens whatever a path names for reading, folders included, and for writing if asked.
pub(crate) fn open_nonblocking(path: &Path, write: bool) -> io::Result<File> {
    OpenOptions::new().read(true).write(write).custom_flags(FILE_FLAG_BACKUP_SEMANTICS).open(path)
}

/// Opens what is there, unless it is a link.
pub(crate) fn open_no_follow(path: &Path, options: &mut OpenOptions) -> io::Result<Opened> {
    let flags = FILE_FLAG_OPEN_REPARSE_POINT | FILE_FLAG_BACKUP_SEMANTICS;
    let file = options.custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    Ok(match metadata.file_attributes() & FILE_ATTRIBUTE_REPARSE_POINT != 0 {
        true => Err(LINK),
        false if metadata.is_dir() => Err(NOT_REGULAR),
        false => Ok(file),
    })
}

/// Opens a canonical path, of which no part is a link; one that has become a link since fails,
/// because the system then has another name for what was opened.
pub(crate) fn open_without_links(path: &Path) -> io::Result<File> {
    let flags = FILE_FLAG_OPEN_REPARSE_POINT | FILE_FLAG_BACKUP_SEMANTICS;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let is_link = file.metadata()?.file_attributes() & FILE_ATTRIBUTE_REPARSE_POINT != 0;
    if is_link || final_path(&file)? != *path.as_os_str() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "a part of the path is a link"));
    }
    Ok(file)
}

/// The path that the system has for an open file, with every link resolved.
fn final_path(file: &File) -> io::Result<std::ffi::OsString> {
    let mut buffer = vec![0u16; 512];
    loop {
        // SAFETY: the handle is open, and the length is the buffer's.
        let len = unsafe {
            GetFinalPathNameByHandleW(handle(file), buffer.as_mut_ptr(), buffer.len() as u32, VOLUME_NAME_DOS)
        } as usize;
        match len {
            0 => return Err(io::Error::last_os_error()),
            len if len < buffer.len() => return Ok(std::ffi::OsString::from_wide(&buffer[..len])),
            len => buffer.resize(len + 1, 0),
        }
    }
}

/// Whether a name can be that of a file in a folder: not a device (`NUL`), not a stream of another
/// file (`a:b`), not one that loses its end (`a.`).
pub(crate) fn is_file_name(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or(name).trim_end();
    let numbered = |kind: &str| {
        stem.len() > 3
            && stem.get(..3).is_some_and(|start| start.eq_ignore_ascii_case(kind))
            && stem.chars().nth(3).is_some_and(|digit| "0123456789¹²³".contains(digit))
            && stem.chars().count() == 4
    };
    let devices = ["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"];
    !devices.iter().any(|device| stem.eq_ignore_ascii_case(device))
        && !numbered("COM")
        && !numbered("LPT")
        && !name.ends_with(['.', ' '])
        && !name.contains(|c: char| c < ' ' || "<>:\"|?*".contains(c))
}

/// Why a file that is trusted for where it is must not be believed: it belongs to another user who
/// is no administrator. Who else may write to it follows from its folder, and is not looked at.
pub(crate) fn distrust(file: &File, _: &Metadata, _: Option<&Metadata>) -> io::Result<Option<String>> {
    Ok((!is_owner_trusted(file)?).then(|| "it belongs to another user".into()))
}

fn is_owner_trusted(file: &File) -> io::Result<bool> {
    let user = process_user()?;
    let (mut owner, mut descriptor): (PSID, _) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the handle is open; of the results, the owner and the descriptor that it points into
    // are asked for.
    let code = unsafe {
        GetSecurityInfo(
            handle(file),
            SE_FILE_OBJECT,
            OWNER_SECURITY_INFORMATION,
            &mut owner,
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut(),
            &mut descriptor,
        )
    };
    if code != 0 {
        return Err(io::Error::from_raw_os_error(code as i32));
    }
    // SAFETY: both ids are valid: the owner's until the descriptor is freed below, the user's in
    // its buffer, which starts with a TOKEN_USER.
    let trusted = unsafe {
        let user = (*user.as_ptr().cast::<TOKEN_USER>()).User.Sid;
        EqualSid(owner, user) != 0
            || IsWellKnownSid(owner, WinBuiltinAdministratorsSid) != 0
            || IsWellKnownSid(owner, WinLocalSystemSid) != 0
    };
    // SAFETY: allocated by the call above, and not used any more.
    unsafe { LocalFree(descriptor) };
    Ok(trusted)
}

/// The user of this process: a `TOKEN_USER` and the id that it points to, in one aligned buffer.
fn process_user() -> io::Result<Vec<u64>> {
    let mut token: HANDLE = ptr::null_mut();
    // SAFETY: the token is closed below.
    if unsafe { OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &mut token) } == 0 {
        return Err(io::Error::last_os_error());
    }
    // The largest id has 68 bytes.
    let mut user = vec![0u64; 32];
    let (len, mut used) = (mem::size_of_val(user.as_slice()) as u32, 0);
    // SAFETY: the length is the buffer's, which is aligned for the structure.
    let read = unsafe { GetTokenInformation(token, TokenUser, user.as_mut_ptr().cast(), len, &mut used) };
    let result = if read == 0 { Err(io::Error::last_os_error()) } else { Ok(user) };
    // SAFETY: opened above, and not used any more.
    unsafe { CloseHandle(token) };
    result
}

/// Permissions are the folder's.
pub(crate) fn create_with_mode(_: &mut OpenOptions, _: u32) {}

/// Likewise for a temporary file.
pub(crate) fn temporary_mode(_: &mut tempfile::Builder<'_, '_>, _: u32) {}

/// Permission bits of a file, as far as they exist.
pub(crate) fn mode_of(metadata: &Metadata) -> u32 {
    if metadata.permissions().readonly() { 0o444 } else { 0o666 }
}

/// Permissions are the folder's: changes nothing.
pub(crate) fn set_mode(_: &Path, _: u32) -> io::Result<()> {
    Ok(())
}

/// Makes `name` in `root`, and the folders above it that are missing. Who may write to them follows
/// from the folder above, which is private in a user's profile.
pub(crate) fn private_folder(root: &Path, name: &str) -> io::Result<()> {
    std::fs::create_dir_all(root)?;
    let folder = root.join(name);
    match std::fs::create_dir(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let metadata = std::fs::symlink_metadata(&folder)?;
    if !metadata.is_dir() || metadata.file_attributes() & FILE_ATTRIBUTE_REPARSE_POINT != 0 {
        return Err(refused(&folder, "it is not a folder"));
    }
    let opened = open_nonblocking(&folder, false)?;
    match distrust(&opened, &metadata, None)? {
        Some(why) => Err(refused(&folder, &why)),
        None => Ok(()),
    }
}

fn information(file: &File) -> io::Result<BY_HANDLE_FILE_INFORMATION> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut information: BY_HANDLE_FILE_INFORMATION = unsafe { mem::zeroed() };
    // SAFETY: the handle is open and the structure is the right one.
    match unsafe { GetFileInformationByHandle(handle(file), &mut information) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(information),
    }
}

/// Volume and index of a file.
pub(crate) fn identity(file: &File) -> io::Result<(u64, u64)> {
    let found = information(file)?;
    let index = u64::from(found.nFileIndexHigh) << 32 | u64::from(found.nFileIndexLow);
    Ok((found.dwVolumeSerialNumber.into(), index))
}

/// Whether `path` leads to that very file.
pub(crate) fn is_file_at(path: &Path, file: &File) -> bool {
    let there = open_nonblocking(path, false).and_then(|file| identity(&file));
    matches!((there, identity(file)), (Ok(a), Ok(b)) if a == b)
}

/// How many names a file has.
pub(crate) fn link_count(file: &File) -> io::Result<u64> {
    Ok(information(file)?.nNumberOfLinks.into())
}

/// Whether a path names a device that bytes are written to: `NUL`, `CON`, `\\.\…`.
pub(crate) fn is_stream(path: &Path) -> bool {
    let Some(name) = path.to_str() else { return false };
    name.starts_with(r"\\.\") || ["NUL", "CON"].iter().any(|device| name.eq_ignore_ascii_case(device))
}

/// The error of a chain of links that does not end.
pub(crate) fn too_many_links() -> io::Error {
    io::Error::other("too many symbolic links")
}

/// Takes the file's lock shared, if it is to be had. It ends when the file is closed.
pub(crate) fn try_lock_shared(file: &File) -> io::Result<bool> {
    try_lock(file, LOCKFILE_FAIL_IMMEDIATELY)
}

/// Takes the file's lock for this handle alone, if it is to be had.
pub(crate) fn try_lock_exclusive(file: &File) -> io::Result<bool> {
    try_lock(file, LOCKFILE_FAIL_IMMEDIATELY | LOCKFILE_EXCLUSIVE_LOCK)
}

fn try_lock(file: &File, flags: u32) -> io::Result<bool> {
    // SAFETY: plain numbers and pointers, for which zero is a value.
    let mut place: OVERLAPPED = unsafe { mem::zeroed() };
    place.Anonymous.Anonymous.Offset = LOCKED_BYTE as u32;
    place.Anonymous.Anonymous.OffsetHigh = (LOCKED_BYTE >> 32) as u32;
    // SAFETY: the handle is open, and not for asynchronous use: the call is over when it returns.
    if unsafe { LockFileEx(handle(file), flags, 0, 1, 0, &mut place) } != 0 {
        return Ok(true);
    }
    // SAFETY: reads a number of this thread.
    match unsafe { GetLastError() } {
        ERROR_LOCK_VIOLATION | ERROR_IO_PENDING => Ok(false),
        code => Err(io::Error::from_raw_os_error(code as i32)),
    }
}

/// Gives a complete temporary file its name; `replace` says whether it may take that of another.
/// Unlike `MoveFileEx`, the standard library's rename replaces a file that readers have open.
#[allow(clippy::disallowed_methods)] // called by `write::atomic`
pub(crate) fn persist(file: tempfile::NamedTempFile, to: &Path, replace: bool) -> io::Result<()> {
    if !replace {
        return file.persist_noclobber(to).map(drop).map_err(|error| error.error);
    }
    let (file, from) = file.keep().map_err(|error| error.error)?;
    let renamed = std::fs::rename(&from, to);
    drop(file);
    if renamed.is_err() {
        let _ = std::fs::remove_file(&from); // nothing is left of a file that could not be finished
    }
    renamed
}

/// Gives a file or a folder another name, if nothing has that name yet.
pub(crate) fn rename_if_absent(from: &Path, to: &Path) -> io::Result<()> {
    let wide = |path: &Path| -> Vec<u16> { path.as_os_str().encode_wide().chain(iter::once(0)).collect() };
    let (from, to) = (wide(from), wide(to));
    // SAFETY: both strings end with a zero.
    match unsafe { MoveFileExW(from.as_ptr(), to.as_ptr(), 0) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// NTFS journals the entries of folders; there is no call that waits for one.
pub(crate) fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Bytes of a page of memory.
pub(crate) fn page_size() -> u64 {
    // SAFETY: plain numbers, which the call fills.
    let mut found: SYSTEM_INFO = unsafe { mem::zeroed() };
    // SAFETY: the structure is the right one.
    unsafe { GetSystemInfo(&mut found) };
    found.dwPageSize.into()
}

/// Cannot be told.
pub(crate) fn is_uncached(_: &File, _: u64) -> bool {
    false
}

/// There is no such advice for files; the system reads ahead by itself.
pub(crate) fn will_read(_: &File, _: u64, _: u64) {}

/// Starts reading a range of a mapping.
pub(crate) fn populate(map: &memmap2::Mmap, offset: usize, len: usize) {
    let Some(range) = map.get(offset..).and_then(|rest| rest.get(..len)) else { return };
    let range =
        WIN32_MEMORY_RANGE_ENTRY { VirtualAddress: range.as_ptr().cast_mut().cast(), NumberOfBytes: len };
    // SAFETY: the range is a part of the mapping. Only advice: errors change nothing.
    let _ = unsafe { PrefetchVirtualMemory(GetCurrentProcess(), 1, &range, 0) };
}

/// There is no such advice.
///
/// # Safety
///
/// None is needed here; other systems need whole pages of each mapping.
pub(crate) unsafe fn evict(_: &File, _: &[Mapped], _: u64, _: NonZeroU64) {}

/// Not done: a full disk is noticed when bytes are written.
pub(crate) fn reserve(_: &File, _: u64, _: u64) -> io::Result<()> {
    Ok(())
}

/// Not done: reads go through the system's cache.
pub(crate) fn open_direct(_: &File) -> Option<File> {
    None
}

/// Never called: nothing is opened for it.
pub(crate) fn read_direct(_: &File, _: u64, _: &mut [u8]) -> io::Result<bool> {
    Ok(false)
}

/// Never called: nothing is opened for it.
pub(crate) fn read_direct_all(_: &File, _: &mut [(u64, &mut [u8])]) -> io::Result<bool> {
    Ok(false)
}

fn handle(file: &File) -> HANDLE {
    file.as_raw_handle().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_streams_and_cut_names_are_no_file_names() {
        for bad in
            ["NUL", "nul.bin", "con", "COM1", "com1.txt", "lpt9", "a:b", "a.", "a ", "a?", "x\u{1}", "aux .x"]
        {
            assert!(!is_file_name(bad), "{bad:?}");
        }
        for good in ["model.zt", "null", "com", "com10", "COMA", "console.bin", "ünï.bin", ".hidden"] {
            assert!(is_file_name(good), "{good:?}");
        }
    }
}
