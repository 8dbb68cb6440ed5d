//! The AVX-512 level, with byte permutations (VBMI) and byte compress and expand (VBMI2).

use std::arch::x86_64::*;

use crate::simd::Avx2;
use crate::simd::casts::{cast, unpackers};
use crate::simd::isa::{Bytes, CodeWindow, Isa, LANES, Lanes, STRIPE, Sums, UNPACKED};
use crate::simd::level::{self, SimdLevel};

/// A value of this type proves that all of it was detected, and AVX2 with BMI2.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512(Avx2);

impl Avx512 {
    /// The proof, if the current level is AVX-512.
    #[inline]
    pub(crate) fn new() -> Option<Self> {
        let narrower = Avx2::new()?;
        level::has(SimdLevel::Avx512).then_some(Self(narrower))
    }
}

/// Every word of 64 bits takes the eight bytes that its four fields lie in, and from these each
/// lane the eight bits that its field starts with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unpacker {
    places: [u8; 64],
    starts: [u8; 64],
    mask: u16,
}

impl Unpacker {
    const fn new(bits: u32) -> Self {
        let mut places = [0; 64];
        let mut starts = [0; 64];
        let mut i = 0;
        while i < 64 {
            let first_bit = i as u32 / 8 * 4 * bits;
            places[i] = (first_bit / 8 + i as u32 % 8) as u8;
            starts[i] = (first_bit % 8 + i as u32 % 8 / 2 * bits) as u8;
            i += 1;
        }
        Self { places, starts, mask: (1 << bits) - 1 }
    }
}

impl Isa for Avx512 {
    unpackers!(Unpacker);

    #[inline(always)]
    fn unpack(self, bytes: &[u8; UNPACKED], unpacker: Unpacker) -> Lanes {
        // 32 fields of seven bits have 28 bytes, and the last eight to be taken end four behind
        // them.
        let mut first = [0; 32];
        first.copy_from_slice(&bytes[..32]);
        let first = cast!(first, [u8; 32] => __m256i);
        let places = cast!(unpacker.places, [u8; 64] => __m512i);
        let starts = cast!(unpacker.starts, [u8; 64] => __m512i);
        // SAFETY: `self` proves AVX-512.
        let fields = unsafe {
            let words = _mm512_permutexvar_epi8(places, _mm512_castsi256_si512(first));
            let fields = _mm512_multishift_epi64_epi8(starts, words);
            _mm512_and_si512(fields, _mm512_set1_epi16(unpacker.mask as i16))
        };
        cast!(fields, __m512i => Lanes)
    }

    #[inline(always)]
    fn widen(self, top: Lanes, high: Bytes, low: Bytes) -> [u32; LANES] {
        let top = cast!(top, Lanes => __m512i);
        let (high, low) = (cast!(high, Bytes => __m256i), cast!(low, Bytes => __m256i));
        // SAFETY: `self` proves AVX-512.
        let elements = unsafe {
            let high = _mm512_slli_epi16::<8>(_mm512_cvtepu8_epi16(high));
            let low = _mm512_or_si512(high, _mm512_cvtepu8_epi16(low));
            // Quarters interleave on their own, so each gets the eighths that it needs.
            let order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
            let (top, low) = (_mm512_permutexvar_epi64(order, top), _mm512_permutexvar_epi64(order, low));
            [_mm512_unpacklo_epi16(low, top), _mm512_unpackhi_epi16(low, top)]
        };
        cast!(elements, [__m512i; 2] => [u32; LANES])
    }

    #[inline(always)]
    fn merge_bytes(self, symbols: Bytes, others: Bytes) -> Lanes {
        self.merge_fields::<7>(0, symbols, [0; LANES], Some(others))
    }

    #[inline(always)]
    fn merge_fields<const SHIFT: u32>(
        self,
        base: u16,
        codes: Bytes,
        fields: Lanes,
        plane: Option<Bytes>,
    ) -> Lanes {
        /// `a & b | c`, as a table of truth.
        const AND_OR: i32 = 0b1110_1010;
        let codes = cast!(codes, Bytes => __m256i);
        let fields = cast!(fields, Lanes => __m512i);
        let plane = plane.map(|plane| cast!(plane, Bytes => __m256i));
        // SAFETY: `self` proves AVX-512.
        let lanes = unsafe {
            let by = |bits: u32| _mm_cvtsi32_si128(bits as i32);
            let symbols = _mm512_add_epi16(_mm512_cvtepu8_epi16(codes), _mm512_set1_epi16(base as i16));
            let raw = match plane {
                Some(plane) => _mm512_or_si512(_mm512_slli_epi16::<8>(fields), _mm512_cvtepu8_epi16(plane)),
                None => fields,
            };
            let signs = _mm512_sll_epi16(raw, by(15 - SHIFT));
            let symbols = _mm512_sll_epi16(symbols, by(SHIFT));
            let upper = _mm512_ternarylogic_epi64::<AND_OR>(signs, _mm512_set1_epi16(i16::MIN), symbols);
            _mm512_ternarylogic_epi64::<AND_OR>(raw, _mm512_set1_epi16((1 << SHIFT) - 1), upper)
        };
        cast!(lanes, __m512i => Lanes)
    }

    #[inline(always)]
    fn look_up(self, palette: [u8; 16], nibbles: [u8; 16]) -> Bytes {
        let palette = cast!(palette, [u8; 16] => __m128i);
        let nibbles = cast!(nibbles, [u8; 16] => __m128i);
        // SAFETY: `self` proves AVX-512.
        let found = unsafe {
            // Only one bit above a nibble is used, and it chooses between equal entries.
            let starts = _mm256_set1_epi64x(0x3430_2420_1410_0400);
            let indices = _mm256_multishift_epi64_epi8(starts, _mm256_cvtepu8_epi16(nibbles));
            _mm256_permutexvar_epi8(indices, _mm256_broadcastsi128_si256(palette))
        };
        cast!(found, __m256i => Bytes)
    }

    #[inline(always)]
    fn sign_mask<const SIZE: usize>(self, elements: &[[u8; SIZE]; 64]) -> u64 {
        let mut signs = 0;
        for (i, vector) in elements.as_flattened().as_chunks::<64>().0.iter().enumerate() {
            let vector = cast!(*vector, [u8; 64] => __m512i);
            // SAFETY: `self` proves AVX-512.
            let mask = unsafe {
                match SIZE {
                    1 => _mm512_movepi8_mask(vector),
                    2 => u64::from(_mm512_movepi16_mask(vector)),
                    4 => u64::from(_mm512_cmplt_epi32_mask(vector, _mm512_setzero_si512())),
                    _ => u64::from(_mm512_cmplt_epi64_mask(vector, _mm512_setzero_si512())),
                }
            };
            signs |= mask << (64 / SIZE * i);
        }
        signs
    }

    #[inline(always)]
    fn accumulate(self, sums: Sums, stripe: [u8; STRIPE], secret: [u8; STRIPE]) -> Sums {
        let sums = cast!(sums, Sums => __m512i);
        let stripe = cast!(stripe, [u8; STRIPE] => __m512i);
        let secret = cast!(secret, [u8; STRIPE] => __m512i);
        // SAFETY: `self` proves AVX-512.
        let sums = unsafe {
            let keys = _mm512_xor_si512(stripe, secret);
            let products = _mm512_mul_epu32(keys, _mm512_srli_epi64::<32>(keys));
            let neighbours = _mm512_shuffle_epi32::<0b01_00_11_10>(stripe);
            _mm512_add_epi64(_mm512_add_epi64(sums, neighbours), products)
        };
        cast!(sums, __m512i => Sums)
    }

    #[inline(always)]
    unsafe fn store_nt(self, to: *mut u8, stripe: [u8; STRIPE]) {
        let stripe = cast!(stripe, [u8; STRIPE] => __m512i);
        // SAFETY: `self` proves AVX-512; the place is aligned and large enough, as the caller
        // promises.
        unsafe { _mm512_stream_si512(to.cast(), stripe) }
    }

    // For the other operations, AVX2 is as fast.

    #[inline(always)]
    fn pack(self, fields: [u16; 16], bits: u32) -> [u64; 2] {
        self.0.pack(fields, bits)
    }

    #[inline(always)]
    fn narrow(self, elements: [u32; 16]) -> ([u16; 16], [u8; 16], [u8; 16]) {
        self.0.narrow(elements)
    }

    #[inline(always)]
    fn split_bytes(self, lanes: [u16; 16]) -> ([u8; 16], [u8; 16]) {
        self.0.split_bytes(lanes)
    }

    #[inline(always)]
    fn low_bytes(self, lanes: [u16; 16]) -> [u8; 16] {
        self.0.low_bytes(lanes)
    }

    #[inline(always)]
    fn any_above_255(self, lanes: [u16; 16]) -> bool {
        self.0.any_above_255(lanes)
    }

    #[inline(always)]
    fn shuffle(self, bytes: [u8; 16], index: [u8; 16]) -> [u8; 16] {
        self.0.shuffle(bytes, index)
    }

    #[inline(always)]
    fn sum_clamped(self, bytes: [u8; 32], least: u8) -> u32 {
        self.0.sum_clamped(bytes, least)
    }

    #[inline(always)]
    fn equal(self, bytes: [u8; 32], value: u8) -> u32 {
        self.0.equal(bytes, value)
    }

    #[inline(always)]
    fn concat_codes(self, symbols: [u8; 32], window: &CodeWindow) -> Option<[(u64, u64); 2]> {
        self.0.concat_codes(symbols, window)
    }
}
