use std::ops::Range;

use flate2::{Decompress, FlushDecompress, Status};

use crate::catalog::{Decode, DecodeStored, Extent};
use crate::error::{Error, Result};
use crate::source::Sources;

/// Bytes that are decoded at a time to skip to the requested range. (structural: a window of deflate)
const SCRATCH: usize = 32 << 10;

/// A raw deflate stream, or what of it comes after its first `skip` bytes.
#[derive(Debug)]
pub(crate) struct Deflate {
    extent: Extent,
    /// Decoded bytes before the component starts, such as a header.
    skip: u64,
    /// Decoded length of the whole stream.
    total: u64,
    /// CRC-32 of the whole stream, decoded.
    crc: Option<u32>,
}

impl Deflate {
    /// No stream expands further than this: a match of 258 bytes takes two bits. (format)
    const MAX_EXPANSION: u64 = 1032;

    /// The stream in `extent`, which decodes to exactly `total` bytes.
    pub(crate) fn new(extent: Extent, total: u64, crc: Option<u32>) -> Result<Deflate> {
        if total.div_ceil(Self::MAX_EXPANSION) > extent.len {
            return Err(broken(format!("{} bytes cannot decode to the {total} declared", extent.len)));
        }
        Ok(Deflate { extent, skip: 0, total, crc })
    }

    /// The same without its first `skip` decoded bytes.
    pub(crate) fn after(self, skip: u64) -> Deflate {
        Deflate { skip: self.skip.saturating_add(skip).min(self.total), ..self }
    }

    /// The first decoded bytes, at most `len` and as many as there are. Reads
    /// no more of the file than they need.
    pub(crate) fn head(&self, sources: &Sources, len: u64) -> Result<Vec<u8>> {
        let len = len.min(self.total - self.skip);
        let mut out = crate::source::zeroed(len)?;
        // The first bytes of a stream cannot need more input than a stored copy
        // of them would take, and a header's worth of tables.
        let enough = len.saturating_add(SCRATCH as u64).min(self.extent.len);
        let input = sources.bytes(Extent { len: enough, ..self.extent })?;
        let mut stream = Stream::new(&input);
        stream.discard(self.skip)?;
        stream.fill(&mut out)?;
        Ok(out)
    }
}

fn broken(why: impl std::fmt::Display) -> Error {
    Error::corrupt("deflate.stream", format!("the deflate stream does not decode: {why}"))
}

impl Decode for Deflate {
    fn encoding(&self) -> &str {
        "deflate"
    }

    fn stored_len(&self) -> u64 {
        self.extent.len
    }

    fn extent(&self) -> Option<Extent> {
        Some(self.extent)
    }

    fn work(&self, range: &Range<u64>) -> u64 {
        self.skip.saturating_add(range.end) // there is no way into a stream but from its start
    }

    fn content_extent(&self) -> Option<Extent> {
        Some(self.extent)
    }

    fn decode(&self, sources: &Sources, range: Range<u64>, out: &mut [u8], threads: usize) -> Result<()> {
        sources.with_whole(self.extent, |input| self.decode_stored(input, range, out, threads))
    }

    fn stored(&self) -> Option<&dyn DecodeStored> {
        Some(self)
    }

    fn decode_in_order(
        &self,
        sources: &Sources,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Option<Result<()>> {
        Some(sources.with_whole(self.extent, |input| {
            let mut stream = Stream::new(input);
            stream.discard(self.skip)?;
            let mut piece = vec![0; SCRATCH];
            let mut left = self.total.saturating_sub(self.skip);
            while left > 0 {
                let piece = &mut piece[..left.min(SCRATCH as u64) as usize];
                stream.fill(piece)?;
                each(piece)?;
                left -= piece.len() as u64;
            }
            self.check_end(stream)
        }))
    }
}

impl Deflate {
    /// After the last byte: nothing follows, and the checksum agrees.
    fn check_end(&self, mut stream: Stream<'_>) -> Result<()> {
        stream.finish()?;
        let found = stream.crc.finalize();
        match self.crc {
            Some(expected) if expected != found => Err(Error::corrupt(
                "deflate.crc",
                format!("the decoded bytes have the CRC-32 {found:08x}, the file says {expected:08x}"),
            )),
            _ => Ok(()),
        }
    }
}

impl DecodeStored for Deflate {
    fn decode_stored(&self, input: &[u8], range: Range<u64>, out: &mut [u8], _threads: usize) -> Result<()> {
        let mut stream = Stream::new(input);
        stream.discard(self.skip + range.start)?;
        stream.fill(out)?;
        if self.skip + range.end < self.total {
            return Ok(()); // a part: the end, and with it the checksum, is not reached
        }
        self.check_end(stream)
    }
}

/// A stream being decoded from its start.
struct Stream<'a> {
    input: &'a [u8],
    inflate: Decompress,
    crc: crc32fast::Hasher,
    ended: bool,
}

impl<'a> Stream<'a> {
    fn new(input: &'a [u8]) -> Stream<'a> {
        Stream { input, inflate: Decompress::new(false), crc: crc32fast::Hasher::new(), ended: false }
    }

    /// Decodes as much as fits in `out`, which is all of it unless the stream ends.
    fn some(&mut self, out: &mut [u8]) -> Result<usize> {
        let mut written = 0;
        while written < out.len() && !self.ended {
            let (consumed, produced) = (self.inflate.total_in(), self.inflate.total_out());
            let status = self
                .inflate
                .decompress(self.input, &mut out[written..], FlushDecompress::None)
                .map_err(broken)?;
            let consumed = (self.inflate.total_in() - consumed) as usize;
            let produced = (self.inflate.total_out() - produced) as usize;
            self.input = &self.input[consumed..];
            written += produced;
            self.ended = status == Status::StreamEnd;
            if consumed == 0 && produced == 0 && !self.ended {
                return Err(broken("it ends too early"));
            }
        }
        self.crc.update(&out[..written]);
        Ok(written)
    }

    fn fill(&mut self, out: &mut [u8]) -> Result<()> {
        match self.some(out)? {
            written if written == out.len() => Ok(()),
            written => Err(broken(format!("it ends {} bytes too early", out.len() - written))),
        }
    }

    fn discard(&mut self, mut count: u64) -> Result<()> {
        let mut scratch = [0; SCRATCH];
        while count > 0 {
            let step = count.min(SCRATCH as u64) as usize;
            self.fill(&mut scratch[..step])?;
            count -= step as u64;
        }
        Ok(())
    }

    /// Checks that the stream ends here, with nothing behind it.
    fn finish(&mut self) -> Result<()> {
        let mut beyond = [0; 1];
        if !self.ended && self.some(&mut beyond)? > 0 {
            return Err(broken("it holds more bytes than declared"));
        }
        match self.input.len() {
            0 => Ok(()),
            rest => Err(broken(format!("{rest} bytes follow its end"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::MemorySource;
    use std::io::Write;
    use std::sync::Arc;

    fn deflated(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn sources(bytes: &[u8]) -> (Sources, Extent) {
        let extent = Extent::new(0, bytes.len() as u64);
        (Sources::one(Arc::new(MemorySource::new(bytes.to_vec()))), extent)
    }

    #[test]
    fn every_range_decodes() {
        let bytes: Vec<u8> = (0..100_000u32).map(|n| (n / 7) as u8).collect();
        let crc = crc32fast::hash(&bytes);
        let (sources, extent) = sources(&deflated(&bytes));
        let decoder = Deflate::new(extent, 100_000, Some(crc)).unwrap().after(10);
        assert_eq!(decoder.head(&sources, 300).unwrap(), &bytes[10..310]);
        assert_eq!(decoder.head(&sources, 1 << 30).unwrap(), &bytes[10..]);
        for range in [0..99_990, 0..0, 99_990..99_990, 5..6, 40_000..99_990, 33_000..66_000] {
            let mut out = vec![0; (range.end - range.start) as usize];
            decoder.decode(&sources, range.clone(), &mut out, 1).unwrap();
            assert_eq!(out, &bytes[10 + range.start as usize..10 + range.end as usize], "{range:?}");
        }
    }

    #[test]
    fn lies_about_length_and_content_are_noticed() {
        let bytes = vec![7u8; 10_000];
        let good = deflated(&bytes);
        let decode = |stored: &[u8], total: u64, crc: Option<u32>| {
            let (sources, extent) = sources(stored);
            let mut out = vec![0; total as usize];
            Deflate::new(extent, total, crc)?.decode(&sources, 0..total, &mut out, 1)
        };
        decode(&good, 10_000, None).unwrap();
        assert!(decode(&good, 9_999, None).is_err(), "more than declared");
        assert!(decode(&good, 10_001, None).is_err(), "less than declared");
        assert!(decode(&good, 100 << 20, None).is_err(), "impossible expansion");
        assert_eq!(decode(&good, 10_000, Some(1)).unwrap_err().rule(), Some("deflate.crc"));
        let trailing: Vec<u8> = good.iter().copied().chain([0]).collect();
        assert!(decode(&trailing, 10_000, None).is_err(), "bytes behind the end");
        for cut in 0..good.len() {
            assert!(decode(&good[..cut], 10_000, None).is_err(), "cut at {cut}");
        }
    }
}
