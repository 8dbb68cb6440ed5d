use std::ops::Range;

use crate::catalog::{Decode, Extent, Storage};
use crate::error::Result;
use crate::source::Sources;

/// Elements stored in the other byte order.
#[derive(Debug)]
pub(crate) struct Swapped {
    inner: Storage,
    /// Bytes per number (of each part, for complex elements).
    width: usize,
    /// Length of the whole, a multiple of `width`.
    len: u64,
}

impl Swapped {
    /// `inner`, which decodes to `len` bytes, with the bytes of each `width`-byte number reversed.
    pub(crate) fn new(inner: Storage, width: usize, len: u64) -> Swapped {
        Swapped { inner, width, len }
    }
}

impl Decode for Swapped {
    fn encoding(&self) -> &str {
        match &self.inner {
            Storage::Encoded(decoder) => decoder.encoding(),
            _ => "big-endian",
        }
    }

    fn stored_len(&self) -> u64 {
        self.inner.stored_len()
    }

    fn extent(&self) -> Option<Extent> {
        self.inner.extent()
    }

    fn extents(&self, sources: &Sources) -> Result<Vec<Extent>> {
        self.inner.extents(sources)
    }

    fn work(&self, range: &Range<u64>) -> u64 {
        self.inner.work(range)
    }

    fn decode(&self, sources: &Sources, range: Range<u64>, out: &mut [u8], threads: usize) -> Result<()> {
        let width = self.width as u64;
        let whole = range.start.is_multiple_of(width) && range.end.is_multiple_of(width);
        if whole {
            self.inner.read(sources, range, out, threads)?;
            reverse(out, self.width);
            return Ok(());
        }
        // A range that cuts a number: decode the numbers it touches.
        let start = range.start / width * width;
        let end = range.end.next_multiple_of(width).min(self.len);
        let mut numbers = crate::source::zeroed(end - start)?;
        self.decode(sources, start..end, &mut numbers, threads)?;
        out.copy_from_slice(&numbers[(range.start - start) as usize..][..out.len()]);
        Ok(())
    }
}

fn reverse(bytes: &mut [u8], width: usize) {
    match width {
        2 => bytes.chunks_exact_mut(2).for_each(|n| n.swap(0, 1)),
        4 => bytes.chunks_exact_mut(4).for_each(<[u8]>::reverse),
        8 => bytes.chunks_exact_mut(8).for_each(<[u8]>::reverse),
        _ => bytes.chunks_exact_mut(width).for_each(<[u8]>::reverse),
    }
}
