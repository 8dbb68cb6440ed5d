//! Tables of states in few bytes: the shape of a distribution instead of a number per symbol.
//!
//! Integers and the quants of one scale have a smooth distribution, of which a few levels, logarithms of
//! probabilities, say nearly as much as 256 numbers of states. There are two shapes: a symbol of several
//! quants is as likely as all of them together, so that the levels of one quant are enough; and a curve is
//! straight between levels that are a few symbols apart. Symbols that fit neither have changes.

use crate::coder::tans::{MAX_LOG, MIN_LOG, NormalizedCounts};
use crate::error::{Error, Result};
use crate::estimate::cost::{self, BIT};
use crate::simd::{Isa, dispatch};
use crate::wire::{Put, Reader};

/// Levels per power of two. (format)
const PER_OCTAVE: u32 = 8;
/// 2^(27 - i / 8), rounded. (format)
const POWERS: [u64; PER_OCTAVE as usize] =
    [134_217_728, 123_078_199, 112_863_206, 103_496_017, 94_906_266, 87_029_429, 79_806_339, 73_182_735];
/// Weights of levels by how far they are below the highest; the last one is 0, as all after it. (format)
const WEIGHTS: [i64; 28 * PER_OCTAVE as usize + 1] = {
    let mut weights = [0; 28 * PER_OCTAVE as usize + 1];
    let mut below = 0;
    while below < weights.len() {
        weights[below] = (POWERS[below % PER_OCTAVE as usize] >> (below / PER_OCTAVE as usize)) as i64;
        below += 1;
    }
    weights
};
/// The width of the digits of a curve: all of a symbol. (format)
const CURVE: u32 = 8;
/// Symbols between two levels of a curve, at most, as a power of two. (format)
const MAX_SPACING: u32 = 5;
/// The change that is none; 0 takes all states from a symbol. (format)
const NO_CHANGE: u32 = 128;

/// The highest level that is fitted; differences of logarithms of 32 bits are below it. (structural)
const TOP: i64 = 250;
/// As [`TOP`], for curves, which may be higher between the symbols they were fitted to. (structural)
const TOP_OF_CURVE: f64 = 200.0;
/// What a change must save in bits: more than it takes. (structural: two bytes)
const CHANGE_MUST_SAVE: f64 = 24.0;
/// Digits are taken to be independent if that takes less than one part in this many more than any
/// code. (case: `entropy.py`, GGUF)
const CLOSE: u64 = 100;
/// Changes of a shape, at most. (case: `entropy.py`, GGUF)
const MAX_CHANGES: usize = 40;

/// Levels that a table of states follows from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shape {
    /// The logarithm of the number of states.
    log: u32,
    /// Bits of the digits that symbols consist of.
    width: u32,
    /// Levels of a curve are 2 to this power symbols apart.
    spacing: u32,
    /// The last symbol that may have states.
    last: u8,
    levels: Vec<u8>,
    /// Symbols, ascending, and the changes of their levels.
    changes: Vec<(u8, u8)>,
}

impl Shape {
    fn number_of_levels(width: u32, spacing: u32, last: u8) -> usize {
        match (width, spacing) {
            (CURVE, 0) => usize::from(last) + 1,
            (CURVE, _) => (usize::from(last) >> spacing) + 2,
            _ => 1 << width,
        }
    }

    /// The level of every symbol; 0 for those without states.
    fn symbol_levels(&self) -> [u32; 256] {
        let level = |index: usize| u32::from(self.levels[index]);
        let mut all = [0; 256];
        let symbols = all.iter_mut().enumerate().take(usize::from(self.last) + 1);
        match (self.width, self.spacing) {
            (CURVE, 0) => symbols.for_each(|(symbol, out)| *out = level(symbol)),
            (CURVE, spacing) => symbols.for_each(|(symbol, out)| {
                let (at, past) = (symbol >> spacing, symbol as u32 & ((1 << spacing) - 1));
                let ahead = (1 << spacing) - past;
                *out = (level(at) * ahead + level(at + 1) * past + (1 << spacing >> 1)) >> spacing;
            }),
            (width, _) => {
                let mask = (1usize << width) - 1;
                symbols.for_each(|(symbol, out)| *out = level(symbol & mask));
                for place in 1..digits_of(self.last, width) {
                    for (symbol, out) in all.iter_mut().enumerate() {
                        let digit = level(symbol >> (place * width) & mask);
                        *out = if *out == 0 || digit == 0 { 0 } else { *out + digit };
                    }
                }
            }
        }
        for &(symbol, change) in &self.changes {
            let level = &mut all[usize::from(symbol)];
            *level = match (*level, change) {
                (0, _) | (_, 0) => 0,
                (level, change) => (level + u32::from(change)).saturating_sub(NO_CHANGE).max(1),
            };
        }
        all
    }

    /// The table of states; `None` if fewer than two symbols have any.
    fn states(&self) -> Option<NormalizedCounts> {
        let levels = self.symbol_levels();
        let highest = levels.into_iter().max().unwrap_or(0);
        let symbols = levels.iter().filter(|&&level| level > 0).count() as u64;
        if symbols < 2 {
            return None;
        }
        let mut counts = [0; 256];
        share_states(&levels, highest, symbols as i64, self.log, &mut counts);
        Some(NormalizedCounts { log: self.log, counts })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend([self.log as u8, self.width as u8, self.spacing as u8, self.last]);
        out.extend_from_slice(&self.levels);
        out.put_u8(self.changes.len() as u8);
        self.changes.iter().for_each(|&(symbol, change)| out.extend([symbol, change]));
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<(Self, NormalizedCounts)> {
        let [log, width, spacing] = [reader.u8()?, reader.u8()?, reader.u8()?].map(u32::from);
        if !(MIN_LOG..=MAX_LOG).contains(&log)
            || !matches!((width, spacing), (3 | 4, 0) | (CURVE, 0..=MAX_SPACING))
        {
            return Err(Error::corrupt(format_args!("a shape of {log} bits, digits of {width}, {spacing}")));
        }
        let last = reader.u8()?;
        let levels = reader.take(Self::number_of_levels(width, spacing, last))?.to_vec();
        let number = reader.u8()?;
        let changes: Vec<(u8, u8)> =
            (0..number).map(|_| Ok((reader.u8()?, reader.u8()?))).collect::<Result<_>>()?;
        if changes.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
            return Err(Error::corrupt("changes of a shape do not ascend"));
        }
        let shape = Self { log, width, spacing, last, levels, changes };
        let states = shape.states().ok_or_else(|| Error::corrupt("a shape of fewer than two symbols"))?;
        Ok((shape, states))
    }

    /// Bytes of the description.
    fn described_len(&self) -> u64 {
        5 + self.levels.len() as u64 + 2 * self.changes.len() as u64
    }

    /// A shape for symbols of these counts, which any code takes at least `least` bytes for, and the bytes
    /// that they take by it, description included.
    pub(crate) fn fit(counts: &[u32; 256], least: u64) -> Option<(u64, Self, NormalizedCounts)> {
        let total: u32 = counts.iter().sum();
        Self::fit_to(counts, least, Self::log_for(total as usize))
    }

    /// The logarithm of the number of states for as many symbols: the description is as long whatever it is, but filling
    /// the table takes longer.
    pub(super) fn log_for(symbols: usize) -> u32 {
        let bits = symbols.max(1).ilog2();
        bits.saturating_sub(2).min(MAX_LOG - 1).max(bits.saturating_sub(4)).clamp(MIN_LOG, MAX_LOG)
    }

    /// As [`fit`](Self::fit), with 2^`log` states.
    pub(super) fn fit_to(counts: &[u32; 256], least: u64, log: u32) -> Option<(u64, Self, NormalizedCounts)> {
        let last = counts.iter().rposition(|&count| count > 0)? as u8;
        let (width, spacing) = if last < 64 { (3, 2) } else { (4, 3) };
        let digits = digits_of(last, width);
        let mut sums = vec![0u32; 1 << width];
        for (symbol, &count) in counts.iter().enumerate() {
            (0..digits).for_each(|i| sums[symbol >> (i * width) & ((1 << width) - 1)] += count);
        }
        // What symbols take if their digits do not depend on one another.
        let apart = cost::entropy(&sums) / (8 * BIT);
        match apart < least + least / CLOSE {
            true => Self::of_digits(&sums, log, width, last).measured(counts),
            false => Self::fit_curve(counts, log, spacing, last).with_changes(counts),
        }
    }

    fn of_digits(sums: &[u32], log: u32, width: u32, last: u8) -> Self {
        let most = logarithm(sums.iter().copied().max().unwrap_or(1));
        let level = |&sum: &u32| match sum {
            0 => 0,
            _ => (TOP - eighths(most - logarithm(sum))).max(1) as u8,
        };
        Self { log, width, spacing: 0, last, levels: sums.iter().map(level).collect(), changes: Vec::new() }
    }

    /// Least squares of logarithms, weighted by counts; symbols far from the curve are left out.
    fn fit_curve(counts: &[u32; 256], log: u32, spacing: u32, last: u8) -> Self {
        /// How often symbols are left out. (flat)
        const ROUNDS: usize = 3;
        /// Squared distances, in units of what chance explains, from which on they are. (flat)
        const FAR: f64 = 300.0;
        let knots = Self::number_of_levels(CURVE, spacing, last);
        let step = f64::from(1 << spacing);
        let total: f64 = counts.iter().copied().map(f64::from).sum();
        let enough = 4.0 * total / (f64::from(last) + 1.0);
        let points: Vec<(usize, f64, f64, f64)> = (0..=usize::from(last))
            .map(|symbol| {
                let count = f64::from(counts[symbol]);
                // A symbol that does not occur counts as a third of one.
                let level =
                    if counts[symbol] == 0 { -1.6 } else { logarithm(counts[symbol]) as f64 / BIT as f64 };
                let past = (symbol & ((1 << spacing) - 1)) as f64 / step;
                (symbol >> spacing, past, level, count)
            })
            .collect();
        let mut curve = vec![0.0; knots];
        for round in 0..ROUNDS {
            // Normal equations, of three diagonals.
            let (mut diagonal, mut beside, mut right) =
                (vec![1e-6; knots], vec![0.0; knots], vec![0.0; knots]);
            for &(at, past, level, count) in &points {
                let distance = level - (curve[at] * (1.0 - past) + curve[at + 1] * past);
                if round > 0 && distance * distance * (count + 1.0) > FAR {
                    continue;
                }
                // At first all alike, lest the largest ones, which may be far from it, draw the curve to
                // them.
                let weight = if round == 0 { 1.0 } else { count.min(enough) + 0.3 };
                diagonal[at] += weight * (1.0 - past) * (1.0 - past);
                diagonal[at + 1] += weight * past * past;
                beside[at] += weight * (1.0 - past) * past;
                right[at] += weight * (1.0 - past) * level;
                right[at + 1] += weight * past * level;
            }
            for i in 1..knots {
                let factor = beside[i - 1] / diagonal[i - 1];
                diagonal[i] -= factor * beside[i - 1];
                right[i] -= factor * right[i - 1];
            }
            curve[knots - 1] = right[knots - 1] / diagonal[knots - 1];
            for i in (0..knots - 1).rev() {
                curve[i] = (right[i] - beside[i] * curve[i + 1]) / diagonal[i];
            }
        }
        let highest = curve.iter().copied().fold(f64::MIN, f64::max);
        let level =
            |&at: &f64| (f64::from(PER_OCTAVE) * (at - highest) + TOP_OF_CURVE + 0.5).clamp(1.0, 255.0) as u8;
        let levels = curve.iter().map(level).collect();
        Self { log, width: CURVE, spacing, last, levels, changes: Vec::new() }
    }

    /// This shape and the bytes that symbols take by it.
    fn measured(self, counts: &[u32; 256]) -> Option<(u64, Self, NormalizedCounts)> {
        let states = self.states()?;
        Some((self.described_len() + states.cost_bits(counts).div_ceil(8), self, states))
    }

    /// The bytes that symbols take by this shape, and by it with changes where these save more than they
    /// take; the smaller of both.
    fn with_changes(mut self, counts: &[u32; 256]) -> Option<(u64, Self, NormalizedCounts)> {
        let states = self.states()?;
        let total: f64 = counts.iter().copied().map(f64::from).sum();
        let levels = self.symbol_levels();
        let mut offsets: Vec<i64> = (0..256)
            .filter(|&symbol| counts[symbol] > 0 && levels[symbol] > 0)
            .map(|symbol| eighths(logarithm(counts[symbol])) - i64::from(levels[symbol]))
            .collect();
        offsets.sort_unstable();
        let offset = offsets.get(offsets.len() / 2).copied()?;
        let mut changes: Vec<(i64, u8, u8)> = Vec::new();
        for symbol in (0..256).filter(|&symbol| levels[symbol] > 0) {
            let (count, own) = (f64::from(counts[symbol]), f64::from(states.counts[symbol]));
            let fair = own * total / f64::from(1u32 << self.log);
            let ratio = match counts[symbol] {
                0 => 0.0,
                count => (logarithm(count) - logarithm((fair as u32).max(1))) as f64 / BIT as f64,
            };
            // What a fair number of states saves: bits of its own, less what others lose.
            let saved = count * ratio - (count - fair) * std::f64::consts::LOG2_E;
            if saved > CHANGE_MUST_SAVE {
                let level = eighths(logarithm(counts[symbol].max(1))) - offset;
                let change = (level - i64::from(levels[symbol]) + i64::from(NO_CHANGE)).clamp(1, 255) as u8;
                changes.push((-(saved as i64), symbol as u8, change));
            }
        }
        if changes.is_empty() {
            return self.measured(counts);
        }
        let plain = self.clone().measured(counts)?;
        changes.sort_unstable();
        self.changes =
            changes.iter().take(MAX_CHANGES).map(|&(_, symbol, change)| (symbol, change)).collect();
        self.changes.sort_unstable();
        let changed = self.measured(counts)?;
        Some(if changed.0 < plain.0 { changed } else { plain })
    }
}

dispatch! {
    /// Shares 2^`log` states among the symbols whose level is not 0; they are `symbols`, and `highest` is the highest level.
    fn share_states(levels: &[u32; 256], highest: u32, symbols: i64, log: u32, counts: &mut [u16; 256]) = share_states_with
}

#[inline(always)]
fn share_states_with(
    _isa: impl Isa,
    levels: &[u32; 256],
    highest: u32,
    symbols: i64,
    log: u32,
    counts: &mut [u16; 256],
) {
    // Signed, since processors without AVX-512 convert no other integers to floats.
    let (mut weights, mut total) = ([0i64; 256], 0);
    for (weight, &level) in weights.iter_mut().zip(levels) {
        let below = (highest - level) as usize;
        *weight = if level == 0 { 0 } else { WEIGHTS[below.min(WEIGHTS.len() - 1)] };
        total += *weight;
    }
    // Every symbol has one state; the others are shared by those whose weight is above that of one.
    let mut all = 0;
    for excess in &mut weights {
        *excess = ((*excess << log) - total).max(0);
        all += *excess;
    }
    let shared = (1i64 << log) - symbols;
    let (mut sum, mut before) = (0, 0);
    let share = shared as f64 / all as f64;
    for ((count, level), excess) in counts.iter_mut().zip(levels).zip(&weights) {
        sum += excess;
        // The quotient of `sum * shared` and `all`, which a division takes longer for.
        let product = sum * shared;
        let mut after = (sum as f64 * share) as i64;
        after -= i64::from(after * all > product);
        after += i64::from((after + 1) * all <= product);
        // What follows a symbol without a level has as many before it.
        *count = if *level > 0 { (1 + after - before) as u16 } else { 0 };
        before = after;
    }
}

/// The digits of `width` bits that the symbols up to `last` have.
fn digits_of(last: u8, width: u32) -> u32 {
    (u8::BITS - last.leading_zeros()).div_ceil(width).max(1)
}

/// `log2(value) * BIT`.
fn logarithm(value: u32) -> i64 {
    cost::log2(value) as i64
}

/// A logarithm in levels, rounded.
fn eighths(logarithm: i64) -> i64 {
    (i64::from(PER_OCTAVE) * logarithm + BIT as i64 / 2) / BIT as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(shape: &Shape, states: &NormalizedCounts) {
        let mut written = Vec::new();
        shape.write(&mut written);
        assert_eq!(written.len() as u64, shape.described_len());
        let mut reader = Reader::new(&written);
        let (read, same) = Shape::read(&mut reader).unwrap();
        assert_eq!((&read, &same, reader.remaining()), (shape, states, 0));
        assert_eq!(states.counts.iter().map(|&count| u32::from(count)).sum::<u32>(), 1 << states.log());
    }

    #[test]
    fn powers_are_what_they_say() {
        for (i, &power) in POWERS.iter().enumerate() {
            assert_eq!(power, 2f64.powf(27.0 - i as f64 / 8.0).round() as u64);
        }
    }

    #[test]
    fn a_curve_is_close_to_a_normal_distribution() {
        let density = |x: f64| 4000.0 * (-x * x / 1800.0).exp();
        let mut counts: [u32; 256] = std::array::from_fn(|s| density(s as f64 - 128.0) as u32 + 1);
        // The largest of every group.
        counts[1] = 2000;
        let (bytes, shape, states) = Shape::fit(&counts, cost::entropy(&counts) / (8 * BIT)).unwrap();
        check(&shape, &states);
        assert_eq!((shape.width, shape.changes.iter().any(|change| change.0 == 1)), (CURVE, true));
        let least = cost::entropy(&counts) / (8 * BIT);
        assert!(bytes < least + least / 200 + 60, "{bytes} for {least}");
    }

    #[test]
    fn pairs_are_products() {
        let one = [3u32, 9, 20, 41, 80, 130, 190, 230, 235, 190, 131, 79, 40, 21, 10, 2];
        let counts: [u32; 256] = std::array::from_fn(|s| one[s % 16] * one[s / 16]);
        let (bytes, shape, states) = Shape::fit(&counts, cost::entropy(&counts) / (8 * BIT)).unwrap();
        check(&shape, &states);
        assert_eq!(shape.width, 4);
        let least = cost::entropy(&counts) / (8 * BIT);
        assert!(bytes < least + least / 200 + 30, "{bytes} for {least}");
    }

    proptest! {
        #[test]
        fn any_counts_have_a_sound_shape(counts in prop::collection::vec((any::<u8>(), 0u32..100_000), 0..300)) {
            let mut sums = [0; 256];
            counts.iter().for_each(|&(symbol, count)| sums[usize::from(symbol)] += count);
            if let Some((_, shape, states)) = Shape::fit(&sums, cost::entropy(&sums) / (8 * BIT)) {
                check(&shape, &states);
                prop_assert!((0..256).all(|s| sums[s] == 0 || states.counts[s] > 0));
            }
        }

        #[test]
        fn hostile_shapes_are_refused_or_sound(
            bytes in prop::collection::vec(any::<u8>(), 0..300), log in 9u8..13, form in 0u8..8, last: u8,
        ) {
            let (width, spacing) = if form < 2 { (3 + form, 0) } else { (8, form - 2) };
            let bytes = [&[log, width, spacing, last], &bytes[..]].concat();
            if let Ok((shape, states)) = Shape::read(&mut Reader::new(&bytes)) {
                check(&shape, &states);
            }
        }
    }
}
