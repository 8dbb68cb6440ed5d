//! The bytes of an extent, a piece at a time, while the next ones are being read.

use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};

use super::{Sources, zeroed};
use crate::base::parallel;
use crate::catalog::Extent;
use crate::error::Result;

/// A piece stays in the cache between being read and being used.
const PIECE: u64 = 1 << 20;

/// A thread that reads ahead pays from this many bytes on.
const AHEAD_FROM: u64 = 8 << 20;

/// A piece of a remote source is many requests at a time.
const FAR_PIECE: u64 = 16 << 20;

/// Pieces that are read but not yet used.
const AHEAD: usize = 2;

impl Sources {
    /// Calls `each` with the bytes of `extent`, piece by piece in order. Where there
    /// are `threads` for it (0 is one per core), a second one reads ahead meanwhile.
    pub(crate) fn for_pieces(
        &self,
        extent: Extent,
        threads: usize,
        mut each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let far = self.get(extent.source)?.remote().is_some();
        let step = if far { FAR_PIECE } else { PIECE };
        if extent.len < AHEAD_FROM || parallel::resolve(threads) < 2 && !far {
            return self.one_by_one(extent, step, &mut each);
        }
        std::thread::scope(|scope| {
            let (full, filled) = sync_channel(AHEAD);
            let (empty, emptied) = channel();
            let reading = std::thread::Builder::new()
                .spawn_scoped(scope, move || self.read_ahead(extent, step, &full, &emptied));
            if reading.is_err() {
                return self.one_by_one(extent, step, &mut each); // no thread to be had
            }
            // When this returns early the reader finds its channel closed and ends.
            for piece in filled {
                let piece: Vec<u8> = piece?;
                each(&piece)?;
                let _ = empty.send(piece); // the reader may be done
            }
            Ok(())
        })
    }

    fn read_ahead(
        &self,
        extent: Extent,
        step: u64,
        full: &SyncSender<Result<Vec<u8>>>,
        emptied: &Receiver<Vec<u8>>,
    ) {
        for skip in (0..extent.len).step_by(step as usize) {
            let len = (extent.len - skip).min(step);
            let read = || {
                let mut piece = match emptied.try_recv() {
                    Ok(piece) => piece,
                    Err(_) => zeroed(len)?,
                };
                piece.truncate(len as usize); // only the last one is shorter
                self.read(extent, skip, &mut piece)?;
                Ok(piece)
            };
            let piece = read();
            let failed = piece.is_err();
            if full.send(piece).is_err() || failed {
                return;
            }
        }
    }

    fn one_by_one(&self, extent: Extent, step: u64, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut piece = zeroed(extent.len.min(step))?;
        for skip in (0..extent.len).step_by(step as usize) {
            let piece = &mut piece[..(extent.len - skip).min(step) as usize];
            self.read(extent, skip, piece)?;
            each(piece)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::error::{Error, ErrorKind};
    use crate::source::MemorySource;

    #[test]
    fn every_byte_comes_once_and_in_order() {
        let bytes: Vec<u8> = (0..AHEAD_FROM + PIECE + 5).map(|n| (n % 251) as u8).collect();
        let sources = Sources::one(Arc::new(MemorySource::new(bytes.clone())));
        let all = bytes.len() as u64;
        for (offset, len) in
            [(0, 0), (3, 1), (0, PIECE), (1, PIECE + 1), (0, AHEAD_FROM - 1), (0, all), (7, all - 7)]
        {
            for threads in [1, 2] {
                let mut seen = Vec::new();
                sources
                    .for_pieces(Extent::new(offset, len), threads, |piece| {
                        seen.extend_from_slice(piece);
                        Ok(())
                    })
                    .unwrap();
                assert!(seen == bytes[offset as usize..(offset + len) as usize], "{offset} {len} {threads}");
            }
        }
        let mut pieces = 0;
        let stopped = sources.for_pieces(Extent::new(0, all), 2, |_| {
            pieces += 1;
            if pieces == 3 { Err(Error::cancelled()) } else { Ok(()) }
        });
        assert_eq!((stopped.unwrap_err().kind(), pieces), (ErrorKind::Cancelled, 3));
        assert!(sources.for_pieces(Extent::new(1, all), 2, |_| Ok(())).is_err(), "beyond the end");
    }
}
