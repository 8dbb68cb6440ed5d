//! [`Vector`] at the AVX2 level: two registers.

use std::arch::x86_64::*;

use crate::simd::Avx2;
use crate::simd::casts::cast;
use crate::simd::vector::{Lane, VECTOR, Vector, tables};

/// Two registers. No closures below: only `#[inline(always)]` code is compiled for the same
/// instructions.
type V = [__m256i; 2];

/// An intrinsic on both registers, one of four by the size of a lane.
macro_rules! both {
    ($lane:ident, $one:ident, $two:ident, $four:ident, $eight:ident, $a:expr, $b:expr) => {
        // SAFETY: the value of `Avx2` proves the features.
        unsafe {
            match $lane::SIZE {
                1 => [$one($a[0], $b[0]), $one($a[1], $b[1])],
                2 => [$two($a[0], $b[0]), $two($a[1], $b[1])],
                4 => [$four($a[0], $b[0]), $four($a[1], $b[1])],
                _ => [$eight($a[0], $b[0]), $eight($a[1], $b[1])],
            }
        }
    };
}

/// The mask of lanes, each of which is all ones or zero.
#[inline(always)]
fn mask_of<L: Lane>(_: Avx2, lanes: V) -> u64 {
    // SAFETY: the value of `Avx2` proves the features.
    unsafe {
        match L::SIZE {
            1 => {
                let (low, high) = (_mm256_movemask_epi8(lanes[0]), _mm256_movemask_epi8(lanes[1]));
                u64::from(low as u32) | u64::from(high as u32) << 32
            }
            2 => {
                // Halves are packed on their own.
                let bytes = _mm256_packs_epi16(lanes[0], lanes[1]);
                let bytes = _mm256_permute4x64_epi64::<0b11_01_10_00>(bytes);
                u64::from(_mm256_movemask_epi8(bytes) as u32)
            }
            4 => {
                let low = _mm256_movemask_ps(_mm256_castsi256_ps(lanes[0])) as u64;
                low | (_mm256_movemask_ps(_mm256_castsi256_ps(lanes[1])) as u64) << 8
            }
            _ => {
                let low = _mm256_movemask_pd(_mm256_castsi256_pd(lanes[0])) as u64;
                low | (_mm256_movemask_pd(_mm256_castsi256_pd(lanes[1])) as u64) << 4
            }
        }
    }
}

impl Vector for Avx2 {
    type V = V;

    #[inline(always)]
    fn load(self, bytes: &[u8; VECTOR]) -> V {
        cast!(*bytes, [u8; VECTOR] => V)
    }

    #[inline(always)]
    fn store(self, vector: V, bytes: &mut [u8; VECTOR]) {
        *bytes = cast!(vector, V => [u8; VECTOR]);
    }

    #[inline(always)]
    fn splat<L: Lane>(self, number: u64) -> V {
        // SAFETY: `self` proves AVX2, here and below.
        let half = unsafe {
            match L::SIZE {
                1 => _mm256_set1_epi8(number as i8),
                2 => _mm256_set1_epi16(number as i16),
                4 => _mm256_set1_epi32(number as i32),
                _ => _mm256_set1_epi64x(number as i64),
            }
        };
        [half; 2]
    }

    #[inline(always)]
    fn and(self, a: V, b: V) -> V {
        // SAFETY: as above.
        unsafe { [_mm256_and_si256(a[0], b[0]), _mm256_and_si256(a[1], b[1])] }
    }

    #[inline(always)]
    fn or(self, a: V, b: V) -> V {
        // SAFETY: as above.
        unsafe { [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])] }
    }

    #[inline(always)]
    fn xor(self, a: V, b: V) -> V {
        // SAFETY: as above.
        unsafe { [_mm256_xor_si256(a[0], b[0]), _mm256_xor_si256(a[1], b[1])] }
    }

    #[inline(always)]
    fn add<L: Lane>(self, a: V, b: V) -> V {
        both!(L, _mm256_add_epi8, _mm256_add_epi16, _mm256_add_epi32, _mm256_add_epi64, a, b)
    }

    #[inline(always)]
    fn sub<L: Lane>(self, a: V, b: V) -> V {
        both!(L, _mm256_sub_epi8, _mm256_sub_epi16, _mm256_sub_epi32, _mm256_sub_epi64, a, b)
    }

    #[inline(always)]
    fn shl<L: Lane>(self, vector: V, bits: u32) -> V {
        // SAFETY: as above.
        let by = [unsafe { _mm_cvtsi32_si128(bits as i32) }; 2];
        both!(L, _mm256_sll_epi16, _mm256_sll_epi16, _mm256_sll_epi32, _mm256_sll_epi64, vector, by)
    }

    #[inline(always)]
    fn shr<L: Lane>(self, vector: V, bits: u32) -> V {
        // SAFETY: as above.
        let by = [unsafe { _mm_cvtsi32_si128(bits as i32) }; 2];
        both!(L, _mm256_srl_epi16, _mm256_srl_epi16, _mm256_srl_epi32, _mm256_srl_epi64, vector, by)
    }

    #[inline(always)]
    fn zero_extend<L: Lane>(self, bytes: &[u8]) -> V {
        let bytes = bytes[..L::COUNT].as_ptr();
        // SAFETY: as above; a slice of as many bytes was taken.
        unsafe {
            match L::SIZE {
                2 => [
                    _mm256_cvtepu8_epi16(_mm_loadu_si128(bytes.cast())),
                    _mm256_cvtepu8_epi16(_mm_loadu_si128(bytes.add(16).cast())),
                ],
                _ => [
                    _mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes.cast())),
                    _mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes.add(8).cast())),
                ],
            }
        }
    }

    #[inline(always)]
    fn test_mask<L: Lane>(self, vector: V, bits: V) -> u64 {
        let (found, zero) = (self.and(vector, bits), self.splat::<u8>(0));
        let none = both!(
            L,
            _mm256_cmpeq_epi8,
            _mm256_cmpeq_epi16,
            _mm256_cmpeq_epi32,
            _mm256_cmpeq_epi64,
            found,
            zero
        );
        mask_of::<L>(self, none) ^ L::ALL
    }

    #[inline(always)]
    fn cmpge_mask<L: Lane>(self, a: V, b: V) -> u64 {
        if L::SIZE == 8 {
            // Unsigned order is signed order with the highest bits flipped.
            let flip = self.splat::<u64>(1 << 63);
            let (a, b) = (self.xor(a, flip), self.xor(b, flip));
            // SAFETY: as above.
            let less = unsafe { [_mm256_cmpgt_epi64(b[0], a[0]), _mm256_cmpgt_epi64(b[1], a[1])] };
            return mask_of::<L>(self, less) ^ L::ALL;
        }
        let most = both!(L, _mm256_max_epu8, _mm256_max_epu16, _mm256_max_epu32, _mm256_max_epu32, a, b);
        let equal =
            both!(L, _mm256_cmpeq_epi8, _mm256_cmpeq_epi16, _mm256_cmpeq_epi32, _mm256_cmpeq_epi32, most, a);
        mask_of::<L>(self, equal)
    }

    #[inline(always)]
    fn compress<L: Lane>(self, mask: u64, vector: V, to: &mut [u8; VECTOR]) {
        // Groups of lanes overwrite what the group before left behind its lanes. A group starts no
        // later than its own place in the vector, so that its store ends within `to`.
        let (mut mask, mut at, to) = (mask, 0, to.as_mut_ptr());
        let (words, eights) = (cast!(vector, V => [i64; 8]), cast!(vector, V => [__m128i; 4]));
        // SAFETY: as above; stores are within `to`.
        unsafe {
            match L::SIZE {
                1 => {
                    for word in words {
                        let order = tables::COMPRESS[mask as usize & 255];
                        let order = _mm_loadl_epi64(order.as_ptr().cast());
                        _mm_storel_epi64(to.add(at).cast(), _mm_shuffle_epi8(_mm_cvtsi64_si128(word), order));
                        at += (mask & 255).count_ones() as usize;
                        mask >>= 8;
                    }
                }
                2 => {
                    for eight in eights {
                        let order = &tables::COMPRESS_PAIRS[mask as usize & 255];
                        let order = _mm_loadu_si128(order.as_ptr().cast());
                        _mm_storeu_si128(to.add(at).cast(), _mm_shuffle_epi8(eight, order));
                        at += (mask & 255).count_ones() as usize * 2;
                        mask >>= 8;
                    }
                }
                size => {
                    for half in vector {
                        let pick = match size {
                            4 => mask as u8,
                            _ => tables::TWICE[mask as usize & 15],
                        };
                        let order = _mm_loadl_epi64(tables::COMPRESS[usize::from(pick)].as_ptr().cast());
                        let order = _mm256_cvtepu8_epi32(order);
                        _mm256_storeu_si256(to.add(at).cast(), _mm256_permutevar8x32_epi32(half, order));
                        at += pick.count_ones() as usize * 4;
                        mask >>= 32 / size;
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn expand<L: Lane>(self, mask: u64, from: &[u8; VECTOR]) -> V {
        let (mut mask, mut at, from) = (mask, 0, from.as_ptr());
        let mut halves = self.splat::<u8>(0);
        if L::SIZE == 1 {
            let mut words = [0i64; 8];
            for word in &mut words {
                let order = &tables::EXPAND[mask as usize & 255];
                // SAFETY: as above; a group loads from no later than its own place in the vector,
                // here and below.
                *word = unsafe {
                    let order = _mm_loadl_epi64(order.as_ptr().cast());
                    _mm_cvtsi128_si64(_mm_shuffle_epi8(_mm_loadl_epi64(from.add(at).cast()), order))
                };
                at += (mask & 255).count_ones() as usize;
                mask >>= 8;
            }
            return cast!(words, [i64; 8] => V);
        }
        if L::SIZE == 2 {
            let mut eights = cast!(halves, V => [__m128i; 4]);
            for eight in &mut eights {
                let order = &tables::EXPAND_PAIRS[mask as usize & 255];
                // SAFETY: as above.
                *eight = unsafe {
                    let order = _mm_loadu_si128(order.as_ptr().cast());
                    _mm_shuffle_epi8(_mm_loadu_si128(from.add(at).cast()), order)
                };
                at += (mask & 255).count_ones() as usize * 2;
                mask >>= 8;
            }
            return cast!(eights, [__m128i; 4] => V);
        }
        // SAFETY: as above.
        unsafe {
            for half in &mut halves {
                let pick = match L::SIZE {
                    4 => mask as u8,
                    _ => tables::TWICE[mask as usize & 15],
                };
                let order = _mm_loadl_epi64(tables::EXPAND[usize::from(pick)].as_ptr().cast());
                // Lanes outside the mask have an index of 128, negative when it is extended.
                let order = _mm256_cvtepi8_epi32(order);
                let words = _mm256_loadu_si256(from.add(at).cast());
                let placed = _mm256_permutevar8x32_epi32(words, order);
                *half = _mm256_andnot_si256(_mm256_srai_epi32::<31>(order), placed);
                at += pick.count_ones() as usize * 4;
                mask >>= 32 / L::SIZE;
            }
        }
        halves
    }

    #[inline(always)]
    fn select16(self, mask: u32) -> V {
        let bit = cast!(std::array::from_fn(|i| 1 << i), [u16; 16] => __m256i);
        // SAFETY: as above.
        unsafe {
            let low = _mm256_and_si256(_mm256_set1_epi16(mask as i16), bit);
            let high = _mm256_and_si256(_mm256_set1_epi16((mask >> 16) as i16), bit);
            [_mm256_cmpeq_epi16(low, bit), _mm256_cmpeq_epi16(high, bit)]
        }
    }

    #[inline(always)]
    fn align_words(self, before: V, after: V, words: usize) -> V {
        // Of three registers in a row, the two that start `turn` words into the first.
        let (three, turn) = match words {
            0 => return after,
            1..=3 => ([before[1], after[0], after[1]], 4 - words),
            4 => return [before[1], after[0]],
            _ => ([before[0], before[1], after[0]], 8 - words),
        };
        // SAFETY: as above.
        unsafe {
            let places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let order = _mm256_add_epi32(places, _mm256_set1_epi32(2 * turn as i32));
            // Words that wrapped around come from the next register.
            let next = _mm256_cmpgt_epi32(order, _mm256_set1_epi32(7));
            let a = _mm256_permutevar8x32_epi32(three[0], order);
            let b = _mm256_permutevar8x32_epi32(three[1], order);
            let c = _mm256_permutevar8x32_epi32(three[2], order);
            [_mm256_blendv_epi8(a, b, next), _mm256_blendv_epi8(b, c, next)]
        }
    }
}
