//! The payload of one tensor in a delta: how it is made, and how it changes the old bytes.

use std::borrow::Cow;
use std::ops::Range;

use z4ai::ParsedFrame;
use z4ai::delta::{Comparison, ParsedDelta};
use zstd::stream::raw::Operation as _;
use zstd::zstd_safe;

use super::checksum::Hasher;
use super::index::{Encoding, PayloadCompression};
use crate::base::huge_pages::zeroed_vec;
use crate::base::zstd_sparse;
use crate::catalog::Shape;
use crate::decode::{broken_frame, check_expansion, decode_options};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::write::compress::{codec_options, not_encoded};

/// zstd level of every known writer of the format.
const LEVEL: i32 = 1;
/// The largest window that a frame may ask for: level 1 never needs more than a fraction of it.
const MAX_WINDOW_LOG: u32 = 27;
/// Bytes of a tensor that are restored, hashed and compared at a time: the chunk of a sparse z4ai
/// delta, which a second-level cache holds.
pub(crate) const BLOCK: usize = 8 * (248 << 10);
/// Up to one changed element in this many, z4ai deltas are made at the effort `fast`, without magnitude classes: of a
/// step of training they would save a fifth of the bytes, and double the time to make and to apply it. (case: `sync.py`,
/// training steps)
const FEW_CHANGED: usize = 8;
/// The largest tensor whose bytes `overwrite` can address.
pub(crate) const MAX_OVERWRITE: u64 = 1 << 32;

/// A tensor's type and shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TensorType {
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
}

fn broken(message: impl Into<String>) -> Error {
    Error::corrupt("sync.payload", message)
}

/// Encodes the change from `old` to `new`, which are of equal length.
pub(crate) fn encode(
    compression: PayloadCompression,
    encoding: Encoding,
    of: &TensorType,
    [old, new]: [&[u8]; 2],
) -> Result<Vec<u8>> {
    match compression {
        PayloadCompression::Z4ai => {
            z4ai::delta::compress(new, old, &delta_options(of, [old, new], 1)).map_err(not_encoded)
        }
        PayloadCompression::Zstd => {
            let mut encoder = ZstdEncoder::new(encoding, new.len())?;
            let (mut comparison, mut state) = (Comparison::default(), old.to_vec());
            for (state, new) in state.chunks_mut(zstd_sparse::BLOCK).zip(new.chunks(zstd_sparse::BLOCK)) {
                comparison.advance(element_size(of.dtype), new, state);
                encoder.add(new.len(), element_size(of.dtype), &comparison)?;
            }
            encoder.finish()
        }
    }
}

/// The size of the elements that are compared: bytes where a type's are of no size that vectors have.
pub(crate) fn element_size(dtype: DType) -> usize {
    dtype.size().filter(|size| matches!(size, 1 | 2 | 4 | 8)).unwrap_or(1)
}

/// How the z4ai delta between two states of a tensor is made.
pub(crate) fn delta_options(of: &TensorType, both: [&[u8]; 2], threads: usize) -> z4ai::Options {
    let effort = if changes_little(of, both) { z4ai::Effort::Fast } else { z4ai::Effort::Default };
    z4ai_options(of, both[1].len(), effort, threads)
}

/// Whether few elements changed, by a sample.
fn changes_little(of: &TensorType, [old, new]: [&[u8]; 2]) -> bool {
    /// Windows of the sample, and bytes of each. (flat)
    const WINDOWS: usize = 64;
    const WINDOW: usize = 256;
    let size = of.dtype.size().unwrap_or(1);
    let step = (new.len() / WINDOWS / size * size).max(WINDOW);
    let (mut seen, mut changed) = (0, 0);
    for start in (0..WINDOWS).map(|window| window * step).take_while(|start| *start < new.len()) {
        let end = new.len().min(start + WINDOW);
        let pairs = old[start..end].chunks(size).zip(new[start..end].chunks(size));
        seen += pairs.len();
        changed += pairs.filter(|(old, new)| old != new).count();
    }
    changed * FEW_CHANGED <= seen
}

/// A tensor without predecessor, which only z4ai deltas can have.
pub(crate) fn encode_whole(of: &TensorType, new: &[u8], threads: usize) -> Result<Vec<u8>> {
    z4ai::compress(new, &z4ai_options(of, new.len(), z4ai::Effort::Default, threads)).map_err(not_encoded)
}

fn z4ai_options(of: &TensorType, len: usize, effort: z4ai::Effort, threads: usize) -> z4ai::Options {
    codec_options(of.dtype, &of.shape, len as u64, effort, threads)
}

/// Makes zstd payloads block by block.
pub(crate) enum ZstdEncoder {
    Xor(zstd_sparse::Frame),
    Overwrite(OverwriteEncoder),
}

impl ZstdEncoder {
    /// For a tensor of `len` bytes.
    pub(crate) fn new(encoding: Encoding, len: usize) -> Result<ZstdEncoder> {
        Ok(match encoding {
            Encoding::Xor => ZstdEncoder::Xor(zstd_sparse::Frame::new(len)?),
            Encoding::Overwrite => ZstdEncoder::Overwrite(OverwriteEncoder::new(len)?),
        })
    }

    /// Adds the next block, of `len` bytes: what changed, elements of `size` bytes. All blocks but the last have
    /// [`zstd_sparse::BLOCK`] bytes.
    pub(crate) fn add(&mut self, len: usize, size: usize, changes: &Comparison) -> Result<()> {
        match self {
            ZstdEncoder::Xor(frame) => frame.changes(len, size, changes)?,
            ZstdEncoder::Overwrite(encoder) => encoder.add(len, size, changes),
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> Result<Vec<u8>> {
        match self {
            ZstdEncoder::Xor(frame) => frame.finish(),
            ZstdEncoder::Overwrite(encoder) => encoder.finish(),
        }
    }
}

/// Makes an `overwrite` payload: count, positions and values of the changed bytes.
#[derive(Default)]
pub(crate) struct OverwriteEncoder {
    positions: Vec<u8>,
    values: Vec<u8>,
    /// Bytes of the tensor so far.
    at: usize,
}

impl OverwriteEncoder {
    fn new(len: usize) -> Result<OverwriteEncoder> {
        match len as u64 > MAX_OVERWRITE {
            true => Err(Error::unsupported(format!(
                "overwrite addresses at most {MAX_OVERWRITE} bytes of a tensor, this one has {len}: use xor"
            ))),
            false => Ok(OverwriteEncoder::default()),
        }
    }

    fn add(&mut self, len: usize, size: usize, changes: &Comparison) {
        let [now, before] = changes.elements();
        let mut bytes = now.iter().zip(before);
        changes.for_each_position(|position| {
            let at = self.at + position * size;
            for (at, (now, _)) in (at..at + size).zip(&mut bytes).filter(|(_, (now, before))| now != before) {
                // The tensor's length was compared with what positions can address.
                self.positions.extend_from_slice(&(at as u32).to_le_bytes());
                self.values.push(*now);
            }
        });
        self.at += len;
    }

    fn finish(mut self) -> Result<Vec<u8>> {
        let count = u32::try_from(self.values.len())
            .map_err(|_| Error::unsupported("more than 2^32 - 1 bytes changed: use xor"))?;
        let mut raw = Vec::with_capacity(4 + self.positions.len() + self.values.len());
        raw.extend_from_slice(&count.to_le_bytes());
        raw.append(&mut self.positions);
        raw.append(&mut self.values);
        compress(&raw)
    }
}

/// One zstd frame with its content size.
pub(crate) fn compress(raw: &[u8]) -> Result<Vec<u8>> {
    zstd::bulk::compress(raw, LEVEL).map_err(|error| Error::io("zstd cannot compress", error))
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
    /// Decoded, XORed and hashed while in the second-level cache. (structural)
    const PART: usize = 256 << 10;
    let (mut decoder, mut input) = xor_decoder(payload)?;
    let mut ended = false;
    let mut block = zeroed_vec::<u8>(PART.min(bytes.len()) as u64)?;
    for part in bytes.chunks_mut(PART) {
        let difference = &mut block[..part.len()];
        decode_xor(&mut decoder, &mut input, &mut ended, difference)?;
        part.iter_mut().zip(&*difference).for_each(|(byte, change)| *byte ^= change);
        *done += part.len();
        if let Some(hasher) = hasher {
            hasher.update(part);
        }
    }
    Ok(Decoder::Xor { decoder, input, done: ended })
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
                let reference = &reference[range];
                block.iter_mut().zip(reference).for_each(|(byte, old)| *byte ^= old);
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::checksum::ChecksumFormat;
    use super::*;

    const FORMATS: [(PayloadCompression, Encoding); 3] = [
        (PayloadCompression::Zstd, Encoding::Xor),
        (PayloadCompression::Zstd, Encoding::Overwrite),
        (PayloadCompression::Z4ai, Encoding::Xor),
    ];

    fn encoded(format: (PayloadCompression, Encoding), old: &[u8], new: &[u8]) -> Step<'static> {
        let of = TensorType { dtype: DType::U8, shape: Shape::from_slice(&[new.len() as u64]) };
        let payload = encode(format.0, format.1, &of, [old, new]).unwrap();
        Step { compression: format.0, encoding: format.1, payload: payload.into() }
    }

    fn restored(old: &[u8], len: usize, steps: &[Step<'_>]) -> Result<Vec<u8>> {
        let mut out = vec![0; len];
        let mut hasher = Some(ChecksumFormat::Xxh3.hasher());
        restore(Some(old), len as u64, steps, &mut hasher, |at, before, block| {
            assert_eq!(before.unwrap(), &old[at as usize..][..block.len()]);
            out[at as usize..][..block.len()].copy_from_slice(block);
            Ok(())
        })?;
        assert_eq!(hasher.unwrap().finish(), ChecksumFormat::Xxh3.of(&out));
        Ok(out)
    }

    fn states(len: usize, count: usize, seed: u64) -> Vec<Vec<u8>> {
        let mut state = seed;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize
        };
        let mut now: Vec<u8> = (0..len).map(|_| random() as u8).collect();
        (0..count)
            .map(|_| {
                let before = now.clone();
                for _ in 0..len / 100 {
                    now[random() % len] = random() as u8;
                }
                before
            })
            .collect()
    }

    #[test]
    fn the_worked_example_of_the_specification() {
        let old = [0x10, 0x20, 0x30, 0x40, 0x50, 0x60];
        let new = [0x10, 0x21, 0x30, 0x40, 0x50, 0x6f];
        let overwrite = encoded(FORMATS[1], &old, &new);
        let raw = zstd::bulk::decompress(&overwrite.payload, 14).unwrap();
        assert_eq!(raw, [2, 0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0, 0x21, 0x6f]);
        let xor = encoded(FORMATS[0], &old, &new);
        assert_eq!(zstd::bulk::decompress(&xor.payload, 6).unwrap(), [0, 1, 0, 0, 0, 0xf]);
        for format in FORMATS {
            assert_eq!(restored(&old, 6, &[encoded(format, &old, &new)]).unwrap(), new);
        }
    }

    #[test]
    fn steps_follow_each_other_in_any_mixture_and_over_block_borders() {
        for len in [1, 7, 4096, BLOCK - 1, BLOCK, 2 * BLOCK + 5] {
            let states = states(len.max(100), 4, 3);
            for first in FORMATS {
                for second in FORMATS {
                    let steps =
                        [encoded(first, &states[0], &states[1]), encoded(second, &states[1], &states[2])];
                    assert!(restored(&states[0], states[0].len(), &steps).unwrap() == states[2]);
                }
            }
        }
    }

    #[test]
    fn another_base_is_not_a_damaged_delta() {
        let states = states(5000, 2, 4);
        let step = encoded(FORMATS[2], &states[0], &states[1]);
        let mut other = states[0].clone();
        other[77] ^= 1;
        let error = restored(&other, 5000, &[step]).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Mismatch, "{error}");
    }

    #[test]
    fn folding_needs_no_base() {
        let states = states(5000, 3, 9);
        let [a, b] = [0, 1].map(|at| encoded(FORMATS[0], &states[at], &states[at + 1]).payload);
        let folded = xor_payloads(&a, &b, 5000).unwrap();
        let step = Step { compression: FORMATS[0].0, encoding: FORMATS[0].1, payload: folded.into() };
        assert!(restored(&states[0], 5000, &[step]).unwrap() == states[2]);
        let [a, b] = [0, 1].map(|at| encoded(FORMATS[1], &states[at], &states[at + 1]).payload);
        let folded =
            Overwrite::decode(&a, 5000).unwrap().then(&Overwrite::decode(&b, 5000).unwrap()).unwrap();
        let step = Step { compression: FORMATS[1].0, encoding: FORMATS[1].1, payload: folded.into() };
        assert!(restored(&states[0], 5000, &[step]).unwrap() == states[2]);
    }

    #[test]
    fn xor_in_place_is_undone_on_errors() {
        for len in [1, 300, (256 << 10) - 1, (512 << 10) + 3] {
            let states = states(len.max(100), 2, 8);
            let (old, new) = (&states[0], &states[1]);
            let payload = encoded(FORMATS[0], old, new).payload;
            let mut bytes = old.clone();
            let mut hasher = Some(ChecksumFormat::Xxh3.hasher());
            xor_in_place(&payload, &mut bytes, &mut hasher).unwrap();
            assert!(bytes == *new);
            assert_eq!(hasher.unwrap().finish(), ChecksumFormat::Xxh3.of(new));
            // Cut, too long, for a tensor of another length.
            for cut in [0, 3, payload.len() / 2, payload.len() - 1] {
                let mut bytes = old.clone();
                assert!(xor_in_place(&payload[..cut], &mut bytes, &mut None).is_err());
                assert!(bytes == *old, "cut at {cut} of {}", payload.len());
            }
            let mut shorter = old[1..].to_vec();
            let longer = xor_in_place(&payload, &mut shorter, &mut Some(ChecksumFormat::Xxh3.hasher()));
            assert!(longer.is_err() && shorter == old[1..]);
        }
    }

    #[test]
    fn damaged_payloads_are_errors_or_change_the_checksum() {
        let states = states(3000, 2, 5);
        for format in FORMATS {
            let step = encoded(format, &states[0], &states[1]);
            for at in 0..step.payload.len() {
                let cut = Step { payload: step.payload[..at].to_vec().into(), ..step };
                assert!(restored(&states[0], 3000, &[cut]).is_err(), "{format:?} cut at {at}");
                let mut bytes = step.payload.to_vec();
                bytes[at] ^= 0x10;
                let flipped = Step { payload: bytes.into(), ..step };
                if let Ok(found) = restored(&states[0], 3000, &[flipped]) {
                    // Unused bits of a frame's header may change nothing at all.
                    let same = found == states[1];
                    assert!(
                        same || ChecksumFormat::Adler32.of(&found) != ChecksumFormat::Adler32.of(&states[1])
                    );
                }
            }
            let mut longer = step.payload.to_vec();
            longer.push(0);
            let longer = Step { payload: longer.into(), ..step };
            assert!(restored(&states[0], 3000, &[longer]).is_err(), "{format:?}");
        }
    }

    proptest! {
        #[test]
        fn no_payload_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), magic in 0..4usize) {
            let old = [7; 64];
            let start: &[u8] = [&b""[..], b"\x28\xb5\x2f\xfd", b"Z4DL", b"Z4AI"][magic];
            let payload = [start, &bytes].concat();
            for (compression, encoding) in FORMATS {
                let step = Step { compression, encoding, payload: payload.clone().into() };
                let _ = restored(&old, 64, &[step]);
            }
        }
    }
}
