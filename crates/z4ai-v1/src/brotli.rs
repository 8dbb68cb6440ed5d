//! Brotli payloads of auto frames: one stream, or a list of streams.
//!
//! Brotli states neither its decoded size nor a bound on it, so the output
//! buffer is the bound: a stream that wants to write past it is refused.

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};

use crate::bytes::{Bytes, Lengths, check_blocks};
use crate::{Result, corrupt};

/// Streams above 2 MiB were written as block lists, and the decoder counts
/// input in 32 bits; nothing legitimate comes near.
const MAX_STREAM: usize = 1 << 30;

type State = BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>;

/// Decodes one stream, which must fill `out` exactly.
pub(super) fn decode_stream(stream: &[u8], out: &mut [u8]) -> Result<()> {
    check_start(stream, out.len())?;
    let mut state: Box<State> = Box::new(BrotliState::new_strict(
        StandardAlloc::default(),
        StandardAlloc::default(),
        StandardAlloc::default(),
    ));
    let (mut left_in, mut at_in) = (stream.len(), 0);
    let (mut left_out, mut at_out) = (out.len(), 0);
    let result = BrotliDecompressStream(
        &mut left_in,
        &mut at_in,
        stream,
        &mut left_out,
        &mut at_out,
        out,
        &mut 0,
        &mut state,
    );
    match result {
        BrotliResult::ResultSuccess if left_in > 0 => {
            Err(corrupt(format!("{left_in} bytes are left over after a brotli stream")))
        }
        BrotliResult::ResultSuccess if left_out > 0 => {
            Err(corrupt(format!("brotli stream lacks {left_out} of {} bytes", out.len())))
        }
        BrotliResult::ResultSuccess => Ok(()),
        BrotliResult::NeedsMoreOutput => Err(corrupt("brotli stream holds more than it states")),
        BrotliResult::NeedsMoreInput => Err(corrupt("brotli stream ends early")),
        BrotliResult::ResultFailure => Err(corrupt("brotli stream is malformed")),
    }
}

/// Reads what the first bits of a stream announce, before the decoder allocates for it.
fn check_start(stream: &[u8], len: usize) -> Result<()> {
    if stream.is_empty() || stream.len() > MAX_STREAM {
        return Err(corrupt(format!("brotli stream of {} bytes", stream.len())));
    }
    // Window, block kind and block length together are at most 35 bits.
    let mut head = [0; 8];
    let known = stream.len().min(head.len());
    head[..known].copy_from_slice(&stream[..known]);
    let mut head = u64::from_le_bytes(head);
    let mut take = |bits: u32| {
        let taken = head & ((1 << bits) - 1);
        head >>= bits;
        taken
    };

    // Version 1 was written with the default window of 4 MiB (22 bits) or less.
    if take(1) == 1 {
        let above_17 = take(3);
        if above_17 > 22 - 17 || (above_17 == 0 && take(3) == 1) {
            return Err(corrupt("brotli window is above 4 MiB"));
        }
    }
    let is_last = take(1) == 1;
    let is_empty = is_last && take(1) == 1;
    let nibbles = 4 + take(2) as u32;
    // Seven nibbles mark a block without data.
    if !is_empty && nibbles < 7 && take(4 * nibbles) >= len as u64 {
        return Err(corrupt("brotli stream holds more than it states"));
    }
    Ok(())
}

/// Brotli streams back to back, each holding `block_size` bytes but the last.
pub(super) struct BrotliBlocks<'a> {
    block_size: usize,
    lengths: Lengths<'a>,
    blocks: &'a [u8],
}

impl<'a> BrotliBlocks<'a> {
    /// Blocks were written at 1 MiB. Each may cost the decoder a window of
    /// 4 MiB, so a list of tiny ones would be all cost and no content.
    const LEAST_BLOCK: u32 = 4096;

    pub(super) fn parse(payload: &'a [u8], len: usize) -> Result<Self> {
        let mut bytes = Bytes::new(payload);
        let block_size = bytes.u32("brotli block size")?;
        let count = bytes.u32("brotli block count")?;
        check_blocks(block_size, count, len)?;
        if count > 1 && block_size < Self::LEAST_BLOCK {
            return Err(corrupt(format!(
                "brotli blocks of {block_size} bytes are below {}",
                Self::LEAST_BLOCK
            )));
        }
        let lengths = bytes.lengths(count, "brotli block lengths")?;
        let blocks = bytes.take_rest();
        lengths.check(1, blocks.len(), "brotli block")?;
        Ok(Self { block_size: block_size as usize, lengths, blocks })
    }

    pub(super) fn decode_into(&self, out: &mut [u8]) -> Result<()> {
        let blocks = self.lengths.cut(self.blocks, "brotli block");
        for (block, out) in blocks.zip(out.chunks_mut(self.block_size)) {
            decode_stream(block?, out)?;
        }
        Ok(())
    }
}
