//! macOS and the BSDs, beyond POSIX: little control of the page cache, no `O_DIRECT`, and no way to
//! reserve room on the disk that keeps the file's length.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;

use rustix::fs::OFlags;

use super::Mapped;

/// There is no `O_PATH`: the folder must be readable.
pub(super) const FOLDER_ONLY: OFlags = OFlags::RDONLY;

/// Cannot be told.
pub(crate) fn is_uncached(_: &File, _: u64) -> bool {
    false
}

/// Starts reading a range into the page cache (`F_RDADVISE`).
pub(crate) fn will_read(_file: &File, _offset: u64, _len: u64) {
    #[cfg(target_vendor = "apple")]
    {
        // The length is a C int.
        let _ = rustix::fs::fcntl_rdadvise(_file, _offset, _len.min(i32::MAX as u64));
    }
}

/// Starts reading a range of a mapping.
pub(crate) fn populate(map: &memmap2::Mmap, offset: usize, len: usize) {
    let _ = map.advise_range(memmap2::Advice::WillNeed, offset, len);
}

/// There is no such advice.
///
/// # Safety
///
/// None is needed here; other systems need whole pages of each mapping.
pub(crate) unsafe fn evict(_: &File, _: &[Mapped], _: u64, _: NonZeroU64) {}

/// Not possible: `F_PREALLOCATE` counts from the end of the file.
pub(crate) fn reserve(_: &File, _: u64, _: u64) -> io::Result<()> {
    Ok(())
}

/// There is no `O_DIRECT`.
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
