//! Lazily conjugated and negated tensors: torch saves the numbers as they were
//! and a note that their signs are to be flipped.

use std::ops::Range;
use std::sync::Arc;

use super::arena::{Arena, Item, Node};
use crate::catalog::{Decode, Extent, Storage, StridedView};
use crate::error::{Error, Result};
use crate::source::Sources;

/// Torch writes two flags, and backends a few notes of their own.
const MAX_METADATA: usize = 256;

/// Which signs to flip.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Flips {
    /// Of every imaginary part.
    conjugate: bool,
    /// Of every number.
    negate: bool,
}

impl Flips {
    /// From a tensor's metadata, a dictionary of flags.
    pub(super) fn of(arena: &Arena, metadata: Item) -> Result<Flips> {
        let mut flips = Flips::default();
        let entries = match arena.node(metadata) {
            Some(Node::Dict(dict)) => &dict.entries[..],
            None if metadata == Item::None => &[],
            _ => return Err(Error::corrupt("torch.metadata", "a tensor's metadata is not a dictionary")),
        };
        // Tensors may share one dictionary, which is looked through for each of them.
        if entries.len() > MAX_METADATA {
            return Err(Error::corrupt(
                "torch.metadata",
                format!("a tensor's metadata has {} entries, more than {MAX_METADATA}", entries.len()),
            ));
        }
        for &(name, flag) in entries {
            let set = flag == Item::Bool(true);
            match arena.as_name(name) {
                Some("conj") => flips.conjugate = set,
                Some("neg") => flips.negate = set,
                // Notes of other backends do not concern the numbers.
                _ => {}
            }
        }
        Ok(flips)
    }

    /// `storage`, which holds numbers of `width` bytes, with signs flipped.
    pub(super) fn apply(self, storage: Storage, width: usize) -> Storage {
        match self == Flips::default() || width == 0 {
            true => storage,
            false => Storage::Encoded(Arc::new(Flipped { inner: storage, flips: self, width })),
        }
    }
}

#[derive(Debug)]
struct Flipped {
    inner: Storage,
    flips: Flips,
    width: usize,
}

impl Decode for Flipped {
    fn encoding(&self) -> &str {
        "conjugated"
    }

    fn stored_len(&self) -> u64 {
        self.inner.stored_len()
    }

    fn extent(&self) -> Option<Extent> {
        self.inner.extent()
    }

    fn strided_view(&self, shape: &[u64], item: usize) -> Option<StridedView> {
        let view = self.inner.strided_view(shape, item)?;
        Some(StridedView { conjugate: self.flips.conjugate, negate: self.flips.negate, ..view })
    }

    fn decode(&self, sources: &Sources, range: Range<u64>, out: &mut [u8], threads: usize) -> Result<()> {
        self.inner.read(sources, range.clone(), out, threads)?;
        let width = self.width as u64;
        // The sign is in the last byte of each little-endian number.
        let first = range.start / width;
        for number in first..range.end.div_ceil(width) {
            let sign = number * width + width - 1;
            let flip = self.flips.negate ^ (self.flips.conjugate && number % 2 == 1);
            if flip && range.contains(&sign) {
                out[(sign - range.start) as usize] ^= 0x80;
            }
        }
        Ok(())
    }
}
