//! The zstd seekable format: frames one after another, then a skippable frame with the table of their
//! sizes. Any frame can be decoded alone, so that ranges cost what they hold.

use std::ops::Range;
use std::sync::OnceLock;

use zstd::zstd_safe;

use crate::base::parallel;
use crate::catalog::{Decode, Extent};
use crate::error::{Error, Result};
use crate::source::{Sources, zeroed};

/// (format)
const SKIPPABLE_MAGIC: u32 = 0x184D_2A5E;
const TABLE_MAGIC: u32 = 0x8F92_EAB1;
const FRAME_MAGIC: u32 = 0xFD2F_B528;
/// Magic and length of a skippable frame. (format)
const SKIPPABLE_HEAD: u64 = 8;
/// Number of frames, descriptor and magic at the end of the table. (format)
const TABLE_TAIL: u64 = 9;
/// The bit of the descriptor that says that entries have checksums.
const HAS_CHECKSUMS: u8 = 0x80;
/// The bit of a frame's descriptor that says that its content has a checksum.
const CONTENT_CHECKSUM: u8 = 0x04;
/// No frame may decode to more. (limit)
const MAX_FRAME: u32 = 16 << 20;
/// What frames written here decode to, but for the last. (Other writers use the same.)
/// (case: `constants.py`: reading ten rows takes half as long with half of it, writing the same)
pub(crate) const FRAME_LEN: usize = 1 << 20;

/// A seekable zstd stream that decodes to `len` bytes.
#[derive(Debug)]
pub(crate) struct SeekableZstd {
    extent: Extent,
    len: u64,
    table: OnceLock<Table>,
}

/// Where frames lie, checked against the lengths of the stream and of its content.
#[derive(Debug)]
struct Table {
    frames: Vec<Frame>,
    /// What every frame but the last decodes to.
    size: u64,
}

#[derive(Debug, Clone, Copy)]
struct Frame {
    /// Where it starts in the stream.
    start: u64,
    stored: u32,
    decoded: u32,
    /// The low half of the XXH64 of its content.
    checksum: Option<u32>,
}

#[cold]
fn broken(why: impl std::fmt::Display) -> Error {
    Error::corrupt("zt2.Encoding", format!("the seekable zstd stream does not decode: {why}"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

impl SeekableZstd {
    /// The name of the encoding in manifests.
    pub(crate) const NAME: &str = "zt.zstd-seekable/1";

    /// Nothing is read until something is decoded.
    pub(crate) fn new(extent: Extent, len: u64) -> SeekableZstd {
        SeekableZstd { extent, len, table: OnceLock::new() }
    }

    fn part(&self, start: u64, len: u64) -> Extent {
        Extent { offset: self.extent.offset + start, len, ..self.extent }
    }

    fn table(&self, sources: &Sources) -> Result<&Table> {
        if let Some(table) = self.table.get() {
            return Ok(table);
        }
        let table = self.read_table(sources)?;
        Ok(self.table.get_or_init(|| table))
    }

    fn read_table(&self, sources: &Sources) -> Result<Table> {
        let total = self.extent.len;
        if total < SKIPPABLE_HEAD + TABLE_TAIL {
            return Err(broken(format!("{total} bytes are fewer than an empty table takes")));
        }
        let tail = sources.bytes(self.part(total - TABLE_TAIL, TABLE_TAIL))?;
        let (count, descriptor) = (u32_at(&tail, 0), tail[4]);
        if u32_at(&tail, 5) != TABLE_MAGIC {
            return Err(broken("it does not end with a seek table"));
        }
        if descriptor & !HAS_CHECKSUMS != 0 {
            return Err(broken(format!("the descriptor {descriptor:#04x} of its seek table is not known")));
        }
        let entry = if descriptor & HAS_CHECKSUMS != 0 { 12 } else { 8 };
        let content = u64::from(count) * entry + TABLE_TAIL;
        let Some(frames_len) = total.checked_sub(SKIPPABLE_HEAD + content) else {
            return Err(broken(format!("a seek table of {count} frames does not fit in {total} bytes")));
        };
        let table = sources.bytes(self.part(frames_len, SKIPPABLE_HEAD + content))?;
        if u32_at(&table, 0) != SKIPPABLE_MAGIC || u64::from(u32_at(&table, 4)) != content {
            return Err(broken("the seek table is not a skippable frame of its length"));
        }
        let mut frames = Vec::with_capacity(count as usize);
        let (mut start, mut decoded) = (0u64, 0u64);
        for bytes in table[SKIPPABLE_HEAD as usize..].chunks_exact(entry as usize).take(count as usize) {
            let frame = Frame {
                start,
                stored: u32_at(bytes, 0),
                decoded: u32_at(bytes, 4),
                checksum: (entry == 12).then(|| u32_at(bytes, 8)),
            };
            if frame.decoded > MAX_FRAME {
                return Err(broken(format!("a frame of {} bytes is larger than 16 MiB", frame.decoded)));
            }
            start += u64::from(frame.stored);
            decoded += u64::from(frame.decoded);
            frames.push(frame);
        }
        if start != frames_len {
            return Err(broken(format!("its frames take {start} of {frames_len} bytes")));
        }
        if decoded != self.len {
            return Err(broken(format!("it holds {decoded} bytes, the file declares {}", self.len)));
        }
        let size = frames.first().map_or(0, |first| first.decoded);
        let whole = &frames[..frames.len().saturating_sub(1)];
        if whole.iter().any(|frame| frame.decoded != size) {
            return Err(broken("frames before the last differ in size"));
        }
        Ok(Table { frames, size: u64::from(size) })
    }

    /// Decodes one frame into exactly its bytes.
    fn decode_frame(&self, sources: &Sources, frame: Frame, out: &mut [u8]) -> Result<()> {
        let extent = self.part(frame.start, u64::from(frame.stored));
        sources.with_bytes(extent, |bytes| {
            if bytes.len() < 5 || u32_at(bytes, 0) != FRAME_MAGIC {
                return Err(broken("the seek table points to something that is not a frame"));
            }
            if bytes[4] & CONTENT_CHECKSUM == 0 {
                return Err(broken("a frame has no content checksum"));
            }
            if zstd_safe::find_frame_compressed_size(bytes).ok() != Some(bytes.len()) {
                return Err(broken("a frame is not as long as the seek table says"));
            }
            let written = zstd::bulk::decompress_to_buffer(bytes, out).map_err(broken)?;
            if written != out.len() {
                return Err(broken(format!("a frame holds {written} bytes instead of {}", out.len())));
            }
            match frame.checksum {
                Some(checksum) if twox_hash::XxHash64::oneshot(0, out) as u32 != checksum => {
                    Err(broken("a frame does not match its checksum in the seek table"))
                }
                _ => Ok(()),
            }
        })
    }
}

impl Decode for SeekableZstd {
    fn encoding(&self) -> &str {
        SeekableZstd::NAME
    }

    fn stored_len(&self) -> u64 {
        self.extent.len
    }

    fn extent(&self) -> Option<Extent> {
        Some(self.extent)
    }

    fn content_extent(&self) -> Option<Extent> {
        Some(self.extent)
    }

    fn work(&self, range: &Range<u64>) -> u64 {
        // The frames at both ends are decoded whole.
        let len = range.end.saturating_sub(range.start);
        len.saturating_add(2 * u64::from(MAX_FRAME)).min(self.len)
    }

    fn decode(&self, sources: &Sources, range: Range<u64>, out: &mut [u8], threads: usize) -> Result<()> {
        if out.is_empty() && self.len > 0 {
            return Ok(());
        }
        let table = self.table(sources)?;
        let Some(last) = table.frames.len().checked_sub(1) else { return Ok(()) };
        let mut index = match table.size {
            0 => last as u64,
            size => (range.start / size).min(last as u64),
        } as usize;
        let mut jobs = Vec::new();
        let mut rest = out;
        let mut at = range.start;
        while at < range.end {
            let frame = table.frames.get(index).copied().ok_or_else(|| broken("it ends too early"))?;
            let start = index as u64 * table.size;
            let end = range.end.min(start + u64::from(frame.decoded));
            let (part, after) = rest.split_at_mut(end.saturating_sub(at) as usize);
            jobs.push((frame, (at - start) as usize, part));
            rest = after;
            (at, index) = (end.max(at), index + 1);
        }
        parallel::for_each(threads.min(jobs.len()).max(1), jobs, |(frame, skip, part)| {
            if part.len() == frame.decoded as usize {
                return self.decode_frame(sources, frame, part);
            }
            let mut whole = zeroed(u64::from(frame.decoded))?;
            self.decode_frame(sources, frame, &mut whole)?;
            part.copy_from_slice(&whole[skip..skip + part.len()]);
            Ok(())
        })
    }
}

/// Writes a seekable zstd stream, [`FRAME_LEN`] bytes of content at a time.
pub(crate) struct SeekableEncoder {
    level: i32,
    threads: usize,
    /// Stored and decoded sizes.
    entries: Vec<(u32, u32)>,
    /// Content of a frame that is not full yet.
    pending: Vec<u8>,
    /// Bytes written.
    stored: u64,
}

/// Frames that are compressed at the same time, for each thread. (limit)
const FRAMES_IN_FLIGHT: usize = 4;

impl SeekableEncoder {
    pub(crate) fn new(level: i32, threads: usize) -> SeekableEncoder {
        let threads = parallel::resolve(threads);
        SeekableEncoder { level, threads, entries: Vec::new(), pending: Vec::new(), stored: 0 }
    }

    /// Takes more content; `write` gets what is ready.
    pub(crate) fn push(
        &mut self,
        mut bytes: &[u8],
        mut write: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let room = FRAME_LEN * FRAMES_IN_FLIGHT * self.threads;
        while !bytes.is_empty() {
            let (some, rest) = bytes.split_at(bytes.len().min(room - self.pending.len()));
            self.pending.extend_from_slice(some);
            bytes = rest;
            if self.pending.len() == room {
                self.compress(&mut write)?;
            }
        }
        Ok(())
    }

    fn compress(&mut self, write: &mut impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let content = std::mem::take(&mut self.pending);
        let mut frames: Vec<(&[u8], Result<Vec<u8>>)> =
            content.chunks(FRAME_LEN).map(|chunk| (chunk, Ok(Vec::new()))).collect();
        let jobs = frames.iter_mut().map(|(chunk, frame)| (*chunk, frame)).collect();
        parallel::for_each(self.threads, jobs, |(chunk, frame)| {
            *frame = compress_frame(chunk, self.level);
            Ok(())
        })?;
        for (chunk, frame) in frames {
            let frame = frame?;
            write(&frame)?;
            self.stored += frame.len() as u64;
            self.entries.push((frame.len() as u32, chunk.len() as u32));
        }
        self.pending = content;
        self.pending.clear();
        Ok(())
    }

    /// Writes the rest and the seek table; returns the length of the stream.
    pub(crate) fn finish(mut self, mut write: impl FnMut(&[u8]) -> Result<()>) -> Result<u64> {
        if !self.pending.is_empty() {
            self.compress(&mut write)?;
        }
        let too_long = |_| Error::unsupported("a part of more than 2^32 frames cannot be compressed");
        let count = u32::try_from(self.entries.len()).map_err(too_long)?;
        let content = u32::try_from(self.entries.len() as u64 * 8 + TABLE_TAIL).map_err(too_long)?;
        let mut table = Vec::with_capacity(content as usize + 8);
        table.extend_from_slice(&SKIPPABLE_MAGIC.to_le_bytes());
        table.extend_from_slice(&content.to_le_bytes());
        for (stored, decoded) in &self.entries {
            table.extend_from_slice(&stored.to_le_bytes());
            table.extend_from_slice(&decoded.to_le_bytes());
        }
        table.extend_from_slice(&count.to_le_bytes());
        table.push(0);
        table.extend_from_slice(&TABLE_MAGIC.to_le_bytes());
        write(&table)?;
        Ok(self.stored + table.len() as u64)
    }
}

fn compress_frame(content: &[u8], level: i32) -> Result<Vec<u8>> {
    let failed = |error| Error::io("zstd failed", error);
    let mut compressor = zstd::bulk::Compressor::new(level).map_err(failed)?;
    compressor.include_checksum(true).map_err(failed)?;
    compressor.compress(content).map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::source::MemorySource;

    fn stream(content: &[u8]) -> Vec<u8> {
        let (mut encoder, mut out) = (SeekableEncoder::new(3, 2), Vec::new());
        for piece in content.chunks(700_001) {
            encoder
                .push(piece, |bytes| {
                    out.extend_from_slice(bytes);
                    Ok(())
                })
                .unwrap();
        }
        let mut end = Vec::new();
        let len = encoder
            .finish(|bytes| {
                end.extend_from_slice(bytes);
                Ok(())
            })
            .unwrap();
        out.extend(end);
        assert_eq!(len, out.len() as u64);
        out
    }

    fn decode(stored: &[u8], len: u64, range: Range<u64>) -> Result<Vec<u8>> {
        let sources = Sources::one(Arc::new(MemorySource::new(stored.to_vec())));
        let decoder = SeekableZstd::new(Extent::new(0, stored.len() as u64), len);
        let mut out = vec![0; (range.end - range.start) as usize];
        decoder.decode(&sources, range, &mut out, 2).map(|()| out)
    }

    #[test]
    fn any_range_of_what_was_encoded() {
        let content: Vec<u8> = (0..(FRAME_LEN as u32 * 5 / 2)).map(|n| (n / 3 * 7) as u8).collect();
        let (stored, len) = (stream(&content), content.len() as u64);
        assert!(stored.len() < content.len() / 2);
        for range in [
            0..len,
            0..1,
            5..FRAME_LEN as u64,
            FRAME_LEN as u64 - 1..FRAME_LEN as u64 + 1,
            7..len - 9,
            len - 1..len,
        ] {
            let found = decode(&stored, len, range.clone()).unwrap();
            assert_eq!(found, content[range.start as usize..range.end as usize], "{range:?}");
        }
        let empty = stream(&[]);
        assert_eq!(empty, *b"\x5e\x2a\x4d\x18\x09\0\0\0\0\0\0\0\0\xb1\xea\x92\x8f");
        assert!(decode(&empty, 0, 0..0).unwrap().is_empty());
    }

    #[test]
    fn broken_streams_are_refused() {
        let content: Vec<u8> = (0..5000u32).map(|n| (n * n) as u8).collect();
        let good = stream(&content);
        let frames = good.len() - 25;
        let table = |at: usize, bytes: &[u8]| {
            let mut bad = good.clone();
            bad[frames + at..frames + at + bytes.len()].copy_from_slice(bytes);
            bad
        };
        let mut no_checksum = zstd::bulk::compress(&content, 3).unwrap();
        let stored = no_checksum.len() as u32;
        no_checksum.extend_from_slice(&good[frames..]);
        let at = stored as usize + 8;
        no_checksum[at..at + 4].copy_from_slice(&stored.to_le_bytes());
        let mut two_frames = good[..frames].repeat(2);
        let doubled = two_frames.len() as u32;
        two_frames.extend_from_slice(&good[frames..]);
        two_frames[doubled as usize + 8..doubled as usize + 12].copy_from_slice(&doubled.to_le_bytes());
        let mut flipped = good.clone();
        flipped[frames - 1] ^= 1;
        for (what, bad) in [
            ("empty", vec![]),
            ("cut", good[..good.len() - 1].to_vec()),
            ("table magic", table(21, &[0])),
            ("skippable magic", table(0, &[0])),
            ("skippable length", table(4, &[18])),
            ("descriptor", table(20, &[1])),
            ("checksums that are not there", table(20, &[0x80])),
            ("count", table(16, &[2])),
            ("a huge count", table(16, &[0xff; 4])),
            ("stored size", table(8, &[0])),
            ("decoded size", table(12, &[0])),
            ("a frame over 16 MiB", table(12, &(MAX_FRAME + 1).to_le_bytes())),
            ("no content checksum", no_checksum),
            ("two frames in one entry", two_frames),
            ("a wrong content checksum", flipped),
        ] {
            let error = decode(&bad, content.len() as u64, 0..content.len() as u64).expect_err(what);
            assert_eq!(error.rule(), Some("zt2.Encoding"), "{what}: {error}");
        }
        assert!(decode(&good, 4999, 0..4999).is_err());
        assert!(decode(&good, 5001, 0..5001).is_err());
    }
}
