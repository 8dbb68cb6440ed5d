//! A payload and the coder that made it, checked as far as its headers go.

use std::borrow::Cow;

use crate::brotli::{self, BrotliBlocks};
use crate::bytes::{Bytes, size, zeroed};
use crate::rans::{RansChunks, RansShared};
use crate::rans_order1::RansOrder1;
use crate::zstd_frame::{Zstd, ZstdBlocks, ZstdFrame};
use crate::{Result, corrupt};

/// One coded run of bytes of a known length.
pub(super) struct Stream<'a> {
    len: usize,
    coder: Coder<'a>,
}

enum Coder<'a> {
    Stored(&'a [u8]),
    Zstd(ZstdFrame<'a>),
    ZstdBlocks(ZstdBlocks<'a>),
    RansShared(RansShared<'a>),
    RansChunks(RansChunks<'a>),
    RansOrder1(RansOrder1<'a>),
    Brotli(&'a [u8]),
    BrotliBlocks(BrotliBlocks<'a>),
}

/// Which frame's numbering of coders applies.
#[derive(Clone, Copy)]
pub(super) enum Methods {
    /// Turbo and chunked frames know two coders.
    Plain,
    /// Planes of a `Z4AI` frame.
    Planes,
    /// Streams of a `ZARA` frame.
    Auto,
}

impl<'a> Stream<'a> {
    /// Reads a record: method, decoded length, payload length, payload.
    pub(super) fn parse_record(bytes: &mut Bytes<'a>, methods: Methods) -> Result<Self> {
        let method = bytes.u8("stream method")?;
        let len = bytes.u64("stream length")?;
        let payload_len = bytes.u64("payload length")?;
        let payload = bytes.take_claimed(payload_len, "stream payload")?;
        Self::parse(method, payload, size(len)?, methods)
    }

    /// A payload that must decode to `len` bytes.
    pub(super) fn parse(method: u8, payload: &'a [u8], len: usize, methods: Methods) -> Result<Self> {
        let coder = match (methods, method) {
            (_, 0) if payload.len() != len => {
                return Err(corrupt(format!("{} bytes are stored where {len} are expected", payload.len())));
            }
            (_, 0) => Coder::Stored(payload),
            (_, 1) => Coder::Zstd(ZstdFrame::parse(payload, len)?),
            (Methods::Planes, 2) => Coder::ZstdBlocks(ZstdBlocks::parse(payload, len)?),
            (Methods::Planes | Methods::Auto, 3) => Coder::RansShared(RansShared::parse(payload, len)?),
            (Methods::Planes, 4) => Coder::RansChunks(RansChunks::parse(payload, len)?),
            (Methods::Planes, 5) => Coder::RansOrder1(RansOrder1::parse(payload, len)?),
            (Methods::Auto, 2) => Coder::Brotli(payload),
            (Methods::Auto, 4) => Coder::BrotliBlocks(BrotliBlocks::parse(payload, len)?),
            _ => return Err(corrupt(format!("unknown stream method {method}"))),
        };
        Ok(Self { len, coder })
    }

    /// How many bytes the stream decodes to.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Decodes into `out`, which has the stream's length.
    pub(super) fn decode_into(&self, out: &mut [u8], zstd: &mut Zstd) -> Result<()> {
        match &self.coder {
            Coder::Stored(bytes) => {
                out.copy_from_slice(bytes);
                Ok(())
            }
            Coder::Zstd(frame) => frame.decode_into(out, zstd),
            Coder::ZstdBlocks(blocks) => blocks.decode_into(out, zstd),
            Coder::RansShared(rans) => rans.decode_into(out),
            Coder::RansChunks(rans) => rans.decode_into(out, zstd),
            Coder::RansOrder1(rans) => rans.decode_into(out, zstd),
            Coder::Brotli(stream) => brotli::decode_stream(stream, out),
            Coder::BrotliBlocks(blocks) => blocks.decode_into(out),
        }
    }

    /// The decoded bytes, borrowed from the frame if they are stored there.
    pub(super) fn decode(&self, zstd: &mut Zstd) -> Result<Cow<'a, [u8]>> {
        if let Coder::Stored(bytes) = self.coder {
            return Ok(Cow::Borrowed(bytes));
        }
        let mut out = zeroed(self.len)?;
        self.decode_into(&mut out, zstd)?;
        Ok(Cow::Owned(out))
    }
}
