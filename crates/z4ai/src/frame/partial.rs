//! Frames that lie somewhere else, of which only what is needed is fetched.
//!
//! A frame starts with a head and ends with an index; both together say where every chunk is. So
//! two short reads are enough to know which bytes of a frame some bytes of its content need.
//!
//! ```
//! use z4ai::{DecodeOptions, Kind, Options, partial};
//!
//! let data: Vec<u8> = (0..1u32 << 20).flat_map(|i| (i as f32).sqrt().to_le_bytes()).collect();
//! let frame = z4ai::compress(&data, &Options { kind: Kind::F32, ..Options::default() })?;
//! let fetch = |range: std::ops::Range<u64>| frame[range.start as usize..range.end as usize].to_vec();
//!
//! let len = frame.len() as u64;
//! let head = fetch(0..len.min(partial::HEAD));
//! let index = fetch(partial::index_range(&head, len)?);
//! let outline = partial::Outline::new(head, index, len)?;
//!
//! let wanted = 400_000..400_100;
//! let needed = outline.needed(wanted.clone())?;
//! assert!(needed.iter().map(|range| range.end - range.start).sum::<u64>() < len / 4);
//! let pieces: Vec<_> = needed.into_iter().map(|range| (range.start, fetch(range))).collect();
//! let mut out = [0; 100];
//! outline.decompress_bytes(&pieces, wanted, &mut out, &DecodeOptions::default())?;
//! assert_eq!(out, data[400_000..400_100]);
//! # Ok::<(), z4ai::Error>(())
//! ```

use std::ops::Range;

use crate::error::{Error, Result};
use crate::frame::decode::{self, Chunks};
use crate::frame::stored::Stored;
use crate::frame::{self, Frame, FrameIndex};
use crate::layout::ChunkLayout;
use crate::memory;
use crate::options::{DecodeOptions, FrameInfo};
use crate::simd::SimdLevel;

/// The first bytes of a frame that always include its head. A shorter frame is its own head.
/// (structural: not below the longest head)
pub const HEAD: u64 = 4096;

// Fixed fields, the lengths of dtype and shape, and both at their longest.
const _: () = assert!(HEAD >= (frame::FIXED + 2 + 255 + 255 * 8) as u64);

/// Where the index of a frame of `frame_len` bytes is, by its first [`HEAD`] bytes.
pub fn index_range(head: &[u8], frame_len: u64) -> Result<Range<u64>> {
    if !frame::starts_like::<ChunkLayout>(head) {
        return Err(Error::unsupported("not a z4ai frame, or one of a version without an index"));
    }
    frame::index_range(head, frame_len)
}

/// The parsed head and index of a frame: all but its payload.
pub struct Outline {
    index: FrameIndex,
    info: FrameInfo,
}

impl Outline {
    /// The outline of a frame of `frame_len` bytes, from its first [`HEAD`] bytes and those of its
    /// [`index_range`]. Both are checked.
    pub fn new(head: Vec<u8>, index: Vec<u8>, frame_len: u64) -> Result<Outline> {
        let pieces = [(0, &head[..]), (frame_len.saturating_sub(index.len() as u64), &index[..])];
        let index = FrameIndex::parse(Stored::Pieces(frame_len, &pieces))?;
        Ok(Outline { info: index.info(), index })
    }

    /// The frame's head.
    pub fn info(&self) -> &FrameInfo {
        &self.info
    }

    /// The memory that this takes, in bytes.
    pub fn memory(&self) -> usize {
        self.index.memory()
    }

    /// The ranges of the frame that bytes `range` of its content need, in order and not touching.
    pub fn needed(&self, range: Range<u64>) -> Result<Vec<Range<u64>>> {
        if range.start > range.end || range.end > self.info.content_len {
            let len = self.info.content_len;
            return Err(Error::invalid(format_args!("bytes {range:?} of a frame of {len}")));
        }
        let pieces = self.index.pieces(range).into_iter();
        let mut chunks: Vec<usize> = pieces.flat_map(|piece| self.index.chunks_of(piece)).collect();
        chunks.sort_unstable();
        chunks.dedup();
        let mut needed: Vec<Range<u64>> = Vec::new();
        for payload in chunks.into_iter().map(|chunk| self.index.payload_of(chunk)) {
            match needed.last_mut() {
                _ if payload.is_empty() => {}
                Some(last) if last.end == payload.start => last.end = payload.end,
                _ => needed.push(payload),
            }
        }
        Ok(needed)
    }

    /// Decodes bytes `range` of the content into `out`, whose length must be theirs. `pieces` are
    /// the [`needed`](Outline::needed) ranges, each with its position in the frame.
    pub fn decompress_bytes(
        &self,
        pieces: &[(u64, impl AsRef<[u8]>)],
        range: Range<u64>,
        out: &mut [u8],
        options: &DecodeOptions,
    ) -> Result<()> {
        SimdLevel::current()?;
        let mut pieces: Vec<(u64, &[u8])> =
            pieces.iter().map(|(start, bytes)| (*start, bytes.as_ref())).collect();
        pieces.sort_by_key(|(start, _)| *start);
        let stored = Stored::Pieces(self.info.frame_len, &pieces);
        decode::byte_range_into(&Frame::new(&self.index, stored), range, out, options)
    }

    /// As [`decompress_bytes`](Outline::decompress_bytes), reading the frame on demand: `fetch`
    /// fills a buffer with the bytes of the frame from a position on and returns whether it could;
    /// if not, decoding fails as cancelled. Every thread fetches a chunk, decodes it while it is in
    /// its caches, and reuses the buffer for the next.
    pub fn decompress_fetched(
        &self,
        fetch: impl Fn(u64, &mut [u8]) -> bool + Sync,
        range: Range<u64>,
        out: &mut [u8],
        options: &DecodeOptions,
    ) -> Result<()> {
        SimdLevel::current()?;
        let frame = Frame::new(&self.index, Stored::Pieces(self.info.frame_len, &[]));
        decode::byte_range_into(&Fetched { frame, fetch }, range, out, options)
    }
}

/// A frame whose chunks are fetched on demand.
struct Fetched<'a, F> {
    frame: Frame<'a>,
    fetch: F,
}

impl<F: Fn(u64, &mut [u8]) -> bool + Sync> Chunks for Fetched<'_, F> {
    type Description = ChunkLayout;
    /// Decoding scratch, and a buffer for the payload of a chunk.
    type Scratch = (decode::Reused, Vec<u8>);

    fn frame(&self) -> &Frame<'_> {
        &self.frame
    }

    fn scratch(&self, large_output: bool) -> Self::Scratch {
        (self.frame.scratch(large_output), Vec::new())
    }

    fn decode_chunk(&self, index: usize, out: &mut [u8], scratch: &mut Self::Scratch) -> Result<()> {
        let (scratch, payload) = scratch;
        let (checksum, layout) = self.frame.described(index)?;
        let stored = self.frame.payload_of(index);
        // No longer than the frame, as was checked with the index.
        let len = (stored.end - stored.start) as usize;
        memory::reserve(payload, len.saturating_sub(payload.len()))?;
        payload.resize(len.max(payload.len()), 0);
        let payload = &mut payload[..len];
        if !(self.fetch)(stored.start, payload) {
            return Err(Error::cancelled());
        }
        let scratch = scratch.for_chunk(out.len());
        let hash = layout.decode_hashed(payload, out, self.frame.context(), scratch)?;
        decode::check_hash(index, checksum, hash)
    }
}

impl std::fmt::Debug for Outline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outline").field("info", &self.info).finish_non_exhaustive()
    }
}
