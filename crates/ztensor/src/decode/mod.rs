//! Decoders that more than one format needs, each behind the one door of
//! [`Decode`](crate::catalog::Decode).

mod assembled;
mod deflate;
mod refused;
mod shared;
mod strided;
mod swap;
mod unknown;
mod z4ai;
mod zstd;
mod zstd_seekable;

use std::ops::Range;

pub(crate) use assembled::Assembled;
pub(crate) use deflate::Deflate;
pub(crate) use refused::Refused;
pub(crate) use shared::Shared;
pub(crate) use strided::{fortran_strides, strided};
pub(crate) use swap::Swapped;
pub(crate) use unknown::UnknownEncoding;
pub(crate) use z4ai::{DECODED_PIECE, Generation, Z4ai, broken_frame, check_expansion, decode_options};
pub(crate) use zstd::Zstd;
pub(crate) use zstd_seekable::{SeekableEncoder, SeekableZstd};

use crate::catalog::{Extent, Storage};
use crate::error::{Error, Result};
use crate::source::{Sources, check_range};

impl Storage {
    /// Bytes that reading `range` produces, including those that are decoded and dropped.
    pub(crate) fn work(&self, range: &Range<u64>) -> u64 {
        match self {
            Storage::Encoded(decoder) => decoder.work(range),
            Storage::Plain(_) | Storage::Inline(_) => range.end.saturating_sub(range.start),
        }
    }

    /// All ranges of sources that hold it.
    pub(crate) fn extents(&self, sources: &Sources) -> Result<Vec<Extent>> {
        match self {
            Storage::Plain(extent) => Ok(vec![*extent]),
            Storage::Inline(_) => Ok(Vec::new()),
            Storage::Encoded(decoder) => decoder.extents(sources),
        }
    }

    /// Writes decoded bytes `range` to `out`, however they are stored.
    pub(crate) fn read(
        &self,
        sources: &Sources,
        range: Range<u64>,
        out: &mut [u8],
        threads: usize,
    ) -> Result<()> {
        if range.end.checked_sub(range.start) != Some(out.len() as u64) {
            return Err(Error::invalid(format!("bytes {range:?} do not fill a buffer of {}", out.len())));
        }
        match self {
            Storage::Plain(extent) => sources.read(*extent, range.start, out),
            Storage::Inline(bytes) => {
                check_range(bytes.len() as u64, range.start, out.len() as u64)?;
                out.copy_from_slice(&bytes[range.start as usize..][..out.len()]);
                Ok(())
            }
            Storage::Encoded(decoder) => decoder.decode(sources, range, out, threads),
        }
    }
}
