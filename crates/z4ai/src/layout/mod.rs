//! Chunk layouts: how the elements of a chunk become streams of bytes.

pub(crate) mod blocks;
pub(crate) mod classed;
pub(crate) mod contexts;
pub(crate) mod delta;
pub(crate) mod grouped;
pub(crate) mod hashed_output;
pub(crate) mod leveled;
pub(crate) mod palette;
pub(crate) mod range;
pub(crate) mod sparse;
pub(crate) mod split;
pub(crate) mod streams;

use crate::coder::{self, Coder};
use crate::element::Kind;
use crate::error::{Error, Result};
use crate::kernel::xxh3;
use crate::layout::streams::Streams;
use crate::wire::{Put, Reader};
use blocks::Blocks;
use classed::Classed;
use grouped::Grouped;
use hashed_output::{HashedOutput, StagingBuffer};
use leveled::Leveled;
use palette::{Indexed, Palette};
use range::RangeLayout;
use sparse::Sparse;
use split::Split;

/// The description of a chunk, as the index of a frame has it.
pub(crate) trait ChunkDescription: Sized {
    /// Reads the description of a chunk of `len` bytes.
    fn read(reader: &mut Reader<'_>, kind: Kind, len: usize) -> Result<Self>;
    fn write(&self, out: &mut Vec<u8>);
    /// The bytes that a chunk of `len` bytes takes in the payload.
    fn payload_len(&self, len: usize) -> u64;
    /// Adds the streams of a chunk of `len` bytes.
    fn streams(&self, len: usize, streams: &mut Streams);
}

/// How one chunk is laid out, as its description in the index says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChunkLayout {
    /// All bytes as one stream.
    Opaque(Coder),
    /// Elements split into bit fields, a stream for each.
    Split(Split),
    /// Elements as indices into the frame's palette.
    Indexed(Indexed),
    /// Mostly one value; the other elements in an inner layout.
    Sparse(Sparse),
    /// Integers as their distance from the smallest.
    Range(RangeLayout),
    /// Groups of elements with a palette each.
    Grouped(Grouped),
    /// Quantized blocks: parameters and quants apart.
    Blocks(Blocks),
    /// Bytes in classes of rows or columns.
    Classed(Classed),
    /// Floats less a level per row and one per column.
    Leveled(Leveled),
}

impl ChunkDescription for ChunkLayout {
    fn read(reader: &mut Reader<'_>, kind: Kind, len: usize) -> Result<Self> {
        ChunkLayout::read(reader, kind, len)
    }

    fn write(&self, out: &mut Vec<u8>) {
        ChunkLayout::write(self, out);
    }

    fn payload_len(&self, len: usize) -> u64 {
        ChunkLayout::payload_len(self, len)
    }

    fn streams(&self, len: usize, streams: &mut Streams) {
        ChunkLayout::streams(self, len, streams);
    }
}

const OPAQUE: u8 = 0;
const SPLIT: u8 = 1;
const INDEXED: u8 = 2;
const SPARSE: u8 = 3;
const RANGE: u8 = 4;
const GROUPED: u8 = 5;
const BLOCKS: u8 = 6;
const CLASSED: u8 = 7;
const LEVELED: u8 = 8;

/// State that the chunks of a frame share.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Context<'a> {
    pub(crate) palette: Option<&'a Palette>,
}

/// Scratch that decoding chunks reuses: one per thread.
#[derive(Default)]
pub(crate) struct ChunkScratch {
    coder: coder::DecodeScratch,
    split: split::SplitScratch,
    part: StagingBuffer,
    /// Whether the output is too large to stay in the caches.
    pub(crate) large_output: bool,
    sparse: sparse::Buffers,
    grouped: grouped::Buffers,
    blocks: blocks::Buffers,
    classed: classed::Buffers,
    /// As many as an element has bytes.
    planes: [Vec<u8>; 8],
}

impl ChunkLayout {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            ChunkLayout::Opaque(coder) => {
                out.put_u8(OPAQUE);
                coder.write(out);
            }
            ChunkLayout::Split(split) => {
                out.put_u8(SPLIT);
                split.write(out);
            }
            ChunkLayout::Indexed(indexed) => {
                out.put_u8(INDEXED);
                indexed.write(out);
            }
            ChunkLayout::Sparse(sparse) => {
                out.put_u8(SPARSE);
                sparse.write(out);
            }
            ChunkLayout::Range(range) => {
                out.put_u8(RANGE);
                range.write(out);
            }
            ChunkLayout::Grouped(grouped) => {
                out.put_u8(GROUPED);
                grouped.write(out);
            }
            ChunkLayout::Blocks(blocks) => {
                out.put_u8(BLOCKS);
                blocks.write(out);
            }
            ChunkLayout::Classed(classed) => {
                out.put_u8(CLASSED);
                classed.write(out);
            }
            ChunkLayout::Leveled(leveled) => {
                out.put_u8(LEVELED);
                leveled.write(out);
            }
        }
    }

    /// Reads a description inside another: one that has none inside itself.
    fn read_inner(reader: &mut Reader<'_>, kind: Kind, len: usize) -> Result<Self> {
        let mut ahead = reader.clone();
        let code = ahead.u8()?;
        if matches!(code, SPARSE | GROUPED | BLOCKS | LEVELED) {
            return Err(Error::corrupt(format_args!("layout {code} inside another")));
        }
        Self::read(reader, kind, len)
    }

    /// Reads the description of a chunk of `len` bytes.
    pub(crate) fn read(reader: &mut Reader<'_>, kind: Kind, len: usize) -> Result<Self> {
        match reader.u8()? {
            OPAQUE => Coder::read(reader).map(ChunkLayout::Opaque),
            SPLIT => Split::read(reader, kind, len).map(ChunkLayout::Split),
            INDEXED => Indexed::read(reader, kind, len).map(ChunkLayout::Indexed),
            SPARSE => Sparse::read(reader, kind, len).map(ChunkLayout::Sparse),
            RANGE => RangeLayout::read(reader, kind, len).map(ChunkLayout::Range),
            GROUPED => Grouped::read(reader, kind, len).map(ChunkLayout::Grouped),
            BLOCKS => Blocks::read(reader, kind, len).map(ChunkLayout::Blocks),
            CLASSED => Classed::read(reader, kind, len).map(ChunkLayout::Classed),
            LEVELED => Leveled::read(reader, kind, len).map(ChunkLayout::Leveled),
            code => Err(Error::unsupported(format_args!("chunk layout {code} is not known"))),
        }
    }

    /// The bytes that a chunk of `len` bytes takes in the payload.
    pub(crate) fn payload_len(&self, len: usize) -> u64 {
        match self {
            ChunkLayout::Opaque(coder) => coder.stored_len(len),
            ChunkLayout::Split(split) => split.payload_len(len),
            ChunkLayout::Indexed(indexed) => indexed.payload_len(len),
            ChunkLayout::Sparse(sparse) => sparse.payload_len(len),
            ChunkLayout::Range(range) => range.payload_len(len),
            ChunkLayout::Grouped(grouped) => grouped.payload_len(len),
            ChunkLayout::Blocks(blocks) => blocks.payload_len(len),
            ChunkLayout::Classed(classed) => classed.payload_len(len),
            ChunkLayout::Leveled(leveled) => leveled.payload_len(len),
        }
    }

    /// Adds the streams of a chunk of `len` bytes.
    pub(crate) fn streams(&self, len: usize, streams: &mut Streams) {
        match self {
            ChunkLayout::Opaque(coder) => streams.add("bytes", coder, len),
            ChunkLayout::Split(split) => split.streams(len, streams),
            ChunkLayout::Indexed(indexed) => indexed.streams(len, streams),
            ChunkLayout::Sparse(sparse) => sparse.streams(len, streams),
            ChunkLayout::Range(range) => range.streams(len, streams),
            ChunkLayout::Grouped(grouped) => grouped.streams(len, streams),
            ChunkLayout::Blocks(blocks) => blocks.streams(len, streams),
            ChunkLayout::Classed(classed) => classed.streams(len, streams),
            ChunkLayout::Leveled(leveled) => leveled.streams(len, streams),
        }
    }

    /// As [`decode`](Self::decode); returns the hash of what was decoded.
    pub(crate) fn decode_hashed(
        &self,
        payload: &[u8],
        out: &mut [u8],
        context: Context<'_>,
        scratch: &mut ChunkScratch,
    ) -> Result<u64> {
        if let ChunkLayout::Split(split) = self {
            let out = HashedOutput::new(out, scratch.large_output, &mut scratch.part);
            return split.decode(payload, out, &mut scratch.split, &mut scratch.coder);
        }
        self.decode(payload, out, context, scratch)?;
        Ok(xxh3::hash(out))
    }

    /// Decodes `payload`, of the length [`payload_len`](Self::payload_len) says, to fill `out`.
    pub(crate) fn decode(
        &self,
        payload: &[u8],
        out: &mut [u8],
        context: Context<'_>,
        scratch: &mut ChunkScratch,
    ) -> Result<()> {
        match self {
            ChunkLayout::Opaque(coder) => coder.decode(payload, out, &mut scratch.coder),
            ChunkLayout::Split(split) => {
                let out = HashedOutput::new(out, false, &mut scratch.part);
                split.decode(payload, out, &mut scratch.split, &mut scratch.coder).map(drop)
            }
            ChunkLayout::Indexed(indexed) => indexed.decode(payload, out, context.palette, scratch),
            ChunkLayout::Sparse(sparse) => sparse.decode(payload, out, context, scratch),
            ChunkLayout::Range(range) => range.decode(payload, out, scratch),
            ChunkLayout::Grouped(grouped) => grouped.decode(payload, out, context, scratch),
            ChunkLayout::Blocks(blocks) => blocks.decode(payload, out, scratch),
            ChunkLayout::Classed(classed) => classed.decode(payload, out, scratch),
            ChunkLayout::Leveled(leveled) => leveled.decode(payload, out, context, scratch),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::ErrorKind;
    use crate::frame::Frame;

    /// Ids that `read` knows: others are unsupported.
    fn known<T>(read: impl Fn(&mut Reader<'_>) -> Result<T>) -> Vec<u8> {
        let is_known = |id: &u8| {
            let description = [&[*id][..], &[0; 64]].concat();
            !matches!(read(&mut Reader::new(&description)), Err(error) if error.kind() == ErrorKind::Unsupported)
        };
        (0..=u8::MAX).filter(is_known).collect()
    }

    /// Ids in the first column of the table of the specification whose head starts so.
    fn specified(head: &str) -> Vec<u8> {
        let page = include_str!("../../../../docs/spec/z4ai.md");
        let rows = page.lines().skip_while(|line| !line.starts_with(head)).skip(2);
        let rows = rows.take_while(|line| line.starts_with('|'));
        rows.filter_map(|row| row.split('|').nth(1)?.trim().parse().ok()).collect()
    }

    #[test]
    fn coders_and_layouts_are_those_of_the_specification() {
        assert_eq!(known(Coder::read), specified("| coder | name |"));
        assert_eq!(
            known(|reader| ChunkLayout::read(reader, Kind::F32, 1024)),
            specified("| layout | name |")
        );
    }

    #[test]
    fn every_layout_is_in_a_golden_frame() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
        let mut seen = HashSet::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            let Ok(frame) = Frame::<ChunkLayout>::parse(&bytes) else { continue };
            for index in 0..frame.chunk_count() {
                let mut description = Vec::new();
                frame.described(index).unwrap().1.write(&mut description);
                seen.insert(description[0]);
            }
        }
        let missing: Vec<u8> =
            specified("| layout | name |").into_iter().filter(|id| !seen.contains(id)).collect();
        assert!(missing.is_empty(), "no golden frame has the layouts {missing:?}");
    }
}
