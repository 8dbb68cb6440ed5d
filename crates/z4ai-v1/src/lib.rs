//! Decoders of version 1 frames of the z4ai codec, which are no longer written.
//!
//! Stand-alone frames are `Z4AI` 1, `ZSP1`, `ZPL1`, `ZRT1`, `ZARA` 1 and `Z4AIMF01`. Deltas are
//! `Z4DL` 2, which need their reference: [`decompress_delta`]. The crate `z4ai` reads both like
//! frames of its own version, and is what applications use.
//!
//! These frames carry no checksums, so damage shows only where it breaks a rule. All the more rules
//! are enforced: every length agrees with every other, every byte of a frame is accounted for,
//! padding is zero, entropy-coded streams end in the state they must end in. All that the headers
//! can tell is checked before any output is allocated.

#![forbid(unsafe_code)]

mod array;
mod auto;
mod bits;
mod body;
mod brotli;
mod bytes;
mod chunked;
mod delta;
mod error;
mod frame_z4ai;
mod palette;
mod planes;
mod rans;
mod rans_order1;
mod sparse;
mod stream;
mod turbo;
mod zstd_frame;

use std::fmt;
use std::ops::Range;

use array::ArrayField;
use body::Body;
use bytes::zeroed;
use chunked::Chunked;
use delta::Delta;
pub use error::{Error, ErrorKind, Result};
use palette::Palette;
use sparse::Sparse;
use zstd_frame::Zstd;

/// The description of an array that a frame was made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array {
    /// The element type as NumPy's `dtype.str`.
    pub dtype: String,
    /// The shape, outermost dimension first.
    pub shape: Vec<u64>,
}

/// The headers of a frame. They know the width of elements at most, not their type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameInfo {
    /// The magic, as text.
    pub format: &'static str,
    /// The version of that format.
    pub version: u32,
    /// The array that the frame was made from, if it was.
    pub array: Option<Array>,
    /// Bytes that the frame decodes to.
    pub content_len: u64,
    /// Bytes of the frame.
    pub frame_len: u64,
}

/// The flag of frames that were made from an array.
const IS_ARRAY: u8 = 1;

/// Whether `frame` starts like a stand-alone version 1 frame.
pub fn is_legacy(frame: &[u8]) -> bool {
    Format::of(frame).is_some()
}

/// Whether `frame` starts like a version 2 delta, the kind that goes with version 1 frames.
pub fn is_legacy_delta(frame: &[u8]) -> bool {
    starts_with_version(frame, delta::MAGIC, delta::VERSION)
}

/// Decodes a stand-alone version 1 frame into new memory.
pub fn decompress(frame: &[u8], max_output: u64) -> Result<Vec<u8>> {
    StandAlone::parse(frame)?.decode(max_output)
}

/// Decodes a stand-alone version 1 frame into the caller's memory, whose length must be that of
/// the decoded frame (see [`inspect`]). On error the contents of `out` are unspecified.
pub fn decompress_into(frame: &[u8], out: &mut [u8], max_output: u64) -> Result<()> {
    let frame = StandAlone::parse(frame)?;
    check_limit(frame.len() as u64, max_output)?;
    check_out(out, frame.len() as u64)?;
    frame.decode_into(out)
}

/// Decodes bytes `range` of a stand-alone version 1 frame into `out`, whose length must be
/// theirs. Version 1 has no random access: the whole frame is decoded and the rest dropped.
pub fn decompress_range(frame: &[u8], range: Range<u64>, out: &mut [u8], max_output: u64) -> Result<()> {
    copy_range(&decompress(frame, max_output)?, range, out)
}

/// Decodes a stand-alone version 1 frame that was made from an array.
pub fn decompress_array(frame: &[u8], max_output: u64) -> Result<(Array, Vec<u8>)> {
    let frame = StandAlone::parse(frame)?;
    let array = frame.array()?.ok_or_else(|| Error::invalid("the frame was not made from an array"))?;
    Ok((array, frame.decode(max_output)?))
}

/// What a stand-alone version 1 frame says about itself, its headers checked but nothing decoded.
pub fn inspect(frame: &[u8]) -> Result<FrameInfo> {
    let parsed = StandAlone::parse(frame)?;
    let (format, version) = parsed.format.name();
    Ok(FrameInfo {
        format,
        version,
        array: parsed.array()?,
        content_len: parsed.len() as u64,
        frame_len: frame.len() as u64,
    })
}

/// Applies a version 2 delta to its reference.
///
/// A reference other than the one the delta was made from is a [`Mismatch`], found before
/// anything is decoded.
///
/// [`Mismatch`]: ErrorKind::Mismatch
pub fn decompress_delta(frame: &[u8], reference: &[u8], max_output: u64) -> Result<Vec<u8>> {
    let delta = Delta::parse(frame)?;
    check_limit(delta.len(), max_output)?;
    delta.check_reference(reference)?;
    let mut out = zeroed(reference.len())?;
    delta.decode_into(reference, &mut out)?;
    Ok(out)
}

/// As [`decompress_delta`], into the caller's memory, which must be as long as the reference.
pub fn decompress_delta_into(frame: &[u8], reference: &[u8], out: &mut [u8], max_output: u64) -> Result<()> {
    let delta = Delta::parse(frame)?;
    check_limit(delta.len(), max_output)?;
    check_out(out, delta.len())?;
    delta.check_reference(reference)?;
    delta.decode_into(reference, out)
}

/// As [`decompress_delta`], of bytes `range` only. The whole delta is decoded and the rest dropped.
pub fn decompress_delta_range(
    frame: &[u8],
    reference: &[u8],
    range: Range<u64>,
    out: &mut [u8],
    max_output: u64,
) -> Result<()> {
    let whole = decompress_delta(frame, reference, max_output)?;
    copy_range(&whole, range, out)
}

/// What a version 2 delta says about itself.
pub fn inspect_delta(frame: &[u8]) -> Result<FrameInfo> {
    let delta = Delta::parse(frame)?;
    Ok(FrameInfo {
        format: "Z4DL",
        version: u32::from(delta::VERSION),
        array: None,
        content_len: delta.len(),
        frame_len: frame.len() as u64,
    })
}

/// Which frame a magic announces.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Z4ai,
    Sparse,
    Palette,
    Turbo,
    Auto,
    Chunked,
}

impl Format {
    fn of(frame: &[u8]) -> Option<Self> {
        // The chunked magic begins like a `Z4AI` frame, but its fifth byte is no version.
        if frame.starts_with(chunked::MAGIC) {
            Some(Self::Chunked)
        } else if starts_with_version(frame, frame_z4ai::MAGIC, frame_z4ai::VERSION) {
            Some(Self::Z4ai)
        } else if starts_with_version(frame, auto::MAGIC, auto::VERSION) {
            Some(Self::Auto)
        } else if frame.starts_with(sparse::MAGIC) {
            Some(Self::Sparse)
        } else if frame.starts_with(palette::MAGIC) {
            Some(Self::Palette)
        } else if frame.starts_with(turbo::MAGIC) {
            Some(Self::Turbo)
        } else {
            None
        }
    }

    fn name(self) -> (&'static str, u32) {
        match self {
            Self::Z4ai => ("Z4AI", 1),
            Self::Sparse => ("ZSP1", 1),
            Self::Palette => ("ZPL1", 1),
            Self::Turbo => ("ZRT1", 2),
            Self::Auto => ("ZARA", 1),
            Self::Chunked => ("Z4AIMF01", 1),
        }
    }
}

/// A frame that needs nothing else to decode, its headers checked.
struct StandAlone<'a> {
    format: Format,
    array: Option<ArrayField<'a>>,
    content: Content<'a>,
}

enum Content<'a> {
    Empty,
    Body(Body<'a>),
    Sparse(Sparse<'a>),
    Palette(Palette<'a>),
    Chunked(Chunked<'a>),
}

impl<'a> StandAlone<'a> {
    fn parse(frame: &'a [u8]) -> Result<Self> {
        let format = Format::of(frame)
            .ok_or_else(|| Error::unsupported("not a version 1 frame: it has another magic"))?;
        let (content, array) = match format {
            Format::Z4ai => {
                let (body, array) = frame_z4ai::parse(frame)?;
                (Content::Body(body), array)
            }
            Format::Auto => {
                let (body, array) = auto::parse(frame)?;
                (Content::Body(body), array)
            }
            Format::Sparse => {
                let (sparse, array) = Sparse::parse(frame)?;
                (Content::Sparse(sparse), array)
            }
            Format::Palette => {
                let (palette, array) = Palette::parse(frame)?;
                (Content::Palette(palette), array)
            }
            Format::Turbo => {
                let body = turbo::parse(frame)?;
                (body.map_or(Content::Empty, Content::Body), None)
            }
            Format::Chunked => (Content::Chunked(Chunked::parse(frame)?), None),
        };
        Ok(Self { format, array, content })
    }

    /// A frame of the kinds that other frames hold.
    fn parse_core(frame: &'a [u8]) -> Result<Self> {
        match Format::of(frame) {
            Some(Format::Z4ai | Format::Sparse | Format::Palette) => Self::parse(frame),
            _ => Err(corrupt("a delta holds something else than a core frame")),
        }
    }

    fn len(&self) -> usize {
        match &self.content {
            Content::Empty => 0,
            Content::Body(body) => body.len(),
            Content::Sparse(sparse) => sparse.len(),
            Content::Palette(palette) => palette.len(),
            Content::Chunked(chunked) => chunked.len(),
        }
    }

    fn array(&self) -> Result<Option<Array>> {
        self.array.map(|array| array.check(self.len())).transpose()
    }

    fn decode(&self, max_output: u64) -> Result<Vec<u8>> {
        check_limit(self.len() as u64, max_output)?;
        let mut out = zeroed(self.len())?;
        self.decode_into(&mut out)?;
        Ok(out)
    }

    /// Decodes into `out`, which has the frame's decoded length.
    fn decode_into(&self, out: &mut [u8]) -> Result<()> {
        let zstd = &mut Zstd::default();
        match &self.content {
            Content::Empty => Ok(()),
            Content::Body(body) => body.decode_into(out, zstd),
            Content::Sparse(sparse) => sparse.decode_into(out, zstd),
            Content::Palette(palette) => palette.decode_into(out, zstd),
            Content::Chunked(chunked) => chunked.decode_into(out, zstd),
        }
    }
}

fn starts_with_version(frame: &[u8], magic: &[u8; 4], version: u8) -> bool {
    frame.starts_with(magic) && frame.get(magic.len()) == Some(&version)
}

fn check_version(found: u8, known: u8, magic: &str) -> Result<()> {
    if found != known {
        return Err(Error::unsupported(format!("{magic} frame of version {found}, only {known} is known")));
    }
    Ok(())
}

fn check_limit(len: u64, max_output: u64) -> Result<()> {
    if len > max_output {
        return Err(Error::limit(format!("the frame decodes to {len} bytes, the limit is {}", max_output)));
    }
    Ok(())
}

fn check_out(out: &[u8], len: u64) -> Result<()> {
    if out.len() as u64 != len {
        return Err(Error::invalid(format!(
            "the frame decodes to {len} bytes, the output has {}",
            out.len()
        )));
    }
    Ok(())
}

/// Copies bytes `range` of decoded bytes to `out`, if they are there and as many.
fn copy_range(bytes: &[u8], range: Range<u64>, out: &mut [u8]) -> Result<()> {
    let len = bytes.len() as u64;
    if range.start > range.end || range.end > len {
        return Err(Error::invalid(format!("bytes {range:?} of a frame that decodes to {len}")));
    }
    check_out(out, range.end - range.start)?;
    // Both ends are at most `len`, which is a size in memory.
    out.copy_from_slice(&bytes[range.start as usize..range.end as usize]);
    Ok(())
}

fn corrupt(message: impl fmt::Display) -> Error {
    Error::corrupt(message)
}

fn too_large(len: u64) -> Error {
    Error::limit(format!("no memory for {len} bytes"))
}
