//! Finding the bytes that a sampled histogram missed.

use std::arch::x86_64::*;

use crate::kernel::histogram::add_each;
use crate::simd::Avx512;
use crate::simd::casts::cast;

impl Avx512 {
    /// Sets the counts of bytes that occur from 0 to 1.
    pub(crate) fn add_missing(self, bytes: &[u8], counts: &mut [u32; 256]) {
        // SAFETY: `self` proves the features.
        unsafe { add_missing(bytes, counts) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
fn add_missing(bytes: &[u8], counts: &mut [u32; 256]) {
    /// Vectors per test.
    const TOGETHER: usize = 4;
    let (whole, rest) = bytes.as_chunks::<{ 64 * TOGETHER }>();
    // One bit where a byte was counted, four bits to an entry.
    let known = |counts: &[u32; 256]| {
        let entry = |i: usize| (0..4).map(|bit| u8::from(counts[4 * i + bit] > 0) << bit).sum();
        cast!(std::array::from_fn(entry), [u8; 64] => __m512i)
    };
    let mut table = known(counts);
    let bits = _mm512_set1_epi32(0x0804_0201);
    let all = _mm512_set1_epi8(-1);
    for block in whole {
        let mut found = all;
        for symbols in block.as_chunks::<64>().0 {
            let symbols = cast!(*symbols, [u8; 64] => __m512i);
            // The bits that the shift brings in from the neighbour are ignored.
            let entries = _mm512_permutexvar_epi8(_mm512_srli_epi16::<2>(symbols), table);
            let bit = _mm512_permutexvar_epi8(symbols, bits);
            found = _mm512_min_epu8(found, _mm512_and_si512(entries, bit));
        }
        if _mm512_testn_epi8_mask(found, found) != 0 {
            add_each(block, counts);
            table = known(counts);
        }
    }
    add_each(rest, counts);
}
