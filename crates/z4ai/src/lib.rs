//! A lossless codec for neural-network weights: bytes in, fewer bytes out.
//!
//! Knows element types and shapes; knows no files and no names.
//!
//! ```ignore
//! use z4ai::{DecodeOptions, Kind, Options};
//!
//! let weights: Vec<u8> = (0..4096u32).flat_map(|i| (i as f32 / 4096.0).to_le_bytes()).collect();
//! let options = Options { kind: Kind::F32, ..Options::default() };
//! let frame = z4ai::compress(&weights, &options)?;
//! assert_eq!(z4ai::decompress(&frame, &DecodeOptions::default())?, weights);
//! # Ok::<(), z4ai::Error>(())
//! ```

#![allow(dead_code)] // the engine behind these doors lands next

mod element;
mod error;
pub mod legacy;
mod options;

pub use element::Kind;
pub use error::{Error, ErrorKind, Result};
pub use options::{Array, DecodeOptions, Effort, FrameInfo, Options};

use std::ops::Range;

/// Encodes `data` into a new frame.
///
/// The frame is the same for the same data and options whatever the number of threads.
pub fn compress(data: &[u8], options: &Options) -> Result<Vec<u8>> {
    let mut frame = Vec::new();
    compress_into(data, options, &mut frame)?;
    Ok(frame)
}

/// Encodes `data` into `frame`, which is cleared first: memory it already holds is reused.
pub fn compress_into(data: &[u8], options: &Options, frame: &mut Vec<u8>) -> Result<()> {
    let _ = (data, options);
    frame.clear();
    Err(Error::unsupported("encoding is not built yet"))
}

/// Decodes a whole frame into new memory.
pub fn decompress(frame: &[u8], options: &DecodeOptions) -> Result<Vec<u8>> {
    if legacy::is_legacy(frame) {
        return legacy::decompress(frame, options);
    }
    Err(Error::unsupported("decoding is not built yet"))
}

/// Decodes a whole frame into the caller's memory, whose length must be the frame's
/// [`content_len`](FrameInfo::content_len). On error the contents of `out` are unspecified.
pub fn decompress_into(frame: &[u8], out: &mut [u8], options: &DecodeOptions) -> Result<()> {
    if legacy::is_legacy(frame) {
        return legacy::decompress_into(frame, out, options);
    }
    Err(Error::unsupported("decoding is not built yet"))
}

/// Decodes elements `range` of a frame into `out`, whose length must be theirs in bytes; only the
/// chunks that hold them are decoded. Elements are those of the frame's [`Kind`].
pub fn decompress_range(
    frame: &[u8],
    range: Range<u64>,
    out: &mut [u8],
    options: &DecodeOptions,
) -> Result<()> {
    if legacy::is_legacy(frame) {
        return legacy::decompress_range(frame, range, out, options);
    }
    Err(Error::unsupported("decoding is not built yet"))
}

/// What a frame says about itself, its index checked but nothing decoded.
pub fn inspect(frame: &[u8]) -> Result<FrameInfo> {
    if legacy::is_legacy(frame) {
        return legacy::inspect(frame);
    }
    Err(Error::unsupported("decoding is not built yet"))
}
