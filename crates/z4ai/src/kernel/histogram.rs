//! Byte histograms: exact, pairwise for narrow ranges, and sampled.

use std::ops::Range;

use crate::simd::{Isa, dispatch};

/// Scratch of the pairwise and the sampled histogram.
pub(crate) struct Pairs {
    /// Counts of pairs of bytes, all zero between uses.
    counts: Box<[u16; 1 << 16]>,
    /// The sampled bytes.
    some: Vec<u8>,
}

impl Default for Pairs {
    fn default() -> Self {
        let zeros = vec![0; 1 << 16].into_boxed_slice();
        Self { counts: zeros.try_into().expect("as many as were made"), some: Vec::new() }
    }
}

/// Bytes per pass, so that no 16-bit pair count overflows.
const MAX_PAIRED_LEN: usize = 2 * (u16::MAX as usize);
/// Ranges of values wider than this have more pairs than fit the first-level cache.
const MAX_PAIRED_RANGE: usize = 128;

/// As [`exact`], for bytes of a narrow range, as exponents have but for zeros. Counts pairs: half
/// as many stores, of which processors retire one or two per cycle.
pub(crate) fn narrow(bytes: &[u8], pairs: &mut Pairs) -> [u32; 256] {
    let used = range_of(bytes);
    // All pairs have to be added up.
    if used.len() > MAX_PAIRED_RANGE || used.len() * used.len() > bytes.len() / 4 {
        return exact(bytes);
    }
    let mut counts = [0; 256];
    for part in bytes.chunks(MAX_PAIRED_LEN) {
        add_pairs(part, used.clone(), &mut pairs.counts, &mut counts);
    }
    counts
}

/// Bytes of a sampled part: one cache line.
const SAMPLE_PART: usize = 64;
/// Sampling rates, by the length of the input.
const SAMPLE_RATES: [SampleRate; 3] = [
    SampleRate { min_len: 1 << 15, narrow_stride: 8, wide_stride: 4 },
    SampleRate { min_len: 1 << 14, narrow_stride: 4, wide_stride: 2 },
    SampleRate { min_len: 1 << 13, narrow_stride: 2, wide_stride: 1 },
];

/// Samples one of `stride` parts once the input has `min_len` bytes: fewer where the range of
/// values is narrow, since there are fewer counts to estimate. (case: `codec.py`, compress)
struct SampleRate {
    min_len: usize,
    narrow_stride: usize,
    wide_stride: usize,
}

/// A histogram scaled up from a sample, exact enough to make a code by. No byte that occurs has a
/// count of 0.
pub(crate) fn sampled(bytes: &[u8], pairs: &mut Pairs) -> [u32; 256] {
    let Some(rate) = SAMPLE_RATES.iter().find(|rate| bytes.len() >= rate.min_len) else {
        return narrow(bytes, pairs);
    };
    let mut some = std::mem::take(&mut pairs.some);
    take_sample(bytes, rate.narrow_stride, &mut some);
    let mut every = rate.narrow_stride;
    if range_of(&some).len() > MAX_PAIRED_RANGE {
        every = rate.wide_stride;
        if every > 1 {
            take_sample(bytes, every, &mut some);
        }
    }
    let mut counts = narrow(if every > 1 { &some } else { bytes }, pairs);
    pairs.some = some;
    if every > 1 {
        counts.iter_mut().for_each(|count| *count *= every as u32);
        add_missing(bytes, pairs, &mut counts);
    }
    counts
}

/// As [`sampled`], for bytes that are all symbols: exact where their range is narrow, and scaled up
/// from half of many bytes else. (case: `codec.py table`, compress of int8; an exact one is 0.01 %
/// smaller)
pub(crate) fn halved(bytes: &[u8], pairs: &mut Pairs) -> [u32; 256] {
    /// Bytes of which half are enough.
    const MANY: usize = 1 << 16;
    if bytes.len() < MANY || range_of(bytes).len() <= MAX_PAIRED_RANGE {
        return narrow(bytes, pairs);
    }
    let mut some = std::mem::take(&mut pairs.some);
    take_sample(bytes, 2, &mut some);
    let mut counts = exact(&some).map(|count| 2 * count);
    pairs.some = some;
    add_missing(bytes, pairs, &mut counts);
    counts
}

/// One of `every` parts of `bytes`.
fn take_sample(bytes: &[u8], every: usize, some: &mut Vec<u8>) {
    some.clear();
    some.reserve(bytes.len() / every);
    for (index, parts) in bytes.chunks_exact(every * SAMPLE_PART).enumerate() {
        // A pseudo-random one: row lengths are often multiples of a part.
        let part = (index as u32).wrapping_mul(0x9e37_79b1) >> 16;
        let at = part as usize % every * SAMPLE_PART;
        some.extend_from_slice(&parts[at..at + SAMPLE_PART]);
    }
}

/// Sets the counts of bytes that occur and were not sampled to 1.
fn add_missing(bytes: &[u8], pairs: &mut Pairs, counts: &mut [u32; 256]) {
    #[cfg(target_arch = "x86_64")]
    if let Some(isa) = crate::simd::Avx512::new() {
        return isa.add_missing(bytes, counts);
    }
    if add_missing_by_shuffles(bytes, counts) {
        return;
    }
    for (count, all) in counts.iter_mut().zip(narrow(bytes, pairs)) {
        *count = (*count).max(all.min(1));
    }
}

/// Sets the counts of these bytes from 0 to 1.
pub(super) fn add_each(bytes: &[u8], counts: &mut [u32; 256]) {
    for &byte in bytes {
        counts[usize::from(byte)] = counts[usize::from(byte)].max(1);
    }
}

/// The set of counted bytes, as two tables for byte shuffles: byte `b` has bit `b / 16 % 8` of entry
/// `b % 16`, in the first table if it is below 128.
struct ByteSet([[u8; 16]; 2]);

impl ByteSet {
    fn of(counts: &[u32; 256]) -> Self {
        let mut tables = [[0; 16]; 2];
        for byte in (0..256).filter(|&byte| counts[byte] > 0) {
            tables[byte / 128][byte % 16] |= 1 << (byte / 16 % 8);
        }
        Self(tables)
    }
}

dispatch! {
    /// As [`add_missing`], if the level has byte shuffles; else nothing is done, and `false` returned.
    fn add_missing_by_shuffles(bytes: &[u8], counts: &mut [u32; 256]) -> bool = add_missing_by_shuffles_with
}

#[inline(always)]
fn add_missing_by_shuffles_with<I: Isa>(isa: I, bytes: &[u8], counts: &mut [u32; 256]) -> bool {
    /// Bytes per test.
    const BLOCK: usize = 128;
    const BITS: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
    if !I::SHUFFLES {
        return false;
    }
    let (whole, rest) = bytes.as_chunks::<BLOCK>();
    let mut set = ByteSet::of(counts);
    for block in whole {
        let mut found = [u8::MAX; 16];
        for part in block.as_chunks::<16>().0 {
            // A shuffle gives 0 where the highest bit is set: each table answers for its half.
            let low = isa.shuffle(set.0[0], *part);
            let high = isa.shuffle(set.0[1], part.map(|byte| byte ^ 0x80));
            let bit = isa.shuffle(BITS, part.map(|byte| byte >> 4));
            for i in 0..16 {
                found[i] = found[i].min((low[i] | high[i]) & bit[i]);
            }
        }
        if found.contains(&0) {
            add_each(block, counts);
            set = ByteSet::of(counts);
        }
    }
    add_each(rest, counts);
    true
}

dispatch! {
    /// From the lowest to the highest byte, ignoring zeros.
    fn range_of(bytes: &[u8]) -> Range<usize> = range_with
}

dispatch! {
    /// Adds the counts of bytes that are all 0 or in `used`.
    fn add_pairs(bytes: &[u8], used: Range<usize>, pairs: &mut [u16; 1 << 16], counts: &mut [u32; 256])
        = add_pairs_with
}

#[inline(always)]
fn range_with(_: impl Isa, bytes: &[u8]) -> Range<usize> {
    // One less, so that zeros become the highest.
    let (mut below, mut highest) = (u8::MAX, 0);
    for &byte in bytes {
        below = below.min(byte.wrapping_sub(1));
        highest = highest.max(byte);
    }
    usize::from(below.min(highest.saturating_sub(1))) + 1..usize::from(highest) + 1
}

#[inline(always)]
fn add_pairs_with(
    _: impl Isa,
    bytes: &[u8],
    used: Range<usize>,
    pairs: &mut [u16; 1 << 16],
    counts: &mut [u32; 256],
) {
    let (whole, rest) = bytes.as_chunks::<2>();
    for &pair in whole {
        pairs[usize::from(u16::from_le_bytes(pair))] += 1;
    }
    rest.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
    let pairs = pairs.as_chunks_mut::<256>().0;
    for second in std::iter::once(0).chain(used.clone()) {
        let firsts = &mut pairs[second];
        let mut seconds = u32::from(firsts[0]);
        counts[0] += seconds;
        firsts[0] = 0;
        for (count, first) in counts[used.clone()].iter_mut().zip(&mut firsts[used.clone()]) {
            *count += u32::from(*first);
            seconds += u32::from(*first);
            *first = 0;
        }
        counts[second] += seconds;
    }
}

/// The exact histogram.
pub(crate) fn exact(bytes: &[u8]) -> [u32; 256] {
    // Four tables, so that equal neighbours do not depend on each other's store.
    let mut counts = [[0u32; 256]; 4];
    let words = bytes.chunks_exact(8);
    for &byte in words.remainder() {
        counts[0][usize::from(byte)] += 1;
    }
    for word in words {
        for (i, &byte) in word.iter().enumerate() {
            counts[i % 4][usize::from(byte)] += 1;
        }
    }
    let [mut all, others @ ..] = counts;
    for table in &others {
        all.iter_mut().zip(table).for_each(|(all, count)| *all += count);
    }
    all
}

dispatch! {
    /// The histogram of bytes that are all `a` or `b`; `None` if there is another.
    pub(crate) fn binary(bytes: &[u8], a: u8, b: u8) -> Option<[u32; 256]> = binary_with
}

#[inline(always)]
fn binary_with(_: impl Isa, bytes: &[u8], a: u8, b: u8) -> Option<[u32; 256]> {
    const LANES: usize = 32;
    let (mut count, mut others) = (0, [false; LANES]);
    for part in bytes.chunks(LANES * usize::from(u8::MAX)) {
        let (whole, rest) = part.as_chunks::<LANES>();
        let mut seconds = [0u8; LANES];
        for lanes in whole {
            for i in 0..LANES {
                seconds[i] += u8::from(lanes[i] == b);
                others[i] |= lanes[i] != a && lanes[i] != b;
            }
        }
        count += seconds.iter().map(|&seconds| u32::from(seconds)).sum::<u32>();
        count += rest.iter().filter(|&&byte| byte == b).count() as u32;
        others[0] |= rest.iter().any(|&byte| byte != a && byte != b);
    }
    let mut counts = [0; 256];
    counts[usize::from(a)] = bytes.len() as u32 - count;
    counts[usize::from(b)] = count;
    (others == [false; LANES]).then_some(counts)
}

/// The histogram of the `bits` (at most 13) bits below the sign of elements of `size` bytes.
pub(crate) fn leading_bits(elements: &[u8], size: usize, bits: u32) -> Vec<u32> {
    match (size, bits) {
        (2, 0..=10) => leading_bits_sized::<2, 1024>(elements, bits),
        (4, 0..=10) => leading_bits_sized::<4, 1024>(elements, bits),
        (8, _) => leading_bits_sized::<8, 8192>(elements, bits),
        _ => unreachable!("no such element"),
    }
}

/// `VALUES` is a power of two not below `1 << bits`, so that no index needs a check.
fn leading_bits_sized<const SIZE: usize, const VALUES: usize>(elements: &[u8], bits: u32) -> Vec<u32> {
    const TABLES: usize = 4;
    let mut counts = vec![[0u32; VALUES]; TABLES];
    let counts: &mut [[u32; VALUES]; TABLES] =
        counts.as_mut_slice().try_into().expect("as many tables as were made");
    let (shift, mask) = (15 - bits, (1usize << bits) - 1);
    let mut count = |element: &[u8], table: usize| {
        let top = u16::from_le_bytes([element[SIZE - 2], element[SIZE - 1]]);
        counts[table][usize::from(top >> shift) & mask & (VALUES - 1)] += 1;
    };
    let groups = elements.chunks_exact(TABLES * SIZE);
    groups.remainder().chunks_exact(SIZE).for_each(|element| count(element, 0));
    for group in groups {
        for table in 0..TABLES {
            count(&group[table * SIZE..(table + 1) * SIZE], table);
        }
    }
    (0..1 << bits).map(|value| counts.iter().map(|table| table[value]).sum()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Portable;

    fn numbers() -> impl FnMut(u64) -> u64 {
        let mut state = 1u64;
        move |range: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % range
        }
    }

    #[test]
    fn sampled_histograms_are_close_to_exact_ones() {
        let (mut next, mut pairs) = (numbers(), Pairs::default());
        for len in [5000, 1 << 15, 50_000, 1 << 16, 100_001] {
            for (values, rare) in [(20, 0), (20, 7), (200, 30)] {
                let mut bytes: Vec<u8> = (0..len).map(|_| 25 + next(values) as u8).collect();
                // Values that are too rare to be in every sample.
                for value in 0..rare {
                    bytes[next(len) as usize] = (value * 5 + 226) as u8;
                }
                let (all, some) = (exact(&bytes), sampled(&bytes, &mut pairs));
                let half = halved(&bytes, &mut pairs);
                for ((&all, &some), &half) in all.iter().zip(&some).zip(&half) {
                    assert!((all == 0) == (some == 0) && (all == 0) == (half == 0));
                    assert!(all.abs_diff(some) <= 20 + all / 2, "{some} for {all}");
                    assert!(all.abs_diff(half) <= 20 + all / 2, "{half} for {all}");
                }
                // The portable computation.
                let mut portable = some.map(|count| if count > 1 { count } else { 0 });
                let mut wide = portable;
                add_missing(&bytes, &mut pairs, &mut wide);
                let mut shuffled = portable;
                if add_missing_by_shuffles(&bytes, &mut shuffled) {
                    assert_eq!(shuffled, wide);
                }
                for (count, all) in portable.iter_mut().zip(all) {
                    *count = (*count).max(all.min(1));
                }
                assert_eq!(wide, portable);
            }
        }
    }

    #[test]
    fn pairs_count_what_bytes_count() {
        let mut next = numbers();
        let mut pairs = Pairs::default();
        for len in [0, 1, 9, 1500, 5001, MAX_PAIRED_LEN, MAX_PAIRED_LEN + 1, 3 * MAX_PAIRED_LEN + 7] {
            for (values, lowest) in [(1, 0), (1, 255), (2, 0), (1, 91), (20, 90), (20, 236), (256, 0)] {
                let with_zeros = len % 2;
                let byte =
                    |value: u64| if value % 7 < with_zeros as u64 { 0 } else { (lowest + value) as u8 };
                let bytes: Vec<u8> = (0..len).map(|_| byte(next(values))).collect();
                let mut naive = [0; 256];
                bytes.iter().for_each(|&byte| naive[usize::from(byte)] += 1);
                assert_eq!(exact(&bytes), naive);
                assert_eq!(narrow(&bytes, &mut pairs), naive);
                let two = (naive[0] + naive[91] == len as u32).then_some(naive);
                assert_eq!(binary(&bytes, 0, 91), two);
                assert_eq!(binary_with(Portable, &bytes, 0, 91), two);
                let used = range_with(Portable, &bytes);
                assert_eq!(used, range_of(&bytes));
                if len <= MAX_PAIRED_LEN {
                    let mut portable = [0; 256];
                    add_pairs_with(Portable, &bytes, used, &mut pairs.counts, &mut portable);
                    assert_eq!(portable, naive);
                }
            }
        }
    }
}
