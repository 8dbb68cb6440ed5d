//! What turns a buffer back into the one it was before a change: the log of an update in place.

use crate::error::{Error, Result};
use crate::kernel::changes;
use crate::kernel::mask_compact::{self, SLACK, marks_len};

/// The elements of a buffer that a change overwrites: a bit for every element, lowest bit of a byte first, and the old
/// ones of those whose bit is set. Collected at the speed of the caches, for journals that are written before a buffer
/// changes in place.
///
/// ```
/// use z4ai::delta::{UndoLog, roll_back};
///
/// let (before, after) = ([1u8, 2, 3, 4], [1u8, 2, 7, 4]);
/// let mut log = UndoLog::default();
/// log.add(2, &before, &after);
/// assert_eq!((log.marks(), log.elements()), (&[0b10][..], &[3, 4][..]));
/// let mut buffer = after;
/// roll_back(2, log.marks(), log.elements(), &mut buffer)?;
/// assert_eq!(buffer, before);
/// # Ok::<(), z4ai::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct UndoLog {
    marks: Vec<u8>,
    /// The elements, `len` bytes, and room for more.
    elements: Vec<u8>,
    len: usize,
}

impl UndoLog {
    /// Adds the next part of a buffer that turns from `before` into `after`, of equal length: elements of 1, 2, 4 or 8
    /// bytes, eight of them or a multiple of that in every part but the last.
    pub fn add(&mut self, size: usize, before: &[u8], after: &[u8]) {
        assert!(
            matches!(size, 1 | 2 | 4 | 8) && before.len().is_multiple_of(size),
            "elements of {size} bytes"
        );
        assert_eq!(before.len(), after.len(), "states have one length");
        let first = self.marks.len();
        self.marks.resize(first + marks_len(before.len() / size), 0);
        let room = self.len + before.len() + SLACK;
        if self.elements.len() < room {
            self.elements.resize(room, 0);
        }
        let (marks, list) = (&mut self.marks[first..], &mut self.elements[self.len..]);
        let (compared, mut at) = changes::collect_changed(size, [after, before], marks, list);
        let rest = before[compared..].chunks_exact(size).zip(after[compared..].chunks_exact(size));
        for (index, (before, after)) in (compared / size..).zip(rest) {
            if before != after {
                marks[index / 8] |= 1 << (index % 8);
                list[at..at + size].copy_from_slice(before);
                at += size;
            }
        }
        self.len += at;
    }

    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A bit for every element: whether it changed.
    pub fn marks(&self) -> &[u8] {
        &self.marks
    }

    /// The elements that changed, as they were.
    pub fn elements(&self) -> &[u8] {
        &self.elements[..self.len]
    }

    /// Forgets everything, and keeps the memory.
    pub fn clear(&mut self) {
        self.marks.clear();
        self.len = 0;
    }
}

/// Puts the elements of an [`UndoLog`] back into the buffer that they were collected from. Elements that did not change
/// yet, or that were put back already, stay as they are.
pub fn roll_back(size: usize, marks: &[u8], elements: &[u8], buffer: &mut [u8]) -> Result<()> {
    let count = buffer.len() / size.max(1);
    let last_bits = marks.last().map_or(0, |last| last.checked_shr(count as u32 % 8).unwrap_or(0));
    let fits = matches!(size, 1 | 2 | 4 | 8)
        && buffer.len().is_multiple_of(size)
        && marks.len() == marks_len(count)
        && (count.is_multiple_of(8) || last_bits == 0)
        && mask_compact::count_ones(marks) * size == elements.len();
    if !fits {
        return Err(Error::invalid(format_args!(
            "{} bytes of marks and {} bytes of elements do not belong to a buffer of {} bytes, {size} in an element",
            marks.len(),
            elements.len(),
            buffer.len()
        )));
    }
    mask_compact::scatter(size, elements, marks, buffer);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn changes_are_undone_from_every_state_between(
            before in prop::collection::vec(any::<u8>(), 0..3000),
            changed in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..200),
            done in any::<prop::sample::Index>(),
            part in 1..20usize,
            size in prop::sample::select(vec![1usize, 2, 4, 8]),
        ) {
            let before = &before[..before.len() / size * size];
            let mut after = before.to_vec();
            for (at, value) in changed.iter().filter(|_| !before.is_empty()) {
                after[at.index(before.len())] = *value;
            }
            let mut log = UndoLog::default();
            for (before, after) in before.chunks(part * 8 * size).zip(after.chunks(part * 8 * size)) {
                log.add(size, before, after);
            }
            prop_assert_eq!(log.is_empty(), before == after);
            let marked = |i: &usize| log.marks()[i / 8] >> (i % 8) & 1 == 1;
            let differs = |i: &usize| before[i * size..][..size] != after[i * size..][..size];
            let count = before.len() / size;
            prop_assert!((0..count).filter(marked).eq((0..count).filter(differs)));
            // Interrupted anywhere.
            let mut mixed = after.clone();
            let cut = done.index(before.len() + 1);
            mixed[cut..].copy_from_slice(&before[cut..]);
            roll_back(size, log.marks(), log.elements(), &mut mixed).unwrap();
            prop_assert!(mixed == before);
            roll_back(size, log.marks(), log.elements(), &mut mixed).unwrap();
            prop_assert!(mixed == before);
            if !log.is_empty() {
                let short = &log.elements()[..log.elements().len() - size];
                prop_assert!(roll_back(size, log.marks(), short, &mut mixed).is_err());
                prop_assert!(roll_back(size, &log.marks()[1..], log.elements(), &mut mixed).is_err());
                prop_assert!(roll_back(3, log.marks(), log.elements(), &mut mixed).is_err());
            }
        }
    }

    #[test]
    fn marks_behind_the_last_element_are_refused() {
        let mut buffer = [0; 3];
        assert!(roll_back(1, &[0b1000], &[7], &mut buffer).is_err());
        assert!(roll_back(1, &[0b0100], &[7], &mut buffer).is_ok());
        assert_eq!(buffer, [0, 0, 7]);
        assert!(roll_back(0, &[], &[], &mut []).is_err());
    }
}
