//! Chooses the contexts of a chunk, builds their tables and encodes the codes.

use crate::coder::run_range;
use crate::coder::tans::encode::TansScratch;
use crate::coder::tans::{self, NormalizedCounts, RUNS};
use crate::estimate::cost::{self, BIT};
use crate::estimate::sampling;
use crate::layout::contexts::levels::{BLOCK, ContextTracker, Levels};
use crate::layout::contexts::{Contexts, MAX_PERIOD, Thresholds};
use crate::layout::split::classes::{Hint, likely_periods};

/// Candidate numbers of (neighbour, column) classes. With rows of one element, the column mean is a
/// longer mean of the preceding elements. (case: `codec.py`, effort max)
const WITHOUT_ROWS: [(usize, usize); 3] = [(6, 1), (24, 1), (12, 3)];
const WITH_ROWS: [(usize, usize); 4] = [(2, 3), (8, 4), (4, 8), (1, 24)];
/// Row lengths tried, at most. (case: `codec.py`, effort max)
const MAX_PERIODS: usize = 2;
/// Contexts are chosen by a sample of one in `SAMPLE_STRIDE` codes, from at least `MIN_SAMPLES`
/// positions. (case: `codec.py`, effort max, compress)
const SAMPLE_STRIDE: usize = 32;
const MIN_SAMPLES: usize = 2;
/// The length of one sample, and its warm-up, whose codes only initialise the means: the larger of
/// a number of codes and a number of rows. (case: `codec.py`, effort max, compress)
const SAMPLE_LEN: RunLength = RunLength { codes: 2048, rows: 16 };
const WARM_UP: RunLength = RunLength { codes: 128, rows: 4 };
/// Up to this number of codes, all are used instead of a sample. (flat)
const MAX_UNSAMPLED: usize = 1 << 15;
/// Estimated bytes of a stored table. (case: sweep; halved, fp16 at `max` is 0.03 % larger, doubled 0.13 %)
const TABLE_BYTES: u64 = 55;
/// Log2 of the table size: bounds. (format)
const MIN_LOG: u32 = 9;
const MAX_LOG: u32 = 11;

/// A length that is the larger of a number of codes and a number of rows.
struct RunLength {
    codes: usize,
    rows: usize,
}

/// Which contexts there are.
pub(crate) struct Choice {
    period: usize,
    thresholds: Thresholds,
    /// The estimated cost, in units of [`BIT`].
    cost: u64,
}

impl Choice {
    /// Bytes of the coded codes and of the tables, about.
    pub(crate) fn estimate(&self) -> usize {
        (self.cost / (8 * BIT)) as usize
    }
}

/// The cheapest contexts for `codes`, which must not be empty.
pub(crate) fn choose(codes: &[u8], joined: u32, hint: &Hint) -> Choice {
    let found;
    let periods = match hint.shaped {
        true => hint.periods.as_slice(),
        false => {
            found = likely_periods(codes);
            found.as_slice()
        }
    };
    let fitting =
        periods.iter().copied().filter(|&p| p > 1 && p <= MAX_PERIOD && 4 * RUNS * p <= codes.len());
    let periods = std::iter::once(1).chain(fitting.take(MAX_PERIODS));
    let choices = periods.flat_map(|period| {
        let known = sample(codes, joined, period);
        let levels = [0, 1].map(|which| {
            let mut counts = [0usize; 256];
            known.iter().for_each(|known| counts[usize::from(known.levels[which])] += 1);
            counts
        });
        let candidates = if period == 1 { &WITHOUT_ROWS[..] } else { &WITH_ROWS };
        let choice = |&(near, column): &(usize, usize)| {
            let thresholds = Thresholds([thresholds(&levels[0], near), thresholds(&levels[1], column)]);
            let cost = cost_of(&known, &thresholds, codes.len());
            Choice { period, thresholds, cost }
        };
        candidates.iter().map(choice).collect::<Vec<_>>()
    });
    choices.min_by_key(|choice| choice.cost).expect("rows of one element are always tried")
}

/// A code, and the levels of both means before it.
struct Known {
    code: u8,
    levels: [u8; 2],
}

/// A sample of codes with their levels.
fn sample(codes: &[u8], joined: u32, period: usize) -> Vec<Known> {
    let mut known = Vec::new();
    let mut levels = Levels::default();
    let mut take = |codes: &[u8], skipped: usize| {
        let mut tracker = ContextTracker::<1>::new(joined, period);
        for (block, codes) in codes.chunks(BLOCK).enumerate() {
            tracker.advance([codes], &mut levels);
            let both = levels.near[0].iter().zip(&levels.column[0]);
            let block_known = codes
                .iter()
                .zip(both)
                .map(|(&code, (&near, &column))| Known { code, levels: [near, column] });
            known.extend(block_known.skip(skipped.saturating_sub(block * BLOCK)));
        }
    };
    let [len, first] = [SAMPLE_LEN, WARM_UP].map(|run| run.codes.max(run.rows * period));
    let places = (codes.len() / SAMPLE_STRIDE / len).max(MIN_SAMPLES);
    if codes.len() <= MAX_UNSAMPLED || codes.len() < places * len {
        take(codes, 0);
    } else {
        for at in sampling::strided(codes.len(), len, places, 1) {
            take(&codes[at..][..len], first);
        }
    }
    known
}

/// The thresholds of about `wanted` classes of equal size, fewer if levels are not fine enough.
fn thresholds(counts: &[usize; 256], wanted: usize) -> Vec<u8> {
    let total: usize = counts.iter().sum();
    let (mut thresholds, mut below) = (Vec::new(), 0);
    for (level, &count) in counts.iter().enumerate() {
        if below > 0 && below * wanted >= total * (thresholds.len() + 1) && thresholds.len() + 1 < wanted {
            thresholds.push(level as u8);
        }
        below += count;
    }
    thresholds
}

/// The estimated cost of `total` codes in these contexts.
fn cost_of(known: &[Known], thresholds: &Thresholds, total: usize) -> u64 {
    let mut counts = vec![0u32; thresholds.contexts() * 256];
    let [near, column] = thresholds.numbers();
    for known in known {
        let [a, b] = known.levels.map(usize::from);
        counts[usize::from(u16::from_be_bytes([near[a] + column[b], known.code]))] += 1;
    }
    let cost_of = |counts: &[u32]| {
        // Bias of the entropy of a sample: about half a bit per symbol.
        let symbols = counts.iter().filter(|&&count| count > 0).count() as u64;
        let missed = if total > known.len() { symbols * BIT * 72 / 100 } else { 0 };
        (cost::entropy(counts) + missed) * total as u64 / known.len() as u64 + TABLE_BYTES * 8 * BIT
    };
    counts.chunks_exact(256).map(cost_of).sum()
}

/// Appends the bits of the codes. `numbered` is scratch.
pub(crate) fn encode(
    codes: &[u8],
    joined: u32,
    choice: Choice,
    numbered: &mut Vec<u16>,
    payload: &mut Vec<u8>,
    scratch: &mut TansScratch,
) -> Contexts {
    let Choice { period, thresholds, .. } = choice;
    let runs: [&[u8]; RUNS] = std::array::from_fn(|index| &codes[run_range(index, RUNS, codes.len())]);
    numbered.resize(codes.len(), 0);
    let counts = number_contexts(&runs, joined, period, &thresholds, numbered);
    let log = codes.len().ilog2().saturating_sub(4).clamp(MIN_LOG, MAX_LOG);
    let tables: Vec<NormalizedCounts> =
        counts.as_chunks().0.iter().map(|counts| NormalizedCounts::of_any(*counts, log)).collect();
    let stored = tans::encode::encode_by_tables(numbered, &tables, payload, scratch);
    Contexts { joined, period: period as u32, thresholds, tables, stored }
}

/// Writes every code with its context in the upper byte, and counts them: a histogram per context.
fn number_contexts(
    runs: &[&[u8]; RUNS],
    joined: u32,
    period: usize,
    thresholds: &Thresholds,
    numbered: &mut [u16],
) -> Vec<u32> {
    let by_level = thresholds.numbers();
    let mut counts = vec![0u32; thresholds.contexts() * 256];
    let mut left = numbered;
    let numbered = runs.map(|run| left.split_off_mut(..run.len()).unwrap_or_default());
    let mut tracker = ContextTracker::<RUNS>::new(joined, period);
    let mut levels = Levels::default();
    // All runs but the last may be a little longer; padding of the last is ignored.
    let longest = runs[0].len();
    let mut padded = [[0; BLOCK]; RUNS];
    for start in (0..longest).step_by(BLOCK) {
        let len = (longest - start).min(BLOCK);
        let own = runs.map(|run| run.get(start..).unwrap_or_default());
        let whole = own.iter().all(|run| run.len() >= len);
        if !whole {
            for (padded, run) in padded.iter_mut().zip(own) {
                let run = &run[..run.len().min(len)];
                padded[..run.len()].copy_from_slice(run);
            }
        }
        let codes: [&[u8]; RUNS] =
            std::array::from_fn(|r| if whole { &own[r][..len] } else { &padded[r][..len] });
        tracker.advance(codes, &mut levels);
        for r in 0..RUNS {
            let numbered = numbered[r].get_mut(start..).unwrap_or_default();
            let both = levels.near[r].iter().zip(&levels.column[r]);
            for ((numbered, &code), (&near, &column)) in numbered.iter_mut().zip(codes[r]).zip(both) {
                let number = by_level[0][usize::from(near)] + by_level[1][usize::from(column)];
                *numbered = u16::from_be_bytes([number, code]);
                counts[usize::from(*numbered)] += 1;
            }
        }
    }
    counts
}
