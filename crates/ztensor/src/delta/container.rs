//! The bytes of a delta: prefix, blobs, index, footer. Reading and writing stand side by side.

use std::hash::Hasher;
use std::io::Write;
use std::sync::Arc;

use twox_hash::XxHash3_64;

use super::segments::{BaseCheck, Delta, How, Place, Segment};
use super::{ModelDigest, v1};
use crate::catalog::Extent;
use crate::decode::{Generation, broken_frame, check_expansion, decode_options};
use crate::error::{Error, Result};
use crate::source::Source;
use crate::write::compress::not_encoded;

pub(crate) const MAGIC: &[u8; 4] = b"Z4DM";
pub(crate) const VERSION: u8 = 2;
const PREFIX: [u8; 8] = [b'Z', b'4', b'D', b'M', VERSION, 0, 0, 0];
/// Three digests, four lengths, a checksum, and the prefix again.
const FOOTER: u64 = 3 * 16 + 4 * 8 + 8 + 8;
/// Kind, content length, blob length, CRC-32C, offset or reference, and the lengths of three texts.
const SMALLEST_ENTRY: u64 = 1 + 8 + 8 + 4 + 8 + 4 + 4 + 4;
/// An index up to this size may be a frame of any length; a larger one has to be worth it.
const SMALL_INDEX: u64 = 1 << 20;
/// How many times its frame a larger index may be.
const INDEX_EXPANSION: u64 = 64;

const KIND_FRAME: u8 = 0;
const KIND_RAW: u8 = 1;
const KIND_COPY: u8 = 2;
const KIND_DELTA: u8 = 3;
const KIND_SAME: u8 = 4;

/// Whether `head`, the first bytes of a file, are those of a delta of any version.
pub fn is_model_delta(head: &[u8]) -> bool {
    head.starts_with(MAGIC)
}

fn corrupt(rule: &'static str, message: impl Into<String>) -> Error {
    Error::corrupt(rule, message)
}

/// Reads prefix, footer and index.
pub(crate) fn read(source: Arc<dyn Source>) -> Result<Delta> {
    let total = source.len();
    let head: [u8; 5] = match source.bytes(0, total.min(5))?.first_chunk() {
        Some(head) => *head,
        None => return Err(corrupt("z4dm.short", format!("a file of {total} bytes"))),
    };
    match head[4] {
        _ if !is_model_delta(&head) => Err(Error::unsupported("not a model delta (Z4DM)")),
        v1::VERSION => v1::read(source),
        VERSION => read_present(source),
        version => {
            Err(Error::unsupported(format!("Z4DM version {version} is not one that this library reads")))
        }
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

fn digest(bytes: &[u8]) -> [u8; 16] {
    let mut digest = [0; 16];
    digest.copy_from_slice(bytes);
    digest
}

fn checksum(stored_index: &[u8], footer: &[u8]) -> u64 {
    let mut hasher = XxHash3_64::new();
    [&PREFIX[..], stored_index, footer].into_iter().for_each(|part| hasher.write(part));
    hasher.finish()
}

fn read_present(source: Arc<dyn Source>) -> Result<Delta> {
    let total = source.len();
    let smallest = PREFIX.len() as u64 + FOOTER;
    if total < smallest {
        return Err(corrupt("z4dm.short", format!("{total} bytes are fewer than prefix and footer take")));
    }
    let footer = source.bytes(total - FOOTER, FOOTER)?;
    let (fields, end) = footer.split_at(88);
    if end != PREFIX || source.bytes(0, 8)?[..] != PREFIX {
        return Err(corrupt(
            "z4dm.end",
            "the file does not start and end as it should: it is cut off or damaged",
        ));
    }
    let lengths: Vec<u64> = fields[48..80].chunks(8).map(number).collect();
    let [stored_len, index_len, target_len, file_len] = lengths[..] else { unreachable!("four lengths") };
    if file_len != total {
        return Err(corrupt("z4dm.length", format!("the file says it has {file_len} bytes, it has {total}")));
    }
    let proportionate = index_len <= SMALL_INDEX || index_len.div_ceil(INDEX_EXPANSION) <= stored_len;
    if stored_len > total - smallest || stored_len > index_len || !proportionate {
        let message = format!("an index of {index_len} bytes cannot be stored in {stored_len} bytes");
        return Err(corrupt("z4dm.index-length", message));
    }
    let index_at = total - FOOTER - stored_len;
    let stored = source.bytes(index_at, stored_len)?;
    if checksum(&stored, &fields[..80]) != number(&fields[80..]) {
        return Err(corrupt("z4dm.checksum", "prefix, index and footer do not match their checksum"));
    }
    let segments = if stored_len == index_len {
        read_index(&stored, index_at, target_len)?
    } else {
        let mut index = crate::source::zeroed(index_len)?;
        let options = decode_options(index_len, 1);
        z4ai::decompress_into(&stored, &mut index, &options).map_err(broken_frame)?;
        read_index(&index, index_at, target_len)?
    };
    let base = BaseCheck::Model(ModelDigest(digest(&fields[..16])));
    let target = Some((ModelDigest(digest(&fields[16..32])), u128::from_le_bytes(digest(&fields[32..48]))));
    drop((footer, stored));
    Ok(Delta { source, version: VERSION, base, target, target_len, segments })
}

/// What is left of an index.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, len: u64) -> Result<&'a [u8]> {
        match usize::try_from(len).ok().and_then(|len| self.0.split_at_checked(len)) {
            Some((taken, rest)) => {
                self.0 = rest;
                Ok(taken)
            }
            None => Err(corrupt("z4dm.index", "the index ends within an entry")),
        }
    }

    fn number(&mut self, bytes: u64) -> Result<u64> {
        self.take(bytes).map(number)
    }

    fn text(&mut self) -> Result<String> {
        let len = self.number(4)?;
        let text = std::str::from_utf8(self.take(len)?);
        text.map(str::to_owned).map_err(|_| corrupt("z4dm.index", "a name is not UTF-8"))
    }
}

/// Segments make up the target, and their blobs lie one behind the other up to the index.
fn read_index(index: &[u8], index_at: u64, target_len: u64) -> Result<Vec<Segment>> {
    let mut rest = Rest(index);
    let count = rest.number(8)?;
    if count > rest.0.len() as u64 / SMALLEST_ENTRY {
        return Err(corrupt(
            "z4dm.index",
            format!("the index declares {count} segments but has {} bytes", index.len()),
        ));
    }
    let mut segments: Vec<Segment> = Vec::with_capacity(count as usize);
    let (mut end, mut contents) = (PREFIX.len() as u64, 0u64);
    for _ in 0..count {
        let kind = rest.number(1)?;
        let (len, stored) = (rest.number(8)?, rest.number(8)?);
        let (crc, value) = (rest.number(4)?, rest.number(8)?);
        let (name, base, role) = (rest.text()?, rest.text()?, rest.text()?);
        let kind = kind as u8;
        let refers = matches!(kind, KIND_COPY | KIND_DELTA);
        let plain = kind == KIND_RAW || crc == 0;
        if !plain || !(refers || base.is_empty() && role.is_empty()) {
            return Err(corrupt("z4dm.index", "a segment has a field that its kind does not use"));
        }
        let blob = if matches!(kind, KIND_COPY | KIND_SAME) { 0 } else { stored };
        let extent = Extent::new(end, blob);
        end = match end.checked_add(blob) {
            Some(end) if end <= index_at && blob == stored => end,
            _ => {
                return Err(corrupt(
                    "z4dm.blobs",
                    format!("a blob of {stored} bytes at byte {end} overlaps the index"),
                ));
            }
        };
        let place = Place { name: base, role, offset: value };
        let how = match kind {
            KIND_FRAME | KIND_DELTA => {
                check_expansion("z4dm.content-length", blob, len)?;
                if kind == KIND_FRAME {
                    How::Frame(extent, Generation::Present)
                } else {
                    How::Delta(extent, place)
                }
            }
            KIND_RAW if blob != len => {
                return Err(corrupt(
                    "z4dm.content-length",
                    format!("a raw blob has {blob} bytes, its content {len}"),
                ));
            }
            KIND_RAW => How::Raw(extent, Some(crc as u32)),
            KIND_COPY => How::Copy(place),
            KIND_SAME => {
                let first = usize::try_from(value).ok().and_then(|first| Some((first, segments.get(first)?)));
                match first {
                    Some((first, s)) if s.len == len && !matches!(s.how, How::Same(_)) => How::Same(first),
                    _ => {
                        return Err(corrupt(
                            "z4dm.reference",
                            format!(
                                "a segment refers to segment {value}, which is not an earlier one of the same length"
                            ),
                        ));
                    }
                }
            }
            other => return Err(corrupt("z4dm.kind", format!("segment kind {other} is not known"))),
        };
        contents = contents
            .checked_add(len)
            .ok_or_else(|| corrupt("z4dm.content-length", "the segments add up to more than 2^64 bytes"))?;
        segments.push(Segment { name, len, how });
    }
    if !rest.0.is_empty() {
        return Err(corrupt(
            "z4dm.index",
            format!("{} bytes follow the last entry of the index", rest.0.len()),
        ));
    }
    if end != index_at {
        return Err(corrupt("z4dm.blobs", format!("the blobs end at {end}, the index starts at {index_at}")));
    }
    if contents != target_len {
        let message = format!("the segments add up to {contents} bytes, the footer says {target_len}");
        return Err(corrupt("z4dm.content-length", message));
    }
    Ok(segments)
}

/// A delta as far as it is written.
pub(crate) struct Output<'a> {
    out: &'a mut (dyn Write + Send),
    position: u64,
    index: Vec<u8>,
    count: u64,
    target_len: u64,
}

/// What a segment is stored as.
pub(crate) enum Stored {
    Frame(Vec<u8>),
    Raw(Vec<u8>),
    Delta(Vec<u8>, Place),
    Copy(Place),
    Same(usize),
}

impl<'a> Output<'a> {
    pub(crate) fn start(out: &'a mut (dyn Write + Send)) -> Result<Output<'a>> {
        let mut output = Output { out, position: 0, index: Vec::new(), count: 0, target_len: 0 };
        output.put(&PREFIX)?;
        Ok(output)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(|error| Error::io("cannot write", error))?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    /// Writes the next segment, and says which it is.
    pub(crate) fn segment(&mut self, name: &str, len: u64, stored: &Stored) -> Result<usize> {
        let (kind, blob, crc, value, place) = match stored {
            Stored::Frame(blob) => (KIND_FRAME, &blob[..], 0, 0, None),
            Stored::Raw(blob) => (KIND_RAW, &blob[..], crc32c::crc32c(blob), 0, None),
            Stored::Copy(place) => (KIND_COPY, &[][..], 0, place.offset, Some(place)),
            Stored::Delta(blob, place) => (KIND_DELTA, &blob[..], 0, place.offset, Some(place)),
            Stored::Same(first) => (KIND_SAME, &[][..], 0, *first as u64, None),
        };
        self.put(blob)?;
        self.index.push(kind);
        self.index.extend_from_slice(&len.to_le_bytes());
        self.index.extend_from_slice(&(blob.len() as u64).to_le_bytes());
        self.index.extend_from_slice(&crc.to_le_bytes());
        self.index.extend_from_slice(&value.to_le_bytes());
        let (base, role) = place.map_or(("", ""), |place| (&place.name, &place.role));
        for text in [name, base, role] {
            let len =
                u32::try_from(text.len()).map_err(|_| Error::unsupported("a name is longer than 4 GiB"))?;
            self.index.extend_from_slice(&len.to_le_bytes());
            self.index.extend_from_slice(text.as_bytes());
        }
        self.count += 1;
        self.target_len += len;
        Ok(self.count as usize - 1)
    }

    /// Writes index and footer, and returns the size of the delta.
    pub(crate) fn finish(mut self, base: ModelDigest, target: ModelDigest, file: u128) -> Result<u64> {
        let mut index = self.count.to_le_bytes().to_vec();
        index.append(&mut self.index);
        let frame = z4ai::compress(&index, &z4ai::Options { threads: 1, ..z4ai::Options::default() });
        let frame = frame.map_err(not_encoded)?;
        let (index_len, frame_len) = (index.len() as u64, frame.len() as u64);
        let proportionate = index_len <= SMALL_INDEX || index_len.div_ceil(INDEX_EXPANSION) <= frame_len;
        let stored = if frame_len < index_len && proportionate { frame } else { index };
        self.put(&stored)?;
        let file_len = self.position + FOOTER;
        let mut footer = [base.0, target.0, file.to_le_bytes()].concat();
        for number in [stored.len() as u64, index_len, self.target_len, file_len] {
            footer.extend_from_slice(&number.to_le_bytes());
        }
        let checksum = checksum(&stored, &footer);
        footer.extend_from_slice(&checksum.to_le_bytes());
        footer.extend_from_slice(&PREFIX);
        self.put(&footer)?;
        self.out.flush().map_err(|error| Error::io("cannot write", error))?;
        Ok(file_len)
    }
}
