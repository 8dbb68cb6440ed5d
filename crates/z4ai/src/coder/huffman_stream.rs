//! Huffman-coded symbols: four bit streams, decoded several symbols per look-up.
//!
//! The symbols are cut into four runs of equal length (the last may be shorter), each coded as
//! its own bit stream, most significant bit first. The decoder in pseudo code, for one stream:
//!
//! ```text
//! while symbols are missing:
//!     entry = table[next 11 bits]
//!     output entry.symbols; skip entry.len bits
//! ```
//!
//! What is done beyond that, and why:
//!
//! 1. An entry holds every symbol whose code ends within the 11 bits, up to six: exponents take
//!    about 2.6 bits, so one look-up yields three or four.
//! 2. An entry is one word, and all of it is stored to the output whatever its count; the next
//!    store overwrites the excess. No branch depends on the data.
//! 3. The four streams advance together, so that the latency of one look-up hides behind the
//!    other three.
//! 4. The bit buffer carries a sentinel bit below its data: the number of consumed bits is the
//!    number of trailing zeros, and no counter is kept per look-up.
//! 5. Decoding computes and hardly touches memory; what follows it is the reverse. So each step
//!    also asks for a few cache lines that the caller will need ([`Ahead`]).
//! 6. Bounds are checked once for as many steps as cannot pass them. What remains at the end of
//!    each stream is decoded symbol by symbol with every access checked.

use super::huffman::{Lengths, MAX_LEN};
use crate::error::{Error, Result};
use crate::kernel::{Isa, dispatch};

/// Bit streams per coded run of symbols.
pub(crate) const STREAMS: usize = 4;

const TABLE_SIZE: usize = 1 << MAX_LEN;
/// Symbols per table entry, at most.
const PER_ENTRY: usize = 6;
/// Look-ups per refill: a refill leaves at least 56 bits.
const PER_STEP: usize = 5;
const _: () = assert!(PER_STEP * MAX_LEN as usize <= 56);
/// Input bytes one step may advance by: at most 7 bits left over and 55 consumed.
const STEP_IN: usize = (PER_STEP * MAX_LEN as usize).div_ceil(8);
/// Output bytes one step may advance by.
const STEP_OUT: usize = PER_STEP * PER_ENTRY;
/// Bytes a load reads and a store writes at the position it is made at.
const WORD: usize = 8;

/// The number of symbols in stream `index` of `total`.
pub(crate) fn run_of(index: usize, total: usize) -> std::ops::Range<usize> {
    let run = total.div_ceil(STREAMS);
    (index * run).min(total)..((index + 1) * run).min(total)
}

/// Appends the four bit streams of `symbols` to `out`; returns their lengths in bytes.
///
/// Every symbol must have a code in `lengths`.
pub(crate) fn encode(symbols: &[u8], lengths: &Lengths, out: &mut Vec<u8>) -> [u32; STREAMS] {
    let codes = lengths.codes();
    // The code at the top of a word, its length at the bottom.
    let mut table = [0u64; 256];
    for (symbol, slot) in table.iter_mut().enumerate() {
        let len = u32::from(lengths.0[symbol]);
        *slot = u64::from(codes[symbol]).unbounded_shl(64 - len) | u64::from(len);
    }
    // Room for the longest codes, and for the whole words that every flush stores.
    let room = STREAMS * WORD + (symbols.len() * MAX_LEN as usize).div_ceil(8);
    let start = out.len();
    out.resize(start + room, 0);
    let mut at = start;
    let stored = std::array::from_fn(|index| {
        let run = &symbols[run_of(index, symbols.len())];
        let written = encode_run(run, &table, &mut out[at..]);
        at += written;
        written as u32
    });
    out.truncate(at);
    stored
}

dispatch! {
    /// Writes one bit stream to the front of `room`; returns its length in bytes. The room must
    /// hold the longest codes and one more word.
    fn encode_run(symbols: &[u8], table: &[u64; 256], room: &mut [u8]) -> usize = encode_run_with
}

#[inline(always)]
fn encode_run_with(_: impl Isa, symbols: &[u8], table: &[u64; 256], room: &mut [u8]) -> usize {
    let mut written = 0;
    // The bits at the top of `bits` wait to be written; the low six bits of `count` say how many.
    let (mut bits, mut count) = (0u64, 0u64);
    let mut add = |group: &[u8]| {
        for &symbol in group {
            // The length is added with the code above it: shifts look at six bits only.
            let code = table[usize::from(symbol)];
            bits |= code >> (count & 63);
            count = count.wrapping_add(code);
        }
        // At most 7 bits waited and 44 came; the lengths that came along stand below all of them.
        count &= 63;
        bits &= !0x3f;
        room[written..written + WORD].copy_from_slice(&bits.to_be_bytes());
        written += count as usize / 8;
        bits <<= count & !7;
        count &= 7;
    };
    let groups = symbols.chunks_exact(4);
    let rest = groups.remainder();
    for group in groups {
        let group: &[u8; 4] = group.try_into().expect("groups of four");
        add(group);
    }
    add(rest);
    written + usize::from(count > 0)
}

/// The decoder's look-up tables for one code.
pub(crate) struct Table {
    /// Byte 0: bits to skip; bytes 1 to 6: symbols; byte 7: how many of them.
    multi: Box<[u64; TABLE_SIZE]>,
    /// Low byte: the first symbol; high byte: its length.
    single: Box<[u16; TABLE_SIZE]>,
}

impl Default for Table {
    fn default() -> Self {
        Self { multi: Box::new([0; TABLE_SIZE]), single: Box::new([0; TABLE_SIZE]) }
    }
}

impl Table {
    /// Fills the tables for `lengths`, which must be a complete code ([`Lengths::read`] checks).
    pub(crate) fn build(&mut self, lengths: &Lengths) {
        let mut order: Vec<(u8, u8)> = (0..=255u8)
            .filter(|&s| lengths.0[usize::from(s)] > 0)
            .map(|s| (lengths.0[usize::from(s)], s))
            .collect();
        order.sort_unstable();
        let mut at = 0;
        for &(len, symbol) in &order {
            let width = TABLE_SIZE >> len;
            self.single[at..at + width].fill(u16::from(symbol) | u16::from(len) << 8);
            at += width;
        }
        self.extend(&order, 0, Entry::default());
    }

    /// Fills the entries that start with the codes of `entry`, from index `start` on: first those
    /// that have room for another code, which in canonical order come first, then the others.
    fn extend(&mut self, order: &[(u8, u8)], start: usize, entry: Entry) {
        let end = start + (TABLE_SIZE >> entry.len);
        let shortest = u32::from(order[0].0);
        let mut at = start;
        if entry.count < PER_ENTRY as u32 {
            for &(len, symbol) in order {
                let longer = entry.with(len, symbol);
                if longer.len > MAX_LEN {
                    break;
                }
                let width = TABLE_SIZE >> longer.len;
                if longer.len + shortest <= MAX_LEN {
                    self.extend(order, at, longer);
                } else {
                    self.multi[at..at + width].fill(longer.word());
                }
                at += width;
            }
        }
        self.multi[at..end].fill(entry.word());
    }

    /// Decodes four streams, stored back to back with these lengths, into `out`, while fetching
    /// what the caller needs next.
    pub(crate) fn decode(
        &self,
        stored: &[u8],
        lens: [usize; STREAMS],
        out: &mut [u8],
        ahead: &mut Ahead,
    ) -> Result<()> {
        let total = out.len();
        let mut cursors = Vec::with_capacity(STREAMS);
        let (mut input, mut output) = (stored, out);
        for (index, len) in lens.into_iter().enumerate() {
            let Some((source, rest)) = input.split_at_checked(len) else {
                return Err(Error::corrupt("a Huffman stream runs past its chunk"));
            };
            input = rest;
            let run = run_of(index, total);
            let (run, rest) = output.split_at_mut(run.len());
            output = rest;
            cursors.push(Cursor::new(source, run));
        }
        let Ok(mut cursors) = <[Cursor; STREAMS]>::try_from(cursors) else {
            unreachable!("one cursor per stream");
        };
        advance(&mut cursors, &self.multi, ahead);
        for cursor in cursors {
            let mut alone = [cursor];
            advance(&mut alone, &self.multi, ahead);
            let [mut cursor] = alone;
            cursor.finish(&self.single)?;
        }
        Ok(())
    }
}

/// Memory that will be needed when decoding is done, to be fetched meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    regions: [Region; 2],
}

/// A part of memory, by address: it is never read or written through these, only fetched.
#[derive(Debug, Default, Clone, Copy)]
struct Region {
    at: usize,
    end: usize,
    /// Cache lines per step.
    lines: usize,
}

const LINE: usize = 64;

impl Ahead {
    /// Two parts of memory, in about the time it takes to decode `symbols` symbols.
    pub(crate) fn new(symbols: usize, parts: [&[u8]; 2]) -> Self {
        // A step yields about three symbols per look-up.
        let steps = symbols / (3 * PER_STEP * STREAMS) + 1;
        let regions = parts.map(|part| {
            let at = part.as_ptr() as usize;
            Region { at, end: at + part.len(), lines: part.len().div_ceil(LINE).div_ceil(steps).min(8) }
        });
        Self { regions }
    }

    #[inline(always)]
    fn step(&mut self) {
        for region in &mut self.regions {
            for _ in 0..region.lines {
                if region.at < region.end {
                    fetch(region.at);
                    region.at += LINE;
                }
            }
        }
    }
}

/// Asks for the cache line at an address, which may be any.
#[inline(always)]
fn fetch(address: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a prefetch accesses nothing as far as the program can tell.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(std::ptr::without_provenance(address)) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// A table entry while it is being made.
#[derive(Clone, Copy, Default)]
struct Entry {
    symbols: u64,
    len: u32,
    count: u32,
}

impl Entry {
    fn with(self, len: u8, symbol: u8) -> Self {
        Self {
            symbols: self.symbols | u64::from(symbol) << (8 * self.count),
            len: self.len + u32::from(len),
            count: self.count + 1,
        }
    }

    fn word(self) -> u64 {
        u64::from(self.len) | self.symbols << 8 | u64::from(self.count) << 56
    }
}

/// One stream on its way through the decoder.
struct Cursor<'a> {
    input: &'a [u8],
    output: &'a mut [u8],
    /// Bytes of `input` before the word that `bits` was loaded from.
    read: usize,
    /// Symbols written.
    written: usize,
    /// Unread bits at the top, below them the sentinel, below that zeros.
    bits: u64,
}

impl<'a> Cursor<'a> {
    fn new(input: &'a [u8], output: &'a mut [u8]) -> Self {
        Self { input, output, read: 0, written: 0, bits: 1 }
    }

    /// Steps that stay in bounds whatever the data: each needs a whole word of input after its
    /// advance, and room for a whole word of output after its last symbol but one entry.
    fn safe_steps(&self) -> usize {
        let input = (self.input.len() - self.read).saturating_sub(WORD) / STEP_IN;
        let output = (self.output.len() - self.written).saturating_sub(WORD) / STEP_OUT;
        input.min(output)
    }

    /// Decodes what is left, symbol by symbol, and checks that the stream ends where it says.
    fn finish(&mut self, single: &[u16; TABLE_SIZE]) -> Result<()> {
        let mut at = self.read * 8 + self.bits.trailing_zeros() as usize;
        for slot in &mut self.output[self.written..] {
            let mut window = 0u32;
            for byte in at / 8..at / 8 + 3 {
                window = window << 8 | u32::from(self.input.get(byte).copied().unwrap_or(0));
            }
            let index = window >> (24 - MAX_LEN as usize - at % 8) & (TABLE_SIZE as u32 - 1);
            let entry = single[index as usize];
            *slot = entry as u8;
            at += usize::from(entry >> 8);
        }
        let padding = match at % 8 {
            0 => 0,
            used => self.input.get(at / 8).copied().unwrap_or(0) << used,
        };
        if at.div_ceil(8) != self.input.len() || padding != 0 {
            return Err(Error::corrupt("a Huffman stream does not end with its symbols"));
        }
        Ok(())
    }
}

/// Runs the streams for as many whole steps as all of them have.
fn advance<const S: usize>(cursors: &mut [Cursor<'_>; S], table: &[u64; TABLE_SIZE], ahead: &mut Ahead) {
    #[cfg(target_arch = "x86_64")]
    if crate::kernel::Avx2::new().is_some() {
        // SAFETY: the features were detected.
        return unsafe { advance_bmi2(cursors, table, ahead) };
    }
    advance_with(cursors, table, ahead);
}

/// The same loop, compiled to three-operand shifts.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn advance_bmi2<const S: usize>(cursors: &mut [Cursor<'_>; S], table: &[u64; TABLE_SIZE], ahead: &mut Ahead) {
    advance_with(cursors, table, ahead);
}

#[inline(always)]
fn advance_with<const S: usize>(cursors: &mut [Cursor<'_>; S], table: &[u64; TABLE_SIZE], ahead: &mut Ahead) {
    loop {
        let steps = cursors.iter().map(Cursor::safe_steps).min().unwrap_or(0);
        if steps == 0 {
            return;
        }
        // SAFETY: `read` and `written` never exceed their slices' lengths.
        let mut source: [*const u8; S] =
            std::array::from_fn(|i| unsafe { cursors[i].input.as_ptr().add(cursors[i].read) });
        // SAFETY: as above.
        let mut target: [*mut u8; S] =
            std::array::from_fn(|i| unsafe { cursors[i].output.as_mut_ptr().add(cursors[i].written) });
        let mut bits: [u64; S] = std::array::from_fn(|i| cursors[i].bits);
        for _ in 0..steps {
            ahead.step();
            for i in 0..S {
                let consumed = bits[i].trailing_zeros();
                // SAFETY: a step consumes at most 7 + 55 bits, so `source` advances by at most
                // STEP_IN bytes, and `safe_steps` left a whole word behind the last advance.
                let word = unsafe {
                    source[i] = source[i].add(consumed as usize / 8);
                    source[i].cast::<[u8; WORD]>().read()
                };
                bits[i] = (u64::from_be_bytes(word) | 1) << (consumed % 8);
            }
            for _ in 0..PER_STEP {
                for i in 0..S {
                    let entry = table[(bits[i] >> (64 - MAX_LEN)) as usize];
                    bits[i] <<= entry & 63;
                    // SAFETY: a step writes at most STEP_OUT symbols, each store at most a word
                    // from where its first symbol goes, and `safe_steps` left room for that.
                    unsafe {
                        target[i].cast::<[u8; WORD]>().write((entry >> 8).to_le_bytes());
                        target[i] = target[i].add((entry >> 56) as usize);
                    }
                }
            }
        }
        for (i, cursor) in cursors.iter_mut().enumerate() {
            cursor.read = source[i] as usize - cursor.input.as_ptr() as usize;
            cursor.written = target[i] as usize - cursor.output.as_ptr() as usize;
            cursor.bits = bits[i];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The decoder as the format describes it, one bit at a time.
    fn naive(stored: &[u8], lens: [u32; STREAMS], lengths: &Lengths, total: usize) -> Vec<u8> {
        let codes = lengths.codes();
        let mut out = Vec::new();
        let mut start = 0;
        for (index, len) in lens.into_iter().enumerate() {
            let stream = &stored[start..start + len as usize];
            start += len as usize;
            let mut at = 0;
            for _ in run_of(index, total) {
                let (mut code, mut len) = (0u16, 0u8);
                loop {
                    code = code << 1 | u16::from(stream[at / 8] >> (7 - at % 8) & 1);
                    at += 1;
                    len += 1;
                    let hit = (0..256).find(|&s| lengths.0[s] == len && codes[s] == code);
                    if let Some(symbol) = hit {
                        out.push(symbol as u8);
                        break;
                    }
                }
            }
        }
        out
    }

    fn counts_of(symbols: &[u8]) -> [u32; 256] {
        let mut counts = [0; 256];
        for &symbol in symbols {
            counts[usize::from(symbol)] += 1;
        }
        counts
    }

    fn check(symbols: &[u8], with_naive: bool) {
        let Some(lengths) = Lengths::for_counts(&counts_of(symbols)) else {
            return;
        };
        let mut stored = Vec::new();
        let lens = encode(symbols, &lengths, &mut stored);
        let mut table = Table::default();
        table.build(&lengths);
        let mut out = vec![0; symbols.len()];
        table.decode(&stored, lens.map(|l| l as usize), &mut out, &mut Ahead::default()).unwrap();
        assert_eq!(out, symbols);
        if with_naive {
            assert_eq!(naive(&stored, lens, &lengths, symbols.len()), symbols);
        }
        // The portable loop, whatever this machine has.
        let mut portable = vec![0; run_of(0, symbols.len()).len()];
        let mut cursors = [Cursor::new(&stored[..lens[0] as usize], &mut portable)];
        advance_with(&mut cursors, &table.multi, &mut Ahead::default());
        cursors[0].finish(&table.single).unwrap();
        assert_eq!(portable, symbols[run_of(0, symbols.len())]);
    }

    proptest! {
        #[test]
        fn symbols_survive(symbols in prop::collection::vec(0u8..20, 0..3000)) {
            check(&symbols, true);
        }

        #[test]
        fn skewed_symbols_survive(symbols in prop::collection::vec(any::<u32>(), 0..20000)) {
            let symbols: Vec<u8> = symbols.iter().map(|v| (v | 1 << 20).trailing_zeros() as u8 + 90).collect();
            check(&symbols, false);
        }

        #[test]
        fn damaged_streams_never_panic(
            symbols in prop::collection::vec(0u8..9, 2..600),
            noise in prop::collection::vec(any::<u8>(), 0..400),
            cut in 0usize..400,
        ) {
            if let Some(lengths) = Lengths::for_counts(&counts_of(&symbols)) {
                let mut table = Table::default();
                table.build(&lengths);
                let mut out = vec![0; symbols.len()];
                let q = cut.min(noise.len()) / 4;
                let _ = table.decode(&noise, [q, q, q, noise.len() - 3 * q], &mut out, &mut Ahead::default());
            }
        }
    }
}
