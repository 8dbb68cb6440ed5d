use std::io::Read;
use std::ops::Range;

use crate::base::CACHE_BLOCK;
use crate::catalog::{Decode, DecodeStored, Extent};
use crate::error::{Error, Result};
use crate::source::Sources;

/// The longest window that zstd has: frames of `--ultra --long=31`. (format)
const MAX_WINDOW_LOG: u32 = 31;

/// One zstd frame that decodes to exactly `len` bytes.
#[derive(Debug)]
pub(crate) struct Zstd {
    extent: Extent,
    len: u64,
}

impl Zstd {
    /// No block of a frame expands further than this: 4 bytes can stand for 128 KiB. (format)
    const MAX_EXPANSION: u64 = 1 << 15;

    pub(crate) fn new(extent: Extent, len: u64) -> Result<Zstd> {
        if len.div_ceil(Self::MAX_EXPANSION) > extent.len {
            return Err(Error::corrupt(
                "component.uncompressed-length",
                format!("{} bytes of zstd cannot decode to the {len} bytes declared", extent.len),
            ));
        }
        Ok(Zstd { extent, len })
    }
}

fn broken(why: impl std::fmt::Display) -> Error {
    Error::corrupt("zstd.frame", format!("the zstd frame does not decode: {why}"))
}

impl Decode for Zstd {
    fn encoding(&self) -> &str {
        "zstd"
    }

    fn stored_len(&self) -> u64 {
        self.extent.len
    }

    fn extent(&self) -> Option<Extent> {
        Some(self.extent)
    }

    fn work(&self, range: &Range<u64>) -> u64 {
        range.end // there is no way into a frame but from its start
    }

    fn content_extent(&self) -> Option<Extent> {
        Some(self.extent)
    }

    fn decode(&self, sources: &Sources, range: Range<u64>, out: &mut [u8], threads: usize) -> Result<()> {
        if out.is_empty() && self.len > 0 {
            return Ok(());
        }
        sources.with_whole(self.extent, |frame| self.decode_stored(frame, range, out, threads))
    }

    fn stored(&self) -> Option<&dyn DecodeStored> {
        Some(self)
    }

    fn decode_in_order(
        &self,
        sources: &Sources,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Option<Result<()>> {
        Some(sources.with_whole(self.extent, |frame| self.stream(frame, each)))
    }
}

impl Zstd {
    /// The declared length of the content, if the header has it, is the file's.
    fn check_header(&self, frame: &[u8]) -> Result<Option<u64>> {
        match ::zstd::zstd_safe::get_frame_content_size(frame) {
            Ok(Some(size)) if size != self.len => {
                Err(broken(format!("it declares {size} bytes, the file {}", self.len)))
            }
            Ok(declared) => Ok(declared),
            Err(_) => Err(broken("it has no valid header")),
        }
    }

    /// Decodes a frame piece by piece.
    fn stream(&self, frame: &[u8], each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let declared = self.check_header(frame)?;
        let mut decoder = ::zstd::stream::read::Decoder::with_buffer(frame).map_err(broken)?;
        if declared.is_some() {
            // The window is then no longer than the content, which the limits were asked about.
            decoder.window_log_max(MAX_WINDOW_LOG).map_err(broken)?;
        }
        let mut piece = vec![0; CACHE_BLOCK];
        let mut seen = 0u64;
        loop {
            let read = decoder.read(&mut piece).map_err(broken)?;
            seen = seen.saturating_add(read as u64);
            match read {
                0 if seen == self.len => return Ok(()),
                0 => return Err(broken(format!("it holds {seen} bytes, the file declares {}", self.len))),
                _ if seen > self.len => {
                    return Err(broken(format!("it holds more than the {} bytes declared", self.len)));
                }
                _ => each(&piece[..read])?,
            }
        }
    }
}

impl DecodeStored for Zstd {
    fn decode_stored(&self, frame: &[u8], range: Range<u64>, out: &mut [u8], _threads: usize) -> Result<()> {
        if out.is_empty() && self.len > 0 {
            return Ok(());
        }
        self.check_header(frame)?;
        if range == (0..self.len) {
            // The exact length of both sides is known, so no window is allocated,
            // and a frame that holds more or less than it should is noticed.
            let written = ::zstd::bulk::decompress_to_buffer(frame, out).map_err(broken)?;
            if written as u64 != self.len {
                return Err(broken(format!("it holds {written} bytes, the file declares {}", self.len)));
            }
            return Ok(());
        }
        let mut decoder = ::zstd::stream::read::Decoder::with_buffer(frame).map_err(broken)?.single_frame();
        let skipped =
            std::io::copy(&mut decoder.by_ref().take(range.start), &mut std::io::sink()).map_err(broken)?;
        if skipped != range.start {
            return Err(broken(format!("it holds only {skipped} bytes")));
        }
        decoder.read_exact(out).map_err(broken)
    }
}
