//! A lossless codec for neural-network weights: bytes in, fewer bytes out.
//!
//! Knows element types and shapes; knows no files and no names.
//!
//! ```
//! use z4ai::{DecodeOptions, Kind, Options};
//!
//! let weights: Vec<u8> = (0..4096u32).flat_map(|i| (i as f32 / 4096.0).to_le_bytes()).collect();
//! let options = Options { kind: Kind::F32, ..Options::default() };
//! let frame = z4ai::compress(&weights, &options)?;
//! assert_eq!(z4ai::decompress(&frame, &DecodeOptions::default())?, weights);
//! # Ok::<(), z4ai::Error>(())
//! ```

mod bits;
mod coder;
pub mod delta;
mod element;
mod error;
mod estimate;
mod frame;
mod kernel;
mod layout;
pub mod legacy;
mod memory;
mod options;
mod parallel;
mod progress;
mod reused;
mod search;
mod simd;
mod wire;

pub use coder::choose::DEFAULT_LEVEL;
pub use element::Kind;
pub use error::{Error, ErrorKind, Result};
pub use frame::parsed::ParsedFrame;
pub use frame::partial;
pub use frame::stream::{Ends, StreamEncoder};
pub use layout::blocks::BlockType;
pub use layout::streams::StreamInfo;
pub use options::{Array, DecodeOptions, Effort, FrameInfo, Options};
pub use progress::{Observer, SharedObserver};
/// Parts that the crates of this workspace share.
#[doc(hidden)]
pub mod rt {
    pub use crate::memory::advise_huge;
    pub use crate::parallel::{resolve, run};
}
#[doc(hidden)]
pub use simd::ForcedLevel;
pub use simd::SimdLevel;

use frame::encode;
use std::ops::Range;

/// Encodes `data` into a new frame.
///
/// The frame is the same for the same data and options whatever the number of threads, and never
/// longer than [`max_compressed_len`].
pub fn compress(data: &[u8], options: &Options) -> Result<Vec<u8>> {
    let mut frame = Vec::new();
    compress_into(data, options, &mut frame)?;
    frame.shrink_to_fit();
    Ok(frame)
}

/// Encodes `data` into `frame`, which is cleared first: memory it already holds is reused.
pub fn compress_into(data: &[u8], options: &Options, frame: &mut Vec<u8>) -> Result<()> {
    encode::into(data, options, frame)
}

/// The longest frame that `len` bytes of data can become, whatever they are.
pub fn max_compressed_len(len: usize) -> usize {
    encode::max_len(len)
}

/// Decodes a whole frame into new memory.
pub fn decompress(frame: &[u8], options: &DecodeOptions) -> Result<Vec<u8>> {
    ParsedFrame::parse(frame)?.decompress(options)
}

/// Decodes a whole frame into the caller's memory, whose length must be the frame's
/// [`content_len`](FrameInfo::content_len). On error the contents of `out` are unspecified.
pub fn decompress_into(frame: &[u8], out: &mut [u8], options: &DecodeOptions) -> Result<()> {
    ParsedFrame::parse(frame)?.decompress_into(out, options)
}

/// Decodes elements `range` of a frame into `out`, whose length must be theirs in bytes; only the
/// chunks that hold them are decoded. Elements are those of the frame's [`Kind`].
pub fn decompress_range(
    frame: &[u8],
    range: Range<u64>,
    out: &mut [u8],
    options: &DecodeOptions,
) -> Result<()> {
    ParsedFrame::parse(frame)?.decompress_range(range, out, options)
}

/// Decodes bytes `range` of a frame's content into `out`, whose length must be theirs; only the
/// chunks that hold them are decoded.
pub fn decompress_bytes(
    frame: &[u8],
    range: Range<u64>,
    out: &mut [u8],
    options: &DecodeOptions,
) -> Result<()> {
    ParsedFrame::parse(frame)?.decompress_bytes(range, out, options)
}

/// Whether `bytes` start like a frame that [`decompress`] knows, of this version or an earlier one.
pub fn is_frame(bytes: &[u8]) -> bool {
    legacy::is_legacy(bytes) || frame::starts_like::<layout::ChunkLayout>(bytes)
}

/// What a frame says about itself, its index checked but nothing decoded.
pub fn inspect(frame: &[u8]) -> Result<FrameInfo> {
    ParsedFrame::parse(frame)?.info()
}

/// What a frame or a delta is made of, nothing decoded: its streams by role and coder, in the
/// order in which they first appear. Empty for frames of version 1.
pub fn streams(frame: &[u8]) -> Result<Vec<StreamInfo>> {
    match delta::is_delta(frame) {
        true => delta::streams(frame),
        false => ParsedFrame::parse(frame)?.streams(),
    }
}
