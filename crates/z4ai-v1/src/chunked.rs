//! The `Z4AIMF01` chunked frame: chunks of byte planes, one after the other.

use crate::bytes::Bytes;
use crate::planes::interleave;
use crate::stream::{Methods, Stream};
use crate::zstd_frame::Zstd;
use crate::{Result, corrupt};

pub(super) const MAGIC: &[u8; 8] = b"Z4AIMF01";

/// The frame's chunks, all of them walked once: it does not state its length.
pub(super) struct Chunked<'a> {
    chunks: Bytes<'a>,
    count: u32,
    width: u8,
    len: usize,
}

struct Chunk<'a> {
    planes: Vec<Stream<'a>>,
    tail: &'a [u8],
    len: usize,
}

impl<'a> Chunked<'a> {
    pub(super) fn parse(frame: &'a [u8]) -> Result<Self> {
        let mut bytes = Bytes::new(frame);
        bytes.take(MAGIC.len(), "magic")?;
        let _flags = bytes.u8("flags")?;
        let width = bytes.u8("width")?;
        let count = bytes.u32("chunk count")?;
        if width == 0 {
            return Err(corrupt("chunked frame of width 0"));
        }
        let chunks = bytes.clone();
        let mut len = 0usize;
        for _ in 0..count {
            len = len
                .checked_add(parse_chunk(&mut bytes, width)?.len)
                .ok_or_else(|| corrupt("decoded length overflows"))?;
        }
        bytes.finish("the last chunk")?;
        Ok(Self { chunks, count, width, len })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn decode_into(&self, mut out: &mut [u8], zstd: &mut Zstd) -> Result<()> {
        let mut bytes = self.chunks.clone();
        for _ in 0..self.count {
            let chunk = parse_chunk(&mut bytes, self.width)?;
            let (part, rest) = out.split_at_mut(chunk.len);
            let (body, tail) = part.split_at_mut(chunk.len - chunk.tail.len());
            tail.copy_from_slice(chunk.tail);
            let planes = chunk.planes.iter().map(|plane| plane.decode(zstd)).collect::<Result<Vec<_>>>()?;
            interleave(&planes, body)?;
            out = rest;
        }
        Ok(())
    }
}

fn parse_chunk<'a>(bytes: &mut Bytes<'a>, width: u8) -> Result<Chunk<'a>> {
    let elements = bytes.u32("chunk element count")? as usize;
    let tail_len = bytes.u8("chunk tail length")?;
    if tail_len >= width {
        return Err(corrupt(format!("a tail of {tail_len} bytes after elements of {width}")));
    }
    let tail = bytes.take(tail_len.into(), "chunk tail")?;
    let planes = (0..width)
        .map(|_| {
            let method = bytes.u8("plane method")?;
            let payload_len = bytes.u32("plane payload length")?;
            let payload = bytes.take(payload_len as usize, "plane payload")?;
            Stream::parse(method, payload, elements, Methods::Plain)
        })
        .collect::<Result<Vec<_>>>()?;
    let len = elements
        .checked_mul(width.into())
        .and_then(|len| len.checked_add(tail.len()))
        .ok_or_else(|| corrupt("decoded length overflows"))?;
    Ok(Chunk { planes, tail, len })
}
