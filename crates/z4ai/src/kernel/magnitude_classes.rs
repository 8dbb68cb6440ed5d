//! Partitions elements into classes by the magnitude of the reference, and merges them back.
//!
//! The class of an element is the number of thresholds that are not above the magnitude of the
//! reference element at the same index: its two highest bytes, without the sign.

use std::ops::Range;

use crate::kernel::mask_compact::SLACK;
use crate::simd::dispatch_wide;
use crate::simd::vector::{Lane, VECTOR, Vector, for_lane};

/// Classes, at most.
pub(crate) const MAX_CLASSES: usize = 8;

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
        merge_vectors(self, others, sorted, out)
    }

    /// The number of elements of each class, after counting.
    fn counted(&self) -> Vec<usize> {
        self.runs[..self.count].iter().map(|run| run.next / self.size).collect()
    }

    /// The range of the class of an element, by the reference at the same index.
    #[inline(always)]
    fn run_of(&mut self, other: &[u8]) -> &mut Run {
        let magnitude = magnitude(other);
        let class = self.thresholds.iter().filter(|&&threshold| magnitude >= threshold).count();
        &mut self.runs[class]
    }
}

/// The number of elements in each class.
pub(crate) fn count(size: usize, thresholds: &[u16], others: &[u8]) -> Vec<usize> {
    let mut classes = Classes::new(size, thresholds, &vec![0; thresholds.len() + 1], 0);
    count_vectors(&mut classes, others);
    classes.counted()
}

dispatch_wide! {
    fn count_vectors(classes: &mut Classes, others: &[u8]) = count_with
}

dispatch_wide! {
    fn sort_vectors(classes: &mut Classes, others: &[u8], elements: &[u8], out: &mut [u8]) = sort_with
}

dispatch_wide! {
    fn merge_vectors(classes: &mut Classes, others: &[u8], sorted: &[u8], out: &mut [u8]) -> Option<()>
        = merge_with
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
    sort_vectors(&mut classes, others, elements, out);
    ranges
}

/// Calls `$function::<_, L, K>` for elements of `$size` bytes in `$count` classes.
macro_rules! for_classes {
    ($classes:expr, $function:ident($($arg:expr),*)) => {
        for_lane!($classes.size, L, match $classes.count {
            1 => $function::<_, L, 1>($($arg),*),
            2 => $function::<_, L, 2>($($arg),*),
            3 => $function::<_, L, 3>($($arg),*),
            4 => $function::<_, L, 4>($($arg),*),
            5 => $function::<_, L, 5>($($arg),*),
            6 => $function::<_, L, 6>($($arg),*),
            7 => $function::<_, L, 7>($($arg),*),
            _ => $function::<_, L, 8>($($arg),*),
        })
    };
}

/// The [magnitudes](magnitude) of a vector of elements.
#[inline(always)]
pub(crate) fn magnitudes<I: Vector, L: Lane>(isa: I, elements: I::V) -> I::V {
    match L::SIZE {
        1 => elements,
        2 => isa.and(elements, isa.splat::<L>(0x7fff)),
        _ => isa.shr::<L>(isa.shl::<L>(elements, 1), 8 * L::SIZE as u32 - 15),
    }
}

/// The thresholds of `K` classes, broadcast to vectors.
struct Masks<I: Vector, const K: usize> {
    isa: I,
    thresholds: [I::V; K],
}

impl<I: Vector, const K: usize> Masks<I, K> {
    #[inline(always)]
    fn new<L: Lane>(isa: I, classes: &Classes) -> Self {
        let mut thresholds = [isa.splat::<L>(0); K];
        for (vector, &threshold) in thresholds.iter_mut().zip(&classes.thresholds) {
            *vector = isa.splat::<L>(u64::from(threshold));
        }
        Self { isa, thresholds }
    }

    /// The mask of each class.
    #[inline(always)]
    fn of<L: Lane>(&self, others: &[u8; VECTOR]) -> [u64; K] {
        let isa = self.isa;
        let magnitudes = magnitudes::<I, L>(isa, isa.load(others));
        let mut masks = [0; K];
        let mut rest = L::ALL;
        for class in 0..K {
            let above =
                if class + 1 < K { isa.cmpge_mask::<L>(magnitudes, self.thresholds[class]) } else { 0 };
            masks[class] = rest & !above;
            rest = above;
        }
        masks
    }
}

#[inline(always)]
fn count_with(isa: impl Vector, classes: &mut Classes, others: &[u8]) {
    for_classes!(classes, count_lanes(isa, classes, others));
}

#[inline(always)]
fn count_lanes<I: Vector, L: Lane, const K: usize>(isa: I, classes: &mut Classes, others: &[u8]) {
    let masks = Masks::<I, K>::new::<L>(isa, classes);
    let (vectors, rest) = others.as_chunks::<VECTOR>();
    let mut counts = [0; K];
    for others in vectors {
        let masks = masks.of::<L>(others);
        for class in 0..K {
            counts[class] += masks[class].count_ones() as usize;
        }
    }
    for (run, count) in classes.runs.iter_mut().zip(counts) {
        run.next += count * L::SIZE;
    }
    for other in rest.chunks_exact(L::SIZE) {
        classes.run_of(other).next += L::SIZE;
    }
}

#[inline(always)]
fn sort_with(isa: impl Vector, classes: &mut Classes, others: &[u8], elements: &[u8], out: &mut [u8]) {
    for_classes!(classes, sort_lanes(isa, classes, others, elements, out));
}

#[inline(always)]
fn sort_lanes<I: Vector, L: Lane, const K: usize>(
    isa: I,
    classes: &mut Classes,
    others: &[u8],
    elements: &[u8],
    out: &mut [u8],
) {
    let masks = Masks::<I, K>::new::<L>(isa, classes);
    let mut next = [0; K];
    (0..K).for_each(|class| next[class] = classes.runs[class].next);
    let (vectors, others_rest) = others.as_chunks::<VECTOR>();
    let (elements, rest) = elements.as_chunks::<VECTOR>();
    for (others, elements) in vectors.iter().zip(elements) {
        let elements = isa.load(elements);
        let masks = masks.of::<L>(others);
        for class in 0..K {
            if let Some(out) = out.get_mut(next[class]..).and_then(|out| out.first_chunk_mut()) {
                isa.compress::<L>(masks[class], elements, out);
            }
            next[class] += masks[class].count_ones() as usize * L::SIZE;
        }
    }
    (0..K).for_each(|class| classes.runs[class].next = next[class]);
    for (other, element) in others_rest.chunks_exact(L::SIZE).zip(rest.chunks_exact(L::SIZE)) {
        let run = classes.run_of(other);
        out[run.next..run.next + L::SIZE].copy_from_slice(element);
        run.next += L::SIZE;
    }
}

#[inline(always)]
fn merge_with(
    isa: impl Vector,
    classes: &mut Classes,
    others: &[u8],
    sorted: &[u8],
    out: &mut [u8],
) -> Option<()> {
    for_classes!(classes, merge_lanes(isa, classes, others, sorted, out))
}

#[inline(always)]
fn merge_lanes<I: Vector, L: Lane, const K: usize>(
    isa: I,
    classes: &mut Classes,
    others: &[u8],
    sorted: &[u8],
    out: &mut [u8],
) -> Option<()> {
    let masks = Masks::<I, K>::new::<L>(isa, classes);
    let mut next = [0; K];
    (0..K).for_each(|class| next[class] = classes.runs[class].next);
    let (vectors, others_rest) = others.as_chunks::<VECTOR>();
    let (out, rest) = out.as_chunks_mut::<VECTOR>();
    for (others, out) in vectors.iter().zip(out) {
        let masks = masks.of::<L>(others);
        let mut merged = isa.splat::<u8>(0);
        for class in 0..K {
            // A range that is too short reads bytes behind it; that is refused below.
            let from = sorted.get(next[class]..).and_then(|sorted| sorted.first_chunk())?;
            merged = isa.or(merged, isa.expand::<L>(masks[class], from));
            next[class] += masks[class].count_ones() as usize * L::SIZE;
        }
        isa.store(merged, out);
    }
    for (run, next) in classes.runs.iter_mut().zip(next) {
        if next > run.end {
            return None;
        }
        run.next = next;
    }
    for (other, out) in others_rest.chunks_exact(L::SIZE).zip(rest.chunks_exact_mut(L::SIZE)) {
        let run = classes.run_of(other);
        if run.next == run.end {
            return None;
        }
        out.copy_from_slice(&sorted[run.next..run.next + L::SIZE]);
        run.next += L::SIZE;
    }
    Some(())
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
                    let mut portable = vec![0; content.len() + lens.len() * SLACK];
                    let mut classes = Classes::new(size, thresholds, &lens, SLACK);
                    sort_with(Portable, &mut classes, &others, &content, &mut portable);
                    for (range, naive) in ranges.iter().zip(&naive) {
                        assert_eq!(&portable[range.clone()], naive);
                    }

                    let mut portable = naive.concat();
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
