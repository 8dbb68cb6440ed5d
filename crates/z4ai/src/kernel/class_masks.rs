//! Sparse differences in magnitude classes, by bitmasks: which elements belong to which class.
//!
//! Where few elements differ, moving all of them into their classes and back is most of the work. Instead each vector of
//! the reference has a mask per class, and only the elements that differ are looked at:
//!
//! ```text
//! partition: for each element that differs, at bit b of a vector:
//!                class = the one whose mask has b
//!                its place in the class = elements of the class before the vector + ones of the mask below b
//! locate:    for each place in a class, in rising order:
//!                its bit = the n-th one of the mask, n = the place - elements of the class before the vector
//! ```
//!
//! 1. Masks have a bit for every element, those of one class are side by side and end with a whole word: 64 elements are
//!    counted at a time.
//! 2. The n-th one is found by counting the ones of all bytes at once, and a table for the last byte: `pdep` would be
//!    shorter, and takes a hundred cycles on some processors.

use crate::kernel::difference::{Rule, Word};
use crate::kernel::magnitude_classes::{self, MAX_CLASSES, magnitudes};
use crate::kernel::mask_compact;
use crate::simd::vector::{Lane, VECTOR, Vector, for_lane};
use crate::simd::{Isa, dispatch, dispatch_wide};

/// Bytes of a word of a mask. (structural)
const WORD: usize = 8;

/// Where masks of classes are written.
pub(crate) struct Masks<'a> {
    /// Those between the classes, which are one more; if there are none, nothing is written.
    pub(crate) thresholds: &'a [u16],
    /// Masks, from those of the elements on that come next.
    pub(crate) masks: &'a mut [u8],
    /// Bytes from one class's to the next.
    pub(crate) stride: usize,
}

/// Bytes of one class's mask of `count` elements.
pub(crate) fn stride(count: usize) -> usize {
    mask_compact::marks_len(count).next_multiple_of(WORD)
}

/// Makes room for the masks of `count` elements in `classes` classes; bits behind the last element are zero.
pub(crate) fn make_room(masks: &mut Vec<u8>, classes: usize, count: usize) -> usize {
    let stride = stride(count);
    masks.resize(classes * stride, 0);
    masks.chunks_exact_mut(stride.max(1)).for_each(|mask| mask[stride - WORD..].fill(0));
    stride
}

impl Masks<'_> {
    /// Writes the masks of vector `index` of the reference; `lanes` are those it has.
    #[inline(always)]
    pub(crate) fn put<I: Vector, L: Lane>(&mut self, isa: I, index: usize, lanes: u64, reference: I::V) {
        let bytes = L::COUNT / 8;
        let magnitudes = magnitudes::<I, L>(isa, reference);
        let mut at = index * bytes;
        let mut rest = lanes;
        for &threshold in self.thresholds {
            let above = isa.cmpge_mask::<L>(magnitudes, isa.splat::<L>(u64::from(threshold))) & lanes;
            self.masks[at..at + bytes].copy_from_slice(&(rest & !above).to_le_bytes()[..bytes]);
            rest = above;
            at += self.stride;
        }
        self.masks[at..at + bytes].copy_from_slice(&rest.to_le_bytes()[..bytes]);
    }
}

dispatch_wide! {
    /// Writes the masks of all elements of `reference`, of `size` bytes (2, 4 or 8).
    pub(crate) fn write(size: usize, reference: &[u8], masks: Masks<'_>) = write_with
}

#[inline(always)]
fn write_with(isa: impl Vector, size: usize, reference: &[u8], masks: Masks<'_>) {
    for_lane!(size, L, write_lanes::<_, L>(isa, reference, masks));
}

#[inline(always)]
fn write_lanes<I: Vector, L: Lane>(isa: I, reference: &[u8], mut masks: Masks<'_>) {
    let (vectors, rest) = reference.as_chunks::<VECTOR>();
    for (index, vector) in vectors.iter().enumerate() {
        masks.put::<I, L>(isa, index, L::ALL, isa.load(vector));
    }
    if !rest.is_empty() {
        let mut vector = [0; VECTOR];
        vector[..rest.len()].copy_from_slice(rest);
        let lanes = (1 << (rest.len() / L::SIZE)) - 1;
        masks.put::<I, L>(isa, vectors.len(), lanes, isa.load(&vector));
    }
}

/// What differs in one class.
#[derive(Default)]
pub(crate) struct ClassChanges {
    /// The elements of the class.
    pub(crate) count: usize,
    /// The places of those that differ.
    pub(crate) places: Vec<u32>,
    /// Their bytes in either buffer.
    pub(crate) elements: [Vec<u8>; 2],
}

/// Finds the class of each element that differs, and its place there: `marks` has a bit for every element, `lists` are
/// those that differ in either buffer. `classes` are one more than `thresholds`.
pub(crate) fn partition(
    size: usize,
    thresholds: &[u16],
    (masks, marks): (&[u8], &[u8]),
    lists: [&[u8]; 2],
    classes: &mut [ClassChanges],
) {
    for class in &mut *classes {
        class.count = 0;
        class.places.clear();
        class.elements.iter_mut().for_each(Vec::clear);
    }
    let magnitudes = lists[1].chunks_exact(size).map(magnitude_classes::magnitude);
    // The class of each: without a branch, because it cannot be predicted.
    let class_of = |magnitude| thresholds.iter().map(|&threshold| u8::from(magnitude >= threshold)).sum();
    let class_of: Vec<u8> = magnitudes.map(class_of).collect();
    partition_listed(size, &class_of, (masks, marks), lists, classes);
}

dispatch! {
    /// As [`partition`], for elements whose classes are known.
    fn partition_listed(
        size: usize,
        class_of: &[u8],
        masks_and_marks: (&[u8], &[u8]),
        lists: [&[u8]; 2],
        classes: &mut [ClassChanges],
    ) = partition_with
}

#[inline(always)]
fn partition_with(
    _: impl Isa,
    size: usize,
    class_of: &[u8],
    (masks, marks): (&[u8], &[u8]),
    lists: [&[u8]; 2],
    classes: &mut [ClassChanges],
) {
    match size {
        2 => partition_each::<2>(class_of, masks, marks, lists, classes),
        4 => partition_each::<4>(class_of, masks, marks, lists, classes),
        _ => partition_each::<8>(class_of, masks, marks, lists, classes),
    }
}

/// As [`partition`], of elements of `SIZE` bytes.
#[inline(always)]
fn partition_each<const SIZE: usize>(
    class_of: &[u8],
    masks: &[u8],
    marks: &[u8],
    lists: [&[u8]; 2],
    classes: &mut [ClassChanges],
) {
    let [now, before] = lists.map(|list| list.as_chunks::<SIZE>().0.iter());
    let mut listed = now.zip(before).zip(class_of);
    let masks = masks.as_chunks::<WORD>().0;
    let words = masks.len() / classes.len();
    let mut counts = [0; MAX_CLASSES];
    for (index, marks) in marks.chunks(WORD).enumerate() {
        let mut word = [0; WORD];
        match marks.first_chunk() {
            Some(whole) => word = *whole,
            None => word[..marks.len()].copy_from_slice(marks),
        }
        let mut differ = u64::from_le_bytes(word);
        let mask_of = |class: usize| u64::from_le_bytes(masks[class * words + index]);
        while differ != 0 {
            let Some(((now, before), &class)) = listed.next() else {
                unreachable!("lists have all of the marks")
            };
            let bit = differ.trailing_zeros();
            let below = mask_of(usize::from(class)) & !(u64::MAX << bit);
            let place = counts[usize::from(class) % MAX_CLASSES] + below.count_ones();
            let class = &mut classes[usize::from(class)];
            class.places.push(place);
            class.elements[0].extend_from_slice(now);
            class.elements[1].extend_from_slice(before);
            differ &= differ - 1;
        }
        for (class, count) in counts[..classes.len()].iter_mut().enumerate() {
            *count += mask_of(class).count_ones();
        }
    }
    for (class, count) in classes.iter_mut().zip(counts) {
        class.count = count as usize;
    }
}

/// The differences of all classes, as far as they are not zero: places, and as many elements.
#[derive(Default)]
pub(crate) struct ListedClasses {
    pub(crate) places: Vec<u32>,
    pub(crate) differences: Vec<u8>,
    /// Where each class ends, and the elements it has.
    ends: Vec<(usize, usize)>,
    /// Scratch.
    marks: Vec<u8>,
    words: Vec<u8>,
}

impl ListedClasses {
    pub(crate) fn clear(&mut self) {
        self.places.clear();
        self.differences.clear();
        self.ends.clear();
    }

    /// Appends those of the differences of a whole class, of `size` bytes, that are not zero.
    pub(crate) fn push_nonzero(&mut self, size: usize, differences: &[u8]) {
        let marked = mask_compact::mark(size, differences, 0, &mut self.marks);
        mask_compact::each_position(&self.marks, |place| self.places.push(place as u32));
        mask_compact::collect(size, differences, &self.marks, marked, &mut self.words);
        self.differences.extend_from_slice(&self.words[..marked * size]);
    }

    /// Ends a class of `count` elements of `size` bytes. `None` if its places do not rise, or lead out of it, or are
    /// not as many as its differences.
    pub(crate) fn end_class(&mut self, size: usize, count: usize) -> Option<()> {
        let start = self.ends.last().map_or(0, |&(end, _)| end);
        let places = &self.places[start..];
        let rise = places.is_sorted_by(|a, b| a < b);
        let within = places.last().is_none_or(|&last| (last as usize) < count);
        self.ends.push((self.places.len(), count));
        (rise && within && self.differences.len() == self.places.len() * size).then_some(())
    }

    /// Restores parts of a chunk, one after the other.
    pub(crate) fn restoring<'a>(&'a self, size: usize, thresholds: &'a [u16]) -> RestoreClasses<'a> {
        let mut classes = [RestoredClass::default(); MAX_CLASSES];
        let mut start = 0;
        for (class, &(end, count)) in classes.iter_mut().zip(&self.ends) {
            *class = RestoredClass { next: start, end, before: 0, count };
            start = end;
        }
        RestoreClasses { listed: self, size, thresholds, classes, masks: Vec::new() }
    }
}

/// A class that is being restored.
#[derive(Clone, Copy, Default)]
struct RestoredClass {
    /// The next listed element, and the end of those of the class.
    next: usize,
    end: usize,
    /// The elements of the class in the parts before, and in all.
    before: usize,
    count: usize,
}

/// Restores elements from their differences in classes.
pub(crate) struct RestoreClasses<'a> {
    listed: &'a ListedClasses,
    size: usize,
    thresholds: &'a [u16],
    classes: [RestoredClass; MAX_CLASSES],
    masks: Vec<u8>,
}

/// Elements that are restored together. (structural: places and elements fit the first-level cache beside a part)
const TOGETHER: usize = 64;

impl RestoreClasses<'_> {
    /// Takes the reference of the next part: whole vectors, unless it is the last. [`restore`](Self::restore) follows.
    pub(crate) fn next_part(&mut self, reference: &[u8]) {
        let Self { size, thresholds, masks, .. } = self;
        let stride = make_room(masks, thresholds.len() + 1, reference.len() / *size);
        write(*size, reference, Masks { thresholds, masks, stride });
    }

    /// Restores the elements of the part that differ; `elements` is its reference.
    pub(crate) fn restore(&mut self, rule: Rule, elements: &mut [u8]) {
        restore_listed(self, rule, elements);
    }

    #[inline(always)]
    fn restore_each<W: Word, const SIZE: usize>(&mut self, rule: Rule, elements: &mut [u8]) {
        let stride = stride(elements.len() / SIZE);
        let elements = elements.as_chunks_mut::<SIZE>().0;
        let differences = self.listed.differences.as_chunks::<SIZE>().0;
        let (mut words, mut places) = ([[0; SIZE]; TOGETHER], [0; TOGETHER]);
        let masks = self.masks.as_chunks::<WORD>().0.chunks_exact(stride / WORD);
        for (class, masks) in self.classes.iter_mut().zip(masks) {
            let listed = &self.listed.places[..class.end];
            let mut found = 0;
            let mut flush = |next: usize, places: &[usize]| {
                for (word, &place) in words.iter_mut().zip(places) {
                    *word = elements[place];
                }
                let differences = &differences[next - places.len()..next];
                W::restore(rule, differences.as_flattened(), words[..places.len()].as_flattened_mut());
                for (&place, word) in places.iter().zip(&words) {
                    elements[place] = *word;
                }
            };
            let RestoredClass { mut next, mut before, .. } = *class;
            // None is as large.
            let place_of = |next: usize| listed.get(next).map_or(usize::MAX, |&place| place as usize);
            let mut place = place_of(next);
            for (word, mask) in masks.iter().enumerate() {
                let mask = u64::from_le_bytes(*mask);
                let after = before + mask.count_ones() as usize;
                while place < after {
                    if found == TOGETHER {
                        flush(next, &places);
                        found = 0;
                    }
                    let rank = (place - before) as u32;
                    places[found] = 8 * WORD * word + select(mask, rank) as usize;
                    found += 1;
                    next += 1;
                    place = place_of(next);
                }
                before = after;
            }
            flush(next, &places[..found]);
            (class.next, class.before) = (next, before);
        }
    }

    /// Whether the parts had as many elements of each class as there are.
    pub(crate) fn is_done(&self) -> bool {
        self.classes.iter().all(|class| class.before == class.count)
    }
}

dispatch! {
    fn restore_listed(classes: &mut RestoreClasses<'_>, rule: Rule, elements: &mut [u8]) = restore_with
}

#[inline(always)]
fn restore_with(_: impl Isa, classes: &mut RestoreClasses<'_>, rule: Rule, elements: &mut [u8]) {
    match classes.size {
        2 => classes.restore_each::<u16, 2>(rule, elements),
        4 => classes.restore_each::<u32, 4>(rule, elements),
        _ => classes.restore_each::<u64, 8>(rule, elements),
    }
}

/// The place of one number `rank`, counted from the lowest, which `mask` must have.
#[inline(always)]
fn select(mask: u64, rank: u32) -> u32 {
    /// (structural)
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    // The ones of each byte, and of it and all below.
    let pairs = mask - (mask >> 1 & 0x5555_5555_5555_5555);
    let fours = (pairs & 0x3333_3333_3333_3333) + (pairs >> 2 & 0x3333_3333_3333_3333);
    let upto = ((fours + (fours >> 4)) & 0x0f0f_0f0f_0f0f_0f0f).wrapping_mul(ONES);
    // Bytes that end before it.
    let byte = (((u64::from(rank) * ONES) | HIGH).wrapping_sub(upto) & HIGH).count_ones() * 8;
    let before = (upto << 8) >> byte & 255;
    byte + u32::from(ONE_OF_BYTE[(mask >> byte & 255) as usize][(rank - before as u32) as usize & 7])
}

/// The place of each one of a byte.
static ONE_OF_BYTE: [[u8; 8]; 256] = {
    let mut table = [[0; 8]; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut bit, mut rank) = (0, 0);
        while bit < 8 {
            if byte >> bit & 1 == 1 {
                table[byte][rank] = bit as u8;
                rank += 1;
            }
            bit += 1;
        }
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::difference;
    use crate::simd::Portable;

    fn numbers() -> impl FnMut() -> usize {
        let mut state = 9u64;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize
        }
    }

    #[test]
    fn ones_are_selected() {
        let mut next = numbers();
        let masks = (0..300).map(|i| (next() as u64) << 33 ^ (next() as u64) << (i % 5) & next() as u64);
        for mask in masks.chain([u64::MAX, 1, 1 << 63, 0xff << 56]) {
            let mut rest = mask;
            for rank in 0..mask.count_ones() {
                assert_eq!(select(mask, rank), rest.trailing_zeros(), "{mask:x} {rank}");
                rest &= rest - 1;
            }
        }
    }

    #[test]
    fn classes_are_those_that_sorting_finds_and_lead_back() {
        let mut next = numbers();
        for (size, thresholds) in [2, 4, 8].into_iter().flat_map(|size| {
            [&[0x3f80][..], &[1, 0x1000, 0x3f80, 0x4000], &[0x7fff], &[8, 16, 24, 32, 40, 48, 0x5000]]
                .map(|thresholds| (size, thresholds))
        }) {
            for (count, one_in) in [(1, 1), (31, 2), (32, 40), (1000, 3), (5003, 30), (9000, 100_000)] {
                let before: Vec<u8> = (0..count * size).map(|_| next() as u8).collect();
                let mut now = before.clone();
                for element in now.chunks_mut(size) {
                    if next().is_multiple_of(one_in) {
                        element[next() % size] ^= 1 + (next() % 255) as u8;
                    }
                }
                for rule in [Rule::Xor, Rule::Ulp] {
                    let mut differences = vec![0; count * size];
                    difference::difference(rule, size, &now, &before, &mut differences);
                    let mut sorted = Vec::new();
                    let ranges =
                        magnitude_classes::sort(size, thresholds, &before, &differences, &mut sorted);
                    let mut marks = Vec::new();
                    let marked = mask_compact::mark(size, &differences, 0, &mut marks);
                    let mut lists = [Vec::new(), Vec::new()];
                    for (from, list) in [&now, &before].into_iter().zip(&mut lists) {
                        mask_compact::collect(size, from, &marks, marked, list);
                        list.truncate(marked * size);
                    }
                    let (mut masks, mut portable) = (vec![0xee; 77], vec![0xdd; 9999]);
                    let stride = make_room(&mut masks, ranges.len(), count);
                    write(size, &before, Masks { thresholds, masks: &mut masks, stride });
                    make_room(&mut portable, ranges.len(), count);
                    write_with(Portable, size, &before, Masks { thresholds, masks: &mut portable, stride });
                    assert_eq!(masks, portable);
                    let mut classes: Vec<_> =
                        std::iter::repeat_with(ClassChanges::default).take(ranges.len()).collect();
                    partition(size, thresholds, (&masks, &marks), [&lists[0], &lists[1]], &mut classes);
                    let mut listed = ListedClasses::default();
                    for (class, range) in classes.iter().zip(ranges) {
                        assert_eq!(class.count * size, range.len());
                        let mut dense = vec![0; range.len()];
                        let mut listed_differences = vec![0; class.places.len() * size];
                        let [now, before] = &class.elements;
                        difference::difference(rule, size, now, before, &mut listed_differences);
                        for (&place, difference) in class.places.iter().zip(listed_differences.chunks(size)) {
                            dense[place as usize * size..][..size].copy_from_slice(difference);
                        }
                        assert_eq!(dense, sorted[range]);
                        listed.places.extend_from_slice(&class.places);
                        listed.differences.extend_from_slice(&listed_differences);
                        listed.end_class(size, class.count).unwrap();
                    }
                    let mut restored = before.clone();
                    let mut classes = listed.restoring(size, thresholds);
                    for part in restored.chunks_mut(4 * VECTOR) {
                        assert!(!classes.is_done());
                        classes.next_part(part);
                        classes.restore(rule, part);
                    }
                    assert!(classes.is_done());
                    assert_eq!(restored, now);
                }
            }
        }
    }

    #[test]
    fn places_outside_of_their_class_are_refused() {
        for (places, differences, count, good) in [
            (&[][..], 0, 0, true),
            (&[0, 4][..], 2, 5, true),
            (&[0, 5][..], 2, 5, false),
            (&[3, 3][..], 2, 5, false),
            (&[4, 1][..], 2, 5, false),
            (&[1][..], 2, 5, false),
        ] {
            let mut listed = ListedClasses::default();
            listed.places.extend_from_slice(places);
            listed.differences.resize(differences * 2, 1);
            assert_eq!(listed.end_class(2, count).is_some(), good, "{places:?}");
        }
    }
}
