//! Symbols coded with fractions of bits: four bit streams of table-driven asymmetric numeral
//! systems.
//!
//! Every state of a table stands for a symbol and says how many bits to read to get to the next
//! state. A symbol has as many states as it is frequent, so that it costs `log - log2(states)` bits
//! on average. The decoder in pseudo code, for one state:
//!
//! ```text
//! while symbols are missing:
//!     entry = table[state]
//!     output entry.symbol; state = entry.base + the next entry.bits bits
//! ```
//!
//! What is done beyond that, and why:
//!
//! 1. The symbols are cut into four runs, each a bit stream of its own, and each run alternates
//!    between two states: eight look-ups are under way at any time.
//! 2. The bit buffer carries a sentinel bit above its data: the number of consumed bits is the
//!    number of leading zeros, and no counter is kept.
//! 3. Bounds are checked once for as many steps as cannot pass them. What remains at the end of
//!    each run is decoded symbol by symbol with every access checked.

pub(crate) mod encode;

use crate::bits::{BitReader, BitWriter};
use crate::coder::run_range;
use crate::error::{Error, Result};
use crate::simd::{Isa, dispatch};
use crate::wire::Reader;

/// Bit streams per coded run of symbols.
pub(crate) const RUNS: usize = 4;
/// Bits of a state, at least and at most.
const MIN_LOG: u32 = 9;
pub(super) const MAX_LOG: u32 = 12;
/// Bits of a state that are worth their time, at most.
const USUAL_LOG: u32 = 11;
/// Symbols of each run that one refill of its bits is enough for.
const PER_STEP: usize = 4;
const _: () = assert!(PER_STEP * MAX_LOG as usize <= 56);
/// Bytes that a load reads.
const WORD: usize = 8;

/// Four bits that announce a run of absent symbols; the next four are its length less two.
const ABSENT_RUN: u32 = 15;

/// Normalized counts (FSE): the number of states of every symbol; they add up to a power of two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NormalizedCounts {
    log: u32,
    pub(super) counts: [u16; 256],
}

impl NormalizedCounts {
    /// About as many states as symbols are frequent, at least one for each that occurs; `None` when
    /// fewer than two do.
    pub(crate) fn for_counts(counts: &[u32; 256]) -> Option<Self> {
        Self::up_to(counts, USUAL_LOG)
    }

    /// As [`for_counts`](Self::for_counts), as finely as is possible: where all depends on it.
    pub(crate) fn finest(counts: &[u32; 256]) -> Option<Self> {
        Self::up_to(counts, MAX_LOG)
    }

    fn up_to(counts: &[u32; 256], log: u32) -> Option<Self> {
        let total: u32 = counts.iter().sum();
        // A large table costs more than it saves on few symbols, and takes longer to build.
        Self::with_log(counts, total.max(1).ilog2().saturating_sub(4).clamp(MIN_LOG, log))
    }

    /// As [`for_counts`](Self::for_counts), with 2^`log` states; `log` must be 9 to 12.
    pub(crate) fn with_log(counts: &[u32; 256], log: u32) -> Option<Self> {
        let total: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        if counts.iter().filter(|&&count| count > 0).count() < 2 {
            return None;
        }
        let size = 1u64 << log;
        let mut states = [0u16; 256];
        for (states, &count) in states.iter_mut().zip(counts) {
            if count > 0 {
                let share = (2 * u64::from(count) * size + total) / (2 * total);
                *states = share.clamp(1, size - 1) as u16;
            }
        }
        // The rounding error goes to the symbols where it saves most, or comes from where it costs
        // least; ties go to the lowest symbol.
        let value = |s: usize, states: u16| (u64::from(counts[s]) << 20) / u64::from(states);
        let mut sum: u64 = states.iter().map(|&states| u64::from(states)).sum();
        let used = (0..256).filter(|&s| states[s] > 0);
        if sum < size {
            let mut values: Vec<(u64, usize)> = used.map(|s| (value(s, states[s]), s)).collect();
            while sum < size {
                let most = values.iter_mut().max_by_key(|(value, s)| (*value, !*s))?;
                states[most.1] += 1;
                most.0 = value(most.1, states[most.1]);
                sum += 1;
            }
        } else if sum > size {
            let several = used.filter(|&s| states[s] > 1);
            let mut values: Vec<(u64, usize)> = several.map(|s| (value(s, states[s] - 1), s)).collect();
            while sum > size {
                let least = values.iter_mut().filter(|(_, s)| states[*s] > 1).min()?;
                states[least.1] -= 1;
                least.0 = value(least.1, (states[least.1] - 1).max(1));
                sum -= 1;
            }
        }
        Some(Self { log, counts: states })
    }

    /// Writes the log of the number of states, first and last symbol, then for each of the symbols
    /// between them four bits, the number of bits of its number of states, and those but the
    /// highest.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let first = self.counts.iter().position(|&count| count > 0).unwrap_or(0);
        let last = self.counts.iter().rposition(|&count| count > 0).unwrap_or(0);
        out.extend([self.log as u8, first as u8, last as u8]);
        let mut bits = BitWriter::default();
        let mut at = first;
        while at <= last {
            let absent = self.counts[at..=last].iter().take_while(|&&count| count == 0).count();
            if absent >= 2 {
                let run = absent.min(17);
                bits.put(ABSENT_RUN as u64, 4, out);
                bits.put((run - 2) as u64, 4, out);
                at += run;
                continue;
            }
            let count = u64::from(self.counts[at]);
            let width = u64::BITS - count.leading_zeros();
            bits.put(u64::from(width), 4, out);
            bits.put(count ^ (1 << width >> 1), width.saturating_sub(1), out);
            at += 1;
        }
        bits.finish(out);
    }

    /// Reads what [`write`](Self::write) wrote.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let log = u32::from(reader.u8()?);
        if !(MIN_LOG..=MAX_LOG).contains(&log) {
            return Err(Error::corrupt(format_args!("states of {log} bits")));
        }
        let (first, last) = (usize::from(reader.u8()?), usize::from(reader.u8()?));
        let mut counts = [0u16; 256];
        let (mut word, mut available) = (0u32, 0u32);
        let mut take = |reader: &mut Reader<'_>, width: u32| -> Result<u32> {
            while available < width {
                word |= u32::from(reader.u8()?) << available;
                available += 8;
            }
            let bits = word & ((1 << width) - 1);
            word >>= width;
            available -= width;
            Ok(bits)
        };
        let (mut at, mut sum) = (first, 0u32);
        while at <= last {
            match take(reader, 4)? {
                0 => at += 1,
                ABSENT_RUN => at += take(reader, 4)? as usize + 2,
                width if width <= MAX_LOG => {
                    let count = 1 << (width - 1) | take(reader, width - 1)?;
                    counts[at] = count as u16;
                    sum += count;
                    at += 1;
                }
                width => return Err(Error::corrupt(format_args!("{width} bits of a number of states"))),
            }
        }
        if at != last + 1 || word != 0 || sum != 1 << log {
            return Err(Error::corrupt("states that do not add up"));
        }
        Ok(Self { log, counts })
    }

    /// The logarithm of the number of states.
    pub(crate) fn log(&self) -> u32 {
        self.log
    }

    pub(super) fn size(&self) -> usize {
        1 << self.log
    }

    /// The symbol of every state.
    pub(super) fn spread(&self) -> Vec<u8> {
        let size = self.size();
        let step = (size >> 1) + (size >> 3) + 3;
        let mut symbols = vec![0; size];
        let mut at = 0;
        for (symbol, &count) in self.counts.iter().enumerate() {
            for _ in 0..count {
                symbols[at] = symbol as u8;
                at = (at + step) & (size - 1);
            }
        }
        symbols
    }
}

/// The decoder's table. An entry has the bits to read in byte 0, the symbol in byte 1 and what the
/// bits are added to in the upper half.
pub(crate) struct Table(Box<[u32; 1 << MAX_LOG]>);

impl Default for Table {
    fn default() -> Self {
        Self(Box::new([0; 1 << MAX_LOG]))
    }
}

impl Table {
    pub(crate) fn build(&mut self, states: &NormalizedCounts) {
        fill(states, self.0.as_mut_slice());
    }

    /// Decodes the bit streams of these lengths, which `stored` consists of, to fill `out`.
    pub(crate) fn decode(
        &self,
        states: &NormalizedCounts,
        stored: &[u8],
        lens: [usize; RUNS],
        out: &mut [u8],
    ) -> Result<()> {
        let total = out.len();
        let (mut stored, mut rest) = (stored, out);
        let mut runs = Vec::with_capacity(RUNS);
        for (index, len) in lens.into_iter().enumerate() {
            let Some((bits, others)) = stored.split_at_checked(len) else {
                return Err(Error::corrupt("a coded stream is too short"));
            };
            stored = others;
            let (out, tail) = rest.split_at_mut(run_range(index, RUNS, total).len());
            rest = tail;
            runs.push(Run::new(bits, out, states.log)?);
        }
        if !stored.is_empty() {
            return Err(Error::corrupt("a coded stream is too long"));
        }
        if let [a, b, c, d] = runs.as_mut_slice() {
            advance([a, b, c, d], &self.0);
        }
        runs.into_iter().try_for_each(|run| run.finish(&self.0))
    }
}

/// Fills a table. Entries lead to states below their number only, whatever bits are read.
pub(crate) fn fill(states: &NormalizedCounts, table: &mut [u32]) {
    let mut next = states.counts.map(u32::from);
    for (entry, symbol) in table.iter_mut().zip(states.spread()) {
        let rank = &mut next[usize::from(symbol)];
        let bits = states.log - rank.ilog2();
        let base = (*rank << bits) - states.size() as u32;
        *rank += 1;
        *entry = base << 16 | u32::from(symbol) << 8 | bits;
    }
}

/// The decoder's state of one run.
struct Run<'a> {
    bits: &'a [u8],
    /// Bits of `bits` that are consumed.
    at: usize,
    out: &'a mut [u8],
    /// Symbols of `out` that are done.
    done: usize,
    states: [u32; 2],
}

impl<'a> Run<'a> {
    fn new(bits: &'a [u8], out: &'a mut [u8], log: u32) -> Result<Self> {
        let mut run = Self { bits, at: 0, out, done: 0, states: [0; 2] };
        if !run.out.is_empty() {
            run.states = [run.take(log)?, run.take(log)?];
        }
        Ok(run)
    }

    /// The next `width` bits.
    fn take(&mut self, width: u32) -> Result<u32> {
        let bits = BitReader::starting_at(self.bits, self.at).take(width)?;
        self.at += width as usize;
        Ok(bits as u32)
    }

    /// Steps that stay inside input and output, whatever the bits are.
    fn safe_steps(&self) -> usize {
        // A step reads a word and moves on by at most seven bytes.
        let input = self.bits.len().saturating_sub(self.at / 8 + WORD) / 7;
        input.min((self.out.len() - self.done) / PER_STEP)
    }

    /// Decodes the rest symbol by symbol, and checks that nothing but zero bits remains.
    fn finish(mut self, table: &[u32; 1 << MAX_LOG]) -> Result<()> {
        for i in self.done..self.out.len() {
            let entry = table[self.states[i % 2] as usize % table.len()];
            self.out[i] = (entry >> 8) as u8;
            self.states[i % 2] = (entry >> 16) + self.take(entry & 0xff)?;
        }
        let left = self.bits.len() * 8 - self.at;
        let padding = self.bits.last().map_or(0, |&last| u32::from(last) >> (8 - left.min(8)));
        if self.states != [0; 2] || left >= 8 || padding != 0 {
            return Err(Error::corrupt("a coded stream does not end where it should"));
        }
        Ok(())
    }
}

dispatch! {
    /// Decodes whole steps of all runs at once, as far as they are safe.
    fn advance(runs: [&mut Run<'_>; RUNS], table: &[u32; 1 << MAX_LOG]) = advance_with
}

#[inline(always)]
fn advance_with(_: impl Isa, runs: [&mut Run<'_>; RUNS], table: &[u32; 1 << MAX_LOG]) {
    // `done` is even before every step, so that symbols alternate between states.
    loop {
        let steps = runs.iter().map(|run| run.safe_steps()).min().unwrap_or(0);
        if steps == 0 {
            return;
        }
        let mut states: [[u32; 2]; RUNS] = std::array::from_fn(|r| runs[r].states);
        let mut at: [usize; RUNS] = std::array::from_fn(|r| runs[r].at);
        // Pointers of their own: a byte stored through a run might change it, for all that is known.
        let inputs: [*const u8; RUNS] = std::array::from_fn(|r| runs[r].bits.as_ptr());
        let outputs: [*mut u8; RUNS] = std::array::from_fn(|r| runs[r].out[runs[r].done..].as_mut_ptr());
        for step in 0..steps {
            let mut words = [0u64; RUNS];
            for r in 0..RUNS {
                let mut word = [0; WORD];
                // SAFETY: at most seven bytes are consumed per step, and `safe_steps` counted as
                // many steps as leave a whole word to read.
                unsafe { std::ptr::copy_nonoverlapping(inputs[r].add(at[r] / 8), word.as_mut_ptr(), WORD) };
                // At least 57 bits, of which 56 are kept, and the sentinel above them.
                words[r] = u64::from_le_bytes(word) >> (at[r] % 8) | 1 << 63;
            }
            for i in 0..PER_STEP {
                for r in 0..RUNS {
                    // SAFETY: every state is below the number of states: those that `Run::new`
                    // read have as many bits, and entries lead nowhere else.
                    let entry = unsafe { *table.get_unchecked(states[r][i % 2] as usize) };
                    let bits = entry & 0xff;
                    // SAFETY: `safe_steps` counted the symbols that are missing.
                    unsafe { *outputs[r].add(step * PER_STEP + i) = (entry >> 8) as u8 };
                    states[r][i % 2] = (entry >> 16) + (words[r] & !(u64::MAX << bits)) as u32;
                    words[r] >>= bits;
                }
            }
            for r in 0..RUNS {
                at[r] += words[r].leading_zeros() as usize;
            }
        }
        for r in 0..RUNS {
            runs[r].states = states[r];
            runs[r].at = at[r];
            runs[r].done += steps * PER_STEP;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counts_of(symbols: &[u8]) -> [u32; 256] {
        crate::kernel::histogram::exact(symbols)
    }

    fn check(symbols: &[u8]) {
        let Some(states) = NormalizedCounts::for_counts(&counts_of(symbols)) else { return };
        let mut written = Vec::new();
        states.write(&mut written);
        let mut reader = Reader::new(&written);
        assert_eq!(NormalizedCounts::read(&mut reader).unwrap(), states);
        assert_eq!(reader.remaining(), 0);
        let mut stored = Vec::new();
        let lens = encode::encode(symbols, &states, &mut stored, &mut encode::TansScratch::default())
            .map(|len| len as usize);
        let mut table = Table::default();
        table.build(&states);
        let mut out = vec![0; symbols.len()];
        table.decode(&states, &stored, lens, &mut out).unwrap();
        assert!(out == symbols);
        // The careful loop alone is the naive twin.
        let mut naive = vec![0; run_range(0, RUNS, symbols.len()).len()];
        Run::new(&stored[..lens[0]], &mut naive, states.log).unwrap().finish(&table.0).unwrap();
        assert!(naive == symbols[run_range(0, RUNS, symbols.len())]);
    }

    proptest! {
        #[test]
        fn symbols_survive(symbols in prop::collection::vec(0u8..20, 0..3000)) {
            check(&symbols);
        }

        #[test]
        fn skewed_symbols_survive(symbols in prop::collection::vec(any::<u32>(), 0..40000)) {
            let symbols: Vec<u8> = symbols.iter().map(|v| (v | 1 << 20).trailing_zeros() as u8 + 90).collect();
            check(&symbols);
        }

        #[test]
        fn all_bytes_survive(symbols in prop::collection::vec(any::<u8>(), 0..5000)) {
            check(&symbols);
        }

        #[test]
        fn damaged_streams_never_panic(
            symbols in prop::collection::vec(0u8..9, 2..600),
            noise in prop::collection::vec(any::<u8>(), 0..400),
            cut in 0usize..400,
        ) {
            if let Some(states) = NormalizedCounts::for_counts(&counts_of(&symbols)) {
                let mut table = Table::default();
                table.build(&states);
                let mut out = vec![0; symbols.len()];
                let q = cut.min(noise.len()) / 4;
                let _ = table.decode(&states, &noise, [q, q, q, noise.len() - 3 * q], &mut out);
            }
        }

        #[test]
        fn hostile_tables_are_refused_or_sound(bytes in prop::collection::vec(any::<u8>(), 0..200), log in 9u8..13) {
            let bytes = [&[log], &bytes[..]].concat();
            if let Ok(states) = NormalizedCounts::read(&mut Reader::new(&bytes)) {
                Table::default().build(&states);
            }
        }
    }
}
