//! The loops that touch every element.
//!
//! Each is written once, over fixed blocks that compilers vectorise, and compiled twice: for the
//! baseline of the target and for AVX2 with BMI2, chosen at run time. Where an instruction set
//! has something no compiler finds by itself (bit deposit, byte shuffles), the block calls it
//! through [`Isa`], whose portable twin does the same in plain arithmetic.

// Lanes of several arrays side by side read best with an index.
#![allow(clippy::needless_range_loop)]

pub(crate) mod classes;
pub(crate) mod fields;
pub(crate) mod histogram;
pub(crate) mod packed;

/// The few operations that instruction sets differ in.
pub(crate) trait Isa: Copy {
    /// Deposits the low bits of `word` at the set bits of `mask`, lowest first.
    fn deposit(self, word: u64, mask: u64) -> u64;
    /// Gathers the bits of `word` at the set bits of `mask` into the low bits.
    fn extract(self, word: u64, mask: u64) -> u64;
    /// Byte `i` of the result is byte `index[i]` of `bytes`, or 0 where `index[i]` is 128 or more.
    fn shuffle(self, bytes: [u8; 16], index: [u8; 16]) -> [u8; 16];
}

/// Plain arithmetic, for every machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portable;

impl Isa for Portable {
    #[inline(always)]
    fn deposit(self, mut word: u64, mask: u64) -> u64 {
        // All masks here are eight equal bytes of low ones.
        let width = (mask & 0xff).trailing_ones();
        let mut out = 0;
        for byte in 0..8 {
            out |= (word & (mask & 0xff)) << (8 * byte);
            word >>= width;
        }
        out
    }

    #[inline(always)]
    fn extract(self, word: u64, mask: u64) -> u64 {
        let width = (mask & 0xff).trailing_ones();
        let mut out = 0;
        for byte in (0..8).rev() {
            out = out << width | word >> (8 * byte) & (mask & 0xff);
        }
        out
    }

    #[inline(always)]
    fn shuffle(self, bytes: [u8; 16], index: [u8; 16]) -> [u8; 16] {
        index.map(|i| if i < 128 { bytes[usize::from(i & 15)] } else { 0 })
    }
}

/// AVX2 and BMI2. A value of this type proves that they were detected.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2(());

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    /// The proof, on a machine that has both.
    pub(crate) fn new() -> Option<Self> {
        (!cfg!(miri)
            && std::is_x86_feature_detected!("avx2")
            && std::is_x86_feature_detected!("bmi1")
            && std::is_x86_feature_detected!("bmi2"))
        .then_some(Self(()))
    }
}

#[cfg(target_arch = "x86_64")]
impl Isa for Avx2 {
    #[inline(always)]
    fn deposit(self, word: u64, mask: u64) -> u64 {
        // SAFETY: `self` proves BMI2.
        unsafe { std::arch::x86_64::_pdep_u64(word, mask) }
    }

    #[inline(always)]
    fn extract(self, word: u64, mask: u64) -> u64 {
        // SAFETY: `self` proves BMI2.
        unsafe { std::arch::x86_64::_pext_u64(word, mask) }
    }

    #[inline(always)]
    fn shuffle(self, bytes: [u8; 16], index: [u8; 16]) -> [u8; 16] {
        use std::arch::x86_64::{__m128i, _mm_shuffle_epi8};
        // SAFETY: `self` proves AVX2, which includes the shuffle; both types are 16 plain bytes.
        unsafe {
            std::mem::transmute(_mm_shuffle_epi8(
                std::mem::transmute::<[u8; 16], __m128i>(bytes),
                std::mem::transmute::<[u8; 16], __m128i>(index),
            ))
        }
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
