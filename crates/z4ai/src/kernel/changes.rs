//! Compares two buffers, hashes both and collects the elements that differ, in one pass.
//!
//! ```text
//! for each vector of both buffers:
//!     accumulate both hashes
//!     mask = elements that differ; append it to the marks
//!     append the masks of the classes of the second one's elements, if there are any
//!     if any differ: append those of either buffer to its list
//! ```
//!
//! 1. Vectors are loaded once for all three (and stored over those of the second buffer, if that is to become the
//!    first), and prefetched: hardware prefetchers stop at 4 KiB pages.
//! 2. Most vectors of a sparse change are equal: the branch is predicted, and the cost of the lists
//!    falls with the share of what changed. Of most others one or two elements differ, which are copied
//!    faster than a vector is compressed without AVX-512.
//!    Nothing is read twice: others may be changing the buffers, and hash and list must be of the same
//!    bytes.

use crate::kernel::class_masks::{self, Masks};
use crate::kernel::xxh3;
use crate::simd::prefetch::{Hint, prefetch};
use crate::simd::vector::{Lane, VECTOR, Vector, for_lane};
use crate::simd::{Sums, dispatch_wide};

/// Where the elements that differ are collected.
pub(crate) struct Lists<'a> {
    /// Those of either buffer, each with room for all elements and [`VECTOR`] bytes behind them.
    pub(crate) elements: [&'a mut [u8]; 2],
    /// A bit for every element: whether it differs.
    pub(crate) marks: &'a mut [u8],
    /// The masks of the second buffer's elements in classes.
    pub(crate) masks: Masks<'a>,
}

dispatch_wide! {
    /// Compares whole hash blocks of elements of `size` bytes; returns the bytes of the elements
    /// that differ.
    pub(crate) fn compare_hashed(size: usize, both: [&[u8]; 2], sums: [&mut Sums; 2], to: Lists<'_>) -> usize
        = compare_hashed_with
}

dispatch_wide! {
    /// As [`compare_hashed`], and turns `second` into `first`.
    pub(crate) fn advance_hashed(
        size: usize,
        first: &[u8],
        second: &mut [u8],
        sums: [&mut Sums; 2],
        to: Lists<'_>,
    ) -> usize = advance_hashed_with
}

#[inline(always)]
fn compare_hashed_with(
    isa: impl Vector,
    size: usize,
    both: [&[u8]; 2],
    sums: [&mut Sums; 2],
    to: Lists<'_>,
) -> usize {
    let [first, second] = both.map(|buffer| buffer.as_chunks::<VECTOR>().0);
    for_lane!(size, L, compare_lanes::<L, _>(isa, first, second.iter(), sums, to))
}

#[inline(always)]
fn advance_hashed_with(
    isa: impl Vector,
    size: usize,
    first: &[u8],
    second: &mut [u8],
    sums: [&mut Sums; 2],
    to: Lists<'_>,
) -> usize {
    let (first, second) = (first.as_chunks::<VECTOR>().0, second.as_chunks_mut::<VECTOR>().0);
    for_lane!(size, L, compare_lanes::<L, _>(isa, first, second.iter_mut(), sums, to))
}

/// A vector of the second buffer, which may become that of the first.
trait Second {
    fn bytes(&self) -> &[u8; VECTOR];
    fn become_first(self, first: [u8; VECTOR]);
}

impl Second for &[u8; VECTOR] {
    #[inline(always)]
    fn bytes(&self) -> &[u8; VECTOR] {
        self
    }

    #[inline(always)]
    fn become_first(self, _: [u8; VECTOR]) {}
}

impl Second for &mut [u8; VECTOR] {
    #[inline(always)]
    fn bytes(&self) -> &[u8; VECTOR] {
        self
    }

    #[inline(always)]
    fn become_first(self, first: [u8; VECTOR]) {
        *self = first;
    }
}

/// Prefetch distance in bytes: with 2 KiB, comparing at 0.08 % changed takes 1.06 (AVX2) to 1.21 (AVX-512) of the
/// time. (case: `delta.py`, make)
const PREFETCH_DISTANCE: usize = 8 << 10;

#[inline(always)]
fn compare_lanes<L: Lane, S: Second>(
    isa: impl Vector,
    first: &[[u8; VECTOR]],
    second: impl Iterator<Item = S>,
    sums: [&mut Sums; 2],
    to: Lists<'_>,
) -> usize {
    let ones = isa.splat::<u8>(0xff);
    let [first_list, second_list] = to.elements;
    let [first_sums, second_sums] = sums;
    let (mut a_sums, mut b_sums) = (*first_sums, *second_sums);
    let marks = to.marks.chunks_exact_mut(L::COUNT / 8);
    let mut masks = to.masks;
    let mut at = 0;
    for (index, ((a, b), marks)) in first.iter().zip(second).zip(marks).enumerate() {
        prefetch(a.as_ptr().wrapping_add(PREFETCH_DISTANCE), Hint::L1);
        prefetch(b.bytes().as_ptr().wrapping_add(PREFETCH_DISTANCE), Hint::L1);
        let (a, second) = (isa.load(a), b);
        let b = isa.load(second.bytes());
        a_sums = xxh3::add(isa, a_sums, isa.bytes(a), index);
        b_sums = xxh3::add(isa, b_sums, isa.bytes(b), index);
        let mask = isa.test_mask::<L>(isa.xor(a, b), ones);
        marks.copy_from_slice(&mask.to_le_bytes()[..L::COUNT / 8]);
        if !masks.thresholds.is_empty() {
            masks.put::<_, L>(isa, index, L::ALL, b);
        }
        if mask == 0 {
            continue;
        }
        let lists = (first_list[at..].first_chunk_mut(), second_list[at..].first_chunk_mut());
        let (Some(a_list), Some(b_list)) = lists else { unreachable!("lists have room for all elements") };
        second.become_first(isa.bytes(a));
        if mask.count_ones() <= PICKED {
            pick::<L>(mask, &isa.bytes(a), a_list);
            pick::<L>(mask, &isa.bytes(b), b_list);
        } else {
            isa.compress::<L>(mask, a, a_list);
            isa.compress::<L>(mask, b, b_list);
        }
        at += mask.count_ones() as usize * L::SIZE;
    }
    (*first_sums, *second_sums) = (a_sums, b_sums);
    at
}

/// Elements of a vector, at most, that are copied one by one. (case: `delta.py`, make, `Z4AI_CPU=avx2`)
const PICKED: u32 = 2;

/// Copies the lanes of the mask, at least one and at most [`PICKED`], to the start of `to`. What is behind them is
/// unspecified.
#[inline(always)]
fn pick<L: Lane>(mask: u64, from: &[u8; VECTOR], to: &mut [u8; VECTOR]) {
    let mut rest = mask;
    for to in to.chunks_exact_mut(L::SIZE).take(PICKED as usize) {
        // Without a branch: there may be one lane less.
        let lane = rest.trailing_zeros() as usize % L::COUNT * L::SIZE;
        to.copy_from_slice(&from[lane..lane + L::SIZE]);
        rest &= rest.wrapping_sub(1);
    }
}

/// As [`compare_hashed`], for a few elements, one at a time and without hashes.
pub(crate) fn compare_few(size: usize, both: [&[u8]; 2], to: Lists<'_>) -> usize {
    if !to.masks.thresholds.is_empty() {
        class_masks::write(size, both[1], to.masks);
    }
    let mut at = 0;
    let elements = both[0].chunks_exact(size).zip(both[1].chunks_exact(size));
    for (index, (a, b)) in elements.enumerate() {
        if index % 8 == 0 {
            to.marks[index / 8] = 0;
        }
        if a != b {
            to.marks[index / 8] |= 1 << (index % 8);
            to.elements[0][at..at + size].copy_from_slice(a);
            to.elements[1][at..at + size].copy_from_slice(b);
            at += size;
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::xxh3::HASH_BLOCK;
    use crate::simd::Portable;

    #[test]
    fn one_pass_is_what_three_are() {
        let mut state = 5u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as usize
        };
        for size in [1, 2, 4, 8] {
            for (blocks, one_in) in [(1, 1), (2, 5), (3, 40), (2, 100_000)] {
                let len = blocks * HASH_BLOCK;
                let a: Vec<u8> = (0..len).map(|_| next() as u8).collect();
                let mut b = a.clone();
                for element in b.chunks_mut(size) {
                    if next() % one_in == 0 {
                        element[next() % size] ^= 1 + (next() % 255) as u8;
                    }
                }
                let differ = |i: &usize| a[i * size..(i + 1) * size] != b[i * size..(i + 1) * size];
                let listed: Vec<usize> = (0..len / size).filter(differ).collect();
                let of = |bytes: &[u8]| -> Vec<u8> {
                    listed.iter().flat_map(|i| &bytes[i * size..(i + 1) * size]).copied().collect()
                };
                let mut expected_marks = vec![0; len / size / 8];
                listed.iter().for_each(|i| expected_marks[i / 8] |= 1 << (i % 8));
                let mut expected_sums = [[3; 8], [4; 8]];
                xxh3::sum_up(&mut expected_sums[0], &a);
                xxh3::sum_up(&mut expected_sums[1], &b);
                for which in 0..5 {
                    let mut lists = [vec![0xee; len + VECTOR], vec![0xee; len + VECTOR]];
                    let mut marks = vec![0xee; len / size / 8];
                    let mut sums = [[3; 8], [4; 8]];
                    let [x, y] = &mut lists;
                    let [s, t] = &mut sums;
                    let thresholds: &[u16] = if size > 1 && blocks > 1 { &[0x1000, 0x4000] } else { &[] };
                    let mut masks = Vec::new();
                    let stride = class_masks::make_room(&mut masks, 3, len / size);
                    let mut expected_masks = masks.clone();
                    if !thresholds.is_empty() {
                        class_masks::write(
                            size,
                            &b,
                            Masks { thresholds, masks: &mut expected_masks, stride },
                        );
                    }
                    let to_masks = Masks { thresholds, masks: &mut masks, stride };
                    let to = Lists { elements: [x, y], marks: &mut marks, masks: to_masks };
                    let both = [&a[..], &b[..]];
                    let mut advanced = b.clone();
                    let made = match which {
                        0 => compare_hashed(size, both, [s, t], to),
                        1 => compare_hashed_with(Portable, size, both, [s, t], to),
                        2 => advance_hashed(size, &a, &mut advanced, [s, t], to),
                        3 => advance_hashed_with(Portable, size, &a, &mut advanced, [s, t], to),
                        _ => compare_few(size, both, to),
                    };
                    assert_eq!(made, listed.len() * size, "{size} {one_in} {which}");
                    assert_eq!(marks, expected_marks);
                    assert_eq!(masks, expected_masks);
                    assert_eq!((&lists[0][..made], &lists[1][..made]), (&of(&a)[..], &of(&b)[..]));
                    assert!(which == 4 || sums == expected_sums);
                    assert!(advanced == if matches!(which, 2 | 3) { &a[..] } else { &b });
                }
            }
        }
    }
}
