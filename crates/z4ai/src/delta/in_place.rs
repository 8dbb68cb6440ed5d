//! Deltas applied in place, in one pass: what changed is undone if a checksum does not match.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::Applied;
use crate::error::Result;
use crate::frame::Frame;
use crate::frame::decode::{self, Chunks};
use crate::layout::delta::{Delta, DeltaScratch, Output};
use crate::options::DecodeOptions;

/// Whether every chunk can be undone. Those that cannot be parsed are found later.
pub(super) fn is_invertible(frame: &Frame<'_, Delta>) -> bool {
    let is_invertible =
        |index| matches!(frame.chunk(index), Ok((_, delta, _)) if Delta::is_invertible(&delta));
    (0..frame.chunk_count()).all(is_invertible)
}

/// Applies an invertible delta to `buffer`, which is as it was after an error.
pub(super) fn apply(frame: &Frame<'_, Delta>, buffer: &mut [u8], options: &DecodeOptions) -> Result<()> {
    let mut in_place = InPlace::new(frame, false, options);
    decode::whole_into(&in_place, buffer, options).or_else(|error| {
        in_place.reverting = true;
        in_place.revert(buffer, options).and(Err(error))
    })
}

/// Undoes a delta that was applied to `buffer`.
pub(super) fn revert(frame: &Frame<'_, Delta>, buffer: &mut [u8], options: &DecodeOptions) -> Result<()> {
    InPlace::new(frame, true, options).revert(buffer, options)
}

/// Chunks that are decoded over their reference.
struct InPlace<'a> {
    applied: Applied<'a>,
    /// Which chunks hold the content; the others hold the reference.
    changed: Vec<AtomicBool>,
    /// Whether changed chunks are turned back.
    reverting: bool,
}

impl<'a> InPlace<'a> {
    fn new(frame: &'a Frame<'a, Delta>, changed: bool, options: &DecodeOptions) -> Self {
        let applied = Applied::unchecked(frame, None, options);
        let changed_chunks = (0..frame.chunk_count()).map(|_| AtomicBool::new(changed)).collect();
        Self { applied, changed: changed_chunks, reverting: changed }
    }

    fn revert(&self, buffer: &mut [u8], options: &DecodeOptions) -> Result<()> {
        // The memory is there already.
        decode::whole_into(self, buffer, &DecodeOptions { max_output: u64::MAX, ..*options })
    }
}

impl Chunks for InPlace<'_> {
    type Description = Delta;
    type Scratch = DeltaScratch;

    fn frame(&self) -> &Frame<'_, Delta> {
        self.applied.frame
    }

    fn decode_chunk(&self, index: usize, out: &mut [u8], scratch: &mut DeltaScratch) -> Result<()> {
        let (checksum, delta, payload) = self.applied.frame.chunk(index)?;
        if self.reverting {
            return match self.changed[index].load(Relaxed) {
                true => delta.revert(payload, out, scratch),
                false => Ok(()),
            };
        }
        scratch.next = self.applied.fetch_next(index, out.len());
        let hash = delta.decode(payload, None, Output::Memory(out), scratch)?;
        self.changed[index].store(true, Relaxed);
        decode::check_hash(index, checksum, hash)
    }
}
