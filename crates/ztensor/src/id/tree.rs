//! BLAKE3 of bytes that several threads have pieces of.
//!
//! BLAKE3 is a binary tree over chunks of 1 KiB. The chaining value of an aligned subtree depends
//! on its bytes and its place only, so threads hash subtrees in any order and the values are merged.

use std::sync::{Mutex, PoisonError};

use blake3::Hasher;
use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root,
};

use crate::base::parallel;
use crate::error::{Error, Result};

/// Bytes of a subtree that one thread hashes at a time. A power of two, so that every subtree
/// starts at a multiple of its length.
pub(crate) const SUBTREE: usize = 1 << 20;

/// Fewer bytes are hashed by one thread. (case: `identity.py`: two threads take as long as one for 1 to 2 MiB, which
/// starting one costs, 0.72 times for 3 MiB, 0.62 for 4 MiB, 0.55 for 8 MiB)
const HASHED_ALONE: usize = 2 << 20;

/// The hash of `len` bytes, of which subtrees arrive in any order.
pub(crate) struct Tree {
    len: u64,
    values: Mutex<Vec<Option<ChainingValue>>>,
}

impl Tree {
    /// A tree over `len` bytes; more than one [`SUBTREE`].
    pub(crate) fn new(len: u64) -> Result<Tree> {
        let count = usize::try_from(len.div_ceil(SUBTREE as u64)).ok().filter(|_| len > SUBTREE as u64);
        let count = count.ok_or_else(|| Error::limit("too many or too few bytes to hash in pieces"))?;
        let mut values = Vec::new();
        values.try_reserve_exact(count).map_err(|_| Error::limit("too many bytes to hash"))?;
        values.resize(count, None);
        Ok(Tree { len, values: Mutex::new(values) })
    }

    /// Hashes the bytes from `offset` on: whole subtrees, but for the last one of the tree.
    pub(crate) fn add(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= self.len);
        let aligned = offset.is_multiple_of(SUBTREE as u64)
            && end.is_some_and(|end| end == self.len || end.is_multiple_of(SUBTREE as u64));
        if !aligned {
            return Err(Error::invalid("bytes to hash are not whole subtrees of BLAKE3"));
        }
        for (place, piece) in (offset..).step_by(SUBTREE).zip(bytes.chunks(SUBTREE)) {
            self.set(place, subtree(place).update(piece).finalize_non_root());
        }
        Ok(())
    }

    /// A hasher of the bytes from `start` on, which is where a subtree begins.
    pub(crate) fn span(&self, start: u64) -> Span<'_> {
        Span { tree: self, place: start, hasher: subtree(start) }
    }

    fn set(&self, place: u64, value: ChainingValue) {
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = values.get_mut((place / SUBTREE as u64) as usize) {
            *slot = Some(value);
        }
    }

    /// The hash, once all bytes were added.
    pub(crate) fn hash(&self) -> Result<[u8; 32]> {
        let values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let values: Option<Vec<ChainingValue>> = values.iter().copied().collect();
        let values = values.ok_or_else(|| Error::invalid("not all bytes were hashed"))?;
        let (left, right) = values.split_at(left_count(self.len));
        let left_len = left_subtree_len(self.len);
        let (left, right) = (merge(left, left_len), merge(right, self.len - left_len));
        Ok(*merge_subtrees_root(&left, &right, Mode::Hash).as_bytes())
    }
}

/// A hasher of the subtree that begins at `place`.
fn subtree(place: u64) -> Hasher {
    let mut hasher = Hasher::new();
    hasher.set_input_offset(place);
    hasher
}

/// Consecutive bytes of a [`Tree`], in pieces of any length.
pub(crate) struct Span<'a> {
    tree: &'a Tree,
    place: u64,
    hasher: Hasher,
}

impl Span<'_> {
    /// Hashes the next bytes. The last ones end where a subtree does, or the tree.
    pub(crate) fn update(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let start = self.place / SUBTREE as u64 * SUBTREE as u64;
            let end = (start + SUBTREE as u64).min(self.tree.len);
            let room = usize::try_from(end.saturating_sub(self.place)).unwrap_or(0);
            if room == 0 {
                return Err(Error::invalid("more bytes to hash than there are"));
            }
            let (piece, rest) = bytes.split_at(room.min(bytes.len()));
            self.hasher.update(piece);
            self.place += piece.len() as u64;
            if self.place == end {
                self.tree.set(start, self.hasher.finalize_non_root());
                if end < self.tree.len {
                    self.hasher = subtree(end);
                }
            }
            bytes = rest;
        }
        Ok(())
    }
}

/// How many subtrees the left child of a tree over `len` bytes has.
fn left_count(len: u64) -> usize {
    (left_subtree_len(len) / SUBTREE as u64) as usize
}

/// The chaining value of a tree over `len` bytes.
fn merge(values: &[ChainingValue], len: u64) -> ChainingValue {
    match values {
        [value] => *value,
        values => {
            let (left, right) = values.split_at(left_count(len));
            let left_len = left_subtree_len(len);
            merge_subtrees_non_root(&merge(left, left_len), &merge(right, len - left_len), Mode::Hash)
        }
    }
}

/// The hash of bytes in memory, on at most `threads` threads.
pub(crate) fn hash(bytes: &[u8], threads: usize) -> Result<[u8; 32]> {
    if bytes.len() < HASHED_ALONE || parallel::resolve(threads) <= 1 {
        return Ok(*blake3::hash(bytes).as_bytes());
    }
    let tree = Tree::new(bytes.len() as u64)?;
    let pieces = (0u64..).step_by(SUBTREE).zip(bytes.chunks(SUBTREE)).collect();
    parallel::for_each(threads, pieces, |(offset, piece)| tree.add(offset, piece))?;
    tree.hash()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|n| (n.wrapping_mul(2654435761) >> 13) as u8).collect()
    }

    #[test]
    fn pieces_hash_as_the_whole_does() {
        const ALONE: usize = HASHED_ALONE / SUBTREE;
        for subtrees in [0, 1, 2, ALONE - 1, ALONE, ALONE + 1, ALONE + 3, 2 * ALONE] {
            for more in [0, 1, 1023, 1024, 1025, SUBTREE - 1] {
                let bytes = bytes(subtrees * SUBTREE + more);
                for threads in [1, 2, 5] {
                    assert_eq!(hash(&bytes, threads).unwrap(), *blake3::hash(&bytes).as_bytes());
                }
            }
        }
    }

    #[test]
    fn the_order_of_pieces_does_not_matter_but_all_must_come() {
        let bytes = bytes(6 * SUBTREE + 77);
        let tree = Tree::new(bytes.len() as u64).unwrap();
        for index in [6usize, 0, 3] {
            let piece = &bytes[index * SUBTREE..bytes.len().min((index + 1) * SUBTREE)];
            tree.add((index * SUBTREE) as u64, piece).unwrap();
        }
        tree.add(SUBTREE as u64, &bytes[SUBTREE..3 * SUBTREE]).unwrap();
        for (offset, piece) in [(0, &bytes[..5]), (5, &bytes[..SUBTREE]), (7 << 20, &bytes[..1])] {
            assert!(tree.add(offset, piece).is_err());
        }
        tree.add(4 * SUBTREE as u64, &bytes[4 * SUBTREE..6 * SUBTREE]).unwrap();
        assert_eq!(tree.hash().unwrap(), *blake3::hash(&bytes).as_bytes());
        assert!(Tree::new(2 * SUBTREE as u64).unwrap().hash().is_err());
        let tree = Tree::new(bytes.len() as u64).unwrap();
        for (start, step) in [(4 * SUBTREE, 1000), (0, 248 << 10)] {
            let mut span = tree.span(start as u64);
            let end = if start == 0 { 4 * SUBTREE } else { bytes.len() };
            bytes[start..end].chunks(step).for_each(|piece| span.update(piece).unwrap());
        }
        assert!(tree.span(6 * SUBTREE as u64).update(&bytes[..78]).is_err());
        assert_eq!(tree.hash().unwrap(), *blake3::hash(&bytes).as_bytes());
        assert!(Tree::new(SUBTREE as u64).is_err());
    }
}
