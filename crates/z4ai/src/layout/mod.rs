//! Layouts: how the elements of a chunk become streams of bytes.

pub(crate) mod contexts;
pub(crate) mod delta;
pub(crate) mod grouped;
pub(crate) mod palette;
pub(crate) mod parts;
pub(crate) mod range;
pub(crate) mod sparse;
pub(crate) mod split;

use crate::coder::{self, Coder};
use crate::element::Kind;
use crate::error::{Error, Result};
use crate::kernel::hash;
use crate::streams::Streams;
use crate::wire::{Put, Reader};
use grouped::Grouped;
use palette::{Indexed, Palette};
use parts::{Part, Parts};
use range::Range;
use sparse::Sparse;
use split::Split;

/// How one chunk is laid out, as its description in the index says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Layout {
    /// All bytes as one stream.
    Opaque(Coder),
    /// Elements cut into fields, a stream for each.
    Split(Split),
    /// Elements as indices into the frame's palette.
    Indexed(Indexed),
    /// Mostly one value; the other elements in a layout of their own.
    Sparse(Sparse),
    /// Integers as their distance from the smallest.
    Range(Range),
    /// Groups of elements with a palette each.
    Grouped(Grouped),
}

const OPAQUE: u8 = 0;
const SPLIT: u8 = 1;
const INDEXED: u8 = 2;
const SPARSE: u8 = 3;
const RANGE: u8 = 4;
const GROUPED: u8 = 5;

/// What the chunks of a frame share.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Context<'a> {
    pub(crate) palette: Option<&'a Palette>,
}

/// Scratch that decoding chunks reuses: one per thread.
#[derive(Default)]
pub(crate) struct Scratch {
    coder: coder::Scratch,
    split: split::Scratch,
    part: Part,
    /// Whether what is decoded leaves the caches before anyone reads it.
    pub(crate) large_output: bool,
    sparse: sparse::Buffers,
    grouped: grouped::Buffers,
    /// As many as an element has bytes.
    planes: [Vec<u8>; 8],
}

impl Layout {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Layout::Opaque(coder) => {
                out.put_u8(OPAQUE);
                coder.write(out);
            }
            Layout::Split(split) => {
                out.put_u8(SPLIT);
                split.write(out);
            }
            Layout::Indexed(indexed) => {
                out.put_u8(INDEXED);
                indexed.write(out);
            }
            Layout::Sparse(sparse) => {
                out.put_u8(SPARSE);
                sparse.write(out);
            }
            Layout::Range(range) => {
                out.put_u8(RANGE);
                range.write(out);
            }
            Layout::Grouped(grouped) => {
                out.put_u8(GROUPED);
                grouped.write(out);
            }
        }
    }

    /// Reads a description inside another: one that has none inside itself.
    fn read_inner(reader: &mut Reader<'_>, kind: Kind, len: usize) -> Result<Self> {
        let mut ahead = reader.clone();
        let code = ahead.u8()?;
        if code == SPARSE || code == GROUPED {
            return Err(Error::corrupt(format_args!("layout {code} inside another")));
        }
        Self::read(reader, kind, len)
    }

    /// Reads the description of a chunk of `len` bytes.
    pub(crate) fn read(reader: &mut Reader<'_>, kind: Kind, len: usize) -> Result<Self> {
        match reader.u8()? {
            OPAQUE => Coder::read(reader).map(Layout::Opaque),
            SPLIT => Split::read(reader, kind, len).map(Layout::Split),
            INDEXED => Indexed::read(reader, kind, len).map(Layout::Indexed),
            SPARSE => Sparse::read(reader, kind, len).map(Layout::Sparse),
            RANGE => Range::read(reader, kind, len).map(Layout::Range),
            GROUPED => Grouped::read(reader, kind, len).map(Layout::Grouped),
            code => Err(Error::unsupported(format_args!("chunk layout {code} is not known"))),
        }
    }

    /// The bytes that a chunk of `len` bytes takes in the payload.
    pub(crate) fn payload_len(&self, len: usize) -> u64 {
        match self {
            Layout::Opaque(coder) => coder.stored_len(len),
            Layout::Split(split) => split.payload_len(len),
            Layout::Indexed(indexed) => indexed.payload_len(len),
            Layout::Sparse(sparse) => sparse.payload_len(len),
            Layout::Range(range) => range.payload_len(len),
            Layout::Grouped(grouped) => grouped.payload_len(len),
        }
    }

    /// Adds the streams of a chunk of `len` bytes.
    pub(crate) fn streams(&self, len: usize, streams: &mut Streams) {
        match self {
            Layout::Opaque(coder) => streams.add("bytes", coder, len),
            Layout::Split(split) => split.streams(len, streams),
            Layout::Indexed(indexed) => indexed.streams(len, streams),
            Layout::Sparse(sparse) => sparse.streams(len, streams),
            Layout::Range(range) => range.streams(len, streams),
            Layout::Grouped(grouped) => grouped.streams(len, streams),
        }
    }

    /// As [`decode`](Self::decode); returns the hash of what was decoded.
    pub(crate) fn decode_hashed(
        &self,
        payload: &[u8],
        out: &mut [u8],
        context: Context<'_>,
        scratch: &mut Scratch,
    ) -> Result<u64> {
        if let Layout::Split(split) = self {
            let out = Parts::new(out, scratch.large_output, &mut scratch.part);
            return split.decode(payload, out, &mut scratch.split, &mut scratch.coder);
        }
        self.decode(payload, out, context, scratch)?;
        Ok(hash::of(out))
    }

    /// Decodes `payload`, of the length [`payload_len`](Self::payload_len) says, to fill `out`.
    pub(crate) fn decode(
        &self,
        payload: &[u8],
        out: &mut [u8],
        context: Context<'_>,
        scratch: &mut Scratch,
    ) -> Result<()> {
        match self {
            Layout::Opaque(coder) => coder.decode(payload, out, &mut scratch.coder),
            Layout::Split(split) => {
                let out = Parts::new(out, false, &mut scratch.part);
                split.decode(payload, out, &mut scratch.split, &mut scratch.coder).map(drop)
            }
            Layout::Indexed(indexed) => indexed.decode(payload, out, context.palette, scratch),
            Layout::Sparse(sparse) => sparse.decode(payload, out, context, scratch),
            Layout::Range(range) => range.decode(payload, out, scratch),
            Layout::Grouped(grouped) => grouped.decode(payload, out, context, scratch),
        }
    }
}
