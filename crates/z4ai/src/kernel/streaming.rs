//! Non-temporal (streaming) copies, and the fence they need.

use std::mem::MaybeUninit;

use crate::simd::{Isa, STRIPE, dispatch_wide};

/// Outputs from this length on are written with non-temporal stores: they would evict everything
/// else from the caches before they are read. (case: `codec.py`, decompress into, and compress with
/// several threads)
pub(crate) const MIN_LEN: usize = 8 << 20;

/// Appends bytes with non-temporal stores: the destination is neither read into the caches nor left
/// there. Includes the [fence](store_fence).
pub(crate) fn extend_streaming(out: &mut Vec<u8>, bytes: &[u8]) {
    out.reserve(bytes.len());
    let before = out.spare_capacity_mut().as_ptr().align_offset(STRIPE).min(bytes.len());
    let (before, bytes) = bytes.split_at(before);
    out.extend_from_slice(before);
    let (lines, rest) = bytes.as_chunks::<STRIPE>();
    store_lines(lines, &mut out.spare_capacity_mut().as_chunks_mut().0[..lines.len()]);
    // SAFETY: these lines were just written, behind the bytes that there were.
    unsafe { out.set_len(out.len() + lines.as_flattened().len()) };
    out.extend_from_slice(rest);
    store_fence();
}

dispatch_wide! {
    /// Copies cache lines to aligned ones with non-temporal stores.
    fn store_lines(from: &[[u8; STRIPE]], to: &mut [[MaybeUninit<u8>; STRIPE]]) = store_lines_with
}

#[inline(always)]
fn store_lines_with(isa: impl Isa, from: &[[u8; STRIPE]], to: &mut [[MaybeUninit<u8>; STRIPE]]) {
    for (from, to) in from.iter().zip(to) {
        let to = to.as_mut_ptr().cast::<u8>();
        assert!(to.addr().is_multiple_of(STRIPE));
        // SAFETY: there is a whole line, which was just seen to be aligned.
        unsafe { isa.store_nt(to, *from) };
    }
}

/// Orders non-temporal stores, which are weakly ordered, before all later stores.
pub(crate) fn store_fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every such processor has this fence, which accesses nothing.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Portable;

    #[test]
    fn bytes_are_appended_at_any_place() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
        for start in [0, 1, 63, 64, 100] {
            for len in [0, 1, 63, 64, 65, 200, 1000] {
                let mut out = vec![9; start];
                extend_streaming(&mut out, &bytes[..len]);
                assert_eq!(&out[..start], &vec![9; start][..]);
                assert_eq!(&out[start..], &bytes[..len]);
            }
        }
        let mut to = vec![MaybeUninit::new(0); 4 * STRIPE];
        let skip = to.as_ptr().align_offset(STRIPE);
        let lines = to[skip..].as_chunks_mut::<STRIPE>().0;
        store_lines_with(Portable, bytes.as_chunks().0, lines);
        // SAFETY: these were written.
        let written = lines.as_flattened().iter().map(|byte| unsafe { byte.assume_init() });
        assert!(written.eq(bytes[..lines.len() * STRIPE].iter().copied()));
    }
}
