//! The match finder: long-range matches at any distance and offset.
//!
//! The first bytes of every block go into a hash table. A match that is longer than two blocks
//! contains a whole block of its source, wherever it starts: so every position is looked up, and a
//! hit is compared and extended in both directions. Looking up all positions is slow; data without
//! long matches is ruled out by the positions of a few sampled blocks.

use crate::frame::matches::{MAX_MATCH, Match};
use crate::kernel::bloom::{Filter, hash};
use crate::simd::prefetch::{Hint, prefetch};

/// Bytes between the positions in the table. (flat)
const TABLE_STRIDE: usize = 4096;
/// The stride of sampled blocks, for short and for long data. (case: `codec.py`, compress against
/// `dense`)
const MIN_STRIDE: usize = 32;
const MAX_STRIDE: usize = 128;
/// Sampled blocks before the stride grows. (flat)
const MIN_SAMPLED_BLOCKS: usize = 16;
/// Bytes of a block that are compared first. (structural: half a cache line)
const KEY_LEN: usize = 32;
/// Prefetch distance, in blocks. (flat)
const PREFETCH_BLOCKS: usize = 12;
/// Bytes of a match, at least.
/// (structural: every match of twice this length covers a position of the table)
const MIN_MATCH: usize = TABLE_STRIDE;

/// The matches in `data`, in elements of `size` bytes: in the order of the content, of whole
/// elements.
pub(crate) fn find(data: &[u8], size: usize) -> Vec<Match> {
    if data.len() < 4 * TABLE_STRIDE {
        return Vec::new();
    }
    let table = Table::new(data);
    if !table.looks_promising() {
        return Vec::new();
    }
    let mut found = Found { data, size, whole: data.len() / size * size, copies: Vec::new(), end: 0 };
    let mut at = 0;
    while at + KEY_LEN <= found.whole {
        if let Some(block) = table.look_up(at)
            && block < at
            && found.extend(block, at)
        {
            at = found.end;
        } else {
            at += 1;
        }
    }
    found.into_literal()
}

/// The literals of `data`: all bytes outside matches. `None` if a match is no longer true, as may
/// happen when another thread changes the data.
pub(crate) fn literals(data: &[u8], copies: &[Match]) -> Option<Vec<u8>> {
    let copied: u64 = copies.iter().map(|copy| copy.len).sum();
    let mut literals = Vec::with_capacity(data.len() - copied as usize);
    let mut at = 0;
    for copy in copies {
        literals.extend_from_slice(&data[at..copy.at as usize]);
        at = (copy.at + copy.len) as usize;
    }
    literals.extend_from_slice(&data[at..]);
    let same = copies.iter().all(|copy| {
        let source = copy.source as usize..(copy.source + copy.len) as usize;
        literals[source] == data[copy.at as usize..(copy.at + copy.len) as usize]
    });
    same.then_some(literals)
}

/// The first bytes of blocks.
struct Table<'a> {
    data: &'a [u8],
    /// The hashes of all that is in the slots.
    filter: Filter,
    /// Numbers of blocks, plus one, and the lowest bits of their hashes.
    slots: Vec<(u32, u32)>,
    /// The right shift from a hash to a slot.
    shift: u32,
}

fn word(data: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&data[at..at + 8]);
    u64::from_le_bytes(bytes)
}

impl<'a> Table<'a> {
    fn new(data: &'a [u8]) -> Self {
        let blocks = (data.len() - KEY_LEN) / TABLE_STRIDE + 1;
        let bits = blocks.next_power_of_two().ilog2();
        let mut table = Self {
            data,
            filter: Filter::new((bits + 5).max(12)),
            slots: vec![(0, 0); 1 << (bits + 1)],
            shift: 64 - (bits + 1),
        };
        for block in 0..blocks.min(u32::MAX as usize - 1) {
            // Hardware prefetchers do not follow this stride.
            prefetch(data.as_ptr().wrapping_add((block + PREFETCH_BLOCKS) * TABLE_STRIDE), Hint::L2);
            table.insert(block);
        }
        table
    }

    fn insert(&mut self, block: usize) {
        let at = block * TABLE_STRIDE;
        let first = word(self.data, at);
        // Constant parts repeat themselves everywhere.
        if (8..KEY_LEN).step_by(8).all(|offset| word(self.data, at + offset) == first) {
            return;
        }
        let hash = hash(first);
        let slot = &mut self.slots[(hash >> self.shift) as usize];
        if slot.0 == 0 {
            *slot = (block as u32 + 1, hash as u32);
            self.filter.insert(hash);
        }
    }

    /// A block that starts like the bytes at `at`, if there is one in the table.
    #[inline(always)]
    fn look_up(&self, at: usize) -> Option<usize> {
        let hash = hash(word(self.data, at));
        if self.filter.may_have(hash) { self.compare(at, hash) } else { None }
    }

    #[inline(never)]
    fn compare(&self, at: usize, hash: u64) -> Option<usize> {
        let (block, low) = self.slots[(hash >> self.shift) as usize];
        if low != hash as u32 {
            return None;
        }
        let block = (block as usize).checked_sub(1)? * TABLE_STRIDE;
        (self.data.get(at..at + KEY_LEN)? == &self.data[block..block + KEY_LEN]).then_some(block)
    }

    /// Whether any sampled block has a match.
    fn looks_promising(&self) -> bool {
        let blocks = self.data.len() / TABLE_STRIDE - 1;
        let sparsely = (blocks / MIN_SAMPLED_BLOCKS).clamp(MIN_STRIDE, MAX_STRIDE);
        (0..blocks).step_by(sparsely).any(|block| {
            let start = block * TABLE_STRIDE;
            // The eight bytes at each position of the block.
            let bytes = &self.data[start..start + TABLE_STRIDE + 7];
            self.filter.any(bytes, |place, hash| self.repeats(start + place, hash))
        })
    }

    /// Whether the match at `at` is long enough.
    #[inline(never)]
    fn repeats(&self, at: usize, hash: u64) -> bool {
        self.compare(at, hash).is_some_and(|block| {
            let end = (at.max(block) + MIN_MATCH / 2).min(self.data.len()) - at.max(block);
            at.abs_diff(block) >= MIN_MATCH && self.data[at..at + end] == self.data[block..block + end]
        })
    }
}

/// The matches found so far; their sources are positions in the content.
struct Found<'a> {
    data: &'a [u8],
    size: usize,
    /// Bytes of whole elements.
    whole: usize,
    copies: Vec<Match>,
    /// The end of the last match.
    end: usize,
}

impl Found<'_> {
    /// Extends the match at `at`, which starts like `source`, an earlier position, in both
    /// directions.
    fn extend(&mut self, source: usize, at: usize) -> bool {
        let source = self.original(source);
        let distance = at - source;
        let (gap_start, gap_end) = self.gap(source);
        let room = (source - gap_start).min(at - self.end);
        let before = common_suffix(&self.data[source - room..source], &self.data[at - room..at]);
        let (source, at) = (source - before, at - before);
        // A source ends before its match begins, and within the literals that it begins in.
        let room = (gap_end - source).min(distance).min(self.whole - at).min(MAX_MATCH as usize);
        let len = common_prefix(&self.data[source..source + room], &self.data[at..at + room]);
        let start = at.next_multiple_of(self.size);
        let end = (at + len) / self.size * self.size;
        if end < start + MIN_MATCH {
            return false;
        }
        let source = (source + (start - at)) as u64;
        self.copies.push(Match { at: start as u64, source, len: (end - start) as u64 });
        self.end = end;
        true
    }

    /// The source of the byte at `place` if it is in a match, or `place` itself.
    fn original(&self, place: usize) -> usize {
        let before = self.copies.partition_point(|copy| copy.at <= place as u64);
        match self.copies[..before].last() {
            Some(copy) if (place as u64) < copy.at + copy.len => {
                (copy.source + (place as u64 - copy.at)) as usize
            }
            _ => place,
        }
    }

    /// The literals around `place`, which is one of them.
    fn gap(&self, place: usize) -> (usize, usize) {
        let before = self.copies.partition_point(|copy| copy.at <= place as u64);
        let start = self.copies[..before].last().map_or(0, |copy| copy.at + copy.len);
        let end = self.copies.get(before).map_or(self.whole as u64, |copy| copy.at);
        (start as usize, end as usize)
    }

    /// The matches with their sources as positions in the literals.
    fn into_literal(self) -> Vec<Match> {
        // Sources lie between two matches, and are shifted by all matches before them.
        let mut ends: Vec<(u64, u64)> = Vec::with_capacity(self.copies.len() + 1);
        ends.push((0, 0));
        for copy in &self.copies {
            let copied = ends.last().map_or(0, |last| last.1) + copy.len;
            ends.push((copy.at + copy.len, copied));
        }
        let mut copies = self.copies;
        for copy in &mut copies {
            let before = ends.partition_point(|&(end, _)| end <= copy.source);
            copy.source -= ends[before - 1].1;
        }
        copies
    }
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    /// Bytes compared at a time. (structural: a cache line)
    const STEP: usize = 64;
    let steps = a.chunks_exact(STEP).zip(b.chunks_exact(STEP));
    let same = steps.take_while(|(a, b)| a == b).count() * STEP;
    same + a[same..].iter().zip(&b[same..]).take_while(|(a, b)| a == b).count()
}

fn common_suffix(a: &[u8], b: &[u8]) -> usize {
    /// Bytes compared at a time. (structural: a cache line)
    const STEP: usize = 64;
    let steps = a.rchunks_exact(STEP).zip(b.rchunks_exact(STEP));
    let same = steps.take_while(|(a, b)| a == b).count() * STEP;
    let (a, b) = (&a[..a.len() - same], &b[..b.len() - same]);
    same + a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count()
}
