//! The range layout: integers as their distance from the smallest, a byte plane each.
//!
//! Payload: the planes, lowest first.

use crate::coder::Coder;
use crate::element::Kind;
use crate::error::{Error, Result};
use crate::kernel::difference;
use crate::kernel::sparse::{for_bytes, load};
use crate::layout::ChunkScratch;
use crate::layout::split::decode_stream;
use crate::layout::streams::{self, Streams};
use crate::wire::Reader;

/// The description of a chunk of integers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RangeLayout {
    /// What distances are counted from.
    pub(crate) base: u64,
    /// As many as an element has bytes, lowest first.
    pub(crate) planes: Vec<Coder>,
}

impl RangeLayout {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.base.to_le_bytes()[..self.planes.len()]);
        self.planes.iter().for_each(|plane| plane.write(out));
    }

    pub(crate) fn read(reader: &mut Reader<'_>, kind: Kind, len: usize) -> Result<Self> {
        let size = kind.size();
        if kind.is_float() || size == 1 || !len.is_multiple_of(size) {
            return Err(Error::corrupt(format_args!("a range of {} elements", kind.name())));
        }
        let base = load(reader.take(size)?);
        let planes = (0..size).map(|_| Coder::read(reader)).collect::<Result<_>>()?;
        Ok(Self { base, planes })
    }

    pub(crate) fn payload_len(&self, len: usize) -> u64 {
        let count = len / self.planes.len();
        self.planes.iter().map(|plane| plane.stored_len(count)).sum()
    }

    pub(crate) fn streams(&self, len: usize, streams: &mut Streams) {
        for (byte, coder) in self.planes.iter().enumerate() {
            streams.add(streams::plane(byte), coder, len / self.planes.len());
        }
    }

    pub(crate) fn decode(&self, payload: &[u8], out: &mut [u8], scratch: &mut ChunkScratch) -> Result<()> {
        let size = self.planes.len();
        let mut payload = Reader::new(payload);
        out.fill(0);
        let buffers = scratch.planes.iter_mut();
        for (byte, (coder, buffer)) in self.planes.iter().zip(buffers).enumerate() {
            if *coder == Coder::Constant(0) {
                continue;
            }
            let plane = decode_stream(coder, &mut payload, out.len() / size, buffer, &mut scratch.coder)?;
            difference::put_plane(size, plane, byte, out);
        }
        for_bytes!(size, shift(out, self.base));
        Ok(())
    }
}

/// Adds `by` to every element, modulo its range.
pub(crate) fn shift<const SIZE: usize>(elements: &mut [u8], by: u64) {
    for element in elements.as_chunks_mut::<SIZE>().0 {
        let moved = load(element).wrapping_add(by).to_le_bytes();
        element.copy_from_slice(&moved[..SIZE]);
    }
}
