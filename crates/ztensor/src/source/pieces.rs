//! The bytes of an extent, a piece at a time, while the next ones are being read.

use super::Sources;
use crate::base::parallel;
use crate::base::pool::BufferPool;
use crate::catalog::Extent;
use crate::error::Result;

/// (structural: a piece stays in the second-level cache between being read and being used)
const LOCAL_PIECE: u64 = 1 << 20;

/// A piece of a remote source is many requests at a time. (structural: twice the largest request)
const REMOTE_PIECE: u64 = 16 << 20;

/// Pieces that are read and not yet used, with the one in use. (structural: one per reader, and one)
const PIECES_IN_FLIGHT: u64 = 3;

/// Threads that read ahead. (structural: one reads while the other waits for its piece to be taken)
const READERS: usize = 2;

impl Sources {
    /// Calls `each` with the bytes of `extent`, piece by piece in order. Where there
    /// are `threads` for it (0 is one per core), others read ahead meanwhile.
    pub(crate) fn for_pieces(
        &self,
        extent: Extent,
        threads: usize,
        mut each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let remote = self.get(extent.source)?.remote().is_some();
        let step = if remote { REMOTE_PIECE } else { LOCAL_PIECE };
        let ahead = extent.len > step && (remote || parallel::resolve(threads) > 1);
        let pool = BufferPool::default();
        let pieces = (0..extent.len).step_by(step as usize).map(|skip| {
            let len = (extent.len - skip).min(step);
            (len, (skip, len))
        });
        let read = |(skip, len): (u64, u64)| {
            let mut buffer = pool.take(len)?;
            self.read(extent, skip, &mut buffer[..len as usize])?;
            Ok((buffer, len as usize))
        };
        parallel::in_order(
            if ahead { READERS } else { 1 },
            pieces.collect(),
            PIECES_IN_FLIGHT * step,
            read,
            |(buffer, len)| {
                each(&buffer[..len])?;
                pool.put(buffer);
                Ok(())
            },
        )
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
        let bytes: Vec<u8> = (0..9 * LOCAL_PIECE + 5).map(|n| (n % 251) as u8).collect();
        let sources = Sources::one(Arc::new(MemorySource::new(bytes.clone())));
        let all = bytes.len() as u64;
        for (offset, len) in [
            (0, 0),
            (3, 1),
            (0, LOCAL_PIECE),
            (1, LOCAL_PIECE + 1),
            (0, 8 * LOCAL_PIECE - 1),
            (0, all),
            (7, all - 7),
        ] {
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
