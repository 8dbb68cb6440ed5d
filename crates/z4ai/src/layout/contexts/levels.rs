//! The levels of both means before every code, many codes at a time.
//!
//! Computes what [`Means`](crate::layout::contexts::Means) does one code after the other. The
//! encoder knows all codes, so that only the means are a dependency chain, and those of different
//! columns are independent.

// Lanes of several arrays side by side read best with an index.
#![allow(clippy::needless_range_loop)]

use crate::layout::contexts::{COLUMN_EMA_SHIFT, Magnitudes, NEIGHBOR_EMA_SHIFT, level};

/// Codes per block. (structural: the block and its levels fit the first-level cache)
pub(crate) const BLOCK: usize = 256;
/// Rows of at least this many codes are vectorised. (case: `codec.py`, effort max, compress)
const MIN_VECTOR_ROW: usize = 8;

/// The levels of both means before each code of a block of `R` runs.
pub(crate) struct Levels<const R: usize> {
    pub(crate) near: [[u8; BLOCK]; R],
    pub(crate) column: [[u8; BLOCK]; R],
}

impl<const R: usize> Default for Levels<R> {
    fn default() -> Self {
        Self { near: [[0; BLOCK]; R], column: [[0; BLOCK]; R] }
    }
}

/// `R` runs that advance together.
pub(crate) struct ContextTracker<const R: usize> {
    near: [u64; R],
    columns: [Vec<u64>; R],
    /// The column of the next code.
    at: usize,
    joined: u32,
    /// The contribution of each code to the means.
    to_near: [u64; 256],
    to_column: [u64; 256],
}

impl<const R: usize> ContextTracker<R> {
    /// Before the first codes, which have `joined` mantissa bits, in rows of `period`.
    pub(crate) fn new(joined: u32, period: usize) -> Self {
        Self {
            near: [0; R],
            columns: std::array::from_fn(|_| vec![0; period]),
            at: 0,
            joined,
            to_near: std::array::from_fn(|code| Magnitudes::of(code as u64, joined) >> NEIGHBOR_EMA_SHIFT),
            to_column: std::array::from_fn(|code| Magnitudes::of(code as u64, joined) >> COLUMN_EMA_SHIFT),
        }
    }

    /// The levels before each of the next codes. All runs have the same number of codes, at most
    /// [`BLOCK`].
    pub(crate) fn advance(&mut self, codes: [&[u8]; R], levels: &mut Levels<R>) {
        #[cfg(target_arch = "x86_64")]
        if crate::simd::Avx512::new().is_some() {
            // SAFETY: the features were detected.
            return unsafe { advance_wide(self, codes, levels) };
        }
        advance(self, codes, levels);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vbmi")]
fn advance_wide<const R: usize>(tracker: &mut ContextTracker<R>, codes: [&[u8]; R], levels: &mut Levels<R>) {
    advance(tracker, codes, levels);
}

#[inline(always)]
fn advance<const R: usize>(tracker: &mut ContextTracker<R>, codes: [&[u8]; R], levels: &mut Levels<R>) {
    let len = codes[0].len().min(BLOCK);
    let mut means = [[0u64; BLOCK]; R];
    let mut near = tracker.near;
    for i in 0..len {
        for r in 0..R {
            means[r][i] = near[r];
            near[r] = near[r] + tracker.to_near[usize::from(codes[r][i])] - (near[r] >> NEIGHBOR_EMA_SHIFT);
        }
    }
    tracker.near = near;
    for r in 0..R {
        write_levels(&means[r][..len], &mut levels.near[r][..len]);
    }
    let (period, first) = (tracker.columns[0].len(), tracker.at);
    for r in 0..R {
        let columns = tracker.columns[r].as_mut_slice();
        let (mut at, mut done) = (first, 0);
        if period < MIN_VECTOR_ROW {
            for i in 0..len {
                let column = &mut columns[at];
                means[r][i] = *column;
                *column =
                    *column + tracker.to_column[usize::from(codes[r][i])] - (*column >> COLUMN_EMA_SHIFT);
                at = if at + 1 == period { 0 } else { at + 1 };
            }
            write_levels(&means[r][..len], &mut levels.column[r][..len]);
            continue;
        }
        while done < len {
            let part = (len - done).min(period - at);
            let codes = &codes[r][done..done + part];
            let levels = &mut levels.column[r][done..done + part];
            for ((&code, column), to) in codes.iter().zip(&mut columns[at..at + part]).zip(levels) {
                *to = level(*column);
                let magnitude = Magnitudes::of(u64::from(code), tracker.joined);
                *column = *column + (magnitude >> COLUMN_EMA_SHIFT) - (*column >> COLUMN_EMA_SHIFT);
            }
            done += part;
            at = if at + part == period { 0 } else { at + part };
        }
    }
    tracker.at = (first + len) % period;
}

#[inline(always)]
fn write_levels(means: &[u64], levels: &mut [u8]) {
    levels.iter_mut().zip(means).for_each(|(to, &mean)| *to = level(mean));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::contexts::Means;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn many_at_a_time_are_as_one_by_one(
            codes in prop::collection::vec(any::<u8>(), 3..2000),
            period in 1usize..300,
            joined in 2u32..4,
            block in 1usize..=BLOCK,
        ) {
            let run = codes.len() / 3;
            let runs: [&[u8]; 3] = std::array::from_fn(|r| &codes[r * run..(r + 1) * run]);
            let magnitudes = Magnitudes::new(joined);
            let mut means: [Means; 3] = std::array::from_fn(|_| Means::new(period));
            let mut portable = ContextTracker::<3>::new(joined, period);
            let mut best = ContextTracker::<3>::new(joined, period);
            let mut levels = [Levels::default(), Levels::default()];
            for start in (0..run).step_by(block) {
                let part = runs.map(|run| &run[start..run.len().min(start + block)]);
                advance(&mut portable, part, &mut levels[0]);
                best.advance(part, &mut levels[1]);
                for r in 0..3 {
                    for (i, &code) in part[r].iter().enumerate() {
                        let expected = means[r].levels();
                        means[r].update(code, &magnitudes);
                        for levels in &levels {
                            prop_assert_eq!([levels.near[r][i], levels.column[r][i]], expected);
                        }
                    }
                }
            }
        }
    }
}
