//! The decoder's look-up tables.

use crate::coder::huffman::decode::Entries;
use crate::coder::huffman::lengths::{Lengths, MAX_LEN};
use crate::simd::{Isa, dispatch_wide};

/// Entries of a table: one for every [`MAX_LEN`] bits that may come next. (structural)
pub(super) const TABLE_SIZE: usize = 1 << MAX_LEN;
/// Fewer symbols than this are decoded one per look-up: a table of several per entry would take
/// longer to fill. (flat; times within the noise of 5 %)
pub(super) const MIN_MULTI_SYMBOL: usize = 2048;
/// Symbols per table entry, at most. (structural: bytes of an entry beside its lengths)
pub(super) const PER_ENTRY: usize = 6;

/// The decoder's look-up tables for one code.
pub(crate) struct Table {
    /// Bytes 0 to 5: symbols; byte 6: bits to skip; byte 7: how many symbols.
    pub(super) multi: Box<Entries>,
    /// Low byte: the first symbol; high byte: its length.
    pub(super) single: Box<[u16; TABLE_SIZE]>,
    /// Like `multi` for windows of fewer bits: those of `w` bits start at `1 << w`.
    shorter: Box<[u64; TABLE_SIZE]>,
}

impl Default for Table {
    fn default() -> Self {
        Self { multi: Box::default(), single: Box::new([0; TABLE_SIZE]), shorter: Box::new([0; TABLE_SIZE]) }
    }
}

impl Table {
    /// Fills the tables for decoding `symbols` symbols with `lengths`, which must be a complete
    /// code ([`Lengths::read`] checks).
    pub(crate) fn build(&mut self, lengths: &Lengths, symbols: usize) {
        let mut order = [(0, 0); 256];
        let order = canonical(lengths, &mut order);
        let mut at = 0;
        for &(len, symbol) in order {
            let width = TABLE_SIZE >> len;
            self.single[at..at + width].fill(u16::from(symbol) | u16::from(len) << 8);
            at += width;
        }
        if symbols < MIN_MULTI_SYMBOL {
            return;
        }
        let shortest = u32::from(order[0].0);
        self.multi.most = PER_ENTRY.min((MAX_LEN / shortest) as usize);
        if MAX_LEN / shortest > PER_ENTRY as u32 {
            return self.extend(order, 0, Entry::default());
        }
        // An entry is a code, followed by an entry for the remaining bits.
        fill(order, &mut self.shorter, &mut self.multi.entries);
    }

    /// Fills the entries that start with the codes of `entry`, from index `start` on: first those
    /// that have room for another code, which come first in canonical order, then the rest.
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
                    self.multi.entries[at..at + width].fill(longer.word());
                }
                at += width;
            }
        }
        self.multi.entries[at..end].fill(entry.word());
    }
}

/// Lengths and symbols in the order of their codes, at the start of `order`.
fn canonical<'a>(lengths: &Lengths, order: &'a mut [(u8, u8); 256]) -> &'a [(u8, u8)] {
    // Where the codes of each length begin.
    let mut next = [0; MAX_LEN as usize + 2];
    lengths.0.iter().for_each(|&len| next[usize::from(len) + 1] += usize::from(len > 0));
    (1..next.len()).for_each(|len| next[len] += next[len - 1]);
    for (symbol, &len) in (0..=255).zip(&lengths.0) {
        if len > 0 {
            order[next[usize::from(len)]] = (len, symbol);
            next[usize::from(len)] += 1;
        }
    }
    &order[..next[MAX_LEN as usize]]
}

dispatch_wide! {
    /// Entries for all prefixes of at most [`MAX_LEN`] bits; `shorter` has those of fewer bits.
    fn fill(order: &[(u8, u8)], shorter: &mut [u64; TABLE_SIZE], entries: &mut [u64; TABLE_SIZE]) = fill_with
}

#[inline(always)]
fn fill_with(
    _: impl Isa,
    order: &[(u8, u8)],
    shorter: &mut [u64; TABLE_SIZE],
    entries: &mut [u64; TABLE_SIZE],
) {
    for width in 0..=MAX_LEN - u32::from(order[0].0) {
        let (shorter, window) = shorter.split_at_mut(1 << width);
        fill_windows(order, width, shorter, &mut window[..1 << width]);
    }
    fill_windows(order, MAX_LEN, shorter, entries);
}

/// Entries for prefixes of `width` bits, from those for fewer: `shorter` has the entries for `w`
/// bits at `1 << w`. No entry may have room for more than [`PER_ENTRY`] symbols.
#[inline(always)]
fn fill_windows(order: &[(u8, u8)], width: u32, shorter: &[u64], out: &mut [u64]) {
    /// (structural)
    const SYMBOLS: u64 = 0xff_ffff_ffff;
    let mut at = 0;
    for &(len, symbol) in order.iter().take_while(|&&(len, _)| u32::from(len) <= width) {
        let rest = 1usize << (width - u32::from(len));
        let first = u64::from(symbol) | u64::from(len) << 48 | 1 << 56;
        for (entry, &tail) in out[at..at + rest].iter_mut().zip(&shorter[rest..2 * rest]) {
            // One symbol before those of the tail, one more symbol, and its bits.
            *entry = ((tail & SYMBOLS) << 8 | tail & !SYMBOLS) + first;
        }
        at += rest;
    }
    out[at..].fill(0);
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
