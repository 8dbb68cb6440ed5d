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
        // An entry is a code, followed by an entry for the remaining bits.
        fill(order, &mut self.shorter, &mut self.multi.entries);
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
    let shortest = u32::from(order[0].0);
    // Widths of windows behind a prefix of so short codes that `left` more fit.
    let widths = |left: usize| 0..=MAX_LEN.saturating_sub(left as u32 * shortest);
    let fill = |width: u32, shorter: &mut [u64; TABLE_SIZE]| {
        let (shorter, window) = shorter.split_at_mut(1 << width);
        fill_windows(order, width, shorter, &mut window[..1 << width]);
    };
    if MAX_LEN / shortest <= PER_ENTRY as u32 {
        widths(1).for_each(|width| fill(width, shorter));
    } else {
        // More codes fit than an entry holds: entries of at most one symbol, then of two, and so on. Wide windows
        // first, since they need narrower ones of a symbol less.
        widths(PER_ENTRY).for_each(|width| shorter[1 << width..2 << width].fill(0));
        for left in (1..PER_ENTRY).rev() {
            widths(left).rev().for_each(|width| fill(width, shorter));
        }
    }
    fill_windows(order, MAX_LEN, shorter, entries);
}

/// Entries for prefixes of `width` bits, from those for fewer: `shorter` has the entries for `w`
/// bits at `1 << w`, of fewer than [`PER_ENTRY`] symbols.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The entry for the bits of `index`, code by code.
    fn entry(single: &[u16; TABLE_SIZE], index: usize) -> u64 {
        let (mut symbols, mut skipped, mut count) = (0, 0, 0);
        while count < PER_ENTRY as u32 {
            let next = single[index << skipped & (TABLE_SIZE - 1)];
            let len = u32::from(next >> 8);
            if skipped + len > MAX_LEN {
                break;
            }
            symbols |= u64::from(next & 0xff) << (8 * count);
            skipped += len;
            count += 1;
        }
        symbols | u64::from(skipped) << 48 | u64::from(count) << 56
    }

    #[test]
    fn entries_have_the_symbols_of_their_bits() {
        // Codes of rising lengths from each shortest one on, completed by two of the last length; and flat ones.
        let rising = (1..=MAX_LEN as u8).map(|last| [(1..=last).collect(), vec![last]].concat());
        let flat = (1..8).map(|len| vec![len; 1 << len]);
        let mixed = [vec![1, 3, 3, 3, 4, 5, 6, 7, 8, 9, 10, 11, 11], vec![2, 2, 2, 3, 4, 4]];
        // Once more in reverse, so that nothing of an earlier table is left in a later one.
        let codes: Vec<Vec<u8>> = rising.chain(flat).chain(mixed).collect();
        let mut table = Table::default();
        for code in codes.iter().chain(codes.iter().rev()) {
            let mut lengths = Lengths([0; 256]);
            code.iter().enumerate().for_each(|(i, &len)| lengths.0[i * 7 % 256] = len);
            table.build(&lengths, MIN_MULTI_SYMBOL);
            for index in 0..TABLE_SIZE {
                let expected = entry(&table.single, index);
                assert_eq!(table.multi.entries[index], expected, "{code:?}, bits {index:011b}");
                assert!((expected >> 56) as usize <= table.multi.most);
            }
        }
    }
}
