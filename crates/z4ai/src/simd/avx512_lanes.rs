//! Lanes of 1, 2, 4 and 8 bytes in AVX-512 vectors: compare, compress and expand (VBMI2).

use std::arch::x86_64::*;

use crate::simd::Avx512;

/// Bytes of a vector.
pub(crate) const VECTOR: usize = 64;

impl Avx512 {
    #[inline(always)]
    pub(crate) fn load(self, bytes: &[u8; VECTOR]) -> __m512i {
        // SAFETY: `self` proves the features, the reference that there is a vector to load.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    pub(crate) fn store(self, vector: __m512i, bytes: &mut [u8; VECTOR]) {
        // SAFETY: `self` proves the features, the reference that there is room for a vector.
        unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), vector) }
    }

    #[inline(always)]
    pub(crate) fn or(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    pub(crate) fn zero(self) -> __m512i {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_setzero_si512() }
    }
}

/// Elements of one size in a vector. Bit `i` of a mask is about element `i`.
pub(crate) trait Lanes {
    const SIZE: usize;
    const COUNT: usize = VECTOR / Self::SIZE;

    /// The number in every lane, truncated to its size.
    fn splat(proof: Avx512, number: u64) -> __m512i;
    /// The mask of lanes that have any of these bits.
    fn test_mask(proof: Avx512, vector: __m512i, bits: __m512i) -> u64;
    /// The lanes of the mask, compacted.
    fn compress(proof: Avx512, mask: u64, vector: __m512i) -> __m512i;
    /// The inverse of [`compress`](Self::compress), zero where the mask is.
    fn expand(proof: Avx512, mask: u64, vector: __m512i) -> __m512i;
    /// The two highest bytes of every lane, without its highest bit.
    fn magnitudes(proof: Avx512, vector: __m512i) -> __m512i;
    /// The mask of lanes where `numbers >= least`, unsigned.
    fn cmpge(proof: Avx512, numbers: __m512i, least: __m512i) -> u64;
}

macro_rules! lanes {
    ($name:ident, $size:literal, $mask:ty, $int:ty, $splat:ident, $test_mask:ident, $compress:ident, $expand:ident,
     $cmpge:ident, $magnitudes:expr) => {
        pub(crate) struct $name;

        impl Lanes for $name {
            const SIZE: usize = $size;

            #[inline(always)]
            fn splat(_: Avx512, number: u64) -> __m512i {
                // SAFETY: the proof is of all features, here and below.
                unsafe { $splat(number as $int) }
            }

            #[inline(always)]
            fn test_mask(_: Avx512, vector: __m512i, bits: __m512i) -> u64 {
                // SAFETY: as above.
                u64::from(unsafe { $test_mask(vector, bits) })
            }

            #[inline(always)]
            fn compress(_: Avx512, mask: u64, vector: __m512i) -> __m512i {
                // SAFETY: as above.
                unsafe { $compress(mask as $mask, vector) }
            }

            #[inline(always)]
            fn expand(_: Avx512, mask: u64, vector: __m512i) -> __m512i {
                // SAFETY: as above.
                unsafe { $expand(mask as $mask, vector) }
            }

            #[inline(always)]
            fn magnitudes(proof: Avx512, vector: __m512i) -> __m512i {
                let magnitudes: fn(Avx512, __m512i) -> __m512i = $magnitudes;
                magnitudes(proof, vector)
            }

            #[inline(always)]
            fn cmpge(_: Avx512, numbers: __m512i, least: __m512i) -> u64 {
                // SAFETY: as above.
                u64::from(unsafe { $cmpge(numbers, least) })
            }
        }
    };
}

lanes!(
    Lanes1,
    1,
    __mmask64,
    i8,
    _mm512_set1_epi8,
    _mm512_test_epi8_mask,
    _mm512_maskz_compress_epi8,
    _mm512_maskz_expand_epi8,
    _mm512_cmpge_epu8_mask,
    |_, vector| vector
);
lanes!(
    Lanes2,
    2,
    __mmask32,
    i16,
    _mm512_set1_epi16,
    _mm512_test_epi16_mask,
    _mm512_maskz_compress_epi16,
    _mm512_maskz_expand_epi16,
    _mm512_cmpge_epu16_mask,
    // SAFETY: the proof is of all features, here and below.
    |_, vector| unsafe { _mm512_and_si512(vector, _mm512_set1_epi16(0x7fff)) }
);
lanes!(
    Lanes4,
    4,
    __mmask16,
    i32,
    _mm512_set1_epi32,
    _mm512_test_epi32_mask,
    _mm512_maskz_compress_epi32,
    _mm512_maskz_expand_epi32,
    _mm512_cmpge_epu32_mask,
    // SAFETY: as above.
    |_, vector| unsafe { _mm512_srli_epi32::<17>(_mm512_slli_epi32::<1>(vector)) }
);
lanes!(
    Lanes8,
    8,
    __mmask8,
    i64,
    _mm512_set1_epi64,
    _mm512_test_epi64_mask,
    _mm512_maskz_compress_epi64,
    _mm512_maskz_expand_epi64,
    _mm512_cmpge_epu64_mask,
    // SAFETY: as above.
    |_, vector| unsafe { _mm512_srli_epi64::<49>(_mm512_slli_epi64::<1>(vector)) }
);

/// Calls a function that is generic over [`Lanes`] for elements of a size.
macro_rules! for_lanes {
    ($size:expr, $lanes:ident, $call:expr) => {
        match $size {
            1 => for_lanes!(@ $lanes Lanes1, $call),
            2 => for_lanes!(@ $lanes Lanes2, $call),
            4 => for_lanes!(@ $lanes Lanes4, $call),
            _ => for_lanes!(@ $lanes Lanes8, $call),
        }
    };
    (@ $lanes:ident $type:ident, $call:expr) => {{
        type $lanes = $crate::simd::avx512_lanes::$type;
        $call
    }};
}
pub(crate) use for_lanes;
