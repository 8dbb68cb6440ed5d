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
//! 3. The streams take turns of two or three look-ups each. Turns do not depend on one another, so the
//!    processor works on several at once.
//! 4. The bit buffer carries a sentinel bit below its data: the number of consumed bits is the
//!    number of trailing zeros, and no counter is kept per look-up.
//! 5. Decoding computes and hardly touches memory; what follows it is the reverse. So each step
//!    also asks for a few cache lines that the caller will need ([`DecodePrefetch`]).
//! 6. Bounds are checked once for as many steps as cannot pass them. What remains at the end of
//!    each stream is decoded symbol by symbol with every access checked.

use crate::coder::huffman::decode::{Cursor, DecodePrefetch, advance};
use crate::coder::huffman::table::{MIN_MULTI_SYMBOL, Table};
use crate::coder::run_range;
use crate::error::{Error, Result};
use crate::wire::{Put, Reader};

/// Bit streams per coded run of symbols, if that is long enough. (format)
pub(super) const STREAMS: usize = 8;

/// Bytes of a stored length, unless fewer are stated. (structural: bytes of a `u32`)
const WHOLE: u32 = 4;
/// Where the bytes of a length stand in the byte of the number of streams. (format)
const WIDTH_SHIFT: u32 = 4;
/// Streams of fewer bytes have lengths of fewer bytes, which earlier versions do not know: two bytes for each of eight streams are
/// 0.2 % of these. (case: `codec.py table`, small tensors)
const MAX_SHORT: u64 = 8 << 10;

/// Bytes a load reads and a store writes at the position it is made at. (structural: bytes of a word)
pub(super) const WORD: usize = 8;

/// The stored lengths of the streams, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stored {
    lens: [u32; STREAMS],
    one: bool,
}

impl Stored {
    /// The lengths of one stream, or of [`STREAMS`].
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
    pub(crate) fn total(&self) -> u64 {
        self.lens.iter().map(|&len| u64::from(len)).sum()
    }

    /// `u8` number of streams and bytes of a length, then the lengths.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let longest = self.lens().iter().fold(1, |most, &len| most.max(len));
        let bytes = match self.total() {
            0..MAX_SHORT => (u32::BITS - longest.leading_zeros()).div_ceil(8),
            _ => WHOLE,
        };
        let width = if bytes == WHOLE { 0 } else { bytes as u8 };
        out.put_u8(self.streams() as u8 | width << WIDTH_SHIFT);
        self.lens().iter().for_each(|len| out.extend(&len.to_le_bytes()[..bytes as usize]));
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let head = reader.u8()?;
        let (streams, width) = (usize::from(head & ((1 << WIDTH_SHIFT) - 1)), u32::from(head >> WIDTH_SHIFT));
        let bytes = if width == 0 { WHOLE } else { width };
        let mut lens = [0; STREAMS];
        let known = streams <= STREAMS && (width == 0 || bytes < WHOLE);
        if known {
            for len in &mut lens[..streams] {
                let mut word = [0; WHOLE as usize];
                word[..bytes as usize].copy_from_slice(reader.take(bytes as usize)?);
                *len = u32::from_le_bytes(word);
            }
        }
        let stored = lens.get(..streams).filter(|_| known).and_then(Self::new);
        stored.ok_or_else(|| Error::corrupt(format_args!("Huffman streams of form {head}")))
    }
}

impl Table {
    /// Decodes streams, stored back to back with these lengths, into `out`, while prefetching for
    /// the caller. The tables must be [built](Self::build) for as many symbols.
    pub(crate) fn decode(
        &mut self,
        stored: &[u8],
        lens: Stored,
        out: &mut [u8],
        ahead: &mut DecodePrefetch,
    ) -> Result<()> {
        let total = out.len();
        let mut cursors = Vec::with_capacity(lens.streams());
        let (mut input, mut output) = (stored, out);
        for (index, &len) in lens.lens().iter().enumerate() {
            let Some((source, rest)) = input.split_at_checked(len as usize) else {
                return Err(Error::corrupt("a Huffman stream runs past its chunk"));
            };
            input = rest;
            let (run, rest) = output.split_at_mut(run_range(index, lens.streams(), total).len());
            output = rest;
            cursors.push(Cursor::new(source, run));
        }
        if total >= MIN_MULTI_SYMBOL {
            advance(&mut cursors, &mut self.multi, ahead);
        }
        cursors.iter_mut().try_for_each(|cursor| cursor.finish(&self.single))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coder::huffman::decode::{advance_with, run_portable};
    use crate::coder::huffman::encode::{HuffmanScratch, encode};
    use crate::coder::huffman::lengths::Lengths;
    use crate::simd::prefetch::Prefetcher;
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
            for _ in run_range(index, lens.streams(), total) {
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
        let (scratch, none) = (&mut HuffmanScratch::default(), &mut Prefetcher::default());
        let lens = encode(symbols, &lengths, &mut stored, scratch, none);
        let mut table = Table::default();
        table.build(&lengths, usize::MAX);
        let mut out = vec![0; symbols.len()];
        table.decode(&stored, lens, &mut out, &mut DecodePrefetch::default()).unwrap();
        assert_eq!(out, symbols);
        if with_naive {
            assert_eq!(naive(&stored, lens, &lengths, symbols.len()), symbols);
        }
        // The portable loop, whatever this machine has.
        let run = run_range(0, lens.streams(), symbols.len());
        let mut portable = vec![0; run.len()];
        let mut cursors = [Cursor::new(&stored[..lens.lens()[0] as usize], &mut portable)];
        advance_with(&mut cursors, &mut table.multi, &mut DecodePrefetch::default(), run_portable);
        cursors[0].finish(&table.single).unwrap();
        assert_eq!(portable, symbols[run]);
    }

    #[test]
    fn lengths_take_as_many_bytes_as_they_need() {
        let cases: [(&[u32], usize); 6] = [
            (&[0], 1),
            (&[255], 1),
            (&[256], 2),
            (&[1, 2, 3, 4, 5, 6, 7, 1000], 2),
            (&[8191], 2),
            (&[1024; STREAMS], 4),
        ];
        for (lens, bytes) in cases {
            let stored = Stored::new(lens).unwrap();
            let mut written = Vec::new();
            stored.write(&mut written);
            assert_eq!(written.len(), 1 + lens.len() * bytes, "{lens:?}");
            assert_eq!(Stored::read(&mut Reader::new(&written)).unwrap(), stored);
        }
        for head in [0, 2, 9, 0x10, 0x22, 0x41, 0x48, 0xf8] {
            let bytes = [[head].as_slice(), &[0; 40]].concat();
            assert!(Stored::read(&mut Reader::new(&bytes)).is_err(), "{head:#x}");
        }
        // Readers accept three bytes, too, which writers do not need.
        assert_eq!(Stored::read(&mut Reader::new(&[0x31, 1, 2, 3])).unwrap().total(), 0x03_0201);
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
                table.build(&lengths, usize::MAX);
                let mut out = vec![0; symbols.len()];
                let part = (cut.min(noise.len()) / STREAMS) as u32;
                let mut lens = [part; STREAMS];
                lens[STREAMS - 1] = noise.len() as u32 - part * (STREAMS as u32 - 1);
                for lens in [&lens[..], &[noise.len() as u32]] {
                    let lens = Stored::new(lens).unwrap();
                    let _ = table.decode(&noise, lens, &mut out, &mut DecodePrefetch::default());
                }
            }
        }
    }
}
