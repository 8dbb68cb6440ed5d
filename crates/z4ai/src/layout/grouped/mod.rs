//! The grouped layout: rows, or other groups of elements, each with a palette of its own.
//!
//! Data quantized with one scale per row has few values in each row and many overall. Values are
//! listed from the most negative to the most positive, and indices count from the first that is not
//! negative, so that an index means about the same in every group.
//!
//! Payload: the number of values of each group, all values in an inner layout, the indices.

pub(crate) mod encode;

use crate::coder::Coder;
use crate::element::Kind;
use crate::error::{Error, Result};
use crate::kernel::sparse::for_bytes;
use crate::layout::split::decode_stream;
use crate::layout::streams::Streams;
use crate::layout::{ChunkLayout, ChunkScratch, Context};
use crate::wire::{Put, Reader};

/// Values of a group, at most. (format)
pub(crate) const MAX_VALUES: usize = 256;

/// The description of a chunk of groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grouped {
    /// Bytes per element.
    pub(crate) size: usize,
    /// Elements per group; the last may have fewer.
    pub(crate) group: u32,
    /// Values of all groups.
    pub(crate) total: u32,
    /// The number of values of each group, less one.
    pub(crate) counts: Coder,
    /// The values.
    pub(crate) values: Box<ChunkLayout>,
    /// One byte per element.
    pub(crate) indices: Coder,
}

impl Grouped {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.put_u32(self.group);
        out.put_u32(self.total);
        self.counts.write(out);
        self.values.write(out);
        self.indices.write(out);
    }

    pub(crate) fn read(reader: &mut Reader<'_>, kind: Kind, len: usize) -> Result<Self> {
        let size = kind.size();
        if !len.is_multiple_of(size) {
            return Err(Error::corrupt("a chunk of groups ends inside an element"));
        }
        let (group, total) = (reader.u32()?, reader.u32()?);
        if group == 0 || total == 0 || total as usize > len / size {
            return Err(Error::corrupt(format_args!(
                "groups of {group} elements with {total} values in a chunk of {}",
                len / size
            )));
        }
        Ok(Self {
            size,
            group,
            total,
            counts: Coder::read(reader)?,
            values: Box::new(ChunkLayout::read_inner(reader, kind, total as usize * size)?),
            indices: Coder::read(reader)?,
        })
    }

    fn groups(&self, count: usize) -> usize {
        count.div_ceil(self.group as usize)
    }

    fn values_len(&self) -> usize {
        self.total as usize * self.size
    }

    pub(crate) fn payload_len(&self, len: usize) -> u64 {
        let count = len / self.size;
        let streams = self.counts.stored_len(self.groups(count)) + self.indices.stored_len(count);
        streams.saturating_add(self.values.payload_len(self.values_len()))
    }

    pub(crate) fn streams(&self, len: usize, streams: &mut Streams) {
        let count = len / self.size;
        streams.add("value counts", &self.counts, self.groups(count));
        self.values.streams(self.values_len(), streams);
        streams.add("indices", &self.indices, count);
    }

    pub(crate) fn decode(
        &self,
        payload: &[u8],
        out: &mut [u8],
        context: Context<'_>,
        scratch: &mut ChunkScratch,
    ) -> Result<()> {
        let count = out.len() / self.size;
        let mut payload = Reader::new(payload);
        let mut buffers = std::mem::take(&mut scratch.grouped);
        let coders = &mut scratch.coder;
        let groups = self.groups(count);
        let counts = decode_stream(&self.counts, &mut payload, groups, &mut buffers.counts, coders)?;
        if counts.iter().map(|&n| u32::from(n) + 1).sum::<u32>() != self.total {
            return Err(Error::corrupt("groups whose values do not add up"));
        }
        let stored = usize::try_from(self.values.payload_len(self.values_len()))
            .map_err(|_| Error::corrupt("values beyond their chunk"))?;
        buffers.values.resize(self.values_len(), 0);
        self.values.decode(payload.take(stored)?, &mut buffers.values, context, scratch)?;
        let coders = &mut scratch.coder;
        let indices = decode_stream(&self.indices, &mut payload, count, &mut buffers.indices, coders)?;
        let group = self.group as usize;
        let fits = for_bytes!(self.size, look_up(group, counts, &buffers.values, indices, out));
        if !fits {
            return Err(Error::corrupt("an index beyond the values of its group"));
        }
        scratch.grouped = buffers;
        Ok(())
    }
}

/// The index of the first of `values`: those with the highest bit set come before 0.
pub(crate) fn first_index<const SIZE: usize>(values: &[[u8; SIZE]]) -> u8 {
    let negative = values.iter().filter(|value| value[SIZE - 1] >> 7 == 1).count();
    (negative as u8).wrapping_neg()
}

/// Fills `out` group by group; false if an index has no value.
fn look_up<const SIZE: usize>(
    group: usize,
    counts: &[u8],
    values: &[u8],
    indices: &[u8],
    out: &mut [u8],
) -> bool {
    let mut values = values.as_chunks::<SIZE>().0;
    let mut fits = true;
    let groups = out.as_chunks_mut::<SIZE>().0.chunks_mut(group).zip(indices.chunks(group));
    for ((out, indices), &count) in groups.zip(counts) {
        let (own, rest) = values.split_at(usize::from(count) + 1);
        values = rest;
        let first = first_index(own);
        let mut table = [[0; SIZE]; 256];
        let mut known = [false; 256];
        for (i, value) in own.iter().enumerate() {
            let index = usize::from(first.wrapping_add(i as u8));
            table[index] = *value;
            known[index] = true;
        }
        for (out, &index) in out.iter_mut().zip(indices) {
            *out = table[usize::from(index)];
            fits &= known[usize::from(index)];
        }
    }
    fits
}

/// Buffers that decoding reuses.
#[derive(Default)]
pub(crate) struct Buffers {
    counts: Vec<u8>,
    values: Vec<u8>,
    indices: Vec<u8>,
}
