//! [`Vector`] at the AVX-512 level: one register.

use std::arch::x86_64::*;

use crate::simd::Avx512;
use crate::simd::vector::{Lane, VECTOR, Vector};

/// One of four intrinsics, by the size of a lane.
macro_rules! by_size {
    ($lane:ident, $one:expr, $two:expr, $four:expr, $eight:expr) => {
        // SAFETY: the value of `Avx512` proves the features.
        unsafe {
            match $lane::SIZE {
                1 => $one,
                2 => $two,
                4 => $four,
                _ => $eight,
            }
        }
    };
}

impl Vector for Avx512 {
    type V = __m512i;

    #[inline(always)]
    fn load(self, bytes: &[u8; VECTOR]) -> __m512i {
        // SAFETY: `self` proves the features, the reference that there is a vector to load.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store(self, vector: __m512i, bytes: &mut [u8; VECTOR]) {
        // SAFETY: `self` proves the features, the reference that there is room for a vector.
        unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), vector) }
    }

    #[inline(always)]
    fn splat<L: Lane>(self, number: u64) -> __m512i {
        by_size!(
            L,
            _mm512_set1_epi8(number as i8),
            _mm512_set1_epi16(number as i16),
            _mm512_set1_epi32(number as i32),
            _mm512_set1_epi64(number as i64)
        )
    }

    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: `self` proves the features, here and below.
        unsafe { _mm512_and_si512(a, b) }
    }

    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_xor_si512(a, b) }
    }

    #[inline(always)]
    fn add<L: Lane>(self, a: __m512i, b: __m512i) -> __m512i {
        by_size!(
            L,
            _mm512_add_epi8(a, b),
            _mm512_add_epi16(a, b),
            _mm512_add_epi32(a, b),
            _mm512_add_epi64(a, b)
        )
    }

    #[inline(always)]
    fn sub<L: Lane>(self, a: __m512i, b: __m512i) -> __m512i {
        by_size!(
            L,
            _mm512_sub_epi8(a, b),
            _mm512_sub_epi16(a, b),
            _mm512_sub_epi32(a, b),
            _mm512_sub_epi64(a, b)
        )
    }

    #[inline(always)]
    fn shl<L: Lane>(self, vector: __m512i, bits: u32) -> __m512i {
        let bits = bits as i32;
        by_size!(
            L,
            unreachable!("lanes of one byte are not shifted"),
            _mm512_sll_epi16(vector, _mm_cvtsi32_si128(bits)),
            _mm512_sll_epi32(vector, _mm_cvtsi32_si128(bits)),
            _mm512_sll_epi64(vector, _mm_cvtsi32_si128(bits))
        )
    }

    #[inline(always)]
    fn shr<L: Lane>(self, vector: __m512i, bits: u32) -> __m512i {
        let bits = bits as i32;
        by_size!(
            L,
            unreachable!("lanes of one byte are not shifted"),
            _mm512_srl_epi16(vector, _mm_cvtsi32_si128(bits)),
            _mm512_srl_epi32(vector, _mm_cvtsi32_si128(bits)),
            _mm512_srl_epi64(vector, _mm_cvtsi32_si128(bits))
        )
    }

    #[inline(always)]
    fn zero_extend<L: Lane>(self, bytes: &[u8]) -> __m512i {
        let bytes = bytes[..L::COUNT].as_ptr();
        by_size!(
            L,
            unreachable!("bytes are not widened to bytes"),
            _mm512_cvtepu8_epi16(_mm256_loadu_si256(bytes.cast())),
            _mm512_cvtepu8_epi32(_mm_loadu_si128(bytes.cast())),
            _mm512_cvtepu8_epi64(_mm_loadl_epi64(bytes.cast()))
        )
    }

    #[inline(always)]
    fn test_mask<L: Lane>(self, vector: __m512i, bits: __m512i) -> u64 {
        by_size!(
            L,
            _mm512_test_epi8_mask(vector, bits),
            u64::from(_mm512_test_epi16_mask(vector, bits)),
            u64::from(_mm512_test_epi32_mask(vector, bits)),
            u64::from(_mm512_test_epi64_mask(vector, bits))
        )
    }

    #[inline(always)]
    fn cmpge_mask<L: Lane>(self, a: __m512i, b: __m512i) -> u64 {
        by_size!(
            L,
            _mm512_cmpge_epu8_mask(a, b),
            u64::from(_mm512_cmpge_epu16_mask(a, b)),
            u64::from(_mm512_cmpge_epu32_mask(a, b)),
            u64::from(_mm512_cmpge_epu64_mask(a, b))
        )
    }

    #[inline(always)]
    fn compress<L: Lane>(self, mask: u64, vector: __m512i, to: &mut [u8; VECTOR]) {
        // Compressing to memory directly is slow on Zen 4.
        let compressed = by_size!(
            L,
            _mm512_maskz_compress_epi8(mask, vector),
            _mm512_maskz_compress_epi16(mask as u32, vector),
            _mm512_maskz_compress_epi32(mask as u16, vector),
            _mm512_maskz_compress_epi64(mask as u8, vector)
        );
        self.store(compressed, to);
    }

    #[inline(always)]
    fn expand<L: Lane>(self, mask: u64, from: &[u8; VECTOR]) -> __m512i {
        let vector = self.load(from);
        by_size!(
            L,
            _mm512_maskz_expand_epi8(mask, vector),
            _mm512_maskz_expand_epi16(mask as u32, vector),
            _mm512_maskz_expand_epi32(mask as u16, vector),
            _mm512_maskz_expand_epi64(mask as u8, vector)
        )
    }

    #[inline(always)]
    fn select16(self, mask: u32) -> __m512i {
        // SAFETY: `self` proves the features, here and below.
        unsafe { _mm512_movm_epi16(mask) }
    }

    #[inline(always)]
    fn align_words(self, before: __m512i, after: __m512i, words: usize) -> __m512i {
        let first = 8 - words as i64;
        // SAFETY: as above.
        unsafe {
            let order = _mm512_add_epi64(_mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7), _mm512_set1_epi64(first));
            _mm512_permutex2var_epi64(before, order, after)
        }
    }
}
