//! The AVX-512 look-ups and shifts of [`code_table`](crate::coder::huffman::code_table).

use std::arch::x86_64::*;

use crate::coder::huffman::code_table::{CODE_BITS, CodeTable, GROUP, MAX_PACKED_BITS, PackedCodes};
use crate::simd::Avx512;

impl Avx512 {
    /// The concatenated codes of the symbols: sixteen per word if `SIXTEEN` and all fit, else
    /// eight, else four. `TABLES` must be `table.tables`, and every symbol must have a code.
    #[inline(always)]
    pub(crate) fn pack_codes<const TABLES: usize, const SIXTEEN: bool>(
        self,
        symbols: &[u8; GROUP],
        table: &CodeTable,
    ) -> PackedCodes {
        // SAFETY: `self` proves the features.
        unsafe {
            let most = _mm512_set1_epi64(MAX_PACKED_BITS as i64);
            let Eights { before, after, behind, lens } = eights::<TABLES>(symbols, table);
            let codes = _mm512_or_si512(_mm512_sllv_epi64(before, behind), after);
            if SIXTEEN {
                let behind = _mm512_unpackhi_epi64(lens, lens);
                let both = _mm512_add_epi64(lens, behind);
                if _mm512_mask_cmpgt_epu64_mask(0b0101_0101, both, most) == 0 {
                    let second = _mm512_unpackhi_epi64(codes, codes);
                    let codes = _mm512_or_si512(_mm512_sllv_epi64(codes, behind), second);
                    return PackedCodes::Sixteens(words(codes), words(both));
                }
            }
            if _mm512_cmpgt_epu64_mask(lens, most) == 0 {
                return PackedCodes::Eights(words(codes), words(lens));
            }
            let first = (words(before), words(_mm512_sub_epi64(lens, behind)));
            PackedCodes::Fours([first, (words(after), words(behind))])
        }
    }
}

/// All words of a vector, or every `8 / N`-th.
#[inline(always)]
fn words<const N: usize>(vector: __m512i) -> [u64; N] {
    // SAFETY: both are plain data of one size, for which every bit pattern is valid.
    let all = unsafe { std::mem::transmute::<__m512i, [u64; 8]>(vector) };
    std::array::from_fn(|i| all[i * (all.len() / N)])
}

#[inline(always)]
fn vector(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: as above.
    unsafe { std::mem::transmute::<[u8; 64], __m512i>(*bytes) }
}

/// The entries of these symbols in tables of one byte each.
///
/// # Safety
///
/// The machine must have AVX-512 with VBMI.
#[inline(always)]
unsafe fn look_up<const TABLES: usize>(symbols: __m512i, tables: &[[u8; 64]; 4]) -> __m512i {
    // SAFETY: as above.
    unsafe {
        match TABLES {
            1 => _mm512_permutexvar_epi8(symbols, vector(&tables[0])),
            2 => _mm512_permutex2var_epi8(vector(&tables[0]), symbols, vector(&tables[1])),
            _ => {
                let lower = _mm512_permutex2var_epi8(vector(&tables[0]), symbols, vector(&tables[1]));
                let upper = _mm512_permutex2var_epi8(vector(&tables[2]), symbols, vector(&tables[3]));
                _mm512_mask_mov_epi8(lower, _mm512_movepi8_mask(symbols), upper)
            }
        }
    }
}

/// The codes of every eight symbols.
struct Eights {
    /// The concatenated codes of the first four and of the last four symbols.
    before: __m512i,
    after: __m512i,
    /// The number of bits of the last four, and of all eight.
    behind: __m512i,
    lens: __m512i,
}

/// # Safety
/// The machine must have AVX-512 with VBMI.
#[inline(always)]
unsafe fn eights<const TABLES: usize>(symbols: &[u8; GROUP], table: &CodeTable) -> Eights {
    // SAFETY: as above.
    unsafe {
        let symbols = vector(symbols);
        let low = look_up::<TABLES>(symbols, &table.bytes[0]);
        let high = look_up::<TABLES>(symbols, &table.bytes[1]);
        // Of every sixteen symbols the first eight, and the last: by fours in a word.
        let first = fours(_mm512_unpacklo_epi8(low, high));
        let second = fours(_mm512_unpackhi_epi8(low, high));
        let zero = _mm512_setzero_si512();
        let each = _mm512_and_si512(_mm512_srli_epi16::<4>(high), _mm512_set1_epi8(15));
        Eights {
            before: _mm512_unpacklo_epi64(first, second),
            after: _mm512_unpackhi_epi64(first, second),
            behind: _mm512_sad_epu8(_mm512_maskz_mov_epi32(0xaaaa, each), zero),
            lens: _mm512_sad_epu8(each, zero),
        }
    }
}

/// The concatenated codes of every four symbols, from sixteen-bit entries of code and length.
///
/// # Safety
///
/// The machine must have AVX-512.
#[inline(always)]
unsafe fn fours(entries: __m512i) -> __m512i {
    /// (structural)
    const LEN: u32 = CODE_BITS;
    // SAFETY: as above.
    unsafe {
        let code = _mm512_set1_epi32((1 << CODE_BITS) - 1);
        let second_len = _mm512_srli_epi32::<{ 16 + LEN }>(entries);
        let first = _mm512_sllv_epi32(_mm512_and_si512(entries, code), second_len);
        // `first | entries >> 16 & code`.
        let twos = _mm512_ternarylogic_epi32::<0xf8>(first, _mm512_srli_epi32::<16>(entries), code);
        // The lengths of the third and of the fourth.
        let third_len = _mm512_and_si512(_mm512_srli_epi64::<{ 32 + LEN }>(entries), _mm512_set1_epi64(15));
        let behind = _mm512_add_epi64(third_len, _mm512_srli_epi64::<{ 48 + LEN }>(entries));
        let first = _mm512_sllv_epi64(_mm512_maskz_mov_epi32(0x5555, twos), behind);
        _mm512_or_si512(first, _mm512_srli_epi64::<32>(twos))
    }
}
