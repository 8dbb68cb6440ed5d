//! The AVX2 and BMI2 level.

use std::arch::x86_64::*;

use crate::simd::casts::{cast, unpackers};
use crate::simd::isa::{
    Bytes, CodeWindow, CodeWindows, Isa, LANES, Lanes, MAX_WINDOW_BITS, STRIPE, Sums, UNPACKED,
};
use crate::simd::level::{self, SimdLevel};

/// A value of this type proves that AVX2 and BMI2 were detected.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// The proof, if the current level includes AVX2.
    #[inline]
    pub(crate) fn new() -> Option<Self> {
        level::has(SimdLevel::Avx2).then_some(Self(()))
    }
}

/// Lane `i` of a half takes the two bytes that its field lies in; a multiplication moves the field
/// to the top of the lane, and a shift brings it down.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unpacker {
    places: [u8; 32],
    factors: [u16; 16],
    /// Bytes of eight fields.
    width: usize,
    down: u32,
}

impl Unpacker {
    const fn new(bits: u32) -> Self {
        let mut places = [0u8; 32];
        let mut factors = [0u16; 16];
        let mut i = 0;
        while i < 16 {
            let bit = i as u32 % 8 * bits;
            places[2 * i] = (bit / 8) as u8;
            places[2 * i + 1] = (bit / 8 + 1) as u8;
            factors[i] = 1 << (16 - bits - bit % 8);
            i += 1;
        }
        Self { places, factors, width: bits as usize, down: 16 - bits }
    }
}

impl Isa for Avx2 {
    unpackers!(Unpacker);

    #[inline(always)]
    fn unpack(self, bytes: &[u8; UNPACKED], unpacker: Unpacker) -> Lanes {
        let places = cast!(unpacker.places, [u8; 32] => __m256i);
        let factors = cast!(unpacker.factors, [u16; 16] => __m256i);
        let eight = |index: usize| -> [u8; 16] {
            let mut eight = [0; 16];
            eight.copy_from_slice(&bytes[index * unpacker.width..][..16]);
            eight
        };
        let halves = [[eight(0), eight(1)], [eight(2), eight(3)]];
        let [first, second] = cast!(halves, [[[u8; 16]; 2]; 2] => [__m256i; 2]);
        // SAFETY: `self` proves AVX2.
        let fields = unsafe {
            let down = _mm_cvtsi32_si128(unpacker.down as i32);
            let first = _mm256_mullo_epi16(_mm256_shuffle_epi8(first, places), factors);
            let second = _mm256_mullo_epi16(_mm256_shuffle_epi8(second, places), factors);
            [_mm256_srl_epi16(first, down), _mm256_srl_epi16(second, down)]
        };
        cast!(fields, [__m256i; 2] => Lanes)
    }

    #[inline(always)]
    fn pack(self, fields: [u16; 16], bits: u32) -> [u64; 2] {
        let kept = 0x0101_0101_0101_0101 * ((1 << bits) - 1);
        let words = cast!(self.low_bytes(fields), [u8; 16] => [u64; 2]);
        // SAFETY: `self` proves BMI2.
        words.map(|word| unsafe { _pext_u64(word, kept) })
    }

    #[inline(always)]
    fn widen(self, top: Lanes, high: Bytes, low: Bytes) -> [u32; LANES] {
        let tops = cast!(top, Lanes => [__m256i; 2]);
        let (high, low) = (cast!(high, Bytes => __m256i), cast!(low, Bytes => __m256i));
        // SAFETY: `self` proves AVX2.
        let elements = unsafe {
            // Halves interleave on their own, so each gets the quarters that it needs.
            let high = _mm256_permute4x64_epi64::<0b11_01_10_00>(high);
            let low = _mm256_permute4x64_epi64::<0b11_01_10_00>(low);
            let lows = [_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)];
            let first = _mm256_permute4x64_epi64::<0b11_01_10_00>(lows[0]);
            let second = _mm256_permute4x64_epi64::<0b11_01_10_00>(lows[1]);
            let top0 = _mm256_permute4x64_epi64::<0b11_01_10_00>(tops[0]);
            let top1 = _mm256_permute4x64_epi64::<0b11_01_10_00>(tops[1]);
            [
                _mm256_unpacklo_epi16(first, top0),
                _mm256_unpackhi_epi16(first, top0),
                _mm256_unpacklo_epi16(second, top1),
                _mm256_unpackhi_epi16(second, top1),
            ]
        };
        cast!(elements, [__m256i; 4] => [u32; LANES])
    }

    #[inline(always)]
    fn narrow(self, elements: [u32; 16]) -> ([u16; 16], [u8; 16], [u8; 16]) {
        let [a, b, c, d] = cast!(elements, [u32; 16] => [__m128i; 4]);
        // Each quad as its low bytes, its high bytes, then its tops.
        let order = [0u8, 4, 8, 12, 1, 5, 9, 13, 2, 3, 6, 7, 10, 11, 14, 15];
        let order = cast!(order, [u8; 16] => __m128i);
        // SAFETY: `self` proves AVX2.
        let (tops, bytes) = unsafe {
            let (a, b) = (_mm_shuffle_epi8(a, order), _mm_shuffle_epi8(b, order));
            let (c, d) = (_mm_shuffle_epi8(c, order), _mm_shuffle_epi8(d, order));
            let (first, second) = (_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d));
            let low = _mm_unpacklo_epi64(first, second);
            let high = _mm_unpackhi_epi64(first, second);
            ([_mm_unpackhi_epi64(a, b), _mm_unpackhi_epi64(c, d)], [high, low])
        };
        let [high, low] = cast!(bytes, [__m128i; 2] => [[u8; 16]; 2]);
        (cast!(tops, [__m128i; 2] => [u16; 16]), high, low)
    }

    #[inline(always)]
    fn merge_bytes(self, symbols: Bytes, others: Bytes) -> Lanes {
        let symbols = cast!(symbols, Bytes => __m256i);
        let others = cast!(others, Bytes => __m256i);
        // SAFETY: `self` proves AVX2.
        let elements = unsafe {
            // Halves interleave on their own, so each gets the quarters that it needs.
            let symbols = _mm256_permute4x64_epi64::<0b11_01_10_00>(symbols);
            let others = _mm256_permute4x64_epi64::<0b11_01_10_00>(others);
            let (sign, rest) = (_mm256_set1_epi8(-128), _mm256_set1_epi8(127));
            // There are no byte shifts: bits that come in from the neighbour are masked.
            let lowest = _mm256_and_si256(_mm256_slli_epi16::<7>(symbols), sign);
            let others_of_symbol = _mm256_and_si256(_mm256_srli_epi16::<1>(symbols), rest);
            let low = _mm256_or_si256(lowest, _mm256_and_si256(others, rest));
            let high = _mm256_or_si256(others_of_symbol, _mm256_and_si256(others, sign));
            [_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)]
        };
        cast!(elements, [__m256i; 2] => Lanes)
    }

    #[inline(always)]
    fn merge_fields<const SHIFT: u32>(
        self,
        base: u16,
        codes: Bytes,
        fields: Lanes,
        plane: Option<Bytes>,
    ) -> Lanes {
        let codes = cast!(codes, Bytes => [__m128i; 2]);
        let fields = cast!(fields, Lanes => [__m256i; 2]);
        let plane = plane.map(|plane| cast!(plane, Bytes => [__m128i; 2]));
        let mut lanes = fields;
        for i in 0..2 {
            // SAFETY: `self` proves AVX2.
            lanes[i] = unsafe {
                let by = |bits: u32| _mm_cvtsi32_si128(bits as i32);
                let symbols =
                    _mm256_add_epi16(_mm256_cvtepu8_epi16(codes[i]), _mm256_set1_epi16(base as i16));
                let raw = match plane {
                    Some(plane) => {
                        _mm256_or_si256(_mm256_slli_epi16::<8>(fields[i]), _mm256_cvtepu8_epi16(plane[i]))
                    }
                    None => fields[i],
                };
                let sign = _mm256_sll_epi16(_mm256_srl_epi16(raw, by(SHIFT)), by(15));
                let rest = _mm256_and_si256(raw, _mm256_set1_epi16((1 << SHIFT) - 1));
                _mm256_or_si256(_mm256_or_si256(sign, rest), _mm256_sll_epi16(symbols, by(SHIFT)))
            };
        }
        cast!(lanes, [__m256i; 2] => Lanes)
    }

    #[inline(always)]
    fn split_bytes(self, lanes: [u16; 16]) -> ([u8; 16], [u8; 16]) {
        let [first, second] = cast!(lanes, [u16; 16] => [__m128i; 2]);
        // SAFETY: `self` proves AVX2.
        let (symbols, others) = unsafe {
            let byte = _mm_set1_epi16(0xff);
            let (sign, rest) = (_mm_set1_epi8(-128), _mm_set1_epi8(127));
            let low = _mm_packus_epi16(_mm_and_si128(first, byte), _mm_and_si128(second, byte));
            let high = _mm_packus_epi16(_mm_srli_epi16::<8>(first), _mm_srli_epi16::<8>(second));
            let upper = _mm_andnot_si128(_mm_set1_epi8(1), _mm_add_epi8(high, high));
            let lowest = _mm_andnot_si128(_mm_set1_epi8(-2), _mm_srli_epi16::<7>(low));
            let others = _mm_or_si128(_mm_and_si128(high, sign), _mm_and_si128(low, rest));
            (_mm_or_si128(upper, lowest), others)
        };
        (cast!(symbols, __m128i => [u8; 16]), cast!(others, __m128i => [u8; 16]))
    }

    #[inline(always)]
    fn low_bytes(self, lanes: [u16; 16]) -> [u8; 16] {
        let lanes = cast!(lanes, [u16; 16] => __m256i);
        // SAFETY: `self` proves AVX2.
        let bytes = unsafe {
            let low = _mm256_and_si256(lanes, _mm256_set1_epi16(0xff));
            let packed = _mm256_packus_epi16(low, low);
            _mm256_castsi256_si128(_mm256_permute4x64_epi64::<0b10_00>(packed))
        };
        cast!(bytes, __m128i => [u8; 16])
    }

    #[inline(always)]
    fn any_above_255(self, lanes: [u16; 16]) -> bool {
        let lanes = cast!(lanes, [u16; 16] => __m256i);
        // SAFETY: `self` proves AVX2.
        unsafe { _mm256_testz_si256(lanes, _mm256_set1_epi16(!0xff)) == 0 }
    }

    #[inline(always)]
    fn look_up(self, palette: [u8; 16], nibbles: [u8; 16]) -> Bytes {
        let palette = cast!(palette, [u8; 16] => __m128i);
        let nibbles = cast!(nibbles, [u8; 16] => __m128i);
        // SAFETY: `self` proves AVX2.
        let found = unsafe {
            let mask = _mm_set1_epi8(15);
            let low = _mm_shuffle_epi8(palette, _mm_and_si128(nibbles, mask));
            let high = _mm_shuffle_epi8(palette, _mm_and_si128(_mm_srli_epi16::<4>(nibbles), mask));
            [_mm_unpacklo_epi8(low, high), _mm_unpackhi_epi8(low, high)]
        };
        cast!(found, [__m128i; 2] => Bytes)
    }

    #[inline(always)]
    fn shuffle(self, bytes: [u8; 16], index: [u8; 16]) -> [u8; 16] {
        let (bytes, index) = (cast!(bytes, [u8; 16] => __m128i), cast!(index, [u8; 16] => __m128i));
        // SAFETY: `self` proves AVX2, which includes the shuffle.
        let shuffled = unsafe { _mm_shuffle_epi8(bytes, index) };
        cast!(shuffled, __m128i => [u8; 16])
    }

    #[inline(always)]
    fn sum_clamped(self, bytes: [u8; 32], least: u8) -> u32 {
        let bytes = cast!(bytes, [u8; 32] => __m256i);
        // SAFETY: `self` proves AVX2.
        let sums = unsafe {
            let bytes = _mm256_max_epu8(bytes, _mm256_set1_epi8(least as i8));
            _mm256_sad_epu8(bytes, _mm256_setzero_si256())
        };
        cast!(sums, __m256i => [u64; 4]).into_iter().sum::<u64>() as u32
    }

    #[inline(always)]
    fn equal(self, bytes: [u8; 32], value: u8) -> u32 {
        let bytes = cast!(bytes, [u8; 32] => __m256i);
        // SAFETY: `self` proves AVX2.
        unsafe { _mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(value as i8))) as u32 }
    }

    #[inline(always)]
    fn accumulate(self, sums: Sums, stripe: [u8; STRIPE], secret: [u8; STRIPE]) -> Sums {
        let sums = cast!(sums, Sums => [__m256i; 2]);
        let stripe = cast!(stripe, [u8; STRIPE] => [__m256i; 2]);
        let secret = cast!(secret, [u8; STRIPE] => [__m256i; 2]);
        // SAFETY: `self` proves AVX2.
        let sums = unsafe {
            let keys = [_mm256_xor_si256(stripe[0], secret[0]), _mm256_xor_si256(stripe[1], secret[1])];
            let products = [
                _mm256_mul_epu32(keys[0], _mm256_srli_epi64::<32>(keys[0])),
                _mm256_mul_epu32(keys[1], _mm256_srli_epi64::<32>(keys[1])),
            ];
            let neighbours = [
                _mm256_shuffle_epi32::<0b01_00_11_10>(stripe[0]),
                _mm256_shuffle_epi32::<0b01_00_11_10>(stripe[1]),
            ];
            [
                _mm256_add_epi64(_mm256_add_epi64(sums[0], neighbours[0]), products[0]),
                _mm256_add_epi64(_mm256_add_epi64(sums[1], neighbours[1]), products[1]),
            ]
        };
        cast!(sums, [__m256i; 2] => Sums)
    }

    #[inline(always)]
    unsafe fn store_nt(self, to: *mut u8, stripe: [u8; STRIPE]) {
        let halves = cast!(stripe, [u8; STRIPE] => [__m256i; 2]);
        let to = to.cast::<__m256i>();
        // SAFETY: `self` proves AVX2; the place is aligned and large enough, as the caller
        // promises.
        unsafe {
            _mm256_stream_si256(to, halves[0]);
            _mm256_stream_si256(to.add(1), halves[1]);
        }
    }

    #[inline(always)]
    fn concat_codes(self, symbols: [u8; 32], window: &CodeWindow) -> Option<[(u64, u64); 2]> {
        macro_rules! both {
            ($half:expr) => {
                cast!([$half, $half], [[u8; 16]; 2] => __m256i)
            };
        }
        let (code_low, code_high) = (both!(window.codes[0]), both!(window.codes[1]));
        let (power_low, power_high) = (both!(window.powers[0]), both!(window.powers[1]));
        let lens = both!(window.lens);
        let symbols = cast!(symbols, [u8; 32] => __m256i);
        // SAFETY: `self` proves AVX2.
        let (codes, lens, fits) = unsafe {
            let at = _mm256_sub_epi8(symbols, _mm256_set1_epi8(window.first as i8));
            let inside = _mm256_testz_si256(at, _mm256_set1_epi8(-16)) == 1;
            let (low, high) = (_mm256_shuffle_epi8(code_low, at), _mm256_shuffle_epi8(code_high, at));
            let power_low = _mm256_shuffle_epi8(power_low, at);
            let power_high = _mm256_shuffle_epi8(power_high, at);
            let lens = _mm256_maddubs_epi16(_mm256_shuffle_epi8(lens, at), _mm256_set1_epi8(1));
            let zero = _mm256_setzero_si256();
            // Four codes per lane of 64 bits: those at 0, 4, 16 and 20, then those at 8, 12, 24 and
            // 28.
            let first = concat_fours(
                _mm256_unpacklo_epi8(low, high),
                _mm256_unpacklo_epi8(power_low, power_high),
                _mm256_unpacklo_epi16(lens, zero),
            );
            let second = concat_fours(
                _mm256_unpackhi_epi8(low, high),
                _mm256_unpackhi_epi8(power_low, power_high),
                _mm256_unpackhi_epi16(lens, zero),
            );
            // Eight per lane, in order, then sixteen in every other lane.
            let (eights, lens) = concat_both(first, second);
            let behind = _mm256_unpackhi_epi64(lens, lens);
            let codes =
                _mm256_or_si256(_mm256_sllv_epi64(eights, behind), _mm256_unpackhi_epi64(eights, eights));
            let lens = _mm256_add_epi64(lens, behind);
            let long = _mm256_cmpgt_epi64(lens, _mm256_set1_epi64x(MAX_WINDOW_BITS as i64));
            (codes, lens, inside && _mm256_testz_si256(long, _mm256_set_epi64x(0, -1, 0, -1)) == 1)
        };
        let (codes, lens) = (cast!(codes, __m256i => [u64; 4]), cast!(lens, __m256i => [u64; 4]));
        fits.then_some([(codes[0], lens[0]), (codes[2], lens[2])])
    }

    #[inline(always)]
    fn concat_eights(self, symbols: [u8; 32], windows: &CodeWindows) -> Option<[(u64, u64); 4]> {
        macro_rules! both {
            ($half:expr) => {
                _mm256_broadcastsi128_si256(_mm_loadu_si128($half.as_ptr().cast()))
            };
        }
        let powers: [[u8; 16]; 2] = const {
            let mut powers = [[0; 16]; 2];
            let mut len = 0;
            while len < 16 {
                powers[len / 8][len] = 1 << (len % 8);
                len += 1;
            }
            powers
        };
        let symbols = cast!(symbols, [u8; 32] => __m256i);
        // SAFETY: `self` proves AVX2, and every load is of an array of sixteen bytes.
        let (codes, lens, fits) = unsafe {
            let zero = _mm256_setzero_si256();
            let mut at = _mm256_sub_epi8(symbols, _mm256_set1_epi8(windows.first as i8));
            let (mut low, mut high) = (zero, zero);
            for [low_bytes, high_bytes] in &windows.bytes[..windows.count] {
                // The highest bit is set outside the window, where a shuffle gives 0.
                let index = _mm256_adds_epu8(at, _mm256_set1_epi8(0x70));
                low = _mm256_or_si256(low, _mm256_shuffle_epi8(both!(low_bytes), index));
                high = _mm256_or_si256(high, _mm256_shuffle_epi8(both!(high_bytes), index));
                at = _mm256_sub_epi8(at, _mm256_set1_epi8(16));
            }
            let nibble = _mm256_set1_epi8(15);
            let each = _mm256_and_si256(_mm256_srli_epi16::<4>(high), nibble);
            let high = _mm256_and_si256(high, nibble);
            // Symbols outside all windows have no length.
            let outside = _mm256_cmpeq_epi8(each, zero);
            let power_low = _mm256_shuffle_epi8(both!(powers[0]), each);
            let power_high = _mm256_shuffle_epi8(both!(powers[1]), each);
            let lens = _mm256_maddubs_epi16(each, _mm256_set1_epi8(1));
            let first = concat_fours(
                _mm256_unpacklo_epi8(low, high),
                _mm256_unpacklo_epi8(power_low, power_high),
                _mm256_unpacklo_epi16(lens, zero),
            );
            let second = concat_fours(
                _mm256_unpackhi_epi8(low, high),
                _mm256_unpackhi_epi8(power_low, power_high),
                _mm256_unpackhi_epi16(lens, zero),
            );
            let (codes, lens) = concat_both(first, second);
            let long = _mm256_cmpgt_epi64(lens, _mm256_set1_epi64x(MAX_WINDOW_BITS as i64));
            let not = _mm256_or_si256(outside, long);
            (codes, lens, _mm256_testz_si256(not, not) == 1)
        };
        let (codes, lens) = (cast!(codes, __m256i => [u64; 4]), cast!(lens, __m256i => [u64; 4]));
        fits.then(|| std::array::from_fn(|i| (codes[i], lens[i])))
    }
}

/// Concatenates codes of the first and of the second, even lanes before odd ones; returns them and
/// their lengths, 64 bits each.
///
/// # Safety
///
/// The machine must have AVX2.
#[inline(always)]
unsafe fn concat_both(first: (__m256i, __m256i), second: (__m256i, __m256i)) -> (__m256i, __m256i) {
    // SAFETY: as above.
    unsafe {
        let behind = _mm256_unpackhi_epi64(first.1, second.1);
        let codes = _mm256_or_si256(
            _mm256_sllv_epi64(_mm256_unpacklo_epi64(first.0, second.0), behind),
            _mm256_unpackhi_epi64(first.0, second.0),
        );
        (codes, _mm256_add_epi64(_mm256_unpacklo_epi64(first.1, second.1), behind))
    }
}

/// Concatenates every four codes of sixteen bits, given two to the power of their lengths, and the
/// lengths of every two of them, 32 bits each; returns the codes and their lengths, 64 bits each.
///
/// # Safety
///
/// The machine must have AVX2.
#[inline(always)]
unsafe fn concat_fours(codes: __m256i, powers: __m256i, lens: __m256i) -> (__m256i, __m256i) {
    // SAFETY: as above.
    unsafe {
        let low = _mm256_set1_epi64x(0xffff_ffff);
        // The first code of two moves up by the length of the second.
        let factors = _mm256_or_si256(_mm256_srli_epi32::<16>(powers), _mm256_set1_epi32(0x1_0000));
        let pairs = _mm256_madd_epi16(codes, factors);
        let behind = _mm256_srli_epi64::<32>(lens);
        let first = _mm256_sllv_epi64(_mm256_and_si256(pairs, low), behind);
        let fours = _mm256_or_si256(first, _mm256_srli_epi64::<32>(pairs));
        (fours, _mm256_and_si256(_mm256_add_epi64(lens, behind), low))
    }
}
