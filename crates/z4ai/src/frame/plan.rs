//! Where data is split into chunks.

use crate::error::{Error, Result};
use crate::layout::split::classes::Hint;
use crate::options::Options;

/// Decoded bytes of a regular chunk: it and its streams and scratch fit the second-level cache. Not
/// a power of two, so that the streams of a chunk do not alias in the first-level cache. (case:
/// `codec.py`)
pub(crate) const CHUNK: usize = 248 << 10;
/// As [`CHUNK`], for elements of one byte, which are all symbols: a code for half as many fits them
/// closer, and its description is still a thousandth. (case: `codec.py table`, fp8)
const CHUNK_OF_BYTES: usize = CHUNK / 2;
/// As [`CHUNK_OF_BYTES`], with a shape: rows and columns tell scales apart, and each class has a code.
/// (case: `codec.py table`, fp8)
const CHUNK_OF_ROWS: usize = 2 * CHUNK;
/// Factor on the chunk length for blocks of quantized elements: each class of quants has a code to
/// describe. (case: `codec.py table`, Q4_K)
const BLOCKS_CHUNK_FACTOR: usize = 4;
/// Chunks but the last are longer than this: rows of up to a quarter of a chunk are kept whole.
/// (flat)
pub(crate) const MIN_CHUNK: usize = CHUNK / 4;
/// A last chunk shorter than this fraction of a regular one is merged with the previous one.
/// (case: sweep; doubled, `fast` deltas are 0.4 % larger)
const MIN_LAST_CHUNK_FRACTION: usize = 8;

/// The boundaries of chunks.
#[derive(Clone)]
pub(crate) struct Plan {
    /// Bytes of whole elements.
    pub(crate) whole: usize,
    /// Bytes of all the data.
    pub(crate) len: usize,
    /// Bytes per chunk.
    pub(crate) chunk: usize,
    pub(crate) hint: Hint,
}

impl Plan {
    pub(crate) fn new(len: usize, options: &Options) -> Result<Self> {
        let size = options.kind.size();
        let whole = len / size * size;
        let fits = |shape: &[u64]| {
            let count = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
            count.and_then(|n| n.checked_mul(size as u64)) == Some(len as u64)
        };
        let shape = if !options.shape.is_empty() {
            if !fits(&options.shape) {
                return Err(Error::invalid(format_args!(
                    "{len} bytes are not a tensor of shape {:?} and type {}",
                    options.shape,
                    options.kind.name()
                )));
            }
            options.shape.as_slice()
        } else {
            match &options.array {
                // Its elements need not be of the kind that the data is coded as.
                Some(array) if fits(&array.shape) => array.shape.as_slice(),
                _ => &[],
            }
        };
        let usual = match size == 1 && options.kind.is_float() {
            true if !shape.is_empty() && options.structure => CHUNK_OF_ROWS,
            true => CHUNK_OF_BYTES,
            false => CHUNK / size,
        };
        let mut hint = Hint { searched: options.structure, ..Hint::default() };
        let mut period = 1;
        // No data has no rows either, and its dimensions need not even multiply.
        let shape = if len == 0 { &[] } else { shape };
        for &dimension in shape.iter().skip(1).rev() {
            period *= dimension as usize;
            if dimension > 1 && period <= usual / 4 {
                hint.periods.push(period);
            }
        }
        hint.shaped = !shape.is_empty();
        let row = hint.periods.last().copied().unwrap_or(1);
        if let Some(blocks) = options.blocks {
            let block = blocks.block_bytes();
            if !len.is_multiple_of(block) {
                return Err(Error::invalid(format_args!(
                    "{len} bytes are not whole blocks of {}",
                    blocks.name()
                )));
            }
            let row = hint.periods.iter().rev().find(|row| row.is_multiple_of(block)).copied();
            hint.periods = row.into_iter().collect();
            let unit = row.unwrap_or(block);
            return Ok(Self { whole, len, chunk: BLOCKS_CHUNK_FACTOR * CHUNK / unit * unit, hint });
        }
        Ok(Self { whole, len, chunk: usual / row * row * size, hint })
    }

    /// Restricts the plan to `len` bytes of the same elements.
    pub(crate) fn shorten(&mut self, len: usize, options: &Options) {
        let size = options.kind.size();
        (self.len, self.whole) = (len, len / size * size);
    }

    pub(crate) fn chunk_count(&self) -> usize {
        self.whole_chunks() + usize::from(self.whole < self.len)
    }

    /// All chunks in groups of at most `most`; a partial element at the end is a group of its own.
    pub(crate) fn groups(&self, most: usize) -> Vec<std::ops::Range<usize>> {
        let whole = self.whole_chunks();
        let groups = (0..whole).step_by(most).map(|first| first..(first + most).min(whole));
        groups.chain((whole < self.chunk_count()).then_some(whole..whole + 1)).collect()
    }

    /// The bytes of these chunks.
    pub(crate) fn span(&self, chunks: &std::ops::Range<usize>) -> std::ops::Range<usize> {
        self.chunk(chunks.start).start..self.chunk(chunks.end - 1).end
    }

    /// Chunks of whole elements.
    fn whole_chunks(&self) -> usize {
        let (full, rest) = (self.whole / self.chunk, self.whole % self.chunk);
        if rest > self.chunk / MIN_LAST_CHUNK_FRACTION || full == 0 && rest > 0 { full + 1 } else { full }
    }

    pub(crate) fn chunk(&self, index: usize) -> std::ops::Range<usize> {
        let last = self.whole_chunks();
        if index == last {
            return self.whole..self.len;
        }
        let end = if index + 1 == last { self.whole } else { (index + 1) * self.chunk };
        index * self.chunk..end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::Kind;

    #[test]
    fn chunks_tile_the_data() {
        for kind in Kind::all() {
            for len in [0, 1, 7, 8, CHUNK - 1, CHUNK + 9, CHUNK * 9 / 8 + 17, 3 * CHUNK + CHUNK / 2 + 3] {
                let options = Options { kind, ..Options::default() };
                let plan = Plan::new(len, &options).unwrap();
                let mut at = 0;
                for i in 0..plan.chunk_count() {
                    let chunk = plan.chunk(i);
                    assert_eq!(chunk.start, at);
                    assert!(chunk.end > at);
                    at = chunk.end;
                }
                assert_eq!(at, len);
                assert!(plan.chunk_count() <= len / (CHUNK / 2) + 2);
                let shape = vec![(len / kind.size() / 1000) as u64, 1000];
                let bytes = len / kind.size() / 1000 * 1000 * kind.size();
                let plan = Plan::new(bytes, &Options { kind, shape, ..Options::default() }).unwrap();
                assert!(plan.chunk_count() <= bytes / MIN_CHUNK + 2);
            }
        }
    }
}
