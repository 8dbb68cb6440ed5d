//! Offsets relative to scales.
//!
//! What a quantizer takes as the offset of a block or of a group is about proportional to its scale. So the
//! half of an offset may be stored as its difference to that of the scale, which is about the logarithm of their
//! ratio; and scales and offsets of groups may take turns in one stream, in which the symbol before an offset, its scale,
//! says which states it is coded with.

use super::types::{Row, Scale};
use crate::error::{Error, Result};
use crate::memory::grow;
use crate::simd::dispatch_wide;
use crate::simd::vector::Vector;
use crate::wire::Reader;

/// Offsets among scales have this bit. (format)
pub(super) const OFFSET: u8 = 64;
/// Flags of the description. (format)
const HALVES: u8 = 1;
const PAIRS: u8 = 2;

/// Which offsets are relative.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Relations {
    /// The halves of blocks: less that of the scale, modulo 2^16.
    pub(super) halves: bool,
    /// The numbers of groups: each behind its scale.
    pub(super) pairs: bool,
}

impl Relations {
    pub(super) fn any(self) -> bool {
        self.halves || self.pairs
    }

    pub(super) fn flags(self) -> u8 {
        (u8::from(self.halves) * HALVES) | (u8::from(self.pairs) * PAIRS)
    }

    pub(super) fn read(reader: &mut Reader<'_>, row: &Row) -> Result<Self> {
        let flags = reader.u8()?;
        let found = Self { halves: flags & HALVES != 0, pairs: flags & PAIRS != 0 };
        if flags & !(HALVES | PAIRS) != 0
            || !found.any()
            || found.halves && row.halves().is_none()
            || found.pairs && row.pairs().is_none()
        {
            return Err(Error::corrupt(format_args!("offsets of {} in form {flags}", row.name)));
        }
        Ok(found)
    }
}

impl Row {
    /// The first of the four streams of the halves of scales and offsets.
    pub(super) fn halves(&self) -> Option<usize> {
        match self.scale {
            Scale::HalfAndOffset(half) | Scale::Integers { half, .. } | Scale::Nibbles { half, .. } => {
                Some(half)
            }
            _ => None,
        }
    }

    /// The first of the two streams of scales and offsets of groups.
    pub(super) fn pairs(&self) -> Option<usize> {
        match self.scale {
            Scale::Integers { scales, .. } => Some(scales),
            _ => None,
        }
    }

    /// Bytes per block of every stream of parameters, of which pairs are one.
    pub(super) fn stored_streams(&self, relations: Relations) -> impl Iterator<Item = usize> {
        let pairs = if relations.pairs { self.pairs() } else { None };
        let streams = self.parameter_streams().enumerate();
        streams.filter_map(move |(number, bytes)| match pairs {
            Some(pairs) if number == pairs => Some(2 * bytes),
            Some(pairs) if number == pairs + 1 => None,
            _ => Some(bytes),
        })
    }
}

/// The low and high bytes of halves less those of others, modulo 2^16.
pub(super) fn subtract_halves([low, high]: [&[u8]; 2], [less_low, less_high]: [&[u8]; 2]) -> [Vec<u8>; 2] {
    let halves = low.iter().zip(high).map(|(&low, &high)| u16::from_le_bytes([low, high]));
    let less = less_low.iter().zip(less_high).map(|(&low, &high)| u16::from_le_bytes([low, high]));
    let (low, high) =
        halves.zip(less).map(|(half, less)| half.wrapping_sub(less).to_le_bytes().into()).unzip();
    [low, high]
}

/// The inverse of [`subtract_halves`]: adds `more` to `halves`.
pub(super) fn add_halves(halves: [&[u8]; 2], more: [&[u8]; 2], sums: &mut [Vec<u8>; 2]) {
    let len = halves[0].len();
    let [low, high] = sums;
    grow(low, len);
    grow(high, len);
    let halves = halves[0].iter().zip(halves[1]).zip(more[0].iter().zip(more[1]));
    for (((&a, &b), (&c, &d)), (low, high)) in halves.zip(low.iter_mut().zip(high)) {
        [*low, *high] = u16::from_le_bytes([a, b]).wrapping_add(u16::from_le_bytes([c, d])).to_le_bytes();
    }
}

/// Scales and offsets, which have six bits, in turn.
pub(super) fn join_pairs(scales: &[u8], offsets: &[u8]) -> Vec<u8> {
    scales.iter().zip(offsets).flat_map(|(&scale, &offset)| [scale, offset | OFFSET]).collect()
}

/// The inverse of [`join_pairs`]; returns bits other than those.
pub(super) fn split_pairs(pairs: &[u8], out: &mut [Vec<u8>; 2]) -> u8 {
    let pairs = pairs.as_chunks::<2>().0;
    let [scales, offsets] = out;
    grow(scales, pairs.len());
    grow(offsets, pairs.len());
    split_into(pairs, scales, offsets)
}

dispatch_wide! {
    fn split_into(pairs: &[[u8; 2]], scales: &mut [u8], offsets: &mut [u8]) -> u8 = split_into_with
}

#[inline(always)]
fn split_into_with(_isa: impl Vector, pairs: &[[u8; 2]], scales: &mut [u8], offsets: &mut [u8]) -> u8 {
    let mut used = 0;
    for ((&[scale, offset], to_scale), to_offset) in pairs.iter().zip(scales).zip(offsets) {
        (*to_scale, *to_offset) = (scale, offset ^ OFFSET);
        used |= *to_scale | *to_offset;
    }
    used & !63
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn relative_offsets_come_back(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let [a, b, c, d] = std::array::from_fn(|i| &bytes[bytes.len() / 4 * i..][..bytes.len() / 4]);
            let [low, high] = subtract_halves([c, d], [a, b]);
            let mut sums = [Vec::new(), Vec::new()];
            add_halves([&low, &high], [a, b], &mut sums);
            prop_assert!(sums == [c, d]);
            let six = |stream: &[u8]| -> Vec<u8> { stream.iter().map(|byte| byte & 63).collect() };
            let (scales, offsets) = (six(a), six(b));
            let mut pairs = join_pairs(&scales, &offsets);
            let mut out = [Vec::new(), Vec::new()];
            prop_assert_eq!(split_pairs(&pairs, &mut out), 0);
            prop_assert!(out == [scales, offsets]);
            if let Some(first) = pairs.first_mut() {
                *first |= 64;
                prop_assert!(split_pairs(&pairs, &mut out) != 0);
            }
        }
    }
}
