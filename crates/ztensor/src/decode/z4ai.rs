use std::ops::Range;

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

impl Z4ai {
    pub(crate) fn new(extent: Extent, len: u64, generation: Generation) -> Result<Z4ai> {
        codec::check_expansion("component.uncompressed-length", extent.len, len)?;
        Ok(Z4ai { extent, len, generation })
    }

    /// Checks what the frame says of itself.
    fn check(&self, frame: &[u8]) -> Result<()> {
        let first = z4ai::legacy::is_legacy(frame);
        let known = [&b"Z4AI"[..], b"ZARA"].iter().any(|magic| frame.starts_with(magic));
        if first != (self.generation == Generation::First) || !(first || known) {
            let head = &frame[..frame.len().min(8)];
            return Err(broken(format!("a frame that starts with {head:02x?} does not belong here")));
        }
        let declared = z4ai::inspect(frame).map_err(codec::broken_frame)?.content_len;
        if declared != self.len {
            return Err(broken(format!("it declares {declared} bytes, the file {}", self.len)));
        }
        Ok(())
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
        let frame = sources.bytes(self.extent)?;
        self.check(&frame)?;
        // A range of an old frame costs all of it.
        let options = codec::decode_options(self.len, threads);
        let decoded = match range == (0..self.len) {
            true => z4ai::decompress_into(&frame, out, &options),
            false => z4ai::decompress_bytes(&frame, range, out, &options),
        };
        decoded.map_err(codec::broken_frame)
    }
}
