//! Huffman-coded symbols: eight bit streams, decoded several symbols per look-up.
//!
//! The symbols are cut into eight runs of equal length (the last may be shorter), each coded as
//! its own bit stream, most significant bit first; a few symbols are one run. The decoder in pseudo code, for one stream:
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
//! 3. The streams take turns of a few look-ups each. Turns do not depend on one another, so the
//!    processor works on most streams at once while the code has few variables at a time.
//! 4. The bit buffer carries a sentinel bit below its data: the number of consumed bits is the
//!    number of trailing zeros, and no counter is kept per look-up.
//! 5. Decoding computes and hardly touches memory; what follows it is the reverse. So each step
//!    also asks for a few cache lines that the caller will need ([`Ahead`]).
//! 6. Bounds are checked once for as many steps as cannot pass them. What remains at the end of
//!    each stream is decoded symbol by symbol with every access checked.

use std::marker::PhantomData;

use super::huffman::{Lengths, MAX_LEN};
use crate::error::{Error, Result};
use crate::wire::{Put, Reader};

/// Bit streams per coded run of symbols, if that is long enough.
pub(super) const STREAMS: usize = 8;

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
pub(super) const WORD: usize = 8;

/// The symbols, of `total`, in stream `index` of so many.
pub(super) fn run_of(index: usize, streams: usize, total: usize) -> std::ops::Range<usize> {
    let run = total.div_ceil(streams);
    (index * run).min(total)..((index + 1) * run).min(total)
}

/// The stored lengths of the streams, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stored {
    lens: [u32; STREAMS],
    one: bool,
}

impl Stored {
    /// One stream of so many bytes, or [`STREAMS`].
    pub(super) fn new(lens: &[u32]) -> Option<Self> {
        let mut stored = Self { lens: [0; STREAMS], one: lens.len() == 1 };
        stored.lens[..lens.len().min(STREAMS)].copy_from_slice(lens.get(..STREAMS).unwrap_or(lens));
        matches!(lens.len(), 1 | STREAMS).then_some(stored)
    }

    pub(super) fn streams(&self) -> usize {
        if self.one { 1 } else { STREAMS }
    }

    pub(super) fn lens(&self) -> &[u32] {
        &self.lens[..self.streams()]
    }

    /// Bytes of all streams.
    pub(super) fn total(&self) -> u64 {
        self.lens.iter().map(|&len| u64::from(len)).sum()
    }

    /// `u8` number of streams, then `u32` each.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.put_u8(self.streams() as u8);
        self.lens().iter().for_each(|&len| out.put_u32(len));
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let streams = usize::from(reader.u8()?);
        let mut lens = [0; STREAMS];
        if streams <= STREAMS {
            for len in &mut lens[..streams] {
                *len = reader.u32()?;
            }
        }
        let stored = lens.get(..streams).and_then(Self::new);
        stored.ok_or_else(|| Error::corrupt(format_args!("{streams} Huffman streams")))
    }
}

/// The decoder's look-up tables for one code.
pub(crate) struct Table {
    /// Bytes 0 to 5: symbols; byte 6: bits to skip; byte 7: how many symbols.
    multi: Box<[u64; TABLE_SIZE]>,
    /// Low byte: the first symbol; high byte: its length.
    single: Box<[u16; TABLE_SIZE]>,
    /// Like `multi` for windows of fewer bits: those of `w` bits start at `1 << w`.
    shorter: Box<[u64; TABLE_SIZE]>,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            multi: Box::new([0; TABLE_SIZE]),
            single: Box::new([0; TABLE_SIZE]),
            shorter: Box::new([0; TABLE_SIZE]),
        }
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
        let shortest = u32::from(order[0].0);
        if MAX_LEN / shortest > PER_ENTRY as u32 {
            return self.extend(&order, 0, Entry::default());
        }
        // A window starts with a code and goes on with a window of the bits that are left.
        for width in 0..=MAX_LEN - shortest {
            let (shorter, window) = self.shorter.split_at_mut(1 << width);
            fill_windows(&order, width, shorter, &mut window[..1 << width]);
        }
        fill_windows(&order, MAX_LEN, &self.shorter[..], &mut self.multi[..]);
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

    /// Decodes streams, stored back to back with these lengths, into `out`, while fetching what the
    /// caller needs next.
    pub(crate) fn decode(
        &self,
        stored: &[u8],
        lens: Stored,
        out: &mut [u8],
        ahead: &mut Ahead,
    ) -> Result<()> {
        let total = out.len();
        let mut cursors = Vec::with_capacity(lens.streams());
        let (mut input, mut output) = (stored, out);
        for (index, &len) in lens.lens().iter().enumerate() {
            let Some((source, rest)) = input.split_at_checked(len as usize) else {
                return Err(Error::corrupt("a Huffman stream runs past its chunk"));
            };
            input = rest;
            let (run, rest) = output.split_at_mut(run_of(index, lens.streams(), total).len());
            output = rest;
            cursors.push(Cursor::new(source, run));
        }
        advance(&mut cursors, &self.multi, ahead);
        cursors.iter_mut().try_for_each(|cursor| cursor.finish(&self.single))
    }
}

/// Entries for windows of `width` bits, from those for fewer: `shorter` has the entries for `w` bits
/// at `1 << w`. No entry may have room for more than [`PER_ENTRY`] symbols.
fn fill_windows(order: &[(u8, u8)], width: u32, shorter: &[u64], out: &mut [u64]) {
    const SYMBOLS: u64 = 0xff_ffff_ffff;
    let mut at = 0;
    for &(len, symbol) in order.iter().take_while(|&&(len, _)| u32::from(len) <= width) {
        let rest = 1usize << (width - u32::from(len));
        let first = u64::from(symbol) | u64::from(len) << 48 | 1 << 56;
        for (entry, &tail) in out[at..at + rest].iter_mut().zip(&shorter[rest..2 * rest]) {
            // One symbol in front of the others, one more of them, and as many bits more.
            *entry = ((tail & SYMBOLS) << 8 | tail & !SYMBOLS) + first;
        }
        at += rest;
    }
    out[at..].fill(0);
}

/// Memory that will be needed when decoding is done, to be fetched meanwhile. By address: it is never
/// read or written through this.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// Where to fetch next.
    at: usize,
    /// Cache lines to fetch per step, and those that are due: in parts of [`WHOLE`].
    rate: usize,
    due: usize,
}

const LINE: usize = 64;
const WHOLE: usize = 16;
/// Lines per step, at most.
const MOST: usize = 16;

impl Ahead {
    /// Fetches `memory` while `symbols` symbols are decoded, and what lies behind it, which the next
    /// chunk will need, if they take more steps than expected.
    pub(crate) fn new(symbols: usize, memory: &[u8]) -> Self {
        // A step yields about three symbols per look-up.
        let steps = symbols / (3 * PER_STEP * STREAMS) + 1;
        let rate = (memory.len() / LINE * WHOLE / steps).min(MOST * WHOLE);
        Self { at: memory.as_ptr() as usize, rate, due: 0 }
    }

    #[inline(always)]
    fn step(&mut self) {
        self.due += self.rate;
        while self.due >= WHOLE {
            fetch(self.at);
            self.at = self.at.wrapping_add(LINE);
            self.due -= WHOLE;
        }
    }
}

/// Asks for the cache line at an address, which may be any.
#[inline(always)]
pub(crate) fn fetch(address: usize) {
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
        self.symbols | u64::from(self.len) << 48 | u64::from(self.count) << 56
    }
}

/// One stream on its way through the decoder: the rest of its input, from the word that `bits` was
/// loaded from on, and of its output. As pointers, because they move at every step.
struct Cursor<'a> {
    source: *const u8,
    source_end: *const u8,
    target: *mut u8,
    target_end: *mut u8,
    /// Unread bits at the top, below them the sentinel, below that zeros.
    bits: u64,
    of: PhantomData<(&'a [u8], &'a mut [u8])>,
}

impl<'a> Cursor<'a> {
    fn new(input: &'a [u8], output: &'a mut [u8]) -> Self {
        let source = input.as_ptr_range();
        let target = output.as_mut_ptr_range();
        Self {
            source: source.start,
            source_end: source.end,
            target: target.start,
            target_end: target.end,
            bits: 1,
            of: PhantomData,
        }
    }

    /// What is left of input and output.
    fn rest(&mut self) -> (&[u8], &mut [u8]) {
        // SAFETY: steps leave each pointer inside the slice it was made from, which is borrowed for
        // as long as this exists.
        unsafe {
            let input = self.source_end.offset_from_unsigned(self.source);
            let output = self.target_end.offset_from_unsigned(self.target);
            (
                std::slice::from_raw_parts(self.source, input),
                std::slice::from_raw_parts_mut(self.target, output),
            )
        }
    }

    /// Steps that stay in bounds whatever the data: each needs a whole word of input after its
    /// advance, and room for a whole word of output after its last symbol but one entry.
    fn safe_steps(&mut self) -> usize {
        let (input, output) = self.rest();
        let input = input.len().saturating_sub(WORD) / STEP_IN;
        let output = output.len().saturating_sub(WORD) / STEP_OUT;
        input.min(output)
    }

    /// At least 56 bits and the sentinel.
    ///
    /// # Safety
    /// There must be a [safe step](Self::safe_steps).
    #[inline(always)]
    unsafe fn refill(&mut self) -> u64 {
        let consumed = self.bits.trailing_zeros();
        // SAFETY: a step consumes at most 7 + 55 bits, so `source` advances by at most STEP_IN bytes,
        // and the safe step left a whole word behind that.
        let word = unsafe {
            self.source = self.source.add(consumed as usize / 8);
            self.source.cast::<[u8; WORD]>().read()
        };
        (u64::from_be_bytes(word) | 1) << (consumed % 8)
    }

    /// Refills the bits and makes [`PER_STEP`] look-ups.
    ///
    /// # Safety
    /// There must be a [safe step](Self::safe_steps).
    #[inline(always)]
    unsafe fn step(&mut self, table: &[u64; TABLE_SIZE]) {
        // SAFETY: as the caller promises.
        let mut bits = unsafe { self.refill() };
        for _ in 0..PER_STEP {
            let entry = table[(bits >> (64 - MAX_LEN)) as usize];
            bits <<= entry >> 48 & 63;
            // SAFETY: a step writes at most STEP_OUT symbols, each store at most a word from where
            // its first symbol goes, and the safe step left room for that.
            unsafe {
                self.target.cast::<[u8; WORD]>().write(entry.to_le_bytes());
                self.target = self.target.add((entry >> 56) as usize);
            }
        }
        self.bits = bits;
    }

    /// Decodes what is left, symbol by symbol, and checks that the stream ends where it says.
    fn finish(&mut self, single: &[u16; TABLE_SIZE]) -> Result<()> {
        let mut at = self.bits.trailing_zeros() as usize;
        let (input, output) = self.rest();
        for slot in output {
            let mut window = 0u32;
            for byte in at / 8..at / 8 + 3 {
                window = window << 8 | u32::from(input.get(byte).copied().unwrap_or(0));
            }
            let index = window >> (24 - MAX_LEN as usize - at % 8) & (TABLE_SIZE as u32 - 1);
            let entry = single[index as usize];
            *slot = entry as u8;
            at += usize::from(entry >> 8);
        }
        let padding = match at % 8 {
            0 => 0,
            used => input.get(at / 8).copied().unwrap_or(0) << used,
        };
        if at.div_ceil(8) != input.len() || padding != 0 {
            return Err(Error::corrupt("a Huffman stream does not end with its symbols"));
        }
        Ok(())
    }
}

/// Runs the streams for as many whole steps as they have; puts them into any order.
fn advance(cursors: &mut [Cursor<'_>], table: &[u64; TABLE_SIZE], ahead: &mut Ahead) {
    #[cfg(target_arch = "x86_64")]
    if crate::kernel::Avx2::new().is_some() {
        // SAFETY: the features were detected.
        return unsafe { advance_bmi2(cursors, table, ahead) };
    }
    advance_with(cursors, table, ahead, step_each);
}

fn step_each(cursors: &mut [Cursor<'_>], table: &[u64; TABLE_SIZE]) {
    for cursor in cursors {
        // SAFETY: `advance_with` takes no more steps than are safe for any.
        unsafe { cursor.step(table) };
    }
}

/// The same loop with four streams at a time, look-up by look-up.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn advance_bmi2(cursors: &mut [Cursor<'_>], table: &[u64; TABLE_SIZE], ahead: &mut Ahead) {
    advance_with(cursors, table, ahead, |cursors, table| {
        let (fours, rest) = cursors.as_chunks_mut::<4>();
        for four in fours {
            // SAFETY: as the caller promises for each.
            unsafe { step_four(four, table) };
        }
        for cursor in rest {
            // SAFETY: as above.
            unsafe { cursor.step(table) };
        }
    });
}

/// A [`step`](Cursor::step) of four streams. Written by hand, because compilers keep half of the
/// variables in memory, where each look-up would wait for them.
///
/// # Safety
/// Each must have a safe step, and the features must have been detected.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2")]
unsafe fn step_four(cursors: &mut [Cursor<'_>; 4], table: &[u64; TABLE_SIZE]) {
    // SAFETY: as the caller promises.
    let [mut a, mut b, mut c, mut d] = std::array::from_fn(|i| unsafe { cursors[i].refill() });
    let [mut to_a, mut to_b, mut to_c, mut to_d] = std::array::from_fn(|i| cursors[i].target);
    macro_rules! look_up {
        ($bits:literal, $to:literal) => {
            concat!(
                "shrx {index}, {",
                $bits,
                "}, {index_shift}\n",
                "movzx {meta:e}, word ptr [{table} + 8*{index} + 6]\n",
                "mov {index}, [{table} + 8*{index}]\n",
                "shlx {",
                $bits,
                "}, {",
                $bits,
                "}, {meta:r}\n",
                "mov [{",
                $to,
                "}], {index}\n",
                "movzx {meta:e}, {meta:h}\n",
                "add {",
                $to,
                "}, {meta:r}\n",
            )
        };
    }
    macro_rules! round {
        () => {
            concat!(
                look_up!("a", "to_a"),
                look_up!("b", "to_b"),
                look_up!("c", "to_c"),
                look_up!("d", "to_d")
            )
        };
    }
    const _: () = assert!(PER_STEP == 5 && MAX_LEN == 11);
    // SAFETY: indices have MAX_LEN bits, as many as the table has entries for; a step writes at most
    // STEP_OUT symbols, each store at most a word from where its first symbol goes, and the safe
    // steps left room for that.
    unsafe {
        std::arch::asm!(
            round!(), round!(), round!(), round!(), round!(),
            a = inout(reg) a, b = inout(reg) b, c = inout(reg) c, d = inout(reg) d,
            to_a = inout(reg) to_a, to_b = inout(reg) to_b, to_c = inout(reg) to_c, to_d = inout(reg) to_d,
            table = in(reg) table.as_ptr(),
            index_shift = in(reg) u64::from(u64::BITS - MAX_LEN),
            index = out(reg) _,
            meta = out(reg_abcd) _,
            options(nostack),
        );
    }
    for (i, (bits, to)) in [(a, to_a), (b, to_b), (c, to_c), (d, to_d)].into_iter().enumerate() {
        cursors[i].bits = bits;
        cursors[i].target = to;
    }
}

#[inline(always)]
fn advance_with(
    mut cursors: &mut [Cursor<'_>],
    table: &[u64; TABLE_SIZE],
    ahead: &mut Ahead,
    step: impl Fn(&mut [Cursor<'_>], &[u64; TABLE_SIZE]),
) {
    loop {
        let mut steps = usize::MAX;
        let mut running = cursors.len();
        for i in (0..cursors.len()).rev() {
            match cursors[i].safe_steps() {
                0 => {
                    running -= 1;
                    cursors.swap(i, running);
                }
                safe => steps = steps.min(safe),
            }
        }
        if running == 0 {
            return;
        }
        cursors = &mut cursors[..running];
        for _ in 0..steps {
            ahead.step();
            step(cursors, table);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::huffman_encode::encode;
    use super::*;
    use proptest::prelude::*;

    /// The decoder as the format describes it, one bit at a time.
    fn naive(stored: &[u8], lens: Stored, lengths: &Lengths, total: usize) -> Vec<u8> {
        let codes = lengths.codes();
        let mut out = Vec::new();
        let mut start = 0;
        for (index, &len) in lens.lens().iter().enumerate() {
            let stream = &stored[start..start + len as usize];
            start += len as usize;
            let mut at = 0;
            for _ in run_of(index, lens.streams(), total) {
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
        table.decode(&stored, lens, &mut out, &mut Ahead::default()).unwrap();
        assert_eq!(out, symbols);
        if with_naive {
            assert_eq!(naive(&stored, lens, &lengths, symbols.len()), symbols);
        }
        // The portable loop, whatever this machine has.
        let run = run_of(0, lens.streams(), symbols.len());
        let mut portable = vec![0; run.len()];
        let mut cursors = [Cursor::new(&stored[..lens.lens()[0] as usize], &mut portable)];
        advance_with(&mut cursors, &table.multi, &mut Ahead::default(), step_each);
        cursors[0].finish(&table.single).unwrap();
        assert_eq!(portable, symbols[run]);
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
                let part = (cut.min(noise.len()) / STREAMS) as u32;
                let mut lens = [part; STREAMS];
                lens[STREAMS - 1] = noise.len() as u32 - part * (STREAMS as u32 - 1);
                for lens in [&lens[..], &[noise.len() as u32]] {
                    let lens = Stored::new(lens).unwrap();
                    let _ = table.decode(&noise, lens, &mut out, &mut Ahead::default());
                }
            }
        }
    }
}
