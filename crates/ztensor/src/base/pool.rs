//! Pools: buffers and other state that is reused.
//!
//! New memory is zeroed by the system, page by page, when it is first touched; for frames that are
//! only read to be decoded that takes as long as decoding them.

use std::sync::{Mutex, PoisonError};

use crate::base::huge_pages::zeroed_vec;
use crate::error::Result;

/// Buffers that are kept, at most: a few for each thread. (limit)
const COUNT: usize = 64;
/// Bytes that are kept, at most. (limit)
const KEPT_BYTES: usize = 256 << 20;
/// Longer ones are given back. (limit)
const LONGEST: usize = 64 << 20;

/// Free buffers, kept for reuse.
#[derive(Debug, Default)]
pub(crate) struct BufferPool(Mutex<Vec<Vec<u8>>>);

impl BufferPool {
    /// A buffer of at least `len` bytes, whatever they are: the shortest that is long enough.
    pub(crate) fn take(&self, len: u64) -> Result<Vec<u8>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match kept.iter().position(|buffer| buffer.len() as u64 >= len) {
            Some(index) => Ok(kept.remove(index)),
            None => {
                // It takes the place of the longest one that is too short.
                kept.pop();
                drop(kept);
                zeroed_vec(len)
            }
        }
    }

    pub(crate) fn put(&self, buffer: Vec<u8>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = KEPT_BYTES - kept.iter().map(Vec::len).sum::<usize>().min(KEPT_BYTES);
        if buffer.len() <= LONGEST.min(room) && kept.len() < COUNT {
            let index = kept.partition_point(|other| other.len() < buffer.len());
            kept.insert(index, buffer);
        }
    }
}

/// Free items of any type: contexts, scratch, buffers that grow.
pub(crate) struct FreeList<T>(Mutex<Vec<T>>);

impl<T> Default for FreeList<T> {
    fn default() -> Self {
        FreeList(Mutex::default())
    }
}

impl<T> FreeList<T> {
    /// An item that was put back, if there is one.
    pub(crate) fn take(&self) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    pub(crate) fn put(&self, item: T) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_that_is_long_enough() {
        let pool = BufferPool::default();
        for len in [300, 100, 200] {
            pool.put(vec![1; len]);
        }
        assert_eq!(pool.take(150).unwrap().len(), 200);
        assert_eq!(pool.take(150).unwrap().len(), 300);
        assert_eq!(pool.take(150).unwrap(), [0; 150], "new");
        assert!(pool.0.into_inner().unwrap().is_empty(), "the one of 100 made room");
    }

    #[test]
    fn few_are_kept_and_none_that_are_long() {
        let pool = BufferPool::default();
        pool.put(vec![0; LONGEST + 1]);
        (0..2 * COUNT).for_each(|_| pool.put(vec![0; 10]));
        assert_eq!(pool.0.into_inner().unwrap().len(), COUNT);
        let pool = BufferPool::default();
        (0..COUNT).for_each(|_| pool.put(vec![0; LONGEST]));
        assert_eq!(pool.0.into_inner().unwrap().len(), KEPT_BYTES / LONGEST);
    }
}
