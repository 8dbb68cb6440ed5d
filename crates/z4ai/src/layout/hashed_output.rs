//! An output sink that hashes each part while it is in the first-level cache.

use crate::error::Result;
use crate::kernel::bit_fields::{self, Fields, MergeSink, MergeSource, OutlierPatcher};
use crate::kernel::streaming;
use crate::kernel::stripe_writer::PartialLine;
use crate::kernel::xxh3::{self, Hasher, MIN_END};
use crate::simd::Sums;
use crate::simd::prefetch::CACHE_LINE;

/// The decoded bytes of a chunk, produced part by part.
pub(crate) struct HashedOutput<'a> {
    /// Nothing if the bytes are only hashed.
    out: &'a mut [u8],
    /// Bytes of all parts.
    len: usize,
    /// Bytes produced so far.
    done: usize,
    /// Where parts are produced if the output is too large to stay in the caches; they are copied
    /// from there with non-temporal stores.
    staging: Option<&'a mut StagingBuffer>,
    /// Bytes at the end of the last part that do not fill a cache line yet, kept before the next
    /// part.
    carried: usize,
    /// Where parts are produced if they are only hashed.
    discarded: Option<&'a mut DiscardedPart>,
    /// `None`: the bytes were verified before.
    hasher: Option<Hasher>,
    /// What parts are made from, at the same places: prefetched while others are hashed.
    source: Option<*const u8>,
}

/// How far ahead of a part its source is prefetched, in bytes. Hashing leaves the memory bus idle, and scattered
/// changes are misses that hardware prefetchers do not foresee: with 8 KiB, apply takes 0.76 (0.1 % changed) to
/// 0.92 (5 %) of the time without; 4 and 16 KiB are slower at each level. (case: `sync.py`, apply)
const READ_AHEAD: usize = 8 << 10;

/// Room for one part that is hashed and not kept, and before it the end of the previous part, by which hashes may
/// have to be finished.
pub(crate) struct DiscardedPart {
    room: Box<[u8; MIN_END + HashedOutput::LEN]>,
    /// Bytes of the last part.
    len: usize,
}

impl Default for DiscardedPart {
    fn default() -> Self {
        Self { room: Box::new([0; MIN_END + HashedOutput::LEN]), len: 0 }
    }
}

impl DiscardedPart {
    /// The next part, of `len` bytes.
    fn next(&mut self, len: usize) -> &mut [u8] {
        self.room.copy_within(self.len..self.len + MIN_END, 0);
        self.len = len;
        &mut self.room[MIN_END..MIN_END + len]
    }

    /// The end of a content of `len` bytes.
    fn end(&self, len: usize) -> &[u8] {
        let end = &self.room[..MIN_END + self.len];
        &end[end.len().saturating_sub(len)..]
    }
}

/// Room for one part, and before it for less than a cache line of the previous part.
pub(crate) struct StagingBuffer(Box<Room>);

#[repr(align(64))]
struct Room([u8; CACHE_LINE + HashedOutput::LEN]);

impl Default for StagingBuffer {
    fn default() -> Self {
        Self(Box::new(Room([0; CACHE_LINE + HashedOutput::LEN])))
    }
}

impl<'a> HashedOutput<'a> {
    /// Bytes of every part but the last: they and their sources fit the first-level cache.
    /// (structural: a quarter of a first-level cache)
    pub(crate) const LEN: usize = 8 << 10;
    /// Bytes of the shortest part. (structural)
    pub(crate) const LEAST: usize = xxh3::HASH_BLOCK;

    pub(crate) fn new(out: &'a mut [u8], large: bool, part: &'a mut StagingBuffer) -> Self {
        let (len, hasher) = (out.len(), Some(Hasher::new(out.len())));
        Self {
            out,
            len,
            done: 0,
            staging: large.then_some(part),
            carried: 0,
            discarded: None,
            hasher,
            source: None,
        }
    }

    /// Bytes that were verified before: they are not hashed again.
    pub(crate) fn verified(out: &'a mut [u8]) -> Self {
        let len = out.len();
        Self { out, len, done: 0, staging: None, carried: 0, discarded: None, hasher: None, source: None }
    }

    /// `len` bytes that are hashed and not kept.
    pub(crate) fn discarded(len: usize, part: &'a mut DiscardedPart) -> Self {
        part.len = 0;
        let (discarded, hasher) = (Some(part), Some(Hasher::new(len)));
        Self { out: &mut [], len, done: 0, staging: None, carried: 0, discarded, hasher, source: None }
    }

    /// Prefetches `source`, which parts are made from, byte by byte; `None`: it is in the memory of the output.
    pub(crate) fn made_from(mut self, source: Option<&[u8]>) -> Self {
        self.source = Some(source.map_or(self.out.as_ptr(), <[u8]>::as_ptr));
        self
    }

    /// Bytes of all parts.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The memory that parts are produced in, unless they are staged, to prefetch it. Its ends are
    /// written first, since untouched pages cannot be prefetched.
    pub(crate) fn touched(&mut self) -> &[u8] {
        if self.staging.is_some() {
            return &[];
        }
        for end in [0, self.out.len().saturating_sub(1)] {
            if let Some(byte) = self.out.get_mut(end) {
                *std::hint::black_box(byte) = 0;
            }
        }
        self.out
    }

    /// Bytes still to produce.
    pub(crate) fn left(&self) -> usize {
        self.len - self.done
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done == self.len
    }

    /// Merges a prefix of the next `len` bytes with the fused kernel; returns the number of bytes.
    pub(crate) fn merge(
        &mut self,
        len: usize,
        fields: Fields,
        from: &MergeSource<'_>,
        patches: &mut dyn OutlierPatcher,
    ) -> usize {
        self.write_fused(len, |sums, out, pending| {
            bit_fields::merge_hashed(fields, from, MergeSink { patches, sums, out, pending })
        })
    }

    /// Hands the next whole blocks to a kernel that produces, hashes and stores them in one pass;
    /// returns the bytes it handled.
    pub(crate) fn write_fused(
        &mut self,
        len: usize,
        make: impl FnOnce(&mut Sums, &mut [u8], Option<&mut PartialLine>) -> usize,
    ) -> usize {
        let Self { out, done, carried, discarded: None, hasher: Some(hasher), .. } = self else { return 0 };
        let made = match &mut self.staging {
            None => hasher.update_fused(len, |sums, due| make(sums, &mut out[*done..*done + due], None)),
            Some(StagingBuffer(room)) => hasher.update_fused(len, |sums, due| {
                let start = *done - *carried;
                let out = &mut out[start..start + due];
                if !out.as_ptr().addr().is_multiple_of(CACHE_LINE) {
                    return 0;
                }
                let Some(line) = room.0.first_chunk_mut::<CACHE_LINE>() else { return 0 };
                let mut pending = PartialLine { line: *line, len: *carried };
                let made = make(sums, out, Some(&mut pending));
                *line = pending.line;
                made
            }),
        };
        self.done += made;
        made
    }

    /// Produces the next part, which has `len` bytes unless it is the last: whole blocks of the hash, and at most
    /// [`LEN`](Self::LEN). `fill` fills it.
    pub(crate) fn next_of(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<()> {
        debug_assert!(len <= Self::LEN && len.is_multiple_of(xxh3::HASH_BLOCK));
        let len = (self.len - self.done).min(len);
        let end = self.done + len;
        let last = end == self.len;
        let ahead = self.source.map(|source| source.wrapping_add(self.done + READ_AHEAD));
        let (Some(StagingBuffer(room)), Some(hasher)) = (&mut self.staging, &mut self.hasher) else {
            let out = match &mut self.discarded {
                Some(part) => part.next(len),
                None => &mut self.out[self.done..end],
            };
            fill(out)?;
            if let Some(hasher) = &mut self.hasher {
                match ahead {
                    Some(ahead) => hasher.write_ahead(out, ahead),
                    None => hasher.write(out),
                }
            }
            self.done = end;
            return Ok(());
        };
        let room = &mut room.0[..CACHE_LINE + len];
        fill(&mut room[CACHE_LINE..])?;
        // Only whole cache lines are written: a partial non-temporal store would read the line
        // first.
        let to = &mut self.out[self.done - self.carried..end];
        let from = &room[CACHE_LINE - self.carried..];
        let (to, to_lines) = to.split_at_mut(to.as_ptr().align_offset(CACHE_LINE).min(to.len()));
        let (from, from_lines) = from.split_at(to.len());
        to.copy_from_slice(from);
        let whole = to_lines.len() / CACHE_LINE * CACHE_LINE;
        let (to_lines, to_rest) = to_lines.split_at_mut(whole);
        let (from_lines, from_rest) = from_lines.split_at(whole);
        // Without a source, what is prefetched is in the first-level cache already.
        let ahead = ahead.unwrap_or(room.as_ptr());
        hasher.write_streaming(&room[CACHE_LINE..], from_lines, to_lines, ahead);
        self.done = end;
        self.carried = from_rest.len();
        if last {
            to_rest.copy_from_slice(from_rest);
        } else {
            room.copy_within(CACHE_LINE + len - self.carried.., CACHE_LINE - self.carried);
        }
        Ok(())
    }

    /// The hash of all parts; zero if they were [verified](Self::verified) before.
    pub(crate) fn finish(self) -> u64 {
        let end = match &self.discarded {
            Some(part) => part.end(self.len),
            None => &*self.out,
        };
        self.hasher.as_ref().map_or(0, |hasher| hasher.finish_by_end(end))
    }
}

impl Drop for HashedOutput<'_> {
    fn drop(&mut self) {
        streaming::store_fence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use twox_hash::XxHash3_64;

    #[test]
    fn parts_are_whole_and_hashed_wherever_they_go() {
        let lens = [
            0,
            1,
            63,
            64,
            65,
            241,
            1023,
            1024,
            1025,
            HashedOutput::LEN - 1,
            HashedOutput::LEN,
            HashedOutput::LEN + 1,
        ];
        let longer = [2 * HashedOutput::LEN, 3 * HashedOutput::LEN + 1234];
        let mut part = StagingBuffer::default();
        for (at, len) in (0..66).flat_map(|at| lens.into_iter().chain(longer).map(move |len| (at, len))) {
            let content: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
            for large in [false, true] {
                let mut memory = vec![0xa5; len + 140];
                let mut parts = HashedOutput::new(&mut memory[at..at + len], large, &mut part);
                let mut done = 0;
                while !parts.is_done() {
                    let fill = |out: &mut [u8]| {
                        out.copy_from_slice(&content[done..done + out.len()]);
                        done += out.len();
                        Ok(())
                    };
                    parts.next_of(HashedOutput::LEN, fill).unwrap();
                }
                assert_eq!(parts.finish(), XxHash3_64::oneshot(&content), "{len} bytes at {at}");
                assert_eq!(memory[at..at + len], content, "{len} bytes at {at}");
                assert!(memory[..at].iter().chain(&memory[at + len..]).all(|&byte| byte == 0xa5));
            }
        }
    }

    #[test]
    fn parts_that_are_not_kept_have_the_hash_of_the_whole() {
        let mut part = DiscardedPart::default();
        let near = |len: usize| [len.saturating_sub(1), len, len + 1];
        let lens = [1, 64, 240, 256, 1024, 8 << 10, 9 << 10, 16 << 10, (16 << 10) + 250].map(near);
        for len in lens.into_iter().flatten() {
            let content: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
            let mut parts = HashedOutput::discarded(len, &mut part);
            let mut rest = &content[..];
            while !parts.is_done() {
                parts
                    .next_of(HashedOutput::LEN, |out| {
                        let now;
                        (now, rest) = rest.split_at(out.len());
                        out.copy_from_slice(now);
                        Ok(())
                    })
                    .unwrap();
            }
            assert_eq!(parts.finish(), XxHash3_64::oneshot(&content), "{len} bytes");
            let mut memory = vec![0; len];
            let mut parts = HashedOutput::verified(&mut memory);
            let mut done = 0;
            while !parts.is_done() {
                parts
                    .next_of(HashedOutput::LEN, |out| {
                        out.copy_from_slice(&content[done..done + out.len()]);
                        done += out.len();
                        Ok(())
                    })
                    .unwrap();
            }
            parts.finish();
            assert_eq!(memory, content);
        }
    }
}
