//! The elements of two buffers that differ, found in one pass over both.

use crate::kernel::changes::{self, Lists};
use crate::kernel::class_masks::{self, ClassChanges, Masks};
use crate::kernel::mask_compact::{self, SLACK};
use crate::kernel::xxh3::{HASH_BLOCK, Hasher, MIN_END};

/// Bytes that are compared without copying them, before it is known whether too many changed.
/// (structural: lists of a part fit the second-level cache)
const COMPARED_PART: usize = 64 << 10;

/// The reference of a chunk.
pub(super) enum Reference<'a> {
    Shared(&'a [u8]),
    /// It becomes the content of the chunk.
    Advancing(&'a mut [u8]),
}

impl std::ops::Deref for Reference<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Reference::Shared(bytes) => bytes,
            Reference::Advancing(bytes) => bytes,
        }
    }
}

/// The elements of a chunk that are not those of the reference, found in one pass over both.
#[derive(Default)]
pub(super) struct Changed {
    /// Copies of the end of either buffer.
    ends: [Vec<u8>; 2],
    /// The changed elements of either buffer, `len` bytes each.
    pub(super) lists: [Vec<u8>; 2],
    pub(super) len: usize,
    /// A bit for every element.
    pub(super) marks: Vec<u8>,
    /// The masks of the reference's classes.
    pub(super) masks: Vec<u8>,
    pub(super) classes: Vec<ClassChanges>,
}

impl Changed {
    /// Finds what changed, and the masks of the classes between `thresholds`, if there are any; returns the hashes of
    /// both buffers. `None` if it is more than `most` bytes. Every byte is read once, so that hashes, lists and
    /// masks are of the same bytes even if another thread changes them.
    /// A reference that advances has become `current` then, or is as it was.
    pub(super) fn find(
        &mut self,
        size: usize,
        most: usize,
        thresholds: &[u16],
        current: &[u8],
        reference: &mut Reference<'_>,
    ) -> Option<[u64; 2]> {
        let len = current.len();
        let per_mark = 8 * size;
        self.len = 0;
        self.marks.resize(mask_compact::marks_len(len / size), 0);
        let stride = match thresholds {
            [] => 0,
            _ => class_masks::make_room(&mut self.masks, thresholds.len() + 1, len / size),
        };
        let mut hashers = [Hasher::new(len), Hasher::new(len)];
        // Hashes are finished by the end, which therefore must not be read before.
        let blocks = len.saturating_sub(MIN_END) / HASH_BLOCK * HASH_BLOCK;
        for start in (0..blocks).step_by(COMPARED_PART) {
            let part = start..blocks.min(start + COMPARED_PART);
            for list in &mut self.lists {
                // Grown by an amortised step, not part by part.
                if list.len() < self.len + COMPARED_PART + SLACK {
                    list.resize(2 * self.len + COMPARED_PART + SLACK, 0);
                }
            }
            let elements = self.lists.each_mut().map(|list| &mut list[self.len..]);
            let masks = &mut self.masks[(start / per_mark).min(stride)..];
            let masks = Masks { thresholds, masks, stride };
            let to = Lists { elements, marks: &mut self.marks[start / per_mark..], masks };
            Hasher::update_both(&mut hashers, part.len(), |sums| {
                let now = &current[part.clone()];
                self.len += match reference {
                    Reference::Shared(before) => {
                        changes::compare_hashed(size, [now, &before[part.clone()]], sums, to)
                    }
                    Reference::Advancing(before) => {
                        changes::advance_hashed(size, now, &mut before[part.clone()], sums, to)
                    }
                };
            });
            if self.len > most {
                self.revert(size, part.end, reference);
                return None;
            }
        }
        for ((end, from), hasher) in self.ends.iter_mut().zip([current, reference]).zip(&mut hashers) {
            end.clear();
            end.extend_from_slice(&from[blocks..]);
            hasher.write(end);
        }
        for list in &mut self.lists {
            list.resize(list.len().max(self.len + HASH_BLOCK + MIN_END + SLACK), 0);
        }
        let elements = self.lists.each_mut().map(|list| &mut list[self.len..]);
        let masks = &mut self.masks[(blocks / per_mark).min(stride)..];
        let masks = Masks { thresholds, masks, stride };
        let to = Lists { elements, marks: &mut self.marks[blocks / per_mark..], masks };
        self.len += changes::compare_few(size, self.ends.each_ref().map(Vec::as_slice), to);
        let hashes = std::array::from_fn(|i| hashers[i].finish_by_end(&self.ends[i]));
        if let Reference::Advancing(reference) = reference {
            reference[blocks..].copy_from_slice(&self.ends[0]);
        }
        if self.len > most {
            self.revert(size, len, reference);
            return None;
        }
        Some(hashes)
    }

    /// The elements that changed, of the current data and of the reference.
    pub(super) fn elements(&self) -> [&[u8]; 2] {
        self.lists.each_ref().map(|list| &list[..self.len])
    }

    /// Puts the elements of a reference that advanced back into its first `len` bytes.
    pub(super) fn revert(&self, size: usize, len: usize, reference: &mut Reference<'_>) {
        if let Reference::Advancing(reference) = reference {
            let marks = &self.marks[..mask_compact::marks_len(len / size)];
            mask_compact::scatter(size, &self.lists[1][..self.len], marks, &mut reference[..len]);
        }
    }
}

/// Compares states of a buffer, and collects what changed from one to the next: for callers that encode it themselves.
/// Its memory is reused from one comparison to the next.
///
/// ```
/// let (before, now) = ([1u8, 2, 3, 4], [1u8, 2, 7, 4]);
/// let mut state = before;
/// let mut comparison = z4ai::delta::Comparison::default();
/// comparison.advance(2, &now, &mut state);
/// assert_eq!(comparison.elements(), [&[7, 4][..], &[3, 4]]);
/// let mut positions = Vec::new();
/// comparison.for_each_position(|position| positions.push(position));
/// assert_eq!((state, positions), (now, vec![1]));
/// ```
#[derive(Default)]
pub struct Comparison(Changed);

impl Comparison {
    /// Compares elements of 1, 2, 4 or 8 bytes and turns `state` into `current`, of equal length and a multiple of an
    /// element's. Both are read once, so that the state is consistent with what is collected even if another thread
    /// changes `current`.
    pub fn advance(&mut self, size: usize, current: &[u8], state: &mut [u8]) {
        assert!(
            matches!(size, 1 | 2 | 4 | 8) && current.len().is_multiple_of(size),
            "elements of {size} bytes"
        );
        assert_eq!(current.len(), state.len(), "states have one length");
        let found = self.0.find(size, usize::MAX, &[], current, &mut Reference::Advancing(state));
        debug_assert!(found.is_some());
    }

    /// The elements that changed, as they are now and as they were, in the order of their positions.
    pub fn elements(&self) -> [&[u8]; 2] {
        self.0.elements()
    }

    /// Calls `each` with the positions of the elements that changed, in rising order.
    pub fn for_each_position(&self, each: impl FnMut(usize)) {
        mask_compact::each_position(&self.0.marks, each);
    }
}

impl std::fmt::Debug for Comparison {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Comparison({} bytes changed)", self.0.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::delta::differences::LIST_ONLY_BELOW;
    use twox_hash::XxHash3_64;

    /// A length in the midst of the others.
    const LEN: usize = 8 << 10;

    #[test]
    fn changes_are_found_and_both_buffers_hashed() {
        let mut changed = Changed::default();
        let lens = [1, 8, 200, 240, 241, 256, 1024, 1025, LEN - 1, LEN, LEN + 1];
        let longer = [LEN + 63, LEN + 300, 3 * LEN, 3 * LEN + 1024, 70_001];
        for (size, len) in [1, 2, 4, 8].into_iter().flat_map(|size| lens.map(|len| (size, len * size))) {
            check(&mut changed, size, len);
        }
        for (size, len) in [1, 2, 4, 8].into_iter().flat_map(|size| longer.map(|len| (size, len * size))) {
            check(&mut changed, size, len);
        }
    }

    fn check(changed: &mut Changed, size: usize, len: usize) {
        let before: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
        for every in [9, 40, 1000] {
            let most = len / size / LIST_ONLY_BELOW * size;
            let mut now = before.clone();
            // Both ends, and some between.
            for element in (0..len / size).filter(|i| i % every == 8 || i + 1 == len / size) {
                now[element * size + element % size] ^= 0x55;
            }
            let differ: Vec<usize> = (0..len / size)
                .filter(|i| now[i * size..(i + 1) * size] != before[i * size..(i + 1) * size])
                .collect();
            let found = changed.find(size, most, &[], &now, &mut Reference::Shared(&before));
            let mut advanced = before.clone();
            assert_eq!(changed.find(size, most, &[], &now, &mut Reference::Advancing(&mut advanced)), found);
            assert!(advanced == if found.is_some() { &now[..] } else { &before });
            if differ.len() > len / size / LIST_ONLY_BELOW {
                assert_eq!(found, None, "{len} bytes");
                continue;
            }
            let hashes = [XxHash3_64::oneshot(&now), XxHash3_64::oneshot(&before)];
            assert_eq!(found, Some(hashes), "{len} bytes of {size}");
            assert_eq!(changed.len, differ.len() * size);
            let of = |bytes: &[u8]| -> Vec<u8> {
                differ.iter().flat_map(|i| &bytes[i * size..(i + 1) * size]).copied().collect()
            };
            assert_eq!(changed.lists[0][..changed.len], of(&now));
            assert_eq!(changed.lists[1][..changed.len], of(&before));
            let marked = |i: usize| changed.marks[i / 8] >> (i % 8) & 1 == 1;
            assert!((0..len / size).filter(|&i| marked(i)).eq(differ.iter().copied()));
            assert_eq!(changed.marks.len(), mask_compact::marks_len(len / size));
        }
    }
}
