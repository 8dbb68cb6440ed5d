//! Version 1 frames: decoded, never written. The decoders are the crate `z4ai-v1` (feature `v1`, on
//! by default).
//!
//! Stand-alone frames are `Z4AI` 1, `ZSP1`, `ZPL1`, `ZRT1`, `ZARA` 1 and `Z4AIMF01`;
//! [`crate::decompress`] and its siblings read them like any other frame. Deltas are `Z4DL` 2,
//! which need their reference: [`decompress_delta`]. Without the feature no frame is taken for one
//! of these, and the functions here fail with [`Unsupported`](crate::ErrorKind::Unsupported).

// The stub of `z4ai-v1` uses this crate's own types.
#![cfg_attr(not(feature = "v1"), allow(clippy::useless_conversion, clippy::needless_question_mark))]

use std::ops::Range;

use crate::{Array, DecodeOptions, FrameInfo, Result};

#[cfg(feature = "v1")]
use z4ai_v1 as v1;

/// The interface of the crate `z4ai-v1` in a build without it.
#[cfg(not(feature = "v1"))]
mod v1 {
    use std::ops::Range;

    use crate::{Error, Result};

    pub(super) struct Info {
        pub(super) format: &'static str,
        pub(super) version: u32,
        pub(super) array: Option<crate::Array>,
        pub(super) content_len: u64,
        pub(super) frame_len: u64,
    }

    fn absent<T>() -> Result<T> {
        Err(Error::unsupported("this build does not decode version 1 frames (feature `v1`)"))
    }

    pub(super) fn is_legacy(_: &[u8]) -> bool {
        false
    }

    pub(super) fn is_legacy_delta(_: &[u8]) -> bool {
        false
    }

    pub(super) fn decompress(_: &[u8], _: u64) -> Result<Vec<u8>> {
        absent()
    }

    pub(super) fn decompress_into(_: &[u8], _: &mut [u8], _: u64) -> Result<()> {
        absent()
    }

    pub(super) fn decompress_range(_: &[u8], _: Range<u64>, _: &mut [u8], _: u64) -> Result<()> {
        absent()
    }

    pub(super) fn decompress_array(_: &[u8], _: u64) -> Result<(crate::Array, Vec<u8>)> {
        absent()
    }

    pub(super) fn inspect(_: &[u8]) -> Result<Info> {
        absent()
    }

    pub(super) fn decompress_delta(_: &[u8], _: &[u8], _: u64) -> Result<Vec<u8>> {
        absent()
    }

    pub(super) fn decompress_delta_into(_: &[u8], _: &[u8], _: &mut [u8], _: u64) -> Result<()> {
        absent()
    }

    pub(super) fn decompress_delta_range(
        _: &[u8],
        _: &[u8],
        _: Range<u64>,
        _: &mut [u8],
        _: u64,
    ) -> Result<()> {
        absent()
    }

    pub(super) fn inspect_delta(_: &[u8]) -> Result<Info> {
        absent()
    }
}

#[cfg(feature = "v1")]
impl From<v1::Error> for crate::Error {
    fn from(error: v1::Error) -> Self {
        use crate::ErrorKind;
        let kind = match error.kind() {
            v1::ErrorKind::Corrupt => ErrorKind::Corrupt,
            v1::ErrorKind::Unsupported => ErrorKind::Unsupported,
            v1::ErrorKind::InvalidArgument => ErrorKind::InvalidArgument,
            v1::ErrorKind::LimitExceeded => ErrorKind::LimitExceeded,
            v1::ErrorKind::Mismatch => ErrorKind::Mismatch,
        };
        Self::new(kind, error)
    }
}

#[cfg(feature = "v1")]
impl From<v1::Array> for Array {
    fn from(array: v1::Array) -> Self {
        Self { dtype: array.dtype, shape: array.shape }
    }
}

#[cfg(feature = "v1")]
use v1::FrameInfo as Info;
#[cfg(not(feature = "v1"))]
use v1::Info;

fn frame_info(info: Info) -> FrameInfo {
    FrameInfo {
        format: info.format,
        version: info.version,
        // Frames know the width of their elements at most, not their type.
        kind: crate::Kind::Raw,
        array: info.array.map(Into::into),
        content_len: info.content_len,
        frame_len: info.frame_len,
        chunks: 1,
    }
}

/// Whether `frame` starts like a stand-alone version 1 frame.
pub fn is_legacy(frame: &[u8]) -> bool {
    v1::is_legacy(frame)
}

/// Whether `frame` starts like a version 2 delta, the kind that goes with version 1 frames.
pub fn is_legacy_delta(frame: &[u8]) -> bool {
    v1::is_legacy_delta(frame)
}

/// Decodes a stand-alone version 1 frame into new memory.
pub fn decompress(frame: &[u8], options: &DecodeOptions) -> Result<Vec<u8>> {
    Ok(v1::decompress(frame, options.max_output)?)
}

/// Decodes a stand-alone version 1 frame into the caller's memory, whose length must be that of
/// the decoded frame (see [`inspect`]). On error the contents of `out` are unspecified.
pub fn decompress_into(frame: &[u8], out: &mut [u8], options: &DecodeOptions) -> Result<()> {
    Ok(v1::decompress_into(frame, out, options.max_output)?)
}

/// Decodes bytes `range` of a stand-alone version 1 frame into `out`, whose length must be
/// theirs. Version 1 has no random access: the whole frame is decoded and the rest dropped.
pub fn decompress_range(
    frame: &[u8],
    range: Range<u64>,
    out: &mut [u8],
    options: &DecodeOptions,
) -> Result<()> {
    Ok(v1::decompress_range(frame, range, out, options.max_output)?)
}

/// Decodes a stand-alone version 1 frame that was made from an array.
pub fn decompress_array(frame: &[u8], options: &DecodeOptions) -> Result<(Array, Vec<u8>)> {
    let (array, bytes) = v1::decompress_array(frame, options.max_output)?;
    Ok((array.into(), bytes))
}

/// The headers of a stand-alone version 1 frame, checked; nothing is decoded.
pub fn inspect(frame: &[u8]) -> Result<FrameInfo> {
    Ok(frame_info(v1::inspect(frame)?))
}

/// Applies a version 2 delta to its reference.
///
/// A reference other than the one the delta was made from is a [`Mismatch`], found before
/// anything is decoded.
///
/// [`Mismatch`]: crate::ErrorKind::Mismatch
pub fn decompress_delta(frame: &[u8], reference: &[u8], options: &DecodeOptions) -> Result<Vec<u8>> {
    Ok(v1::decompress_delta(frame, reference, options.max_output)?)
}

/// As [`decompress_delta`], into the caller's memory, which must be as long as the reference.
pub fn decompress_delta_into(
    frame: &[u8],
    reference: &[u8],
    out: &mut [u8],
    options: &DecodeOptions,
) -> Result<()> {
    Ok(v1::decompress_delta_into(frame, reference, out, options.max_output)?)
}

/// As [`decompress_delta`], of bytes `range` only. The whole delta is decoded and the rest dropped.
pub fn decompress_delta_range(
    frame: &[u8],
    reference: &[u8],
    range: Range<u64>,
    out: &mut [u8],
    options: &DecodeOptions,
) -> Result<()> {
    Ok(v1::decompress_delta_range(frame, reference, range, out, options.max_output)?)
}

/// The headers of a version 2 delta.
pub fn inspect_delta(frame: &[u8]) -> Result<FrameInfo> {
    Ok(frame_info(v1::inspect_delta(frame)?))
}
