//! Linux: control of the page cache, `O_DIRECT`, room on the disk in advance.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::Mapped;

pub(crate) use super::o_direct::{open as open_direct, read as read_direct, read_all as read_direct_all};

/// Opens a folder for nothing but what is in it: no permission to list it is needed.
pub(super) const FOLDER_ONLY: OFlags = OFlags::PATH;

/// Whether the byte at an offset is not in the page cache. File systems that cannot tell say no.
pub(crate) fn is_uncached(file: &File, offset: u64) -> bool {
    let mut byte = [0];
    let mut out = [io::IoSliceMut::new(&mut byte)];
    // File systems that cannot tell refuse with another error.
    let found = rustix::io::preadv2(file, &mut out, offset, ReadWriteFlags::NOWAIT);
    found == Err(Errno::AGAIN)
}

/// Starts reading a range into the page cache.
pub(crate) fn will_read(file: &File, offset: u64, len: u64) {
    // Only advice: where it is refused, the reads themselves will wait.
    let _ = rustix::fs::fadvise(file, offset, NonZeroU64::new(len), rustix::fs::Advice::WillNeed);
}

/// Reads a range of a mapping and enters it into the page table.
pub(crate) fn populate(map: &memmap2::Mmap, offset: usize, len: usize) {
    // Older kernels do not know this advice; the pages come one by one then.
    let _ = map.advise_range(memmap2::Advice::PopulateRead, offset, len);
}

/// Drops whole pages of a file from the page cache and from mappings of it.
///
/// # Safety
///
/// `start..start + len` must be whole pages of each mapping.
pub(crate) unsafe fn evict(file: &File, maps: &[Mapped], start: u64, len: NonZeroU64) {
    // The cache keeps pages that are mapped. All of this is advice: errors change nothing.
    for &map in maps {
        let (first, advice) = match map {
            Mapped::Shared(first) => (first, rustix::mm::Advice::LinuxDontNeed),
            Mapped::Private(first) => (first, rustix::mm::Advice::LinuxPageOut),
        };
        // SAFETY: the range is whole pages of the mapping, as the caller promises. A shared,
        // read-only mapping of a file loses entries of its page table, which the next touch makes
        // again; MADV_PAGEOUT keeps what was written to a private one.
        let _ = unsafe { rustix::mm::madvise(first.add(start as usize).cast(), len.get() as usize, advice) };
    }
    let _ = rustix::fs::fadvise(file, start, Some(len), rustix::fs::Advice::DontNeed);
}

/// Asks the disk for room behind `offset` without changing the file's length; an error only if
/// there is none.
pub(crate) fn reserve(file: &File, offset: u64, len: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, offset, len) {
        Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => Err(error.into()),
        // Many file systems cannot do this. It only helps.
        _ => Ok(()),
    }
}
