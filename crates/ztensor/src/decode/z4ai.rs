use std::borrow::Cow;
use std::ops::Range;

use crate::buffer::zeroed_vec;
use crate::codec;
use crate::error::{Error, Result};
use crate::object::{Decode, Extent};
use crate::source::Sources;

/// Which frames a format holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Generation {
    /// Those without checksums, which old containers hold.
    First,
    /// Those that are written now.
    Present,
}

/// One frame of the weight codec that decodes to exactly `len` bytes.
#[derive(Debug)]
pub(crate) struct Z4ai {
    extent: Extent,
    len: u64,
    generation: Generation,
}

/// Shorter frames take few page faults.
const WORTH_PREFETCHING: u64 = 256 << 10;

/// A frame is decoded in pieces of this size where all of it is not wanted at once.
pub(crate) const PIECE: u64 = 32 << 20;

impl Z4ai {
    pub(crate) fn new(extent: Extent, len: u64, generation: Generation) -> Result<Z4ai> {
        codec::check_expansion("component.uncompressed-length", extent.len, len)?;
        Ok(Z4ai { extent, len, generation })
    }

    /// The frame, if it is what the file says it is.
    fn frame<'a>(&self, sources: &'a Sources) -> Result<Cow<'a, [u8]>> {
        let frame = sources.bytes(self.extent)?;
        let first = z4ai::legacy::is_legacy(&frame);
        let known = [&b"Z4AI"[..], b"ZARA"].iter().any(|magic| frame.starts_with(magic));
        if first != (self.generation == Generation::First) || !(first || known) {
            let head = &frame[..frame.len().min(8)];
            return Err(broken(format!("a frame that starts with {head:02x?} does not belong here")));
        }
        let declared = z4ai::inspect(&frame).map_err(codec::broken_frame)?.content_len;
        if declared != self.len {
            return Err(broken(format!("it declares {declared} bytes, the file {}", self.len)));
        }
        Ok(frame)
    }

    /// Decodes all of it, a piece at a time, and shows each piece.
    pub(crate) fn pieces(
        &self,
        sources: &Sources,
        threads: usize,
        mut each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let frame = self.frame(sources)?;
        // Old frames can only be decoded as a whole.
        let step = if self.generation == Generation::First { self.len } else { self.len.min(PIECE) };
        let mut piece = zeroed_vec::<u8>(step)?;
        for start in (0..self.len).step_by(step.max(1) as usize) {
            let end = self.len.min(start + step);
            let piece = &mut piece[..(end - start) as usize];
            self.decode_part(&frame, start..end, piece, threads)?;
            each(piece)?;
        }
        Ok(())
    }

    fn decode_part(&self, frame: &[u8], range: Range<u64>, out: &mut [u8], threads: usize) -> Result<()> {
        let options = codec::decode_options(self.len, threads);
        let decoded = match range == (0..self.len) {
            true => z4ai::decompress_into(frame, out, &options),
            false => z4ai::decompress_bytes(frame, range, out, &options),
        };
        decoded.map_err(codec::broken_frame)
    }
}

fn broken(why: String) -> Error {
    Error::corrupt("z4ai.frame", format!("the z4ai frame does not decode: {why}"))
}

impl Decode for Z4ai {
    fn encoding(&self) -> &str {
        "z4ai"
    }

    fn stored_len(&self) -> u64 {
        self.extent.len
    }

    fn extent(&self) -> Option<Extent> {
        Some(self.extent)
    }

    fn decode(&self, sources: &Sources, range: Range<u64>, out: &mut [u8], threads: usize) -> Result<()> {
        if out.is_empty() && self.len > 0 {
            return Ok(());
        }
        // Most of a frame is about to be read: faulting it in page by page would take longer.
        if out.len() as u64 * 2 > self.len && self.extent.len >= WORTH_PREFETCHING {
            let source = sources.get(self.extent.source)?;
            if source.is_mapped() {
                source.prefetch(self.extent.offset, self.extent.len);
            }
        }
        self.decode_part(&self.frame(sources)?, range, out, threads)
    }

    fn verify(&self, sources: &Sources, threads: usize) -> Option<Result<()>> {
        (self.generation == Generation::Present).then(|| self.pieces(sources, threads, |_| Ok(())))
    }
}
