//! What surrounds the work on memory: asking for it before, and settling it after.

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

/// Memory that will be needed, to be asked for in small parts while there is other work. By address: it is
/// never read or written through this.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Fetch {
    at: usize,
    end: usize,
    part: usize,
}

impl Fetch {
    /// Asks for `memory` in so many parts.
    pub(crate) fn new(memory: &[u8], parts: usize) -> Self {
        let range = memory.as_ptr_range();
        let part = memory.len().div_ceil(parts.max(1)).next_multiple_of(LINE);
        Self { at: range.start.addr(), end: range.end.addr(), part }
    }

    /// Asks for the next part.
    pub(crate) fn advance(&mut self) {
        let end = self.end.min(self.at.saturating_add(self.part));
        while self.at < end {
            fetch(std::ptr::without_provenance(self.at), false);
            self.at = self.at.saturating_add(LINE);
        }
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
