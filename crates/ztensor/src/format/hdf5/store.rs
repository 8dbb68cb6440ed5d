//! The file as the index structures' parser wants to read it: ranges that are
//! checked before they are allocated, and a budget, so that structures which
//! overlap or repeat cannot multiply the work.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use hdf5_reader::storage::{Storage, StorageBuffer};

use crate::error::{Error, Result};
use crate::source::{AFTER_JUMP, FAR_JUMP, Source};

/// Blocks in which a source that is not mapped is fetched, and how many are kept.
const METADATA_BLOCK: u64 = 32 << 10;
const METADATA_BLOCKS: usize = 8;

/// Parsing may read this many times the size of the file, and this much more.
/// Files of the usual libraries are read about twice.
const READ_BUDGET: (u64, u64) = (8, 8 << 20);

/// Bytes that may still be read of a file's structures: one number for everything that is parsed of
/// it, when it is opened and later.
pub(super) type Budget = Arc<AtomicU64>;

/// An HDF5 file: all of a source, or a part of it. Addresses count from its start.
pub(super) struct Store {
    source: Arc<Mapped>,
    range: Range<u64>,
    budget: Budget,
    blocks: Mutex<Vec<(u64, Arc<[u8]>)>>,
    /// Where it was read last.
    last: AtomicU64,
}

/// All bytes of a source, if it is mapped.
struct Mapped(Arc<dyn Source>);

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        self.0.mapped().unwrap_or(&[])
    }
}

impl Store {
    pub(super) fn new(source: Arc<dyn Source>, range: Range<u64>) -> Store {
        let (factor, extra) = READ_BUDGET;
        let budget = AtomicU64::new(source.len().saturating_mul(factor).saturating_add(extra));
        Store::with_budget(source, range, Arc::new(budget))
    }

    /// A part of a source whose reads are charged to a budget that others charge too.
    pub(super) fn with_budget(source: Arc<dyn Source>, range: Range<u64>, budget: Budget) -> Store {
        let range = range.start..range.end.min(source.len());
        Store {
            source: Arc::new(Mapped(source)),
            range,
            budget,
            blocks: Mutex::new(Vec::new()),
            last: AtomicU64::new(0),
        }
    }

    /// What may still be read.
    pub(super) fn budget(&self) -> Budget {
        self.budget.clone()
    }

    /// Where in the source it is.
    pub(super) fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// The range of the source that an address and a length name, if it is inside.
    pub(super) fn locate(&self, address: u64, len: u64) -> Result<u64> {
        let start = self.range.start.checked_add(address);
        let inside = |start: &u64| start.checked_add(len).is_some_and(|end| end <= self.range.end);
        start.filter(inside).ok_or_else(|| {
            Error::corrupt(
                "hdf5.range",
                format!("bytes {address} + {len} lie outside the {} bytes there are", self.len()),
            )
        })
    }

    /// The bytes at an address.
    pub(super) fn bytes(&self, address: u64, len: u64) -> Result<StorageBuffer> {
        self.locate(address, len)?;
        self.read(address, len as usize) // it is inside the source, so it fits
    }

    fn read(&self, offset: u64, len: usize) -> Result<StorageBuffer> {
        let position = self.locate(offset, len as u64)?;
        let spent = self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            // Even an empty read costs something.
            left.checked_sub(len as u64 + 16)
        });
        if spent.is_err() {
            return Err(Error::corrupt(
                "hdf5.budget",
                "its structures overlap or repeat: they take many times the file to read",
            ));
        }
        if self.source.0.is_mapped() {
            let last = self.last.swap(position, Ordering::Relaxed);
            if position.abs_diff(last) >= FAR_JUMP {
                let ahead = AFTER_JUMP.min(self.range.end - position);
                self.source.0.will_read(&[(position, ahead)]);
            }
            let start = position as usize; // inside the mapping, as was checked
            return StorageBuffer::from_shared_owner(self.source.clone(), start, len).map_err(structure);
        }
        let block = position / METADATA_BLOCK * METADATA_BLOCK;
        if position + len as u64 > block + METADATA_BLOCK {
            return Ok(StorageBuffer::from_vec(self.source.0.bytes(position, len as u64)?.into_owned()));
        }
        let shared = self.block(block)?;
        StorageBuffer::from_shared(shared, (position - block) as usize, len).map_err(structure)
    }

    fn block(&self, start: u64) -> Result<Arc<[u8]>> {
        let mut blocks = self.blocks.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some((_, block)) = blocks.iter().find(|(at, _)| *at == start) {
            return Ok(block.clone());
        }
        let len = METADATA_BLOCK.min(self.source.0.len() - start);
        let block: Arc<[u8]> = self.source.0.bytes(start, len)?.into();
        if blocks.len() == METADATA_BLOCKS {
            blocks.remove(0);
        }
        blocks.push((start, block.clone()));
        Ok(block)
    }
}

impl Storage for Store {
    fn len(&self) -> u64 {
        self.range.end.saturating_sub(self.range.start)
    }

    fn read_range(&self, offset: u64, len: usize) -> hdf5_reader::error::Result<StorageBuffer> {
        self.read(offset, len).map_err(|error| hdf5_reader::error::Error::InvalidData(error.to_string()))
    }
}

/// What the parser of index structures says, as an error of ours.
pub(super) fn structure(error: hdf5_reader::error::Error) -> Error {
    Error::corrupt("hdf5.structure", error.to_string())
}
