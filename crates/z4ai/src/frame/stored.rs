//! The bytes of a frame that are in memory: all of them, or some ranges.

use std::ops::Range;

use crate::error::{Error, Result};

/// The available bytes of a frame.
#[derive(Clone, Copy)]
pub(crate) enum Stored<'a> {
    /// All of them.
    Whole(&'a [u8]),
    /// Some ranges of a frame of this length, by their position.
    Pieces(u64, &'a [(u64, &'a [u8])]),
}

impl<'a> Stored<'a> {
    /// The bytes of the whole frame.
    pub(crate) fn len(self) -> u64 {
        match self {
            Stored::Whole(bytes) => bytes.len() as u64,
            Stored::Pieces(len, _) => len,
        }
    }

    /// The available first bytes.
    pub(crate) fn head(self) -> &'a [u8] {
        match self {
            Stored::Whole(bytes) => bytes,
            Stored::Pieces(_, [(0, bytes), ..]) => bytes,
            Stored::Pieces(..) => &[],
        }
    }

    /// A range of the frame; an error if it is not available.
    pub(crate) fn get(self, range: Range<u64>) -> Result<&'a [u8]> {
        // Payloads of constant streams are empty, and need not be available.
        if range.is_empty() {
            return Ok(&[]);
        }
        let found = match self {
            Stored::Whole(bytes) => bytes.get(range.start as usize..range.end as usize),
            Stored::Pieces(_, pieces) => {
                let after = pieces.partition_point(|(start, _)| *start <= range.start);
                after.checked_sub(1).and_then(|last| {
                    let (start, bytes) = pieces[last];
                    bytes.get((range.start - start) as usize..usize::try_from(range.end - start).ok()?)
                })
            }
        };
        found.ok_or_else(|| Error::invalid(format_args!("bytes {range:?} of the frame are not here")))
    }
}
