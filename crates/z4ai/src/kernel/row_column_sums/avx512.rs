//! Row and column sums, 64 bytes at a time.

use std::arch::x86_64::*;

use crate::kernel::scale_classes::MAX_CLASSES;
use crate::simd::Avx512;

/// Codes of a vector.
const WIDE: usize = 64;
/// Rows whose terms, of less than 256 each, a sum of sixteen bits holds.
const TERMS_PER_U16: usize = 256;

impl Avx512 {
    /// As [`sums_of_units`](crate::kernel::row_column_sums::sums_of_units).
    pub(crate) fn sums_of_units(self, codes: &[u8], columns: bool, period: usize, clip: u8) -> Vec<u64> {
        // SAFETY: `self` proves the features.
        unsafe { sums_of_units(codes, columns, period, clip) }
    }

    /// As [`costs_of_units`](crate::kernel::row_column_sums::costs_of_units).
    pub(crate) fn costs_of_units(
        self,
        codes: &[u8],
        columns: bool,
        period: usize,
        costs: &[u64; 256],
    ) -> Vec<[u64; MAX_CLASSES]> {
        // SAFETY: `self` proves the features.
        unsafe { costs_of_units(codes, columns, period, costs) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
fn sums_of_units(codes: &[u8], columns: bool, period: usize, clip: u8) -> Vec<u64> {
    let by = Clipped(_mm512_set1_epi8(clip as i8));
    // SAFETY: this function has the features.
    let sums = unsafe { of_units(codes, columns, period, &by) };
    sums.into_iter().map(|[sum]| sum).collect()
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
fn costs_of_units(codes: &[u8], columns: bool, period: usize, costs: &[u64; 256]) -> Vec<[u64; MAX_CLASSES]> {
    let mut by = Costs([[_mm512_setzero_si512(); 4]; MAX_CLASSES]);
    for (class, tables) in by.0.iter_mut().enumerate() {
        for (table, costs) in tables.iter_mut().zip(costs.as_chunks::<WIDE>().0) {
            let bytes = costs.map(|cost| (cost >> (16 * class)) as u8);
            *table = load(&bytes);
        }
    }
    // SAFETY: this function has the features.
    unsafe { of_units(codes, columns, period, &by) }
}

/// The terms that are summed for each code. A trait and no closure, because only
/// `#[inline(always)]` code is compiled for the same instructions.
trait Terms<const N: usize> {
    /// # Safety
    /// The machine must have AVX-512 with VBMI.
    unsafe fn of(&self, codes: __m512i) -> [__m512i; N];
}

/// `max(code, clip)`.
struct Clipped(__m512i);

impl Terms<1> for Clipped {
    #[inline(always)]
    unsafe fn of(&self, codes: __m512i) -> [__m512i; 1] {
        // SAFETY: as the caller promises.
        unsafe { [_mm512_max_epu8(codes, self.0)] }
    }
}

/// The cost of a code under each class.
struct Costs([[__m512i; 4]; MAX_CLASSES]);

impl Terms<MAX_CLASSES> for Costs {
    #[inline(always)]
    unsafe fn of(&self, codes: __m512i) -> [__m512i; MAX_CLASSES] {
        let mut terms = [codes; MAX_CLASSES];
        for class in 0..MAX_CLASSES {
            let [a, b, c, d] = self.0[class];
            // SAFETY: as the caller promises.
            terms[class] = unsafe {
                let (lower, upper) =
                    (_mm512_permutex2var_epi8(a, codes, b), _mm512_permutex2var_epi8(c, codes, d));
                _mm512_mask_mov_epi8(lower, _mm512_movepi8_mask(codes), upper)
            };
        }
        terms
    }
}

#[inline(always)]
fn load(bytes: &[u8; WIDE]) -> __m512i {
    // SAFETY: both are plain data of one size, for which every bit pattern is valid.
    unsafe { std::mem::transmute::<[u8; WIDE], __m512i>(*bytes) }
}

/// Up to 64 bytes, and zeros behind them; and where they are.
///
/// # Safety
/// The machine must have AVX-512.
#[inline(always)]
unsafe fn load_some(bytes: &[u8]) -> (__mmask64, __m512i) {
    let mask = if bytes.len() < WIDE { (1 << bytes.len()) - 1 } else { u64::MAX };
    // SAFETY: as the caller promises; only bytes of the slice are read.
    unsafe { (mask, _mm512_maskz_loadu_epi8(mask, bytes.as_ptr().cast())) }
}

/// # Safety
/// The machine must have AVX-512 with VBMI.
#[inline(always)]
unsafe fn of_units<const N: usize>(
    codes: &[u8],
    columns: bool,
    period: usize,
    by: &impl Terms<N>,
) -> Vec<[u64; N]> {
    // SAFETY: as the caller promises.
    unsafe {
        if !columns {
            return of_rows(codes, period, by);
        }
        // Short rows are taken several at a time.
        let times = WIDE.div_ceil(period);
        let several = of_columns(codes, times * period, by);
        let mut sums = several[..period].to_vec();
        for others in several[period..].chunks_exact(period) {
            for (sum, other) in sums.iter_mut().zip(others) {
                (0..N).for_each(|n| sum[n] += other[n]);
            }
        }
        sums
    }
}

/// Rows that are added up together.
const TOGETHER: usize = 8;

/// # Safety
/// The machine must have AVX-512 with VBMI.
#[inline(always)]
unsafe fn of_rows<const N: usize>(codes: &[u8], period: usize, by: &impl Terms<N>) -> Vec<[u64; N]> {
    let mut sums = Vec::with_capacity(codes.len().div_ceil(period));
    for rows in codes.chunks(TOGETHER * period) {
        let mut of_each = [[0; N]; TOGETHER];
        // SAFETY: as the caller promises.
        unsafe {
            let mut totals = [[_mm512_setzero_si512(); TOGETHER]; N];
            for (i, row) in rows.chunks(period).enumerate() {
                let total = of_row(row, by);
                for n in 0..N {
                    totals[n][i % TOGETHER] = total[n];
                }
            }
            for n in 0..N {
                let sums = add_each(&totals[n]);
                for i in 0..TOGETHER {
                    of_each[i][n] = sums[i];
                }
            }
        }
        sums.extend_from_slice(&of_each[..rows.len().div_ceil(period)]);
    }
    sums
}

/// The sums of a row, each in eight parts.
///
/// # Safety
/// The machine must have AVX-512 with VBMI.
#[inline(always)]
unsafe fn of_row<const N: usize>(row: &[u8], by: &impl Terms<N>) -> [__m512i; N] {
    let (parts, rest) = row.as_chunks::<WIDE>();
    // SAFETY: as the caller promises.
    unsafe {
        let zero = _mm512_setzero_si512();
        let mut totals = [zero; N];
        for part in parts {
            let terms = by.of(load(part));
            for n in 0..N {
                totals[n] = _mm512_add_epi64(totals[n], _mm512_sad_epu8(terms[n], zero));
            }
        }
        if !rest.is_empty() {
            let (mask, part) = load_some(rest);
            let terms = by.of(part);
            for n in 0..N {
                let terms = _mm512_maskz_mov_epi8(mask, terms[n]);
                totals[n] = _mm512_add_epi64(totals[n], _mm512_sad_epu8(terms, zero));
            }
        }
        totals
    }
}

/// The sum of the parts of each vector.
///
/// # Safety
/// The machine must have AVX-512.
#[inline(always)]
unsafe fn add_each(totals: &[__m512i; TOGETHER]) -> [u64; TOGETHER] {
    let mut sums = *totals;
    // SAFETY: as the caller promises; vectors and words are plain data of one size.
    unsafe {
        // Each step halves the partial sums of a vector, and makes one vector of two. No closures:
        // only `#[inline(always)]` code is compiled for the same instructions.
        for i in 0..4 {
            let (a, b) = (sums[2 * i], sums[2 * i + 1]);
            sums[i] = _mm512_add_epi64(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
        }
        for vectors in [2, 1] {
            for i in 0..vectors {
                let (a, b) = (sums[2 * i], sums[2 * i + 1]);
                let (even, odd) = (_mm512_shuffle_i64x2::<0x88>(a, b), _mm512_shuffle_i64x2::<0xdd>(a, b));
                sums[i] = _mm512_add_epi64(even, odd);
            }
        }
        std::mem::transmute::<__m512i, [u64; TOGETHER]>(sums[0])
    }
}

/// # Safety
/// The machine must have AVX-512 with VBMI.
#[inline(always)]
unsafe fn of_columns<const N: usize>(codes: &[u8], period: usize, by: &impl Terms<N>) -> Vec<[u64; N]> {
    let mut sums = vec![[0; N]; period];
    for rows in codes.chunks(TERMS_PER_U16 * period) {
        for first in (0..period).step_by(WIDE) {
            let width = WIDE.min(period - first);
            // SAFETY: as the caller promises.
            let totals = unsafe {
                let zero = _mm512_setzero_si512();
                // Of even columns and of odd ones.
                let mut totals = [[zero; 2]; N];
                let even = _mm512_set1_epi16(0xff);
                for row in rows.chunks(period).filter(|row| row.len() > first) {
                    let (mask, part) = load_some(&row[first..row.len().min(first + width)]);
                    let terms = by.of(part);
                    for n in 0..N {
                        let terms = _mm512_maskz_mov_epi8(mask, terms[n]);
                        let [evens, odds] = totals[n];
                        totals[n] = [
                            _mm512_add_epi16(evens, _mm512_and_si512(terms, even)),
                            _mm512_add_epi16(odds, _mm512_srli_epi16::<8>(terms)),
                        ];
                    }
                }
                // SAFETY: both are plain data of one size, for which every bit pattern is valid.
                totals.map(|totals| totals.map(|half| std::mem::transmute::<__m512i, [u16; WIDE / 2]>(half)))
            };
            for (column, sum) in sums[first..first + width].iter_mut().enumerate() {
                (0..N).for_each(|n| sum[n] += u64::from(totals[n][column % 2][column / 2]));
            }
        }
    }
    sums
}
