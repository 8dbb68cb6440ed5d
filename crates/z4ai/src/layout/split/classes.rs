//! Finds scale classes: rows or columns of similar scale.
//!
//! The scale of the row or column of a weight is its strongest context, and it is known before
//! decoding starts. The share of the variance of the codes that a grouping explains estimates what
//! it saves; the best grouping is then quantized to at most four classes of similar mean, and used
//! if the histograms of some rows confirm that it pays. At `Effort::Max` and for tensors with a
//! shape, more rows are counted, and each row or column moves to the class that codes it best.

use crate::estimate::cost::{self, BIT};
use crate::estimate::sampling;
use crate::kernel::scale_classes::{ClassMap, MAX_CLASSES};
use crate::kernel::{histogram, row_column_sums};

/// What the caller's shape says about the rows of a chunk.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hint {
    /// Row lengths that the tensor's shape has; empty when no shape is known.
    pub(crate) periods: Vec<usize>,
    /// Whether there was a shape.
    pub(crate) shaped: bool,
    /// Whether classes are wanted at all.
    pub(crate) searched: bool,
}

/// Groups of units with similar means that classes are made of. (case: sweep; half is up to 0.15 % larger, twice
/// up to 0.15 % smaller)
const BUCKETS: usize = 8;
/// A row length that most others are a multiple of. (case: sweep; halved or doubled, some are 0.5 % larger)
const SHORT_ROW: usize = 64;
/// The longest distance tried. (flat, 0.15 %)
const MAX_LAG: usize = 4096;
/// Codes compared at each distance. (flat, 0.3 %)
const LAG_SAMPLE: usize = 1024;
/// Distances tried are multiples of this.
/// (case: sweep; doubled, fp8 is 0.4 % larger; halved, 0.1 % either way)
const LAG_STEP: usize = 64;
/// Groupings are ruled out by one in this many codes; the second, of thorough searches. (case:
/// `codec.py`, compress)
const PART_STRIDE: usize = 8;
const THOROUGH_PART_STRIDE: usize = 4;
/// Codes that histograms of classes are made of, about; the second, of thorough searches. (case:
/// `codec.py`, compress)
const COUNTED_CODES: usize = 1 << 13;
const THOROUGH_COUNTED_CODES: usize = 1 << 15;
/// The variance is estimated from `VARIANCE_RUN` codes at each of `VARIANCE_RUNS` positions; the
/// last, of thorough searches. (case: `codec.py`, compress)
const VARIANCE_RUN: usize = 1024;
const VARIANCE_RUNS: usize = 4;
const THOROUGH_VARIANCE_RUNS: usize = 16;
/// Chunks of fewer codes are not sampled. (flat, 0.2 %)
const MIN_SAMPLED: usize = 1 << 15;
/// Refinement stops when no more than one in this many units moves. (case: `codec.py`, compress)
const MAX_MOVED: usize = 32;
/// Bytes that a class with streams of its own adds to a description: table and lengths. (flat, 0.04 %)
pub(crate) const PER_CLASS: u64 = 70;

/// What classes are worth.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Price {
    /// What classes must save, in 1/64 bit per code: they cost another pass to decode.
    pub(crate) must_save: u64,
    /// How often units move to the class that suits them best, which takes time.
    pub(crate) moves: usize,
    /// Bytes that a class adds to a description.
    pub(crate) per_class: u64,
}

/// Row lengths worth a try for `codes`.
pub(crate) fn periods_of(codes: &[u8], hint: &Hint) -> Vec<usize> {
    match hint {
        Hint { searched: false, .. } => Vec::new(),
        Hint { shaped: true, periods, .. } => periods.clone(),
        _ => likely_periods(codes),
    }
}

/// The row lengths that a part of all codes does not rule out.
pub(crate) fn open_periods(part: &[u8], hint: &Hint, price: Price) -> Vec<usize> {
    let mut periods = periods_of(part, hint);
    let search = Search::new(part, price);
    let open = |columns, period| search.gain_of_part(part, columns, period).is_some();
    periods.retain(|&period| open(false, period) || open(true, period));
    periods
}

/// Whether rows of `period` or their columns might have classes, of `count` codes of which `part` is a part.
pub(crate) fn is_open(part: &[u8], period: usize, count: usize, price: Price) -> bool {
    let search = Search::new(part, price);
    let open =
        |columns| are_enough(columns, period, count) && search.gain_of_part(part, columns, period).is_some();
    open(false) || open(true)
}

/// Whether `count` codes have rows, and few enough rows or columns to be worth a class.
fn are_enough(columns: bool, period: usize, count: usize) -> bool {
    ClassMap::units(columns, period, count) <= count / 8 && period * 4 <= count
}

impl Price {
    /// Whether the search is thorough.
    pub(crate) fn is_thorough(self) -> bool {
        self.moves > 0
    }
}

/// The best grouping of `codes` into rows or columns of one of these row lengths, if any pays.
pub(crate) fn find(codes: &[u8], periods: &[usize], price: Price) -> Option<ClassMap> {
    find_saving(codes, periods, price).map(|(_, map)| map)
}

/// As [`find`], and what it saves, about, in units of [`BIT`]: of rows or columns as they are classed before they move.
pub(crate) fn find_saving(codes: &[u8], periods: &[usize], price: Price) -> Option<(u64, ClassMap)> {
    let count = codes.len();
    if periods.is_empty() {
        return None;
    }
    let search = Search::new(codes, price);
    let candidates = periods.iter().flat_map(|&period| [(false, period), (true, period)]);
    let open: Vec<(Option<i64>, bool, usize)> = candidates
        .filter(|&(columns, period)| are_enough(columns, period, count))
        .filter_map(|(columns, period)| Some((search.promise(codes, columns, period)?, columns, period)))
        .collect();
    // Candidates that promise much less than the best are dropped.
    let most = open.iter().filter_map(|candidate| candidate.0).max().unwrap_or(0);
    let (gain, columns, period, sums) = open
        .into_iter()
        .filter(|&(promise, ..)| promise.is_none_or(|promise| promise >= most / 4 * 3))
        .map(|(_, columns, period)| {
            let (gain, sums) = search.gain(codes, columns, period);
            (gain, columns, period, sums)
        })
        .max_by_key(|candidate| (candidate.0, std::cmp::Reverse(candidate.2)))?;
    if gain <= search.must_save(count) as i64 {
        return None;
    }
    let every = rows_per_counted(codes, period, price);
    let must_save = search.must_save(count);
    let (mut map, counts, saved) = assign(codes, columns, period, &sums, must_save, price.per_class, every)?;
    if price.is_thorough() {
        move_units(codes, &counts, &mut map);
        refine(codes, &mut map, price.moves, every);
    }
    Some((saved, map))
}

/// The best grouping into rows if `map` is of columns, and into columns if it is of rows, if it pays.
pub(crate) fn find_other(codes: &[u8], map: &ClassMap, price: Price) -> Option<ClassMap> {
    find_along(codes, !map.columns, map.period, price, i64::MIN).map(|(_, map)| map)
}

/// The best grouping into rows or columns of one length, if it pays and its estimated gain is above `least`, in units of
/// [`BIT`]; and what it saves, as [`find_saving`] says.
pub(crate) fn find_along(
    codes: &[u8],
    columns: bool,
    period: usize,
    price: Price,
    least: i64,
) -> Option<(u64, ClassMap)> {
    let count = codes.len();
    if !are_enough(columns, period, count) {
        return None;
    }
    let search = Search::new(codes, price);
    let (gain, sums) = search.gain(codes, columns, period);
    if gain <= least {
        return None;
    }
    let every = rows_per_counted(codes, period, price);
    let (mut map, counts, saved) = assign(codes, columns, period, &sums, 0, price.per_class, every)?;
    if price.is_thorough() {
        move_units(codes, &counts, &mut map);
        refine(codes, &mut map, price.moves, every);
    }
    Some((saved, map))
}

/// The statistics that groupings are judged by.
struct Search {
    price: Price,
    clip: u8,
    spread: Spread,
}

impl Search {
    fn new(codes: &[u8], price: Price) -> Self {
        let counts =
            counts_of_some(codes, if price.is_thorough() { THOROUGH_VARIANCE_RUNS } else { VARIANCE_RUNS });
        let looked_at = counts.iter().sum::<u32>() as usize;
        let clip = clip_of(&counts, looked_at);
        Self { price, clip, spread: Spread::of(&counts, clip, looked_at) }
    }

    /// What a grouping of `count` codes must save, in units of [`BIT`].
    fn must_save(&self, count: usize) -> u64 {
        count as u64 * self.price.must_save * BIT / 64
    }

    /// The estimated gain of a grouping, and the sums of its units.
    fn gain(&self, codes: &[u8], columns: bool, period: usize) -> (i64, Vec<u64>) {
        let sums = row_column_sums::sums_of_units(codes, columns, period, self.clip);
        (self.spread.gain(&sums, columns, period, codes.len()), sums)
    }

    /// The estimated gain of a part, if it shows at least half of what is needed.
    fn gain_of_part(&self, part: &[u8], columns: bool, period: usize) -> Option<i64> {
        let gain = self.gain(part, columns, period).0;
        (2 * gain > self.must_save(part.len()) as i64).then_some(gain)
    }

    /// The estimated gain per code of a part, in 2^-16 of [`BIT`], if the chunk is long enough to
    /// have a part; `None` if that rules the grouping out. The part is rows from all over the chunk: where
    /// scales differ between its tensors, neighbouring rows are alike.
    fn promise(&self, codes: &[u8], columns: bool, period: usize) -> Option<Option<i64>> {
        /// Unit of the estimate. (structural)
        const PARTS: i64 = 1 << 16;
        let count = codes.len();
        let stride = if self.price.is_thorough() { THOROUGH_PART_STRIDE } else { PART_STRIDE };
        let rows = count / stride / period;
        if count < MIN_SAMPLED || rows < 4 {
            return Some(None);
        }
        let mut part = Vec::with_capacity(rows * period);
        for row in 0..rows {
            // Every place of a group of rows in turn, lest it be in step with longer rows.
            let at = (row * stride + row % stride) * period;
            part.extend_from_slice(&codes[at..at + period]);
        }
        let gain = self.gain_of_part(&part, columns, period)?;
        Some(Some(gain.saturating_mul(PARTS) / part.len() as i64))
    }
}

/// Reassigns units to their best classes, `moves` times or until few move. Histograms are of one
/// row in `every`.
fn refine(codes: &[u8], map: &mut ClassMap, moves: usize, every: usize) {
    for _ in 0..moves {
        let counts = bucket_counts(codes, map.columns, map.period, &map.classes, MAX_CLASSES, every);
        if move_units(codes, &counts[..map.count()], map) < map.classes.len() / MAX_MOVED {
            break;
        }
    }
}

/// The stride of counted rows.
fn rows_per_counted(codes: &[u8], period: usize, price: Price) -> usize {
    let rows = codes.len().div_ceil(period);
    let counted = if price.is_thorough() { THOROUGH_COUNTED_CODES } else { COUNTED_CODES };
    // Odd, lest it be in step with longer rows.
    (codes.len() / counted).min(rows / 16) | 1
}

/// The histogram of all codes, or of a sample from `places` positions if they are many.
fn counts_of_some(codes: &[u8], places: usize) -> [u32; 256] {
    if codes.len() < MIN_SAMPLED {
        return histogram::exact(codes);
    }
    let mut some = Vec::with_capacity(places * VARIANCE_RUN);
    for at in sampling::spread(codes.len(), VARIANCE_RUN, places, 1) {
        some.extend_from_slice(&codes[at..at + VARIANCE_RUN]);
    }
    histogram::exact(&some)
}

/// Row lengths to try without a shape: one that most row lengths are a multiple of, and the lag of
/// the highest autocorrelation of a sample, if it is significant.
pub(crate) fn likely_periods(codes: &[u8]) -> Vec<usize> {
    let mut periods = vec![SHORT_ROW];
    if codes.len() < 2 * (LAG_SAMPLE + MAX_LAG) {
        return periods;
    }
    let start = codes.len() / 3;
    let sample = &codes[start..start + LAG_SAMPLE];
    let distance =
        |lag: usize| row_column_sums::distance(sample, &codes[start + lag..start + lag + LAG_SAMPLE]);
    let lags = (SHORT_ROW..=MAX_LAG).step_by(LAG_STEP);
    let distances: Vec<(u32, usize)> = lags.map(|lag| (distance(lag), lag)).collect();
    let mean = distances.iter().map(|&(d, _)| u64::from(d)).sum::<u64>() / distances.len() as u64;
    let least = distances.iter().map(|&(d, _)| d).min().unwrap_or(0);
    if u64::from(least) * 100 < mean * 97 {
        // Multiples of a row length have the same autocorrelation: take the first.
        let close = |d: u32| u64::from(d - least) * 4 <= mean - u64::from(least);
        let first = distances.iter().find(|&&(d, _)| close(d));
        periods.extend(first.map(|&(_, lag)| lag).filter(|&lag| lag != SHORT_ROW));
    }
    periods
}

/// Codes below the lowest percent count as that: zeros would drown everything else.
fn clip_of(counts: &[u32; 256], count: usize) -> u8 {
    let mut below = 0;
    let lowest = counts.iter().position(|&c| {
        below += c as usize;
        below * 100 > count
    });
    lowest.unwrap_or(0) as u8
}

/// Mean and variance of all codes.
struct Spread {
    count: i128,
    sum: i128,
    squares: i128,
}

impl Spread {
    fn of(counts: &[u32; 256], clip: u8, count: usize) -> Self {
        let (mut sum, mut squares) = (0, 0);
        for (code, &n) in counts.iter().enumerate() {
            let code = code.max(usize::from(clip)) as i128;
            sum += code * i128::from(n);
            squares += code * code * i128::from(n);
        }
        Self { count: count as i128, sum, squares }
    }

    /// About what a grouping of `count` codes with these sums could save, in units of [`BIT`]: a
    /// share `r` of the variance explained is worth `-log2(1 - r) / 2`, at least `0.72 r`, bits per
    /// code. Noise explains a share of units to codes by itself, and each unit costs two bits.
    fn gain(&self, sums: &[u64], columns: bool, period: usize, count: usize) -> i64 {
        // The variance of all codes, times their number squared, to stay in integers.
        let variance = self.count * self.squares - self.sum * self.sum;
        if variance <= 0 {
            return 0;
        }
        // Units of at most two sizes: those before `longer`, and the rest.
        let (rows, rest) = (count / period, count % period);
        let (longer, sizes) = if columns { (rest, [rows + 1, rows]) } else { (rows, [period, rest]) };
        let (long, short) = sums.split_at(longer.min(sums.len()));
        let squares = |sums: &[u64], size: usize| {
            // At most the square of the sum of all codes, which fits for the codes of a chunk.
            let squares: u64 = sums.iter().map(|&sum| sum * sum).sum();
            i128::from(squares) / size.max(1) as i128
        };
        let total = i128::from(sums.iter().sum::<u64>());
        let between = squares(long, sizes[0]) + squares(short, sizes[1]) - total * total / count as i128;
        let units = sums.len() as i128;
        // The variance between units, in variances of one code.
        let share = between * self.count * self.count / variance - units;
        (share * BIT as i128 * 72 / 100 - 2 * units * BIT as i128) as i64
    }
}

/// Quantizes units to classes of similar mean, with histograms of one row in `every`, which are returned with what they say
/// that classes save; `None` unless these say that they pay.
fn assign(
    codes: &[u8],
    columns: bool,
    period: usize,
    sums: &[u64],
    must_save: u64,
    per_class: u64,
    every: usize,
) -> Option<(ClassMap, Vec<[u32; 256]>, u64)> {
    let count = codes.len();
    let units = sums.len();
    let mut means = sums.to_vec();
    // A partial last row is compared as if it were whole.
    if let Some(last) = means.last_mut()
        && !columns
        && !count.is_multiple_of(period)
    {
        *last = *last * period as u64 / (count % period) as u64;
    }
    let bucket_of = buckets_of(&means);
    let all = bucket_counts(codes, columns, period, &bucket_of, BUCKETS, every);
    // Most codes do not occur.
    let used: Vec<usize> = (0..256).filter(|&code| all.iter().any(|counts| counts[code] > 0)).collect();
    let groups = all.iter().enumerate().map(|(bucket, counts)| {
        let counts: Vec<u32> = used.iter().map(|&code| counts[code]).collect();
        Group { last_bucket: bucket, cost: cost::entropy(&counts), counts }
    });
    let mut groups = Groups::new(groups.collect());
    let whole = groups.cost_as_one();
    let mut best: Option<(u64, Vec<usize>, Vec<[u32; 256]>)> = None;
    while groups.list.len() > 1 {
        if groups.list.len() <= MAX_CLASSES {
            let list = &groups.list;
            let width = if list.len() > 2 { 2 } else { 1 };
            let described = units as u64 * width + (list.len() as u64 - 1) * per_class * 8;
            let cost = list.iter().map(|group| group.cost).sum::<u64>() + described * BIT / every as u64;
            if best.as_ref().is_none_or(|(least, ..)| cost < *least) {
                let last_buckets = list.iter().map(|group| group.last_bucket).collect();
                let counts = list.iter().map(|group| group.counts_of(&used)).collect();
                best = Some((cost, last_buckets, counts));
            }
        }
        groups.merge_cheapest();
    }
    let (cost, last_buckets, counts) = best?;
    if cost + must_save / every as u64 >= whole {
        return None;
    }
    let class_of: [u8; BUCKETS] =
        std::array::from_fn(|bucket| last_buckets.partition_point(|&last| last < bucket) as u8);
    let classes = bucket_of.into_iter().map(|bucket| class_of[usize::from(bucket) % BUCKETS]).collect();
    Some((ClassMap { columns, period, classes }, counts, (whole - cost) * every as u64))
}

/// Moves every unit to the class whose code is the shortest for it; returns how many moved.
fn move_units(codes: &[u8], counts: &[[u32; 256]], map: &mut ClassMap) -> usize {
    // In 1/16 bit, of codes of less than 16 bits: an absent code is expensive, but not forbidden.
    let mut costs = [0u64; 256];
    for (class, counts) in counts.iter().enumerate() {
        for (code, cost) in cost::per_symbol(counts, 16, 255).into_iter().enumerate() {
            costs[code] |= cost << (16 * class);
        }
    }
    let by_class = row_column_sums::costs_of_units(codes, map.columns, map.period, &costs);
    let mut moved = 0;
    for (unit, class) in by_class.iter().zip(&mut map.classes) {
        let best = (0..counts.len()).min_by_key(|&class| unit[class]).unwrap_or(0) as u8;
        moved += usize::from(*class != best);
        *class = best;
    }
    moved
}

/// Buckets of about as many units each, of similar mean.
fn buckets_of(means: &[u64]) -> Vec<u8> {
    /// Steps between the lowest and the highest mean: units are sorted no finer than that.
    /// (structural: many times the buckets, in a part of the first-level cache)
    const STEPS: usize = 1024;
    let (mut lowest, mut highest) = (u64::MAX, 0);
    for &mean in means {
        lowest = lowest.min(mean);
        highest = highest.max(mean);
    }
    // A power of two, since it divides for every unit: so steps are at least half as many.
    let shift = (highest.saturating_sub(lowest) / STEPS as u64 + 1).next_power_of_two().ilog2();
    let step = |&mean: &u64| ((mean - lowest) >> shift) as usize % STEPS;
    let mut below = [0u32; STEPS];
    means.iter().for_each(|mean| below[step(mean)] += 1);
    // Of each step, `units before it * BUCKETS / units`.
    let (mut before, mut bucket) = (0, 0);
    let buckets = below.map(|count| {
        while (bucket + 1) * means.len() <= before * BUCKETS {
            bucket += 1;
        }
        before += count as usize;
        bucket as u8
    });
    means.iter().map(|mean| buckets[step(mean)]).collect()
}

/// Neighbouring buckets under one code.
struct Group {
    last_bucket: usize,
    /// Of the codes in use.
    counts: Vec<u32>,
    cost: u64,
}

impl Group {
    /// The histogram over all codes, from the counts of the used ones.
    fn counts_of(&self, used: &[usize]) -> [u32; 256] {
        let mut counts = [0; 256];
        used.iter().zip(&self.counts).for_each(|(&code, &count)| counts[code] = count);
        counts
    }

    /// The union of two adjacent groups.
    fn with(&self, next: &Self) -> Self {
        let counts: Vec<u32> = self.counts.iter().zip(&next.counts).map(|(a, b)| a + b).collect();
        Self { last_bucket: next.last_bucket, cost: cost::entropy(&counts), counts }
    }
}

/// All groups, and the union of each with the next.
struct Groups {
    list: Vec<Group>,
    pairs: Vec<Group>,
}

impl Groups {
    fn new(list: Vec<Group>) -> Self {
        let pairs = list.windows(2).map(|pair| pair[0].with(&pair[1])).collect();
        Self { list, pairs }
    }

    fn cost_as_one(&self) -> u64 {
        let mut counts = self.list[0].counts.clone();
        for group in &self.list[1..] {
            counts.iter_mut().zip(&group.counts).for_each(|(all, count)| *all += count);
        }
        cost::entropy(&counts)
    }

    /// Merges the adjacent pair with the lowest loss.
    fn merge_cheapest(&mut self) {
        let loss =
            |&i: &usize| self.pairs[i].cost as i64 - self.list[i].cost as i64 - self.list[i + 1].cost as i64;
        let Some(at) = (0..self.pairs.len()).min_by_key(loss) else {
            return;
        };
        self.list[at] = self.pairs.remove(at);
        self.list.remove(at + 1);
        for i in [at.wrapping_sub(1), at] {
            if i < self.pairs.len() {
                self.pairs[i] = self.list[i].with(&self.list[i + 1]);
            }
        }
    }
}

/// The histogram of each of `buckets` (a power of two) buckets, of one row in `every`.
fn bucket_counts(
    codes: &[u8],
    columns: bool,
    period: usize,
    bucket_of: &[u8],
    buckets: usize,
    every: usize,
) -> Vec<[u32; 256]> {
    let mut counts = vec![[0u32; 256]; buckets];
    if columns {
        for row in codes.chunks(period).step_by(every) {
            for (&code, &bucket) in row.iter().zip(bucket_of) {
                counts[usize::from(bucket) & (buckets - 1)][usize::from(code)] += 1;
            }
        }
    } else {
        // Two tables, so that equal neighbours do not depend on each other's store.
        let mut others = vec![[0u32; 256]; buckets];
        for (row, &bucket) in codes.chunks(period).zip(bucket_of).step_by(every) {
            let bucket = usize::from(bucket) & (buckets - 1);
            let (counts, others) = (&mut counts[bucket], &mut others[bucket]);
            let (pairs, rest) = row.as_chunks::<2>();
            for [a, b] in pairs {
                counts[usize::from(*a)] += 1;
                others[usize::from(*b)] += 1;
            }
            rest.iter().for_each(|&code| counts[usize::from(code)] += 1);
        }
        for (count, other) in counts.as_flattened_mut().iter_mut().zip(others.as_flattened()) {
            *count += other;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_of_different_scale_in_one_buffer_have_classes() {
        let mut state = 1u32;
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 29) as u8
        };
        // Longer than the part that rules groupings out, so that neighbouring rows are alike.
        let codes: Vec<u8> = (0..1 << 17).map(|i| 100 + (i >> 15) as u8 * 9 + noise()).collect();
        for moves in [0, 3] {
            let price = Price { must_save: 2, moves, per_class: PER_CLASS };
            let map = find(&codes, &[SHORT_ROW], price).unwrap();
            assert!(!map.columns && map.count() == 4, "{} classes", map.count());
        }
    }
}
