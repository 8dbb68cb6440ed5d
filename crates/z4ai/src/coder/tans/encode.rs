//! The tANS encoder.
//!
//! The decoder runs forwards, so the encoder walks the symbols backwards and writes bits from the
//! end of a buffer towards its start.
//!
//! The state transitions are a chain of dependent look-ups; everything else is off that chain. Four
//! chains walk a block of symbols and record bits and widths; then the bits of four symbols at a
//! time are concatenated, vectorised over many groups, and appended.

use crate::coder::run_range;
use crate::coder::tans::{MAX_DESCRIBED_LOG, NormalizedCounts, RUNS};

/// Symbols of each run between two stores of its bits. (structural)
const PER_STEP: usize = 4;
// Together with the bits of a partial byte, they fit a word; those of two symbols fit half of one.
const _: () = assert!(PER_STEP * MAX_DESCRIBED_LOG as usize + 7 < 64);
/// Steps per block: states first, then bits. (structural: with them 3 kB, a part of the first-level cache)
const STEPS: usize = 64;
/// Bytes that a store writes. (structural: bytes of a word)
const WORD: usize = 8;
/// Symbols of a table. (structural: values of a byte)
const SYMBOLS: usize = 256;

/// The transition to a symbol, from any state (FSE's symbol transform).
#[derive(Clone, Copy, Default)]
struct SymbolTransform {
    /// The upper half of `state + bits` is the number of bits to write.
    bits: u32,
    /// The index of the previous state is the remaining state plus this.
    next: u32,
}

/// The encoder of some tables of one size.
struct Encoder {
    /// The transforms of each table's symbols.
    transforms: Vec<SymbolTransform>,
    /// The states of each symbol in their order, symbol after symbol, plus the number of states;
    /// table after table. At least twice as many as a table has.
    states: Vec<u16>,
    log: u32,
}

impl Encoder {
    fn new(tables: &[NormalizedCounts]) -> Self {
        let log = tables.first().map_or(0, NormalizedCounts::log);
        let size = 1u32 << log;
        let mut transforms = vec![SymbolTransform::default(); tables.len() * SYMBOLS];
        let mut places = vec![size as u16; tables.len().max(2) << log];
        let mut start = 0u32;
        for (states, transforms) in tables.iter().zip(transforms.chunks_exact_mut(SYMBOLS)) {
            assert!(states.log() == log, "tables of one size");
            let mut starts = [0u32; SYMBOLS];
            for (symbol, &count) in states.counts.iter().enumerate().filter(|&(_, &count)| count > 0) {
                let count = u32::from(count);
                // One bit less from states that are lower than the symbol's states times this power
                // of two.
                let most = log - count.ilog2();
                transforms[symbol] =
                    SymbolTransform { bits: (most << 16) - (count << most), next: start.wrapping_sub(count) };
                starts[symbol] = start;
                start += count;
            }
            states.for_each_state(|state, symbol| {
                let at = &mut starts[usize::from(symbol)];
                places[*at as usize] = (size + state as u32) as u16;
                *at += 1;
            });
        }
        Self { transforms, states: places, log }
    }

    /// The transition from a state to the previous one, which decodes to the symbol of `transform`.
    /// Returns in its upper half the number of the state's lowest bits to write, at most [`MAX_DESCRIBED_LOG`], and
    /// in its lower half those bits: `transform.bits` has zeros there.
    #[inline(always)]
    fn step(&self, state: &mut u32, transform: SymbolTransform) -> u32 {
        let found = state.wrapping_add(transform.bits);
        let width = found >> 16;
        let place = (*state >> width).wrapping_add(transform.next) as usize;
        debug_assert!(place < self.states.len());
        // SAFETY: a state is at least `size` and below twice that, as all are that there are. The
        // width leaves of it at least as much as the symbol has states, and less than twice as
        // much, so that the place is one of the symbol's. A symbol without states leaves all of it,
        // and there are twice as many states as a table has.
        *state = u32::from(unsafe { *self.states.get_unchecked(place) });
        found
    }
}

/// A symbol, and the table it is coded with.
trait Symbol: Copy {
    /// Above all that are in `symbols`.
    fn end(symbols: &[Self]) -> usize;
    fn index(self) -> usize;
}

/// In the first table.
impl Symbol for u8 {
    fn end(_: &[Self]) -> usize {
        SYMBOLS
    }

    #[inline(always)]
    fn index(self) -> usize {
        usize::from(self)
    }
}

/// In the table of the upper half.
impl Symbol for u16 {
    fn end(symbols: &[Self]) -> usize {
        usize::from(symbols.iter().fold(0, |most, &symbol| most.max(symbol))) + 1
    }

    #[inline(always)]
    fn index(self) -> usize {
        usize::from(self)
    }
}

/// A bit writer from the end of a buffer to its start.
#[derive(Clone, Copy)]
struct ReverseBitWriter {
    /// The pending bits, lowest; bits above are unspecified.
    word: u64,
    /// How many they are.
    count: u32,
    /// Bytes of the buffer that are not written yet.
    at: usize,
}

impl ReverseBitWriter {
    /// For a buffer of this length, which must have room for a word more than is written.
    fn new(len: usize) -> Self {
        Self { word: 0, count: 0, at: len }
    }

    /// Prepends bits. At most 56 fit between two stores.
    #[inline(always)]
    fn put(&mut self, bits: u64, width: u32) {
        self.word = self.word << width | bits;
        self.count += width;
    }

    /// Stores all but the bits of a last byte.
    #[inline(always)]
    fn store(&mut self, buffer: &mut [u8]) {
        // In two steps: there may be none.
        let top = self.word << 1 << (u64::BITS - 1 - self.count);
        buffer[self.at - WORD..self.at].copy_from_slice(&top.to_le_bytes());
        self.at -= (self.count / 8) as usize;
        self.count %= 8;
    }

    /// Appends all bits, from the lowest bit of a byte on, to `out`.
    fn finish(mut self, buffer: &mut [u8], out: &mut Vec<u8>) {
        self.store(buffer);
        let shift = (8 - self.count) % 8;
        // The byte that the first bits end in.
        let start = self.at - usize::from(self.count > 0);
        let bytes = &buffer[start..];
        let from = out.len();
        out.extend_from_slice(bytes);
        // From one word, which a vector has several of, to the next.
        let whole = bytes.len().saturating_sub(1) / WORD * WORD;
        let moved = out[from..].as_chunks_mut::<WORD>().0.iter_mut();
        let (words, next) = (bytes[..whole].as_chunks::<WORD>().0, bytes.get(1..).unwrap_or_default());
        for ((to, word), next) in moved.zip(words).zip(next.as_chunks::<WORD>().0) {
            let [word, next] = [word, next].map(|word| u64::from_le_bytes(*word));
            *to = (word >> shift | next >> 56 << 56 << (8 - shift)).to_le_bytes();
        }
        for (i, &byte) in bytes.iter().enumerate().skip(whole) {
            out[from + i] = (u16::from_le_bytes([byte, first_of(&bytes[i + 1..])]) >> shift) as u8;
        }
    }
}

/// The first byte, or 0 if there is none.
fn first_of(bytes: &[u8]) -> u8 {
    bytes.first().copied().unwrap_or(0)
}

/// Buffers that runs are written to: faulting and clearing them for every stream would show.
pub(crate) type TansScratch = [Vec<u8>; RUNS];

/// Appends the four bit streams of `symbols` to `out`, each with two interleaved states; returns
/// their lengths in bytes. Every symbol must have a state.
pub(crate) fn encode(
    symbols: &[u8],
    states: &NormalizedCounts,
    out: &mut Vec<u8>,
    scratch: &mut TansScratch,
) -> [u32; RUNS] {
    encode_runs::<_, 2, 2>(runs_of(symbols), &Encoder::new(std::slice::from_ref(states)), out, scratch)
}

/// As [`encode`] of the symbols in the lower halves by the tables of the upper halves, with one
/// state for each stream. All tables have as many states.
pub(crate) fn encode_by_tables(
    symbols: &[u16],
    tables: &[NormalizedCounts],
    out: &mut Vec<u8>,
    scratch: &mut TansScratch,
) -> [u32; RUNS] {
    encode_runs::<_, 4, 1>(runs_of(symbols), &Encoder::new(tables), out, scratch)
}

/// As [`encode_by_tables`], with two interleaved states for each stream.
pub(super) fn encode_by_two_states(
    symbols: &[u16],
    tables: &[NormalizedCounts],
    out: &mut Vec<u8>,
    scratch: &mut TansScratch,
) -> [u32; RUNS] {
    encode_runs::<_, 2, 2>(runs_of(symbols), &Encoder::new(tables), out, scratch)
}

/// As [`encode_by_two_states`], of runs that are not longer than those before them.
pub(super) fn encode_runs_by_two_states(
    runs: [&[u16]; RUNS],
    tables: &[NormalizedCounts],
    out: &mut Vec<u8>,
    scratch: &mut TansScratch,
) -> [u32; RUNS] {
    encode_runs::<_, 2, 2>(runs, &Encoder::new(tables), out, scratch)
}

/// Symbols as runs of one length, but for the last ones.
fn runs_of<S>(symbols: &[S]) -> [&[S]; RUNS] {
    std::array::from_fn(|index| &symbols[run_range(index, RUNS, symbols.len())])
}

/// Appends the bit streams of `symbols`, `INTERLEAVED` runs at a time, each with `STATES` states.
fn encode_runs<S: Symbol, const INTERLEAVED: usize, const STATES: usize>(
    runs: [&[S]; RUNS],
    encoder: &Encoder,
    out: &mut Vec<u8>,
    scratch: &mut TansScratch,
) -> [u32; RUNS] {
    for run in runs {
        assert!(S::end(run) <= encoder.transforms.len(), "a table for every symbol");
        assert!(run.len() <= runs[0].len() && run.len() >= runs[RUNS - 1].len(), "the longest run first");
    }
    let room = ((runs[0].len() + STATES) * encoder.log as usize).div_ceil(8) + 2 * WORD;
    let mut buffers = scratch.each_mut().map(|buffer| {
        if buffer.len() < room {
            buffer.resize(room, 0);
        }
        &mut buffer[..room]
    });
    let size = 1 << encoder.log;
    let mut current = [[size; STATES]; RUNS];
    let mut bits = [ReverseBitWriter::new(room); RUNS];
    let common = runs[RUNS - 1].len() / PER_STEP * PER_STEP;
    for r in 0..RUNS {
        for i in (common..runs[r].len()).rev() {
            let state = &mut current[r][i % STATES];
            let found = encoder.step(state, encoder.transforms[runs[r][i].index()]);
            bits[r].put(u64::from(found) & !(u64::MAX << (found >> 16)), found >> 16);
            bits[r].store(buffers[r]);
        }
    }
    let whole = runs.map(|run| run[..common].as_chunks().0);
    let together = whole.as_chunks().0.iter().zip(current.as_chunks_mut().0);
    let writers = bits.as_chunks_mut().0.iter_mut().zip(buffers.as_chunks_mut().0);
    for ((runs, states), (bits, buffers)) in together.zip(writers) {
        encode_interleaved::<S, INTERLEAVED, STATES>(encoder, runs, states, bits, buffers);
    }
    std::array::from_fn(|r| {
        let before = out.len();
        if !runs[r].is_empty() {
            for state in current[r].iter().rev() {
                bits[r].put(u64::from(state - size), encoder.log);
            }
            bits[r].finish(buffers[r], out);
        }
        (out.len() - before) as u32
    })
}

/// Encodes the steps of `R` runs of one length, from the last on. Every symbol has a transform.
fn encode_interleaved<S: Symbol, const R: usize, const STATES: usize>(
    encoder: &Encoder,
    runs: &[&[[S; PER_STEP]]; R],
    states: &mut [[u32; STATES]; R],
    bits: &mut [ReverseBitWriter; R],
    buffers: &mut [&mut [u8]; R],
) {
    #[cfg(target_arch = "x86_64")]
    {
        if crate::simd::Avx512::new().is_some() {
            // SAFETY: the features were detected.
            return unsafe { encode_interleaved_avx512(encoder, runs, states, bits, buffers) };
        }
        if crate::simd::Avx2::new().is_some() {
            // SAFETY: the features were detected.
            return unsafe { encode_interleaved_avx2(encoder, runs, states, bits, buffers) };
        }
    }
    encode_interleaved_with(encoder, runs, states, bits, buffers);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512bw,avx512vl")]
fn encode_interleaved_avx512<S: Symbol, const R: usize, const STATES: usize>(
    encoder: &Encoder,
    runs: &[&[[S; PER_STEP]]; R],
    states: &mut [[u32; STATES]; R],
    bits: &mut [ReverseBitWriter; R],
    buffers: &mut [&mut [u8]; R],
) {
    encode_interleaved_with(encoder, runs, states, bits, buffers);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn encode_interleaved_avx2<S: Symbol, const R: usize, const STATES: usize>(
    encoder: &Encoder,
    runs: &[&[[S; PER_STEP]]; R],
    states: &mut [[u32; STATES]; R],
    bits: &mut [ReverseBitWriter; R],
    buffers: &mut [&mut [u8]; R],
) {
    encode_interleaved_with(encoder, runs, states, bits, buffers);
}

/// The widths and bits of a block of steps, as [`Encoder::step`] returns them.
type Found = [[u32; STEPS]; PER_STEP];

/// The concatenated bits of a block of steps.
struct PackedBits {
    words: [u64; STEPS],
    widths: [u32; STEPS],
}

#[inline(always)]
fn encode_interleaved_with<S: Symbol, const R: usize, const STATES: usize>(
    encoder: &Encoder,
    runs: &[&[[S; PER_STEP]]; R],
    states: &mut [[u32; STATES]; R],
    bits: &mut [ReverseBitWriter; R],
    buffers: &mut [&mut [u8]; R],
) {
    let (mut current, mut writers) = (*states, *bits);
    let mut found: [Found; R] = [[[0; STEPS]; PER_STEP]; R];
    let mut joined = PackedBits { words: [0; STEPS], widths: [0; STEPS] };
    let mut end = runs[0].len();
    while end > 0 {
        let steps = (end - 1) % STEPS + 1;
        let parts = runs.map(|run| &run[end - steps..end]);
        for step in (0..steps).rev() {
            for i in (0..PER_STEP).rev() {
                for r in 0..R {
                    let state = &mut current[r][i % STATES];
                    // SAFETY: every symbol was seen to have a transform, and every run to have
                    // these steps.
                    let transform = unsafe {
                        let symbol = parts[r].get_unchecked(step)[i];
                        *encoder.transforms.get_unchecked(symbol.index())
                    };
                    found[r][i][step] = encoder.step(state, transform);
                }
            }
        }
        for r in 0..R {
            join(&found[r], &mut joined);
            for step in (0..steps).rev() {
                writers[r].put(joined.words[step], joined.widths[step]);
                writers[r].store(buffers[r]);
            }
        }
        end -= steps;
    }
    (*states, *bits) = (current, writers);
}

/// The bits of each step's symbols, the first in the lowest.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "several arrays side by side")]
fn join(found: &Found, joined: &mut PackedBits) {
    for step in 0..STEPS {
        let width = |i: usize| found[i][step] >> 16;
        let bits = |i: usize| found[i][step] & !(u32::MAX << (width(i) & 31));
        let pair = |i: usize| bits(i) | bits(i + 1) << (width(i) & 31);
        let first = width(0) + width(1);
        joined.words[step] = u64::from(pair(0)) | u64::from(pair(2)) << (first & 63);
        joined.widths[step] = first + width(2) + width(3);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Encodes the steps of one run.
    type Walk = fn(
        &Encoder,
        &[&[[u16; PER_STEP]]; 1],
        &mut [[u32; 1]; 1],
        &mut [ReverseBitWriter; 1],
        &mut [&mut [u8]; 1],
    );

    /// One bit after the other, from the last symbol on.
    fn naive(run: &[u16], tables: &[NormalizedCounts], states_per_run: usize) -> Vec<u8> {
        let size = tables[0].size();
        // As the format hands states out, one after the other.
        let spread = |table: &NormalizedCounts| {
            let (mut symbols, mut at) = (vec![0; size], 0);
            for (symbol, &count) in table.counts.iter().enumerate() {
                for _ in 0..count {
                    symbols[at] = symbol as u8;
                    at = (at + size / 2 + size / 8 + 3) % size;
                }
            }
            symbols
        };
        let spreads: Vec<Vec<u8>> = tables.iter().map(spread).collect();
        let mut current = vec![0; states_per_run];
        let mut bits = Vec::new();
        let put = |value: usize, width: u32, bits: &mut Vec<usize>| {
            bits.extend((0..width).rev().map(|bit| value >> bit & 1));
        };
        for (i, &symbol) in run.iter().enumerate().rev() {
            let (table, symbol) = (usize::from(symbol >> 8), symbol as u8);
            let own: Vec<usize> = (0..size).filter(|&state| spreads[table][state] == symbol).collect();
            let state: &mut usize = &mut current[i % states_per_run];
            let mut width = 0;
            while (*state + size) >> width >= 2 * own.len() {
                width += 1;
            }
            put(*state, width, &mut bits);
            *state = own[((*state + size) >> width) - own.len()];
        }
        current.iter().rev().for_each(|&state| put(state, tables[0].log(), &mut bits));
        bits.reverse();
        let byte = |bits: &[usize]| bits.iter().enumerate().map(|(i, bit)| (bit << i) as u8).sum();
        if run.is_empty() { Vec::new() } else { bits.chunks(8).map(byte).collect() }
    }

    proptest! {
        #[test]
        fn streams_are_those_of_the_format(
            symbols in prop::collection::vec(any::<u32>(), 2..3000),
            tables in 1usize..5,
            log in 9u32..=12,
        ) {
            // Few symbols of very different counts, each table's shifted.
            let symbols: Vec<u16> = symbols
                .into_iter()
                .map(|v| {
                    let symbol = (v | 1 << 17).trailing_zeros() as usize + tables;
                    ((v as usize >> 24) % tables) << 8 | symbol
                })
                .map(|symbol| symbol as u16)
                .collect();
            let states: Vec<NormalizedCounts> = (0..tables)
                .map(|table| {
                    let mut counts = [0; 256];
                    let own = symbols.iter().filter(|&&symbol| usize::from(symbol >> 8) == table);
                    own.for_each(|&symbol| counts[usize::from(symbol as u8)] += 1);
                    counts[254] += 1;
                    counts[255] += 1;
                    NormalizedCounts::with_log(&counts, log).unwrap()
                })
                .collect();
            let expect = |tables: &[NormalizedCounts], states_per_run| -> Vec<Vec<u8>> {
                let run = |index| &symbols[run_range(index, RUNS, symbols.len())];
                (0..RUNS).map(|index| naive(run(index), tables, states_per_run)).collect()
            };
            let lens = |streams: &[Vec<u8>]| streams.iter().map(|stream| stream.len() as u32).collect::<Vec<_>>();
            let mut out = Vec::new();
            let expected = expect(&states, 1);
            prop_assert_eq!(encode_by_tables(&symbols, &states, &mut out, &mut TansScratch::default()).to_vec(), lens(&expected));
            prop_assert_eq!(&out, &expected.concat());
            if tables == 1 {
                let symbols: Vec<u8> = symbols.iter().map(|&symbol| symbol as u8).collect();
                let expected = expect(&states, 2);
                out.clear();
                prop_assert_eq!(encode(&symbols, &states[0], &mut out, &mut TansScratch::default()).to_vec(), lens(&expected));
                prop_assert_eq!(&out, &expected.concat());
            }
            // The other loops, whatever this machine has.
            let encoder = Encoder::new(&states);
            let run = symbols.as_chunks().0;
            let walk = |by: Walk| {
                let mut buffer = vec![0; symbols.len() * 2 + 4 * WORD];
                let (mut current, mut bits) = ([[1 << log]], [ReverseBitWriter::new(buffer.len())]);
                by(&encoder, &[run], &mut current, &mut bits, &mut [&mut buffer]);
                let mut out = Vec::new();
                bits[0].put(u64::from(current[0][0] - (1 << log)), log);
                bits[0].finish(&mut buffer, &mut out);
                out
            };
            let expected = naive(run.as_flattened(), &states, 1);
            if !run.is_empty() {
                prop_assert_eq!(&walk(encode_interleaved_with), &expected);
                prop_assert_eq!(&walk(encode_interleaved), &expected);
                #[cfg(target_arch = "x86_64")]
                if crate::simd::Avx2::new().is_some() {
                    // SAFETY: the features were detected.
                    prop_assert_eq!(&walk(|a, b, c, d, e| unsafe { encode_interleaved_avx2(a, b, c, d, e) }), &expected);
                }
            }
        }
    }
}
