//! Output buffers: allocated fallibly, never touched before they are filled,
//! and backed by huge pages when they are large.

pub use z4ai::rt::advise_huge;

use crate::error::{Error, Result};

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
