//! Quants between the bytes of a block and symbols of one byte.
//!
//! Symbols hold neighbours of one group, so that all of a symbol has one scale, and as many of them as
//! fit eight bits; quants of five and six bits, whose high bits a block has apart, are put together.
//! Loops run over arrays of known lengths, which compilers vectorise at every level.

/// Symbols of a block, at most. (format)
pub(super) const MAX_SYMBOLS: usize = 256;

/// One block between its bytes and its symbols.
pub(super) trait Packing: Copy {
    /// Symbols per block.
    const SYMBOLS: usize;
    /// Symbols per group, where there may be several classes.
    const GROUP: usize;
    /// Writes the symbols of `block`.
    fn unpack(self, block: &[u8], symbols: &mut [u8]);
    /// Writes the quants of `block`.
    fn pack(self, symbols: &[u8], block: &mut [u8]);
}

/// Calls `$body` with `$packing` bound to the [`Packing`] of `$quants`; `$none` where there is none.
macro_rules! with_packing {
    ($quants:expr, $packing:ident => $body:expr, $none:expr) => {
        match $quants {
            Quants::None => $none,
            Quants::Bytes { at, len: 16 } => {
                let $packing = Plain::<16>(at);
                $body
            }
            Quants::Bytes { at, len: 32 } => {
                let $packing = Plain::<32>(at);
                $body
            }
            Quants::Bytes { at, .. } => {
                let $packing = Plain::<256>(at);
                $body
            }
            Quants::Nibbles { at, half: 4, .. } => {
                let $packing = Nibbles::<4, 4>(at);
                $body
            }
            Quants::Nibbles { at, sets: 1, .. } => {
                let $packing = Nibbles::<1, 8>(at);
                $body
            }
            Quants::Nibbles { at, sets: 8, .. } => {
                let $packing = Nibbles::<8, 8>(at);
                $body
            }
            Quants::Nibbles { at, .. } => {
                let $packing = Nibbles::<4, 16>(at);
                $body
            }
            Quants::Five { high, low } => {
                let $packing = Five { high, low };
                $body
            }
            Quants::FiveOfGroups { high, low } => {
                let $packing = FiveOfGroups { high, low };
                $body
            }
            Quants::Six { low, high } => {
                let $packing = Six { low, high };
                $body
            }
            Quants::Three { high, low } => {
                let $packing = Three { high, low };
                $body
            }
            Quants::Two { at } => {
                let $packing = Two { at };
                $body
            }
        }
    };
}
pub(super) use with_packing;

/// `N` bytes of `bytes` from `at` on.
#[inline(always)]
fn part<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..].first_chunk().expect("a whole block")
}

#[inline(always)]
fn part_mut<const N: usize>(bytes: &mut [u8], at: usize) -> &mut [u8; N] {
    bytes[at..].first_chunk_mut().expect("a whole block")
}

/// `N` bytes as they are.
#[derive(Clone, Copy)]
pub(super) struct Plain<const N: usize>(pub(super) usize);

impl<const N: usize> Packing for Plain<N> {
    /// (format)
    const SYMBOLS: usize = N;
    const GROUP: usize = N;

    #[inline(always)]
    fn unpack(self, block: &[u8], symbols: &mut [u8]) {
        *part_mut::<N>(symbols, 0) = *part(block, self.0);
    }

    #[inline(always)]
    fn pack(self, symbols: &[u8], block: &mut [u8]) {
        *part_mut::<N>(block, self.0) = *part(symbols, 0);
    }
}

/// The bytes of two neighbours, from the symbols of two runs: low nibbles are of the first run.
#[inline(always)]
fn join_nibbles(first: u8, second: u8) -> [u8; 2] {
    [first & 15 | (second & 15) << 4, first >> 4 | second & 0xf0]
}

/// The symbols of two runs, from the bytes of two neighbours.
#[inline(always)]
fn split_nibbles([even, odd]: [u8; 2]) -> (u8, u8) {
    (even & 15 | (odd & 15) << 4, even >> 4 | odd & 0xf0)
}

/// `SETS` runs of `2 * HALF` bytes.
#[derive(Clone, Copy)]
pub(super) struct Nibbles<const SETS: usize, const HALF: usize>(pub(super) usize);

impl<const SETS: usize, const HALF: usize> Packing for Nibbles<SETS, HALF> {
    /// (format)
    const SYMBOLS: usize = 2 * SETS * HALF;
    const GROUP: usize = if HALF == 4 { 8 } else { 16 };

    #[inline(always)]
    fn unpack(self, block: &[u8], symbols: &mut [u8]) {
        for set in 0..SETS {
            let bytes = &block[self.0 + 2 * HALF * set..][..2 * HALF];
            let (first, second) = symbols[2 * HALF * set..][..2 * HALF].split_at_mut(HALF);
            let (first, second) = (part_mut::<HALF>(first, 0), part_mut::<HALF>(second, 0));
            for i in 0..HALF {
                (first[i], second[i]) = split_nibbles([bytes[2 * i], bytes[2 * i + 1]]);
            }
        }
    }

    #[inline(always)]
    fn pack(self, symbols: &[u8], block: &mut [u8]) {
        for set in 0..SETS {
            let bytes = &mut block[self.0 + 2 * HALF * set..][..2 * HALF];
            let first = part::<HALF>(symbols, 2 * HALF * set);
            let second = part::<HALF>(symbols, 2 * HALF * set + HALF);
            for i in 0..HALF {
                let [even, odd] = join_nibbles(first[i], second[i]);
                (bytes[2 * i], bytes[2 * i + 1]) = (even, odd);
            }
        }
    }
}

/// 32 quants of five bits, the highest of which are 32 bits.
#[derive(Clone, Copy)]
pub(super) struct Five {
    pub(super) high: usize,
    pub(super) low: usize,
}

impl Packing for Five {
    /// (format)
    const SYMBOLS: usize = 32;
    const GROUP: usize = 32;

    #[inline(always)]
    fn unpack(self, block: &[u8], symbols: &mut [u8]) {
        let high = u32::from_le_bytes(*part(block, self.high));
        let low = part::<16>(block, self.low);
        let symbols = part_mut::<32>(symbols, 0);
        for i in 0..16 {
            symbols[i] = low[i] & 15 | ((high >> i & 1) as u8) << 4;
            symbols[i + 16] = low[i] >> 4 | ((high >> (i + 16) & 1) as u8) << 4;
        }
    }

    #[inline(always)]
    fn pack(self, symbols: &[u8], block: &mut [u8]) {
        let symbols = part::<32>(symbols, 0);
        let low = part_mut::<16>(block, self.low);
        for i in 0..16 {
            low[i] = symbols[i] & 15 | symbols[i + 16] << 4;
        }
        let high = part_mut::<4>(block, self.high);
        for (high, eight) in high.iter_mut().zip(symbols.as_chunks::<8>().0) {
            // Bit 4 of eight bytes, moved to one byte by a product that adds each at its place.
            let bits = u64::from_le_bytes(*eight) >> 4 & 0x0101_0101_0101_0101;
            *high = (bits.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8;
        }
    }
}

/// 256 quants of five bits in eight groups.
#[derive(Clone, Copy)]
pub(super) struct FiveOfGroups {
    pub(super) high: usize,
    pub(super) low: usize,
}

impl Packing for FiveOfGroups {
    /// (format)
    const SYMBOLS: usize = 256;
    const GROUP: usize = 32;

    #[inline(always)]
    fn unpack(self, block: &[u8], symbols: &mut [u8]) {
        let high = part::<32>(block, self.high);
        for (pair, symbols) in part_mut::<256>(symbols, 0).as_chunks_mut::<64>().0.iter_mut().enumerate() {
            let low = part::<32>(block, self.low + 32 * pair);
            for i in 0..32 {
                symbols[i] = low[i] & 15 | (high[i] >> (2 * pair) & 1) << 4;
                symbols[i + 32] = low[i] >> 4 | (high[i] >> (2 * pair + 1) & 1) << 4;
            }
        }
    }

    #[inline(always)]
    fn pack(self, symbols: &[u8], block: &mut [u8]) {
        let mut high = [0; 32];
        for (pair, symbols) in part::<256>(symbols, 0).as_chunks::<64>().0.iter().enumerate() {
            let low = part_mut::<32>(block, self.low + 32 * pair);
            for i in 0..32 {
                low[i] = symbols[i] & 15 | symbols[i + 32] << 4;
                high[i] |= (symbols[i] >> 4 & 1) << (2 * pair) | (symbols[i + 32] >> 4 & 1) << (2 * pair + 1);
            }
        }
        *part_mut::<32>(block, self.high) = high;
    }
}

/// 256 quants of six bits: two halves of four rows of 32, whose nibbles are in two bytes and whose
/// two high bits are in one.
#[derive(Clone, Copy)]
pub(super) struct Six {
    pub(super) low: usize,
    pub(super) high: usize,
}

impl Packing for Six {
    /// (format)
    const SYMBOLS: usize = 256;
    const GROUP: usize = 16;

    #[inline(always)]
    fn unpack(self, block: &[u8], symbols: &mut [u8]) {
        for (half, symbols) in part_mut::<256>(symbols, 0).as_chunks_mut::<128>().0.iter_mut().enumerate() {
            let low = part::<64>(block, self.low + 64 * half);
            let high = part::<32>(block, self.high + 32 * half);
            for i in 0..32 {
                symbols[i] = low[i] & 15 | (high[i] & 3) << 4;
                symbols[i + 32] = low[i + 32] & 15 | (high[i] >> 2 & 3) << 4;
                symbols[i + 64] = low[i] >> 4 | (high[i] >> 4 & 3) << 4;
                symbols[i + 96] = low[i + 32] >> 4 | high[i] >> 6 << 4;
            }
        }
    }

    #[inline(always)]
    fn pack(self, symbols: &[u8], block: &mut [u8]) {
        for (half, symbols) in part::<256>(symbols, 0).as_chunks::<128>().0.iter().enumerate() {
            let low = part_mut::<64>(block, self.low + 64 * half);
            for i in 0..32 {
                low[i] = symbols[i] & 15 | symbols[i + 64] << 4;
                low[i + 32] = symbols[i + 32] & 15 | symbols[i + 96] << 4;
            }
            let high = part_mut::<32>(block, self.high + 32 * half);
            for i in 0..32 {
                let [a, b, c, d] = [0, 32, 64, 96].map(|row| symbols[i + row] >> 4 & 3);
                high[i] = a | b << 2 | c << 4 | d << 6;
            }
        }
    }
}

/// 256 quants of three bits in eight rows of 32: two low bits in the four parts of a byte, the high
/// bit in the eight bits of another.
#[derive(Clone, Copy)]
pub(super) struct Three {
    pub(super) high: usize,
    pub(super) low: usize,
}

impl Packing for Three {
    /// (format)
    const SYMBOLS: usize = 128;
    const GROUP: usize = 8;

    #[inline(always)]
    fn unpack(self, block: &[u8], symbols: &mut [u8]) {
        let high = part::<32>(block, self.high);
        for (row, symbols) in part_mut::<128>(symbols, 0).as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let low = part::<32>(block, self.low + 32 * (row / 4));
            let quant = |i: usize| low[i] >> (2 * (row % 4)) & 3 | (high[i] >> row & 1) << 2;
            for i in 0..16 {
                symbols[i] = quant(2 * i) | quant(2 * i + 1) << 3;
            }
        }
    }

    #[inline(always)]
    fn pack(self, symbols: &[u8], block: &mut [u8]) {
        let (mut low, mut high) = ([0; 64], [0; 32]);
        for (row, symbols) in part::<128>(symbols, 0).as_chunks::<16>().0.iter().enumerate() {
            let low = part_mut::<32>(&mut low, 32 * (row / 4));
            for i in 0..16 {
                let (even, odd) = (symbols[i] & 7, symbols[i] >> 3 & 7);
                low[2 * i] |= (even & 3) << (2 * (row % 4));
                low[2 * i + 1] |= (odd & 3) << (2 * (row % 4));
                high[2 * i] |= (even >> 2) << row;
                high[2 * i + 1] |= (odd >> 2) << row;
            }
        }
        *part_mut::<64>(block, self.low) = low;
        *part_mut::<32>(block, self.high) = high;
    }
}

/// 256 quants of two bits in eight rows of 32, four of which share bytes.
#[derive(Clone, Copy)]
pub(super) struct Two {
    pub(super) at: usize,
}

/// Four quants of two bits, a byte each.
#[inline(always)]
fn spread(symbol: u8) -> u32 {
    let symbol = u32::from(symbol);
    symbol & 3 | (symbol & 0xc) << 6 | (symbol & 0x30) << 12 | (symbol & 0xc0) << 18
}

impl Packing for Two {
    /// (format)
    const SYMBOLS: usize = 64;
    const GROUP: usize = 4;

    #[inline(always)]
    fn unpack(self, block: &[u8], symbols: &mut [u8]) {
        for (half, symbols) in part_mut::<64>(symbols, 0).as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (i, four) in part::<32>(block, self.at + 32 * half).as_chunks::<4>().0.iter().enumerate() {
                for row in 0..4 {
                    let [a, b, c, d] = four.map(|byte| byte >> (2 * row) & 3);
                    symbols[8 * row + i] = a | b << 2 | c << 4 | d << 6;
                }
            }
        }
    }

    #[inline(always)]
    fn pack(self, symbols: &[u8], block: &mut [u8]) {
        for (half, symbols) in part::<64>(symbols, 0).as_chunks::<32>().0.iter().enumerate() {
            let out = part_mut::<32>(block, self.at + 32 * half);
            for (i, four) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let row = |row: usize| spread(symbols[8 * row + i]) << (2 * row);
                *four = (row(0) | row(1) | row(2) | row(3)).to_le_bytes();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::types::{Quants, TABLE};
    use super::*;

    fn round_trip(packing: impl Packing, quants: Quants, block: &[u8]) {
        let mut symbols = vec![0; quants.symbols()];
        packing.unpack(block, &mut symbols);
        assert!(symbols.iter().all(|&symbol| u32::from(symbol) >> quants.bits() == 0));
        let mut out = block.to_vec();
        // What is not written stays, so that all of it has to be.
        let mut inverted: Vec<u8> = block.iter().map(|byte| !byte).collect();
        packing.pack(&symbols, &mut out);
        packing.pack(&symbols, &mut inverted);
        assert_eq!(out, block);
        let changed = inverted.iter().zip(block).filter(|(a, b)| a == b).count();
        let bits = match quants {
            Quants::Three { .. } => 3 * 256,
            Quants::Five { .. } => 5 * 32,
            Quants::FiveOfGroups { .. } => 5 * 256,
            Quants::Six { .. } => 6 * 256,
            _ => 8 * quants.symbols(),
        };
        assert_eq!(changed, bits / 8, "{quants:?}");
    }

    proptest! {
        #[test]
        fn blocks_come_back(bytes in prop::collection::vec(any::<u8>(), 292)) {
            for row in &TABLE {
                let block = &bytes[..row.bytes];
                with_packing!(row.quants, packing => round_trip(packing, row.quants, block), ());
            }
        }
    }
}
