//! Stores the stripes that fused kernels produce, aligned or not.

use crate::simd::vector::{VECTOR, Vector};

/// Stripes per burst: memory takes bursts of non-temporal stores faster than single ones.
pub(crate) const BURST: usize = 4;

/// Output bytes that do not fill a cache line yet.
pub(crate) struct PartialLine {
    /// The last `len` bytes of `line` are pending; the rest is stale.
    pub(crate) line: [u8; VECTOR],
    pub(crate) len: usize,
}

/// Where a fused kernel stores its output: with non-temporal stores to whole cache lines if there
/// is a partial line, which the next stripes complete, or with plain stores.
pub(crate) struct StripeWriter<I: Vector> {
    isa: I,
    /// Whether to use non-temporal stores.
    streaming: bool,
    /// The previous stripe, whose last `words` words of eight bytes are pending.
    before: I::V,
    words: usize,
}

impl<I: Vector> StripeWriter<I> {
    /// For output that starts at the address `start`. Pending bytes must be a multiple of eight.
    #[inline(always)]
    pub(crate) fn new(isa: I, pending: Option<&PartialLine>, start: usize) -> Self {
        let (mut before, mut words) = (isa.splat::<u8>(0), 0);
        if let Some(pending) = pending {
            assert!(start.is_multiple_of(VECTOR) && pending.len < VECTOR && pending.len.is_multiple_of(8));
            (before, words) = (isa.load(&pending.line), pending.len / 8);
        }
        Self { isa, streaming: pending.is_some(), before, words }
    }

    /// Stores the next stripes. With non-temporal stores `out` must be aligned, as the first is.
    #[inline(always)]
    pub(crate) fn write(&mut self, stripes: [I::V; BURST], out: &mut [u8; BURST * VECTOR]) {
        for (&stripe, out) in stripes.iter().zip(out.as_chunks_mut::<VECTOR>().0) {
            if self.streaming {
                let line = self.isa.align_words(self.before, stripe, self.words);
                // SAFETY: there is a line, aligned as `new` has seen the first to be: bursts follow
                // one another.
                unsafe { self.isa.store_nt(out.as_mut_ptr(), self.isa.bytes(line)) };
                self.before = stripe;
            } else {
                self.isa.store(stripe, out);
            }
        }
    }

    /// Keeps the last stripe, whose end is pending.
    #[inline(always)]
    pub(crate) fn finish(self, pending: Option<&mut PartialLine>) {
        if let Some(pending) = pending {
            self.isa.store(self.before, &mut pending.line);
        }
    }
}
