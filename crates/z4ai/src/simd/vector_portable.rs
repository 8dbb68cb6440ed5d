//! [`Vector`] in plain Rust: arrays that compilers vectorise for the target's baseline.

use crate::simd::Portable;
use crate::simd::vector::{Lane, VECTOR, Vector};

type V = [u8; VECTOR];

/// Applies `$f` to every lane of two vectors as integers.
macro_rules! each {
    ($lane:ident, $a:expr, $b:expr, $f:expr) => {
        match $lane::SIZE {
            2 => each!(@ u16, 2, $a, $b, $f),
            4 => each!(@ u32, 4, $a, $b, $f),
            _ => each!(@ u64, 8, $a, $b, $f),
        }
    };
    (@ $type:ident, $size:literal, $a:expr, $b:expr, $f:expr) => {{
        let (a, b) = ($a, $b);
        let mut out = [0; VECTOR];
        let lanes = a.as_chunks::<$size>().0.iter().zip(b.as_chunks::<$size>().0);
        for (out, (a, b)) in out.as_chunks_mut::<$size>().0.iter_mut().zip(lanes) {
            *out = $f($type::from_le_bytes(*a), $type::from_le_bytes(*b)).to_le_bytes();
        }
        out
    }};
}

/// The mask of the lanes of two vectors for which `$f` is true.
macro_rules! mask {
    ($lane:ident, $a:expr, $b:expr, $f:expr) => {
        match $lane::SIZE {
            1 => mask!(@ u8, 1, $a, $b, $f),
            2 => mask!(@ u16, 2, $a, $b, $f),
            4 => mask!(@ u32, 4, $a, $b, $f),
            _ => mask!(@ u64, 8, $a, $b, $f),
        }
    };
    (@ $type:ident, $size:literal, $a:expr, $b:expr, $f:expr) => {{
        let (a, b) = (&$a, &$b);
        let lanes = a.as_chunks::<$size>().0.iter().zip(b.as_chunks::<$size>().0).enumerate();
        let mut mask = 0;
        for (i, (a, b)) in lanes {
            mask |= u64::from($f($type::from_le_bytes(*a), $type::from_le_bytes(*b))) << i;
        }
        mask
    }};
}

impl Vector for Portable {
    type V = V;

    #[inline(always)]
    fn load(self, bytes: &[u8; VECTOR]) -> V {
        *bytes
    }

    #[inline(always)]
    fn store(self, vector: V, bytes: &mut [u8; VECTOR]) {
        *bytes = vector;
    }

    #[inline(always)]
    fn splat<L: Lane>(self, number: u64) -> V {
        std::array::from_fn(|i| number.to_le_bytes()[i % L::SIZE])
    }

    #[inline(always)]
    fn and(self, a: V, b: V) -> V {
        std::array::from_fn(|i| a[i] & b[i])
    }

    #[inline(always)]
    fn or(self, a: V, b: V) -> V {
        std::array::from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    fn xor(self, a: V, b: V) -> V {
        std::array::from_fn(|i| a[i] ^ b[i])
    }

    #[inline(always)]
    fn add<L: Lane>(self, a: V, b: V) -> V {
        match L::SIZE {
            2 => each!(@ u16, 2, a, b, u16::wrapping_add),
            4 => each!(@ u32, 4, a, b, u32::wrapping_add),
            _ => each!(@ u64, 8, a, b, u64::wrapping_add),
        }
    }

    #[inline(always)]
    fn sub<L: Lane>(self, a: V, b: V) -> V {
        match L::SIZE {
            2 => each!(@ u16, 2, a, b, u16::wrapping_sub),
            4 => each!(@ u32, 4, a, b, u32::wrapping_sub),
            _ => each!(@ u64, 8, a, b, u64::wrapping_sub),
        }
    }

    #[inline(always)]
    fn shl<L: Lane>(self, vector: V, bits: u32) -> V {
        each!(L, vector, vector, |a, _| a << (bits as usize % (8 * L::SIZE)))
    }

    #[inline(always)]
    fn shr<L: Lane>(self, vector: V, bits: u32) -> V {
        each!(L, vector, vector, |a, _| a >> (bits as usize % (8 * L::SIZE)))
    }

    #[inline(always)]
    fn zero_extend<L: Lane>(self, bytes: &[u8]) -> V {
        let bytes = &bytes[..L::COUNT];
        let mut wide = [0; VECTOR];
        for i in 0..L::COUNT {
            wide[i * L::SIZE] = bytes[i];
        }
        wide
    }

    #[inline(always)]
    fn test_mask<L: Lane>(self, vector: V, bits: V) -> u64 {
        mask!(L, vector, bits, |a, b| a & b != 0)
    }

    #[inline(always)]
    fn cmpge_mask<L: Lane>(self, a: V, b: V) -> u64 {
        mask!(L, a, b, |a, b| a >= b)
    }

    #[inline(always)]
    fn compress<L: Lane>(self, mask: u64, vector: V, to: &mut [u8; VECTOR]) {
        let (mut mask, mut at) = (mask, 0);
        while mask != 0 {
            let lane = mask.trailing_zeros() as usize % L::COUNT * L::SIZE;
            to[at..at + L::SIZE].copy_from_slice(&vector[lane..lane + L::SIZE]);
            at += L::SIZE;
            mask &= mask - 1;
        }
    }

    #[inline(always)]
    fn expand<L: Lane>(self, mask: u64, from: &[u8; VECTOR]) -> V {
        let (mut mask, mut at, mut out) = (mask, 0, [0; VECTOR]);
        while mask != 0 {
            let lane = mask.trailing_zeros() as usize % L::COUNT * L::SIZE;
            out[lane..lane + L::SIZE].copy_from_slice(&from[at..at + L::SIZE]);
            at += L::SIZE;
            mask &= mask - 1;
        }
        out
    }

    #[inline(always)]
    fn select16(self, mask: u32) -> V {
        std::array::from_fn(|i| (mask >> (i / 2) & 1) as u8 * 0xff)
    }

    #[inline(always)]
    fn align_words(self, before: V, after: V, words: usize) -> V {
        align_words(before, after, words)
    }
}

/// [`Vector::align_words`] by way of memory.
#[inline(always)]
pub(crate) fn align_words(before: V, after: V, words: usize) -> V {
    let mut both = [0; 2 * VECTOR];
    both[..VECTOR].copy_from_slice(&before);
    both[VECTOR..].copy_from_slice(&after);
    let mut out = [0; VECTOR];
    let start = VECTOR - 8 * (words % 8);
    out.copy_from_slice(&both[start..start + VECTOR]);
    out
}
