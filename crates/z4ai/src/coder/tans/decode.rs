//! The tANS decoder.

use crate::bits::BitReader;
use crate::coder::run_range;
use crate::coder::tans::order_one::MAX_TOTAL_LOG;
use crate::coder::tans::{MAX_DESCRIBED_LOG, NormalizedCounts, OrderOne, RUNS};
use crate::error::{Error, Result};
use crate::simd::{Isa, dispatch};

/// Symbols of each run that one refill of its bits is enough for. (structural)
const PER_STEP: usize = 4;
const _: () = assert!(PER_STEP * MAX_DESCRIBED_LOG as usize <= 56);
/// Bytes that a load reads. (structural: bytes of a word)
const WORD: usize = 8;
/// Symbols of each run that [`run_interleaved`] decodes before they are copied to their place.
/// (case: streams in the cache; 64 are 1 % slower, 256 the same)
const STAGED: usize = 128;

/// Entries of a table, and of those of all contexts. (format)
const ENTRIES: usize = 1 << MAX_TOTAL_LOG;

/// The decoder's table.
pub(crate) struct Table(Box<Entries>);

/// A table, and state of [`run_interleaved`], which has no register left for a second base address.
#[repr(C)]
struct Entries {
    /// The bits to read in byte 0, the symbol in byte 1 and what the bits are added to in the upper half.
    entries: [u32; ENTRIES],
    /// Meaningful inside [`run_interleaved`] only, as is all that follows.
    states: [[u32; 2]; RUNS],
    sentinel: u64,
    staged: [[u8; STAGED]; RUNS],
}

impl Default for Table {
    fn default() -> Self {
        Self(Box::new(Entries {
            entries: [0; ENTRIES],
            states: [[0; 2]; RUNS],
            sentinel: SENTINEL,
            staged: [[0; STAGED]; RUNS],
        }))
    }
}

impl Table {
    pub(crate) fn build(&mut self, states: &NormalizedCounts) {
        fill(states, self.0.entries.as_mut_slice());
    }

    /// Makes the tables of all contexts; entries lead into the table that their symbol leads to.
    pub(crate) fn build_order_one(&mut self, order_one: &OrderOne) {
        let log = order_one.log();
        let offsets = order_one.context_of.map(|context| u32::from(context) << log << 16);
        for (table, entries) in order_one.tables.iter().zip(self.0.entries.chunks_exact_mut(1 << log)) {
            fill(&table.states, entries);
            entries.iter_mut().for_each(|entry| *entry += offsets[usize::from((*entry >> 8) as u8)]);
        }
    }

    /// Decodes the bit streams of these lengths, which `stored` consists of, to fill `out`. States have `log` bits.
    pub(crate) fn decode(
        &mut self,
        log: u32,
        stored: &[u8],
        lens: [usize; RUNS],
        out: &mut [u8],
    ) -> Result<()> {
        self.decode_runs::<false>(log, stored, lens, out)
    }

    /// As [`decode`](Self::decode), by the tables of [`build_order_one`](Self::build_order_one).
    pub(crate) fn decode_order_one(
        &mut self,
        order_one: &OrderOne,
        stored: &[u8],
        lens: [usize; RUNS],
        out: &mut [u8],
    ) -> Result<()> {
        self.decode_runs::<true>(order_one.log(), stored, lens, out)
    }

    /// Decodes parts by a table each, one after the other: a part starts with the states that the one before ended with.
    /// All tables have as many states.
    pub(super) fn decode_parts(
        &mut self,
        parts: Vec<(&NormalizedCounts, &mut [u8])>,
        stored: &[u8],
        lens: [usize; RUNS],
    ) -> Result<()> {
        let log = parts.first().map_or(0, |(states, _)| states.log);
        let mut runs = Vec::with_capacity(RUNS);
        for (index, bits) in split_streams(stored, lens)?.into_iter().enumerate() {
            let mut run = Run::new(bits, &mut [], log)?;
            if parts.iter().any(|(_, symbols)| !run_range(index, RUNS, symbols.len()).is_empty()) {
                run.states = [run.take(log)?, run.take(log)?];
            }
            runs.push(run);
        }
        for (states, mut symbols) in parts {
            self.build(states);
            let total = symbols.len();
            for (index, run) in runs.iter_mut().enumerate() {
                (run.out, symbols) = symbols.split_at_mut(run_range(index, RUNS, total).len());
                run.done = 0;
            }
            if let Some(runs) = runs.first_chunk_mut() {
                advance::<false>(runs, &mut self.0);
            }
            for run in &mut runs {
                run.finish_symbols::<false>(&self.0.entries)?;
                // States take turns over all parts.
                if run.out.len() % 2 == 1 {
                    run.states.swap(0, 1);
                }
            }
        }
        runs.iter().try_for_each(|run| run.check_end(log))
    }

    /// With `HALVES`, the two states of a run decode a half of it each; else they take turns.
    fn decode_runs<const HALVES: bool>(
        &mut self,
        log: u32,
        stored: &[u8],
        lens: [usize; RUNS],
        out: &mut [u8],
    ) -> Result<()> {
        let total = out.len();
        let mut rest = out;
        let mut runs = Vec::with_capacity(RUNS);
        for (index, bits) in split_streams(stored, lens)?.into_iter().enumerate() {
            let (out, tail) = rest.split_at_mut(run_range(index, RUNS, total).len());
            rest = tail;
            runs.push(Run::new(bits, out, log)?);
        }
        if let Some(runs) = runs.first_chunk_mut() {
            advance::<HALVES>(runs, &mut self.0);
        }
        runs.into_iter().try_for_each(|run| run.finish::<HALVES>(&self.0.entries, log))
    }
}

/// The bit streams of these lengths, which `stored` consists of.
fn split_streams(mut stored: &[u8], lens: [usize; RUNS]) -> Result<[&[u8]; RUNS]> {
    let mut streams = [stored; RUNS];
    for (stream, len) in streams.iter_mut().zip(lens) {
        let Some((bits, others)) = stored.split_at_checked(len) else {
            return Err(Error::corrupt("a coded stream is too short"));
        };
        (*stream, stored) = (bits, others);
    }
    if !stored.is_empty() {
        return Err(Error::corrupt("a coded stream is too long"));
    }
    Ok(streams)
}

/// The bit above those of a word. (structural)
const SENTINEL: u64 = 1 << 63;

dispatch! {
    /// Fills a table. Entries lead to states below their number only, whatever bits are read.
    pub(crate) fn fill(states: &NormalizedCounts, table: &mut [u32]) = fill_with
}

#[inline(always)]
fn fill_with(_: impl Isa, states: &NormalizedCounts, table: &mut [u32]) {
    /// Ranks whose entries are made once. (structural: where many symbols share a table, each has few states)
    const FEW: usize = 256;
    let table = &mut table[..states.size()];
    // All of an entry but its symbol follows from the rank of the state among those of the symbol.
    let entry = |rank: u16| {
        let bits = states.log - rank.ilog2();
        ((u32::from(rank) << bits) - states.size() as u32) << 16 | bits
    };
    let most = usize::from(states.counts.into_iter().max().unwrap_or(0));
    if 2 * most > FEW {
        let mut next = states.counts;
        return states.for_each_state(|state, symbol| {
            let rank = &mut next[usize::from(symbol)];
            table[state] = entry(*rank) | u32::from(symbol) << 8;
            *rank += 1;
        });
    }
    let mut by_rank = [0; FEW];
    (1..2 * most).for_each(|rank| by_rank[rank] = entry(rank as u16));
    let mut next = states.counts.map(|count| count as u8);
    states.for_each_state(|state, symbol| {
        let rank = &mut next[usize::from(symbol)];
        table[state] = by_rank[usize::from(*rank)] | u32::from(symbol) << 8;
        *rank = rank.wrapping_add(1);
    });
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

    /// Where the symbol number `place` of the bit stream is in `out`.
    #[inline(always)]
    fn index<const HALVES: bool>(&self, place: usize) -> usize {
        if HALVES { place / 2 + place % 2 * self.out.len().div_ceil(2) } else { place }
    }

    /// Decodes the rest symbol by symbol, and checks that nothing but zero bits remains. States have `log` bits.
    fn finish<const HALVES: bool>(mut self, table: &[u32; ENTRIES], log: u32) -> Result<()> {
        self.finish_symbols::<HALVES>(table)?;
        self.check_end(log)
    }

    /// Decodes the rest symbol by symbol.
    fn finish_symbols<const HALVES: bool>(&mut self, table: &[u32; ENTRIES]) -> Result<()> {
        for i in self.done..self.out.len() {
            let entry = table[self.states[i % 2] as usize % table.len()];
            let index = self.index::<HALVES>(i);
            self.out[index] = (entry >> 8) as u8;
            self.states[i % 2] = (entry >> 16) + self.take(entry & 0xff)?;
        }
        self.done = self.out.len();
        Ok(())
    }

    /// Checks that both states are the last ones, and that nothing but zero bits remains.
    fn check_end(&self, log: u32) -> Result<()> {
        let left = self.bits.len() * 8 - self.at;
        let padding = self.bits.last().map_or(0, |&last| u32::from(last) >> (8 - left.min(8)));
        // Whatever the table is that the last symbol leads to.
        if self.states.iter().any(|state| state % (1 << log) != 0) || left >= 8 || padding != 0 {
            return Err(Error::corrupt("a coded stream does not end where it should"));
        }
        Ok(())
    }
}

/// Decodes whole steps of all runs at once, as far as they are safe.
fn advance<const HALVES: bool>(runs: &mut [Run<'_>; RUNS], table: &mut Entries) {
    #[cfg(target_arch = "x86_64")]
    if crate::simd::Avx2::new().is_some() {
        // SAFETY: the features were detected, and `advance_with` takes no more steps than are safe.
        return advance_with(runs, table, |runs, table, steps| unsafe {
            run_interleaved::<HALVES>(runs, table, steps);
        });
    }
    advance_with(runs, table, run_portable::<HALVES>);
}

#[inline(always)]
fn advance_with(
    runs: &mut [Run<'_>; RUNS],
    table: &mut Entries,
    run: impl Fn(&mut [Run<'_>; RUNS], &mut Entries, usize),
) {
    // `done` is even before every step, so that symbols alternate between states.
    loop {
        match runs.iter().map(Run::safe_steps).min().unwrap_or(0) {
            0 => return,
            steps => run(runs, table, steps),
        }
    }
}

/// Runs `steps` safe steps of all runs.
fn run_portable<const HALVES: bool>(runs: &mut [Run<'_>; RUNS], table: &mut Entries, steps: usize) {
    let table = &table.entries;
    let mut states: [[u32; 2]; RUNS] = std::array::from_fn(|r| runs[r].states);
    let mut at: [usize; RUNS] = std::array::from_fn(|r| runs[r].at);
    // Pointers of their own: a byte stored through a run might change it, for all that is
    // known.
    let inputs: [*const u8; RUNS] = std::array::from_fn(|r| runs[r].bits.as_ptr());
    // Of both states, which write every other symbol, or one half each.
    let stride = if HALVES { 1 } else { 2 };
    let outputs: [[*mut u8; 2]; RUNS] = std::array::from_fn(|r| {
        let run = &mut runs[r];
        [0, 1].map(|state| {
            let index = run.index::<HALVES>(run.done + state);
            run.out[index..].as_mut_ptr()
        })
    });
    for step in 0..steps {
        let mut words = [0u64; RUNS];
        for r in 0..RUNS {
            let mut word = [0; WORD];
            // SAFETY: at most seven bytes are consumed per step, and `safe_steps` counted as
            // many steps as leave a whole word to read.
            unsafe { std::ptr::copy_nonoverlapping(inputs[r].add(at[r] / 8), word.as_mut_ptr(), WORD) };
            // At least 57 bits, of which 56 are kept, and the sentinel above them.
            words[r] = u64::from_le_bytes(word) >> (at[r] % 8) | SENTINEL;
        }
        for i in 0..PER_STEP {
            for r in 0..RUNS {
                // SAFETY: every state is below the number of states: those that `Run::new`
                // read have as many bits, and entries lead nowhere else.
                let entry = unsafe { *table.get_unchecked(states[r][i % 2] as usize) };
                let bits = entry & 0xff;
                // SAFETY: `safe_steps` counted the symbols that are missing.
                unsafe { *outputs[r][i % 2].add((step * PER_STEP + i) / 2 * stride) = (entry >> 8) as u8 };
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

/// As [`run_portable`]. Assembly: two runs take turns with two others, so that words, states and
/// positions of a turn are in registers; the compiler spills those of four. States of the other two
/// are in memory, and symbols are staged at constant distances from the table, which takes one index instead
/// of four pointers.
///
/// # Safety
///
/// Every run must have `steps` safe steps. The features must have been detected.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
unsafe fn run_interleaved<const HALVES: bool>(runs: &mut [Run<'_>; RUNS], table: &mut Entries, steps: usize) {
    use std::mem::offset_of;
    // Addresses of bits: one register says where a run is.
    let address = |run: &Run<'_>| run.bits.as_ptr().expose_provenance() * 8;
    let [mut at0, mut at1, mut at2, mut at3] = std::array::from_fn(|r| address(&runs[r]) + runs[r].at);
    table.states = std::array::from_fn(|r| runs[r].states);
    // A word from where the run is, and the sentinel.
    macro_rules! refill {
        ($at:literal, $word:literal) => {
            concat!(
                "mov {x}, {",
                $at,
                "}\n",
                "mov {",
                $word,
                ":e}, {",
                $at,
                ":e}\n",
                "shr {x}, 3\n",
                "and {",
                $word,
                ":e}, 7\n",
                "shrx {",
                $word,
                "}, [{x}], {",
                $word,
                "}\n",
                "or {",
                $word,
                "}, [rdi + {sentinel}]\n",
            )
        };
    }
    macro_rules! symbol {
        ($state:literal, $word:literal, $run:literal, $place:literal) => {
            concat!(
                "movzx {entry:e}, word ptr [rdi + 4*{",
                $state,
                "}]\n",
                "movzx {",
                $state,
                ":e}, word ptr [rdi + 4*{",
                $state,
                "} + 2]\n",
                "bzhi {x}, {",
                $word,
                "}, {entry:r}\n",
                "shrx {",
                $word,
                "}, {",
                $word,
                "}, {entry:r}\n",
                "mov byte ptr [rdi + rsi + {staged} + ",
                $run,
                " + ",
                $place,
                "], {entry:h}\n",
                "add {",
                $state,
                "}, {x}\n",
            )
        };
    }
    macro_rules! consume {
        ($at:literal, $word:literal) => {
            concat!("lzcnt {x}, {", $word, "}\n", "add {", $at, "}, {x}\n")
        };
    }
    // A step of two runs: their positions, offsets of their states, of their staged symbols, and of the four symbols
    // of a step.
    macro_rules! turn {
        ($at_a:literal, $at_b:literal, $states:literal, $a:literal, $b:literal,
         $p0:literal, $p1:literal, $p2:literal, $p3:literal) => {
            concat!(
                "mov {a0:e}, [rdi + {states} + ",
                $states,
                "]\n",
                "mov {a1:e}, [rdi + {states} + ",
                $states,
                " + 4]\n",
                "mov {b0:e}, [rdi + {states} + ",
                $states,
                " + 8]\n",
                "mov {b1:e}, [rdi + {states} + ",
                $states,
                " + 12]\n",
                refill!($at_a, "a"),
                refill!($at_b, "b"),
                symbol!("a0", "a", $a, $p0),
                symbol!("b0", "b", $b, $p0),
                symbol!("a1", "a", $a, $p1),
                symbol!("b1", "b", $b, $p1),
                symbol!("a0", "a", $a, $p2),
                symbol!("b0", "b", $b, $p2),
                symbol!("a1", "a", $a, $p3),
                symbol!("b1", "b", $b, $p3),
                consume!($at_a, "a"),
                consume!($at_b, "b"),
                "mov [rdi + {states} + ",
                $states,
                "], {a0:e}\n",
                "mov [rdi + {states} + ",
                $states,
                " + 4], {a1:e}\n",
                "mov [rdi + {states} + ",
                $states,
                " + 8], {b0:e}\n",
                "mov [rdi + {states} + ",
                $states,
                " + 12], {b1:e}\n",
            )
        };
    }
    // Steps from an index, which is below 0, up to 0.
    macro_rules! steps {
        ($from:expr, $end:expr, $step:literal, $($places:literal),*) => {
            // SAFETY: every state is below the number of states: those that `Run::new` read have as many
            // bits, and entries lead nowhere else. A step moves a run on by at most 48 bits and reads a
            // word from where it is, which `safe_steps` counted. Symbols are staged from the index on,
            // which is as many below the end as are decoded: no more than there is room for.
            unsafe {
                std::arch::asm!(
                    "2:",
                    turn!("at0", "at1", "0", "0", "128", $($places),*),
                    turn!("at2", "at3", "16", "256", "384", $($places),*),
                    concat!("add rsi, ", $step),
                    "jnz 2b",
                    at0 = inout(reg) at0, at1 = inout(reg) at1, at2 = inout(reg) at2, at3 = inout(reg) at3,
                    a = out(reg) _, a0 = out(reg) _, a1 = out(reg) _,
                    b = out(reg) _, b0 = out(reg) _, b1 = out(reg) _,
                    x = out(reg) _,
                    entry = out(reg_abcd) _,
                    // Low registers, since a high byte is stored relative to them.
                    in("rdi") &raw mut *table,
                    inout("rsi") $from => _,
                    states = const offset_of!(Entries, states),
                    sentinel = const offset_of!(Entries, sentinel),
                    staged = const offset_of!(Entries, staged) + $end,
                    options(nostack),
                );
            }
        };
    }
    const _: () = assert!(PER_STEP == 4 && STAGED == 128 && RUNS == 4);
    let mut left = steps;
    while left > 0 {
        let now = left.min(STAGED / PER_STEP);
        let symbols = now * PER_STEP;
        if HALVES {
            // The symbols of each state in a half of what is staged.
            steps!(-(symbols as isize / 2), STAGED / 2, "2", "0", "64", "1", "65");
        } else {
            steps!(-(symbols as isize), STAGED, "4", "0", "1", "2", "3");
        }
        for (run, staged) in runs.iter_mut().zip(&table.staged) {
            if HALVES {
                let at = [run.done, run.done + 1].map(|place| run.index::<HALVES>(place));
                for (at, staged) in at.into_iter().zip(staged.as_chunks::<{ STAGED / 2 }>().0) {
                    copy_staged(staged, symbols / 2, &mut run.out[at..]);
                }
            } else {
                copy_staged(staged, symbols, &mut run.out[run.done..]);
            }
            run.done += symbols;
        }
        left -= now;
    }
    for (r, at) in [at0, at1, at2, at3].into_iter().enumerate() {
        runs[r].at = at - address(&runs[r]);
        runs[r].states = table.states[r];
    }
}

/// Copies the last `symbols` of what is staged to the start of `out`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn copy_staged<const N: usize>(staged: &[u8; N], symbols: usize, out: &mut [u8]) {
    match out.first_chunk_mut() {
        // Of known length, without a call.
        Some(out) if symbols == N => *out = *staged,
        _ => out[..symbols].copy_from_slice(&staged[N - symbols..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coder::tans::encode;
    use crate::wire::Reader;
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
        table.decode(states.log, &stored, lens, &mut out).unwrap();
        assert!(out == symbols);
        // The careful loop alone is the naive twin.
        let mut naive = vec![0; run_range(0, RUNS, symbols.len()).len()];
        Run::new(&stored[..lens[0]], &mut naive, states.log)
            .unwrap()
            .finish::<false>(&table.0.entries, states.log)
            .unwrap();
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
                let _ = table.decode(states.log, &noise, [q, q, q, noise.len() - 3 * q], &mut out);
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
