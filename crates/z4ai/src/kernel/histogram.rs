//! Counting.

use super::{Isa, dispatch};

/// Counts of pairs of bytes, all zero between uses.
pub(crate) struct Pairs(Box<[u16; 1 << 16]>);

impl Default for Pairs {
    fn default() -> Self {
        let zeros = vec![0; 1 << 16].into_boxed_slice();
        Self(zeros.try_into().expect("as many as were made"))
    }
}

/// Bytes whose pairs cannot overflow their counts.
const MOST: usize = 2 * (u16::MAX as usize);
/// Fewer bytes than this are not worth adding up all pairs.
const FEW: usize = 1 << 15;

/// As [`of_bytes`], for bytes of which most values do not occur: pairs of them take half as many
/// stores, of which processors make one at a time.
pub(crate) fn of_few(bytes: &[u8], pairs: &mut Pairs) -> [u32; 256] {
    let mut counts = [0; 256];
    let parts = bytes.chunks(MOST);
    for part in parts {
        match part.len() {
            0..FEW => of_bytes(part).iter().zip(&mut counts).for_each(|(part, all)| *all += part),
            _ => add_pairs(part, &mut pairs.0, &mut counts),
        }
    }
    counts
}

dispatch! {
    fn add_pairs(bytes: &[u8], pairs: &mut [u16; 1 << 16], counts: &mut [u32; 256]) = add_pairs_with
}

#[inline(always)]
fn add_pairs_with(_: impl Isa, bytes: &[u8], pairs: &mut [u16; 1 << 16], counts: &mut [u32; 256]) {
    let (whole, rest) = bytes.as_chunks::<2>();
    for &pair in whole {
        pairs[usize::from(u16::from_le_bytes(pair))] += 1;
    }
    rest.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
    for (second, firsts) in pairs.as_chunks_mut::<256>().0.iter_mut().enumerate() {
        let mut seconds = 0;
        for (count, first) in counts.iter_mut().zip(&mut *firsts) {
            *count += u32::from(*first);
            seconds += u32::from(*first);
        }
        counts[second] += seconds;
        firsts.fill(0);
    }
}

/// How often each byte occurs.
pub(crate) fn of_bytes(bytes: &[u8]) -> [u32; 256] {
    // Four tables, so that equal neighbours do not wait for each other's store.
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
    std::array::from_fn(|b| counts.iter().map(|table| table[b]).sum())
}

/// How often each value of the `bits` (at most 13) bits below the sign occurs in elements of
/// `size` bytes.
pub(crate) fn of_leading_bits(elements: &[u8], size: usize, bits: u32) -> Vec<u32> {
    match (size, bits) {
        (2, 0..=10) => of_leading_bits_sized::<2, 1024>(elements, bits),
        (4, 0..=10) => of_leading_bits_sized::<4, 1024>(elements, bits),
        (8, _) => of_leading_bits_sized::<8, 8192>(elements, bits),
        _ => unreachable!("no such element"),
    }
}

/// `VALUES` is a power of two not below `1 << bits`, so that no index needs a check.
fn of_leading_bits_sized<const SIZE: usize, const VALUES: usize>(elements: &[u8], bits: u32) -> Vec<u32> {
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
    use crate::kernel::Portable;

    #[test]
    fn pairs_count_what_bytes_count() {
        let mut state = 1u64;
        let mut next = |range: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % range
        };
        let mut pairs = Pairs::default();
        for len in [0, 1, FEW - 1, FEW + 1, MOST, MOST + 1, 3 * MOST + 7] {
            for values in [1, 20, 256] {
                let bytes: Vec<u8> = (0..len).map(|_| next(values) as u8).collect();
                let mut naive = [0; 256];
                bytes.iter().for_each(|&byte| naive[usize::from(byte)] += 1);
                assert_eq!(of_bytes(&bytes), naive);
                assert_eq!(of_few(&bytes, &mut pairs), naive);
                if len <= MOST {
                    let mut portable = [0; 256];
                    add_pairs_with(Portable, &bytes, &mut pairs.0, &mut portable);
                    assert_eq!(portable, naive);
                }
            }
        }
    }
}
