//! Frames of any version, parsed once: the version is decided, header and index are checked.

use std::ops::Range;

use crate::error::Result;
use crate::frame::{Frame, decode, stats};
use crate::layout::streams::StreamInfo;
use crate::legacy;
use crate::options::{DecodeOptions, FrameInfo};

/// A frame whose header and index are parsed and checked: what it decodes to can be asked before
/// memory is allocated for it, and it is decoded without parsing it again.
///
/// ```
/// use z4ai::{DecodeOptions, Options, ParsedFrame};
///
/// let bytes = z4ai::compress(&[7; 1000], &Options::default())?;
/// let frame = ParsedFrame::parse(&bytes)?;
/// let mut out = vec![0; frame.content_len()? as usize];
/// frame.decompress_into(&mut out, &DecodeOptions::default())?;
/// assert_eq!(out, [7; 1000]);
/// # Ok::<(), z4ai::Error>(())
/// ```
pub struct ParsedFrame<'a>(Version<'a>);

enum Version<'a> {
    /// Decoded by the crate `z4ai-v1`, which parses its few headers with every call.
    V1(&'a [u8]),
    V2(Frame<'a>),
}
impl<'a> ParsedFrame<'a> {
    /// Parses a whole frame of any version.
    pub fn parse(frame: &'a [u8]) -> Result<Self> {
        match legacy::is_legacy(frame) {
            true => Ok(Self(Version::V1(frame))),
            false => Frame::parse(frame).map(Version::V2).map(Self),
        }
    }

    /// The number of bytes it decodes to.
    pub fn content_len(&self) -> Result<u64> {
        match &self.0 {
            Version::V1(frame) => Ok(legacy::inspect(frame)?.content_len),
            Version::V2(frame) => Ok(frame.content_len),
        }
    }

    /// What the frame says about itself.
    pub fn info(&self) -> Result<FrameInfo> {
        match &self.0 {
            Version::V1(frame) => legacy::inspect(frame),
            Version::V2(frame) => Ok(frame.info()),
        }
    }

    /// Its streams by role and coder; see [`streams`](crate::streams).
    pub fn streams(&self) -> Result<Vec<StreamInfo>> {
        match &self.0 {
            Version::V1(_) => Ok(Vec::new()),
            Version::V2(frame) => stats::streams(frame),
        }
    }

    /// Decodes all of it into new memory.
    pub fn decompress(&self, options: &DecodeOptions) -> Result<Vec<u8>> {
        match &self.0 {
            Version::V1(frame) => legacy::decompress(frame, options),
            Version::V2(frame) => decode::to_vec(frame, options),
        }
    }

    /// Decodes all of it into `out`; see [`decompress_into`](crate::decompress_into).
    pub fn decompress_into(&self, out: &mut [u8], options: &DecodeOptions) -> Result<()> {
        match &self.0 {
            Version::V1(frame) => legacy::decompress_into(frame, out, options),
            Version::V2(frame) => decode::whole_into(frame, out, options),
        }
    }

    /// Decodes elements `range`, which are bytes for version 1; see
    /// [`decompress_range`](crate::decompress_range).
    pub fn decompress_range(&self, range: Range<u64>, out: &mut [u8], options: &DecodeOptions) -> Result<()> {
        match &self.0 {
            Version::V1(frame) => legacy::decompress_range(frame, range, out, options),
            Version::V2(frame) => decode::range_into(frame, range, out, options),
        }
    }

    /// Decodes bytes `range` of the content; see [`decompress_bytes`](crate::decompress_bytes).
    pub fn decompress_bytes(&self, range: Range<u64>, out: &mut [u8], options: &DecodeOptions) -> Result<()> {
        match &self.0 {
            Version::V1(frame) => legacy::decompress_range(frame, range, out, options),
            Version::V2(frame) => decode::byte_range_into(frame, range, out, options),
        }
    }
}
