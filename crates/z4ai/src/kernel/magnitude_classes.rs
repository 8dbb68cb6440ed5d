//! Partitions elements into classes by the magnitude of the reference, and merges them back.
//!
//! The class of an element is the number of thresholds that are not above the magnitude of the
//! reference element at the same index: its two highest bytes, without the sign.

use std::ops::Range;

use crate::kernel::mask_compact::SLACK;
#[cfg(target_arch = "x86_64")]
use crate::simd::Avx512;
#[cfg(target_arch = "x86_64")]
use crate::simd::avx512_lanes::{Lanes, VECTOR, for_lanes};
use crate::simd::{Isa, dispatch};

/// Classes, at most.
pub(crate) const MAX_CLASSES: usize = 8;
/// Elements per block where there is no compress instruction.
const BLOCK: usize = 32;

/// The magnitude of an element.
pub(crate) fn magnitude(element: &[u8]) -> u16 {
    match element {
        [.., low, high] => u16::from_le_bytes([*low, *high]) & 0x7fff,
        _ => 0,
    }
}

/// The range of a class in a buffer, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Run {
    next: usize,
    end: usize,
}

/// The state of a partition or a merge: thresholds, and the range of each class.
#[derive(Debug, Clone)]
pub(crate) struct Classes {
    size: usize,
    count: usize,
    /// Unused ones are above every magnitude.
    thresholds: [u16; MAX_CLASSES],
    runs: [Run; MAX_CLASSES],
}

impl Classes {
    /// Classes of elements of `size` bytes (2, 4 or 8), one more than `thresholds`, of `lens`
    /// elements each, with `apart` bytes between their ranges.
    fn new(size: usize, thresholds: &[u16], lens: &[usize], apart: usize) -> Self {
        debug_assert!(size > 1 && thresholds.len() < MAX_CLASSES && lens.len() == thresholds.len() + 1);
        let mut classes = Self {
            size,
            count: lens.len(),
            thresholds: [u16::MAX; MAX_CLASSES],
            runs: [Run::default(); MAX_CLASSES],
        };
        classes.thresholds[..thresholds.len()].copy_from_slice(thresholds);
        let mut at = 0;
        for (run, len) in classes.runs.iter_mut().zip(lens) {
            *run = Run { next: at, end: at + len * size };
            at = run.end + apart;
        }
        classes
    }

    /// For merging ranges without gaps.
    pub(crate) fn merging(size: usize, thresholds: &[u16], lens: &[usize]) -> Self {
        Self::new(size, thresholds, lens, 0)
    }

    /// Whether all ranges are consumed.
    pub(crate) fn is_done(&self) -> bool {
        self.runs.iter().all(|run| run.next == run.end)
    }

    /// Merges the next elements, as many as `others` (the reference) has, from `sorted`, which has
    /// [`SLACK`] bytes behind the last range. `None` if a range is too short.
    pub(crate) fn merge(&mut self, others: &[u8], sorted: &[u8], out: &mut [u8]) -> Option<()> {
        let len = others.len().min(out.len());
        let (others, out) = (&others[..len], &mut out[..len]);
        #[cfg(target_arch = "x86_64")]
        if let Some(proof) = Avx512::new() {
            // SAFETY: the proof is of all features.
            return unsafe { merge_wide(proof, self, others, sorted, out) };
        }
        merge_blocks(self, others, sorted, out)
    }

    /// The number of elements of each class, after counting.
    fn counted(&self) -> Vec<usize> {
        self.runs[..self.count].iter().map(|run| run.next / self.size).collect()
    }

    /// The class of every element of a block.
    #[inline(always)]
    fn of_block<const SIZE: usize>(&self, others: &[[u8; SIZE]]) -> [u8; BLOCK] {
        let mut classes = [0; BLOCK];
        for i in 0..BLOCK.min(others.len()) {
            let magnitude = u16::from_le_bytes([others[i][SIZE - 2], others[i][SIZE - 1]]) & 0x7fff;
            for threshold in self.thresholds {
                classes[i] += u8::from(magnitude >= threshold);
            }
        }
        classes
    }
}

/// The number of elements in each class.
pub(crate) fn count(size: usize, thresholds: &[u16], others: &[u8]) -> Vec<usize> {
    let mut classes = Classes::new(size, thresholds, &vec![0; thresholds.len() + 1], 0);
    #[cfg(target_arch = "x86_64")]
    if let Some(proof) = Avx512::new() {
        // SAFETY: the proof is of all features.
        unsafe { count_wide(proof, &mut classes, others) };
        return classes.counted();
    }
    count_blocks(&mut classes, others);
    classes.counted()
}

dispatch! {
    fn count_blocks(classes: &mut Classes, others: &[u8]) = count_with
}

#[inline(always)]
fn count_with(_: impl Isa, classes: &mut Classes, others: &[u8]) {
    match classes.size {
        2 => count_sized::<2>(classes, others),
        4 => count_sized::<4>(classes, others),
        _ => count_sized::<8>(classes, others),
    }
}

#[inline(always)]
fn count_sized<const SIZE: usize>(classes: &mut Classes, others: &[u8]) {
    for block in others.as_chunks::<SIZE>().0.chunks(BLOCK) {
        for &class in &classes.of_block(block)[..block.len()] {
            classes.runs[usize::from(class)].next += SIZE;
        }
    }
}

/// Partitions `elements` by the magnitudes of `others`, stably. Returns the range of each class in
/// `out`, which grows as needed.
pub(crate) fn sort(
    size: usize,
    thresholds: &[u16],
    others: &[u8],
    elements: &[u8],
    out: &mut Vec<u8>,
) -> Vec<Range<usize>> {
    assert_eq!(others.len(), elements.len());
    let lens = count(size, thresholds, others);
    let room = elements.len() + lens.len() * SLACK;
    if out.len() < room {
        out.resize(room, 0);
    }
    let mut classes = Classes::new(size, thresholds, &lens, SLACK);
    let ranges = classes.runs[..lens.len()].iter().map(|run| run.next..run.end).collect();
    #[cfg(target_arch = "x86_64")]
    if let Some(proof) = Avx512::new() {
        // SAFETY: the proof is of all features.
        unsafe { sort_wide(proof, &mut classes, others, elements, out) };
        return ranges;
    }
    sort_blocks(&mut classes, others, elements, out);
    ranges
}

dispatch! {
    fn sort_blocks(classes: &mut Classes, others: &[u8], elements: &[u8], out: &mut [u8]) = sort_with
}

#[inline(always)]
fn sort_with(_: impl Isa, classes: &mut Classes, others: &[u8], elements: &[u8], out: &mut [u8]) {
    match classes.size {
        2 => sort_sized::<2>(classes, others, elements, out),
        4 => sort_sized::<4>(classes, others, elements, out),
        _ => sort_sized::<8>(classes, others, elements, out),
    }
}

#[inline(always)]
fn sort_sized<const SIZE: usize>(classes: &mut Classes, others: &[u8], elements: &[u8], out: &mut [u8]) {
    let blocks = others.as_chunks::<SIZE>().0.chunks(BLOCK);
    for (others, elements) in blocks.zip(elements.as_chunks::<SIZE>().0.chunks(BLOCK)) {
        let of = classes.of_block(others);
        for (element, class) in elements.iter().zip(of) {
            let run = &mut classes.runs[usize::from(class)];
            out[run.next..run.next + SIZE].copy_from_slice(element);
            run.next += SIZE;
        }
    }
}

dispatch! {
    fn merge_blocks(classes: &mut Classes, others: &[u8], sorted: &[u8], out: &mut [u8]) -> Option<()>
        = merge_with
}

#[inline(always)]
fn merge_with(
    _: impl Isa,
    classes: &mut Classes,
    others: &[u8],
    sorted: &[u8],
    out: &mut [u8],
) -> Option<()> {
    match classes.size {
        2 => merge_sized::<2>(classes, others, sorted, out),
        4 => merge_sized::<4>(classes, others, sorted, out),
        _ => merge_sized::<8>(classes, others, sorted, out),
    }
}

#[inline(always)]
fn merge_sized<const SIZE: usize>(
    classes: &mut Classes,
    others: &[u8],
    sorted: &[u8],
    out: &mut [u8],
) -> Option<()> {
    let blocks = others.as_chunks::<SIZE>().0.chunks(BLOCK);
    for (others, out) in blocks.zip(out.as_chunks_mut::<SIZE>().0.chunks_mut(BLOCK)) {
        let of = classes.of_block(others);
        for (out, class) in out.iter_mut().zip(of) {
            let run = &mut classes.runs[usize::from(class)];
            if run.next == run.end {
                return None;
            }
            out.copy_from_slice(&sorted[run.next..run.next + SIZE]);
            run.next += SIZE;
        }
    }
    Some(())
}

/// Calls `$function::<L, K>` for elements of `$size` bytes in `$count` classes.
#[cfg(target_arch = "x86_64")]
macro_rules! for_classes {
    ($classes:expr, $function:ident($($arg:expr),*)) => {
        for_lanes!($classes.size, L, match $classes.count {
            1 => $function::<L, 1>($($arg),*),
            2 => $function::<L, 2>($($arg),*),
            3 => $function::<L, 3>($($arg),*),
            4 => $function::<L, 4>($($arg),*),
            5 => $function::<L, 5>($($arg),*),
            6 => $function::<L, 6>($($arg),*),
            7 => $function::<L, 7>($($arg),*),
            _ => $function::<L, 8>($($arg),*),
        })
    };
}

/// The thresholds of `K` classes, broadcast to vectors.
#[cfg(target_arch = "x86_64")]
struct Masks<const K: usize>([std::arch::x86_64::__m512i; K]);

#[cfg(target_arch = "x86_64")]
impl<const K: usize> Masks<K> {
    #[inline(always)]
    fn new<L: Lanes>(proof: Avx512, classes: &Classes) -> Self {
        Self(std::array::from_fn(|class| L::splat(proof, u64::from(classes.thresholds[class]))))
    }

    /// The mask of each class.
    #[inline(always)]
    fn of<L: Lanes>(&self, proof: Avx512, others: &[u8; VECTOR]) -> [u64; K] {
        let magnitudes = L::magnitudes(proof, proof.load(others));
        let mut rest = u64::MAX >> (64 - L::COUNT);
        std::array::from_fn(|class| {
            let above = if class + 1 < K { L::cmpge(proof, magnitudes, self.0[class]) } else { 0 };
            let mask = rest & !above;
            rest = above;
            mask
        })
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,popcnt")]
fn count_wide(proof: Avx512, classes: &mut Classes, others: &[u8]) {
    for_classes!(classes, count_lanes(proof, classes, others));
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn count_lanes<L: Lanes, const K: usize>(proof: Avx512, classes: &mut Classes, others: &[u8]) {
    let masks = Masks::<K>::new::<L>(proof, classes);
    let (vectors, rest) = others.as_chunks::<VECTOR>();
    let mut counts = [0; K];
    for others in vectors {
        let masks = masks.of::<L>(proof, others);
        (0..K).for_each(|class| counts[class] += masks[class].count_ones() as usize);
    }
    for (run, count) in classes.runs.iter_mut().zip(counts) {
        run.next += count * L::SIZE;
    }
    count_blocks(classes, rest);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,popcnt")]
fn sort_wide(proof: Avx512, classes: &mut Classes, others: &[u8], elements: &[u8], out: &mut [u8]) {
    for_classes!(classes, sort_lanes(proof, classes, others, elements, out));
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn sort_lanes<L: Lanes, const K: usize>(
    proof: Avx512,
    classes: &mut Classes,
    others: &[u8],
    elements: &[u8],
    out: &mut [u8],
) {
    let masks = Masks::<K>::new::<L>(proof, classes);
    let mut next: [usize; K] = std::array::from_fn(|class| classes.runs[class].next);
    let (vectors, others_rest) = others.as_chunks::<VECTOR>();
    let (elements, rest) = elements.as_chunks::<VECTOR>();
    for (others, elements) in vectors.iter().zip(elements) {
        let elements = proof.load(elements);
        let masks = masks.of::<L>(proof, others);
        for class in 0..K {
            if let Some(out) = out.get_mut(next[class]..).and_then(|out| out.first_chunk_mut()) {
                proof.store(L::compress(proof, masks[class], elements), out);
            }
            next[class] += masks[class].count_ones() as usize * L::SIZE;
        }
    }
    (0..K).for_each(|class| classes.runs[class].next = next[class]);
    sort_blocks(classes, others_rest, rest, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,popcnt")]
fn merge_wide(
    proof: Avx512,
    classes: &mut Classes,
    others: &[u8],
    sorted: &[u8],
    out: &mut [u8],
) -> Option<()> {
    for_classes!(classes, merge_lanes(proof, classes, others, sorted, out))
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn merge_lanes<L: Lanes, const K: usize>(
    proof: Avx512,
    classes: &mut Classes,
    others: &[u8],
    sorted: &[u8],
    out: &mut [u8],
) -> Option<()> {
    let masks = Masks::<K>::new::<L>(proof, classes);
    let mut next: [usize; K] = std::array::from_fn(|class| classes.runs[class].next);
    let (vectors, others_rest) = others.as_chunks::<VECTOR>();
    let (out, rest) = out.as_chunks_mut::<VECTOR>();
    for (others, out) in vectors.iter().zip(out) {
        let masks = masks.of::<L>(proof, others);
        let mut merged = proof.zero();
        for class in 0..K {
            // A range that is too short reads bytes behind it; that is refused below.
            let from = sorted.get(next[class]..).and_then(|sorted| sorted.first_chunk())?;
            merged = proof.or(merged, L::expand(proof, masks[class], proof.load(from)));
            next[class] += masks[class].count_ones() as usize * L::SIZE;
        }
        proof.store(merged, out);
    }
    for (run, next) in classes.runs.iter_mut().zip(next) {
        if next > run.end {
            return None;
        }
        run.next = next;
    }
    merge_blocks(classes, others_rest, sorted, rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Portable;

    #[test]
    fn sorted_elements_return_to_their_places() {
        let mut state = 3u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as u16
        };
        for size in [2, 4, 8] {
            for elements in [0, 1, 31, 32, 100, 1001] {
                for thresholds in [&[][..], &[0x4000], &[1, 2, 0x3000, 0x5000, 0x7000, 0x7ffe, 0x7fff]] {
                    let others: Vec<u8> = (0..elements * size).map(|_| next() as u8).collect();
                    let content: Vec<u8> = (0..elements * size).map(|_| next() as u8).collect();
                    // The naive twin: one class after the other, element by element.
                    let class_of = |i: usize| {
                        let magnitude = magnitude(&others[i * size..(i + 1) * size]);
                        thresholds.iter().filter(|&&threshold| magnitude >= threshold).count()
                    };
                    let naive: Vec<Vec<u8>> = (0..=thresholds.len())
                        .map(|class| {
                            let members = (0..elements).filter(|&i| class_of(i) == class);
                            members.flat_map(|i| &content[i * size..(i + 1) * size]).copied().collect()
                        })
                        .collect();
                    let mut sorted = Vec::new();
                    let ranges = sort(size, thresholds, &others, &content, &mut sorted);
                    for (range, naive) in ranges.iter().zip(&naive) {
                        assert_eq!(&sorted[range.clone()], naive);
                    }
                    let lens: Vec<usize> = naive.iter().map(|run| run.len() / size).collect();
                    let mut counting = Classes::new(size, thresholds, &vec![0; lens.len()], 0);
                    count_with(Portable, &mut counting, &others);
                    assert_eq!(counting.counted(), lens);
                    assert_eq!(count(size, thresholds, &others), lens);
                    let mut portable = vec![0; content.len()];
                    let mut classes = Classes::merging(size, thresholds, &lens);
                    sort_with(Portable, &mut classes, &others, &content, &mut portable);
                    assert_eq!(portable, naive.concat());

                    portable.resize(content.len() + SLACK, 0xee);
                    for wide in [true, false] {
                        let mut classes = Classes::merging(size, thresholds, &lens);
                        let mut merged = vec![0; content.len()];
                        let half = elements / 2 * size;
                        for part in [0..half, half..content.len()] {
                            let (others, out) = (&others[part.clone()], &mut merged[part]);
                            match wide {
                                true => classes.merge(others, &portable, out),
                                false => merge_with(Portable, &mut classes, others, &portable, out),
                            }
                            .unwrap();
                        }
                        assert!(classes.is_done());
                        assert_eq!(merged, content);
                        // One element less in a class that has some, and more in another.
                        if let Some(class) = lens.iter().position(|&len| len > 0) {
                            let mut wrong = lens.clone();
                            wrong[class] -= 1;
                            let mut classes = Classes::merging(size, thresholds, &wrong);
                            let merged = match wide {
                                true => classes.merge(&others, &portable, &mut merged),
                                false => merge_with(Portable, &mut classes, &others, &portable, &mut merged),
                            };
                            assert!(merged.is_none());
                        }
                    }
                }
            }
        }
    }
}
