//! Instruction sets: the level that kernels run at, the operations that levels differ in, prefetch.
//!
//! Depends on nothing else in the crate but its errors.

// Lanes of several arrays side by side read best with an index.
#![allow(clippy::needless_range_loop)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) mod casts;
mod dispatch;
pub(crate) mod isa;
mod level;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
pub(crate) mod prefetch;
pub(crate) mod vector;
#[cfg(target_arch = "x86_64")]
mod vector_avx2;
#[cfg(target_arch = "x86_64")]
mod vector_avx512;
mod vector_portable;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
pub(crate) use dispatch::{dispatch, dispatch_wide};
pub(crate) use isa::{CodeWindow, CodeWindows, Isa, LANES, MAX_WINDOWS, STRIPE, Sums, UNPACKED, WINDOW};
pub use level::{ForcedLevel, SimdLevel};
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
pub(crate) use portable::Portable;

/// Whether the level has instructions that expand lanes to the places of a mask, rather than byte shuffles by tables.
pub(crate) fn has_expand() -> bool {
    #[cfg(target_arch = "x86_64")]
    return Avx512::new().is_some();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::streaming;
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
        prop_assert_eq!(isa.sum_clamped(both, b[3]), Portable.sum_clamped(both, b[3]));
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
        prop_assert_eq!(isa.any_above_255(top), Portable.any_above_255(top));
        prop_assert_eq!(isa.any_above_255(few), Portable.any_above_255(few));
        prop_assert_eq!(isa.split_bytes(top), Portable.split_bytes(top));

        let cut = wide.map(|wide| Portable.narrow(wide));
        let tops = std::array::from_fn(|i| cut[i / 16].0[i % 16]);
        let highs = std::array::from_fn(|i| cut[i / 16].1[i % 16]);
        let lows = std::array::from_fn(|i| cut[i / 16].2[i % 16]);
        let back = isa.widen(tops, highs, lows);
        prop_assert_eq!(back, std::array::from_fn(|i| wide[i / 16][i % 16]));
        prop_assert_eq!(Portable.widen(tops, highs, lows), back);
        let bytes = cut.map(|(top, ..)| Portable.split_bytes(top));
        let symbols = std::array::from_fn(|i| bytes[i / 16].0[i % 16]);
        let others = std::array::from_fn(|i| bytes[i / 16].1[i % 16]);
        prop_assert_eq!(isa.merge_bytes(symbols, others), tops);
        prop_assert_eq!(Portable.merge_bytes(symbols, others), tops);
        let base = u16::from(a[5]);
        macro_rules! join {
            ($shift:literal, $plane:expr) => {
                prop_assert_eq!(
                    isa.merge_fields::<$shift>(base, symbols, fields, $plane),
                    Portable.merge_fields::<$shift>(base, symbols, fields, $plane)
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
        unsafe { isa.store_nt(to.0.as_mut_ptr(), stripe) };
        streaming::store_fence();
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
            #[cfg(target_arch = "x86_64")]
            if let Some(avx2) = Avx2::new() {
                check(avx2, halves, wide, bits)?;
            }
            #[cfg(target_arch = "x86_64")]
            if let Some(avx512) = Avx512::new() {
                check(avx512, halves, wide, bits)?;
            }
            #[cfg(target_arch = "aarch64")]
            if let Some(neon) = Neon::new() {
                check(neon, halves, wide, bits)?;
            }
        }
    }
}
