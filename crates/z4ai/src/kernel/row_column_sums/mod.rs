//! Sums over the rows and columns of a chunk of codes: scales, and costs under each scale class.

#[cfg(target_arch = "x86_64")]
mod avx512;

use crate::kernel::scale_classes::MAX_CLASSES;
use crate::simd::{Isa, dispatch, dispatch_wide};

/// Clamp on the difference of two codes: zeros would dominate the sum.
const MAX_DIFFERENCE: u8 = 16;
/// Terms below 256 that a 16-bit sum can hold.
const TERMS_PER_U16: usize = 256;

dispatch_wide! {
    /// The sum of clamped absolute differences of two runs of codes.
    pub(crate) fn distance(a: &[u8], b: &[u8]) -> u32 = distance_with
}

/// The sum of `max(code, clip)` of each row or column.
pub(crate) fn sums_of_units(codes: &[u8], columns: bool, period: usize, clip: u8) -> Vec<u64> {
    #[cfg(target_arch = "x86_64")]
    if let Some(isa) = crate::simd::Avx512::new() {
        return isa.sums_of_units(codes, columns, period, clip);
    }
    sums_of_units_narrow(codes, columns, period, clip)
}

/// The cost of each row or column under each class. `costs` has a code's cost for all classes: each
/// below 256, in sixteen bits, class 0 in the lowest.
pub(crate) fn costs_of_units(
    codes: &[u8],
    columns: bool,
    period: usize,
    costs: &[u64; 256],
) -> Vec<[u64; MAX_CLASSES]> {
    #[cfg(target_arch = "x86_64")]
    if let Some(isa) = crate::simd::Avx512::new() {
        return isa.costs_of_units(codes, columns, period, costs);
    }
    costs_of_units_narrow(codes, columns, period, costs)
}

dispatch! {
    /// As [`sums_of_units`], in narrower vectors.
    fn sums_of_units_narrow(codes: &[u8], columns: bool, period: usize, clip: u8) -> Vec<u64> = sums_of_units_with
}

dispatch! {
    /// As [`costs_of_units`], one code at a time.
    fn costs_of_units_narrow(
        codes: &[u8],
        columns: bool,
        period: usize,
        costs: &[u64; 256],
    ) -> Vec<[u64; MAX_CLASSES]> = costs_of_units_with
}

#[inline(always)]
fn distance_with(_: impl Isa, a: &[u8], b: &[u8]) -> u32 {
    const LANES: usize = 64;
    /// Terms that a sum of eight bits holds.
    const TERMS: usize = u8::MAX as usize / MAX_DIFFERENCE as usize;
    let far = |a: u8, b: u8| a.abs_diff(b).min(MAX_DIFFERENCE);
    let mut total = 0;
    for (a, b) in a.chunks(TERMS * LANES).zip(b.chunks(TERMS * LANES)) {
        let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
        let mut sums = [0u8; LANES];
        for (a, b) in a.iter().zip(b) {
            for i in 0..LANES {
                sums[i] += far(a[i], b[i]);
            }
        }
        total += sums.iter().map(|&sum| u32::from(sum)).sum::<u32>();
        total += a_rest.iter().zip(b_rest).map(|(&a, &b)| u32::from(far(a, b))).sum::<u32>();
    }
    total
}

#[inline(always)]
fn sums_of_units_with(isa: impl Isa, codes: &[u8], columns: bool, period: usize, clip: u8) -> Vec<u64> {
    if !columns {
        let mut sums = Vec::with_capacity(codes.len().div_ceil(period));
        for row in codes.chunks(period) {
            let (parts, rest) = row.as_chunks::<32>();
            let mut sum = 0;
            for part in parts {
                sum += isa.sum_clamped(*part, clip);
            }
            rest.iter().for_each(|&code| sum += u32::from(code.max(clip)));
            sums.push(u64::from(sum));
        }
        return sums;
    }
    let mut sums = vec![0u64; period];
    // In narrow sums, so that more of them fit a register.
    let mut narrow = vec![0u16; period];
    for rows in codes.chunks(TERMS_PER_U16 * period) {
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
        let mut sums = Vec::with_capacity(codes.len().div_ceil(period));
        for row in codes.chunks(period) {
            let mut wide = [0; MAX_CLASSES];
            for part in row.chunks(TERMS_PER_U16) {
                let mut narrow = 0;
                part.iter().for_each(|code| narrow += cost(code));
                widen(&mut wide, narrow);
            }
            sums.push(wide);
        }
        return sums;
    }
    let mut sums = vec![[0; MAX_CLASSES]; period];
    let mut narrow = vec![0u64; period];
    for rows in codes.chunks(TERMS_PER_U16 * period) {
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
    use super::*;
    use crate::simd::Portable;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn row_and_column_sums_match_the_naive_ones(
            codes in prop::collection::vec(any::<u8>(), 1..30000),
            period in 1usize..200,
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
            prop_assert_eq!(&sums_of_units(&codes, columns, period, clip), &sums);
            prop_assert_eq!(&sums_of_units_narrow(&codes, columns, period, clip), &sums);
            prop_assert_eq!(&sums_of_units_with(Portable, &codes, columns, period, clip), &sums);
            prop_assert_eq!(&costs_of_units(&codes, columns, period, &costs), &by_class);
            prop_assert_eq!(&costs_of_units_narrow(&codes, columns, period, &costs), &by_class);
            prop_assert_eq!(&costs_of_units_with(Portable, &codes, columns, period, &costs), &by_class);
        }
    }
}
