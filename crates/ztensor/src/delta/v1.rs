//! Version 1: a header, and per tensor a copy, a delta or a frame of the codec's first version.

use std::sync::Arc;

use blake2::Blake2b;
use blake2::digest::Digest;
use blake2::digest::consts::U8;

use super::apply::wrong_base;
use super::model::Model;
use super::segments::{BaseCheck, Delta, How, Place, Segment};
use crate::catalog::Extent;
use crate::decode::{Generation, check_expansion};
use crate::error::{Error, Result};
use crate::format::{Format, safetensors};
use crate::source::{Cursor, Source};

pub(super) const VERSION: u8 = 1;

/// Magic and version.
const PREFIX: u64 = 5;
/// Bytes that nothing is stored for come in pieces of this size.
const ZEROS: u64 = 32 << 20;

fn corrupt(message: impl Into<String>) -> Error {
    Error::corrupt("z4dm.v1", message)
}

pub(super) fn read(source: Arc<dyn Source>) -> Result<Delta> {
    let mut cursor = Cursor::new(&*source);
    cursor.skip(PREFIX)?;
    let header_len = cursor.u64_le()?;
    if header_len > safetensors::MAX_HEADER {
        return Err(corrupt(format!("a header of {header_len} bytes does not fit in the file")));
    }
    cursor.skip(header_len)?;
    let data_len = cursor.u64_le()?;
    check_expansion("z4dm.v1", source.len(), data_len)?;
    let base = BaseCheck::Data(cursor.array()?);
    let head_len = safetensors::PREFIX + header_len;
    let target_len = head_len.checked_add(data_len).ok_or_else(|| corrupt("more than 2^64 bytes"))?;
    // The length and the header stand here as they do in the target.
    let head = How::Raw(Extent::new(PREFIX, head_len), None);
    let mut segments = vec![Segment { name: String::new(), len: head_len, how: head }];
    let mut end = 0;
    for _ in 0..cursor.u32_le()? {
        let name_len = cursor.u16_le()?;
        let name = std::str::from_utf8(cursor.take(u64::from(name_len))?)
            .map_err(|_| corrupt("a name is not UTF-8"))?
            .to_owned();
        let (begin, stop) = (cursor.u64_le()?, cursor.u64_le()?);
        if begin < end || stop < begin || stop > data_len {
            return Err(corrupt(format!("data from {begin} to {stop} follows data that ends at {end}")));
        }
        zeros(&mut segments, begin - end);
        end = stop;
        let len = stop - begin;
        let kind = cursor.u8()?;
        let place = Place { name: name.clone(), role: "data".to_owned(), offset: 0 };
        let how = match kind {
            2 => How::Copy(place),
            0 | 1 => {
                let stored = cursor.u64_le()?;
                let extent = Extent::new(cursor.position(), stored);
                cursor.skip(stored)?;
                check_expansion("z4dm.v1", stored, len)?;
                if kind == 1 { How::Delta(extent, place) } else { How::Frame(extent, Generation::First) }
            }
            kind => return Err(corrupt(format!("record kind {kind} is not known"))),
        };
        segments.push(Segment { name, len, how });
    }
    zeros(&mut segments, data_len - end);
    if cursor.remaining() != 0 {
        return Err(corrupt(format!("{} bytes follow the last record", cursor.remaining())));
    }
    drop(cursor);
    Ok(Delta { source, version: VERSION, base, target: None, target_len, segments })
}

fn zeros(segments: &mut Vec<Segment>, len: u64) {
    for start in (0..len).step_by(ZEROS as usize) {
        segments.push(Segment { name: String::new(), len: (len - start).min(ZEROS), how: How::Zeros });
    }
}

/// Compares the data of a `.safetensors` base with the digest that the delta has of it.
pub(super) fn check_base(base: &Model, expected: [u8; 8]) -> Result<()> {
    let catalog = base.reader.catalog();
    if catalog.format != Format::Safetensors || catalog.sources.len() != 1 {
        return Err(wrong_base(base, "deltas of version 1 are made from .safetensors files".to_owned()));
    }
    let source = catalog.sources.get(0)?;
    let mut cursor = Cursor::new(&**source);
    let start = safetensors::PREFIX + cursor.u64_le()?;
    let mut hasher = Blake2b::<U8>::new();
    const HASHED_PIECE: u64 = 4 << 20;
    for skip in (start..source.len()).step_by(HASHED_PIECE as usize) {
        hasher.update(&source.bytes(skip, (source.len() - skip).min(HASHED_PIECE))?);
    }
    if hasher.finalize()[..] != expected {
        return Err(wrong_base(base, "its data differs".to_owned()));
    }
    Ok(())
}
