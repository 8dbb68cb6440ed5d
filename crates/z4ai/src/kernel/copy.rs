//! What surrounds the work on memory: asking for it before, and settling it after.

use std::mem::MaybeUninit;

use super::hash::STRIPE;
use super::{Isa, dispatch_wide};

/// How far ahead of what is read memory is asked for: processors do not look beyond their small pages.
pub(super) const AHEAD: usize = 2048;

/// Bytes that are asked for at a time.
const LINE: usize = 64;

/// Asks for the cache line at an address, which may be any: into the first-level cache where it is needed
/// `soon`, else into the second.
#[inline(always)]
pub(crate) fn fetch(address: *const u8, soon: bool) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        // SAFETY: a prefetch accesses nothing as far as the program can tell.
        unsafe {
            match soon {
                true => _mm_prefetch::<_MM_HINT_T0>(address.cast()),
                false => _mm_prefetch::<_MM_HINT_T1>(address.cast()),
            }
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (address, soon);
}

/// Memory that will be needed, to be asked for in small parts while there is other work: of its quarters
/// at once, which machines are faster at than at one place after the other. By address: it is never read
/// or written through this.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Fetch {
    /// What is left of the first quarter.
    at: usize,
    end: usize,
    /// From one quarter to the next.
    apart: usize,
    part: usize,
}

impl Fetch {
    /// Asks for `memory` in so many parts.
    pub(crate) fn new(memory: &[u8], parts: usize) -> Self {
        let at = memory.as_ptr().addr();
        let apart = memory.len().div_ceil(4).next_multiple_of(LINE);
        let part = apart.div_ceil(parts.max(1)).next_multiple_of(LINE);
        Self { at, end: at.saturating_add(apart), apart, part }
    }

    /// Asks for the next part.
    pub(crate) fn advance(&mut self) {
        let end = self.end.min(self.at.saturating_add(self.part));
        while self.at < end {
            for quarter in 0..4 {
                fetch(std::ptr::without_provenance(self.at.wrapping_add(quarter * self.apart)), false);
            }
            self.at = self.at.saturating_add(LINE);
        }
    }
}

/// Appends bytes that nobody reads soon: without reading the memory that they go to into the caches first,
/// and without leaving them there. Returns when that is [settled](settle).
pub(crate) fn append_past_caches(out: &mut Vec<u8>, bytes: &[u8]) {
    out.reserve(bytes.len());
    let before = out.spare_capacity_mut().as_ptr().align_offset(STRIPE).min(bytes.len());
    let (before, bytes) = bytes.split_at(before);
    out.extend_from_slice(before);
    let (lines, rest) = bytes.as_chunks::<STRIPE>();
    stream(lines, &mut out.spare_capacity_mut().as_chunks_mut().0[..lines.len()]);
    // SAFETY: these lines were just written, behind the bytes that there were.
    unsafe { out.set_len(out.len() + lines.as_flattened().len()) };
    out.extend_from_slice(rest);
    settle();
}

dispatch_wide! {
    /// Copies lines to aligned ones.
    fn stream(from: &[[u8; STRIPE]], to: &mut [[MaybeUninit<u8>; STRIPE]]) = stream_with
}

#[inline(always)]
fn stream_with(isa: impl Isa, from: &[[u8; STRIPE]], to: &mut [[MaybeUninit<u8>; STRIPE]]) {
    for (from, to) in from.iter().zip(to) {
        let to = to.as_mut_ptr().cast::<u8>();
        assert!(to.addr().is_multiple_of(STRIPE));
        // SAFETY: there is a whole line, which was just seen to be aligned.
        unsafe { isa.stream(to, *from) };
    }
}

/// Orders stores past the caches, which are ordered with nothing else, before all that follows.
pub(crate) fn settle() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every such processor has this fence, which accesses nothing.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
}

#[cfg(test)]
mod tests {
    use super::super::Portable;
    use super::*;

    #[test]
    fn bytes_are_appended_at_any_place() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
        for start in [0, 1, 63, 64, 100] {
            for len in [0, 1, 63, 64, 65, 200, 1000] {
                let mut out = vec![9; start];
                append_past_caches(&mut out, &bytes[..len]);
                assert_eq!(&out[..start], &vec![9; start][..]);
                assert_eq!(&out[start..], &bytes[..len]);
            }
        }
        let mut to = vec![MaybeUninit::new(0); 4 * STRIPE];
        let skip = to.as_ptr().align_offset(STRIPE);
        let lines = to[skip..].as_chunks_mut::<STRIPE>().0;
        stream_with(Portable, bytes.as_chunks().0, lines);
        // SAFETY: these were written.
        let written = lines.as_flattened().iter().map(|byte| unsafe { byte.assume_init() });
        assert!(written.eq(bytes[..lines.len() * STRIPE].iter().copied()));
    }
}
