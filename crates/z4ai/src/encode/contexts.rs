//! Codes in context: which contexts, their tables, and the bits.

use super::classes::{Hint, likely_periods};
use super::cost::{self, BIT};
use super::levels::{BLOCK, Followed, Levels};
use crate::coder::tans::{RUNS, States, run_of};
use crate::coder::tans_encode;
use crate::layout::contexts::{Contexts, MAX_PERIOD, Thresholds};

/// Classes of the nearest elements and of the column that are tried together; a row of one element
/// makes the column a longer mean of what was before.
const WITHOUT_ROWS: [(usize, usize); 3] = [(6, 1), (24, 1), (12, 3)];
const WITH_ROWS: [(usize, usize); 4] = [(2, 3), (8, 4), (4, 8), (1, 24)];
/// Row lengths tried, at most.
const MAX_PERIODS: usize = 2;
/// Contexts are chosen by one in so many codes, in at least so many places.
const SAMPLED: usize = 32;
const PLACES: usize = 2;
/// Codes in a place, and those of them that only show what is known about the others: at least so many,
/// and so many rows.
const PLACE: (usize, usize) = (2048, 16);
const FIRST: (usize, usize) = (128, 4);
/// All codes are looked at where they are no more than so many.
const FEW: usize = 1 << 15;
/// Bytes that a table takes, about.
const PER_TABLE: u64 = 55;
/// Bits of a state, at least and at most.
const MIN_LOG: u32 = 9;
const MAX_LOG: u32 = 11;

/// Which contexts there are.
pub(super) struct Choice {
    period: usize,
    thresholds: Thresholds,
    /// What they take, in units of [`BIT`], as far as a part of all codes tells.
    cost: u64,
}

impl Choice {
    /// Bytes of the coded codes and of the tables, about.
    pub(super) fn estimate(&self) -> usize {
        (self.cost / (8 * BIT)) as usize
    }
}

/// The contexts that make the codes smallest, of which there must be some.
pub(super) fn choose(codes: &[u8], joined: u32, hint: &Hint) -> Choice {
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

/// A code, and the levels that are known before it.
struct Known {
    code: u8,
    levels: [u8; 2],
}

/// What is known before some of the codes.
fn sample(codes: &[u8], joined: u32, period: usize) -> Vec<Known> {
    let mut known = Vec::new();
    let mut levels = Levels::default();
    let mut take = |codes: &[u8], skipped: usize| {
        let mut followed = Followed::<1>::new(joined, period);
        for (block, codes) in codes.chunks(BLOCK).enumerate() {
            followed.advance([codes], &mut levels);
            let both = levels.near[0].iter().zip(&levels.column[0]);
            let block_known = codes
                .iter()
                .zip(both)
                .map(|(&code, (&near, &column))| Known { code, levels: [near, column] });
            known.extend(block_known.skip(skipped.saturating_sub(block * BLOCK)));
        }
    };
    let [len, first] = [PLACE, FIRST].map(|(codes, rows)| codes.max(rows * period));
    let places = (codes.len() / SAMPLED / len).max(PLACES);
    if codes.len() <= FEW || codes.len() < places * len {
        take(codes, 0);
    } else {
        for place in 0..places {
            take(&codes[(codes.len() - len) / (places - 1) * place..][..len], first);
        }
    }
    known
}

/// Where `wanted` classes of about the same number of elements begin, if there are so many of each level.
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

/// What `total` codes take in these contexts, if they are like those.
fn cost_of(known: &[Known], thresholds: &Thresholds, total: usize) -> u64 {
    let mut counts = vec![0u32; thresholds.contexts() * 256];
    let [near, column] = thresholds.numbers();
    for known in known {
        let [a, b] = known.levels.map(usize::from);
        counts[usize::from(u16::from_be_bytes([near[a] + column[b], known.code]))] += 1;
    }
    let cost_of = |counts: &[u32]| {
        // Few codes look less random than many: about by half a bit of information for each symbol.
        let symbols = counts.iter().filter(|&&count| count > 0).count() as u64;
        let missed = if total > known.len() { symbols * BIT * 72 / 100 } else { 0 };
        (cost::entropy(counts) + missed) * total as u64 / known.len() as u64 + PER_TABLE * 8 * BIT
    };
    counts.chunks_exact(256).map(cost_of).sum()
}

/// Appends the bits of the codes. `numbered` is scratch.
pub(super) fn encode(
    codes: &[u8],
    joined: u32,
    choice: Choice,
    numbered: &mut Vec<u16>,
    payload: &mut Vec<u8>,
) -> Contexts {
    let Choice { period, thresholds, .. } = choice;
    let runs: [&[u8]; RUNS] = std::array::from_fn(|index| &codes[run_of(index, codes.len())]);
    numbered.resize(codes.len(), 0);
    let counts = number_contexts(&runs, joined, period, &thresholds, numbered);
    let log = codes.len().ilog2().saturating_sub(4).clamp(MIN_LOG, MAX_LOG);
    let tables: Vec<States> = counts.as_chunks().0.iter().map(|counts| table_for(*counts, log)).collect();
    let stored = tans_encode::encode_by_tables(numbered, &tables, payload);
    Contexts { joined, period: period as u32, thresholds, tables, stored }
}

/// Writes every code with the context above it, and counts these: the codes of each context together.
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
    let mut followed = Followed::<RUNS>::new(joined, period);
    let mut levels = Levels::default();
    // All but the last run may go on a little; what that one lacks is not looked at.
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
        followed.advance(codes, &mut levels);
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

/// The states for these counts; there need not be any.
fn table_for(mut counts: [u32; 256], log: u32) -> States {
    // A table needs two symbols, whether they occur or not.
    if counts.iter().filter(|&&n| n > 0).count() < 2 {
        counts[0] += 1;
        counts[1] += 1;
    }
    States::with_log(&counts, log).expect("two symbols")
}
