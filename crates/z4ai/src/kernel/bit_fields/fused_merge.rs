//! The fused merge: fields are merged to floats, hashed and stored while they are in registers.

use crate::kernel::bit_fields::blocks::{Codes, Merger, Nibbles};
use crate::kernel::bit_fields::{MergeSink, MergeSource, OutlierPatcher};
use crate::kernel::stripe_writer::{BURST, StripeWriter};
use crate::kernel::xxh3::{self, HASH_BLOCK, STRIPES};
use crate::simd::vector::Vector;
use crate::simd::{LANES, STRIPE, Sums};

/// Merges whole hash blocks; returns the number of bytes.
#[inline(always)]
pub(crate) fn merge_blocks<const SIZE: usize, const BITS: u32, const SEPARATE_SIGN: bool>(
    isa: impl Vector,
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
            let merger = Merger::<_, _, SIZE, BITS, SEPARATE_SIGN>::new(isa, base, fields, codes, turns);
            merge_turns(isa, merger, from.signs, to)
        }
        Some(palette) => {
            let codes = Nibbles::new(palette, fields.codes);
            let turns = turns.min(codes.turns());
            let merger = Merger::<_, _, SIZE, BITS, SEPARATE_SIGN>::new(isa, base, fields, codes, turns);
            merge_turns(isa, merger, from.signs, to)
        }
    }
}

#[inline(always)]
fn merge_turns<I: Vector, C: Codes, const SIZE: usize, const BITS: u32, const SEPARATE_SIGN: bool>(
    isa: I,
    merger: Merger<'_, I, C, SIZE, BITS, SEPARATE_SIGN>,
    signs: &[u8],
    to: MergeSink<'_>,
) -> usize {
    const { assert!(STRIPES.is_multiple_of(BURST)) };
    let signs = signs.as_chunks::<{ LANES / 8 }>().0;
    let turns = if SEPARATE_SIGN { merger.turns.min(signs.len()) } else { merger.turns };
    let done = turns * LANES * SIZE / HASH_BLOCK * HASH_BLOCK;
    let blocks = to.out[..done].as_chunks_mut::<HASH_BLOCK>().0;
    let mut sums: Sums = *to.sums;
    let mut writer = StripeWriter::new(isa, to.pending.as_deref(), blocks.as_ptr().addr());
    let highest = isa.splat::<u16>(0x8000);
    let mut turn = 0;
    let mut next_patch = to.patches.next();
    for block in blocks {
        let bursts = block.as_chunks_mut::<{ BURST * STRIPE }>().0;
        for (burst, out) in bursts.iter_mut().enumerate() {
            let mut stripes = [highest; BURST];
            let first = turn * LANES;
            merger.fetch_codes_ahead(turn);
            for i in 0..BURST * 2 / SIZE {
                // Two turns take a line of every plane.
                if i % 2 == 0 {
                    merger.fetch_ahead(turn);
                }
                let mut top = merger.top(turn);
                if SEPARATE_SIGN {
                    let set = isa.and(isa.select16(u32::from_le_bytes(signs[turn])), highest);
                    top = halves(isa.bytes(isa.or(isa.load(&bytes_of_halves(top)), set)));
                }
                if SIZE == 2 {
                    stripes[i] = isa.load(&bytes_of_halves(top));
                } else {
                    let [low, high] = bytes_of_words(merger.widen(turn, top));
                    (stripes[2 * i], stripes[2 * i + 1]) = (isa.load(&low), isa.load(&high));
                }
                turn += 1;
            }
            if next_patch < turn * LANES {
                let mut elements = [0; BURST * STRIPE];
                for (bytes, &stripe) in elements.as_chunks_mut().0.iter_mut().zip(&stripes) {
                    isa.store(stripe, bytes);
                }
                patch(to.patches, first, &mut elements);
                for (stripe, bytes) in stripes.iter_mut().zip(elements.as_chunks().0) {
                    *stripe = isa.load(bytes);
                }
                next_patch = to.patches.next();
            }
            for (i, &stripe) in stripes.iter().enumerate() {
                let secret = xxh3::secret((burst * BURST + i) * 8);
                sums = isa.accumulate(sums, isa.bytes(stripe), secret);
            }
            writer.write(stripes, out);
        }
        sums = xxh3::scramble(sums);
    }
    *to.sums = sums;
    writer.finish(to.pending);
    done
}

/// Patches the outliers of one burst; `first` is the index of its first element. Out of line,
/// because the loop keeps all it needs in registers.
#[cold]
#[inline(never)]
fn patch(patches: &mut dyn OutlierPatcher, first: usize, elements: &mut [u8; BURST * STRIPE]) {
    patches.patch(first, elements);
}

/// The number in little-endian order. Compilers do not see through `map` over whole arrays where it
/// does nothing, and would move every element on its own.
macro_rules! little_endian {
    ($numbers:expr, $swap:path) => {
        if cfg!(target_endian = "big") { $numbers.map($swap) } else { $numbers }
    };
}

#[inline(always)]
fn bytes_of_halves(halves: [u16; LANES]) -> [u8; STRIPE] {
    let halves = little_endian!(halves, u16::to_le);
    // SAFETY: both are plain data of one size, for which every bit pattern is valid, here and below.
    unsafe { std::mem::transmute::<[u16; LANES], [u8; STRIPE]>(halves) }
}

#[inline(always)]
fn halves(bytes: [u8; STRIPE]) -> [u16; LANES] {
    // SAFETY: as above.
    let halves = unsafe { std::mem::transmute::<[u8; STRIPE], [u16; LANES]>(bytes) };
    little_endian!(halves, u16::from_le)
}

#[inline(always)]
fn bytes_of_words(words: [u32; LANES]) -> [[u8; STRIPE]; 2] {
    let words = little_endian!(words, u32::to_le);
    // SAFETY: as above.
    unsafe { std::mem::transmute::<[u32; LANES], [[u8; STRIPE]; 2]>(words) }
}
