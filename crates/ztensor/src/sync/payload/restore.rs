//! Decodes payloads, and changes tensors by them.

use std::borrow::Cow;
use std::ops::Range;

use z4ai::ParsedFrame;
use z4ai::delta::ParsedDelta;
use zstd::stream::raw::Operation as _;
use zstd::zstd_safe;

use super::encode::compress;
use crate::base::huge_pages::zeroed_vec;
use crate::base::simd::{self, Kernel};
use crate::base::zstd_sparse;
use crate::decode::{broken_frame, check_expansion, decode_options};
use crate::error::{Error, Result};
use crate::sync::checksum::Hasher;
use crate::sync::index::{Encoding, PayloadCompression};

/// The largest window that a frame may ask for: level 1 never needs more than a fraction of it.
const MAX_WINDOW_LOG: u32 = 27;
/// Bytes of a tensor that are restored, hashed and compared at a time: the chunk of a sparse z4ai
/// delta, which a second-level cache holds.
pub(super) const BLOCK: usize = 8 * (248 << 10);

fn broken(message: impl Into<String>) -> Error {
    Error::corrupt("sync.payload", message)
}

/// The size that the one frame of a payload declares, which must not be more than `most`.
fn declared(payload: &[u8], most: u64) -> Result<u64> {
    let frame =
        zstd_safe::find_frame_compressed_size(payload).map_err(|_| broken("it is not a whole zstd frame"))?;
    if frame != payload.len() {
        return Err(broken(format!("{} bytes follow its zstd frame", payload.len() - frame)));
    }
    match zstd_safe::get_frame_content_size(payload) {
        Ok(Some(size)) if size <= most => Ok(size),
        Ok(Some(size)) => Err(broken(format!("it declares {size} bytes, at most {most} are possible"))),
        _ => Err(broken("its zstd frame does not say its size")),
    }
}

fn decompress(payload: &[u8], size: u64) -> Result<Vec<u8>> {
    let mut raw = zeroed_vec::<u8>(size)?;
    let failed = |error| Error::io("zstd cannot be set up", error);
    let mut decoder = zstd::bulk::Decompressor::new().map_err(failed)?;
    decoder.window_log_max(MAX_WINDOW_LOG).map_err(failed)?;
    match decoder.decompress_to_buffer(payload, &mut raw) {
        Ok(len) if len as u64 == size => Ok(raw),
        Ok(len) => Err(broken(format!("it decodes to {len} bytes, {size} are declared"))),
        Err(error) => Err(broken(format!("its zstd frame does not decode: {error}"))),
    }
}

/// Decoded positions and values of an `overwrite` payload of a tensor of `len` bytes.
pub(crate) struct Overwrite {
    raw: Vec<u8>,
    count: usize,
}

impl Overwrite {
    pub(crate) fn decode(payload: &[u8], len: u64) -> Result<Overwrite> {
        let size = declared(payload, len.saturating_mul(5).saturating_add(4))?;
        let raw = decompress(payload, size)?;
        let Some((count, _)) = raw.split_first_chunk::<4>() else {
            return Err(broken("overwrite: it is shorter than the number of changes"));
        };
        let count = u32::from_le_bytes(*count);
        if raw.len() as u64 != 4 + 5 * u64::from(count) {
            let message = format!("overwrite: {count} changes do not take {} bytes", raw.len());
            return Err(broken(message));
        }
        let overwrite = Overwrite { count: count as usize, raw };
        let mut last = None;
        for position in overwrite.positions() {
            if last.is_some_and(|last| last >= position) {
                return Err(broken("overwrite: positions do not rise"));
            }
            last = Some(position);
        }
        if last.is_some_and(|last| u64::from(last) >= len) {
            return Err(broken(format!("overwrite: a position is beyond the tensor's {len} bytes")));
        }
        Ok(overwrite)
    }

    fn position(&self, index: usize) -> u32 {
        let start = 4 + 4 * index;
        // In bounds: the length was compared with the count.
        self.raw[start..start + 4].try_into().map_or(0, u32::from_le_bytes)
    }

    fn positions(&self) -> impl Iterator<Item = u32> {
        (0..self.count).map(|index| self.position(index))
    }

    fn values(&self) -> &[u8] {
        &self.raw[4 + 4 * self.count..]
    }

    /// Changes the bytes `from..from + block.len()` of the tensor; `next` is the first change that
    /// is not behind it.
    fn apply(&self, from: u64, block: &mut [u8], next: &mut usize) {
        let values = self.values();
        while *next < self.count {
            let at = u64::from(self.position(*next)).wrapping_sub(from);
            let Some(byte) = usize::try_from(at).ok().and_then(|at| block.get_mut(at)) else { return };
            *byte = values[*next];
            *next += 1;
        }
    }

    /// The union of two changes: where both have a value the later one counts.
    pub(crate) fn then(&self, later: &Overwrite) -> Result<Vec<u8>> {
        let mut union: std::collections::BTreeMap<u32, u8> = std::collections::BTreeMap::new();
        for change in [self, later] {
            union.extend(change.positions().zip(change.values().iter().copied()));
        }
        let count =
            u32::try_from(union.len()).map_err(|_| Error::unsupported("more than 2^32 - 1 changes"))?;
        let mut raw = count.to_le_bytes().to_vec();
        union.keys().for_each(|position| raw.extend_from_slice(&position.to_le_bytes()));
        raw.extend(union.values());
        compress(&raw)
    }
}

/// The exclusive or of two `xor` payloads of a tensor.
pub(crate) fn xor_payloads(first: &[u8], second: &[u8], len: u64) -> Result<Vec<u8>> {
    let size = declared(first, len)?;
    if size != len || declared(second, len)? != len {
        return Err(broken("xor: payloads of one tensor decode to different lengths"));
    }
    let (first, second) = (decompress(first, size)?, decompress(second, size)?);
    zstd_sparse::compress_xor(&first, &second)
}

/// XORs a payload into a tensor in place, block by block, and hashes what it becomes. On an error
/// the tensor is as it was: XOR undoes itself.
pub(crate) fn xor_in_place(payload: &[u8], bytes: &mut [u8], hasher: &mut Option<Hasher>) -> Result<()> {
    let (size, len) = (declared(payload, u64::MAX)?, bytes.len());
    if size != len as u64 {
        return Err(broken(format!("xor: it decodes to {size} bytes, the tensor has {len}")));
    }
    let mut done = 0;
    let applied = xor_blocks(payload, bytes, hasher, &mut done).and_then(Decoder::finish);
    if applied.is_err() {
        xor_blocks(payload, &mut bytes[..done], &mut None, &mut 0)?;
    }
    applied
}

/// XORs the first bytes of a payload into `bytes`; `done` counts those that were changed.
fn xor_blocks<'p>(
    payload: &'p [u8],
    bytes: &mut [u8],
    hasher: &mut Option<Hasher>,
    done: &mut usize,
) -> Result<Decoder<'p>> {
    let (mut decoder, mut input) = xor_decoder(payload)?;
    let mut ended = false;
    let mut block = zeroed_vec::<u8>(zstd_sparse::BLOCK.min(bytes.len()) as u64)?;
    for part in bytes.chunks_mut(zstd_sparse::BLOCK) {
        let difference = &mut block[..part.len()];
        decode_xor(&mut decoder, &mut input, &mut ended, difference)?;
        // What was changed is hashed while it is in the first-level cache.
        for (part, difference) in part.chunks_mut(CHANGED_PART).zip(difference.chunks(CHANGED_PART)) {
            simd::run(Xor { to: part, difference });
            *done += part.len();
            if let Some(hasher) = hasher {
                hasher.update(part);
            }
        }
    }
    Ok(Decoder::Xor { decoder, input, done: ended })
}

/// Bytes that are changed and hashed at a time. (structural: a quarter of a first-level cache)
const CHANGED_PART: usize = 8 << 10;

/// XORs a difference into bytes of the same length.
struct Xor<'a> {
    to: &'a mut [u8],
    difference: &'a [u8],
}

impl Kernel for Xor<'_> {
    #[inline(always)]
    fn run(self) {
        self.to.iter_mut().zip(self.difference).for_each(|(byte, change)| *byte ^= change);
    }
}

type XorDecoder<'a> = (Box<zstd::stream::raw::Decoder<'static>>, zstd_safe::InBuffer<'a>);

fn xor_decoder(payload: &[u8]) -> Result<XorDecoder<'_>> {
    let failed = |error| Error::io("zstd cannot be set up", error);
    let mut decoder = zstd::stream::raw::Decoder::new().map_err(failed)?;
    decoder.set_parameter(zstd_safe::DParameter::WindowLogMax(MAX_WINDOW_LOG)).map_err(failed)?;
    Ok((Box::new(decoder), zstd_safe::InBuffer::around(payload)))
}

/// The length that an `xor` payload decodes to, which is the tensor's.
pub(crate) fn xor_len(payload: &[u8]) -> Result<u64> {
    declared(payload, u64::MAX)
}

/// One delta of a tensor, as it is applied.
pub(crate) struct Step<'a> {
    pub(crate) compression: PayloadCompression,
    pub(crate) encoding: Encoding,
    pub(crate) payload: Cow<'a, [u8]>,
}

/// The last step of a tensor, decoded block by block.
enum Decoder<'a> {
    Xor {
        decoder: Box<zstd::stream::raw::Decoder<'static>>,
        input: zstd_safe::InBuffer<'a>,
        done: bool,
    },
    Overwrite {
        change: Overwrite,
        next: usize,
    },
    /// A z4ai delta of the bytes before the step.
    Delta(Box<ParsedDelta<'a>>),
    /// A z4ai frame, which needs no bytes before it.
    Whole(Box<ParsedFrame<'a>>),
}

/// Restores a tensor of `len` bytes from its old bytes, if it has any, by `steps`.
///
/// `each` gets every block in order: its position, the old bytes and the new ones. All new bytes go
/// through `hasher`. Nothing that a payload declares is allocated beyond what the tensor's size
/// allows.
pub(crate) fn restore(
    old: Option<&[u8]>,
    len: u64,
    steps: &[Step<'_>],
    hasher: &mut Option<Hasher>,
    mut each: impl FnMut(u64, Option<&[u8]>, &[u8]) -> Result<()>,
) -> Result<()> {
    let Ok(total) = usize::try_from(len) else {
        return Err(Error::limit(format!("a tensor of {len} bytes does not fit in memory")));
    };
    let Some((last, earlier)) = steps.split_last() else {
        return Err(Error::invalid("a tensor is restored by one delta or more"));
    };
    let mut between: Option<Vec<u8>> = None;
    for step in earlier {
        let reference = between.as_deref().or(old);
        let len = match (step.is_delta(), reference) {
            (true, Some(reference)) => reference.len() as u64,
            (true, None) => return Err(unknown()),
            (false, _) => whole_len(step)?,
        };
        let mut state = zeroed_vec::<u8>(len)?;
        run(step, reference, len as usize, &mut |at, block| {
            state[at..at + block.len()].copy_from_slice(block);
            Ok(())
        })?;
        between = Some(state);
    }
    let old = old.filter(|old| old.len() == total);
    run(last, between.as_deref().or(old), total, &mut |start, now| {
        if let Some(hasher) = hasher {
            hasher.update(now);
        }
        each(start as u64, old.map(|old| &old[start..start + now.len()]), now)
    })
}

/// Restores `total` bytes by one step, block by block.
fn run(
    step: &Step<'_>,
    reference: Option<&[u8]>,
    total: usize,
    each: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
) -> Result<()> {
    let reference = reference.filter(|reference| reference.len() == total);
    let mut decoder = Decoder::new(step, reference.is_some(), total as u64)?;
    let mut block = zeroed_vec::<u8>(BLOCK.min(total) as u64)?;
    for start in (0..total).step_by(BLOCK) {
        let range = start..total.min(start + BLOCK);
        let now = &mut block[..range.len()];
        decoder.restore(reference.unwrap_or_default(), range, now)?;
        each(start, now)?;
    }
    decoder.finish()
}

/// The length that a frame without predecessor says.
fn whole_len(step: &Step<'_>) -> Result<u64> {
    let info = z4ai::inspect(&step.payload).map_err(broken_frame)?;
    check_expansion("sync.payload", step.payload.len() as u64, info.content_len)?;
    Ok(info.content_len)
}

fn unknown() -> Error {
    Error::mismatch("there is no tensor of this name and size to change")
}

impl Step<'_> {
    /// Whether it needs the bytes before it.
    pub(crate) fn is_delta(&self) -> bool {
        self.compression == PayloadCompression::Zstd || z4ai::delta::is_delta(&self.payload)
    }
}

impl<'a> Decoder<'a> {
    fn new(step: &'a Step<'_>, has_reference: bool, len: u64) -> Result<Decoder<'a>> {
        let payload = &*step.payload;
        if step.is_delta() && !has_reference {
            return Err(unknown());
        }
        match (step.compression, step.encoding) {
            (PayloadCompression::Zstd, Encoding::Overwrite) => {
                Ok(Decoder::Overwrite { change: Overwrite::decode(payload, len)?, next: 0 })
            }
            (PayloadCompression::Zstd, Encoding::Xor) => {
                let size = declared(payload, len)?;
                if size != len {
                    return Err(broken(format!("xor: it decodes to {size} bytes, the tensor has {len}")));
                }
                let (decoder, input) = xor_decoder(payload)?;
                Ok(Decoder::Xor { decoder, input, done: false })
            }
            (PayloadCompression::Z4ai, _) => {
                let (decoder, found) = match step.is_delta() {
                    true => {
                        let delta = ParsedDelta::parse(payload).map_err(broken_frame)?;
                        let found = delta.content_len();
                        (Decoder::Delta(Box::new(delta)), found)
                    }
                    false => {
                        let frame = ParsedFrame::parse(payload).map_err(broken_frame)?;
                        let found = frame.content_len();
                        (Decoder::Whole(Box::new(frame)), found)
                    }
                };
                let found = found.map_err(broken_frame)?;
                if found != len {
                    return Err(broken(format!("it decodes to {found} bytes, the tensor has {len}")));
                }
                Ok(decoder)
            }
        }
    }

    /// Fills `block` with the bytes `range` of the tensor after the step.
    fn restore(&mut self, reference: &[u8], range: Range<usize>, block: &mut [u8]) -> Result<()> {
        let bytes = range.start as u64..range.end as u64;
        let options = decode_options(block.len() as u64, 1);
        match self {
            Decoder::Whole(frame) => frame.decompress_bytes(bytes, block, &options).map_err(broken_frame),
            Decoder::Delta(delta) => {
                // Another reference is noticed by the checksums of what becomes of it. Only then is it hashed, to
                // tell it from a damaged frame.
                let needed = delta.reference_range(bytes.clone()).map_err(broken_frame)?;
                let part = reference.get(needed.start as usize..needed.end as usize).ok_or_else(unknown)?;
                delta
                    .restore_bytes(part, bytes.clone(), block, &options)
                    .or_else(|_| delta.decompress_bytes(reference, bytes, block, &options))
                    .map_err(broken_frame)
            }
            Decoder::Overwrite { change, next } => {
                block.copy_from_slice(&reference[range]);
                change.apply(bytes.start, block, next);
                Ok(())
            }
            Decoder::Xor { decoder, input, done } => {
                decode_xor(decoder, input, done, block)?;
                simd::run(Xor { to: block, difference: &reference[range] });
                Ok(())
            }
        }
    }

    /// Whether all of the payload was used.
    fn finish(self) -> Result<()> {
        let Decoder::Xor { mut decoder, mut input, mut done } = self else { return Ok(()) };
        let mut more = [0; 1];
        let mut output = zstd_safe::OutBuffer::around(&mut more[..]);
        if !done {
            let left = decoder.run(&mut input, &mut output).map_err(undecodable)?;
            done = left == 0;
        }
        match done && output.pos() == 0 {
            true => Ok(()),
            false => Err(broken("xor: it does not decode to as many bytes as it declares")),
        }
    }
}

fn undecodable(error: std::io::Error) -> Error {
    broken(format!("its zstd frame does not decode: {error}"))
}

/// Fills `block` with the next bytes of a frame.
fn decode_xor(
    decoder: &mut zstd::stream::raw::Decoder<'static>,
    input: &mut zstd_safe::InBuffer<'_>,
    done: &mut bool,
    block: &mut [u8],
) -> Result<()> {
    let mut at = 0;
    while at < block.len() {
        let mut output = zstd_safe::OutBuffer::around(&mut block[at..]);
        let before = input.pos;
        let left = decoder.run(input, &mut output).map_err(undecodable)?;
        let made = output.pos();
        if *done || (made == 0 && input.pos == before) {
            return Err(broken("xor: it decodes to fewer bytes than it declares"));
        }
        *done = left == 0;
        at += made;
    }
    Ok(())
}
