//! Output that is made part by part, and hashed while each part is in the first-level cache.

use crate::error::Result;
use crate::kernel::copy;
use crate::kernel::fields::{self, Fields, FieldsAndSigns, Joined, Patching, Waiting};
use crate::kernel::hash::{self, Hasher, Sums};

/// The decoded bytes of a chunk on their way.
pub(crate) struct Parts<'a> {
    out: &'a mut [u8],
    /// Bytes that are done.
    done: usize,
    /// Where parts are made if the output is so large that it leaves the caches before anyone reads it;
    /// they are copied past the caches from there.
    aside: Option<&'a mut Part>,
    /// Bytes at the end of the last part that are not a whole line of memory yet, and wait before the next.
    carried: usize,
    hasher: Hasher,
}

/// What leaves for memory at a time.
const LINE: usize = 64;

/// Room for one part, and before it for less than a line of the part before.
pub(crate) struct Part(Box<Room>);

#[repr(align(64))]
struct Room([u8; LINE + Parts::LEN]);

impl Default for Part {
    fn default() -> Self {
        Self(Box::new(Room([0; LINE + Parts::LEN])))
    }
}

impl<'a> Parts<'a> {
    /// Bytes of every part but the last: they and what they are made of fit the first-level cache.
    pub(crate) const LEN: usize = 8 << 10;
    /// Bytes of the shortest.
    pub(super) const LEAST: usize = hash::BLOCK;

    pub(super) fn new(out: &'a mut [u8], large: bool, part: &'a mut Part) -> Self {
        let hasher = Hasher::new(out.len());
        Self { out, done: 0, aside: large.then_some(part), carried: 0, hasher }
    }

    /// Bytes of all parts.
    pub(super) fn len(&self) -> usize {
        self.out.len()
    }

    /// The memory that parts are made in if they stay there: it can be fetched before. Its ends are written
    /// to, since there is nothing to fetch from pages that nobody touched yet.
    pub(super) fn touched(&mut self) -> &[u8] {
        if self.aside.is_some() {
            return &[];
        }
        for end in [0, self.out.len().saturating_sub(1)] {
            if let Some(byte) = self.out.get_mut(end) {
                *std::hint::black_box(byte) = 0;
            }
        }
        self.out
    }

    /// Bytes that are not made yet.
    pub(super) fn left(&self) -> usize {
        self.out.len() - self.done
    }

    pub(super) fn is_done(&self) -> bool {
        self.done == self.out.len()
    }

    /// Makes as many blocks as go in one step from the next `len` bytes of joined elements; returns how many
    /// bytes those are.
    pub(super) fn join(
        &mut self,
        len: usize,
        fields: Fields,
        from: &FieldsAndSigns<'_>,
        patches: &mut dyn Patching,
    ) -> usize {
        self.in_one_step(len, |sums, out, waiting| {
            fields::join_hashed(fields, from, Joined { patches, sums, out, waiting })
        })
    }

    /// Has as many whole blocks as it likes of the next `len` bytes made, hashed and written by `make`, which is
    /// given the hash, the memory and what waits to be written before; returns how many bytes those are.
    pub(super) fn in_one_step(
        &mut self,
        len: usize,
        make: impl FnOnce(&mut Sums, &mut [u8], Option<&mut Waiting>) -> usize,
    ) -> usize {
        let Self { out, done, carried, .. } = self;
        let made = match &mut self.aside {
            None => self.hasher.added_by(len, |sums, due| make(sums, &mut out[*done..*done + due], None)),
            Some(Part(room)) => self.hasher.added_by(len, |sums, due| {
                let start = *done - *carried;
                let out = &mut out[start..start + due];
                if !out.as_ptr().addr().is_multiple_of(LINE) {
                    return 0;
                }
                let Some(line) = room.0.first_chunk_mut::<LINE>() else { return 0 };
                let mut waiting = Waiting { line: *line, len: *carried };
                let made = make(sums, out, Some(&mut waiting));
                *line = waiting.line;
                made
            }),
        };
        self.done += made;
        made
    }

    /// Makes the next part, by filling what it is given.
    pub(super) fn next(&mut self, fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<()> {
        self.next_of(Self::LEN, fill)
    }

    /// As [`next`](Self::next), of a part that has `len` bytes unless it is the last: whole blocks of the hash.
    pub(super) fn next_of(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<()> {
        debug_assert!(len <= Self::LEN && len.is_multiple_of(hash::BLOCK));
        let len = (self.out.len() - self.done).min(len);
        let end = self.done + len;
        let last = end == self.out.len();
        let Some(Part(room)) = &mut self.aside else {
            let out = &mut self.out[self.done..end];
            fill(out)?;
            self.hasher.write(out);
            self.done = end;
            return Ok(());
        };
        let room = &mut room.0[..LINE + len];
        fill(&mut room[LINE..])?;
        // Lines leave when they are whole: one that is written in two pieces would be read first.
        let to = &mut self.out[self.done - self.carried..end];
        let from = &room[LINE - self.carried..];
        let (to, to_lines) = to.split_at_mut(to.as_ptr().align_offset(LINE).min(to.len()));
        let (from, from_lines) = from.split_at(to.len());
        to.copy_from_slice(from);
        let whole = to_lines.len() / LINE * LINE;
        let (to_lines, to_rest) = to_lines.split_at_mut(whole);
        let (from_lines, from_rest) = from_lines.split_at(whole);
        self.hasher.write_past_caches(&room[LINE..], from_lines, to_lines);
        self.done = end;
        self.carried = from_rest.len();
        if last {
            to_rest.copy_from_slice(from_rest);
        } else {
            room.copy_within(LINE + len - self.carried.., LINE - self.carried);
        }
        Ok(())
    }

    /// The hash of all parts.
    pub(super) fn finish(self) -> u64 {
        self.hasher.finish(self.out)
    }
}

impl Drop for Parts<'_> {
    fn drop(&mut self) {
        copy::settle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use twox_hash::XxHash3_64;

    #[test]
    fn parts_are_whole_and_hashed_wherever_they_go() {
        let lens = [0, 1, 63, 64, 65, 241, 1023, 1024, 1025, Parts::LEN - 1, Parts::LEN, Parts::LEN + 1];
        let longer = [2 * Parts::LEN, 3 * Parts::LEN + 1234];
        let mut part = Part::default();
        for (at, len) in (0..66).flat_map(|at| lens.into_iter().chain(longer).map(move |len| (at, len))) {
            let content: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
            for large in [false, true] {
                let mut memory = vec![0xa5; len + 140];
                let mut parts = Parts::new(&mut memory[at..at + len], large, &mut part);
                let mut done = 0;
                while !parts.is_done() {
                    let fill = |out: &mut [u8]| {
                        out.copy_from_slice(&content[done..done + out.len()]);
                        done += out.len();
                        Ok(())
                    };
                    parts.next(fill).unwrap();
                }
                assert_eq!(parts.finish(), XxHash3_64::oneshot(&content), "{len} bytes at {at}");
                assert_eq!(memory[at..at + len], content, "{len} bytes at {at}");
                assert!(memory[..at].iter().chain(&memory[at + len..]).all(|&byte| byte == 0xa5));
            }
        }
    }
}
