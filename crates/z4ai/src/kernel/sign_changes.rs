//! Signs as a delta: one bit per element, lowest of a byte first, set where its sign differs from
//! that of the element before.
//!
//! Where neighbours are correlated, as the taps of a smooth filter are, changes are rare, and bytes
//! of them compress.

use crate::kernel::sparse::for_bytes;
use crate::simd::{Isa, dispatch, dispatch_wide};

/// Elements whose signs are one word.
const WORD: usize = 64;

dispatch_wide! {
    /// Appends the sign changes of elements of `size` bytes.
    pub(crate) fn take_changes(size: usize, elements: &[u8], changes: &mut Vec<u8>) = take_with
}

dispatch! {
    /// Sets the highest bits of elements, which must be clear, to these signs (not changes).
    pub(crate) fn put(size: usize, signs: &[u8], elements: &mut [u8]) = put_with
}

/// The number of sign changes between adjacent elements.
pub(crate) fn count_changes(size: usize, elements: &[u8]) -> usize {
    let tops = elements.chunks_exact(size).map(|element| element[size - 1] >> 7);
    tops.clone().zip(tops.skip(1)).filter(|(a, b)| a != b).count()
}

/// Prefix XOR: turns changes into signs, in place.
pub(crate) fn restore(changes: &mut [u8]) {
    let mut before = 0u64;
    let (words, rest) = changes.as_chunks_mut::<8>();
    for word in words {
        let mut signs = u64::from_le_bytes(*word);
        for shift in [1, 2, 4, 8, 16, 32] {
            signs ^= signs << shift;
        }
        // All ones or all zeros.
        signs ^= before;
        before = (signs as i64 >> 63) as u64;
        *word = signs.to_le_bytes();
    }
    for byte in rest {
        for shift in [1, 2, 4] {
            *byte ^= *byte << shift;
        }
        *byte ^= before as u8;
        before = (*byte as i8 >> 7) as u64;
    }
}

#[inline(always)]
fn take_with(isa: impl Isa, size: usize, elements: &[u8], changes: &mut Vec<u8>) {
    for_bytes!(size, take_sized(isa, elements, changes));
}

#[inline(always)]
fn take_sized<const SIZE: usize>(isa: impl Isa, elements: &[u8], changes: &mut Vec<u8>) {
    let elements = elements.as_chunks::<SIZE>().0;
    let mut before = 0;
    let mut next = |signs: u64| {
        let changes = signs ^ (signs << 1 | before);
        before = signs >> 63;
        changes.to_le_bytes()
    };
    let (words, rest) = elements.as_chunks::<WORD>();
    changes.reserve(elements.len().div_ceil(8));
    for word in words {
        changes.extend_from_slice(&next(isa.sign_mask(word)));
    }
    let signs = rest.iter().rev().fold(0, |signs, element| signs << 1 | u64::from(element[SIZE - 1] >> 7));
    // Behind the last element there is no change, even if its sign is set.
    let last = u64::from_le_bytes(next(signs)) & ((1 << rest.len()) - 1);
    changes.extend_from_slice(&last.to_le_bytes()[..rest.len().div_ceil(8)]);
}

#[inline(always)]
fn put_with(_: impl Isa, size: usize, signs: &[u8], elements: &mut [u8]) {
    for_bytes!(size, put_sized(signs, elements));
}

#[inline(always)]
fn put_sized<const SIZE: usize>(signs: &[u8], elements: &mut [u8]) {
    let elements = elements.as_chunks_mut::<SIZE>().0;
    let (blocks, rest) = elements.as_chunks_mut::<8>();
    for (block, &signs) in blocks.iter_mut().zip(signs) {
        put_block(signs, block);
    }
    if let Some(&signs) = signs.get(blocks.len()) {
        for (i, element) in rest.iter_mut().enumerate() {
            element[SIZE - 1] |= signs >> i << 7;
        }
    }
}

/// Eight signs, in arithmetic of whole elements that compilers vectorise.
#[inline(always)]
fn put_block<const SIZE: usize>(signs: u8, block: &mut [[u8; SIZE]; 8]) {
    if SIZE == 2 {
        for (i, element) in block.iter_mut().enumerate() {
            let sign = u16::from(signs).wrapping_mul(1 << (15 - i)) & 1 << 15;
            let value = u16::from_le_bytes([element[0], element[1]]) | sign;
            element.copy_from_slice(&value.to_le_bytes());
        }
    } else if SIZE == 4 {
        for (i, element) in block.iter_mut().enumerate() {
            let sign = u32::from(signs) << (31 - i) & 1 << 31;
            let value = u32::from_le_bytes([element[0], element[1], element[2], element[3]]) | sign;
            element.copy_from_slice(&value.to_le_bytes());
        }
    } else {
        for (i, element) in block.iter_mut().enumerate() {
            element[SIZE - 1] |= signs >> i << 7;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Portable;
    use proptest::prelude::*;

    fn check<const SIZE: usize>(bytes: &[u8]) -> Result<(), TestCaseError> {
        let elements = bytes.as_chunks::<SIZE>().0;
        let signs: Vec<u8> = elements.iter().map(|element| element[SIZE - 1] >> 7).collect();
        let before = std::iter::once(0).chain(signs.iter().copied());
        let expected: Vec<u8> = signs.iter().zip(before).map(|(sign, before)| sign ^ before).collect();
        let (mut changes, mut portable) = (Vec::new(), Vec::new());
        take_changes(SIZE, elements.as_flattened(), &mut changes);
        take_with(Portable, SIZE, elements.as_flattened(), &mut portable);
        prop_assert_eq!(&changes, &portable);
        prop_assert_eq!(changes.len(), elements.len().div_ceil(8));
        let bit = |bytes: &[u8], i: usize| bytes[i / 8] >> (i % 8) & 1;
        for i in 0..8 * changes.len() {
            prop_assert_eq!(bit(&changes, i), expected.get(i).copied().unwrap_or(0));
        }
        let without_first: usize = expected.iter().skip(1).map(|&change| usize::from(change)).sum();
        prop_assert_eq!(count_changes(SIZE, elements.as_flattened()), without_first);
        restore(&mut changes);
        let mut back: Vec<[u8; SIZE]> = elements.to_vec();
        back.iter_mut().for_each(|element| element[SIZE - 1] &= 0x7f);
        let mut portable = back.clone();
        put(SIZE, &changes, back.as_flattened_mut());
        put_with(Portable, SIZE, &changes, portable.as_flattened_mut());
        prop_assert_eq!(back.as_slice(), elements);
        prop_assert_eq!(portable.as_slice(), elements);
        Ok(())
    }

    proptest! {
        #[test]
        fn signs_come_back(bytes in prop::collection::vec(any::<u8>(), 0..2500)) {
            check::<2>(&bytes)?;
            check::<4>(&bytes)?;
            check::<8>(&bytes)?;
        }
    }
}
