//! Large buffers: fallibly allocated, zero without being touched, on huge pages where there are.

use std::alloc::{Layout, alloc_zeroed};

use crate::error::{Error, Result};

/// A zeroed vector of `len` bytes, or an error where there is no memory for it. Fresh memory comes
/// zeroed from the system, so this touches none of it.
pub(crate) fn zeroed(len: usize) -> Result<Vec<u8>> {
    if len == 0 {
        return Ok(Vec::new());
    }
    let too_large = || Error::limit(format_args!("no memory for {len} bytes of output"));
    let layout = Layout::array::<u8>(len).map_err(|_| too_large())?;
    // SAFETY: the layout's size is `len`, which is not zero.
    let pointer = unsafe { alloc_zeroed(layout) };
    if pointer.is_null() {
        return Err(too_large());
    }
    // SAFETY: `pointer` was just allocated by the global allocator with the layout of `len`
    // bytes, all of which are initialised to zero.
    let mut buffer = unsafe { Vec::from_raw_parts(pointer, len, len) };
    advise_huge(buffer.as_mut_ptr(), len);
    Ok(buffer)
}

/// Room for `capacity` more bytes in `vector`, advised for huge pages when it is new.
pub(crate) fn reserve(vector: &mut Vec<u8>, capacity: usize) -> Result<()> {
    if vector.capacity() - vector.len() >= capacity {
        return Ok(());
    }
    vector
        .try_reserve_exact(capacity)
        .map_err(|_| Error::limit(format_args!("no memory for {capacity} bytes of output")))?;
    advise_huge(vector.as_mut_ptr(), vector.capacity());
    Ok(())
}

/// Makes a scratch buffer at least `len` bytes long, without clearing what is overwritten anyway.
pub(crate) fn grow(buffer: &mut Vec<u8>, len: usize) {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
}

/// Advises huge pages for a large buffer before its first touch: filling fresh memory is bound by
/// page faults, and these are 512 times fewer.
#[cfg(target_os = "linux")]
pub fn advise_huge(start: *mut u8, len: usize) {
    /// From this size on a buffer is worth advising huge pages for. (structural: two huge pages of x86)
    const LARGE: usize = 4 << 20;
    /// (structural)
    const PAGE: usize = 4096;
    if len < LARGE || cfg!(miri) {
        return;
    }
    let skip = start.align_offset(PAGE);
    let whole = (len - skip) / PAGE * PAGE;
    // SAFETY: the range lies inside the caller's allocation, and this advice changes only how its
    // pages are provided, never their contents. Where the kernel refuses, nothing is lost.
    let _ = unsafe {
        rustix::mm::madvise(start.wrapping_add(skip).cast(), whole, rustix::mm::Advice::LinuxHugepage)
    };
}

/// Other systems choose the size of pages themselves.
#[cfg(not(target_os = "linux"))]
pub fn advise_huge(_start: *mut u8, _len: usize) {}
