//! Options and results of the public functions.

use crate::element::Kind;
use crate::error::{Error, Result};
use crate::layout::blocks::BlockType;
use crate::progress::{Observer as _, SharedObserver};
use crate::simd::SimdLevel;

/// How much work to spend on a smaller frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum Effort {
    /// Exponents as 4-bit palette indices: decodes at the speed of a memory copy.
    Fast,
    /// Huffman-coded exponents per scale class: the smallest frame that decodes at GB/s.
    #[default]
    Default,
    /// The same symbols in fractions of bits: a little smaller, decodes at about half the speed.
    Balanced,
    /// Symbols in the context of their neighbours, in large chunks, where that is smaller, which it is for
    /// convolutions: such frames decode at a hundred MB/s. Others are those of `Balanced`.
    Max,
}

impl Effort {
    /// Every effort, from the fastest to the smallest, with its name.
    const TABLE: &[(Effort, &str)] = &[
        (Effort::Fast, "fast"),
        (Effort::Default, "default"),
        (Effort::Balanced, "balanced"),
        (Effort::Max, "max"),
    ];

    /// Every effort, from the fastest to the smallest.
    pub fn all() -> impl ExactSizeIterator<Item = Effort> {
        Self::TABLE.iter().map(|row| row.0)
    }

    /// The effort of that name.
    pub fn from_name(name: &str) -> Option<Effort> {
        Self::TABLE.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// The name: `fast`, `default`, …
    pub fn name(self) -> &'static str {
        Self::TABLE.iter().find(|row| row.0 == self).map_or("", |row| row.1)
    }
}

/// How to encode.
#[derive(Debug, Clone)]
pub struct Options {
    /// The type of the elements.
    pub kind: Kind,
    /// How hard to try.
    pub effort: Effort,
    /// Threads to use; 0 means one per core. The frame does not depend on it.
    pub threads: usize,
    /// The shape of the tensor, outermost dimension first, if the data is one tensor: a hint
    /// that finds rows and columns of one scale. It is not stored. Empty: not known.
    pub shape: Vec<u64>,
    /// Blocks of quantized elements that the data, bytes of [`Kind::U8`] or [`Kind::Raw`], consists
    /// of: their scales and quants are then coded apart. `shape` counts bytes: rows of whole blocks.
    /// Deltas ignore it.
    pub blocks: Option<BlockType>,
    /// Array description to store inside the frame, returned by [`inspect`](crate::inspect).
    /// Its shape also serves as the hint when `shape` is empty.
    pub array: Option<Array>,
    /// Level of the streams that zstd codes, 1 to 22. `None`: the effort's own.
    pub level: Option<i32>,
    /// Whether to search the data for structure that its type does not tell: scales of rows and
    /// columns, long-range matches, few or mostly zero values. Without it elements are only split
    /// into bit fields.
    pub structure: bool,
    /// For measuring the cost of the search: only scale classes are searched.
    #[doc(hidden)]
    pub dense: bool,
    /// Receives progress, and may cancel.
    pub observer: Option<SharedObserver>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kind: Kind::default(),
            effort: Effort::default(),
            threads: 0,
            shape: Vec::new(),
            blocks: None,
            array: None,
            level: None,
            structure: true,
            dense: false,
            observer: None,
        }
    }
}

impl Options {
    /// Refuses levels that zstd does not have, and a forced SIMD level that the machine lacks.
    pub(crate) fn check(&self) -> Result<()> {
        SimdLevel::current()?;
        if let Some(blocks) = self.blocks
            && self.kind.size() != 1
        {
            return Err(Error::invalid(format_args!(
                "blocks of {} are bytes, not {}",
                blocks.name(),
                self.kind.name()
            )));
        }
        match self.level {
            Some(level) if !(1..=22).contains(&level) => {
                Err(Error::invalid(format_args!("zstd levels are 1 to 22, not {level}")))
            }
            _ => Ok(()),
        }
    }

    /// Reports `bytes` more encoded bytes to the observer.
    pub(crate) fn advance(&self, bytes: usize) -> Result<()> {
        match &self.observer {
            Some(observer) if !observer.advance(bytes as u64) => Err(Error::cancelled()),
            _ => Ok(()),
        }
    }
}

/// How to decode.
#[derive(Debug, Clone)]
pub struct DecodeOptions {
    /// Threads to use; 0 means one per core.
    pub threads: usize,
    /// Refuse frames that would decode to more bytes than this, before allocating anything.
    pub max_output: u64,
}

impl Default for DecodeOptions {
    /// All cores, no limit: for frames from a trusted source.
    fn default() -> Self {
        Self { threads: 0, max_output: u64::MAX }
    }
}

/// The description of an array, stored inside a frame to restore the array.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Array {
    /// The element type in the caller's own words (for NumPy, `dtype.str`); at most 255 bytes.
    pub dtype: String,
    /// The shape, outermost dimension first; empty for a scalar; at most 255 dimensions.
    pub shape: Vec<u64>,
}

/// The head of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FrameInfo {
    /// The magic the frame starts with, as text (`"Z4AI"`, `"ZARA"`, …).
    pub format: &'static str,
    /// The version of that format.
    pub version: u32,
    /// The element type.
    pub kind: Kind,
    /// The array stored in the frame, if one was.
    pub array: Option<Array>,
    /// Bytes the frame decodes to.
    pub content_len: u64,
    /// Bytes of the frame itself.
    pub frame_len: u64,
    /// Chunks, each decodable alone.
    pub chunks: usize,
}
