//! Systems without files (WebAssembly in a browser): every operation on one is an error.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::path::Path;

use super::{Mapped, Opened};

fn unsupported<T>() -> io::Result<T> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn read_at(_: &File, _: &mut [u8], _: u64) -> io::Result<usize> {
    unsupported()
}

pub(crate) fn read_exact_at(_: &File, _: &mut [u8], _: u64) -> io::Result<()> {
    unsupported()
}

pub(crate) fn write_all_at(_: &File, _: &[u8], _: u64) -> io::Result<()> {
    unsupported()
}

pub(crate) fn write_vectored_at(_: &File, _: &[IoSlice<'_>], _: u64) -> io::Result<usize> {
    unsupported()
}

pub(crate) fn open_nonblocking(_: &Path, _: bool) -> io::Result<File> {
    unsupported()
}

pub(crate) fn open_no_follow(_: &Path, _: &mut OpenOptions) -> io::Result<Opened> {
    unsupported()
}

pub(crate) fn open_without_links(_: &Path) -> io::Result<File> {
    unsupported()
}

pub(crate) fn is_file_name(_: &str) -> bool {
    true
}

pub(crate) fn distrust(_: &File, _: &Metadata, _: Option<&Metadata>) -> io::Result<Option<String>> {
    unsupported()
}

pub(crate) fn create_with_mode(_: &mut OpenOptions, _: u32) {}

pub(crate) fn temporary_mode(_: &mut tempfile::Builder<'_, '_>, _: u32) {}

pub(crate) fn mode_of(_: &Metadata) -> u32 {
    0o666
}

pub(crate) fn set_mode(_: &Path, _: u32) -> io::Result<()> {
    unsupported()
}

pub(crate) fn private_folder(_: &Path, _: &str) -> io::Result<()> {
    unsupported()
}

pub(crate) fn is_file_at(_: &Path, _: &File) -> bool {
    false
}

pub(crate) fn link_count(_: &File) -> io::Result<u64> {
    unsupported()
}

pub(crate) fn is_stream(_: &Path) -> bool {
    false
}

pub(crate) fn too_many_links() -> io::Error {
    io::ErrorKind::Unsupported.into()
}

pub(crate) fn try_lock_shared(_: &File) -> io::Result<bool> {
    unsupported()
}

pub(crate) fn try_lock_exclusive(_: &File) -> io::Result<bool> {
    unsupported()
}

pub(crate) fn persist(_: tempfile::NamedTempFile, _: &Path, _: bool) -> io::Result<()> {
    unsupported()
}

pub(crate) fn rename_if_absent(_: &Path, _: &Path) -> io::Result<()> {
    unsupported()
}

pub(crate) fn sync_folder(_: &Path) -> io::Result<()> {
    unsupported()
}

/// Bytes of a page of WebAssembly's memory.
pub(crate) fn page_size() -> u64 {
    1 << 16
}

pub(crate) fn is_uncached(_: &File, _: u64) -> bool {
    false
}

pub(crate) fn will_read(_: &File, _: u64, _: u64) {}

pub(crate) fn populate(_: &memmap2::Mmap, _: usize, _: usize) {}

/// # Safety
///
/// None is needed here; other systems need whole pages of each mapping.
pub(crate) unsafe fn evict(_: &File, _: &[Mapped], _: u64, _: NonZeroU64) {}

pub(crate) fn reserve(_: &File, _: u64, _: u64) -> io::Result<()> {
    unsupported()
}

pub(crate) fn open_direct(_: &File) -> Option<File> {
    None
}

pub(crate) fn read_direct(_: &File, _: u64, _: &mut [u8]) -> io::Result<bool> {
    unsupported()
}

pub(crate) fn read_direct_all(_: &File, _: &mut [(u64, &mut [u8])]) -> io::Result<bool> {
    unsupported()
}
