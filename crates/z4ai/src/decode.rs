//! Decoding frames: whole, or any range of elements.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::frame::Frame;
use crate::layout::Scratch;
use crate::options::DecodeOptions;
use crate::{memory, parallel};

/// Decodes a whole frame into new memory.
pub(crate) fn to_vec(frame: &Frame<'_>, options: &DecodeOptions) -> Result<Vec<u8>> {
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
    bytes_into(frame, 0..frame.content_len, &mut out, options)?;
    Ok(out)
}

/// Decodes a whole frame into `out`.
pub(crate) fn whole_into(frame: &Frame<'_>, out: &mut [u8], options: &DecodeOptions) -> Result<()> {
    if out.len() as u64 != frame.content_len {
        return Err(Error::invalid(format_args!(
            "the frame decodes to {} bytes, the buffer has {}",
            frame.content_len,
            out.len()
        )));
    }
    bytes_into(frame, 0..frame.content_len, out, options)
}

/// Decodes elements `range` into `out`.
pub(crate) fn range_into(
    frame: &Frame<'_>,
    range: Range<u64>,
    out: &mut [u8],
    options: &DecodeOptions,
) -> Result<()> {
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
    bytes_into(frame, bytes, out, options)
}

/// Decodes the chunks that hold the decoded bytes `range` and keeps those.
fn bytes_into(frame: &Frame<'_>, range: Range<u64>, out: &mut [u8], options: &DecodeOptions) -> Result<()> {
    if out.len() as u64 > options.max_output {
        return Err(Error::limit(format_args!(
            "{} bytes to decode, the limit is {}",
            out.len(),
            options.max_output
        )));
    }
    // Each chunk gets its own part of the output, so that threads can fill them at once.
    let mut parts = Vec::new();
    let mut rest = out;
    for index in frame.chunks_of(range.clone()) {
        let content = frame.content_of(index);
        let wanted = content.start.max(range.start)..content.end.min(range.end);
        let (part, tail) = rest.split_at_mut((wanted.end - wanted.start) as usize);
        rest = tail;
        parts.push(std::sync::Mutex::new((index, content, wanted, part)));
    }
    parallel::for_each(options.threads, parts.len(), <(Scratch, Vec<u8>)>::default, |(scratch, whole), i| {
        let mut part = parts[i].lock().unwrap_or_else(|e| e.into_inner());
        let (index, content, wanted, part) = &mut *part;
        if content == wanted {
            return frame.decode_chunk(*index, part, scratch);
        }
        whole.resize((content.end - content.start) as usize, 0);
        frame.decode_chunk(*index, whole, scratch)?;
        let start = (wanted.start - content.start) as usize;
        part.copy_from_slice(&whole[start..start + part.len()]);
        Ok(())
    })
}
