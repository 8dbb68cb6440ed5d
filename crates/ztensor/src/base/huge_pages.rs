//! Output buffers: allocated fallibly, never touched before they are filled,
//! and backed by huge pages when they are large.

use crate::error::{Error, Result};

/// Below this size the kernel's ordinary pages are as good.
const HUGE_FROM: usize = 4 << 20;

/// `len` zeroed elements. Large allocations come from the kernel already zeroed,
/// so nothing is written twice; too large ones are an error, not an abort.
pub(crate) fn zeroed_vec<T: bytemuck::Zeroable>(len: u64) -> Result<Vec<T>> {
    let out_of_memory = || Error::limit(format!("not enough memory for {len} elements"));
    let len = usize::try_from(len).map_err(|_| out_of_memory())?;
    let bytes = len.checked_mul(size_of::<T>()).ok_or_else(out_of_memory)?;
    if bytes > isize::MAX as usize {
        return Err(out_of_memory());
    }
    let mut buffer =
        bytemuck::allocation::try_zeroed_slice_box::<T>(len).map_err(|()| out_of_memory())?.into_vec();
    advise_huge(buffer.as_mut_ptr().cast(), bytes);
    Ok(buffer)
}

/// Asks for huge pages behind a large buffer before its first touch: the
/// first touch then costs one fault per 2 MiB instead of one per 4 KiB.
pub fn advise_huge(start: *mut u8, len: usize) {
    const PAGE: usize = 4096;
    if len < HUGE_FROM {
        return;
    }
    let skip = start.align_offset(PAGE);
    let inside = (len - skip) / PAGE * PAGE;
    // SAFETY: the range lies inside the caller's allocation, and this advice
    // changes only how its pages are provided, never what they contain.
    // Advice may be refused (a kernel without huge pages): the buffer works all the same.
    let _ = unsafe {
        rustix::mm::madvise(start.wrapping_add(skip).cast(), inside, rustix::mm::Advice::LinuxHugepage)
    };
}
