//! Compacts the elements selected by a bitmask, and scatters them back.
//!
//! Bit `i` of the mask, lowest bit of the first byte first, selects element `i`. Bits behind the
//! last element are zero.

use crate::simd::vector::{Lane, VECTOR, Vector, for_lane};
use crate::simd::{Isa, dispatch, dispatch_wide};

/// Bytes that buffers of elements need behind their contents, because whole vectors are loaded and
/// stored.
pub(crate) const SLACK: usize = 64;

/// Bytes of the mask of `count` elements.
pub(crate) fn marks_len(count: usize) -> usize {
    count.div_ceil(8)
}

/// Selects the elements of `size` bytes that are not zero from byte `byte` on; returns their
/// number.
pub(crate) fn mark(size: usize, elements: &[u8], byte: usize, marks: &mut Vec<u8>) -> usize {
    let count = elements.len() / size;
    marks.clear();
    // Whole words are written.
    marks.resize(marks_len(count).next_multiple_of(8), 0);
    let done = mark_vectors(size, elements, byte, marks);
    for index in done..count {
        let listed = elements[index * size + byte..(index + 1) * size].iter().any(|&byte| byte != 0);
        marks[index / 8] |= u8::from(listed) << (index % 8);
    }
    let marked = count_ones(marks);
    marks.truncate(marks_len(count));
    marked
}

dispatch! {
    /// How many bits are set.
    pub(crate) fn count_ones(marks: &[u8]) -> usize = count_ones_with
}

#[inline(always)]
fn count_ones_with(_: impl Isa, marks: &[u8]) -> usize {
    let (words, rest) = marks.as_chunks();
    let words = words.iter().map(|&word| u64::from_le_bytes(word).count_ones());
    words.chain(rest.iter().map(|byte| byte.count_ones())).sum::<u32>() as usize
}

dispatch_wide! {
    /// The mask of whole vectors; returns the number of elements.
    fn mark_vectors(size: usize, elements: &[u8], byte: usize, marks: &mut [u8]) -> usize = mark_with
}

#[inline(always)]
fn mark_with(isa: impl Vector, size: usize, elements: &[u8], byte: usize, marks: &mut [u8]) -> usize {
    for_lane!(size, L, mark_lanes::<L>(isa, elements, byte, marks))
}

#[inline(always)]
fn mark_lanes<L: Lane>(isa: impl Vector, elements: &[u8], byte: usize, marks: &mut [u8]) -> usize {
    let bits = isa.splat::<L>(u64::MAX << (8 * byte));
    let vectors = elements.as_chunks::<VECTOR>().0;
    for (vector, marks) in vectors.iter().zip(marks.chunks_exact_mut(L::COUNT / 8)) {
        let mask = isa.test_mask::<L>(isa.load(vector), bits);
        marks.copy_from_slice(&mask.to_le_bytes()[..L::COUNT / 8]);
    }
    vectors.len() * L::COUNT
}

/// Compacts the `marked` selected elements to the start of `out`, which grows as needed.
pub(crate) fn collect(size: usize, elements: &[u8], marks: &[u8], marked: usize, out: &mut Vec<u8>) {
    let room = marked * size + SLACK;
    if out.len() < room {
        out.resize(room, 0);
    }
    collect_vectors(size, elements, marks, out);
}

dispatch_wide! {
    fn collect_vectors(size: usize, elements: &[u8], marks: &[u8], out: &mut [u8]) = collect_with
}

#[inline(always)]
fn collect_with(isa: impl Vector, size: usize, elements: &[u8], marks: &[u8], out: &mut [u8]) {
    for_lane!(size, L, collect_lanes::<L>(isa, elements, marks, out));
}

#[inline(always)]
fn collect_lanes<L: Lane>(isa: impl Vector, elements: &[u8], marks: &[u8], out: &mut [u8]) {
    let mut at = 0;
    let vectors = elements.as_chunks::<VECTOR>().0;
    for (vector, marks) in vectors.iter().zip(marks.chunks_exact(L::COUNT / 8)) {
        let mask = word(marks);
        // Few elements are selected, mostly.
        if mask == 0 {
            continue;
        }
        let Some(out) = out[at..].first_chunk_mut() else { return };
        isa.compress::<L>(mask, isa.load(vector), out);
        at += mask.count_ones() as usize * L::SIZE;
    }
    collect_from(L::SIZE, elements, marks, vectors.len() * L::COUNT, at, out);
}

/// Compacts from element `first` on, eight at a time, to byte `at`.
#[inline(always)]
fn collect_from(size: usize, elements: &[u8], marks: &[u8], first: usize, mut at: usize, out: &mut [u8]) {
    for (index, &mark) in marks.iter().enumerate().skip(first / 8) {
        let mut mark = mark;
        while mark != 0 {
            let element = (index * 8 + mark.trailing_zeros() as usize) * size;
            out[at..at + size].copy_from_slice(&elements[element..element + size]);
            at += size;
            mark &= mark - 1;
        }
    }
}

/// The inverse of [`collect`]: ORs the elements of `from` to the selected ones. `from` has as many,
/// and [`SLACK`] bytes behind them.
pub(crate) fn place(size: usize, from: &[u8], marks: &[u8], elements: &mut [u8]) {
    place_vectors(size, from, marks, elements);
}

dispatch_wide! {
    fn place_vectors(size: usize, from: &[u8], marks: &[u8], elements: &mut [u8]) = place_with
}

#[inline(always)]
fn place_with(isa: impl Vector, size: usize, from: &[u8], marks: &[u8], elements: &mut [u8]) {
    for_lane!(size, L, place_lanes::<L>(isa, from, marks, elements));
}

#[inline(always)]
fn place_lanes<L: Lane>(isa: impl Vector, from: &[u8], marks: &[u8], elements: &mut [u8]) {
    let mut at = 0;
    let vectors = elements.as_chunks_mut::<VECTOR>().0;
    let done = vectors.len() * L::COUNT;
    for (vector, marks) in vectors.iter_mut().zip(marks.chunks_exact(L::COUNT / 8)) {
        let mask = word(marks);
        if mask == 0 {
            continue;
        }
        let Some(from) = from[at..].first_chunk() else { return };
        let placed = isa.expand::<L>(mask, from);
        isa.store(isa.or(isa.load(vector), placed), vector);
        at += mask.count_ones() as usize * L::SIZE;
    }
    place_from(L::SIZE, from, marks, done, at, elements);
}

/// Scatters from element `first` on, eight at a time, from byte `at`.
#[inline(always)]
fn place_from(size: usize, from: &[u8], marks: &[u8], first: usize, mut at: usize, elements: &mut [u8]) {
    for (index, &mark) in marks.iter().enumerate().skip(first / 8) {
        let mut mark = mark;
        while mark != 0 {
            let element = (index * 8 + mark.trailing_zeros() as usize) * size;
            for (to, from) in elements[element..element + size].iter_mut().zip(&from[at..at + size]) {
                *to |= from;
            }
            at += size;
            mark &= mark - 1;
        }
    }
}

/// Up to eight bytes of a mask as a number.
#[inline(always)]
fn word(marks: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..marks.len()].copy_from_slice(marks);
    u64::from_le_bytes(word)
}

/// A gap of 255 unselected elements that no selected one follows.
pub(crate) const SKIP: u8 = 255;

/// Run-length encodes a mask: the number of unselected elements before each selected one, [`SKIP`]
/// for 255 without one.
pub(crate) fn gaps(marks: &[u8], gaps: &mut Vec<u8>) {
    gaps.clear();
    gaps.reserve(count_ones(marks));
    let mut next = 0;
    let push = |at: usize| {
        let mut gap = at - next;
        while gap >= usize::from(SKIP) {
            gaps.push(SKIP);
            gap -= usize::from(SKIP);
        }
        gaps.push(gap as u8);
        next = at + 1;
    };
    each_position(marks, push);
}

/// Copies elements of `size` bytes to the places of the bits that are set; the others stay as they are.
pub(crate) fn scatter(size: usize, from: &[u8], marks: &[u8], elements: &mut [u8]) {
    match size {
        1 => scatter_each::<1>(from, marks, elements),
        2 => scatter_each::<2>(from, marks, elements),
        4 => scatter_each::<4>(from, marks, elements),
        _ => scatter_each::<8>(from, marks, elements),
    }
}

fn scatter_each<const SIZE: usize>(from: &[u8], marks: &[u8], elements: &mut [u8]) {
    let mut from = from.as_chunks::<SIZE>().0.iter();
    let elements = elements.as_chunks_mut::<SIZE>().0;
    each_position(marks, |place| {
        if let Some(element) = from.next() {
            elements[place] = *element;
        }
    });
}

/// Calls `each` with the positions of the bits that are set.
pub(crate) fn each_position(marks: &[u8], mut each: impl FnMut(usize)) {
    let mut places = [0; PLACES];
    for (part, bytes) in marks.chunks(PLACES / 8).enumerate() {
        let count = positions(bytes, &mut places);
        places[..count].iter().for_each(|&place| each(part * PLACES + usize::from(place)));
    }
}

/// Elements whose positions are listed at a time. (structural: lists fit the first-level cache)
const PLACES: usize = 4096;

dispatch! {
    /// Writes the positions of the bits that are set, at most [`PLACES`]; returns their number.
    fn positions(marks: &[u8], places: &mut [u16; PLACES]) -> usize = positions_with
}

#[inline(always)]
fn positions_with(_: impl Isa, marks: &[u8], places: &mut [u16; PLACES]) -> usize {
    /// Bits of a word that are listed without a branch: what is written beyond them is overwritten.
    const UNROLLED: usize = 4;
    /// Words that are skipped together where no bit is set, as in most of a sparse mask.
    const SKIPPED: usize = 4;
    let (groups, rest) = marks.as_chunks::<{ 8 * SKIPPED }>();
    let mut last = [0; 8 * SKIPPED];
    last[..rest.len()].copy_from_slice(rest);
    let mut count = 0;
    for (group, bytes) in groups.iter().chain([&last]).enumerate() {
        let words = bytes.as_chunks().0.iter().map(|&word| u64::from_le_bytes(word));
        if words.clone().fold(0, |all, word| all | word) == 0 {
            continue;
        }
        for (index, mut word) in words.enumerate() {
            let end = count + word.count_ones() as usize;
            let first = ((group * SKIPPED + index) * 64) as u16;
            let place = |word: u64| first + word.trailing_zeros() as u16;
            if let Some(to) = places[count..].first_chunk_mut::<UNROLLED>() {
                for to in to {
                    *to = place(word);
                    word &= word.wrapping_sub(1);
                }
                count += UNROLLED;
            }
            while count < end {
                places[count] = place(word);
                word &= word - 1;
                count += 1;
            }
            count = end;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Portable;

    #[test]
    fn marked_elements_return_to_their_places() {
        let mut state = 7u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as usize
        };
        for size in [1, 2, 4, 8] {
            for (count, one_in) in [(0, 1), (1, 1), (7, 2), (64, 1), (129, 3), (1000, 5), (1003, 300)] {
                // Of the elements that are not zero, some are below `byte` only.
                let mut elements = vec![0u8; count * size];
                for element in elements.chunks_mut(size) {
                    if next() % one_in == 0 {
                        element[next() % size] = 1 + (next() % 255) as u8;
                    }
                }
                for byte in 0..size {
                    let listed: Vec<usize> = (0..count)
                        .filter(|i| elements[i * size + byte..(i + 1) * size].iter().any(|&b| b != 0))
                        .collect();
                    let mut expected = vec![0u8; marks_len(count)];
                    listed.iter().for_each(|i| expected[i / 8] |= 1 << (i % 8));
                    let mut marks = Vec::new();
                    assert_eq!(mark(size, &elements, byte, &mut marks), listed.len());
                    assert_eq!(marks, expected);
                    let mut portable = vec![0; marks.len().next_multiple_of(8)];
                    let done = mark_with(Portable, size, &elements, byte, &mut portable);
                    assert_eq!(portable[..done / 8], expected[..done / 8]);

                    let words: Vec<u8> =
                        listed.iter().flat_map(|i| &elements[i * size..(i + 1) * size]).copied().collect();
                    let mut found = Vec::new();
                    collect(size, &elements, &marks, listed.len(), &mut found);
                    assert_eq!(found[..words.len()], words);
                    found[words.len()..].fill(0xee);
                    let mut portable = vec![0; words.len() + SLACK];
                    collect_with(Portable, size, &elements, &marks, &mut portable);
                    assert_eq!(portable[..words.len()], words);

                    let mut naive = vec![0x10; elements.len()];
                    for (i, word) in listed.iter().zip(words.chunks(size)) {
                        for (to, from) in naive[i * size..].iter_mut().zip(word) {
                            *to |= from;
                        }
                    }
                    let mut placed = vec![0x10; elements.len()];
                    place(size, &found, &marks, &mut placed);
                    assert_eq!(placed, naive);
                    placed.fill(0x10);
                    place_with(Portable, size, &found, &marks, &mut placed);
                    assert_eq!(placed, naive);

                    let (mut between, mut before) = (Vec::new(), 0);
                    for &i in &listed {
                        between.extend(std::iter::repeat_n(SKIP, (i - before) / 255));
                        between.push(((i - before) % 255) as u8);
                        before = i + 1;
                    }
                    let mut found = Vec::new();
                    gaps(&marks, &mut found);
                    assert_eq!(found, between);
                }
            }
        }
    }
}
