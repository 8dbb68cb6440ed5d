//! Frames of the weight codec, whole or by chunks, and what its errors say about the file.

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use z4ai::partial::{self, Outline};
use z4ai::{DecodeOptions, ErrorKind, ParsedFrame};

use crate::base::huge_pages::zeroed_vec;
use crate::catalog::{Decode, DecodeStored, Extent};
use crate::error::{Error, Result};
use crate::source::Sources;

/// No frame decodes to more than this many times its own length. (format)
const MAX_EXPANSION: u64 = 1 << 24;

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
    /// Where the chunks are, for those who read one part of the content after another.
    outline: OnceLock<Arc<Outline>>,
}

/// How a frame, or what is needed of it, comes here.
enum DecodePath {
    /// All of it at once.
    Whole,
    /// All chunks that are needed at once: requests take long.
    Cut,
    /// Each chunk when it is decoded: from a file, or from what was fetched before.
    Chunks,
}

/// Shorter frames are fetched as a whole: that is one request. (structural: a chunk)
const WORTH_CUTTING: u64 = 256 << 10;

/// An index is mostly shorter than this part of its frame. What is fetched besides is of no use, and a
/// second request for what is missing takes longer. (flat: `constants.py`, `far_coded_rows`)
const INDEX_PART: u64 = 512;
const INDEX_GUESS: Range<u64> = 16 << 10..256 << 10;

/// Longer outlines are fetched again when they are needed again. (limit)
const KEPT_OUTLINE: usize = 1 << 20;

/// A frame is decoded in pieces of this size where all of it is not wanted at once. (limit)
pub(crate) const DECODED_PIECE: u64 = 32 << 20;

impl Z4ai {
    pub(crate) fn new(extent: Extent, len: u64, generation: Generation) -> Result<Z4ai> {
        check_expansion("component.uncompressed-length", extent.len, len)?;
        Ok(Z4ai { extent, len, generation, outline: OnceLock::new() })
    }

    /// Parses the frame, if it is what the file says it is.
    fn parse<'a>(&self, frame: &'a [u8]) -> Result<ParsedFrame<'a>> {
        self.check_start(frame)?;
        let frame = ParsedFrame::parse(frame).map_err(broken_frame)?;
        self.check_len(frame.content_len().map_err(broken_frame)?)?;
        Ok(frame)
    }

    fn check_start(&self, frame: &[u8]) -> Result<()> {
        let first = z4ai::legacy::is_legacy(frame);
        let known = [&b"Z4AI"[..], b"ZARA"].iter().any(|magic| frame.starts_with(magic));
        if first != (self.generation == Generation::First) || !(first || known) {
            let head = &frame[..frame.len().min(8)];
            return Err(broken(format!("a frame that starts with {head:02x?} does not belong here")));
        }
        Ok(())
    }

    fn check_len(&self, declared: u64) -> Result<()> {
        match declared == self.len {
            true => Ok(()),
            false => Err(broken(format!("it declares {declared} bytes, the file {}", self.len))),
        }
    }

    /// How what a range needs comes here: frames without an index cannot be cut, and what is mapped
    /// need not be.
    fn path(&self, sources: &Sources, range: &Range<u64>) -> Result<DecodePath> {
        if self.generation == Generation::First || self.extent.len < WORTH_CUTTING {
            return Ok(DecodePath::Whole);
        }
        let source = sources.get(self.extent.source)?;
        let stored = self.extent.offset..self.extent.offset.saturating_add(self.extent.len);
        Ok(match source.remote() {
            Some(far) if far.holds(stored) => DecodePath::Chunks,
            Some(_) if *range == (0..self.len) => DecodePath::Whole,
            Some(_) => DecodePath::Cut,
            None if source.is_mapped() => DecodePath::Whole,
            None => DecodePath::Chunks,
        })
    }

    /// Fetches head and index, unless they were before; `keep` is for those who will need them again.
    fn outline(&self, sources: &Sources, keep: bool) -> Result<Arc<Outline>> {
        if let Some(outline) = self.outline.get() {
            return Ok(Arc::clone(outline));
        }
        let len = self.extent.len;
        let guess = len - (len / INDEX_PART).clamp(INDEX_GUESS.start, INDEX_GUESS.end);
        let mut parts = sources.parts(self.extent, &[0..partial::HEAD, guess..len])?.into_iter();
        let (Some((_, head)), Some((_, mut index))) = (parts.next(), parts.next()) else {
            return Err(broken("it has no head".to_owned()));
        };
        self.check_start(&head)?;
        let range = partial::index_range(&head, len).map_err(broken_frame)?;
        match range.start.checked_sub(guess) {
            Some(before) => drop(index.drain(..before as usize)),
            None => {
                let before = range.start..guess;
                let missing = sources.parts(self.extent, std::slice::from_ref(&before))?;
                index.splice(0..0, missing.into_iter().flat_map(|(_, bytes)| bytes));
            }
        }
        let outline = Arc::new(Outline::new(head, index, len).map_err(broken_frame)?);
        self.check_len(outline.info().content_len)?;
        if keep && outline.memory() <= KEPT_OUTLINE {
            let _ = self.outline.set(Arc::clone(&outline)); // another thread may have been faster
        }
        Ok(outline)
    }

    /// Fetches and decodes what a range needs.
    fn decode_cut(&self, sources: &Sources, range: Range<u64>, out: &mut [u8], threads: usize) -> Result<()> {
        let outline = self.outline(sources, true)?;
        let needed = outline.needed(range.clone()).map_err(broken_frame)?;
        let pieces = sources.parts(self.extent, &needed)?;
        let options = decode_options(self.len, threads);
        outline.decompress_bytes(&pieces, range, out, &options).map_err(broken_frame)
    }

    /// Reads and decodes one chunk after another: what a chunk is decoded from is then still in the
    /// processor's caches, which a whole frame would have left.
    fn decode_chunks(
        &self,
        sources: &Sources,
        range: Range<u64>,
        out: &mut [u8],
        threads: usize,
    ) -> Result<()> {
        let outline = self.outline(sources, range != (0..self.len))?;
        let failure = Mutex::new(None);
        let fetch = |at: u64, payload: &mut [u8]| match sources.read(self.extent, at, payload) {
            Ok(()) => true,
            Err(error) => {
                failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                false
            }
        };
        let options = decode_options(self.len, threads);
        let decoded = outline.decompress_fetched(fetch, range, out, &options);
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => decoded.map_err(broken_frame),
        }
    }

    /// Decodes all of it, a piece at a time, and shows each piece.
    pub(crate) fn pieces(
        &self,
        sources: &Sources,
        threads: usize,
        mut each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        // Old frames can only be decoded as a whole.
        let step = if self.generation == Generation::First { self.len } else { self.len.min(DECODED_PIECE) };
        sources.with_bytes(self.extent, |frame| {
            let frame = self.parse(frame)?;
            let mut piece = zeroed_vec::<u8>(step)?;
            for start in (0..self.len).step_by(step.max(1) as usize) {
                let end = self.len.min(start + step);
                let piece = &mut piece[..(end - start) as usize];
                self.decode_part(&frame, start..end, piece, threads)?;
                each(piece)?;
            }
            Ok(())
        })
    }

    fn decode_part(
        &self,
        frame: &ParsedFrame<'_>,
        range: Range<u64>,
        out: &mut [u8],
        threads: usize,
    ) -> Result<()> {
        let options = decode_options(self.len, threads);
        let decoded = match range == (0..self.len) {
            true => frame.decompress_into(out, &options),
            false => frame.decompress_bytes(range, out, &options),
        };
        decoded.map_err(broken_frame)
    }
}

/// How to decode at most `len` bytes.
pub(crate) fn decode_options(len: u64, threads: usize) -> DecodeOptions {
    DecodeOptions { threads, max_output: len }
}

/// Refuses a length that no frame of `stored` bytes decodes to, before anything is allocated.
pub(crate) fn check_expansion(rule: &'static str, stored: u64, len: u64) -> Result<()> {
    if len.div_ceil(MAX_EXPANSION) > stored {
        return Err(Error::corrupt(
            rule,
            format!("{stored} bytes of z4ai cannot decode to the {len} bytes declared"),
        ));
    }
    Ok(())
}

/// What a failure to decode a frame says about the file that holds it.
pub(crate) fn broken_frame(error: z4ai::Error) -> Error {
    match error.kind() {
        ErrorKind::Unsupported => Error::unsupported(error.message()),
        ErrorKind::LimitExceeded => Error::limit(error.message()),
        ErrorKind::Mismatch => Error::mismatch(error.message()),
        ErrorKind::Cancelled => Error::cancelled(),
        // Lengths that contradict each other: all of them are the file's.
        _ => Error::corrupt("z4ai.frame", format!("the z4ai frame does not decode: {error}")),
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

    fn work(&self, range: &Range<u64>) -> u64 {
        match self.generation {
            Generation::First => self.len, // decoded as a whole
            Generation::Present => range.end.saturating_sub(range.start),
        }
    }

    fn content_extent(&self) -> Option<Extent> {
        Some(self.extent)
    }

    fn decode(&self, sources: &Sources, range: Range<u64>, out: &mut [u8], threads: usize) -> Result<()> {
        if out.is_empty() && self.len > 0 {
            return Ok(());
        }
        let out_len = out.len() as u64;
        match self.path(sources, &range)? {
            DecodePath::Whole => {}
            DecodePath::Cut => return self.decode_cut(sources, range, out, threads),
            DecodePath::Chunks => return self.decode_chunks(sources, range, out, threads),
        }
        let decode = |frame: &[u8]| self.decode_stored(frame, range, out, threads);
        // Rows of a mapped frame touch few of its pages.
        match out_len * 2 > self.len {
            true => sources.with_whole(self.extent, decode),
            false => sources.with_bytes(self.extent, decode),
        }
    }

    fn stored(&self) -> Option<&dyn DecodeStored> {
        Some(self)
    }

    fn verify(&self, sources: &Sources, threads: usize) -> Option<Result<()>> {
        (self.generation == Generation::Present).then(|| self.pieces(sources, threads, |_| Ok(())))
    }
}

impl DecodeStored for Z4ai {
    fn decode_stored(&self, frame: &[u8], range: Range<u64>, out: &mut [u8], threads: usize) -> Result<()> {
        self.decode_part(&self.parse(frame)?, range, out, threads)
    }
}
