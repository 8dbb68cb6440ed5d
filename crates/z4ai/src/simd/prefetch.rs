//! Software prefetch: of one cache line, and of whole ranges in small steps while a thread
//! computes.

/// Bytes of a cache line.
pub(crate) const CACHE_LINE: usize = 64;

/// How far ahead of a sequential read to prefetch, in bytes: hardware prefetchers stop at 4 KiB
/// pages.
pub(crate) const DISTANCE: usize = 2048;

/// Concurrent positions of a [`Prefetcher`]: memory serves several streams faster than one.
pub(crate) const STREAMS: usize = 4;

/// The cache that a line is prefetched into.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Hint {
    /// The first-level cache: for data that is used within some hundred instructions.
    L1,
    /// The second-level cache.
    L2,
}

/// Prefetches the cache line at an address, which may be any.
#[inline(always)]
pub(crate) fn prefetch(address: *const u8, hint: Hint) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        // SAFETY: a prefetch accesses nothing as far as the program can tell.
        unsafe {
            match hint {
                Hint::L1 => _mm_prefetch::<_MM_HINT_T0>(address.cast()),
                Hint::L2 => _mm_prefetch::<_MM_HINT_T1>(address.cast()),
            }
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (address, hint);
}

/// A range of memory that is prefetched into L2 a few bytes at a time, while the caller computes.
/// Held by address: the range is never read or written through this.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Prefetcher {
    /// The next line to prefetch.
    pub(crate) at: usize,
    /// The end of what should have been prefetched by now.
    pub(crate) due: usize,
    /// Bytes that become due with every step.
    pub(crate) per_step: usize,
    /// From one of the concurrent positions to the next; 0 where there is one position.
    pub(crate) stride: usize,
    /// The end of the range, at the first position.
    end: usize,
}

impl Prefetcher {
    /// Prefetches `memory` within `steps` steps, from [`STREAMS`] positions at once.
    pub(crate) fn new(memory: &[u8], steps: usize) -> Self {
        let stride = memory.len().div_ceil(STREAMS).next_multiple_of(CACHE_LINE);
        let per_step = stride.div_ceil(steps.max(1)).next_multiple_of(CACHE_LINE);
        Self::at_rate(&memory[..stride.min(memory.len())], per_step).with_stride(stride)
    }

    /// Prefetches `memory` from its start on, `per_step` bytes with every step.
    pub(crate) fn at_rate(memory: &[u8], per_step: usize) -> Self {
        let at = memory.as_ptr().addr();
        Self { at, due: at, per_step, stride: 0, end: at + memory.len() }
    }

    /// Prefetches from [`STREAMS`] positions at once, which are `stride` bytes apart.
    pub(crate) fn with_stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    /// Continues beyond the end of the range.
    pub(crate) fn open_ended(self) -> Self {
        Self { end: usize::MAX, ..self }
    }

    /// Prefetches what becomes due with some steps.
    #[inline(always)]
    pub(crate) fn advance(&mut self, steps: usize) {
        self.due = self.due.saturating_add(steps * self.per_step);
        let due = self.due.min(self.end);
        while self.at < due {
            let positions = if self.stride == 0 { 1 } else { STREAMS };
            for position in 0..positions {
                let address = self.at.wrapping_add(position * self.stride);
                prefetch(std::ptr::without_provenance(address), Hint::L2);
            }
            self.at = self.at.saturating_add(CACHE_LINE);
        }
    }
}
