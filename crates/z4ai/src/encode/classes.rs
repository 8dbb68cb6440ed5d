//! Finding rows or columns of one scale.
//!
//! The scale of the row or column a weight stands in is the strongest context there is, and it is
//! known before decoding starts. How much of the variance of the codes a grouping explains tells
//! what it could save; the best grouping is then put into at most four classes of similar mean,
//! and taken if exact counts say that it pays.

use super::cost::{self, BIT};
use crate::kernel::classes::{ClassMap, MAX_CLASSES};

/// What is known about the rows of a chunk before looking at it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hint {
    /// Row lengths that the tensor's shape has; empty when no shape is known.
    pub(crate) periods: Vec<usize>,
    /// Whether there was a shape.
    pub(crate) shaped: bool,
    /// Whether classes are wanted at all.
    pub(crate) searched: bool,
}

/// Groups of units with similar means that classes are made of.
const BUCKETS: usize = 16;
/// What classes must save, in 1/64 bit per element: they cost another pass to decode. Those that
/// were found without a shape must save more, so that plain buffers stay fast.
const MUST_SAVE: u64 = 1;
const MUST_SAVE_UNSHAPED: u64 = 3;
/// A row length that most others are a multiple of.
const SHORT_ROW: usize = 64;
/// The longest distance tried.
const MAX_LAG: usize = 4096;
/// Codes compared at each distance.
const LAG_SAMPLE: usize = 2048;
/// Distances tried are multiples of this.
const LAG_STEP: usize = 64;
/// Codes farther apart than this are just different: zeros would drown everything else.
const FAR: u8 = 16;
/// Bytes that a class adds to a description: table and lengths.
const PER_CLASS: u64 = 50;

/// The grouping of `codes` that saves most, if any pays.
pub(crate) fn find(codes: &[u8], counts: &[u32; 256], hint: &Hint) -> Option<ClassMap> {
    if !hint.searched {
        return None;
    }
    let count = codes.len();
    let found;
    let periods = if hint.shaped {
        &hint.periods
    } else {
        found = likely_periods(codes);
        &found
    };
    let candidates: Vec<(bool, usize)> = periods
        .iter()
        .flat_map(|&period| [(false, period), (true, period)])
        .filter(|&(columns, period)| {
            ClassMap::units(columns, period, count) <= count / 8 && period * 4 <= count
        })
        .collect();
    let clip = clip_of(counts, count);
    let spread = Spread::of(counts, clip, count);
    let (gain, columns, period, sums) = candidates
        .into_iter()
        .map(|(columns, period)| {
            let sums = unit_sums(codes, columns, period, clip);
            (spread.gain(&sums, columns, period), columns, period, sums)
        })
        .max_by_key(|candidate| (candidate.0, std::cmp::Reverse(candidate.2)))?;
    let must_save = if hint.shaped { MUST_SAVE } else { MUST_SAVE_UNSHAPED };
    let must_save = count as u64 * must_save * BIT / 64;
    if gain <= must_save as i64 {
        return None;
    }
    assign(codes, counts, columns, period, &sums, must_save)
}

/// Row lengths to try on bytes without a shape: one that any row is a multiple of, and the distance
/// at which a sample resembles itself most, if it stands out.
fn likely_periods(codes: &[u8]) -> Vec<usize> {
    let mut periods = vec![SHORT_ROW];
    if codes.len() < 2 * (LAG_SAMPLE + MAX_LAG) {
        return periods;
    }
    let start = codes.len() / 3;
    let sample = &codes[start..start + LAG_SAMPLE];
    let distance = |lag: usize| -> u32 {
        let later = &codes[start + lag..start + lag + LAG_SAMPLE];
        sample.iter().zip(later).map(|(&a, &b)| u32::from(a.abs_diff(b).min(FAR))).sum()
    };
    let lags = (SHORT_ROW..=MAX_LAG).step_by(LAG_STEP);
    let distances: Vec<(u32, usize)> = lags.map(|lag| (distance(lag), lag)).collect();
    let mean = distances.iter().map(|&(d, _)| u64::from(d)).sum::<u64>() / distances.len() as u64;
    let least = distances.iter().map(|&(d, _)| d).min().unwrap_or(0);
    if u64::from(least) * 100 < mean * 97 {
        // Multiples of a row length stand out like the row length itself: take the first.
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

    /// About what a grouping with these sums could save, in units of [`BIT`]: a share `r` of the
    /// variance explained is worth `-log2(1 - r) / 2`, at least `0.72 r`, bits per element. Noise
    /// explains a share of units to elements by itself, and each unit costs two bits.
    fn gain(&self, sums: &[u64], columns: bool, period: usize) -> i64 {
        // All times `count`, to stay in integers: n * sum(x^2) - (sum x)^2 and alike.
        let total = self.count * self.squares - self.sum * self.sum;
        if total <= 0 {
            return 0;
        }
        let (rows, rest) = (self.count as usize / period, self.count as usize % period);
        let mut between = 0i128;
        for (unit, &sum) in sums.iter().enumerate() {
            let size = match columns {
                true => rows + usize::from(unit < rest),
                false if unit < rows => period,
                false => rest,
            } as i128;
            let sum = i128::from(sum);
            if size > 0 {
                between += self.count * sum * sum / size;
            }
        }
        between -= self.sum * self.sum;
        let units = sums.len() as i128;
        let share = between * self.count / total - units;
        (share * BIT as i128 * 72 / 100 - 2 * units * BIT as i128) as i64
    }
}

/// The sum of the codes of each row or column.
fn unit_sums(codes: &[u8], columns: bool, period: usize, clip: u8) -> Vec<u64> {
    if !columns {
        let rows = codes.chunks(period);
        return rows.map(|row| row.iter().map(|&code| u64::from(code.max(clip))).sum()).collect();
    }
    let mut sums = vec![0u64; period];
    // In narrow sums that hold 256 rows, so that more of them fit a register.
    let mut narrow = vec![0u16; period];
    for rows in codes.chunks(256 * period) {
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

/// Puts units into classes of similar mean; `None` unless exact counts say that they pay.
fn assign(
    codes: &[u8],
    counts: &[u32; 256],
    columns: bool,
    period: usize,
    sums: &[u64],
    must_save: u64,
) -> Option<ClassMap> {
    let count = codes.len();
    let units = sums.len();
    let mut order: Vec<u32> = (0..units as u32).collect();
    // A partial last row is compared as if it were whole.
    let mean = |unit: usize| match columns || unit + 1 < units || count.is_multiple_of(period) {
        true => sums[unit],
        false => sums[unit] * period as u64 / (count % period) as u64,
    };
    order.sort_by_key(|&unit| (mean(unit as usize), unit));
    let mut bucket_of = vec![0u8; units];
    for (rank, &unit) in order.iter().enumerate() {
        bucket_of[unit as usize] = (rank * BUCKETS / units) as u8;
    }
    let mut buckets = bucket_counts(codes, columns, period, &bucket_of);
    let mut groups: Vec<Group> = buckets
        .drain(..)
        .enumerate()
        .map(|(bucket, counts)| Group { last_bucket: bucket, cost: cost::entropy(&counts), counts })
        .collect();
    let whole = cost::entropy(counts);
    let mut best: Option<(u64, Vec<usize>)> = None;
    while groups.len() > 1 {
        if groups.len() <= MAX_CLASSES {
            let width = if groups.len() > 2 { 2 } else { 1 };
            let cost = groups.iter().map(|group| group.cost).sum::<u64>()
                + units as u64 * width * BIT
                + (groups.len() as u64 - 1) * PER_CLASS * 8 * BIT;
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, groups.iter().map(|group| group.last_bucket).collect()));
            }
        }
        merge_cheapest(&mut groups);
    }
    let (cost, last_buckets) = best?;
    if cost + must_save >= whole {
        return None;
    }
    let class_of = |bucket: u8| last_buckets.partition_point(|&last| last < usize::from(bucket)) as u8;
    Some(ClassMap { columns, period, classes: bucket_of.into_iter().map(class_of).collect() })
}

/// Neighbouring buckets under one code.
struct Group {
    last_bucket: usize,
    counts: [u32; 256],
    cost: u64,
}

/// Joins the two neighbours that lose least by it.
fn merge_cheapest(groups: &mut Vec<Group>) {
    let joined = |a: &Group, b: &Group| -> [u32; 256] { std::array::from_fn(|i| a.counts[i] + b.counts[i]) };
    let loss = |pair: &[Group]| {
        cost::entropy(&joined(&pair[0], &pair[1])) as i64 - pair[0].cost as i64 - pair[1].cost as i64
    };
    let Some(at) = (0..groups.len() - 1).min_by_key(|&i| loss(&groups[i..i + 2])) else {
        return;
    };
    let counts = joined(&groups[at], &groups[at + 1]);
    groups[at + 1] = Group { last_bucket: groups[at + 1].last_bucket, cost: cost::entropy(&counts), counts };
    groups.remove(at);
}

/// The counts of the codes in each bucket.
fn bucket_counts(codes: &[u8], columns: bool, period: usize, bucket_of: &[u8]) -> Vec<[u32; 256]> {
    let mut counts = vec![[0u32; 256]; BUCKETS];
    if columns {
        for row in codes.chunks(period) {
            for (&code, &bucket) in row.iter().zip(bucket_of) {
                counts[usize::from(bucket) % BUCKETS][usize::from(code)] += 1;
            }
        }
    } else {
        for (row, &bucket) in codes.chunks(period).zip(bucket_of) {
            let counts = &mut counts[usize::from(bucket) % BUCKETS];
            row.iter().for_each(|&code| counts[usize::from(code)] += 1);
        }
    }
    counts
}
