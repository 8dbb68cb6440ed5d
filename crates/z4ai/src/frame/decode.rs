//! Decoding frames: whole, or any range of elements.

use std::cell::Cell;
use std::ops::Range;

use crate::error::{Error, Result};
use crate::frame::{Frame, FrameFormat};
use crate::kernel::streaming;
use crate::layout::{ChunkLayout, ChunkScratch};
use crate::options::DecodeOptions;
use crate::{memory, parallel};

/// A frame whose chunks can be decoded.
pub(crate) trait Chunks: Sync {
    type Description: FrameFormat;
    type Scratch: Default;

    fn frame(&self) -> &Frame<'_, Self::Description>;
    /// The scratch of one thread. `large_output`: the output is too large to stay in the caches.
    fn scratch(&self, large_output: bool) -> Self::Scratch {
        let _ = large_output;
        Self::Scratch::default()
    }
    /// Decodes chunk `index` into `out`, which must have its length.
    fn decode_chunk(&self, index: usize, out: &mut [u8], scratch: &mut Self::Scratch) -> Result<()>;
}

thread_local! {
    /// The buffers of this thread's last frame. Callers decode many frames in a row, one per tensor, and
    /// page faults of fresh buffers would take as long as a third of the decoding.
    static LAST: Cell<Option<Box<ChunkScratch>>> = const { Cell::new(None) };
}

/// Chunks longer than this leave no buffers behind. (limit)
const LONGEST_KEPT: usize = 1 << 22;

/// Buffers that the thread's next frame reuses.
pub(crate) struct Reused {
    scratch: Box<ChunkScratch>,
    /// The longest chunk that was decoded with them.
    longest: usize,
}

impl Default for Reused {
    fn default() -> Self {
        Self { scratch: LAST.take().unwrap_or_default(), longest: 0 }
    }
}

impl Reused {
    /// The buffers, for a chunk of `len` bytes.
    pub(crate) fn for_chunk(&mut self, len: usize) -> &mut ChunkScratch {
        self.longest = self.longest.max(len);
        &mut self.scratch
    }
}

impl Drop for Reused {
    fn drop(&mut self) {
        if self.longest <= LONGEST_KEPT && !std::thread::panicking() {
            LAST.set(Some(std::mem::take(&mut self.scratch)));
        }
    }
}

impl Chunks for Frame<'_> {
    type Description = ChunkLayout;
    type Scratch = Reused;

    fn frame(&self) -> &Frame<'_> {
        self
    }

    fn scratch(&self, large_output: bool) -> Reused {
        let mut reused = Reused::default();
        reused.scratch.large_output = large_output;
        reused
    }

    fn decode_chunk(&self, index: usize, out: &mut [u8], reused: &mut Reused) -> Result<()> {
        let (checksum, layout, payload) = self.chunk(index)?;
        let scratch = reused.for_chunk(out.len());
        let hash = layout.decode_hashed(payload, out, self.context(), scratch)?;
        check_hash(index, checksum, hash)
    }
}

/// Refuses decoded bytes that are not the ones that were encoded, by their hash.
pub(crate) fn check_hash(index: usize, checksum: u64, hash: u64) -> Result<()> {
    if hash != checksum {
        return Err(Error::corrupt(format_args!("chunk {index} does not match its checksum")));
    }
    Ok(())
}

/// Decodes a whole frame into new memory.
pub(crate) fn to_vec(chunks: &impl Chunks, options: &DecodeOptions) -> Result<Vec<u8>> {
    let frame = chunks.frame();
    let too_large = || {
        Error::limit(format_args!(
            "the frame decodes to {} bytes, the limit is {}",
            frame.content_len, options.max_output
        ))
    };
    if frame.content_len > options.max_output {
        return Err(too_large());
    }
    let len = usize::try_from(frame.content_len).map_err(|_| too_large())?;
    let mut out = memory::zeroed(len)?;
    // Fresh pages are cleared when they are first touched: they are in the caches then, and stay
    // there.
    bytes_into(chunks, 0..frame.content_len, &mut out, options, false)?;
    Ok(out)
}

/// Decodes a whole frame into `out`.
pub(crate) fn whole_into(chunks: &impl Chunks, out: &mut [u8], options: &DecodeOptions) -> Result<()> {
    let frame = chunks.frame();
    if out.len() as u64 != frame.content_len {
        return Err(Error::invalid(format_args!(
            "the frame decodes to {} bytes, the buffer has {}",
            frame.content_len,
            out.len()
        )));
    }
    let large = out.len() >= streaming::MIN_LEN;
    bytes_into(chunks, 0..frame.content_len, out, options, large)
}

/// Decodes elements `range` into `out`.
pub(crate) fn range_into(
    chunks: &impl Chunks,
    range: Range<u64>,
    out: &mut [u8],
    options: &DecodeOptions,
) -> Result<()> {
    let bytes = bytes_of(chunks.frame(), range, out)?;
    let large = out.len() >= streaming::MIN_LEN;
    bytes_into(chunks, bytes, out, options, large)
}

/// Decodes the content's bytes `range` into `out`.
pub(crate) fn byte_range_into(
    chunks: &impl Chunks,
    range: Range<u64>,
    out: &mut [u8],
    options: &DecodeOptions,
) -> Result<()> {
    let content_len = chunks.frame().content_len;
    if range.start > range.end || range.end > content_len || out.len() as u64 != range.end - range.start {
        return Err(Error::invalid(format_args!(
            "bytes {range:?} of a frame of {content_len} into a buffer of {}",
            out.len()
        )));
    }
    let large = out.len() >= streaming::MIN_LEN;
    bytes_into(chunks, range, out, options, large)
}

/// The decoded bytes of elements `range`, if there are such and `out` has their length.
pub(crate) fn bytes_of<D: FrameFormat>(
    frame: &Frame<'_, D>,
    range: Range<u64>,
    out: &[u8],
) -> Result<Range<u64>> {
    let size = frame.kind.size() as u64;
    let elements = frame.content_len / size;
    if range.start > range.end || range.end > elements {
        return Err(Error::invalid(format_args!("elements {range:?} of a frame of {elements} elements")));
    }
    let bytes = range.start * size..range.end * size;
    if out.len() as u64 != bytes.end - bytes.start {
        return Err(Error::invalid(format_args!(
            "elements {range:?} are {} bytes, the buffer has {}",
            bytes.end - bytes.start,
            out.len()
        )));
    }
    Ok(bytes)
}

/// Decodes the chunks that hold the decoded bytes `range`. `large_output`: they are too many to
/// stay in the caches.
fn bytes_into<C: Chunks>(
    chunks: &C,
    range: Range<u64>,
    out: &mut [u8],
    options: &DecodeOptions,
    large_output: bool,
) -> Result<()> {
    let frame = chunks.frame();
    if out.len() as u64 > options.max_output {
        return Err(Error::limit(format_args!(
            "{} bytes to decode, the limit is {}",
            out.len(),
            options.max_output
        )));
    }
    // Each chunk gets its own ranges of the output, so that threads can fill them in parallel.
    let mut parts = Vec::new();
    let mut rest = out;
    for piece in frame.pieces(range) {
        for chunk in frame.chunks_of(piece.clone()) {
            let content = frame.content_of(chunk);
            let wanted = content.start.max(piece.start)..content.end.min(piece.end);
            let (out, tail) = rest.split_at_mut((wanted.end - wanted.start) as usize);
            rest = tail;
            parts.push(Part { chunk, wanted, out });
        }
    }
    parts.sort_by_key(|part| part.chunk);
    let jobs: Vec<_> = parts.chunk_by_mut(|a, b| a.chunk == b.chunk).map(std::sync::Mutex::new).collect();
    parallel::for_each_apart(
        options.threads,
        jobs.len(),
        || (chunks.scratch(large_output), Vec::new()),
        |(scratch, whole), i| {
            let mut parts = jobs[i].lock().unwrap_or_else(|e| e.into_inner());
            decode_parts(chunks, &mut parts, scratch, whole)
        },
    )
}

/// A range of a chunk, and its destination.
struct Part<'a> {
    chunk: usize,
    /// The range, in the decoded bytes of all chunks.
    wanted: Range<u64>,
    out: &'a mut [u8],
}

/// Decodes one chunk into all of `parts`.
fn decode_parts<C: Chunks>(
    chunks: &C,
    parts: &mut [Part<'_>],
    scratch: &mut C::Scratch,
    buffer: &mut Vec<u8>,
) -> Result<()> {
    let Some(first) = parts.first() else { return Ok(()) };
    let (index, content) = (first.chunk, chunks.frame().content_of(first.chunk));
    // A part that is the whole chunk is decoded in place, and copied from there.
    let in_place = parts.iter().position(|part| part.wanted == content).unwrap_or(parts.len());
    let (before, rest) = parts.split_at_mut(in_place);
    let (whole, after) = match rest.split_first_mut() {
        Some((part, after)) => (&mut *part.out, after),
        None => {
            buffer.resize((content.end - content.start) as usize, 0);
            (buffer.as_mut_slice(), Default::default())
        }
    };
    chunks.decode_chunk(index, whole, scratch)?;
    for part in before.iter_mut().chain(after) {
        let start = (part.wanted.start - content.start) as usize;
        part.out.copy_from_slice(&whole[start..start + part.out.len()]);
    }
    Ok(())
}
