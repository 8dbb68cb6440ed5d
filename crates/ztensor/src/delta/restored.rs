//! The target of a delta as a source: read without being written.

use std::sync::{Mutex, PoisonError};

use super::apply::Applier;
use super::segments::How;
use crate::error::{Error, Result};
use crate::source::{Source, check_range, zeroed};

/// What a delta makes of its base, segment by segment as it is read.
pub(crate) struct Restored {
    pub(super) applier: Applier,
    /// Where each segment starts.
    starts: Vec<u64>,
    threads: usize,
    /// The segment that was read last: readers ask for tensors in several pieces.
    last: Mutex<(usize, Vec<u8>)>,
}

impl Restored {
    pub(super) fn new(applier: Applier, threads: usize) -> Restored {
        let mut end = 0;
        let starts = applier.delta.segments.iter().map(|segment| {
            let start = end;
            end += segment.len;
            start
        });
        let starts = starts.collect();
        Restored { applier, starts, threads, last: Mutex::new((usize::MAX, Vec::new())) }
    }

    /// How the segment that is exactly this range comes about.
    pub(super) fn how(&self, offset: u64, len: u64) -> Option<&How> {
        let index = self.starts.partition_point(|&start| start < offset);
        // Segments without bytes start where the next one does.
        let here = (index..self.starts.len()).take_while(|&index| self.starts[index] == offset);
        let segments = &self.applier.delta.segments;
        here.map(|index| &segments[index]).find(|segment| segment.len == len).map(|segment| &segment.how)
    }
}

impl std::fmt::Debug for Restored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Restored").field("delta", &self.label()).finish_non_exhaustive()
    }
}

impl Source for Restored {
    fn len(&self) -> u64 {
        self.applier.delta.target_len
    }

    fn label(&self) -> &str {
        self.applier.delta.source.label()
    }

    fn read_at(&self, offset: u64, mut out: &mut [u8]) -> Result<()> {
        check_range(self.len(), offset, out.len() as u64)?;
        let mut at = offset;
        let mut index = self.starts.partition_point(|&start| start <= offset).saturating_sub(1);
        while !out.is_empty() {
            let segment = &self.applier.delta.segments[index];
            let skip = (at - self.starts[index]) as usize;
            let take = (segment.len as usize - skip).min(out.len());
            let (part, rest) = out.split_at_mut(take);
            if take > 0 {
                let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
                if last.0 != index {
                    *last = (usize::MAX, zeroed(segment.len)?);
                    self.applier.content(index, &mut last.1, self.threads)?;
                    last.0 = index;
                }
                part.copy_from_slice(&last.1[skip..skip + take]);
            }
            out = rest;
            at += take as u64;
            index += 1;
        }
        Ok(())
    }

    fn mapped(&self) -> Result<&[u8]> {
        Err(Error::unsupported("what a delta restores cannot be mapped: read it instead"))
    }
}
