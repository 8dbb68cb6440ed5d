//! The other half of [`tans`](super::tans): from symbols to states and bits.
//!
//! The decoder goes forwards, so states are found backwards, and bits are written from the end of a buffer
//! down: what is found last stands first. Two runs advance together, so that four look-ups are
//! under way at any time.

use super::tans::{MAX_LOG, RUNS, States, run_of};
use crate::kernel::{Isa, dispatch};

/// Symbols of each run between two stores of its bits.
const PER_STEP: usize = 4;
// With those of a byte that is not full yet, they fit a word.
const _: () = assert!(PER_STEP * MAX_LOG as usize + 7 < 64);
/// Bytes that a store writes.
const WORD: usize = 8;

/// How to get to a symbol, from any state.
#[derive(Clone, Copy, Default)]
struct Way {
    /// A state plus this has the number of bits to write in its upper half.
    bits: u32,
    /// What is left of the state then, plus this, is the place of the state before.
    next: u32,
}

/// What encoding with some states needs.
pub(crate) struct Encoder {
    ways: [Way; 256],
    /// The states of each symbol in their order, symbol after symbol, plus the number of states.
    states: Box<[u16; 1 << MAX_LOG]>,
    /// The state to begin with: the decoder ends there.
    last: u32,
}

impl Encoder {
    pub(crate) fn new(states: &States) -> Self {
        let size = states.size() as u32;
        let mut ways = [Way::default(); 256];
        let (mut starts, mut start) = ([0u32; 256], 0u32);
        for (symbol, &count) in states.counts.iter().enumerate().filter(|&(_, &count)| count > 0) {
            let count = u32::from(count);
            // One bit less from states that are lower than the symbol's states times this power of two.
            let most = states.log() - count.ilog2();
            ways[symbol] = Way { bits: (most << 16) - (count << most), next: start.wrapping_sub(count) };
            starts[symbol] = start;
            start += count;
        }
        let mut places = Box::new([0u16; 1 << MAX_LOG]);
        for (state, &symbol) in states.spread().iter().enumerate() {
            let at = &mut starts[usize::from(symbol)];
            places[*at as usize] = (size + state as u32) as u16;
            *at += 1;
        }
        Self { ways, states: places, last: size }
    }

    /// The state (plus the number of states) to begin with.
    pub(crate) fn last_state(&self) -> u32 {
        self.last
    }

    /// Goes from a state to the one before it, which stands for `symbol`, and writes the bits that lead
    /// back: at most [`MAX_LOG`]. The symbol must have a state.
    #[inline(always)]
    pub(crate) fn step(&self, state: &mut u32, symbol: u8, bits: &mut Backwards) {
        let way = self.ways[usize::from(symbol)];
        let width = state.wrapping_add(way.bits) >> 16;
        let left = *state >> width;
        bits.put_below(u64::from(*state), u64::from(left), width);
        let place = left.wrapping_add(way.next) as usize;
        *state = u32::from(self.states[place % self.states.len()]);
    }
}

/// Bits on their way into the end of a buffer: those that come later stand before.
#[derive(Clone, Copy)]
pub(crate) struct Backwards {
    /// The last ones, in the low bits; what is above means nothing.
    word: u64,
    /// How many they are.
    count: u32,
    /// Bytes of the buffer that are not written yet.
    at: usize,
}

impl Backwards {
    /// For a buffer of this length, which must have room for a word more than what is written.
    pub(crate) fn new(len: usize) -> Self {
        Self { word: 0, count: 0, at: len }
    }

    /// Bytes of a buffer for so many symbols of states of `log` bits, and for as many states as given.
    pub(crate) fn room(symbols: usize, states: usize, log: u32) -> usize {
        ((symbols + states) * log as usize).div_ceil(8) + 2 * WORD
    }

    /// Puts bits before all others. Between two stores there is room for 56.
    #[inline(always)]
    pub(crate) fn put(&mut self, bits: u64, width: u32) {
        self.word = self.word << width | bits;
        self.count += width;
    }

    /// As [`put`](Self::put) the lowest `width` bits of `bits`, of which `left` is what is above them: without
    /// cutting that off first.
    #[inline(always)]
    fn put_below(&mut self, bits: u64, left: u64, width: u32) {
        self.word = (self.word.wrapping_sub(left) << width).wrapping_add(bits);
        self.count += width;
    }

    /// Stores all but the bits of a last byte.
    #[inline(always)]
    pub(crate) fn store(&mut self, buffer: &mut [u8]) {
        let top = self.word.unbounded_shl(u64::BITS - self.count);
        buffer[self.at - WORD..self.at].copy_from_slice(&top.to_le_bytes());
        self.at -= (self.count / 8) as usize;
        self.count %= 8;
    }

    /// Appends all bits, from the lowest bit of a byte on, to `out`.
    pub(crate) fn finish(mut self, buffer: &mut [u8], out: &mut Vec<u8>) {
        self.store(buffer);
        let shift = (8 - self.count) % 8;
        // The byte that the first bits end in.
        let start = self.at - usize::from(self.count > 0);
        let bytes = &buffer[start..];
        out.reserve(bytes.len());
        let (words, rest) = bytes.as_chunks::<WORD>();
        let after = |i: usize| words.get(i).map_or_else(|| first_of(rest), |word| word[0]);
        for (i, word) in words.iter().enumerate() {
            let word = u64::from_le_bytes(*word) >> shift | u64::from(after(i + 1)) << 56 << (8 - shift);
            out.extend_from_slice(&word.to_le_bytes());
        }
        for (i, &byte) in rest.iter().enumerate() {
            out.push((u16::from_le_bytes([byte, first_of(&rest[i + 1..])]) >> shift) as u8);
        }
    }
}

/// The first byte, or 0 behind the last.
fn first_of(bytes: &[u8]) -> u8 {
    bytes.first().copied().unwrap_or(0)
}

/// Appends the four bit streams of `symbols` to `out`; returns their lengths in bytes. Every symbol
/// must have a state.
pub(crate) fn encode(symbols: &[u8], states: &States, out: &mut Vec<u8>) -> [u32; RUNS] {
    let encoder = Encoder::new(states);
    let runs: [&[u8]; RUNS] = std::array::from_fn(|index| &symbols[run_of(index, symbols.len())]);
    let room = Backwards::room(runs[0].len(), 2, states.log());
    let mut buffers: [Vec<u8>; RUNS] = std::array::from_fn(|_| vec![0; room]);
    let mut current = [[encoder.last_state(); 2]; RUNS];
    let mut bits = [Backwards::new(room); RUNS];
    let common = runs[RUNS - 1].len() / PER_STEP * PER_STEP;
    for r in 0..RUNS {
        for i in (common..runs[r].len()).rev() {
            encoder.step(&mut current[r][i % 2], runs[r][i], &mut bits[r]);
            bits[r].store(&mut buffers[r]);
        }
    }
    let whole = runs.map(|run| run[..common].as_chunks().0);
    let together = whole.as_chunks().0.iter().zip(current.as_chunks_mut().0);
    let writers = bits.as_chunks_mut().0.iter_mut().zip(buffers.as_chunks_mut().0);
    for ((runs, states), (bits, buffers)) in together.zip(writers) {
        encode_together(&encoder, *runs, states, bits, buffers);
    }
    std::array::from_fn(|r| {
        let before = out.len();
        if !runs[r].is_empty() {
            let [even, odd] = current[r].map(|state| u64::from(state - encoder.last_state()));
            bits[r].put(odd, states.log());
            bits[r].put(even, states.log());
            bits[r].finish(&mut buffers[r], out);
        }
        (out.len() - before) as u32
    })
}

/// Runs that are encoded together: more have more to keep than there are registers.
const TOGETHER: usize = 2;

dispatch! {
    /// Encodes steps of some runs, which have as many, from the last on.
    fn encode_together(
        encoder: &Encoder,
        runs: [&[[u8; PER_STEP]]; TOGETHER],
        states: &mut [[u32; 2]; TOGETHER],
        bits: &mut [Backwards; TOGETHER],
        buffers: &mut [Vec<u8>; TOGETHER],
    ) = encode_together_with
}

#[inline(always)]
fn encode_together_with(
    _: impl Isa,
    encoder: &Encoder,
    runs: [&[[u8; PER_STEP]]; TOGETHER],
    states: &mut [[u32; 2]; TOGETHER],
    bits: &mut [Backwards; TOGETHER],
    buffers: &mut [Vec<u8>; TOGETHER],
) {
    let (mut current, mut writers) = (*states, *bits);
    for (a, b) in runs[0].iter().zip(runs[1]).rev() {
        for i in (0..PER_STEP).rev() {
            encoder.step(&mut current[0][i % 2], a[i], &mut writers[0]);
            encoder.step(&mut current[1][i % 2], b[i], &mut writers[1]);
        }
        for r in 0..TOGETHER {
            writers[r].store(&mut buffers[r]);
        }
    }
    (*states, *bits) = (current, writers);
}
