//! The loops that touch every element.
//!
//! Each is written once, over fixed blocks that compilers vectorise, and compiled twice: for the
//! baseline of the target and for AVX2 with BMI2, chosen at run time. Where an instruction set
//! has something no compiler finds by itself (fields of odd widths, byte shuffles), the block
//! calls it through [`Isa`], whose portable twin does the same in plain arithmetic. A few loops of the
//! encoder have a third form, for the byte look-ups of AVX-512 ([`Avx512`]).

// Lanes of several arrays side by side read best with an index.
#![allow(clippy::needless_range_loop)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod blocks;
pub(crate) mod classes;
#[cfg(target_arch = "x86_64")]
pub(crate) mod codes;
pub(crate) mod copy;
pub(crate) mod difference;
pub(crate) mod fields;
pub(crate) mod hash;
pub(crate) mod histogram;
pub(crate) mod lookup;
pub(crate) mod magnitude;
pub(crate) mod marked;
#[cfg(target_arch = "x86_64")]
mod moving;
pub(crate) mod packed;
pub(crate) mod sparse;
pub(crate) mod sums;
pub(crate) mod window;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
use hash::{STRIPE, Sums};
use window::Window;

/// The few operations that instruction sets differ in.
pub(crate) trait Isa: Copy {
    /// What it takes to unpack fields of one width.
    type Unpacker: Copy;

    /// For fields of `bits` (1 to 7) bits.
    fn unpacker(self, bits: u32) -> Self::Unpacker;
    /// Sixteen fields, lowest bit first: eight from the start of `low`, eight from the start of
    /// `high`.
    fn unpack(self, low: [u8; 16], high: [u8; 16], unpacker: Self::Unpacker) -> [u16; 16];
    /// Packs fields of `bits` (1 to 7) bits: eight into the low bits of each word.
    fn pack(self, fields: [u16; 16], bits: u32) -> [u64; 2];
    /// Sixteen elements from their upper halves and their two lower bytes.
    fn widen(self, top: [u16; 16], high: [u8; 16], low: [u8; 16]) -> [u32; 16];
    /// The upper halves and the two lower bytes of sixteen elements.
    fn narrow(self, elements: [u32; 16]) -> ([u16; 16], [u8; 16], [u8; 16]);
    /// Sign, eight bits of symbol and seven more, from the symbols and the others.
    fn join_bytes(self, symbols: [u8; 16], others: [u8; 16]) -> [u16; 16];
    /// As [`join_bytes`](Self::join_bytes), a whole stripe of little-endian elements.
    fn join_stripe(self, symbols: [u8; 32], others: [u8; 32]) -> [u8; STRIPE];
    /// The inverse of [`join_bytes`](Self::join_bytes): symbols first.
    fn cut_bytes(self, lanes: [u16; 16]) -> ([u8; 16], [u8; 16]);
    /// Each byte in a lane.
    fn lanes(self, bytes: [u8; 16]) -> [u16; 16];
    /// The low byte of each lane.
    fn low_bytes(self, lanes: [u16; 16]) -> [u8; 16];
    /// Whether any lane is above 255.
    fn any_high(self, lanes: [u16; 16]) -> bool;
    /// The palette's bytes for 32 nibbles, the low one of each byte first.
    fn look_up(self, palette: [u8; 16], nibbles: [u8; 16]) -> [[u8; 16]; 2];
    /// Byte `i` of the result is byte `index[i]` of `bytes`, or 0 where `index[i]` is 128 or more.
    fn shuffle(self, bytes: [u8; 16], index: [u8; 16]) -> [u8; 16];
    /// The sum of all bytes, those below `least` counted as that.
    fn sum(self, bytes: [u8; 32], least: u8) -> u32;
    /// Bit `i` is set where byte `i` is `value`.
    fn equal(self, bytes: [u8; 32], value: u8) -> u32;
    /// The sums of [`hash`] with another stripe.
    fn accumulate(self, sums: Sums, stripe: [u8; STRIPE], secret: [u8; STRIPE]) -> Sums;
    /// The codes of the first and of the last sixteen symbols, joined, and how many bits they are. `None`
    /// if a symbol is outside the window, if there are more than [`JOINED`](window::JOINED) bits, or if
    /// this is not faster than other ways.
    fn join_codes(self, symbols: [u8; 32], window: &Window) -> Option<[(u64, u64); 2]>;
}

/// Plain arithmetic, for every machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portable;

impl Isa for Portable {
    type Unpacker = u32;

    #[inline(always)]
    fn unpacker(self, bits: u32) -> u32 {
        bits
    }

    #[inline(always)]
    fn unpack(self, low: [u8; 16], high: [u8; 16], bits: u32) -> [u16; 16] {
        let mask = (1 << bits) - 1;
        let word = |bytes: [u8; 16]| u128::from_le_bytes(bytes) as u64;
        let words = [word(low), word(high)];
        std::array::from_fn(|i| (words[i / 8] >> (i as u32 % 8 * bits) & mask) as u16)
    }

    #[inline(always)]
    fn pack(self, fields: [u16; 16], bits: u32) -> [u64; 2] {
        [0, 8].map(|first| (0..8).fold(0, |word, i| word | u64::from(fields[first + i]) << (i as u32 * bits)))
    }

    #[inline(always)]
    fn widen(self, top: [u16; 16], high: [u8; 16], low: [u8; 16]) -> [u32; 16] {
        std::array::from_fn(|i| u32::from(top[i]) << 16 | u32::from(high[i]) << 8 | u32::from(low[i]))
    }

    #[inline(always)]
    fn narrow(self, elements: [u32; 16]) -> ([u16; 16], [u8; 16], [u8; 16]) {
        (elements.map(|e| (e >> 16) as u16), elements.map(|e| (e >> 8) as u8), elements.map(|e| e as u8))
    }

    #[inline(always)]
    fn join_bytes(self, symbols: [u8; 16], others: [u8; 16]) -> [u16; 16] {
        std::array::from_fn(|i| {
            let other = u16::from(others[i]);
            other >> 7 << 15 | u16::from(symbols[i]) << 7 | other & 0x7f
        })
    }

    #[inline(always)]
    fn join_stripe(self, symbols: [u8; 32], others: [u8; 32]) -> [u8; STRIPE] {
        let mut stripe = [0; STRIPE];
        for i in 0..32 {
            let other = u16::from(others[i]);
            let element = other >> 7 << 15 | u16::from(symbols[i]) << 7 | other & 0x7f;
            stripe[2 * i..2 * i + 2].copy_from_slice(&element.to_le_bytes());
        }
        stripe
    }

    #[inline(always)]
    fn cut_bytes(self, lanes: [u16; 16]) -> ([u8; 16], [u8; 16]) {
        (lanes.map(|lane| (lane >> 7) as u8), lanes.map(|lane| (lane >> 8 & 0x80 | lane & 0x7f) as u8))
    }

    #[inline(always)]
    fn lanes(self, bytes: [u8; 16]) -> [u16; 16] {
        bytes.map(u16::from)
    }

    #[inline(always)]
    fn low_bytes(self, lanes: [u16; 16]) -> [u8; 16] {
        lanes.map(|lane| lane as u8)
    }

    #[inline(always)]
    fn any_high(self, lanes: [u16; 16]) -> bool {
        lanes.into_iter().fold(0, |all, lane| all | lane) > 255
    }

    #[inline(always)]
    fn look_up(self, palette: [u8; 16], nibbles: [u8; 16]) -> [[u8; 16]; 2] {
        [0, 8].map(|first| {
            std::array::from_fn(|i| palette[usize::from(nibbles[first + i / 2] >> (i % 2 * 4) & 15)])
        })
    }

    #[inline(always)]
    fn shuffle(self, bytes: [u8; 16], index: [u8; 16]) -> [u8; 16] {
        index.map(|i| if i < 128 { bytes[usize::from(i & 15)] } else { 0 })
    }

    #[inline(always)]
    fn sum(self, bytes: [u8; 32], least: u8) -> u32 {
        bytes.into_iter().map(|byte| u32::from(byte.max(least))).sum()
    }

    #[inline(always)]
    fn equal(self, bytes: [u8; 32], value: u8) -> u32 {
        bytes.iter().rev().fold(0, |bits, &byte| bits << 1 | u32::from(byte == value))
    }

    #[inline(always)]
    fn accumulate(self, sums: Sums, stripe: [u8; STRIPE], secret: [u8; STRIPE]) -> Sums {
        let (words, secret) = (stripe.as_chunks().0, secret.as_chunks().0);
        let mut sums = sums;
        for i in 0..sums.len() {
            let key = u64::from_le_bytes(words[i]) ^ u64::from_le_bytes(secret[i]);
            let product = (key & 0xffff_ffff) * (key >> 32);
            sums[i] = sums[i].wrapping_add(product).wrapping_add(u64::from_le_bytes(words[i ^ 1]));
        }
        sums
    }

    #[inline(always)]
    fn join_codes(self, _: [u8; 32], _: &Window) -> Option<[(u64, u64); 2]> {
        None
    }
}

/// Defines `$name`, which runs `$body` compiled for the best instruction set at hand. `$body` is
/// an `#[inline(always)]` function of an [`Isa`] and the same arguments.
macro_rules! dispatch {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)? = $body:path) => {
        $(#[$doc])*
        $vis fn $name($($arg: $type),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            if let Some(isa) = $crate::kernel::Avx2::new() {
                #[target_feature(enable = "avx2,bmi1,bmi2")]
                fn shell(isa: $crate::kernel::Avx2, $($arg: $type),*) $(-> $ret)? {
                    $body(isa, $($arg),*)
                }
                // SAFETY: `isa` proves the features.
                return unsafe { shell(isa, $($arg),*) };
            }
            $body($crate::kernel::Portable, $($arg),*)
        }
    };
}
pub(crate) use dispatch;

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wide_bytes(words: [u32; 16]) -> [u8; STRIPE] {
        std::array::from_fn(|i| words[i / 4].to_le_bytes()[i % 4])
    }

    proptest! {
        #[test]
        fn avx2_equals_portable(a: [u8; 16], b: [u8; 16], wide: [u32; 16], bits in 1u32..8) {
            let Some(avx2) = Avx2::new() else { return Ok(()) };
            prop_assert_eq!(avx2.shuffle(a, b), Portable.shuffle(a, b));
            let both: [u8; 32] = std::array::from_fn(|i| if i < 16 { a[i] } else { b[i - 16] });
            prop_assert_eq!(avx2.sum(both, b[3]), Portable.sum(both, b[3]));
            prop_assert_eq!(avx2.equal(both, a[3]), Portable.equal(both, a[3]));
            prop_assert_eq!(avx2.look_up(a, b), Portable.look_up(a, b));
            let (stripe, sums) = (wide_bytes(wide), [a, b, a, b].map(u128::from_le_bytes));
            let sums = std::array::from_fn(|i| (sums[i / 2] >> (i % 2 * 64)) as u64);
            let secret = wide_bytes(wide.map(|word| word.rotate_left(7)));
            prop_assert_eq!(avx2.accumulate(sums, stripe, secret), Portable.accumulate(sums, stripe, secret));
            let fields = avx2.unpack(a, b, avx2.unpacker(bits));
            prop_assert_eq!(fields, Portable.unpack(a, b, bits));
            prop_assert_eq!(avx2.pack(fields, bits), Portable.pack(fields, bits));
            let (top, high, low) = avx2.narrow(wide);
            prop_assert_eq!((top, high, low), Portable.narrow(wide));
            prop_assert_eq!(avx2.widen(top, high, low), wide);
            prop_assert_eq!(avx2.lanes(a), Portable.lanes(a));
            prop_assert_eq!(avx2.low_bytes(top), Portable.low_bytes(top));
            prop_assert_eq!(avx2.any_high(top), Portable.any_high(top));
            prop_assert_eq!(avx2.any_high(fields), Portable.any_high(fields));
            prop_assert_eq!(Portable.widen(top, high, low), wide);
            prop_assert_eq!(avx2.cut_bytes(top), Portable.cut_bytes(top));
            let (symbols, others) = avx2.cut_bytes(top);
            prop_assert_eq!(avx2.join_bytes(symbols, others), top);
            prop_assert_eq!(Portable.join_bytes(symbols, others), top);
            let (first, second) = (std::array::from_fn(|i| stripe[i]), std::array::from_fn(|i| stripe[32 + i]));
            prop_assert_eq!(avx2.join_stripe(first, second), Portable.join_stripe(first, second));
            let half: [u8; 32] = std::array::from_fn(|i| avx2.join_stripe(first, second)[i]);
            let [first, second] = [first, second].map(|bytes| std::array::from_fn(|i| bytes[i]));
            let lanes = Portable.join_bytes(first, second);
            prop_assert_eq!(half, std::array::from_fn(|i| lanes[i / 2].to_le_bytes()[i % 2]));
        }
    }
}
