//! The frame: header, payload, index; reading and writing of each side by side.
//!
//! ```text
//! header   magic, version, kind, flags, lengths, array description
//! payload  the streams of all chunks, back to back
//! index    palette, one description per chunk, matches, then the checksum of header and index
//! ```

pub(crate) mod chunks;
pub(crate) mod decode;
pub(crate) mod encode;
pub(crate) mod match_finder;
pub(crate) mod matches;
pub(crate) mod parsed;
pub mod partial;
pub(crate) mod plan;
pub(crate) mod stats;
pub(crate) mod stored;
pub(crate) mod stream;

use std::borrow::Cow;
use std::marker::PhantomData;
use std::ops::Range;

use twox_hash::XxHash3_64;

use crate::element::Kind;
use crate::error::{Error, Result};
use crate::frame::matches::Match;
use crate::frame::stored::Stored;
use crate::layout::palette::Palette;
use crate::layout::{ChunkDescription, ChunkLayout, Context};
use crate::options::{Array, FrameInfo};
use crate::simd::SimdLevel;
use crate::wire::{Put, Reader};

/// Magic of the fast and default tiers.
pub(crate) const MAGIC_Z4AI: [u8; 4] = *b"Z4AI";
/// Magic of the tiers above, whose frames are otherwise the same.
pub(crate) const MAGIC_ZARA: [u8; 4] = *b"ZARA";
/// The version written and read here.
pub(crate) const VERSION: u8 = 2;
/// Decoded bytes of a chunk, at most. (format)
pub(crate) const MAX_CHUNK: usize = 16 << 20;

/// Bytes of the header before the array description. (format)
pub(crate) const FIXED: usize = 32;
/// The offset of the frame length and the other lengths in the header. (format)
const LENGTHS: usize = 8;
/// The offset of the flags. (format)
const FLAGS: usize = 6;
/// (format)
const CHECKSUM: usize = 8;
const FLAG_ARRAY: u8 = 1;
/// The index starts with a palette.
const FLAG_PALETTE: u8 = 2;
/// The index ends with matches.
const FLAG_MATCHES: u8 = 4;
/// Bytes of length and checksum, which every chunk description starts with. (format)
const DESCRIBED: usize = 12;
/// Bytes of the shortest chunk description: length, checksum, layout, coder. (format)
const MIN_DESCRIPTION: usize = DESCRIBED + 2;

/// A family of frames, by what describes their chunks.
pub(crate) trait FrameFormat: ChunkDescription + Clone {
    /// The magics that such frames start with.
    const MAGICS: &'static [[u8; 4]];
    /// The version written and read here.
    const VERSION: u8;
    /// The flags that such frames may have. (format)
    const FLAGS: u8 = FLAG_ARRAY;
}

impl FrameFormat for ChunkLayout {
    const MAGICS: &'static [[u8; 4]] = &[MAGIC_Z4AI, MAGIC_ZARA];
    const VERSION: u8 = VERSION;
    /// (format)
    const FLAGS: u8 = FLAG_ARRAY | FLAG_PALETTE | FLAG_MATCHES;
}

/// Whether `bytes` start like a frame whose chunks are described by `D`.
pub(crate) fn starts_like<D: FrameFormat>(bytes: &[u8]) -> bool {
    matches!(bytes, [a, b, c, d, version, ..]
        if *version == D::VERSION && D::MAGICS.contains(&[*a, *b, *c, *d]))
}

/// The parsed header and index of a frame, checked. Owned, so that it can be kept and used for
/// several reads. Chunk descriptions stay in their stored form, which takes less memory, and are
/// parsed again when a chunk is decoded.
#[derive(Clone)]
pub(crate) struct FrameIndex<D: FrameFormat = ChunkLayout> {
    /// Without its checksum.
    index: Box<[u8]>,
    magic: [u8; 4],
    pub(crate) kind: Kind,
    pub(crate) array: Option<Array>,
    pub(crate) content_len: u64,
    frame_len: u64,
    palette: Option<Palette>,
    chunks: Vec<Chunk>,
    copies: Vec<Match>,
    described_by: PhantomData<D>,
}

/// A parsed frame with its payload, or the ranges of it that are in memory.
pub(crate) struct Frame<'a, D: FrameFormat = ChunkLayout> {
    stored: Stored<'a>,
    index: Cow<'a, FrameIndex<D>>,
}

impl<D: FrameFormat> std::ops::Deref for Frame<'_, D> {
    type Target = FrameIndex<D>;

    fn deref(&self) -> &FrameIndex<D> {
        &self.index
    }
}

/// Where one chunk is.
#[derive(Clone)]
struct Chunk {
    /// In the decoded bytes of all chunks.
    content: Range<u64>,
    /// In the frame.
    payload: Range<u64>,
    /// Its description, in the index.
    description: Range<usize>,
}

impl<D: FrameFormat> FrameIndex<D> {
    /// Checks everything but the payload. At least head and index must be in memory.
    pub(crate) fn parse(stored: Stored<'_>) -> Result<Self> {
        // Here, as every call that decodes passes: kernels have no errors.
        SimdLevel::current()?;
        let head = stored.head();
        if !starts_like::<D>(head) {
            return Err(Error::unsupported("not a z4ai frame, or one of an unknown version"));
        }
        let mut reader = Reader::new(head);
        let magic = [reader.u8()?, reader.u8()?, reader.u8()?, reader.u8()?];
        reader.u8()?;
        let [kind, flags, reserved] = [reader.u8()?, reader.u8()?, reader.u8()?];
        reader.u64()?;
        let content_len = reader.u64()?;
        reader.u32()?;
        let chunk_count = reader.u32()? as usize;
        let index_range = index_range(head, stored.len())?;
        let index_at = index_range.start;
        let (index, checksum) = {
            let all = stored.get(index_range)?;
            all.split_at(all.len() - CHECKSUM)
        };
        let in_head = head.len().min(usize::try_from(index_at).unwrap_or(usize::MAX));
        let mut reader = Reader::new(&head[FIXED..in_head]);
        let array = (flags & FLAG_ARRAY != 0).then(|| read_array(&mut reader)).transpose()?;
        let payload_at = in_head - reader.remaining();
        if head_checksum(&head[..payload_at], index) != Reader::new(checksum).u64()? {
            return Err(Error::corrupt("header and index do not match their checksum"));
        }
        let index_bytes = index;
        let mut index = Reader::new(index_bytes);
        if flags & !D::FLAGS != 0 || reserved != 0 {
            return Err(Error::unsupported(format_args!(
                "flags {flags:#04x}, {reserved:#04x} of a newer version"
            )));
        }
        let Some(kind) = Kind::from_code(kind) else {
            return Err(Error::unsupported(format_args!("element type {kind} is not known")));
        };
        check_array(array.as_ref(), content_len)?;
        let palette = (flags & FLAG_PALETTE != 0).then(|| Palette::read(&mut index, kind)).transpose()?;
        if chunk_count > index.remaining() / MIN_DESCRIPTION {
            return Err(Error::corrupt("more chunks than the index has room for"));
        }
        let mut chunks = Vec::with_capacity(chunk_count);
        let (mut content, mut payload) = (0u64, payload_at as u64);
        for _ in 0..chunk_count {
            let start = index_bytes.len() - index.remaining();
            let (len, _, layout) = read_description::<D>(&mut index, kind)?;
            let end = index_bytes.len() - index.remaining();
            let payload_end = payload.saturating_add(layout.payload_len(len));
            if payload_end > index_at {
                return Err(Error::corrupt("a chunk runs into the index"));
            }
            if content % kind.size() as u64 != 0 {
                return Err(Error::corrupt("a chunk starts inside an element"));
            }
            chunks.push(Chunk {
                content: content..content + len as u64,
                payload: payload..payload_end,
                description: start..end,
            });
            content += len as u64;
            payload = payload_end;
        }
        let mut copies = Vec::new();
        if flags & FLAG_MATCHES != 0 {
            copies = matches::read(&mut index, kind.size() as u64, content, content_len)?;
            let whole = &chunks[..chunks.len().saturating_sub(2)];
            if whole.iter().any(|chunk| chunk.content.end - chunk.content.start < matches::MIN_CHUNK) {
                return Err(Error::corrupt("a small chunk in a frame with copies"));
            }
        } else if content != content_len {
            return Err(Error::corrupt("chunks that do not add up to their content"));
        }
        if index.remaining() != 0 || payload != index_at {
            return Err(Error::corrupt("chunks that do not add up to their frame"));
        }
        Ok(Self {
            index: index_bytes.into(),
            magic,
            kind,
            array,
            content_len,
            frame_len: stored.len(),
            palette,
            chunks,
            copies,
            described_by: PhantomData,
        })
    }

    pub(crate) fn info(&self) -> FrameInfo {
        FrameInfo {
            format: match self.magic {
                MAGIC_Z4AI => "Z4AI",
                MAGIC_ZARA => "ZARA",
                _ => "Z4DL",
            },
            version: u32::from(D::VERSION),
            kind: self.kind,
            array: self.array.clone(),
            content_len: self.content_len,
            frame_len: self.frame_len,
            chunks: self.chunks.len(),
        }
    }

    /// The parts of the chunks' decoded bytes that the bytes `range` of the content are.
    pub(crate) fn pieces(&self, range: Range<u64>) -> Vec<Range<u64>> {
        matches::resolve(&self.copies, range)
    }

    /// How many copies there are, and the bytes of all of them.
    pub(crate) fn copied(&self) -> (usize, u64) {
        (self.copies.len(), self.copies.iter().map(|copy| copy.len).sum())
    }

    /// The chunks that hold any of the decoded bytes `range` of all chunks.
    pub(crate) fn chunks_of(&self, range: Range<u64>) -> Range<usize> {
        let first = self.chunks.partition_point(|chunk| chunk.content.end <= range.start);
        let end = self.chunks.partition_point(|chunk| chunk.content.start < range.end);
        first..end.max(first)
    }

    pub(crate) fn chunk_count(&self) -> usize {
        self.chunks.len()
    }

    /// The range of chunk `index` in the decoded bytes of all chunks.
    pub(crate) fn content_of(&self, index: usize) -> Range<u64> {
        self.chunks[index].content.clone()
    }

    /// The range of chunk `index` in the frame.
    pub(crate) fn payload_of(&self, index: usize) -> Range<u64> {
        self.chunks[index].payload.clone()
    }

    /// The state that all chunks share.
    pub(crate) fn context(&self) -> Context<'_> {
        Context { palette: self.palette.as_ref() }
    }

    /// Checksum and description of chunk `index`.
    pub(crate) fn described(&self, index: usize) -> Result<(u64, D)> {
        let mut description = Reader::new(&self.index[self.chunks[index].description.clone()]);
        let (_, checksum, layout) = read_description(&mut description, self.kind)?;
        Ok((checksum, layout))
    }

    /// The description of chunk `index` behind length and checksum.
    pub(crate) fn description(&self, index: usize) -> Result<Reader<'_>> {
        let mut description = Reader::new(&self.index[self.chunks[index].description.clone()]);
        description.take(DESCRIBED)?;
        Ok(description)
    }

    /// The bytes that this takes.
    pub(crate) fn memory(&self) -> usize {
        self.index.len() + self.chunks.len() * size_of::<Chunk>() + self.copies.len() * size_of::<Match>()
    }
}

impl<'a, D: FrameFormat> Frame<'a, D> {
    /// Parses a whole frame. Checks everything but the payload.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self> {
        let stored = Stored::Whole(bytes);
        Ok(Self { stored, index: Cow::Owned(FrameIndex::parse(stored)?) })
    }

    /// A frame whose index is parsed already.
    pub(crate) fn new(index: &'a FrameIndex<D>, stored: Stored<'a>) -> Self {
        Self { stored, index: Cow::Borrowed(index) }
    }

    /// Checksum, description and payload of chunk `index`.
    pub(crate) fn chunk(&self, index: usize) -> Result<(u64, D, &'a [u8])> {
        let (checksum, layout) = self.described(index)?;
        Ok((checksum, layout, self.payload(index)?))
    }

    /// The stored bytes of chunk `index`.
    pub(crate) fn payload(&self, index: usize) -> Result<&'a [u8]> {
        self.stored.get(self.payload_of(index))
    }
}

/// Where the index of a frame of `len` bytes is, its checksum included, by the frame's first bytes.
pub(crate) fn index_range(head: &[u8], len: u64) -> Result<Range<u64>> {
    let mut reader = Reader::new(head);
    reader.take(LENGTHS)?;
    let (frame_len, _, index_len) = (reader.u64()?, reader.u64()?, u64::from(reader.u32()?));
    reader.u32()?;
    if frame_len != len {
        return Err(Error::corrupt(format_args!(
            "the frame says it has {frame_len} bytes, but {len} are here"
        )));
    }
    if index_len < CHECKSUM as u64 || index_len > len - FIXED as u64 {
        return Err(Error::corrupt("an index longer than the frame"));
    }
    Ok(len - index_len..len)
}

/// One hash over header and index, which do not touch.
fn head_checksum(header: &[u8], index: &[u8]) -> u64 {
    use std::hash::Hasher;
    let mut hasher = XxHash3_64::new();
    hasher.write(header);
    hasher.write(index);
    hasher.finish()
}

fn read_description<D: ChunkDescription>(index: &mut Reader<'_>, kind: Kind) -> Result<(usize, u64, D)> {
    let len = index.u32()? as usize;
    if len == 0 || len > MAX_CHUNK {
        return Err(Error::corrupt(format_args!("a chunk of {len} bytes")));
    }
    let checksum = index.u64()?;
    Ok((len, checksum, D::read(index, kind, len)?))
}

/// Appends the description of a chunk of `len` bytes.
pub(crate) fn write_description(
    index: &mut Vec<u8>,
    len: usize,
    checksum: u64,
    layout: &impl ChunkDescription,
) {
    index.put_u32(len as u32);
    index.put_u64(checksum);
    layout.write(index);
}

fn read_array(reader: &mut Reader<'_>) -> Result<Array> {
    let len = usize::from(reader.u8()?);
    let dtype = std::str::from_utf8(reader.take(len)?)
        .map_err(|_| Error::corrupt("an array dtype that is not text"))?
        .to_owned();
    let dimensions = reader.u8()?;
    let shape = (0..dimensions).map(|_| reader.u64()).collect::<Result<_>>()?;
    Ok(Array { dtype, shape })
}

/// Refuses an array whose elements do not divide the content evenly.
fn check_array(array: Option<&Array>, content_len: u64) -> Result<()> {
    let Some(array) = array else { return Ok(()) };
    let count = array.shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
    let fits = match count {
        // An empty array: `checked_mul` saw a zero before any overflow could matter.
        Some(0) => content_len == 0,
        Some(n) => content_len > 0 && content_len.is_multiple_of(n),
        None => array.shape.contains(&0) && content_len == 0,
    };
    if !fits {
        return Err(Error::corrupt(format_args!(
            "an array of shape {:?} in {content_len} bytes",
            array.shape
        )));
    }
    Ok(())
}

/// Starts a frame in `out`: everything up to the payload, lengths still open.
pub(crate) fn write_header(
    out: &mut Vec<u8>,
    (magic, version): ([u8; 4], u8),
    kind: Kind,
    array: Option<&Array>,
    content_len: u64,
) -> Result<()> {
    out.extend(magic);
    out.extend([version, kind.code(), if array.is_some() { FLAG_ARRAY } else { 0 }, 0]);
    out.put_u64(0);
    out.put_u64(content_len);
    out.put_u64(0);
    if let Some(array) = array {
        let (Ok(len), Ok(dimensions)) = (u8::try_from(array.dtype.len()), u8::try_from(array.shape.len()))
        else {
            return Err(Error::invalid("an array dtype or shape of more than 255 parts"));
        };
        check_array(Some(array), content_len).map_err(|_| {
            Error::invalid(format_args!("{content_len} bytes are not an array of shape {:?}", array.shape))
        })?;
        out.put_u8(len);
        out.extend_from_slice(array.dtype.as_bytes());
        out.put_u8(dimensions);
        array.shape.iter().for_each(|&d| out.put_u64(d));
    }
    Ok(())
}

/// What an index is made of.
#[derive(Default)]
pub(crate) struct Index<'a> {
    /// The palette, if there is one.
    pub(crate) palette: &'a [u8],
    /// The descriptions of all chunks.
    pub(crate) descriptions: &'a [u8],
    /// How many these are.
    pub(crate) chunks: usize,
    pub(crate) copies: &'a [Match],
}

/// Ends a frame whose header has `header_len` bytes: appends the index, closes flags and lengths.
pub(crate) fn write_index(out: &mut Vec<u8>, header_len: usize, parts: &Index<'_>) -> Result<()> {
    let payload_len = (out.len() - header_len) as u64;
    let index = close(&mut out[..header_len], payload_len, parts)?;
    out.extend_from_slice(&index);
    Ok(())
}

/// Closes flags and lengths of a header in front of `payload_len` bytes; returns the index, its
/// checksum included.
pub(crate) fn close(header: &mut [u8], payload_len: u64, parts: &Index<'_>) -> Result<Vec<u8>> {
    let mut index = [parts.palette, parts.descriptions].concat();
    if !parts.palette.is_empty() {
        header[FLAGS] |= FLAG_PALETTE;
    }
    if !parts.copies.is_empty() {
        header[FLAGS] |= FLAG_MATCHES;
        matches::write(parts.copies, &mut index);
    }
    let index_len = u32::try_from(index.len() + CHECKSUM);
    let (Ok(index_len), Ok(chunk_count)) = (index_len, u32::try_from(parts.chunks)) else {
        return Err(Error::invalid("too much data for one frame"));
    };
    let frame_len = header.len() as u64 + payload_len + (index.len() + CHECKSUM) as u64;
    header[LENGTHS..LENGTHS + 8].copy_from_slice(&frame_len.to_le_bytes());
    header[LENGTHS + 16..LENGTHS + 20].copy_from_slice(&index_len.to_le_bytes());
    header[LENGTHS + 20..LENGTHS + 24].copy_from_slice(&chunk_count.to_le_bytes());
    let checksum = head_checksum(header, &index);
    index.put_u64(checksum);
    Ok(index)
}
