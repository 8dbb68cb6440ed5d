//! The primitive operations that kernels are written in, once for all instruction sets.
//!
//! A vector has [`VECTOR`] bytes at every level: one AVX-512 register, two of AVX2, four of NEON,
//! an array in plain Rust. So that a kernel has one stride, one mask type and one tail whatever it
//! is compiled for. Lanes are elements of 1, 2, 4 or 8 bytes; bit `i` of a mask is about lane `i`.

use crate::simd::Isa;

/// Bytes of a vector: a cache line, and a stripe of XXH3.
pub(crate) const VECTOR: usize = 64;

/// The type of a lane.
pub(crate) trait Lane: Copy + 'static {
    const SIZE: usize;
    const COUNT: usize = VECTOR / Self::SIZE;
    /// The mask of all lanes.
    const ALL: u64 = u64::MAX >> (64 - Self::COUNT);
}

impl Lane for u8 {
    const SIZE: usize = 1;
}
impl Lane for u16 {
    const SIZE: usize = 2;
}
impl Lane for u32 {
    const SIZE: usize = 4;
}
impl Lane for u64 {
    const SIZE: usize = 8;
}

/// Calls a function that is generic over [`Lane`] for elements of a size.
macro_rules! for_lane {
    ($size:expr, $lane:ident, $call:expr) => {
        match $size {
            1 => for_lane!(@ $lane u8, $call),
            2 => for_lane!(@ $lane u16, $call),
            4 => for_lane!(@ $lane u32, $call),
            _ => for_lane!(@ $lane u64, $call),
        }
    };
    (@ $lane:ident $type:ident, $call:expr) => {{
        type $lane = $type;
        $call
    }};
}
pub(crate) use for_lane;

/// The operations of a level on vectors.
pub(crate) trait Vector: Isa {
    /// [`VECTOR`] bytes in registers.
    type V: Copy;

    fn load(self, bytes: &[u8; VECTOR]) -> Self::V;
    fn store(self, vector: Self::V, bytes: &mut [u8; VECTOR]);
    /// The number in every lane, truncated to its size.
    fn splat<L: Lane>(self, number: u64) -> Self::V;
    fn and(self, a: Self::V, b: Self::V) -> Self::V;
    fn or(self, a: Self::V, b: Self::V) -> Self::V;
    fn xor(self, a: Self::V, b: Self::V) -> Self::V;
    /// Wrapping sums; lanes of at least two bytes.
    fn add<L: Lane>(self, a: Self::V, b: Self::V) -> Self::V;
    /// Wrapping differences; lanes of at least two bytes.
    fn sub<L: Lane>(self, a: Self::V, b: Self::V) -> Self::V;
    /// Shifts lanes of at least two bytes by fewer bits than they have.
    fn shl<L: Lane>(self, vector: Self::V, bits: u32) -> Self::V;
    /// As [`shl`](Self::shl), to lower bits, zeros coming in.
    fn shr<L: Lane>(self, vector: Self::V, bits: u32) -> Self::V;
    /// The first bytes of `bytes`, which has one for each lane, zero-extended; lanes of two or four
    /// bytes.
    fn zero_extend<L: Lane>(self, bytes: &[u8]) -> Self::V;
    /// The mask of lanes that have any of these bits.
    fn test_mask<L: Lane>(self, vector: Self::V, bits: Self::V) -> u64;
    /// The mask of lanes where `a >= b`, unsigned.
    fn cmpge_mask<L: Lane>(self, a: Self::V, b: Self::V) -> u64;
    /// Stores the lanes of the mask side by side; what is behind them is unspecified.
    fn compress<L: Lane>(self, mask: u64, vector: Self::V, to: &mut [u8; VECTOR]);
    /// The inverse of [`compress`](Self::compress): consecutive lanes of `from` in the places of
    /// the mask, zero elsewhere.
    fn expand<L: Lane>(self, mask: u64, from: &[u8; VECTOR]) -> Self::V;
    /// All bits of the lanes of two bytes that the mask selects, none of the others.
    fn select16(self, mask: u32) -> Self::V;
    /// The last `words` (0 to 7) words of eight bytes of `before`, then the first of `after`.
    fn align_words(self, before: Self::V, after: Self::V, words: usize) -> Self::V;

    /// The vector as an array: what [`Isa`] works on.
    #[inline(always)]
    fn bytes(self, vector: Self::V) -> [u8; VECTOR] {
        let mut bytes = [0; VECTOR];
        self.store(vector, &mut bytes);
        bytes
    }

    /// All ones in lanes whose highest bit is set, else zero.
    #[inline(always)]
    fn signs<L: Lane>(self, vector: Self::V) -> Self::V {
        self.sub::<L>(self.splat::<L>(0), self.shr::<L>(vector, L::SIZE as u32 * 8 - 1))
    }
}

/// Byte shuffles for eight lanes of one or two bytes, by a mask of eight bits: a level that has no
/// compress instruction takes them from here.
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]
pub(crate) mod tables {
    /// The lanes of the mask, in order; the rest is 128, which shuffles to zero.
    pub(crate) static COMPRESS: [[u8; 8]; 256] = lanes(false);
    /// The rank of each lane of the mask, and 128 for the others.
    pub(crate) static EXPAND: [[u8; 8]; 256] = lanes(true);
    /// The same for lanes of two bytes.
    pub(crate) static COMPRESS_PAIRS: [[u8; 16]; 256] = pairs(&lanes(false));
    pub(crate) static EXPAND_PAIRS: [[u8; 16]; 256] = pairs(&lanes(true));

    const fn lanes(expand: bool) -> [[u8; 8]; 256] {
        let mut table = [[128; 8]; 256];
        let mut mask = 0;
        while mask < 256 {
            let (mut lane, mut rank) = (0, 0);
            while lane < 8 {
                if mask >> lane & 1 == 1 {
                    if expand {
                        table[mask][lane] = rank as u8;
                    } else {
                        table[mask][rank] = lane as u8;
                    }
                    rank += 1;
                }
                lane += 1;
            }
            mask += 1;
        }
        table
    }

    const fn pairs(lanes: &[[u8; 8]; 256]) -> [[u8; 16]; 256] {
        let mut table = [[128; 16]; 256];
        let mut mask = 0;
        while mask < 256 {
            let mut i = 0;
            while i < 8 {
                if lanes[mask][i] < 128 {
                    table[mask][2 * i] = lanes[mask][i] * 2;
                    table[mask][2 * i + 1] = lanes[mask][i] * 2 + 1;
                }
                i += 1;
            }
            mask += 1;
        }
        table
    }

    /// Four bits, each twice.
    pub(crate) const TWICE: [u8; 16] = {
        let mut table = [0; 16];
        let mut mask = 0;
        while mask < 16 {
            let mut lane = 0;
            while lane < 4 {
                table[mask] |= ((mask >> lane & 1) as u8 * 3) << (2 * lane);
                lane += 1;
            }
            mask += 1;
        }
        table
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Portable;
    use proptest::prelude::*;

    fn load<L: Lane>(bytes: &[u8; VECTOR]) -> Vec<u64> {
        let lane = |lane: &[u8]| lane.iter().rev().fold(0u64, |word, &byte| word << 8 | u64::from(byte));
        bytes.chunks(L::SIZE).map(lane).collect()
    }

    fn mask_of(lanes: impl Iterator<Item = bool>) -> u64 {
        lanes.enumerate().map(|(i, set)| u64::from(set) << i).sum()
    }

    /// Every operation against one lane at a time.
    fn check<L: Lane>(isa: impl Vector, a: [u8; 64], b: [u8; 64], mask: u64) -> Result<(), TestCaseError> {
        let (va, vb) = (isa.load(&a), isa.load(&b));
        let (la, lb) = (load::<L>(&a), load::<L>(&b));
        let truncate = |n: u64| n & u64::MAX >> (64 - 8 * L::SIZE);
        let lanes = |v| load::<L>(&isa.bytes(v));
        let by = |f: &dyn Fn(u64, u64) -> u64| -> Vec<u64> {
            la.iter().zip(&lb).map(|(&a, &b)| truncate(f(a, b))).collect()
        };
        prop_assert_eq!(isa.bytes(va), a);
        prop_assert_eq!(lanes(isa.splat::<L>(mask)), vec![truncate(mask); L::COUNT]);
        prop_assert_eq!(lanes(isa.and(va, vb)), by(&|a, b| a & b));
        prop_assert_eq!(lanes(isa.or(va, vb)), by(&|a, b| a | b));
        prop_assert_eq!(lanes(isa.xor(va, vb)), by(&|a, b| a ^ b));
        if L::SIZE > 1 {
            prop_assert_eq!(lanes(isa.add::<L>(va, vb)), by(&|a, b| a.wrapping_add(b)));
            prop_assert_eq!(lanes(isa.sub::<L>(va, vb)), by(&|a, b| a.wrapping_sub(b)));
            for bits in [0, 1, 7, 8, 8 * L::SIZE as u32 - 1] {
                prop_assert_eq!(lanes(isa.shl::<L>(va, bits)), by(&|a, _| a << bits));
                prop_assert_eq!(lanes(isa.shr::<L>(va, bits)), by(&|a, _| a >> bits));
            }
            let top = 8 * L::SIZE - 1;
            prop_assert_eq!(lanes(isa.signs::<L>(va)), by(&|a, _| (a >> top & 1).wrapping_neg()));
        }
        if matches!(L::SIZE, 2 | 4) {
            let wide: Vec<u64> = a[..L::COUNT].iter().map(|&byte| u64::from(byte)).collect();
            prop_assert_eq!(lanes(isa.zero_extend::<L>(&a)), wide);
        }
        let mask = mask & L::ALL;
        let sparse = isa.expand::<L>(mask, &a);
        prop_assert_eq!(isa.test_mask::<L>(va, vb), mask_of(la.iter().zip(&lb).map(|(a, b)| a & b != 0)));
        prop_assert_eq!(isa.test_mask::<L>(sparse, sparse), mask_of(lanes(sparse).iter().map(|&n| n != 0)));
        prop_assert_eq!(isa.cmpge_mask::<L>(va, vb), mask_of(la.iter().zip(&lb).map(|(a, b)| a >= b)));
        prop_assert_eq!(isa.cmpge_mask::<L>(va, va), L::ALL);
        let chosen: Vec<u64> = (0..L::COUNT).filter(|i| mask >> i & 1 == 1).map(|i| la[i]).collect();
        let mut compressed = [0xee; VECTOR];
        isa.compress::<L>(mask, va, &mut compressed);
        prop_assert_eq!(&load::<L>(&compressed)[..chosen.len()], &chosen[..]);
        let mut next = la.iter();
        let placed = (0..L::COUNT).map(|i| if mask >> i & 1 == 1 { *next.next().unwrap() } else { 0 });
        prop_assert_eq!(lanes(sparse), placed.collect::<Vec<u64>>());
        Ok(())
    }

    fn check_all(isa: impl Vector, a: [u8; 64], b: [u8; 64], mask: u64) -> Result<(), TestCaseError> {
        for mask in [mask, 0, u64::MAX, mask & mask << 7] {
            check::<u8>(isa, a, b, mask)?;
            check::<u16>(isa, a, b, mask)?;
            check::<u32>(isa, a, b, mask)?;
            check::<u64>(isa, a, b, mask)?;
        }
        let (va, vb) = (isa.load(&a), isa.load(&b));
        let selected = load::<u16>(&isa.bytes(isa.select16(mask as u32)));
        prop_assert_eq!(selected, (0..32).map(|i| (mask >> i & 1) * 0xffff).collect::<Vec<u64>>());
        for words in 0..8 {
            let both = [a, b].concat();
            let expected = &both[64 - 8 * words..128 - 8 * words];
            prop_assert_eq!(&isa.bytes(isa.align_words(va, vb, words))[..], expected);
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn every_level_does_as_one_lane_at_a_time(a: [[u8; 32]; 2], b: [[u8; 32]; 2], mask: u64, few in 0usize..64) {
            let whole = |halves: [[u8; 32]; 2]| -> [u8; 64] { std::array::from_fn(|i| halves[i / 32][i % 32]) };
            let (a, mut b) = (whole(a), whole(b));
            b[few..].copy_from_slice(&a[few..]);
            check_all(Portable, a, b, mask)?;
            #[cfg(target_arch = "x86_64")]
            if let Some(isa) = crate::simd::Avx2::new() {
                check_all(isa, a, b, mask)?;
            }
            #[cfg(target_arch = "x86_64")]
            if let Some(isa) = crate::simd::Avx512::new() {
                check_all(isa, a, b, mask)?;
            }
            #[cfg(target_arch = "aarch64")]
            if let Some(isa) = crate::simd::Neon::new() {
                check_all(isa, a, b, mask)?;
            }
        }
    }
}
