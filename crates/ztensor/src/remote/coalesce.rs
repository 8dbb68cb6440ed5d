//! Which requests to make for the bytes that are wanted.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::error::{Error, Result};

/// Bytes between two wanted ranges that are cheaper to receive than a second request. (case:
/// `constants.py`, `far_sparse`: half takes 1.5 times as long, twice the same)
const MAX_GAP: u64 = 256 << 10;
/// No request is for more, so that many share a large tensor. (unmeasured)
const MAX_REQUEST: u64 = 8 << 20;
/// Requests for less than this take longer to make than to answer. (unmeasured)
const MIN_REQUEST: u64 = 1 << 20;
/// What the cache keeps its files by. (format)
pub(super) const CACHED_BLOCK: u64 = 4 << 20;

/// One request, and where its bytes go.
#[derive(Debug)]
pub(super) struct Span<'a> {
    range: Range<u64>,
    /// Where the next byte that arrives belongs.
    at: u64,
    /// By position, without overlaps.
    parts: Vec<(u64, &'a mut [u8])>,
    /// The first part that is not full.
    next: usize,
}

/// Where the next bytes of a request belong.
pub(super) enum Place<'s> {
    /// Into this memory.
    Wanted(&'s mut [u8]),
    /// Discarded: bytes of a gap between two requested ranges.
    Between(usize),
    /// There are no more.
    Done,
}

impl<'a> Span<'a> {
    pub(super) fn new(range: Range<u64>, parts: Vec<(u64, &'a mut [u8])>) -> Span<'a> {
        Span { at: range.start, range, parts, next: 0 }
    }

    /// What has not arrived yet.
    pub(super) fn missing(&self) -> Range<u64> {
        self.at..self.range.end
    }

    pub(super) fn is_done(&self) -> bool {
        self.at == self.range.end
    }

    /// Requested bytes; the others are gaps.
    pub(super) fn wanted(&self) -> u64 {
        self.parts.iter().map(|(_, out)| out.len() as u64).sum()
    }

    /// Where the next bytes belong.
    pub(super) fn place(&mut self) -> Place<'_> {
        while let Some((offset, out)) = self.parts.get(self.next)
            && *offset + out.len() as u64 <= self.at
        {
            self.next += 1;
        }
        let missing = (self.range.end - self.at) as usize;
        match self.parts.get_mut(self.next) {
            Some((offset, out)) if *offset <= self.at => {
                Place::Wanted(&mut out[(self.at - *offset) as usize..])
            }
            Some((offset, _)) => Place::Between((*offset - self.at) as usize),
            None if missing == 0 => Place::Done,
            None => Place::Between(missing),
        }
    }

    /// The next `len` bytes were received into their destination.
    pub(super) fn advance(&mut self, len: usize) {
        self.at += len as u64;
        debug_assert!(self.at <= self.range.end, "no place is longer than what is missing");
    }

    /// Puts the next bytes where they belong.
    pub(super) fn take(&mut self, mut chunk: &[u8]) -> Result<()> {
        if chunk.len() as u64 > self.range.end - self.at {
            return Err(Error::corrupt("remote.range", "the server sends more than was asked for"));
        }
        while !chunk.is_empty() {
            let len = match self.place() {
                Place::Wanted(out) => {
                    let len = out.len().min(chunk.len());
                    out[..len].copy_from_slice(&chunk[..len]);
                    len
                }
                Place::Between(len) => len.min(chunk.len()),
                Place::Done => break,
            };
            self.advance(len);
            chunk = &chunk[len..];
        }
        Ok(())
    }
}

/// The requests for these buffers: sorted, close ones joined, long ones cut.
pub(super) fn coalesce_ranges(mut wanted: Vec<(u64, &mut [u8])>, connections: usize) -> Vec<Span<'_>> {
    wanted.retain(|(_, out)| !out.is_empty());
    wanted.sort_by_key(|(offset, _)| *offset);
    let total: u64 = wanted.iter().map(|(_, out)| out.len() as u64).sum();
    let most = (total / connections as u64).clamp(MIN_REQUEST, MAX_REQUEST);
    let mut spans: Vec<Span<'_>> = Vec::new();
    for (mut offset, mut out) in wanted {
        while !out.is_empty() {
            let joins = spans.last().is_some_and(|span| {
                let end = span.range.end;
                offset >= end && offset - end <= MAX_GAP && offset - span.range.start < most
            });
            let start = match spans.last() {
                Some(span) if joins => span.range.start,
                _ => offset,
            };
            let room = start + most - offset;
            let (now, later) =
                out.split_at_mut(usize::try_from(room).map_or(out.len(), |room| room.min(out.len())));
            let end = offset + now.len() as u64;
            match spans.last_mut() {
                Some(span) if joins => {
                    span.range.end = end;
                    span.parts.push((offset, now));
                }
                _ => spans.push(Span::new(offset..end, vec![(offset, now)])),
            }
            (offset, out) = (end, later);
        }
    }
    spans
}

/// One block of the cache, and what is wanted of it.
#[derive(Debug)]
pub(super) struct Block<'a> {
    pub(super) index: u64,
    pub(super) range: Range<u64>,
    parts: Vec<(u64, &'a mut [u8])>,
}

impl Block<'_> {
    pub(super) fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Copies what is wanted of the block's bytes; says how many that were.
    pub(super) fn scatter(&mut self, bytes: &[u8]) -> u64 {
        let mut copied = 0;
        for (offset, out) in &mut self.parts {
            let from = (*offset - self.range.start) as usize;
            out.copy_from_slice(&bytes[from..from + out.len()]);
            copied += out.len() as u64;
        }
        copied
    }
}

/// The blocks of an object of `len` bytes that these buffers need.
pub(super) fn blocks(wanted: Vec<(u64, &mut [u8])>, len: u64) -> Vec<Block<'_>> {
    let mut blocks: BTreeMap<u64, Block<'_>> = BTreeMap::new();
    for (mut offset, mut out) in wanted {
        while !out.is_empty() {
            let index = offset / CACHED_BLOCK;
            let range = index * CACHED_BLOCK..len.min((index + 1) * CACHED_BLOCK);
            let room = (range.end - offset) as usize;
            let (now, later) = out.split_at_mut(room.min(out.len()));
            let end = offset + now.len() as u64;
            let block = blocks.entry(index).or_insert(Block { index, range, parts: Vec::new() });
            block.parts.push((offset, now));
            (offset, out) = (end, later);
        }
    }
    blocks.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(wanted: &[(u64, usize)], connections: usize) -> (Vec<Range<u64>>, Vec<Vec<u8>>) {
        let byte = |at: u64| (at % 251) as u8;
        let mut outs: Vec<Vec<u8>> = wanted.iter().map(|(_, len)| vec![0; *len]).collect();
        let requests =
            wanted.iter().zip(&mut outs).map(|((offset, _), out)| (*offset, &mut out[..])).collect();
        let mut ranges = Vec::new();
        for mut span in coalesce_ranges(requests, connections) {
            ranges.push(span.missing());
            // Bytes come in pieces of any length.
            for (round, start) in span.missing().step_by(1000).enumerate() {
                let end = span.range.end.min(start + 1000);
                let middle = start + (round as u64 * 37) % (end - start + 1);
                for piece in [start..middle, middle..end] {
                    span.take(&piece.map(byte).collect::<Vec<u8>>()).unwrap();
                }
            }
            assert!(span.is_done());
            assert!(span.take(b"x").is_err(), "more than was asked for");
        }
        for ((offset, len), out) in wanted.iter().zip(&outs) {
            assert!(
                out.iter().enumerate().all(|(n, found)| *found == byte(offset + n as u64)),
                "{offset} {len}"
            );
        }
        (ranges, outs)
    }

    #[test]
    fn close_ranges_share_a_request_and_far_ones_do_not() {
        let (ranges, _) = filled(&[(1_000_000, 10), (0, 5), (2000, 100), (5, 0), (5, 3)], 4);
        assert_eq!(ranges, [0..2100, 1_000_000..1_000_010]);
    }

    #[test]
    fn long_ranges_are_cut_and_overlapping_ones_come_twice() {
        let (ranges, _) = filled(&[(10, 3 << 20)], 4);
        assert_eq!(ranges.len(), 3);
        assert_eq!((ranges[0].start, ranges[2].end), (10, 10 + (3 << 20)));
        assert_eq!(filled(&[(0, 100), (50, 100), (50, 100)], 1).0, [0..100, 50..150, 50..150]);
        assert!(filled(&[], 1).0.is_empty());
    }

    #[test]
    fn blocks_hold_what_is_wanted_of_them() {
        let len = 2 * CACHED_BLOCK + 100;
        let (mut a, mut b, mut c) = (vec![0; CACHED_BLOCK as usize + 2], vec![0; 5], vec![0; 100]);
        let wanted: Vec<(u64, &mut [u8])> =
            vec![(CACHED_BLOCK - 1, &mut a), (CACHED_BLOCK - 3, &mut b), (2 * CACHED_BLOCK, &mut c)];
        let found = blocks(wanted, len);
        assert_eq!(
            found.iter().map(|block| block.range.clone()).collect::<Vec<_>>(),
            [0..CACHED_BLOCK, CACHED_BLOCK..2 * CACHED_BLOCK, 2 * CACHED_BLOCK..len]
        );
        for mut block in found {
            let bytes: Vec<u8> = block.range.clone().map(|at| (at % 251) as u8).collect();
            block.scatter(&bytes);
        }
        assert!(a.iter().zip(CACHED_BLOCK - 1..).all(|(found, at)| *found == (at % 251) as u8));
        assert!(b.iter().zip(CACHED_BLOCK - 3..).all(|(found, at)| *found == (at % 251) as u8));
        assert!(c.iter().zip(2 * CACHED_BLOCK..).all(|(found, at)| *found == (at % 251) as u8));
    }
}
