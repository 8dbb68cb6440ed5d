//! Tables of states in few bytes: the shape of a distribution instead of a number per symbol.
//!
//! Integers and the quants of one scale have a smooth distribution, of which a few levels, logarithms of
//! probabilities, say nearly as much as 256 numbers of states. There are two shapes: a symbol of several
//! quants is as likely as all of them together, so that the levels of one quant are enough; and a curve is
//! straight between levels that are a few symbols apart. Symbols that fit neither have changes.

use crate::coder::tans::{MAX_DESCRIBED_LOG, MAX_LOG, MIN_LOG, NormalizedCounts};
use crate::error::{Error, Result};
use crate::estimate::cost::{self, BIT};
use crate::simd::dispatch_wide;
use crate::simd::vector::Vector;
use crate::wire::{Put, Reader};

/// Levels per power of two. (format)
const PER_OCTAVE: u32 = 8;
/// 2^(27 - i / 8), rounded. (format)
const POWERS: [i64; PER_OCTAVE as usize] =
    [134_217_728, 123_078_199, 112_863_206, 103_496_017, 94_906_266, 87_029_429, 79_806_339, 73_182_735];
/// Weights of levels by how far they are below the highest; the last one is 0, as all after it. (format)
const WEIGHTS: [i64; 28 * PER_OCTAVE as usize + 1] = {
    let mut weights = [0; 28 * PER_OCTAVE as usize + 1];
    let mut below = 0;
    while below < weights.len() {
        weights[below] = POWERS[below % PER_OCTAVE as usize] >> (below / PER_OCTAVE as usize);
        below += 1;
    }
    weights
};
/// Floats from here on have no fraction. (structural)
const TWO_52: f64 = (1u64 << 52) as f64;
/// The width of the digits of a curve: all of a symbol. (format)
pub(super) const CURVE: u32 = 8;
/// As [`CURVE`], of the magnitudes of floats of eight bits. (format)
pub(super) const FLOATS: u32 = 7;
/// Symbols between two levels of a curve, at most, as a power of two. (format)
pub(super) const MAX_SPACING: u32 = 5;
/// Eight times the logarithm of 1 + r / 8, rounded: how much denser floats are than their logarithms. (format)
const MANTISSA_LEVELS: [u32; 8] = [0, 1, 3, 4, 5, 6, 6, 7];
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
    /// Whether it is described in bits instead of bytes.
    pub(super) packed: bool,
    /// The logarithm of the number of states.
    pub(super) log: u32,
    /// Bits of the digits that symbols consist of.
    pub(super) width: u32,
    /// Levels of a curve are 2 to this power symbols apart.
    pub(super) spacing: u32,
    /// Bits of the mantissa of floats, else 0.
    pub(super) mantissa: u32,
    /// The first symbol of a curve; 0 unless packed.
    pub(super) first: u8,
    /// The last symbol that may have states, or the last magnitude of floats.
    pub(super) last: u8,
    pub(super) levels: Vec<u8>,
    /// Symbols, ascending, and the changes of their levels.
    pub(super) changes: Vec<(u8, u8)>,
}

/// What symbols of a table are, and how it may be described.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Described {
    /// Any bytes; the shape in bytes.
    InBytes,
    /// Any bytes; the shape in bits.
    Packed,
    /// Floats with mantissas of these bits; the shape in bits.
    PackedFloats(u32),
}

impl Shape {
    /// `span` is the distance of the last symbol from the first.
    pub(super) fn number_of_levels(width: u32, spacing: u32, span: u8) -> usize {
        match (width, spacing) {
            (CURVE, 0) => usize::from(span) + 1,
            (CURVE | FLOATS, _) => (usize::from(span) >> spacing) + 2,
            _ => 1 << width,
        }
    }

    /// The level of every symbol; 0 for those without states.
    #[inline(always)]
    fn symbol_levels(&self) -> [u32; 256] {
        let level = |index: usize| u32::from(self.levels[index]);
        let mut all = [0; 256];
        let of_curve = |place: usize, spacing: u32| {
            let (at, past) = (place >> spacing, place as u32 & ((1 << spacing) - 1));
            let ahead = (1 << spacing) - past;
            (level(at) * ahead + level(at + 1) * past + (1 << spacing >> 1)) >> spacing
        };
        let symbols = all[..=usize::from(self.last)][usize::from(self.first)..].iter_mut().enumerate();
        match (self.width, self.spacing) {
            (CURVE, 0) => symbols.for_each(|(place, out)| *out = level(place)),
            (CURVE, spacing) => symbols.for_each(|(place, out)| *out = of_curve(place, spacing)),
            (FLOATS, spacing) => {
                let (positive, negative) = all.split_at_mut(128);
                for (magnitude, out) in positive.iter_mut().enumerate().take(usize::from(self.last) + 1) {
                    *out = match of_curve(magnitude, spacing) {
                        0 => 0,
                        whole => whole.saturating_sub(denser(magnitude, self.mantissa)).max(1),
                    };
                }
                negative.copy_from_slice(positive);
            }
            (4, _) if self.last >= 16 => {
                // All of the loops below, as sums of two vectors.
                let low: [u32; 16] = std::array::from_fn(level);
                for (row, &high) in all.as_chunks_mut::<16>().0.iter_mut().zip(&low) {
                    for i in 0..16 {
                        row[i] = if low[i] == 0 || high == 0 { 0 } else { low[i] + high };
                    }
                }
                all[usize::from(self.last) + 1..].fill(0);
            }
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
    pub(super) fn states(&self) -> Option<NormalizedCounts> {
        states_of(self)
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        if self.packed {
            return self.write_packed(out);
        }
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
        let changes = read_changes(number, reader)?;
        let shape = Self { packed: false, log, width, spacing, mantissa: 0, first: 0, last, levels, changes };
        let states = shape.states().ok_or_else(|| Error::corrupt("a shape of fewer than two symbols"))?;
        Ok((shape, states))
    }

    /// Bytes of the description.
    fn described_len(&self) -> u64 {
        if self.packed {
            return self.packed_len();
        }
        5 + self.levels.len() as u64 + 2 * self.changes.len() as u64
    }

    /// A shape for symbols of these counts, which any code takes at least `least` bytes for, and the bytes
    /// that they take by it, description included.
    pub(crate) fn fit(
        counts: &[u32; 256],
        least: u64,
        described: Described,
    ) -> Option<(u64, Self, NormalizedCounts)> {
        let total: u32 = counts.iter().sum();
        Self::fit_to(counts, least, Self::log_for(total as usize, described), described)
    }

    /// The logarithm of the number of states for as many symbols: the description is as long whatever it is, but filling
    /// the table takes longer.
    pub(super) fn log_for(symbols: usize, described: Described) -> u32 {
        let bits = symbols.max(1).ilog2();
        match described {
            // Many rare symbols, each of which has a state. (case: `entropy.py`, fp8; with half as many states up to 0.08 %
            // larger, with 2^12 at most 0.12 to 0.2 %, and decoded at 1.05 and 1.2 of the speed)
            Described::PackedFloats(_) => bits.saturating_sub(1).clamp(MIN_LOG, MAX_DESCRIBED_LOG),
            _ => {
                let log = bits.saturating_sub(2).min(MAX_LOG - 1).max(bits.saturating_sub(4));
                log.clamp(MIN_LOG, MAX_LOG)
            }
        }
    }

    /// As [`fit`](Self::fit), with 2^`log` states.
    pub(super) fn fit_to(
        counts: &[u32; 256],
        least: u64,
        log: u32,
        described: Described,
    ) -> Option<(u64, Self, NormalizedCounts)> {
        let last = counts.iter().rposition(|&count| count > 0)? as u8;
        let packed = described != Described::InBytes;
        let shape = Self {
            packed,
            log,
            width: CURVE,
            spacing: 0,
            mantissa: 0,
            first: 0,
            last,
            levels: Vec::new(),
            changes: Vec::new(),
        };
        if let Described::PackedFloats(mantissa) = described {
            return shape.fit_floats(counts, mantissa).with_changes(counts);
        }
        let (width, spacing) = if last < 64 { (3, 2) } else { (4, 3) };
        let digits = digits_of(last, width);
        let mut sums = vec![0u32; 1 << width];
        for (symbol, &count) in counts.iter().enumerate() {
            (0..digits).for_each(|i| sums[symbol >> (i * width) & ((1 << width) - 1)] += count);
        }
        // What symbols take if their digits do not depend on one another.
        let apart = cost::entropy(&sums) / (8 * BIT);
        match apart < least + least / CLOSE {
            true => Self { width, ..shape }.of_digits(&sums).measured(counts),
            false => {
                let first = counts.iter().position(|&count| count > 0).unwrap_or(0) as u8;
                let (first, spacing) = match packed {
                    true if last - first < 64 => (first, 2),
                    true => (first, 3),
                    false => (0, spacing),
                };
                Self { spacing, first, ..shape }.fit_curve(counts).with_changes(counts)
            }
        }
    }

    fn of_digits(self, sums: &[u32]) -> Self {
        let most = logarithm(sums.iter().copied().max().unwrap_or(1));
        let level = |&sum: &u32| match sum {
            0 => 0,
            _ => (TOP - eighths(most - logarithm(sum))).max(1) as u8,
        };
        Self { levels: sums.iter().map(level).collect(), ..self }
    }

    /// A curve through the logarithms of counts.
    fn fit_curve(self, counts: &[u32; 256]) -> Self {
        let places = usize::from(self.first)..=usize::from(self.last);
        let points = places.map(|symbol| {
            let place = symbol - usize::from(self.first);
            self.point(place, counts[symbol], 0)
        });
        let points: Vec<Point> = points.collect();
        self.fit_points(&points)
    }

    /// As [`fit_curve`](Self::fit_curve), of magnitudes with mantissas of `mantissa` bits.
    fn fit_floats(self, counts: &[u32; 256], mantissa: u32) -> Self {
        let both = |magnitude: usize| counts[magnitude] + counts[magnitude | 128];
        let last = (0..128).rev().find(|&magnitude| both(magnitude) > 0).unwrap_or(0);
        // Two levels for each power of two: logarithms of densities are curved.
        let shape = Self { width: FLOATS, spacing: mantissa - 1, mantissa, last: last as u8, ..self };
        // Zeros have a change.
        let points =
            (1..=last).map(|magnitude| shape.point(magnitude, both(magnitude), denser(magnitude, mantissa)));
        let points: Vec<Point> = points.collect();
        shape.fit_points(&points)
    }

    /// A point that the curve should have `raised` levels above the logarithm of a count.
    fn point(&self, place: usize, count: u32, raised: u32) -> Point {
        // A symbol that does not occur counts as a third of one.
        let logarithm = if count == 0 { -1.6 } else { logarithm(count) as f64 / BIT as f64 };
        let past = (place & ((1 << self.spacing) - 1)) as f64 / f64::from(1 << self.spacing);
        let level = logarithm + f64::from(raised) / f64::from(PER_OCTAVE);
        Point { at: place >> self.spacing, past, level, count: f64::from(count) }
    }

    /// Least squares, weighted by counts; symbols far from the curve are left out.
    fn fit_points(self, points: &[Point]) -> Self {
        /// How often symbols are left out. (flat)
        const ROUNDS: usize = 3;
        /// Squared distances, in units of what chance explains, from which on they are. (flat)
        const FAR: f64 = 300.0;
        let knots = Self::number_of_levels(self.width, self.spacing, self.last - self.first);
        let total: f64 = points.iter().map(|point| point.count).sum();
        let enough = 4.0 * total / points.len().max(1) as f64;
        let mut curve = vec![0.0; knots];
        for round in 0..ROUNDS {
            // Normal equations, of three diagonals.
            let (mut diagonal, mut beside, mut right) =
                (vec![1e-6; knots], vec![0.0; knots], vec![0.0; knots]);
            for &Point { at, past, level, count } in points {
                let fitted = curve[at] * (1.0 - past) + curve.get(at + 1).map_or(0.0, |next| next * past);
                let distance = level - fitted;
                if round > 0 && distance * distance * (count + 1.0) > FAR {
                    continue;
                }
                // At first all alike, lest the largest ones, which may be far from it, draw the curve to
                // them.
                let weight = if round == 0 { 1.0 } else { count.min(enough) + 0.3 };
                diagonal[at] += weight * (1.0 - past) * (1.0 - past);
                if past == 0.0 {
                    right[at] += weight * level;
                    continue;
                }
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
        Self { levels: curve.iter().map(level).collect(), ..self }
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

dispatch_wide! {
    /// The table of states of a shape; `None` if fewer than two symbols have any.
    fn states_of(shape: &Shape) -> Option<NormalizedCounts> = states_of_with
}

#[inline(always)]
fn states_of_with(_isa: impl Vector, shape: &Shape) -> Option<NormalizedCounts> {
    let (levels, log) = (shape.symbol_levels(), shape.log);
    let highest = levels.into_iter().max().unwrap_or(0);
    let symbols = levels.iter().map(|&level| i64::from(level > 0)).sum::<i64>();
    if symbols < 2 {
        return None;
    }
    // Signed, since processors without AVX-512 compare no other integers.
    let (mut sums, mut total) = ([0i64; 256], 0);
    for (weight, &level) in sums.iter_mut().zip(&levels) {
        // Without a branch: which symbols have none is not predictable.
        let below = (highest - level) as usize + usize::from(level == 0) * WEIGHTS.len();
        *weight = WEIGHTS[below.min(WEIGHTS.len() - 1)];
        total += *weight;
    }
    // Every symbol has one state; the others are shared by those whose weight is above that of one.
    if shape.packed {
        for excess in &mut sums {
            *excess = ((*excess << log) - total).max(0);
        }
        return Some(NormalizedCounts { log, counts: nearest_shares(&levels, &sums, (1 << log) - symbols) });
    }
    let mut all = 0;
    for sum in &mut sums {
        all += ((*sum << log) - total).max(0);
        *sum = all;
    }
    // Quotients of `sum * shared` and `all`. They are below 2^12 and sums below 2^48, so that both are exact as floats, whose
    // bits below 2^52 are those of the integer; products with the reciprocal are off by one at most, once rounded.
    let shared = (1 << log) - symbols;
    let share = shared as f64 / all as f64;
    let mut shares = [0i64; 257];
    for (after, &sum) in shares[1..].iter_mut().zip(&sums) {
        let near = (f64::from_bits(sum as u64 | TWO_52.to_bits()) - TWO_52) * share;
        let near = ((near + TWO_52).to_bits() ^ TWO_52.to_bits()) as i64;
        let (exact, product) = (sum * shared, near * all);
        *after = near - i64::from(product > exact) + i64::from(product + all <= exact);
    }
    let mut counts = [0; 256];
    for (i, count) in counts.iter_mut().enumerate() {
        // What follows a symbol without a level has as many before it.
        *count = if levels[i] > 0 { (1 + shares[i + 1] - shares[i]) as u16 } else { 0 };
    }
    Some(NormalizedCounts { log, counts })
}

/// One state for each symbol that has a level, and `shared` states in proportion to `excesses`, rounded to the nearest.
/// What is missing, or too much, comes from the symbols with the most states.
#[inline(always)]
fn nearest_shares(levels: &[u32; 256], excesses: &[i64; 256], shared: i64) -> [u16; 256] {
    let all: i64 = excesses.iter().sum();
    let share = shared as f64 / all as f64;
    let (mut states, mut missing) = ([0i64; 256], shared);
    for ((states, &excess), &level) in states.iter_mut().zip(excesses).zip(levels) {
        // As in `states_of`, where sums are what excesses are here.
        let near = (f64::from_bits(excess as u64 | TWO_52.to_bits()) - TWO_52) * share;
        let near = ((near + TWO_52).to_bits() ^ TWO_52.to_bits()) as i64;
        let (twice, product) = (2 * excess * shared, 2 * near * all);
        let near = near - i64::from(product - all > twice) + i64::from(product + all <= twice);
        *states = i64::from(level > 0) + near;
        missing -= near;
    }
    let mut counts = states.map(|states| states as u16);
    // The most states first, and the lowest symbols.
    let mut order: [i64; 256] = std::array::from_fn(|symbol| states[symbol] << 8 | (255 - symbol as i64));
    for _ in 0..missing.abs() {
        let most = order.iter().copied().max().unwrap_or(0);
        let symbol = 255 - (most & 255) as usize;
        counts[symbol] = (i64::from(counts[symbol]) + missing.signum()) as u16;
        order[symbol] = 0;
    }
    counts
}

/// How much higher the level of a curve is than that of this magnitude, which has fewer numbers to stand for than one of
/// the same power of two without a fraction.
#[inline(always)]
fn denser(magnitude: usize, mantissa: u32) -> u32 {
    match magnitude >> mantissa {
        // Subnormal numbers stand for as many each.
        0 => 0,
        _ => MANTISSA_LEVELS[magnitude << (3 - mantissa) & 7],
    }
}

/// A logarithm that a curve should have.
struct Point {
    /// The level before it, and how far behind that it is.
    at: usize,
    past: f64,
    level: f64,
    count: f64,
}

/// Reads `number` changes.
pub(super) fn read_changes(number: u8, reader: &mut Reader<'_>) -> Result<Vec<(u8, u8)>> {
    let changes: Vec<(u8, u8)> =
        (0..number).map(|_| Ok((reader.u8()?, reader.u8()?))).collect::<Result<_>>()?;
    if changes.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
        return Err(Error::corrupt("changes of a shape do not ascend"));
    }
    Ok(changes)
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
        let read = if shape.packed {
            Shape::read_packed(shape.is_fine(), &mut reader)
        } else {
            Shape::read(&mut reader)
        };
        let (read, same) = read.unwrap();
        assert_eq!((&read, &same, reader.remaining()), (shape, states, 0));
        assert_eq!(states.counts.iter().map(|&count| u32::from(count)).sum::<u32>(), 1 << states.log());
    }

    #[test]
    fn powers_are_what_they_say() {
        for (i, &power) in POWERS.iter().enumerate() {
            assert_eq!(power, 2f64.powf(27.0 - i as f64 / 8.0).round() as i64);
        }
    }

    #[test]
    fn a_curve_is_close_to_a_normal_distribution() {
        let density = |x: f64| 4000.0 * (-x * x / 1800.0).exp();
        let mut counts: [u32; 256] = std::array::from_fn(|s| density(s as f64 - 128.0) as u32 + 1);
        // The largest of every group.
        counts[1] = 2000;
        let (bytes, shape, states) =
            Shape::fit(&counts, cost::entropy(&counts) / (8 * BIT), Described::InBytes).unwrap();
        check(&shape, &states);
        assert_eq!((shape.width, shape.changes.iter().any(|change| change.0 == 1)), (CURVE, true));
        let least = cost::entropy(&counts) / (8 * BIT);
        assert!(bytes < least + least / 200 + 60, "{bytes} for {least}");
    }

    #[test]
    fn pairs_are_products() {
        let one = [3u32, 9, 20, 41, 80, 130, 190, 230, 235, 190, 131, 79, 40, 21, 10, 2];
        let counts: [u32; 256] = std::array::from_fn(|s| one[s % 16] * one[s / 16]);
        let (bytes, shape, states) =
            Shape::fit(&counts, cost::entropy(&counts) / (8 * BIT), Described::InBytes).unwrap();
        check(&shape, &states);
        assert_eq!(shape.width, 4);
        let least = cost::entropy(&counts) / (8 * BIT);
        assert!(bytes < least + least / 200 + 30, "{bytes} for {least}");
    }

    proptest! {
        #[test]
        fn any_counts_have_a_sound_shape(
            counts in prop::collection::vec((any::<u8>(), 0u32..100_000), 0..300), form in 0u32..4,
        ) {
            let described = match form {
                0 => Described::InBytes,
                1 => Described::Packed,
                mantissa => Described::PackedFloats(mantissa),
            };
            let mut sums = [0; 256];
            counts.iter().for_each(|&(symbol, count)| sums[usize::from(symbol)] += count);
            if let Some((_, shape, states)) = Shape::fit(&sums, cost::entropy(&sums) / (8 * BIT), described) {
                check(&shape, &states);
                prop_assert!((0..256).all(|s| sums[s] == 0 || states.counts[s] > 0));
            }
        }

        #[test]
        fn hostile_shapes_are_refused_or_sound(
            bytes in prop::collection::vec(any::<u8>(), 0..300), log in 9u8..13, form in 0u8..8, last: u8, fine: bool,
        ) {
            let (width, spacing) = if form < 2 { (3 + form, 0) } else { (8, form - 2) };
            let shaped = [&[log, width, spacing, last], &bytes[..]].concat();
            if let Ok((shape, states)) = Shape::read(&mut Reader::new(&shaped)) {
                check(&shape, &states);
            }
            // A packed shape may have escaped a level without need, so that it is read again as another description.
            if let Ok((shape, states)) = Shape::read_packed(fine, &mut Reader::new(&bytes)) {
                check(&shape, &states);
            }
            let few = [&[(log - 9) | form << 2 & 12 | 0x20, spacing, 0, last, 90], &[0x55; 200][..]].concat();
            if let Ok((shape, states)) = Shape::read_packed(fine, &mut Reader::new(&few)) {
                check(&shape, &states);
            }
        }

        #[test]
        fn states_are_shared_as_the_format_says(
            levels in prop::collection::vec(any::<u8>(), 256), log in MIN_LOG..=MAX_DESCRIBED_LOG, narrow: bool,
            packed: bool,
        ) {
            let levels: Vec<u8> = levels.iter().map(|&level| if narrow { level | 0xe0 } else { level }).collect();
            let shape = Shape {
                packed: false, log, width: CURVE, spacing: 0, mantissa: 0, first: 0, last: 255, levels, changes: Vec::new(),
            };
            let shape = Shape { packed, ..shape };
            prop_assume!(shape.levels.iter().filter(|&&level| level > 0).count() > 1);
            let states = shape.states().unwrap();
            prop_assert_eq!(&Some(states.clone()), &states_of_with(crate::simd::Portable, &shape));
            let highest = shape.levels.iter().copied().max().unwrap();
            let used = || (0..256).filter(|&s| shape.levels[s] > 0);
            let weight = |s: usize| {
                let below = usize::from(highest - shape.levels[s]);
                i128::from(POWERS[below % 8] >> (below / 8))
            };
            let total: i128 = used().map(weight).sum();
            let excess = |s: usize| ((weight(s) << log) - total).max(0);
            let (all, shared) = (used().map(excess).sum::<i128>(), (1 << log) - used().count() as i128);
            if packed {
                let mut own: Vec<(i128, usize)> =
                    used().map(|s| (1 + (2 * excess(s) * shared + all).div_euclid(2 * all), s)).collect();
                own.sort_by_key(|&(states, s)| (-states, s));
                let missing = (1 << log) - own.iter().map(|&(states, _)| states).sum::<i128>();
                own.iter_mut().take(missing.unsigned_abs() as usize).for_each(|own| own.0 += missing.signum());
                for (expected, s) in own {
                    prop_assert!(expected > 0);
                    prop_assert_eq!(i128::from(states.counts[s]), expected);
                }
                return Ok(());
            }
            let mut sum = 0;
            for s in used() {
                let own = (sum + excess(s)) * shared / all - sum * shared / all;
                prop_assert_eq!(i128::from(states.counts[s]), 1 + own);
                sum += excess(s);
            }
        }
    }
}
