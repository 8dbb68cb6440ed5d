//! Concatenates the Huffman codes of 64 symbols at a time, with byte look-ups in registers (VBMI).
//!
//! A code and its length take fifteen bits, so the codes of all symbols are two tables of bytes.
//! Two codes are concatenated by shifting the first by the length of the second; so are pairs of
//! pairs, and so on.

use crate::coder::huffman::lengths::Lengths;

/// Symbols that are looked up at a time. (structural: lanes of a 512-bit vector)
pub(crate) const GROUP: usize = 64;
/// Bits of a word of concatenated codes, at most. (structural: a word less up to 7 pending bits)
pub(crate) const MAX_PACKED_BITS: u64 = 57;
/// Entries that one look-up chooses from. (structural: bytes of a vector register)
const ENTRIES: usize = 64;
/// Tables that hold all symbols. (structural)
const MOST: usize = 256 / ENTRIES;
/// Bits of a code within sixteen; its length is above.
/// (structural: sixteen bits less those of a length)
pub(crate) const CODE_BITS: u32 = 12;

/// The codes of all symbols and their lengths, by symbol modulo the number of entries.
pub(crate) struct CodeTable {
    /// The lower and the upper bytes.
    pub(crate) bytes: [[[u8; ENTRIES]; MOST]; 2],
    /// Tables that are in use: 1, 2 or 4.
    pub(crate) tables: usize,
}

impl CodeTable {
    /// The smallest table that has an entry of its own for each symbol.
    pub(crate) fn new(lengths: &Lengths, codes: &[u16; 256]) -> Self {
        let mut table = Self { bytes: [[[0; ENTRIES]; MOST]; 2], tables: MOST };
        for tables in [1, 2] {
            let mut taken = [false; ENTRIES * 2];
            let apart = (0..256).filter(|&symbol| lengths.0[symbol] > 0).all(|symbol| {
                let entry = &mut taken[symbol % (tables * ENTRIES)];
                !std::mem::replace(entry, true)
            });
            if apart {
                table.tables = tables;
                break;
            }
        }
        for symbol in (0..256).filter(|&symbol| lengths.0[symbol] > 0) {
            let word = codes[symbol] | u16::from(lengths.0[symbol]) << CODE_BITS;
            let entry = symbol % (table.tables * ENTRIES);
            for (bytes, byte) in table.bytes.iter_mut().zip(word.to_le_bytes()) {
                bytes[entry / ENTRIES][entry % ENTRIES] = byte;
            }
        }
        table
    }
}

/// PackedCodes codes and how many bits they are: at most [`MAX_PACKED_BITS`].
#[derive(Debug)]
pub(crate) enum PackedCodes {
    Sixteens([u64; GROUP / 16], [u64; GROUP / 16]),
    Eights([u64; GROUP / 8], [u64; GROUP / 8]),
    /// Of every eight symbols the first four, and the last.
    Fours([([u64; GROUP / 8], [u64; GROUP / 8]); 2]),
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::simd::Avx512;
    use proptest::prelude::*;

    /// One code after the other, `per` at a time; `None` if that is too long.
    fn naive(symbols: &[u8; GROUP], lengths: &Lengths, per: usize) -> Option<Vec<(u64, u64)>> {
        let codes = lengths.codes();
        let joined = symbols.chunks(per).map(|symbols| {
            symbols.iter().fold((0u128, 0u64), |(joined, bits), &symbol| {
                let len = lengths.0[usize::from(symbol)];
                (
                    joined.wrapping_shl(u32::from(len)) | u128::from(codes[usize::from(symbol)]),
                    bits + u64::from(len),
                )
            })
        });
        joined.map(|(joined, bits)| (bits <= MAX_PACKED_BITS).then_some((joined as u64, bits))).collect()
    }

    /// Symbols per word, and the words.
    fn listed(joined: PackedCodes) -> (usize, Vec<(u64, u64)>) {
        match joined {
            PackedCodes::Sixteens(codes, lens) => (16, codes.into_iter().zip(lens).collect()),
            PackedCodes::Eights(codes, lens) => (8, codes.into_iter().zip(lens).collect()),
            PackedCodes::Fours(parts) => {
                let one = |i: usize| parts.iter().map(move |(codes, lens)| (codes[i], lens[i]));
                (4, (0..GROUP / 8).flat_map(one).collect())
            }
        }
    }

    proptest! {
        #[test]
        fn joined_codes_are_one_after_the_other(
            values in prop::collection::vec(any::<u32>(), GROUP),
            first in 0u8..=230,
            step in 1u8..=9,
            spread in 2u32..26,
            even: bool,
        ) {
            let Some(avx512) = Avx512::new() else { return Ok(()) };
            let symbol = |rank: u32| first.wrapping_add(step.wrapping_mul(rank as u8));
            let mut counts = [0; 256];
            (0..spread).for_each(|i| counts[usize::from(symbol(i))] = 1 << (24 - i.min(20)));
            // The rarer ones have the longest codes.
            let rank = |&v: &u32| if even { v % spread } else { (v | 1 << 25).trailing_zeros() % spread };
            let symbols: [u8; GROUP] = std::array::from_fn(|i| symbol(rank(&values[i])));
            let Some(lengths) = Lengths::for_counts(&counts) else { return Ok(()) };
            let table = CodeTable::new(&lengths, &lengths.codes());
            let (eight, sixteen) = match table.tables {
                1 => (avx512.pack_codes::<1, false>(&symbols, &table), avx512.pack_codes::<1, true>(&symbols, &table)),
                2 => (avx512.pack_codes::<2, false>(&symbols, &table), avx512.pack_codes::<2, true>(&symbols, &table)),
                _ => (avx512.pack_codes::<4, false>(&symbols, &table), avx512.pack_codes::<4, true>(&symbols, &table)),
            };
            let expected = |most: usize| {
                let per = [16, 8, 4].into_iter().filter(|&per| per <= most);
                per.filter_map(|per| Some((per, naive(&symbols, &lengths, per)?))).next()
            };
            prop_assert_eq!(Some(listed(eight)), expected(8));
            prop_assert_eq!(Some(listed(sixteen)), expected(16));
        }
    }
}
