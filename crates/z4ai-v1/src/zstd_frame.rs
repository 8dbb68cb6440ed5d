//! Zstd payloads: one frame, or a list of frames (plane method 2).
//!
//! libzstd decodes them, but only after the frame's own headers have been
//! walked here: the content size must be stated and be the expected one, the
//! blocks must be able to yield it, and the frame must end with its payload.

use crate::bytes::{Bytes, Lengths, check_blocks, size};
use crate::{Result, corrupt};

const MAGIC: u32 = 0xFD2F_B528;
/// The largest window any version 1 frame was written with.
const MAX_WINDOW: u64 = 1 << 27;
/// The format's own limit on what one block can hold.
const MAX_BLOCK: u64 = 128 << 10;

/// libzstd's decoding context, made when the first payload needs it and then
/// shared by all payloads of a frame.
#[derive(Default)]
pub(super) struct Zstd(Option<zstd::bulk::Decompressor<'static>>);

impl Zstd {
    fn decode(&mut self, frame: &[u8], out: &mut [u8]) -> Result<()> {
        let context = match &mut self.0 {
            Some(context) => context,
            None => self.0.insert(
                zstd::bulk::Decompressor::new()
                    .map_err(|error| corrupt(format!("no zstd context: {error}")))?,
            ),
        };
        let written = context
            .decompress_to_buffer(frame, out)
            .map_err(|error| corrupt(format!("zstd payload: {error}")))?;
        if written != out.len() {
            return Err(corrupt(format!("zstd payload gave {written} bytes instead of {}", out.len())));
        }
        Ok(())
    }
}

/// One zstd frame that claims to hold the expected number of bytes and could.
pub(super) struct ZstdFrame<'a> {
    frame: &'a [u8],
    content: usize,
}

impl<'a> ZstdFrame<'a> {
    /// Checks everything that can be told without decoding.
    pub(super) fn parse(frame: &'a [u8], content: usize) -> Result<Self> {
        let parsed = Self::parse_sized(frame, content as u64)?;
        if parsed.content != content {
            return Err(corrupt(format!(
                "zstd payload states {} bytes where {content} are expected",
                parsed.content
            )));
        }
        Ok(parsed)
    }

    /// As [`ZstdFrame::parse`], for content of any size up to `limit`.
    pub(super) fn parse_sized(frame: &'a [u8], limit: u64) -> Result<Self> {
        let mut bytes = Bytes::new(frame);
        let header = Header::parse(&mut bytes)?;
        let content = header.content;
        if content > limit {
            return Err(corrupt(format!("zstd payload states {content} bytes where {limit} are the limit")));
        }
        let room = walk_blocks(&mut bytes, header.window.min(MAX_BLOCK))?;
        if room < content {
            return Err(corrupt(format!(
                "zstd payload states {content} bytes but its blocks hold at most {room}"
            )));
        }
        if header.checksum {
            bytes.u32("zstd checksum")?;
        }
        bytes.finish("a zstd payload")?;
        let content = size(content)?;
        Ok(Self { frame, content })
    }

    /// How many bytes the frame holds.
    pub(super) fn content(&self) -> usize {
        self.content
    }

    /// Decodes into `out`, which is as long as [`ZstdFrame::parse`] was told.
    pub(super) fn decode_into(&self, out: &mut [u8], zstd: &mut Zstd) -> Result<()> {
        debug_assert_eq!(out.len(), self.content);
        zstd.decode(self.frame, out)
    }
}

/// What a frame's own header states.
struct Header {
    content: u64,
    window: u64,
    checksum: bool,
}

impl Header {
    fn parse(bytes: &mut Bytes<'_>) -> Result<Self> {
        if bytes.u32("zstd magic")? != MAGIC {
            return Err(corrupt("zstd payload does not start with the zstd magic"));
        }
        let descriptor = bytes.u8("zstd header")?;
        if descriptor & 0x0B != 0 {
            return Err(corrupt("zstd payload has a reserved bit set or asks for a dictionary"));
        }
        let single_segment = descriptor & 0x20 != 0;
        let mut window = 0;
        if !single_segment {
            let raw = bytes.u8("zstd window")?;
            let base = 1u64 << (10 + (raw >> 3));
            window = base + (base >> 3) * u64::from(raw & 7);
        }
        let content = match (descriptor >> 6, single_segment) {
            (0, false) => return Err(corrupt("zstd payload does not state its content size")),
            (0, true) => u64::from(bytes.u8("zstd content size")?),
            (1, _) => u64::from(bytes.u16("zstd content size")?) + 256,
            (2, _) => u64::from(bytes.u32("zstd content size")?),
            _ => bytes.u64("zstd content size")?,
        };
        if single_segment {
            window = content;
        }
        if window > MAX_WINDOW {
            return Err(corrupt(format!("zstd window of {window} bytes is above {MAX_WINDOW}")));
        }
        Ok(Self { content, window, checksum: descriptor & 0x04 != 0 })
    }
}

/// Skips all blocks and returns how much they can hold at most.
fn walk_blocks(bytes: &mut Bytes<'_>, block_limit: u64) -> Result<u64> {
    let mut room = 0u64;
    loop {
        let low = bytes.u16("zstd block header")?;
        let high = bytes.u8("zstd block header")?;
        let header = u32::from(low) | u32::from(high) << 16;
        let size = u64::from(header >> 3);
        if size > block_limit {
            return Err(corrupt(format!("zstd block of {size} bytes is above {block_limit}")));
        }
        let (stored, holds) = match header >> 1 & 3 {
            0 => (size, size),
            1 => (1, size),
            2 => (size, block_limit),
            _ => return Err(corrupt("zstd block of the reserved type")),
        };
        bytes.take_claimed(stored, "zstd block")?;
        room = room.saturating_add(holds);
        if header & 1 != 0 {
            return Ok(room);
        }
    }
}

/// Zstd frames back to back, each holding `block_size` bytes but the last.
pub(super) struct ZstdBlocks<'a> {
    block_size: usize,
    lengths: Lengths<'a>,
    blocks: &'a [u8],
}

impl<'a> ZstdBlocks<'a> {
    pub(super) fn parse(payload: &'a [u8], len: usize) -> Result<Self> {
        let mut bytes = Bytes::new(payload);
        let block_size = bytes.u32("zstd block size")?;
        let count = bytes.u32("zstd block count")?;
        check_blocks(block_size, count, len)?;
        let lengths = bytes.lengths(count, "zstd block lengths")?;
        let blocks = bytes.take_rest();
        lengths.check(1, blocks.len(), "zstd block")?;
        let parsed = Self { block_size: block_size as usize, lengths, blocks };
        let mut left = len;
        for block in parsed.iter() {
            let content = left.min(parsed.block_size);
            ZstdFrame::parse(block?, content)?;
            left -= content;
        }
        Ok(parsed)
    }

    fn iter(&self) -> impl Iterator<Item = Result<&'a [u8]>> {
        self.lengths.cut(self.blocks, "zstd block")
    }

    pub(super) fn decode_into(&self, out: &mut [u8], zstd: &mut Zstd) -> Result<()> {
        for (block, out) in self.iter().zip(out.chunks_mut(self.block_size)) {
            zstd.decode(block?, out)?;
        }
        Ok(())
    }
}
