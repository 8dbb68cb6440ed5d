//! Finding what a buffer repeats, at any distance and any offset.
//!
//! The first bytes of every block go into a table. A repeat that is longer than two blocks holds a
//! whole block of what it repeats, wherever it starts: so every position is looked up, and one
//! that is found is compared and extended in both directions. Looking up all positions is slow;
//! data without long repeats is ruled out by looking at the positions of a few blocks only.

use crate::copies::{Copy, MAX_COPY};
use crate::kernel::copy;
use crate::kernel::filter::{Filter, hash};

/// Bytes between the places in the table.
const BLOCK: usize = 4096;
/// Blocks of which one is looked at first, where there are few and where there are many.
const SPARSELY: usize = 32;
const MORE_SPARSELY: usize = 128;
/// So many blocks are looked at before it is more sparsely.
const LOOKED_AT: usize = 16;
/// Bytes of a block that are compared before anything else.
const KEY: usize = 32;
/// Blocks that are fetched before they are looked at.
const FETCHED_AHEAD: usize = 12;
/// Bytes of a copy, at least.
const MIN_COPY: usize = BLOCK;

/// What `data`, in elements of `size` bytes, repeats of itself: in the order of the content, copied
/// parts in whole elements.
pub(super) fn find(data: &[u8], size: usize) -> Vec<Copy> {
    if data.len() < 4 * BLOCK {
        return Vec::new();
    }
    let table = Table::new(data);
    if !table.looks_promising() {
        return Vec::new();
    }
    let mut found = Found { data, size, whole: data.len() / size * size, copies: Vec::new(), end: 0 };
    let mut at = 0;
    while at + KEY <= found.whole {
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

/// The literals of `data`: all that is not copied. `None` if a copy is not what it should be, as
/// may happen when the data changes meanwhile.
pub(super) fn literals(data: &[u8], copies: &[Copy]) -> Option<Vec<u8>> {
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
    /// How far hashes are shifted for the slots.
    shift: u32,
}

fn word(data: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&data[at..at + 8]);
    u64::from_le_bytes(bytes)
}

impl<'a> Table<'a> {
    fn new(data: &'a [u8]) -> Self {
        let blocks = (data.len() - KEY) / BLOCK + 1;
        let bits = blocks.next_power_of_two().ilog2();
        let mut table = Self {
            data,
            filter: Filter::new((bits + 5).max(12)),
            slots: vec![(0, 0); 1 << (bits + 1)],
            shift: 64 - (bits + 1),
        };
        for block in 0..blocks.min(u32::MAX as usize - 1) {
            // No block is where the machine would expect it.
            copy::fetch(data.as_ptr().wrapping_add((block + FETCHED_AHEAD) * BLOCK), false);
            table.insert(block);
        }
        table
    }

    fn insert(&mut self, block: usize) {
        let at = block * BLOCK;
        let first = word(self.data, at);
        // Constant parts repeat themselves everywhere.
        if (8..KEY).step_by(8).all(|offset| word(self.data, at + offset) == first) {
            return;
        }
        let hash = hash(first);
        let slot = &mut self.slots[(hash >> self.shift) as usize];
        if slot.0 == 0 {
            *slot = (block as u32 + 1, hash as u32);
            self.filter.insert(hash);
        }
    }

    /// A place that starts like `at`, if there is one in the table.
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
        let block = (block as usize).checked_sub(1)? * BLOCK;
        (self.data.get(at..at + KEY)? == &self.data[block..block + KEY]).then_some(block)
    }

    /// Whether one block of many has a repeat in it.
    fn looks_promising(&self) -> bool {
        let blocks = self.data.len() / BLOCK - 1;
        let sparsely = (blocks / LOOKED_AT).clamp(SPARSELY, MORE_SPARSELY);
        (0..blocks).step_by(sparsely).any(|block| {
            let start = block * BLOCK;
            // All eight bytes from each place of the block on.
            let bytes = &self.data[start..start + BLOCK + 7];
            self.filter.any(bytes, |place, hash| self.repeats(start + place, hash))
        })
    }

    /// Whether what starts at `at` is long enough a repeat.
    #[inline(never)]
    fn repeats(&self, at: usize, hash: u64) -> bool {
        self.compare(at, hash).is_some_and(|block| {
            let end = (at.max(block) + MIN_COPY / 2).min(self.data.len()) - at.max(block);
            at.abs_diff(block) >= MIN_COPY && self.data[at..at + end] == self.data[block..block + end]
        })
    }
}

/// The copies found so far; their sources are places in the content.
struct Found<'a> {
    data: &'a [u8],
    size: usize,
    /// Bytes of whole elements.
    whole: usize,
    copies: Vec<Copy>,
    /// The end of the last copy.
    end: usize,
}

impl Found<'_> {
    /// Makes as long a copy as there is around `at`, which starts like `source`, an earlier place.
    fn extend(&mut self, source: usize, at: usize) -> bool {
        let source = self.original(source);
        let distance = at - source;
        let (gap_start, gap_end) = self.gap(source);
        let room = (source - gap_start).min(at - self.end);
        let before = common_suffix(&self.data[source - room..source], &self.data[at - room..at]);
        let (source, at) = (source - before, at - before);
        // A source ends before the copy begins, and in the literals that it begins in.
        let room = (gap_end - source).min(distance).min(self.whole - at).min(MAX_COPY as usize);
        let len = common_prefix(&self.data[source..source + room], &self.data[at..at + room]);
        let start = at.next_multiple_of(self.size);
        let end = (at + len) / self.size * self.size;
        if end < start + MIN_COPY {
            return false;
        }
        let source = (source + (start - at)) as u64;
        self.copies.push(Copy { at: start as u64, source, len: (end - start) as u64 });
        self.end = end;
        true
    }

    /// What the byte at `place` is a copy of, or `place` itself.
    fn original(&self, place: usize) -> usize {
        let before = self.copies.partition_point(|copy| copy.at <= place as u64);
        match self.copies[..before].last() {
            Some(copy) if (place as u64) < copy.at + copy.len => {
                (copy.source + (place as u64 - copy.at)) as usize
            }
            _ => place,
        }
    }

    /// The literals around `place`, which is one.
    fn gap(&self, place: usize) -> (usize, usize) {
        let before = self.copies.partition_point(|copy| copy.at <= place as u64);
        let start = self.copies[..before].last().map_or(0, |copy| copy.at + copy.len);
        let end = self.copies.get(before).map_or(self.whole as u64, |copy| copy.at);
        (start as usize, end as usize)
    }

    /// The copies with their sources as places in the literals.
    fn into_literal(self) -> Vec<Copy> {
        // Sources lie between two copies, and move by all that is copied before them.
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
    const STEP: usize = 64;
    let steps = a.chunks_exact(STEP).zip(b.chunks_exact(STEP));
    let same = steps.take_while(|(a, b)| a == b).count() * STEP;
    same + a[same..].iter().zip(&b[same..]).take_while(|(a, b)| a == b).count()
}

fn common_suffix(a: &[u8], b: &[u8]) -> usize {
    const STEP: usize = 64;
    let steps = a.rchunks_exact(STEP).zip(b.rchunks_exact(STEP));
    let same = steps.take_while(|(a, b)| a == b).count() * STEP;
    let (a, b) = (&a[..a.len() - same], &b[..b.len() - same]);
    same + a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count()
}
