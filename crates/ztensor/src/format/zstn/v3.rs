//! Version 3: the header as it is, frames of the codec's first version, an index with names.
//! Nothing in it has a checksum, so what can be compared is compared.

use std::sync::Arc;

use super::MAGIC;
use super::container::{Blob, Container, Mode, Stored};
use crate::catalog::Extent;
use crate::decode::{Generation, check_expansion};
use crate::error::{Error, Result};
use crate::format::safetensors;
use crate::source::{Cursor, Source};

pub(super) const VERSION: u8 = 3;

/// Magic, version and the flag that tensors are stored one by one.
const PREFIX: u64 = 6;
/// Offset and length of the index, and the magic.
const FOOTER: u64 = 20;

fn corrupt(message: impl Into<String>) -> Error {
    Error::corrupt("zstn.v3", message)
}

pub(super) fn read(source: Arc<dyn Source>) -> Result<Container> {
    let total = source.len();
    let mut cursor = Cursor::new(&*source);
    cursor.skip(PREFIX - 1)?;
    let mode = match cursor.u8()? {
        0 => Mode::Opaque,
        1 => Mode::Tensors,
        other => return Err(corrupt(format!("{other} is neither 0 nor 1"))),
    };
    let header_len = cursor.u64_le()?;
    if header_len > safetensors::MAX_HEADER {
        return Err(corrupt(format!("a header of {header_len} bytes does not fit in the file")));
    }
    cursor.skip(header_len)?;
    let data_len = cursor.u64_le()?;
    let head_len = safetensors::PREFIX + header_len;
    let content_len = head_len.checked_add(data_len).ok_or_else(|| corrupt("more than 2^64 bytes"))?;
    // The length and the header stand here as they do in the original.
    let head = Blob { len: head_len, stored: Stored::Raw(Extent::new(PREFIX, head_len), None) };
    let mut blobs = vec![head];
    let mut names = None;
    match mode {
        Mode::Opaque => {
            let frame_len = cursor.u64_le()?;
            let frame = Extent::new(cursor.position(), frame_len);
            if frame_len != cursor.remaining() {
                return Err(corrupt(format!(
                    "a frame declares {frame_len} bytes where {} are left",
                    cursor.remaining()
                )));
            }
            blobs.push(frame_blob(frame, data_len)?);
        }
        Mode::Tensors => {
            let frames_at = cursor.position();
            let index = find_index(&mut cursor, frames_at, total)?;
            names = Some(read_index(&*source, frames_at, index, data_len, &mut blobs)?);
        }
    }
    drop(cursor);
    Ok(Container { source, version: VERSION, mode, blobs, content_len, names })
}

fn frame_blob(extent: Extent, len: u64) -> Result<Blob> {
    check_expansion("zstn.v3", extent.len, len)?;
    Ok(Blob { len, stored: Stored::Frame(extent, Generation::First) })
}

/// The index lies between the frames and the footer, which ends the file.
fn find_index(cursor: &mut Cursor<'_>, frames_at: u64, total: u64) -> Result<Extent> {
    if total - frames_at < FOOTER {
        return Err(corrupt("the file is too short for a footer"));
    }
    cursor.seek(total - FOOTER)?;
    let (offset, len) = (cursor.u64_le()?, cursor.u64_le()?);
    if &cursor.array::<4>()? != MAGIC {
        return Err(corrupt("the footer's mark is missing: the file is cut off"));
    }
    if offset < frames_at || offset.checked_add(len) != Some(total - FOOTER) {
        return Err(corrupt(format!("an index of {len} bytes at {offset} does not end at the footer")));
    }
    Ok(Extent::new(offset, len))
}

/// Entries follow each other in the order of the data, from its first byte to its last.
fn read_index(
    source: &dyn Source,
    frames_at: u64,
    index: Extent,
    data_len: u64,
    blobs: &mut Vec<Blob>,
) -> Result<Vec<(String, u64)>> {
    let mut cursor = Cursor::over(source, index.offset..index.offset + index.len);
    let count = cursor.u32_le()?;
    let mut names = Vec::new();
    let mut end = 0;
    for _ in 0..count {
        let name_len = cursor.u16_le()?;
        let name = std::str::from_utf8(cursor.take(u64::from(name_len))?)
            .map_err(|_| corrupt("a name is not UTF-8"))?
            .to_owned();
        let (begin, stop) = (cursor.u64_le()?, cursor.u64_le()?);
        let len = stop
            .checked_sub(begin)
            .ok_or_else(|| corrupt(format!("bytes {begin} to {stop} are not a range of the data")))?;
        // One without bytes may share its place with the one that starts there.
        if begin != end && len > 0 || stop > data_len {
            return Err(corrupt(format!("data from {begin} to {stop} follows data that ends at {end}")));
        }
        end = end.max(stop);
        blobs.push(match cursor.u8()? {
            0 => {
                let (offset, frame_len) = (cursor.u64_le()?, cursor.u64_le()?);
                let inside = offset.checked_add(frame_len).is_some_and(|end| end <= index.offset);
                if offset < frames_at || !inside {
                    return Err(corrupt(format!(
                        "a frame of {frame_len} bytes at byte {offset} is outside the frames"
                    )));
                }
                frame_blob(Extent::new(offset, frame_len), len)?
            }
            1 => {
                let first = cursor.u32_le()? as usize;
                match blobs.get(first + 1) {
                    // The header is no entry, and stands before all of them.
                    Some(Blob { len: same, stored: Stored::Frame(..) }) if *same == len => {
                        Blob { len, stored: Stored::Same(first + 1) }
                    }
                    _ => {
                        return Err(corrupt(format!(
                            "an entry refers to entry {first}, which is not an earlier one of the same length"
                        )));
                    }
                }
            }
            kind => return Err(corrupt(format!("entry kind {kind} is not known"))),
        });
        names.push((name, begin));
    }
    if cursor.remaining() != 0 || end != data_len {
        return Err(corrupt(format!("the tensors end at {end} of {data_len} bytes of data")));
    }
    Ok(names)
}
