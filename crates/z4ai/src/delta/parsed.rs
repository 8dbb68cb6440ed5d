//! Deltas of any version, parsed once: the version is decided, header and index are checked.

use std::ops::Range;

use super::{Applied, check_length, check_reference, hash_each, hashes_of, in_place};
use crate::error::{Error, Result};
use crate::frame::{Frame, decode};
use crate::layout::delta::{ChangedPlaces, Delta, DeltaScratch};
use crate::legacy;
use crate::options::{DecodeOptions, FrameInfo};

/// A delta whose header and index are parsed and checked: what it decodes to can be asked before
/// memory is allocated for it, and it is decoded without parsing it again.
pub struct ParsedDelta<'a>(pub(super) Version<'a>);

pub(super) enum Version<'a> {
    /// Decoded by the crate `z4ai-v1`, which parses its few headers with every call.
    V1(&'a [u8]),
    V2(Frame<'a, Delta>),
}

impl<'a> ParsedDelta<'a> {
    /// Parses a whole delta of any version.
    pub fn parse(frame: &'a [u8]) -> Result<Self> {
        match legacy::is_legacy_delta(frame) {
            true => Ok(Self(Version::V1(frame))),
            false => Frame::parse(frame).map(Version::V2).map(Self),
        }
    }

    /// What the delta says about itself.
    pub fn info(&self) -> Result<FrameInfo> {
        match &self.0 {
            Version::V1(frame) => legacy::inspect_delta(frame),
            Version::V2(frame) => Ok(frame.info()),
        }
    }

    /// The number of bytes it decodes to, which is that of its reference.
    pub fn content_len(&self) -> Result<u64> {
        match &self.0 {
            Version::V1(frame) => Ok(legacy::inspect_delta(frame)?.content_len),
            Version::V2(frame) => Ok(frame.content_len),
        }
    }

    /// The bytes of the reference that decoding bytes `range` of the content reads: whole chunks.
    pub fn reference_range(&self, range: Range<u64>) -> Result<Range<u64>> {
        let len = self.content_len()?;
        match &self.0 {
            Version::V1(_) => Ok(0..len),
            Version::V2(frame) => {
                let chunks = frame.chunks_of(range.start.min(len)..range.end.min(len));
                match chunks.is_empty() {
                    true => Ok(0..0),
                    false => Ok(frame.content_of(chunks.start).start..frame.content_of(chunks.end - 1).end),
                }
            }
        }
    }

    /// See [`decompress`](super::decompress).
    pub fn decompress(&self, reference: &[u8], options: &DecodeOptions) -> Result<Vec<u8>> {
        match &self.0 {
            Version::V1(frame) => legacy::decompress_delta(frame, reference, options),
            Version::V2(frame) => {
                let whole = 0..frame.content_len;
                decode::to_vec(&Applied::new(frame, reference, whole, options)?, options)
            }
        }
    }

    /// See [`decompress_into`](super::decompress_into).
    pub fn decompress_into(&self, reference: &[u8], out: &mut [u8], options: &DecodeOptions) -> Result<()> {
        match &self.0 {
            Version::V1(frame) => legacy::decompress_delta_into(frame, reference, out, options),
            Version::V2(frame) => {
                let whole = 0..frame.content_len;
                decode::whole_into(&Applied::new(frame, reference, whole, options)?, out, options)
            }
        }
    }

    /// See [`restore_into`](super::restore_into).
    pub fn restore_into(&self, reference: &[u8], out: &mut [u8], options: &DecodeOptions) -> Result<()> {
        match &self.0 {
            Version::V1(frame) => legacy::decompress_delta_into(frame, reference, out, options),
            Version::V2(frame) => {
                check_length(frame, reference)?;
                decode::whole_into(&Applied::unchecked(frame, Some(reference), options), out, options)
            }
        }
    }

    /// Decodes bytes `range` of the content into `out`, whose length must be theirs, from a part of the reference:
    /// the bytes that [`reference_range`](Self::reference_range) names for them. As in
    /// [`restore_into`](super::restore_into), they are not hashed.
    pub fn restore_bytes(
        &self,
        reference: &[u8],
        range: Range<u64>,
        out: &mut [u8],
        options: &DecodeOptions,
    ) -> Result<()> {
        let needed = self.reference_range(range.clone())?;
        if reference.len() as u64 != needed.end - needed.start {
            return Err(Error::mismatch(format_args!(
                "bytes {needed:?} of the delta's reference are needed, and {} are there",
                reference.len()
            )));
        }
        match &self.0 {
            Version::V1(frame) => legacy::decompress_delta_range(frame, reference, range, out, options),
            Version::V2(frame) => {
                let mut applied = Applied::unchecked(frame, Some(reference), options);
                applied.start = needed.start;
                decode::byte_range_into(&applied, range, out, options)
            }
        }
    }

    /// See [`decompress_bytes`](super::decompress_bytes).
    pub fn decompress_bytes(
        &self,
        reference: &[u8],
        range: Range<u64>,
        out: &mut [u8],
        options: &DecodeOptions,
    ) -> Result<()> {
        match &self.0 {
            Version::V1(frame) => legacy::decompress_delta_range(frame, reference, range, out, options),
            Version::V2(frame) => {
                let applied = Applied::new(frame, reference, range.clone(), options)?;
                decode::byte_range_into(&applied, range, out, options)
            }
        }
    }

    /// See [`decompress_range`](super::decompress_range).
    pub fn decompress_range(
        &self,
        reference: &[u8],
        range: Range<u64>,
        out: &mut [u8],
        options: &DecodeOptions,
    ) -> Result<()> {
        match &self.0 {
            Version::V1(frame) => legacy::decompress_delta_range(frame, reference, range, out, options),
            Version::V2(frame) => {
                let bytes = decode::bytes_of(frame, range.clone(), out)?;
                let applied = Applied::new(frame, reference, bytes, options)?;
                decode::range_into(&applied, range, out, options)
            }
        }
    }

    /// Decodes the whole delta and compares the checksums of what it makes, without keeping it. A reference other
    /// than the one it was made from is a [`Mismatch`](crate::ErrorKind::Mismatch).
    pub fn verify(&self, reference: &[u8], options: &DecodeOptions) -> Result<()> {
        match &self.0 {
            Version::V1(frame) => legacy::decompress_delta(frame, reference, options).map(drop),
            Version::V2(frame) => {
                check_length(frame, reference)?;
                let applied = Applied::unchecked(frame, Some(reference), options);
                // Only then is the reference hashed, to tell another one from a damaged frame.
                applied.verify(options).or_else(|error| {
                    check_reference(frame, reference, 0..frame.content_len, options).and(Err(error))
                })
            }
        }
    }

    /// As [`verify`](Self::verify), on one thread, and hands the content to `each` on the way, in parts that are mostly
    /// in the first-level cache: their place, the bytes of the reference, those of the content, and which elements
    /// differ, if the delta lists them. What it got is only right if there is no error in the end.
    pub fn verify_parts(
        &self,
        reference: &[u8],
        options: &DecodeOptions,
        mut each: impl FnMut(u64, &[u8], &[u8], Option<ChangedPlaces<'_>>),
    ) -> Result<()> {
        match &self.0 {
            Version::V1(frame) => {
                each(0, reference, &legacy::decompress_delta(frame, reference, options)?, None);
                Ok(())
            }
            Version::V2(frame) => {
                check_length(frame, reference)?;
                let options = DecodeOptions { threads: 1, ..*options };
                let applied = Applied::unchecked(frame, Some(reference), &options);
                let mut scratch = DeltaScratch::default();
                let decoded = (0..frame.chunk_count()).try_for_each(|index| {
                    let start = frame.content_of(index).start;
                    let mut each = |at: usize, old: &[u8], new: &[u8], changed: Option<ChangedPlaces<'_>>| {
                        each(start + at as u64, old, new, changed);
                    };
                    applied.verify_chunk(index, &mut each, &mut scratch)
                });
                decoded.or_else(|error| {
                    check_reference(frame, reference, 0..frame.content_len, &options).and(Err(error))
                })
            }
        }
    }

    /// Turns `buffer`, for whose bytes [`verify`](Self::verify) succeeded, into what the delta was made of. Nothing
    /// is hashed.
    pub fn apply_verified(&self, buffer: &mut [u8], options: &DecodeOptions) -> Result<()> {
        match &self.0 {
            Version::V1(_) => self.apply(buffer, options),
            Version::V2(frame) => {
                check_length(frame, buffer)?;
                let applied = Applied { verified: true, ..Applied::unchecked(frame, None, options) };
                decode::whole_into(&applied, buffer, options)
            }
        }
    }

    /// Whether [`apply`](Self::apply) takes one pass over the buffer and [`revert`](Self::revert) can undo it: all
    /// differences can be inverted without the reference. Deltas of sparse changes made at
    /// [`Effort::Fast`](crate::Effort::Fast) are.
    pub fn is_invertible(&self) -> bool {
        match &self.0 {
            Version::V1(_) => false,
            Version::V2(frame) => in_place::is_invertible(frame),
        }
    }

    /// Turns `buffer`, to which an [invertible](Self::is_invertible) delta was [applied](Self::apply), back into the
    /// reference.
    pub fn revert(&self, buffer: &mut [u8], options: &DecodeOptions) -> Result<()> {
        match &self.0 {
            Version::V1(_) => Err(Error::invalid("deltas of version 1 cannot be reverted")),
            Version::V2(frame) => {
                check_length(frame, buffer)?;
                in_place::revert(frame, buffer, options)
            }
        }
    }

    /// See [`apply`](super::apply).
    pub fn apply(&self, buffer: &mut [u8], options: &DecodeOptions) -> Result<()> {
        let frame = match &self.0 {
            Version::V1(frame) => {
                buffer.copy_from_slice(&legacy::decompress_delta(frame, buffer, options)?);
                return Ok(());
            }
            Version::V2(frame) => frame,
        };
        if in_place::is_invertible(frame) {
            check_length(frame, buffer)?;
            return in_place::apply(frame, buffer, options).or_else(|error| {
                // Only then is the reference hashed, to tell another one from a damaged frame.
                check_reference(frame, buffer, 0..frame.content_len, options).and(Err(error))
            });
        }
        let payload = |index| frame.payload(index);
        let check = |index, hash| hashes_of(frame, index)?.check_payload(hash);
        hash_each(frame.chunks_of(0..frame.content_len), payload, check, options)?;
        check_reference(frame, buffer, 0..frame.content_len, options)?;
        decode::whole_into(&Applied::unchecked(frame, None, options), buffer, options)
    }
}
