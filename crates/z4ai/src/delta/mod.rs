//! Deltas: a buffer as its difference from a reference of the same length.
//!
//! The next checkpoint of a model differs little from the one before it. A delta frame (`Z4DL`)
//! holds just that, knows its reference when it sees it, and decodes in parallel, in part, or
//! right into the reference's own memory.
//!
//! ```
//! use z4ai::{DecodeOptions, Kind, Options, delta};
//!
//! let before: Vec<u8> = (0..4096u32).flat_map(|i| (i as f32).to_le_bytes()).collect();
//! let mut after = before.clone();
//! after[400] ^= 1;
//! let options = Options { kind: Kind::F32, ..Options::default() };
//! let frame = delta::compress(&after, &before, &options)?;
//! assert!(frame.len() < 200);
//! assert_eq!(delta::decompress(&frame, &before, &DecodeOptions::default())?, after);
//! # Ok::<(), z4ai::Error>(())
//! ```

mod changed;
mod encode;
mod in_place;
mod parsed;

use std::ops::Range;

use crate::frame::decode::{self, Chunks};
use crate::frame::{self, Frame, FrameFormat, stats};
use crate::kernel::xxh3::{self, INTERLEAVED};
use crate::layout::delta::{Delta, DeltaScratch, EachPart, Hashes, Output};
use crate::layout::hashed_output::HashedOutput;
use crate::layout::streams::StreamInfo;
use crate::options::{DecodeOptions, FrameInfo, Options};
use crate::simd::prefetch::Prefetcher;
use crate::{Error, Result, legacy, parallel};

pub use crate::layout::delta::ChangedPlaces;
pub use changed::Comparison;
pub use encode::EncodedChunk;
pub use parsed::ParsedDelta;
use parsed::Version;

/// Encodes the difference from `reference` to `current`, which must be of equal length.
///
/// The frame is the same for the same data and options whatever the number of threads.
pub fn compress(current: &[u8], reference: &[u8], options: &Options) -> Result<Vec<u8>> {
    let mut frame = Vec::new();
    compress_into(current, reference, options, &mut frame)?;
    frame.shrink_to_fit();
    Ok(frame)
}

/// As [`compress`], into `frame`, which is cleared first: memory it already holds is reused.
pub fn compress_into(current: &[u8], reference: &[u8], options: &Options, frame: &mut Vec<u8>) -> Result<()> {
    encode::into(current, reference, options, frame)
}

/// As [`compress_into`], and turns `reference` into the current content, for callers that keep the last state to make
/// the next delta from. `each` gets every chunk when it is encoded, while it is in the caches, to hash it or to measure
/// what changed: in order on one thread, in any order and on several threads otherwise.
///
/// Another thread may be changing `current`: frame and reference are of the same bytes. After an error, which only a
/// lack of memory or the observer of the options cause, some chunks of the reference may be those of the current
/// content.
pub fn advance_into(
    current: &[u8],
    reference: &mut [u8],
    options: &Options,
    frame: &mut Vec<u8>,
    each: &(dyn Fn(EncodedChunk<'_>) + Sync),
) -> Result<()> {
    encode::advancing_into(current, reference, options, frame, each)
}

/// Whether `frame` starts like a delta.
pub fn is_delta(frame: &[u8]) -> bool {
    frame::starts_like::<Delta>(frame) || legacy::is_legacy_delta(frame)
}

/// What a delta says about itself, its index checked but nothing decoded. References have the
/// [`content_len`](FrameInfo::content_len) of the content.
pub fn inspect(frame: &[u8]) -> Result<FrameInfo> {
    ParsedDelta::parse(frame)?.info()
}

/// Decodes a delta into new memory.
///
/// A reference other than the one the delta was made from is a
/// [`Mismatch`](crate::ErrorKind::Mismatch), found before anything is decoded.
pub fn decompress(frame: &[u8], reference: &[u8], options: &DecodeOptions) -> Result<Vec<u8>> {
    ParsedDelta::parse(frame)?.decompress(reference, options)
}

/// Decodes a delta into the caller's memory, which must be as long as the reference. On error the
/// contents of `out` are unspecified; with a wrong reference they are untouched.
pub fn decompress_into(
    frame: &[u8],
    reference: &[u8],
    out: &mut [u8],
    options: &DecodeOptions,
) -> Result<()> {
    ParsedDelta::parse(frame)?.decompress_into(reference, out, options)
}

/// As [`decompress_into`], for a reference that the caller already knows to be the right one: it is
/// not hashed again. With another one the content does not match its checksums, which is an error
/// as well.
pub fn restore_into(frame: &[u8], reference: &[u8], out: &mut [u8], options: &DecodeOptions) -> Result<()> {
    ParsedDelta::parse(frame)?.restore_into(reference, out, options)
}

/// Decodes bytes `range` of a delta's content into `out`, whose length must be theirs. Only the
/// chunks that hold them are decoded, and only their part of the reference is read.
pub fn decompress_bytes(
    frame: &[u8],
    reference: &[u8],
    range: Range<u64>,
    out: &mut [u8],
    options: &DecodeOptions,
) -> Result<()> {
    ParsedDelta::parse(frame)?.decompress_bytes(reference, range, out, options)
}

/// Decodes elements `range` of a delta into `out`, whose length must be theirs in bytes. Only the
/// chunks that hold them are decoded, and only their part of the reference is read.
pub fn decompress_range(
    frame: &[u8],
    reference: &[u8],
    range: Range<u64>,
    out: &mut [u8],
    options: &DecodeOptions,
) -> Result<()> {
    ParsedDelta::parse(frame)?.decompress_range(reference, range, out, options)
}

/// Turns `buffer`, which holds the reference, into what the delta was made of.
///
/// A wrong reference or a damaged frame leaves the buffer as it was: either both are checked in full before the first
/// byte changes, or what changed is undone, which takes one pass over the buffer instead of two.
pub fn apply(frame: &[u8], buffer: &mut [u8], options: &DecodeOptions) -> Result<()> {
    ParsedDelta::parse(frame)?.apply(buffer, options)
}

/// The streams of a delta; none for version 1.
pub(crate) fn streams(frame: &[u8]) -> Result<Vec<StreamInfo>> {
    match ParsedDelta::parse(frame)?.0 {
        Version::V1(_) => Ok(Vec::new()),
        Version::V2(frame) => stats::streams(&frame),
    }
}

impl FrameFormat for Delta {
    const MAGICS: &'static [[u8; 4]] = &[*b"Z4DL"];
    const VERSION: u8 = 3;
}

/// A delta and the reference it is applied to.
struct Applied<'a> {
    frame: &'a Frame<'a, Delta>,
    /// `None`: the output holds the reference; payloads were verified then.
    reference: Option<&'a [u8]>,
    /// Where the reference begins in the whole one.
    start: u64,
    /// Whether one thread decodes all chunks, one after the other.
    in_order: bool,
    /// Whether what it makes was verified before, and is not hashed.
    verified: bool,
}

impl<'a> Applied<'a> {
    /// Checks the reference where the chunks of the decoded bytes `range` need it.
    fn new(
        frame: &'a Frame<'a, Delta>,
        reference: &'a [u8],
        range: Range<u64>,
        options: &DecodeOptions,
    ) -> Result<Self> {
        check_reference(frame, reference, range, options)?;
        Ok(Self::unchecked(frame, Some(reference), options))
    }

    fn unchecked(frame: &'a Frame<'a, Delta>, reference: Option<&'a [u8]>, options: &DecodeOptions) -> Self {
        let in_order = parallel::workers(options.threads, frame.chunk_count()) == 1;
        Self { frame, reference, start: 0, in_order, verified: false }
    }

    /// The range of the reference that corresponds to chunk `index`.
    fn part_of(&self, index: usize, reference: &'a [u8]) -> Result<&'a [u8]> {
        let content = self.frame.content_of(index);
        let start = content.start.checked_sub(self.start).and_then(|start| usize::try_from(start).ok());
        let part =
            start.and_then(|start| reference.get(start..)?.get(..(content.end - content.start) as usize));
        part.ok_or_else(|| Error::mismatch(format_args!("the delta's reference lacks chunk {index}")))
    }

    /// The payload of the next chunk, to prefetch while chunk `index` of `len` bytes is restored.
    fn fetch_next(&self, index: usize, len: usize) -> Prefetcher {
        let next = index + 1;
        match self.in_order && next < self.frame.chunk_count() {
            true => {
                Prefetcher::new(self.frame.payload(next).unwrap_or_default(), len.div_ceil(HashedOutput::LEN))
            }
            false => Prefetcher::default(),
        }
    }
}

impl Chunks for Applied<'_> {
    type Description = Delta;
    type Scratch = DeltaScratch;

    fn frame(&self) -> &Frame<'_, Delta> {
        self.frame
    }

    fn scratch(&self, large_output: bool) -> DeltaScratch {
        let mut scratch = DeltaScratch::default();
        scratch.literal.large_output = large_output;
        scratch
    }

    fn decode_chunk(&self, index: usize, out: &mut [u8], scratch: &mut DeltaScratch) -> Result<()> {
        let (checksum, delta, payload) = self.frame.chunk(index)?;
        let reference = self.reference.map(|reference| self.part_of(index, reference)).transpose()?;
        scratch.next = self.fetch_next(index, out.len());
        if self.verified {
            return delta.decode(payload, reference, Output::Verified(out), scratch).map(drop);
        }
        let hash = delta.decode(payload, reference, Output::Memory(out), scratch)?;
        decode::check_hash(index, checksum, hash)
    }
}

impl Applied<'_> {
    /// Decodes chunk `index` and compares its checksum, without keeping what it makes.
    fn verify_chunk(&self, index: usize, each: EachPart<'_>, scratch: &mut DeltaScratch) -> Result<()> {
        let (checksum, delta, payload) = self.frame.chunk(index)?;
        let content = self.frame.content_of(index);
        let len = (content.end - content.start) as usize;
        let reference = self.reference.map(|reference| self.part_of(index, reference)).transpose()?;
        scratch.next = self.fetch_next(index, len);
        let hash = delta.decode(payload, reference, Output::Parts(len, each), scratch)?;
        decode::check_hash(index, checksum, hash)
    }

    /// The same with all chunks.
    fn verify(&self, options: &DecodeOptions) -> Result<()> {
        parallel::for_each_apart(
            options.threads,
            self.frame.chunk_count(),
            || self.scratch(false),
            |scratch, index| self.verify_chunk(index, &mut |_, _, _, _| (), scratch),
        )
    }
}

fn hashes_of(frame: &Frame<'_, Delta>, index: usize) -> Result<Hashes> {
    Hashes::read(&mut frame.description(index)?)
}

/// The range of the reference that corresponds to chunk `index`.
fn part_of<'a>(frame: &Frame<'_, Delta>, index: usize, reference: &'a [u8]) -> &'a [u8] {
    let content = frame.content_of(index);
    // Not beyond the reference, whose length was compared with the frame's.
    &reference[content.start as usize..content.end as usize]
}

/// Refuses a reference of another length.
fn check_length(frame: &Frame<'_, Delta>, reference: &[u8]) -> Result<()> {
    if reference.len() as u64 != frame.content_len {
        return Err(Error::mismatch(format_args!(
            "the delta's reference has {} bytes, this one {}",
            frame.content_len,
            reference.len()
        )));
    }
    Ok(())
}

/// Refuses a reference other than the one the delta was made from, as far as `range` needs it.
fn check_reference(
    frame: &Frame<'_, Delta>,
    reference: &[u8],
    range: Range<u64>,
    options: &DecodeOptions,
) -> Result<()> {
    check_length(frame, reference)?;
    let part = |index| Ok(part_of(frame, index, reference));
    let check = |index, hash| hashes_of(frame, index)?.check_reference(hash);
    hash_each(frame.chunks_of(range), part, check, options)
}

/// Hashes `content` of each of `chunks`, several at a time, and checks the hashes. In reverse
/// order, so that the first chunks, which are decoded first, are still in the caches.
fn hash_each<'a>(
    chunks: Range<usize>,
    content: impl Fn(usize) -> Result<&'a [u8]> + Sync,
    check: impl Fn(usize, u64) -> Result<()> + Sync,
    options: &DecodeOptions,
) -> Result<()> {
    let groups = chunks.len().div_ceil(INTERLEAVED);
    parallel::for_each(
        options.threads,
        groups,
        || (),
        |(), i| {
            let first = chunks.start + (groups - 1 - i) * INTERLEAVED;
            let group = first..chunks.end.min(first + INTERLEAVED);
            let mut contents: [&[u8]; INTERLEAVED] = [&[]; INTERLEAVED];
            for (index, slot) in group.clone().zip(&mut contents) {
                *slot = content(index)?;
            }
            let hashes = match group.len() == INTERLEAVED {
                true => xxh3::hash_each(contents),
                false => contents.map(xxh3::hash),
            };
            group.zip(hashes).try_for_each(|(index, hash)| check(index, hash))
        },
    )
}
