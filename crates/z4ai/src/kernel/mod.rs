//! The loops that touch every element.
//!
//! Each is written once, over fixed blocks that compilers vectorise, and compiled twice: for the
//! baseline of the target and for AVX2 with BMI2, chosen at run time; those that gain from it a third
//! time, for AVX-512 with its byte permutations. Where an instruction set has something no compiler
//! finds by itself (fields of odd widths, byte shuffles), the block calls it through [`Isa`], whose
//! portable twin does the same in plain arithmetic.

// Lanes of several arrays side by side read best with an index.
#![allow(clippy::needless_range_loop)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_codes;
#[cfg(target_arch = "x86_64")]
mod avx512_cut;
#[cfg(target_arch = "x86_64")]
mod avx512_join;
#[cfg(target_arch = "x86_64")]
mod avx512_restore;
#[cfg(target_arch = "x86_64")]
mod avx512_sums;
mod blocks;
pub(crate) mod classes;
#[cfg(target_arch = "x86_64")]
pub(crate) mod codes;
pub(crate) mod copy;
pub(crate) mod difference;
pub(crate) mod fields;
pub(crate) mod filter;
pub(crate) mod hash;
pub(crate) mod histogram;
pub(crate) mod lookup;
pub(crate) mod magnitude;
pub(crate) mod marked;
#[cfg(target_arch = "x86_64")]
mod moving;
pub(crate) mod packed;
pub(crate) mod signs;
pub(crate) mod sparse;
pub(crate) mod sums;
pub(crate) mod window;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
use hash::{STRIPE, Sums};
use window::Window;

/// Elements that are joined at a time.
pub(crate) const LANES: usize = 32;
type Lanes = [u16; LANES];
type Bytes = [u8; LANES];
/// Bytes that may be read to unpack as many fields: four vectors of sixteen, at most seven bytes apart.
const UNPACKED: usize = 3 * 7 + 16;

/// The few operations that instruction sets differ in.
pub(crate) trait Isa: Copy {
    /// What it takes to unpack fields of one width.
    type Unpacker: Copy;

    /// For fields of `bits` (1 to 7) bits.
    fn unpacker(self, bits: u32) -> Self::Unpacker;
    /// As many fields as there are lanes, lowest bit first, from the start of `bytes`.
    fn unpack(self, bytes: &[u8; UNPACKED], unpacker: Self::Unpacker) -> Lanes;
    /// Packs fields of `bits` (1 to 7) bits: eight into the low bits of each word.
    fn pack(self, fields: [u16; 16], bits: u32) -> [u64; 2];
    /// Elements from their upper halves and their two lower bytes.
    fn widen(self, top: Lanes, high: Bytes, low: Bytes) -> [u32; LANES];
    /// The upper halves and the two lower bytes of sixteen elements.
    fn narrow(self, elements: [u32; 16]) -> ([u16; 16], [u8; 16], [u8; 16]);
    /// Sign, eight bits of symbol and seven more, from the symbols and the others.
    fn join_bytes(self, symbols: Bytes, others: Bytes) -> Lanes;
    /// Sign, symbol and `SHIFT` bits more: symbols are so far above `base`, the others are `fields`, above
    /// whole bytes of `plane` if there is one.
    fn join_fields<const SHIFT: u32>(
        self,
        base: u16,
        codes: Bytes,
        fields: Lanes,
        plane: Option<Bytes>,
    ) -> Lanes;
    /// The inverse of [`join_bytes`](Self::join_bytes), of half as many: symbols first.
    fn cut_bytes(self, lanes: [u16; 16]) -> ([u8; 16], [u8; 16]);
    /// The low byte of each lane.
    fn low_bytes(self, lanes: [u16; 16]) -> [u8; 16];
    /// Whether any lane is above 255.
    fn any_high(self, lanes: [u16; 16]) -> bool;
    /// The palette's bytes for 32 nibbles, the low one of each byte first.
    fn look_up(self, palette: [u8; 16], nibbles: [u8; 16]) -> Bytes;
    /// Byte `i` of the result is byte `index[i]` of `bytes`, or 0 where `index[i]` is 128 or more.
    fn shuffle(self, bytes: [u8; 16], index: [u8; 16]) -> [u8; 16];
    /// The sum of all bytes, those below `least` counted as that.
    fn sum(self, bytes: [u8; 32], least: u8) -> u32;
    /// Bit `i` is set where byte `i` is `value`.
    fn equal(self, bytes: [u8; 32], value: u8) -> u32;
    /// Bit `i` is the highest bit of element `i`, which has `SIZE` bytes.
    #[inline(always)]
    fn signs<const SIZE: usize>(self, elements: &[[u8; SIZE]; 64]) -> u64 {
        let mut signs = 0;
        for (half, elements) in elements.as_chunks::<32>().0.iter().enumerate() {
            let tops = std::array::from_fn(|i| elements[i][SIZE - 1] & 0x80);
            signs |= u64::from(self.equal(tops, 0x80)) << (32 * half);
        }
        signs
    }
    /// The sums of [`hash`] with another stripe.
    fn accumulate(self, sums: Sums, stripe: [u8; STRIPE], secret: [u8; STRIPE]) -> Sums;
    /// Writes a stripe to an aligned place, past the caches where there is a way to.
    ///
    /// # Safety
    /// `to` must be valid for writes of a stripe and aligned to its length.
    unsafe fn stream(self, to: *mut u8, stripe: [u8; STRIPE]);
    /// The codes of the first and of the last sixteen symbols, joined, and how many bits they are. `None`
    /// if a symbol is outside the window, if there are more than [`JOINED`](window::JOINED) bits, or if
    /// this is not faster than other ways.
    fn join_codes(self, symbols: [u8; 32], window: &Window) -> Option<[(u64, u64); 2]>;
    /// Cuts so many elements from the first on that few are left; returns how many that were.
    #[inline(always)]
    fn cut<const SIZE: usize, const BITS: u32, const APART: bool>(
        self,
        base: u16,
        elements: &[u8],
        to: &mut fields::Cut<'_>,
    ) -> usize {
        blocks::cut::<SIZE, BITS, APART>(self, base, elements, to)
    }
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
    fn unpack(self, bytes: &[u8; UNPACKED], bits: u32) -> Lanes {
        let mask = (1 << bits) - 1;
        std::array::from_fn(|i| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[i / 8 * bits as usize..][..8]);
            (u64::from_le_bytes(word) >> (i as u32 % 8 * bits) & mask) as u16
        })
    }

    #[inline(always)]
    fn pack(self, fields: [u16; 16], bits: u32) -> [u64; 2] {
        [0, 8].map(|first| (0..8).fold(0, |word, i| word | u64::from(fields[first + i]) << (i as u32 * bits)))
    }

    #[inline(always)]
    fn widen(self, top: Lanes, high: Bytes, low: Bytes) -> [u32; LANES] {
        std::array::from_fn(|i| u32::from(top[i]) << 16 | u32::from(high[i]) << 8 | u32::from(low[i]))
    }

    #[inline(always)]
    fn narrow(self, elements: [u32; 16]) -> ([u16; 16], [u8; 16], [u8; 16]) {
        (elements.map(|e| (e >> 16) as u16), elements.map(|e| (e >> 8) as u8), elements.map(|e| e as u8))
    }

    #[inline(always)]
    fn join_bytes(self, symbols: Bytes, others: Bytes) -> Lanes {
        std::array::from_fn(|i| {
            let other = u16::from(others[i]);
            other >> 7 << 15 | u16::from(symbols[i]) << 7 | other & 0x7f
        })
    }

    #[inline(always)]
    fn join_fields<const SHIFT: u32>(
        self,
        base: u16,
        codes: Bytes,
        fields: Lanes,
        plane: Option<Bytes>,
    ) -> Lanes {
        std::array::from_fn(|i| {
            let symbol = u16::from(codes[i]).wrapping_add(base);
            let raw = plane.map_or(fields[i], |plane| fields[i] << 8 | u16::from(plane[i]));
            raw >> SHIFT << 15 | symbol << SHIFT | raw & ((1 << SHIFT) - 1)
        })
    }

    #[inline(always)]
    fn cut_bytes(self, lanes: [u16; 16]) -> ([u8; 16], [u8; 16]) {
        (lanes.map(|lane| (lane >> 7) as u8), lanes.map(|lane| (lane >> 8 & 0x80 | lane & 0x7f) as u8))
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
    fn look_up(self, palette: [u8; 16], nibbles: [u8; 16]) -> Bytes {
        std::array::from_fn(|i| palette[usize::from(nibbles[i / 2] >> (i % 2 * 4) & 15)])
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
    unsafe fn stream(self, to: *mut u8, stripe: [u8; STRIPE]) {
        // SAFETY: as the caller promises.
        unsafe { to.cast::<[u8; STRIPE]>().write(stripe) }
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

/// As [`dispatch`], for what gains from AVX-512.
macro_rules! dispatch_wide {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)? = $body:path) => {
        $(#[$doc])*
        $vis fn $name($($arg: $type),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            if let Some(isa) = $crate::kernel::Avx512::new() {
                #[target_feature(
                    enable = "avx2,bmi1,bmi2,avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2"
                )]
                fn wide(isa: $crate::kernel::Avx512, $($arg: $type),*) $(-> $ret)? {
                    $body(isa, $($arg),*)
                }
                // SAFETY: `isa` proves the features.
                return unsafe { wide(isa, $($arg),*) };
            }
            $crate::kernel::dispatch! { fn narrow($($arg: $type),*) $(-> $ret)? = $body }
            narrow($($arg),*)
        }
    };
}
pub(crate) use dispatch_wide;

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wide_bytes(words: [u32; 16]) -> [u8; STRIPE] {
        std::array::from_fn(|i| words[i / 4].to_le_bytes()[i % 4])
    }

    /// Whether an instruction set does as plain arithmetic does.
    fn check(
        isa: impl Isa,
        halves: [[u8; 16]; 2],
        wide: [[u32; 16]; 2],
        bits: u32,
    ) -> Result<(), TestCaseError> {
        let [a, b] = halves;
        prop_assert_eq!(isa.shuffle(a, b), Portable.shuffle(a, b));
        let both: [u8; 32] = std::array::from_fn(|i| halves[i / 16][i % 16]);
        prop_assert_eq!(isa.sum(both, b[3]), Portable.sum(both, b[3]));
        prop_assert_eq!(isa.equal(both, a[3]), Portable.equal(both, a[3]));
        prop_assert_eq!(isa.look_up(a, b), Portable.look_up(a, b));
        let [first, second] = wide;
        let (stripe, sums) = (wide_bytes(first), [a, b, a, b].map(u128::from_le_bytes));
        let sums = std::array::from_fn(|i| (sums[i / 2] >> (i % 2 * 64)) as u64);
        let secret = wide_bytes(second);
        prop_assert_eq!(isa.accumulate(sums, stripe, secret), Portable.accumulate(sums, stripe, secret));
        let mut packed = [0; UNPACKED];
        packed.copy_from_slice(&stripe[..UNPACKED]);
        let fields = isa.unpack(&packed, isa.unpacker(bits));
        prop_assert_eq!(fields, Portable.unpack(&packed, bits));
        let few: [u16; 16] = std::array::from_fn(|i| fields[i]);
        prop_assert_eq!(isa.pack(few, bits), Portable.pack(few, bits));
        let (top, high, low) = isa.narrow(first);
        prop_assert_eq!((top, high, low), Portable.narrow(first));
        prop_assert_eq!(isa.low_bytes(top), Portable.low_bytes(top));
        prop_assert_eq!(isa.any_high(top), Portable.any_high(top));
        prop_assert_eq!(isa.any_high(few), Portable.any_high(few));
        prop_assert_eq!(isa.cut_bytes(top), Portable.cut_bytes(top));

        let cut = wide.map(|wide| Portable.narrow(wide));
        let tops = std::array::from_fn(|i| cut[i / 16].0[i % 16]);
        let highs = std::array::from_fn(|i| cut[i / 16].1[i % 16]);
        let lows = std::array::from_fn(|i| cut[i / 16].2[i % 16]);
        let back = isa.widen(tops, highs, lows);
        prop_assert_eq!(back, std::array::from_fn(|i| wide[i / 16][i % 16]));
        prop_assert_eq!(Portable.widen(tops, highs, lows), back);
        let bytes = cut.map(|(top, ..)| Portable.cut_bytes(top));
        let symbols = std::array::from_fn(|i| bytes[i / 16].0[i % 16]);
        let others = std::array::from_fn(|i| bytes[i / 16].1[i % 16]);
        prop_assert_eq!(isa.join_bytes(symbols, others), tops);
        prop_assert_eq!(Portable.join_bytes(symbols, others), tops);
        let base = u16::from(a[5]);
        macro_rules! join {
            ($shift:literal, $plane:expr) => {
                prop_assert_eq!(
                    isa.join_fields::<$shift>(base, symbols, fields, $plane),
                    Portable.join_fields::<$shift>(base, symbols, fields, $plane)
                );
            };
        }
        join!(10, Some(others));
        join!(7, Some(others));
        join!(6, None);
        join!(5, None);
        #[repr(align(64))]
        struct Aligned([u8; STRIPE]);
        let mut to = Aligned([0; STRIPE]);
        // SAFETY: it has a stripe's length and alignment.
        unsafe { isa.stream(to.0.as_mut_ptr(), stripe) };
        copy::settle();
        prop_assert_eq!(to.0, stripe);
        Ok(())
    }

    proptest! {
        #[test]
        fn every_instruction_set_does_the_same(
            a: [u8; 16], b: [u8; 16], first: [u32; 16], second: [u32; 16], bits in 1u32..8
        ) {
            let (halves, wide) = ([a, b], [first, second]);
            check(Portable, halves, wide, bits)?;
            if let Some(avx2) = Avx2::new() {
                check(avx2, halves, wide, bits)?;
            }
            if let Some(avx512) = Avx512::new() {
                check(avx512, halves, wide, bits)?;
            }
        }
    }
}
