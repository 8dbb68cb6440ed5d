//! Sums over the rows and columns of a chunk of codes.

use super::classes::MAX_CLASSES;
use super::{Isa, dispatch};

/// Codes farther apart than this are just different: zeros would drown everything else.
const FAR: u8 = 16;
/// Terms of less than 256 that a sum of sixteen bits holds.
const NARROW: usize = 256;

dispatch! {
    /// How different two runs of codes of one length are.
    pub(crate) fn distance(a: &[u8], b: &[u8]) -> u32 = distance_with
}

dispatch! {
    /// The sum of the codes of each row or column, those below `clip` counted as that.
    pub(crate) fn of_units(codes: &[u8], columns: bool, period: usize, clip: u8) -> Vec<u64> = of_units_with
}

dispatch! {
    /// What the codes of each row or column cost by each class, if `costs` has one code's costs by all
    /// classes: each less than 256 and in sixteen bits of its own, class 0 in the lowest.
    pub(crate) fn costs_of_units(
        codes: &[u8],
        columns: bool,
        period: usize,
        costs: &[u64; 256],
    ) -> Vec<[u64; MAX_CLASSES]> = costs_of_units_with
}

#[inline(always)]
fn distance_with(_: impl Isa, a: &[u8], b: &[u8]) -> u32 {
    a.iter().zip(b).map(|(&a, &b)| u32::from(a.abs_diff(b).min(FAR))).sum()
}

#[inline(always)]
fn of_units_with(_: impl Isa, codes: &[u8], columns: bool, period: usize, clip: u8) -> Vec<u64> {
    if !columns {
        let sum = |row: &[u8]| row.iter().map(|&code| u32::from(code.max(clip))).sum::<u32>();
        return codes.chunks(period).map(|row| u64::from(sum(row))).collect();
    }
    let mut sums = vec![0u64; period];
    // In narrow sums, so that more of them fit a register.
    let mut narrow = vec![0u16; period];
    for rows in codes.chunks(NARROW * period) {
        narrow.fill(0);
        for row in rows.chunks(period) {
            for (sum, &code) in narrow.iter_mut().zip(row) {
                *sum += u16::from(code.max(clip));
            }
        }
        for (sum, &narrow) in sums.iter_mut().zip(&narrow) {
            *sum += u64::from(narrow);
        }
    }
    sums
}

#[inline(always)]
fn costs_of_units_with(
    _: impl Isa,
    codes: &[u8],
    columns: bool,
    period: usize,
    costs: &[u64; 256],
) -> Vec<[u64; MAX_CLASSES]> {
    let widen = |wide: &mut [u64; MAX_CLASSES], narrow: u64| {
        for (class, wide) in wide.iter_mut().enumerate() {
            *wide += narrow >> (16 * class) & 0xffff;
        }
    };
    let cost = |&code: &u8| costs[usize::from(code)];
    if !columns {
        let row_costs = |row: &[u8]| {
            let mut wide = [0; MAX_CLASSES];
            row.chunks(NARROW).for_each(|part| widen(&mut wide, part.iter().map(cost).sum()));
            wide
        };
        return codes.chunks(period).map(row_costs).collect();
    }
    let mut sums = vec![[0; MAX_CLASSES]; period];
    let mut narrow = vec![0u64; period];
    for rows in codes.chunks(NARROW * period) {
        narrow.fill(0);
        for row in rows.chunks(period) {
            for (sum, code) in narrow.iter_mut().zip(row) {
                *sum += cost(code);
            }
        }
        sums.iter_mut().zip(&narrow).for_each(|(wide, &narrow)| widen(wide, narrow));
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::super::Portable;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sums_are_sums(
            codes in prop::collection::vec(any::<u8>(), 1..3000),
            period in 1usize..70,
            columns: bool,
            clip: u8,
            seed: u64,
        ) {
            let costs: [u64; 256] = std::array::from_fn(|i| seed.wrapping_add((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)) & 0x00ff_00ff_00ff_00ff);
            let units = if columns { period } else { codes.len().div_ceil(period) };
            let mut sums = vec![0; units];
            let mut by_class = vec![[0; MAX_CLASSES]; units];
            for (i, &code) in codes.iter().enumerate() {
                let unit = if columns { i % period } else { i / period };
                sums[unit] += u64::from(code.max(clip));
                for class in 0..MAX_CLASSES {
                    by_class[unit][class] += costs[usize::from(code)] >> (16 * class) & 0xff;
                }
            }
            prop_assert_eq!(&of_units(&codes, columns, period, clip), &sums);
            prop_assert_eq!(&of_units_with(Portable, &codes, columns, period, clip), &sums);
            prop_assert_eq!(&costs_of_units(&codes, columns, period, &costs), &by_class);
            prop_assert_eq!(&costs_of_units_with(Portable, &codes, columns, period, &costs), &by_class);
        }
    }
}
