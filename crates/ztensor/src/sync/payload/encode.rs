//! Makes payloads.

use z4ai::delta::Comparison;

use super::TensorType;
use crate::base::zstd_sparse;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::sync::index::{Encoding, PayloadCompression};
use crate::write::compress::{codec_options, not_encoded};

/// zstd level of every known writer of the format.
const LEVEL: i32 = 1;
/// Up to one changed element in this many, z4ai deltas are made at the effort `fast`, without magnitude classes: of a
/// step of training they would save a fifth of the bytes, and double the time to make and to apply it. (case: `sync.py`,
/// training steps)
const FEW_CHANGED: usize = 8;
/// The largest tensor whose bytes `overwrite` can address.
pub(crate) const MAX_OVERWRITE: u64 = 1 << 32;

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
    let size = element_size(of.dtype);
    let step = (new.len() / WINDOWS / size * size).max(WINDOW);
    let (mut seen, mut changed) = (0, 0);
    for start in (0..WINDOWS).map(|window| window * step).take_while(|start| *start < new.len()) {
        let window = start..new.len().min(start + WINDOW);
        let (old, new) = (&old[window.clone()], &new[window]);
        seen += new.len() / size;
        changed += match size {
            1 => count_changed::<1>(old, new),
            2 => count_changed::<2>(old, new),
            4 => count_changed::<4>(old, new),
            _ => count_changed::<8>(old, new),
        };
    }
    changed * FEW_CHANGED <= seen
}

/// Elements of `SIZE` bytes that differ, compared as arrays: slices of a few bytes are compared by a call each.
fn count_changed<const SIZE: usize>(old: &[u8], new: &[u8]) -> usize {
    let pairs = old.as_chunks::<SIZE>().0.iter().zip(new.as_chunks::<SIZE>().0);
    pairs.filter(|(old, new)| old != new).count()
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
pub(super) fn compress(raw: &[u8]) -> Result<Vec<u8>> {
    zstd::bulk::compress(raw, LEVEL).map_err(|error| Error::io("zstd cannot compress", error))
}
