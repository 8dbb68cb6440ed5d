//! Layouts: how the elements of a chunk become streams of bytes.

pub(crate) mod delta;
pub(crate) mod split;

use crate::coder::{self, Coder};
use crate::element::Kind;
use crate::error::{Error, Result};
use crate::streams::Streams;
use crate::wire::{Put, Reader};
use split::Split;

/// How one chunk is laid out, as its description in the index says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Layout {
    /// All bytes as one stream.
    Opaque(Coder),
    /// Elements cut into fields, a stream for each.
    Split(Split),
}

const OPAQUE: u8 = 0;
const SPLIT: u8 = 1;

/// Scratch that decoding chunks reuses: one per thread.
#[derive(Default)]
pub(crate) struct Scratch {
    coder: coder::Scratch,
    split: split::Scratch,
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
        }
    }

    /// Reads the description of a chunk of `len` bytes.
    pub(crate) fn read(reader: &mut Reader<'_>, kind: Kind, len: usize) -> Result<Self> {
        match reader.u8()? {
            OPAQUE => Coder::read(reader).map(Layout::Opaque),
            SPLIT => Split::read(reader, kind, len).map(Layout::Split),
            code => Err(Error::unsupported(format_args!("chunk layout {code} is not known"))),
        }
    }

    /// The bytes that a chunk of `len` bytes takes in the payload.
    pub(crate) fn payload_len(&self, len: usize) -> u64 {
        match self {
            Layout::Opaque(coder) => coder.stored_len(len),
            Layout::Split(split) => split.payload_len(len),
        }
    }

    /// Adds the streams of a chunk of `len` bytes.
    pub(crate) fn streams(&self, len: usize, streams: &mut Streams) {
        match self {
            Layout::Opaque(coder) => streams.add("bytes", coder, len),
            Layout::Split(split) => split.streams(len, streams),
        }
    }

    /// Decodes `payload`, of the length [`payload_len`](Self::payload_len) says, to fill `out`.
    pub(crate) fn decode(&self, payload: &[u8], out: &mut [u8], scratch: &mut Scratch) -> Result<()> {
        match self {
            Layout::Opaque(coder) => coder.decode(payload, out, &mut scratch.coder),
            Layout::Split(split) => split.decode(payload, out, &mut scratch.split, &mut scratch.coder),
        }
    }
}
