//! Splits floats into bit fields, 64 at a time.
//!
//! Packing instructions work on 128-bit quarters, so that their output is permuted; one permutation
//! at the end restores the order of elements.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use crate::kernel::bit_fields::FieldStreamsMut;
use crate::kernel::bit_fields::blocks::{Shape, extract_outliers};
use crate::simd::Avx512;

/// Elements per group.
const GROUP: usize = 64;
/// `a & b | c`, as a table of truth.
const AND_OR: i32 = 0b1110_1010;

/// Two vectors of lanes of sixteen bits.
type Two = [__m512i; 2];

impl Avx512 {
    /// Splits whole groups; returns the number of elements.
    #[inline(always)]
    pub(crate) fn split_groups<const SIZE: usize, const BITS: u32, const SEPARATE_SIGN: bool>(
        self,
        base: u16,
        elements: &[u8],
        to: &mut FieldStreamsMut<'_>,
    ) -> usize {
        // SAFETY: `self` proves the features.
        unsafe { split_groups::<SIZE, BITS, SEPARATE_SIGN>(base, elements, to) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
fn split_groups<const SIZE: usize, const BITS: u32, const SEPARATE_SIGN: bool>(
    base: u16,
    elements: &[u8],
    to: &mut FieldStreamsMut<'_>,
) -> usize {
    let groups = elements.len() / SIZE / GROUP;
    let (shift, width) =
        (Shape::<SIZE, BITS, SEPARATE_SIGN>::SHIFT, Shape::<SIZE, BITS, SEPARATE_SIGN>::MID_BITS);
    let order = Order::<SIZE>::new();
    let packer = Packer::new(width);
    let symbol_bits = _mm512_set1_epi16((1 << BITS) - 1);
    let base_lanes = _mm512_set1_epi16(base as i16);
    let below_bits = _mm512_set1_epi16((1 << shift) - 1);
    let sign_bit = _mm512_set1_epi16(1 << shift);
    for group in 0..groups {
        let at = group * GROUP;
        let element = elements[at * SIZE..(at + GROUP) * SIZE].as_ptr();
        // SAFETY: there are `SIZE` vectors behind the pointer.
        let load = |i: usize| unsafe { _mm512_loadu_si512(element.add(i * GROUP).cast()) };
        let tops = if SIZE == 2 {
            [load(0), load(1)]
        } else {
            let words = [load(0), load(1), load(2), load(3)];
            let lows = [low_halves(words[0], words[1]), low_halves(words[2], words[3])];
            store(to.planes[0], at, order.low_bytes(lows));
            store(to.planes[1], at, order.bytes(high_bytes(lows)));
            [high_halves(words[0], words[1]), high_halves(words[2], words[3])]
        };
        let code = |top: __m512i| {
            let symbol = _mm512_and_si512(_mm512_srl_epi16(top, count(shift)), symbol_bits);
            _mm512_sub_epi16(symbol, base_lanes)
        };
        let codes = [code(tops[0]), code(tops[1])];
        // SAFETY: the slice has as many bytes.
        unsafe { _mm512_storeu_si512(to.codes[at..at + GROUP].as_mut_ptr().cast(), order.low_bytes(codes)) };
        if BITS > 8 && any_above_255(codes) {
            extract_outliers::<SIZE, BITS>(base, elements, at..at + GROUP, to.codes, to.patches);
        }
        // The sign, unless it is separate, right above the bits below the symbol.
        let raw = |top: __m512i| {
            let below = _mm512_and_si512(top, below_bits);
            if SEPARATE_SIGN {
                return below;
            }
            _mm512_ternarylogic_epi64::<AND_OR>(_mm512_srl_epi16(top, count(15 - shift)), sign_bit, below)
        };
        let mut raw = [raw(tops[0]), raw(tops[1])];
        if Shape::<SIZE, BITS, SEPARATE_SIGN>::HIGH_PLANE {
            store(to.planes[Shape::<SIZE, BITS, SEPARATE_SIGN>::LOW_PLANES], at, order.low_bytes(raw));
            raw = high_bytes(raw);
        }
        if width > 0 {
            let len = GROUP / 8 * width as usize;
            let mid = &mut to.mid[group * len..(group + 1) * len];
            // SAFETY: the slice has as many bytes as the mask has bits.
            unsafe {
                _mm512_mask_storeu_epi8(
                    mid.as_mut_ptr().cast(),
                    (1 << len) - 1,
                    packer.pack(order.bytes(raw)),
                )
            };
        }
    }
    groups * GROUP
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(plane: &mut [MaybeUninit<u8>], at: usize, bytes: __m512i) {
    // SAFETY: the slice has as many bytes.
    unsafe { _mm512_storeu_si512(plane[at..at + GROUP].as_mut_ptr().cast(), bytes) }
}

/// A count for shifts.
#[inline]
#[target_feature(enable = "avx512f")]
fn count(bits: u32) -> __m128i {
    _mm_cvtsi32_si128(bits as i32)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn low_halves(a: __m512i, b: __m512i) -> __m512i {
    let low = _mm512_set1_epi32(0xffff);
    _mm512_packus_epi32(_mm512_and_si512(a, low), _mm512_and_si512(b, low))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn high_halves(a: __m512i, b: __m512i) -> __m512i {
    _mm512_packus_epi32(_mm512_srli_epi32::<16>(a), _mm512_srli_epi32::<16>(b))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn high_bytes(lanes: Two) -> Two {
    [_mm512_srli_epi16::<8>(lanes[0]), _mm512_srli_epi16::<8>(lanes[1])]
}

/// Whether any lane is above 255.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn any_above_255(lanes: Two) -> bool {
    _mm512_test_epi16_mask(_mm512_or_si512(lanes[0], lanes[1]), _mm512_set1_epi16(!0xff)) != 0
}

/// The order that packed bytes of elements of `SIZE` bytes are in.
#[derive(Clone, Copy)]
struct Order<const SIZE: usize>(__m512i);

impl<const SIZE: usize> Order<SIZE> {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new() -> Self {
        Self(match SIZE {
            // Of every quarter the first half, then of every quarter the second.
            2 => _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7),
            // Of every quarter the first of four, and so on.
            _ => _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
        })
    }

    /// Lanes of at most 255 as bytes, in order.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn bytes(self, lanes: Two) -> __m512i {
        let packed = _mm512_packus_epi16(lanes[0], lanes[1]);
        match SIZE {
            2 => _mm512_permutexvar_epi64(self.0, packed),
            _ => _mm512_permutexvar_epi32(self.0, packed),
        }
    }

    /// The low byte of each lane, in order.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn low_bytes(self, lanes: Two) -> __m512i {
        let low = _mm512_set1_epi16(0xff);
        self.bytes([_mm512_and_si512(lanes[0], low), _mm512_and_si512(lanes[1], low)])
    }
}

/// Packs fields of some width, the first in the lowest bits.
#[derive(Clone, Copy)]
struct Packer {
    width: u32,
    /// Where each packed byte is in words of eight fields each.
    places: __m512i,
}

impl Packer {
    /// For fields of `width` bits, at most 7.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new(width: u32) -> Self {
        let bytes = width.max(1) as usize;
        let places: [u8; 64] = std::array::from_fn(|i| (i / bytes * 8 + i % bytes) as u8);
        // SAFETY: that is a vector.
        Self { width, places: unsafe { _mm512_loadu_si512(places.as_ptr().cast()) } }
    }

    /// The packed fields of all bytes; the rest of the vector is unspecified.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn pack(self, fields: __m512i) -> __m512i {
        let width = self.width;
        // By two, by four and by eight: the upper half of each moves down to where the lower ends.
        let upper = _mm512_srl_epi16(fields, count(8 - width));
        let lower = _mm512_and_si512(fields, _mm512_set1_epi16(0xff));
        let mask = _mm512_set1_epi16((((1u16 << width) - 1) << width) as i16);
        let twos = _mm512_ternarylogic_epi64::<AND_OR>(upper, mask, lower);
        let upper = _mm512_srl_epi32(twos, count(16 - 2 * width));
        let lower = _mm512_and_si512(twos, _mm512_set1_epi32(0xffff));
        let mask = _mm512_set1_epi32((((1u32 << (2 * width)) - 1) << (2 * width)) as i32);
        let fours = _mm512_ternarylogic_epi64::<AND_OR>(upper, mask, lower);
        let upper = _mm512_srl_epi64(fours, count(32 - 4 * width));
        let lower = _mm512_and_si512(fours, _mm512_set1_epi64(0xffff_ffff));
        let mask = _mm512_set1_epi64((((1u64 << (4 * width)) - 1) << (4 * width)) as i64);
        let eights = _mm512_ternarylogic_epi64::<AND_OR>(upper, mask, lower);
        _mm512_permutexvar_epi8(self.places, eights)
    }
}
