//! The bins: intervals of residuals, the same for all data.
//!
//! A residual is a difference of magnitudes (bits without the sign), and whether the sign changed. Small
//! residuals have two or four bins per power of two; those of a sixteenth of a power of two of the value
//! and more, where densities bend, have bins of one width; farther ones are wider.

/// Bits of a magnitude. (structural: fp32 without its sign)
const MAGNITUDE: u32 = 31;
pub(crate) const MAGNITUDE_MASK: u32 = (1 << MAGNITUDE) - 1;
/// Bins of positive residuals with an unchanged sign, and of negative ones. (format)
const PER_SIDE: usize = 94;
/// The bin of the residual 0. (format)
const ZERO: usize = PER_SIDE;
/// The first bin with a changed sign, that of residual 0 among them, and the two bins of all residuals,
/// with an unchanged and with a changed sign. (format)
const FLIPPED: usize = 2 * PER_SIDE + 1;
const FLIPPED_ZERO: usize = FLIPPED + 32;
const ANY: usize = 254;
/// A power of two of the value, in residuals. (structural: fp32)
const OCTAVE: u32 = 1 << 23;

/// An interval of residuals.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bin {
    /// The lowest residual, modulo 2^31; the highest bit is set if the sign changed.
    pub(crate) base: u32,
    /// The logarithm of the width.
    pub(crate) bits: u32,
}

/// All bins.
pub(crate) static BINS: [Bin; 256] = TABLE;
const TABLE: [Bin; 256] = bins();
/// The largest number of bits of an offset. (structural)
const MAX_BITS: usize = MAGNITUDE as usize;

const fn bins() -> [Bin; 256] {
    let mut bins = [Bin { base: 0, bits: 0 }; 256];
    let mut at = 1;
    let mut start = 1u32;
    while at <= PER_SIDE {
        let bits = width_at(start);
        bins[ZERO + at] = Bin { base: start, bits };
        bins[ZERO - at] = Bin { base: (start + (1 << bits) - 1).wrapping_neg() & MAGNITUDE_MASK, bits };
        start += 1 << bits;
        at += 1;
    }
    start = 0;
    at = 0;
    while FLIPPED_ZERO + at < ANY {
        let bits = flipped_width_at(start);
        let changed = 1 << MAGNITUDE;
        bins[FLIPPED_ZERO + at] = Bin { base: start | changed, bits };
        if at < FLIPPED_ZERO - FLIPPED {
            let base = (start + (1 << bits)).wrapping_neg() & MAGNITUDE_MASK;
            bins[FLIPPED_ZERO - 1 - at] = Bin { base: base | changed, bits };
        }
        start += 1 << bits;
        at += 1;
    }
    bins[ANY] = Bin { base: 0, bits: MAGNITUDE };
    bins[ANY + 1] = Bin { base: 1 << MAGNITUDE, bits: MAGNITUDE };
    bins
}

/// The logarithm of the width of the bin that starts at a residual, with an unchanged sign.
const fn width_at(start: u32) -> u32 {
    match start.ilog2() {
        0 => 0,
        power @ 1..14 => power - 1,
        power @ 14..19 => power - 2,
        19..24 => 19,
        24 => 21,
        _ => 23,
    }
}

/// As [`width_at`], with a changed sign.
const fn flipped_width_at(start: u32) -> u32 {
    match start / OCTAVE {
        0..2 => 20,
        2..4 => 21,
        _ => 23,
    }
}

/// The most bytes that the offsets of some elements take.
pub(super) fn max_offset_bytes(elements: usize) -> u64 {
    (elements as u64 * MAX_BITS as u64).div_ceil(8)
}

/// Finds the bin of a residual by its sign, its bit length and the bits below the highest.
pub(crate) struct BinIndex([u8; 4 * LENGTHS * PER_LENGTH]);

/// Bit lengths of residuals, and parts of each that are told apart: every bin is some of them. (structural)
const LENGTHS: usize = 32;
const PER_LENGTH: usize = 16;

/// The bins of all residuals.
pub(crate) static BIN_INDEX: BinIndex = BinIndex::new();

impl BinIndex {
    const fn new() -> Self {
        let mut index = [0; 4 * LENGTHS * PER_LENGTH];
        let mut at = 0;
        while at < LENGTHS * PER_LENGTH {
            // The lowest residual that is looked up here.
            let (length, part) = (at / PER_LENGTH, at % PER_LENGTH);
            let size = match length {
                0 => 0,
                1..5 => (PER_LENGTH + part) >> (5 - length),
                _ => (PER_LENGTH + part) << (length - 5),
            };
            let side = bin_at(size as u32, ZERO, PER_SIDE + 1, 1);
            index[at] = if side == usize::MAX { ANY } else { ZERO + side } as u8;
            index[at + LENGTHS * PER_LENGTH] = if side == usize::MAX { ANY } else { ZERO - side } as u8;
            let above = bin_at(size as u32, FLIPPED_ZERO, ANY - FLIPPED_ZERO, 0);
            index[at + 2 * LENGTHS * PER_LENGTH] =
                if above == usize::MAX { ANY + 1 } else { FLIPPED_ZERO + above } as u8;
            let below = if above < FLIPPED_ZERO - FLIPPED { FLIPPED_ZERO - 1 - above } else { ANY + 1 };
            index[at + 3 * LENGTHS * PER_LENGTH] = below as u8;
            at += 1;
        }
        Self(index)
    }

    /// The bin and the offset in it of an element.
    #[inline(always)]
    pub(crate) fn find(&self, element: u32, prediction: u32) -> (u8, u32, u32) {
        let residual = (element & MAGNITUDE_MASK).wrapping_sub(prediction & MAGNITUDE_MASK);
        let negative = residual >> MAGNITUDE;
        let flipped = (element ^ prediction) >> MAGNITUDE;
        // Below zero, with a changed sign: from -1 on.
        let size = (residual ^ negative.wrapping_neg()).wrapping_add(negative & !flipped);
        let zeros = size.leading_zeros();
        let part = size.unbounded_shl(zeros) >> (MAGNITUDE - 4) & (PER_LENGTH as u32 - 1);
        let at = ((flipped << 1 | negative) << 5 | (32 - zeros) & 31) << 4 | part;
        let bin = self.0[at as usize % self.0.len()];
        let Bin { base, bits } = BINS[usize::from(bin)];
        (bin, residual.wrapping_sub(base) & MAGNITUDE_MASK, bits)
    }
}

/// The bin of a residual, counted from `first`, of which `count` are searched from number `from` on.
const fn bin_at(size: u32, first: usize, count: usize, from: usize) -> usize {
    if from == 1 && size == 0 {
        return 0;
    }
    let mut at = from;
    while at < count {
        let Bin { base, bits } = TABLE[first + at];
        let base = base & MAGNITUDE_MASK;
        if size >= base && size - base < 1 << bits {
            return at;
        }
        at += 1;
    }
    usize::MAX
}

/// The element of a prediction, a bin and an offset.
#[inline(always)]
pub(crate) fn element(prediction: u32, bin: Bin, offset: u32) -> u32 {
    let magnitude = prediction.wrapping_add(bin.base).wrapping_add(offset) & MAGNITUDE_MASK;
    magnitude | (prediction ^ bin.base) & !MAGNITUDE_MASK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_partition_residuals() {
        // Signed, in ascending order, without gaps; then those with a changed sign.
        let signed = |base: u32| ((base << 1) as i32) >> 1;
        for (range, start, end) in
            [(0..FLIPPED, -(12 << 23) + 1, 12 << 23), (FLIPPED..ANY, -(12 << 23), 13 << 23)]
        {
            let mut next = start;
            for bin in range {
                assert_eq!(signed(BINS[bin].base), next, "bin {bin}");
                assert_eq!(BINS[bin].base >> 31 == 1, bin >= FLIPPED);
                next += 1 << BINS[bin].bits;
            }
            assert_eq!(next, end);
        }
        assert_eq!((BINS[ZERO].base, BINS[ZERO].bits), (0, 0));
    }

    #[test]
    fn every_residual_has_a_bin_that_gives_it_back() {
        let index = &BIN_INDEX;
        let edges = [0u32, 1, 2, 0x3f80_0000, 0x7f7f_ffff, 0x7fff_ffff, 0x3f7f_ffff];
        let mut elements: Vec<u32> = edges.iter().flat_map(|&edge| [edge, edge | 1 << 31]).collect();
        for base in [0x3f80_0000u32, 0xbf80_0000] {
            for bin in &BINS {
                for step in [-1i32, 0, 1] {
                    let start = base.wrapping_add(bin.base & MAGNITUDE_MASK).wrapping_add_signed(step);
                    elements.extend([start & MAGNITUDE_MASK, start | 1 << 31]);
                }
            }
        }
        for &prediction in &elements {
            for &value in &elements {
                let (bin, offset, bits) = index.find(value, prediction);
                assert!(u64::from(offset) < 1 << bits, "{value:x} of {prediction:x}: bin {bin}");
                assert_eq!(element(prediction, BINS[usize::from(bin)], offset), value);
            }
        }
    }

    #[test]
    fn near_residuals_have_narrow_bins() {
        let one = 1f32.to_bits();
        let of = |residual: i32| BIN_INDEX.find(one.wrapping_add_signed(residual), one);
        assert_eq!(of(0), (94, 0, 0));
        assert_eq!(of(1), (95, 0, 0));
        assert_eq!(of(-1), (93, 0, 0));
        assert_eq!(of(7), (94 + 5, 1, 1));
        assert_eq!(of(-6), (94 - 5, 1, 1));
        let negated = BIN_INDEX.find((-1f32).to_bits(), one);
        assert_eq!((negated.0, negated.1), (FLIPPED_ZERO as u8, 0));
    }
}
