//! Order-1 tANS: the symbol before a symbol chooses the table that it is coded with.
//!
//! Neighbours depend on each other in convolutions, and so do the scales of neighbouring blocks. Symbols are put
//! into a few contexts by what is expected after them, and each context has a table. Decoding takes no
//! step more than with one table: a symbol says which table is next, so that the entries of its states lead into
//! that one. Only the first-level cache has to hold all tables.
//!
//! What comes before a symbol has to be decoded by the same state. So each run is cut into two halves, one for
//! each of its two states.

use crate::bits::{BitReader, BitWriter};
use crate::coder::run_range;
use crate::coder::tans::described::DescribedTable;
use crate::coder::tans::encode::{TansScratch, encode_by_two_states};
use crate::coder::tans::{Described, MAX_LOG, MIN_LOG, NormalizedCounts, RUNS};
use crate::error::{Error, Result};
use crate::estimate::cost::{self, BIT};
use crate::estimate::sampling;
use crate::options::Effort;
use crate::wire::{Put, Reader};

/// Contexts, at most. (format)
const MAX_CONTEXTS: usize = 16;
/// Log2 of the states of all tables together, at most. (format)
pub(super) const MAX_TOTAL_LOG: u32 = 14;

/// Log2 of the states of all tables together at the default effort, unless they have a shape. (case: `entropy.py`, GGUF and fp8;
/// 32 kB, as the first-level cache. With twice as many, symbols of one quant are 0.3 % and fp8 0.4 % smaller and decode at 0.85 of
/// the speed)
const CACHED_LOG: u32 = 13;
/// Contexts of many symbols at the default effort, at most. (case: `entropy.py`, fp8; with twice as many, of half as many states,
/// convolutions are 0.4 % larger and compress at 0.9 of the speed)
const MOST_OF_MANY: usize = 4;
/// Contexts while they are compared. (case: `entropy.py`, GGUF)
const FINE: usize = 8;
/// Symbols sampled, and runs that they are in: of fewer all are taken. (case: `entropy.py`, GGUF)
const SAMPLE: usize = 1 << 14;
const SAMPLED_RUNS: usize = 16;
/// Contexts are tried where they explain one part in this many of the variance. (case: `entropy.py`, GGUF; of weights
/// without order they explain one in 300 to 1000)
const MIN_EXPLAINED: f64 = 100.0;
/// Bits of a description for each symbol of a context, about. (structural: the number of a number's bits, and those)
const PER_LISTED_SYMBOL: u64 = 7;

/// As [`PER_LISTED_SYMBOL`], of all symbols of a context that has a shape. (structural: levels of a packed shape, and some changes)
const PER_SHAPE: u64 = 8 * 20;

/// The tables of all contexts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OrderOne {
    /// The context of what follows each symbol.
    pub(super) context_of: [u8; 256],
    /// One per context, all of one size.
    pub(super) tables: Vec<DescribedTable>,
}

impl OrderOne {
    /// Writes the number of contexts, first and last symbol, then for each of the symbols between them the context
    /// that it leads to, and the states of each context.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let first = self.context_of.iter().position(|&context| context > 0).unwrap_or(0);
        let last = self.context_of.iter().rposition(|&context| context > 0).unwrap_or(0);
        out.put_u8(self.tables.len() as u8);
        out.extend([first as u8, last as u8]);
        let mut bits = BitWriter::default();
        for &context in &self.context_of[first..=last] {
            bits.put(u64::from(context), width_of(self.tables.len()), out);
        }
        bits.finish(out);
        self.tables.iter().for_each(|table| table.write(out));
    }

    /// Reads what [`write`](Self::write) wrote.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let contexts = usize::from(reader.u8()?);
        let (first, last) = (usize::from(reader.u8()?), usize::from(reader.u8()?));
        if !(2..=MAX_CONTEXTS).contains(&contexts) || first > last {
            return Err(Error::corrupt(format_args!("{contexts} contexts of symbols {first} to {last}")));
        }
        let width = width_of(contexts);
        let mut bits = BitReader::new(reader.take(((last - first + 1) * width as usize).div_ceil(8))?);
        let mut context_of = [0; 256];
        for context in &mut context_of[first..=last] {
            *context = bits.take(width)? as u8;
        }
        if !bits.is_at_end() || context_of.iter().any(|&context| usize::from(context) >= contexts) {
            return Err(Error::corrupt("symbols of contexts that there are not"));
        }
        let tables: Vec<DescribedTable> = (0..contexts)
            .map(|_| {
                let form = reader.u8()?;
                DescribedTable::read(form, reader)
            })
            .collect::<Result<_>>()?;
        let log = tables[0].states.log();
        if tables.iter().any(|table| table.states.log() != log) || contexts << log > 1 << MAX_TOTAL_LOG {
            return Err(Error::corrupt("tables of contexts that are of different or too many states"));
        }
        Ok(Self { context_of, tables })
    }

    /// The logarithm of the number of states of each table.
    pub(super) fn log(&self) -> u32 {
        self.tables[0].states.log()
    }
}

/// Bits of the number of a context.
fn width_of(contexts: usize) -> u32 {
    usize::BITS - (contexts - 1).leading_zeros()
}

/// Which contexts there are.
pub(crate) struct Choice {
    context_of: [u8; 256],
    contexts: usize,
    /// The logarithm of the number of states of each table.
    log: u32,
    /// Bytes of symbols and tables, about.
    pub(crate) cost: u64,
}

/// How many symbols there are, and how their counts are distributed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alphabet {
    /// Their tables have a shape.
    Smooth,
    /// Few are rare.
    Few,
    /// Many are rare, and each of them has a state of every table.
    Many,
}

/// The cheapest contexts of `symbols`, which stand for `values`; `None` if a symbol says little about the value of the
/// next one.
pub(crate) fn choose(
    symbols: &[u8],
    values: &[i32; 256],
    alphabet: Alphabet,
    effort: Effort,
) -> Option<Choice> {
    let runs: Vec<&[u8]> = match symbols.len() {
        0..=SAMPLE => vec![symbols],
        len => sampling::spread(len, SAMPLE / SAMPLED_RUNS, SAMPLED_RUNS, 1)
            .map(|at| &symbols[at..at + SAMPLE / SAMPLED_RUNS])
            .collect(),
    };
    let pairs = || {
        runs.iter().flat_map(|run| run.windows(2).map(|pair| (usize::from(pair[0]), usize::from(pair[1]))))
    };
    // How often each symbol is followed by another, and the sum of the values of those.
    let (mut followed, mut sums) = ([0u32; 256], [0i64; 256]);
    let mut squares = 0i64;
    for (before, symbol) in pairs() {
        let value = i64::from(values[symbol]);
        followed[before] += 1;
        sums[before] += value;
        squares += value * value;
    }
    let taken: u32 = followed.iter().sum();
    let used = followed.iter().filter(|&&count| count > 0).count();
    if taken == 0 || used < 2 {
        return None;
    }
    let total = sums.iter().sum::<i64>() as f64;
    let of_mean = total * total / f64::from(taken);
    let mean = |symbol: usize| sums[symbol] as f64 / f64::from(followed[symbol]);
    let between: f64 =
        (0..256).filter(|&s| followed[s] > 0).map(|s| sums[s] as f64 * mean(s)).sum::<f64>() - of_mean;
    let variance = squares as f64 - of_mean;
    // Means of symbols differ by chance, too.
    let by_chance = variance * used as f64 / f64::from(taken);
    if (between - by_chance) * MIN_EXPLAINED < variance || variance <= 0.0 {
        return None;
    }
    // In the order of what is expected after them, as many as possible in parts of equal counts.
    let mut order: Vec<usize> = (0..256).filter(|&symbol| followed[symbol] > 0).collect();
    order.sort_by(|&a, &b| mean(a).total_cmp(&mean(b)));
    let (mut fine_of, mut below) = ([0u8; 256], 0u64);
    for symbol in order {
        let middle = below + u64::from(followed[symbol]) / 2;
        fine_of[symbol] = (middle * FINE as u64 / u64::from(taken)) as u8;
        below += u64::from(followed[symbol]);
    }
    let mut counts = vec![[0u32; 256]; FINE];
    pairs().for_each(|(before, symbol)| counts[usize::from(fine_of[before])][symbol] += 1);
    let smooth = alphabet == Alphabet::Smooth;
    let total_log =
        if alphabet == Alphabet::Smooth || effort > Effort::Default { MAX_TOTAL_LOG } else { CACHED_LOG };
    let log = |contexts: usize| {
        let most = MAX_LOG.min(total_log - width_of(contexts));
        (symbols.len() / contexts).max(1).ilog2().saturating_sub(3).clamp(MIN_LOG, most)
    };
    let cost = |contexts: usize| {
        let parts = counts.chunks_exact(FINE / contexts).map(|part| {
            let mut merged = [0u32; 256];
            part.iter()
                .for_each(|counts| merged.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count));
            let used = merged.iter().filter(|&&count| count > 0).count() as u64;
            let all: u64 = merged.iter().map(|&count| u64::from(count)).sum();
            // The entropy of a sample is too low by about half a bit per symbol.
            let missed = if symbols.len() > taken as usize + 1 { used * BIT * 72 / 100 } else { 0 };
            // Numbers of states are rounded, and rare symbols have one, too.
            let rounded = all * ((used * used * BIT * 2 / 5) >> (2 * log(contexts)));
            let bits = (cost::entropy(&merged) + missed + rounded) / BIT;
            let described = if smooth { PER_SHAPE } else { used * PER_LISTED_SYMBOL };
            bits * symbols.len() as u64 / u64::from(taken) + described
        });
        // Coder, lengths and states of streams; the contexts that symbols lead to.
        parts.sum::<u64>() / 8 + 45 + (used as u64 * u64::from(width_of(contexts))).div_ceil(8)
    };
    let most = if alphabet == Alphabet::Many && effort <= Effort::Default { MOST_OF_MANY } else { FINE };
    let numbers = [FINE, FINE / 2, FINE / 4].into_iter().filter(|&contexts| contexts <= most);
    let (cost, contexts) = numbers.map(|contexts| (cost(contexts), contexts)).min()?;
    let context_of = fine_of.map(|fine| fine / (FINE / contexts) as u8);
    let log = log(contexts);
    Some(Choice { context_of, contexts, log, cost })
}

/// Appends the four bit streams of `symbols` to `out`; returns their lengths in bytes. `numbered` is scratch.
pub(crate) fn encode(
    symbols: &[u8],
    choice: &Choice,
    numbered: &mut Vec<u16>,
    out: &mut Vec<u8>,
    scratch: &mut TansScratch,
) -> (OrderOne, [u32; RUNS]) {
    let context_of = choice.context_of;
    numbered.clear();
    numbered.resize(symbols.len(), 0);
    // A histogram for each half: neighbours increment different ones.
    let mut counts = vec![[0u32; MAX_CONTEXTS * 256]; 2];
    let [firsts, seconds] = counts.as_mut_slice() else { unreachable!("two were made") };
    let upper = context_of.map(|context| u16::from(context % MAX_CONTEXTS as u8) << 8);
    for index in 0..RUNS {
        let range = run_range(index, RUNS, symbols.len());
        let run = &symbols[range.clone()];
        let (first, second) = run.split_at(run.len().div_ceil(2));
        let (pairs, last) = numbered[range].as_chunks_mut::<2>();
        let (mut before_first, mut before_second) = (0, 0);
        for ((pair, &a), &b) in pairs.iter_mut().zip(first).zip(second) {
            *pair = [before_first | u16::from(a), before_second | u16::from(b)];
            firsts[usize::from(pair[0]) % (MAX_CONTEXTS * 256)] += 1;
            seconds[usize::from(pair[1]) % (MAX_CONTEXTS * 256)] += 1;
            (before_first, before_second) = (upper[usize::from(a)], upper[usize::from(b)]);
        }
        if let (Some(last), Some(&symbol)) = (last.first_mut(), first.last()) {
            *last = before_first | u16::from(symbol);
            firsts[usize::from(*last) % (MAX_CONTEXTS * 256)] += 1;
        }
    }
    firsts.iter_mut().zip(seconds).for_each(|(sum, count)| *sum += *count);
    let tables: Vec<DescribedTable> = firsts
        .as_chunks()
        .0
        .iter()
        .take(choice.contexts)
        .map(|counts| DescribedTable::new(counts, choice.log, Described::Packed))
        .collect();
    let states: Vec<NormalizedCounts> = tables.iter().map(|table| table.states.clone()).collect();
    let stored = encode_by_two_states(numbered, &states, out, scratch);
    (OrderOne { context_of, tables }, stored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coder::tans::Table;
    use proptest::prelude::*;

    #[test]
    fn neighbours_are_noticed_and_noise_is_not() {
        let mut state = 1u32;
        let mut next = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as i32 % 64
        };
        let values: [i32; 256] = std::array::from_fn(|symbol| symbol as i32);
        let noise: Vec<u8> = (0..50_000).map(|_| (next() + next()) as u8).collect();
        assert!(choose(&noise, &values, Alphabet::Smooth, Effort::Default).is_none());
        let mut before = 0;
        let mut smooth = || {
            before = (3 * before + next()) / 4;
            before as u8
        };
        let symbols: Vec<u8> = (0..50_000).map(|_| smooth()).collect();
        let choice = choose(&symbols, &values, Alphabet::Smooth, Effort::Default).unwrap();
        let entropy = cost::entropy(&crate::kernel::histogram::exact(&symbols)) / (8 * BIT);
        assert!(choice.cost * 10 < entropy * 9, "{} of {entropy}", choice.cost);
        let mut stored = Vec::new();
        let (tables, lens) =
            encode(&symbols, &choice, &mut Vec::new(), &mut stored, &mut TansScratch::default());
        let mut description = Vec::new();
        tables.write(&mut description);
        assert_eq!(lens.iter().sum::<u32>() as usize, stored.len());
        let taken = (stored.len() + description.len()) as u64;
        assert!(taken.abs_diff(choice.cost) * 50 < choice.cost, "{taken}, estimated {}", choice.cost);
    }

    proptest! {
        #[test]
        fn symbols_survive(
            noise in prop::collection::vec(any::<u16>(), 0..3000),
            context_of in prop::collection::vec(0u8..16, 256),
            contexts in 2usize..=16,
            log in MIN_LOG..=MAX_LOG,
            damage: u8,
        ) {
            let symbols: Vec<u8> = noise.iter().map(|v| (v | 1 << 12).trailing_zeros() as u8 + (v >> 13) as u8).collect();
            let context_of = std::array::from_fn(|symbol| context_of[symbol] % contexts as u8);
            let log = log.min(MAX_TOTAL_LOG - width_of(contexts));
            let choice = Choice { context_of, contexts, log, cost: 0 };
            let mut stored = Vec::new();
            let (tables, lens) =
                encode(&symbols, &choice, &mut Vec::new(), &mut stored, &mut TansScratch::default());
            let mut written = Vec::new();
            tables.write(&mut written);
            let mut reader = Reader::new(&written);
            prop_assert_eq!(&OrderOne::read(&mut reader).unwrap(), &tables);
            prop_assert_eq!(reader.remaining(), 0);
            let mut table = Table::default();
            table.build_order_one(&tables);
            let mut out = vec![1; symbols.len()];
            let lens = lens.map(|len| len as usize);
            table.decode_order_one(&tables, &stored, lens, &mut out).unwrap();
            prop_assert!(out == symbols);
            // One symbol after the other, as the format says.
            let all: Vec<u8> = (0..RUNS).flat_map(|index| {
                let from: usize = lens[..index].iter().sum();
                naive(&tables, &stored[from..from + lens[index]], run_range(index, RUNS, symbols.len()).len())
            }).collect();
            prop_assert!(all == symbols);
            // Damaged streams are refused or decode to something, and nothing panics.
            if let Some(last) = stored.len().checked_sub(1) {
                stored[usize::from(damage) % (last + 1)] ^= damage | 1;
                let _ = table.decode_order_one(&tables, &stored, lens, &mut out);
            }
        }
    }

    fn naive(tables: &OrderOne, stored: &[u8], symbols: usize) -> Vec<u8> {
        let (log, mut bits) = (tables.log(), BitReader::new(stored));
        let mut entries = vec![vec![0; 1 << log]; tables.tables.len()];
        for (table, entries) in tables.tables.iter().zip(&mut entries) {
            crate::coder::tans::fill(&table.states, entries);
        }
        let (mut halves, mut contexts) = ([Vec::new(), Vec::new()], [0; 2]);
        let mut states = [0; 2];
        if symbols > 0 {
            states = [0, 1].map(|_| bits.take(log).unwrap() as usize);
        }
        for place in 0..symbols {
            let half = place % 2;
            let entry: u32 = entries[contexts[half]][states[half]];
            let symbol = (entry >> 8) as u8;
            states[half] = (entry >> 16) as usize + bits.take(entry & 0xff).unwrap() as usize;
            contexts[half] = usize::from(tables.context_of[usize::from(symbol)]);
            halves[half].push(symbol);
        }
        assert_eq!(states, [0; 2]);
        halves.concat()
    }
}
