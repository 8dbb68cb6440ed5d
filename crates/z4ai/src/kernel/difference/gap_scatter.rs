//! Sparse differences: listed elements go to positions that are gaps, one byte each.

use super::{Rule, restore_u8, restore_u16, restore_u32, restore_u64};
use crate::kernel::mask_compact::SKIP;

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
    /// restored already. `None` if there are more positions than values.
    pub(crate) fn restore(&mut self, rule: Rule, size: usize, elements: &mut [u8]) -> Option<()> {
        match (size, self.values) {
            (1, [a, ..]) => self.each(1, 0, [a], elements, |to, value| {
                restore_u8(rule, 1, |_| u8::from_le_bytes(value), &mut to[..]);
            }),
            (2, [a, b, ..]) => self.each(2, 0, [a, b], elements, |to, value| {
                restore_u16(rule, 1, |_| u16::from_le_bytes(value), &mut to[..]);
            }),
            (4, [a, b, c, d, ..]) => self.each(4, 0, [a, b, c, d], elements, |to, value| {
                restore_u32(rule, 1, |_| u32::from_le_bytes(value), &mut to[..]);
            }),
            (_, values) => self.each(8, 0, values, elements, |to, value| {
                restore_u64(rule, 1, |_| u64::from_le_bytes(value), &mut to[..]);
            }),
        }
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

    /// Whether all values are scattered and the list does not end with a [`SKIP`].
    pub(crate) fn is_done(&self) -> bool {
        self.gaps.is_empty() && self.last_lists && self.values[0].len() == self.listed
    }
}
