//! Frames of any version: which one it is is decided once, when the frame is parsed.

use std::ops::Range;

use crate::error::Result;
use crate::frame::{Frame, decode, stats};
use crate::layout::streams::StreamInfo;
use crate::legacy;
use crate::options::{DecodeOptions, FrameInfo};

/// A parsed frame.
pub(crate) enum AnyFrame<'a> {
    /// Decoded by the crate `z4ai-v1`, which parses its few headers with every call.
    V1(&'a [u8]),
    V2(Frame<'a>),
}

impl<'a> AnyFrame<'a> {
    pub(crate) fn parse(frame: &'a [u8]) -> Result<Self> {
        match legacy::is_legacy(frame) {
            true => Ok(Self::V1(frame)),
            false => Frame::parse(frame).map(Self::V2),
        }
    }

    pub(crate) fn info(&self) -> Result<FrameInfo> {
        match self {
            Self::V1(frame) => legacy::inspect(frame),
            Self::V2(frame) => Ok(frame.info()),
        }
    }

    pub(crate) fn streams(&self) -> Result<Vec<StreamInfo>> {
        match self {
            Self::V1(_) => Ok(Vec::new()),
            Self::V2(frame) => stats::streams(frame),
        }
    }

    pub(crate) fn decompress(&self, options: &DecodeOptions) -> Result<Vec<u8>> {
        match self {
            Self::V1(frame) => legacy::decompress(frame, options),
            Self::V2(frame) => decode::to_vec(frame, options),
        }
    }

    pub(crate) fn decompress_into(&self, out: &mut [u8], options: &DecodeOptions) -> Result<()> {
        match self {
            Self::V1(frame) => legacy::decompress_into(frame, out, options),
            Self::V2(frame) => decode::whole_into(frame, out, options),
        }
    }

    /// Elements `range`; those of version 1 are bytes.
    pub(crate) fn decompress_range(
        &self,
        range: Range<u64>,
        out: &mut [u8],
        options: &DecodeOptions,
    ) -> Result<()> {
        match self {
            Self::V1(frame) => legacy::decompress_range(frame, range, out, options),
            Self::V2(frame) => decode::range_into(frame, range, out, options),
        }
    }

    pub(crate) fn decompress_bytes(
        &self,
        range: Range<u64>,
        out: &mut [u8],
        options: &DecodeOptions,
    ) -> Result<()> {
        match self {
            Self::V1(frame) => legacy::decompress_range(frame, range, out, options),
            Self::V2(frame) => decode::byte_range_into(frame, range, out, options),
        }
    }
}
