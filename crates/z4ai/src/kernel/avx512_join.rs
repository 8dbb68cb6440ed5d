//! Joining fields to floats, hashing these and writing them to where they stay, all while they are in
//! registers.

use std::arch::x86_64::*;

use super::blocks::{Codes, Joiner, Nibbles};
use super::fields::{FieldsAndSigns, Joined, Patching, Waiting};
use super::hash::{self, BLOCK, STRIPE, STRIPES, Sums};
use super::{Avx512, Isa, LANES, avx2::cast};

/// Stripes that are written at a time: memory takes them faster than one by one.
pub(super) const BURST: usize = 4;

impl Avx512 {
    /// Joins whole blocks; returns how many bytes that were.
    #[inline(always)]
    pub(super) fn join_blocks<const SIZE: usize, const BITS: u32, const APART: bool>(
        self,
        base: u16,
        from: &FieldsAndSigns<'_>,
        to: Joined<'_>,
    ) -> usize {
        let fields = &from.fields;
        let turns = to.out.len() / SIZE / LANES;
        match from.palette {
            None => {
                let codes = fields.codes.as_chunks().0;
                let turns = turns.min(codes.len());
                let joiner = Joiner::<_, _, SIZE, BITS, APART>::new(self, base, fields, codes, turns);
                // SAFETY: `self` proves the features.
                unsafe { join_blocks(self, joiner, from.signs, to) }
            }
            Some(palette) => {
                let codes = Nibbles::new(palette, fields.codes);
                let turns = turns.min(codes.turns());
                let joiner = Joiner::<_, _, SIZE, BITS, APART>::new(self, base, fields, codes, turns);
                // SAFETY: `self` proves the features.
                unsafe { join_blocks(self, joiner, from.signs, to) }
            }
        }
    }
}

#[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2")]
fn join_blocks<C: Codes, const SIZE: usize, const BITS: u32, const APART: bool>(
    isa: Avx512,
    joiner: Joiner<'_, Avx512, C, SIZE, BITS, APART>,
    signs: &[u8],
    to: Joined<'_>,
) -> usize {
    let signs = signs.as_chunks::<{ LANES / 8 }>().0;
    let turns = if APART { joiner.turns.min(signs.len()) } else { joiner.turns };
    let done = turns * LANES * SIZE / BLOCK * BLOCK;
    let blocks = to.out[..done].as_chunks_mut::<BLOCK>().0;
    let mut sums: Sums = *to.sums;
    let mut writer = Writer::new(to.waiting.as_deref(), blocks.as_ptr().addr());
    let mut turn = 0;
    let mut next_patch = to.patches.next();
    for block in blocks {
        let bursts = block.as_chunks_mut::<{ BURST * STRIPE }>().0;
        for (burst, out) in bursts.iter_mut().enumerate() {
            let mut stripes = [_mm512_setzero_si512(); BURST];
            let first = turn * LANES;
            joiner.fetch_codes_ahead(turn);
            for i in 0..BURST * 2 / SIZE {
                // Two turns take a line of every plane.
                if i % 2 == 0 {
                    joiner.fetch_ahead(turn);
                }
                let mut top = joiner.top(turn);
                if APART {
                    top = set_signs(top, u32::from_le_bytes(signs[turn]));
                }
                if SIZE == 2 {
                    stripes[i] = cast!(top, [u16; LANES] => __m512i);
                } else {
                    let wide = cast!(joiner.widen(turn, top), [u32; LANES] => [__m512i; 2]);
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
                let secret = hash::secret((burst * BURST + i) * 8);
                sums = isa.accumulate(sums, cast!(stripe, __m512i => [u8; STRIPE]), secret);
            }
            writer.write(stripes, out);
        }
        sums = hash::scramble(sums);
    }
    const { assert!(STRIPES.is_multiple_of(BURST)) };
    *to.sums = sums;
    if let Some(waiting) = to.waiting {
        waiting.line = cast!(writer.before, __m512i => [u8; STRIPE]);
    }
    done
}

/// These elements, the first of which is that one of all, put right. Apart from the loop, which keeps all
/// it needs in registers.
#[cold]
#[inline(never)]
fn patch(patches: &mut dyn Patching, first: usize, elements: &[u8; BURST * STRIPE]) -> [u8; BURST * STRIPE] {
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

/// How stripes get to where they stay.
pub(super) struct Writer {
    /// Whether they go past the caches.
    past: bool,
    /// The stripe before, the last bytes of which have not been written.
    pub(super) before: __m512i,
    /// Which words of it and of the next make a line.
    order: __m512i,
}

impl Writer {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn new(waiting: Option<&Waiting>, start: usize) -> Self {
        let (mut before, mut words) = ([0; STRIPE], 0);
        if let Some(waiting) = waiting {
            assert!(start.is_multiple_of(STRIPE) && waiting.len < STRIPE && waiting.len.is_multiple_of(8));
            (before, words) = (waiting.line, waiting.len / 8);
        }
        let order: [u64; 8] = std::array::from_fn(|i| (8 - words + i) as u64);
        Self {
            past: waiting.is_some(),
            before: cast!(before, [u8; STRIPE] => __m512i),
            order: cast!(order, [u64; 8] => __m512i),
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn write(&mut self, stripes: [__m512i; BURST], out: &mut [u8; BURST * STRIPE]) {
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
