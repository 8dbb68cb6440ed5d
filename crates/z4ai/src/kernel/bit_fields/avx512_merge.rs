//! The fused merge: fields are merged to floats, hashed and stored while they are in registers.

use std::arch::x86_64::*;

use crate::kernel::bit_fields::blocks::{Codes, Merger, Nibbles};
use crate::kernel::bit_fields::{MergeSink, MergeSource, OutlierPatcher, PartialLine};
use crate::kernel::xxh3::{self, HASH_BLOCK, STRIPES};
use crate::simd::{Avx512, Isa, LANES, STRIPE, Sums, cast};

/// Stripes per burst: memory takes bursts of non-temporal stores faster than single ones.
pub(crate) const BURST: usize = 4;

impl Avx512 {
    /// Merges whole hash blocks; returns the number of bytes.
    #[inline(always)]
    pub(crate) fn merge_blocks<const SIZE: usize, const BITS: u32, const SEPARATE_SIGN: bool>(
        self,
        base: u16,
        from: &MergeSource<'_>,
        to: MergeSink<'_>,
    ) -> usize {
        let fields = &from.fields;
        let turns = to.out.len() / SIZE / LANES;
        match from.palette {
            None => {
                let codes = fields.codes.as_chunks().0;
                let turns = turns.min(codes.len());
                let merger = Merger::<_, _, SIZE, BITS, SEPARATE_SIGN>::new(self, base, fields, codes, turns);
                // SAFETY: `self` proves the features.
                unsafe { merge_blocks(self, merger, from.signs, to) }
            }
            Some(palette) => {
                let codes = Nibbles::new(palette, fields.codes);
                let turns = turns.min(codes.turns());
                let merger = Merger::<_, _, SIZE, BITS, SEPARATE_SIGN>::new(self, base, fields, codes, turns);
                // SAFETY: `self` proves the features.
                unsafe { merge_blocks(self, merger, from.signs, to) }
            }
        }
    }
}

#[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2")]
fn merge_blocks<C: Codes, const SIZE: usize, const BITS: u32, const SEPARATE_SIGN: bool>(
    isa: Avx512,
    merger: Merger<'_, Avx512, C, SIZE, BITS, SEPARATE_SIGN>,
    signs: &[u8],
    to: MergeSink<'_>,
) -> usize {
    let signs = signs.as_chunks::<{ LANES / 8 }>().0;
    let turns = if SEPARATE_SIGN { merger.turns.min(signs.len()) } else { merger.turns };
    let done = turns * LANES * SIZE / HASH_BLOCK * HASH_BLOCK;
    let blocks = to.out[..done].as_chunks_mut::<HASH_BLOCK>().0;
    let mut sums: Sums = *to.sums;
    let mut writer = Writer::new(to.pending.as_deref(), blocks.as_ptr().addr());
    let mut turn = 0;
    let mut next_patch = to.patches.next();
    for block in blocks {
        let bursts = block.as_chunks_mut::<{ BURST * STRIPE }>().0;
        for (burst, out) in bursts.iter_mut().enumerate() {
            let mut stripes = [_mm512_setzero_si512(); BURST];
            let first = turn * LANES;
            merger.fetch_codes_ahead(turn);
            for i in 0..BURST * 2 / SIZE {
                // Two turns take a line of every plane.
                if i % 2 == 0 {
                    merger.fetch_ahead(turn);
                }
                let mut top = merger.top(turn);
                if SEPARATE_SIGN {
                    top = set_signs(top, u32::from_le_bytes(signs[turn]));
                }
                if SIZE == 2 {
                    stripes[i] = cast!(top, [u16; LANES] => __m512i);
                } else {
                    let wide = cast!(merger.widen(turn, top), [u32; LANES] => [__m512i; 2]);
                    [stripes[2 * i], stripes[2 * i + 1]] = wide;
                }
                turn += 1;
            }
            if next_patch < turn * LANES {
                let elements = cast!(stripes, [__m512i; BURST] => [u8; BURST * STRIPE]);
                let patched = patch(to.patches, first, &elements);
                stripes = cast!(patched, [u8; BURST * STRIPE] => [__m512i; BURST]);
                next_patch = to.patches.next();
            }
            for (i, &stripe) in stripes.iter().enumerate() {
                let secret = xxh3::secret((burst * BURST + i) * 8);
                sums = isa.accumulate(sums, cast!(stripe, __m512i => [u8; STRIPE]), secret);
            }
            writer.write(stripes, out);
        }
        sums = xxh3::scramble(sums);
    }
    const { assert!(STRIPES.is_multiple_of(BURST)) };
    *to.sums = sums;
    if let Some(pending) = to.pending {
        pending.line = cast!(writer.before, __m512i => [u8; STRIPE]);
    }
    done
}

/// Patches the outliers of one burst; `first` is the index of its first element. Out of line,
/// because the loop keeps all it needs in registers.
#[cold]
#[inline(never)]
fn patch(
    patches: &mut dyn OutlierPatcher,
    first: usize,
    elements: &[u8; BURST * STRIPE],
) -> [u8; BURST * STRIPE] {
    let mut elements = *elements;
    patches.patch(first, &mut elements);
    elements
}

/// Sets the highest bits, which are clear, of the lanes whose bits are set.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn set_signs(lanes: [u16; LANES], signs: u32) -> [u16; LANES] {
    let lanes = cast!(lanes, [u16; LANES] => __m512i);
    let signed = _mm512_or_si512(lanes, _mm512_maskz_set1_epi16(signs, i16::MIN));
    cast!(signed, __m512i => [u16; LANES])
}

/// Stores stripes, aligned or not.
pub(crate) struct Writer {
    /// Whether to use non-temporal stores.
    past: bool,
    /// The previous stripe, whose last bytes are still pending.
    pub(crate) before: __m512i,
    /// The permutation that takes a cache line from the previous stripe and the next.
    order: __m512i,
}

impl Writer {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(crate) fn new(pending: Option<&PartialLine>, start: usize) -> Self {
        let (mut before, mut words) = ([0; STRIPE], 0);
        if let Some(pending) = pending {
            assert!(start.is_multiple_of(STRIPE) && pending.len < STRIPE && pending.len.is_multiple_of(8));
            (before, words) = (pending.line, pending.len / 8);
        }
        let order: [u64; 8] = std::array::from_fn(|i| (8 - words + i) as u64);
        Self {
            past: pending.is_some(),
            before: cast!(before, [u8; STRIPE] => __m512i),
            order: cast!(order, [u64; 8] => __m512i),
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(crate) fn write(&mut self, stripes: [__m512i; BURST], out: &mut [u8; BURST * STRIPE]) {
        for (&stripe, out) in stripes.iter().zip(out.as_chunks_mut::<STRIPE>().0) {
            if self.past {
                let line = _mm512_permutex2var_epi64(self.before, self.order, stripe);
                // SAFETY: there is a line, aligned as `new` has seen the first to be.
                unsafe { _mm512_stream_si512(out.as_mut_ptr().cast(), line) };
                self.before = stripe;
            } else {
                // SAFETY: there are as many bytes.
                unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), stripe) };
            }
        }
    }
}
