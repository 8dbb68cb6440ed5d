//! Sparse differences: listed elements go to positions that are gaps, one byte each.

use super::{Rule, Word, join_planes};
use crate::kernel::class_masks::ListedClasses;
use crate::kernel::mask_compact::SKIP;

/// Listed elements that are restored together. (structural: positions and elements of both fit the
/// first-level cache beside a part)
const TOGETHER: usize = 64;

/// Scatters listed elements, whose positions are run-length encoded, part by part.
pub(crate) struct GapScatter<'a> {
    /// The unlisted elements before each, [`SKIP`] for 255 without a listed one.
    gaps: &'a [u8],
    /// The byte planes of the listed elements; the first `planes` are in use.
    values: [&'a [u8]; 8],
    planes: usize,
    /// The number of elements scattered so far.
    listed: usize,
    /// The position of the next gap, in elements relative to the start of the next part.
    at: isize,
    /// Whether the last gap is before a listed element.
    last_lists: bool,
}

impl<'a> GapScatter<'a> {
    /// `values` are of one length, and at most eight.
    pub(crate) fn new(gaps: &'a [u8], values: &[&'a [u8]]) -> Self {
        let planes = values.len();
        let values = std::array::from_fn(|byte| values.get(byte).copied().unwrap_or_default());
        Self { gaps, values, planes, listed: 0, at: 0, last_lists: gaps.last() != Some(&SKIP) }
    }

    /// Scatters bytes `byte..` of the listed elements of the next part. `None` if there are more
    /// positions than values.
    pub(crate) fn part(&mut self, size: usize, byte: usize, elements: &mut [u8]) -> Option<()> {
        match self.values[..self.planes] {
            [a] => self.each(size, byte, [a], elements, |to, value| *to = value),
            [a, b] => self.each(size, byte, [a, b], elements, |to, value| *to = value),
            [a, b, c] => self.each(size, byte, [a, b, c], elements, |to, value| *to = value),
            [a, b, c, d] => self.each(size, byte, [a, b, c, d], elements, |to, value| *to = value),
            [a, b, c, d, e] => self.each(size, byte, [a, b, c, d, e], elements, |to, value| *to = value),
            [a, b, c, d, e, f] => {
                self.each(size, byte, [a, b, c, d, e, f], elements, |to, value| *to = value)
            }
            [a, b, c, d, e, f, g] => {
                self.each(size, byte, [a, b, c, d, e, f, g], elements, |to, value| *to = value)
            }
            [a, b, c, d, e, f, g, h] => {
                self.each(size, byte, [a, b, c, d, e, f, g, h], elements, |to, value| *to = value)
            }
            _ => None,
        }
    }

    /// Whether the listed bytes are whole elements of `size` bytes, so that [`restore`](Self::restore)
    /// takes them.
    pub(crate) fn lists_elements(&self, size: usize) -> bool {
        self.planes == size
    }

    /// Restores the listed elements of the next part, which holds the reference: the others are
    /// restored already. Their places are appended to `listed`. `None` if there are more positions than values.
    pub(crate) fn restore(
        &mut self,
        rule: Rule,
        size: usize,
        elements: &mut [u8],
        listed: &mut Vec<u32>,
    ) -> Option<()> {
        match (size, self.values) {
            (1, [a, ..]) => self.restore_each::<u8, 1>(rule, [a], elements, listed),
            (2, [a, b, ..]) => self.restore_each::<u16, 2>(rule, [a, b], elements, listed),
            (4, [a, b, c, d, ..]) => self.restore_each::<u32, 4>(rule, [a, b, c, d], elements, listed),
            (_, values) => self.restore_each::<u64, 8>(rule, values, elements, listed),
        }
    }

    /// As [`restore`](Self::restore), of elements `W`. Some at a time are gathered, restored with vector
    /// instructions and scattered: one by one, each would wait for the position of the one before it.
    fn restore_each<W: Word, const SIZE: usize>(
        &mut self,
        rule: Rule,
        values: [&[u8]; SIZE],
        elements: &mut [u8],
        listed: &mut Vec<u32>,
    ) -> Option<()> {
        let elements = elements.as_chunks_mut::<SIZE>().0;
        let (mut words, mut differences) = ([[0; SIZE]; TOGETHER], [[0; SIZE]; TOGETHER]);
        let mut places = [0; TOGETHER];
        loop {
            let count = self.next_places(elements.len(), &mut places);
            let end = self.listed + count;
            let mut planes: [&[u8]; SIZE] = [&[]; SIZE];
            for (plane, values) in planes.iter_mut().zip(values) {
                *plane = values.get(self.listed..end)?;
            }
            let places = &places[..count];
            listed.extend_from_slice(places);
            for (i, &place) in places.iter().enumerate() {
                words[i] = elements[place as usize];
                differences[i] = std::array::from_fn(|byte| planes[byte][i]);
            }
            W::restore(rule, differences[..count].as_flattened(), words[..count].as_flattened_mut());
            for (&place, word) in places.iter().zip(words) {
                elements[place as usize] = word;
            }
            self.listed = end;
            if count < TOGETHER {
                self.at -= elements.len() as isize;
                return Some(());
            }
        }
    }

    /// The positions of the next listed elements of a part of `count` elements: as many as there is room for,
    /// or all that are left.
    fn next_places(&mut self, count: usize, places: &mut [u32; TOGETHER]) -> usize {
        let (mut found, mut at) = (0, self.at);
        let mut gaps = self.gaps.iter();
        while let Some(&gap) = gaps.as_slice().first() {
            let place = at + isize::from(gap);
            // Not negative: a part begins at or before the next gap's position.
            if place >= count as isize || found == TOGETHER {
                break;
            }
            places[found] = place as u32;
            let listed = gap != SKIP;
            found += usize::from(listed);
            at = place + isize::from(listed);
            gaps.next();
        }
        (self.gaps, self.at) = (gaps.as_slice(), at);
        found
    }

    /// Appends the positions and the bytes of all listed elements, of `size` bytes. `None` if the list ends with a
    /// [`SKIP`].
    pub(crate) fn list_all(&self, size: usize, to: &mut ListedClasses) -> Option<()> {
        let ListedClasses { places, differences, .. } = to;
        let mut found = places.len();
        places.resize(found + self.gaps.len(), 0);
        let mut at = 0u64;
        for &gap in self.gaps {
            let place = at + u64::from(gap);
            // None is as large: it is refused, as all that are too large.
            places[found] = u32::try_from(place).unwrap_or(u32::MAX);
            let listed = gap != SKIP;
            found += usize::from(listed);
            at = place + u64::from(listed);
        }
        places.truncate(found);
        let start = differences.len();
        differences.resize(start + self.values[0].len() * size, 0);
        join_planes(size, &self.values[..self.planes], &mut differences[start..]);
        self.last_lists.then_some(())
    }

    /// Calls `set` with the bytes from `byte` on of every listed element of the next part, and with
    /// its values.
    #[inline(always)]
    fn each<const V: usize>(
        &mut self,
        size: usize,
        byte: usize,
        values: [&[u8]; V],
        elements: &mut [u8],
        set: impl Fn(&mut [u8; V], [u8; V]),
    ) -> Option<()> {
        let listed = values[0].len();
        // The common length lets the compiler drop bounds checks below.
        let values = values.map(|plane| &plane[..listed]);
        let count = (elements.len() / size) as isize;
        let mut gaps = self.gaps.iter();
        while let Some(&gap) = gaps.as_slice().first() {
            let at = self.at + isize::from(gap);
            if gap == SKIP {
                self.at = at;
            } else if at < count {
                if self.listed == listed {
                    return None;
                }
                let element = elements.get_mut(at as usize * size + byte..)?.first_chunk_mut()?;
                set(element, std::array::from_fn(|i| values[i][self.listed]));
                self.listed += 1;
                self.at += isize::from(gap) + 1;
            } else {
                break;
            }
            gaps.next();
        }
        self.gaps = gaps.as_slice();
        self.at -= count;
        Some(())
    }

    /// Whether all listed elements, from the first one on, are among `count`, there is a value for each, and the list
    /// does not end with a [`SKIP`]: then scattering them does not fail.
    pub(crate) fn fits(&self, count: usize) -> bool {
        let (unlisted, skips) = self
            .gaps
            .iter()
            .fold((0u64, 0u64), |(sum, skips), &gap| (sum + u64::from(gap), skips + u64::from(gap == SKIP)));
        let listed = self.gaps.len() as u64 - skips;
        self.last_lists && listed == self.values[0].len() as u64 && unlisted + listed <= count as u64
    }

    /// Whether all values are scattered and the list does not end with a [`SKIP`].
    pub(crate) fn is_done(&self) -> bool {
        self.gaps.is_empty() && self.last_lists && self.values[0].len() == self.listed
    }
}
