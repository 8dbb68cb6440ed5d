//! Scales and offsets as levels, by which groups are classed.
//!
//! The level of a number is 1024 times its logarithm to base 2, linear between powers of two, plus a
//! constant: the bits of a half without the sign are just that. Levels are integers, the same on
//! every machine.

use super::types::{Row, Scale};
use crate::simd::dispatch_wide;
use crate::simd::vector::Vector;

/// Levels of every group, from its parameters.
#[derive(Default)]
pub(super) struct Levels {
    /// Of the scales.
    pub(super) scales: Vec<i32>,
    /// Of the offsets less those of the scales; empty for types without offsets.
    pub(super) offsets: Vec<i32>,
}

/// The level of an integer: the exponent and ten bits of the mantissa of a float have it, and those of 0 are below.
#[inline(always)]
fn integer(number: u8) -> i32 {
    /// Of one. (structural: the exponent's bias)
    const ONE: i32 = 127 << 10;
    (((f32::from(number).to_bits() >> 13) as i32) - ONE).max(0)
}

/// The level of a half in the streams `[low, high]` of blocks.
fn half(streams: &[&[u8]], number: usize, block: usize) -> i32 {
    half_of(streams[number][block], streams[number + 1][block])
}

#[inline(always)]
fn half_of(low: u8, high: u8) -> i32 {
    i32::from(low) | i32::from(high & 0x7f) << 8
}

dispatch_wide! {
    /// The levels of blocks of eight groups. `halves` are the low and high bytes of the blocks' scales and offsets.
    fn fill_eights(halves: [&[u8]; 4], scales: &[[u8; 8]], offsets: &[[u8; 8]], levels: &mut Levels) = fill_eights_with
}

#[inline(always)]
fn fill_eights_with(
    _isa: impl Vector,
    halves: [&[u8]; 4],
    scales: &[[u8; 8]],
    offsets: &[[u8; 8]],
    levels: &mut Levels,
) {
    let Levels { scales: scale_levels, offsets: offset_levels } = levels;
    let out = scale_levels.as_chunks_mut::<8>().0.iter_mut().zip(offset_levels.as_chunks_mut::<8>().0);
    let [low, high, offset_low, offset_high] = halves;
    let wholes = low.iter().zip(high).zip(offset_low.iter().zip(offset_high));
    for (((out, offsets_out), ((&low, &high), (&offset_low, &offset_high))), (scales, offsets)) in
        out.zip(wholes).zip(scales.iter().zip(offsets))
    {
        let (whole, offset) = (half_of(low, high), half_of(offset_low, offset_high));
        for i in 0..8 {
            out[i] = whole + integer(scales[i]);
            offsets_out[i] = offset + integer(offsets[i]) - out[i];
        }
    }
}

impl Levels {
    /// The levels of all groups of `blocks` blocks, from their parameters.
    pub(super) fn fill(&mut self, row: &Row, streams: &[&[u8]], blocks: usize) {
        self.scales.clear();
        self.offsets.clear();
        let halves = |number: usize| streams[number].iter().zip(streams[number + 1]);
        match row.scale {
            Scale::Half(number) => {
                return self.scales.extend(halves(number).map(|(&low, &high)| half_of(low, high)));
            }
            Scale::HalfAndOffset(number) => {
                self.scales.extend(halves(number).map(|(&low, &high)| half_of(low, high)));
                let offsets = halves(number + 2).zip(&self.scales);
                return self.offsets.extend(offsets.map(|((&low, &high), scale)| half_of(low, high) - scale));
            }
            Scale::Exponent(number) => {
                return self.scales.extend(streams[number].iter().map(|&exponent| i32::from(exponent) << 10));
            }
            Scale::Fp8(number) => {
                return self.scales.extend(streams[number].iter().map(|&scale| i32::from(scale & 0x7f) << 7));
            }
            Scale::Integers { half: number, scales } => {
                self.scales.resize(blocks * row.groups, 0);
                self.offsets.resize(blocks * row.groups, 0);
                let halves = std::array::from_fn(|i| streams[number + i]);
                let [scales, offsets] = [scales, scales + 1].map(|stream| streams[stream].as_chunks().0);
                return fill_eights(halves, scales, offsets, self);
            }
            _ => {}
        }
        let groups = row.groups;
        for block in 0..blocks {
            let of = |stream: usize, group: usize| streams[stream][block * groups + group];
            match row.scale {
                Scale::None | Scale::Half(_) | Scale::HalfAndOffset(_) => {}
                Scale::Exponent(_) | Scale::Fp8(_) | Scale::Integers { .. } => {}
                Scale::Nibbles { half: number, scales } => {
                    let (whole, offset) = (half(streams, number, block), half(streams, number + 2, block));
                    for group in 0..groups {
                        let both = of(scales, group);
                        let scale = whole + integer(both & 15);
                        self.scales.push(scale);
                        self.offsets.push(offset + integer(both >> 4) - scale);
                    }
                }
                Scale::Signed { half: number, scales } => {
                    let whole = half(streams, number, block);
                    let scale = |group| whole + integer((of(scales, group) as i8).unsigned_abs());
                    self.scales.extend((0..groups).map(scale));
                }
                Scale::Biased { half: number, scales } => {
                    let whole = half(streams, number, block);
                    let scale = |group| whole + integer(of(scales, group).abs_diff(32));
                    self.scales.extend((0..groups).map(scale));
                }
                Scale::Cut { half: number, high, low } => {
                    let whole = half(streams, number, block);
                    let bits = u32::from(streams[high][block]) | u32::from(streams[high + 1][block]) << 8;
                    self.scales.extend((0..groups).map(|group| {
                        let nibble = streams[low][block * (groups / 2) + group / 2] >> (group % 2 * 4) & 15;
                        let scale = nibble | ((bits >> (2 * group) & 3) as u8) << 4;
                        whole + integer(scale.abs_diff(32))
                    }));
                }
            }
        }
    }

    /// Makes the levels of scales relative: less the mean of each run of `run` groups, rounded down.
    pub(super) fn subtract_means(&mut self, run: usize) {
        for run in self.scales.chunks_mut(run.max(1)) {
            let sum: i64 = run.iter().map(|&level| i64::from(level)).sum();
            let mean = sum.div_euclid(run.len() as i64) as i32;
            run.iter_mut().for_each(|level| *level -= mean);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_rise_with_what_they_are_of() {
        assert_eq!([1, 2, 3, 4, 32, 63].map(integer), [0, 1024, 1536, 2048, 5120, 6112]);
        for number in 1..255 {
            assert!(integer(number) < integer(number + 1));
            let exact = f64::from(number).log2() * 1024.0;
            assert!((f64::from(integer(number)) - exact).abs() < 90.0);
        }
    }
}
