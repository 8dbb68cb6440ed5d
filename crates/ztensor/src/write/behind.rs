//! Write-behind: one thread fills blocks (copies, hashes, compresses) while the caller's writes them.

use std::io::Write;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

use crate::base::{CACHE_BLOCK, parallel};
use crate::error::{Error, Result};

/// Blocks in flight. Together they stay in the processor's cache, so that the thread that writes does
/// not read what was copied from memory again. (structural: one filled, one written, two between)
const BLOCKS_IN_FLIGHT: usize = 4;

/// The output as the thread that fills blocks sees it.
pub(crate) struct Blocks<'e> {
    block: Vec<u8>,
    /// Takes a full block for an empty one.
    exchange: &'e mut dyn FnMut(Vec<u8>) -> Result<Vec<u8>>,
}

impl Blocks<'_> {
    /// Copies bytes behind those before. `each` copied piece is shown: what is hashed is then what is
    /// written, even where the memory of a caller changes meanwhile.
    pub(crate) fn copy(&mut self, mut bytes: &[u8], mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        while !bytes.is_empty() {
            let start = self.block.len();
            let (some, rest) = bytes.split_at(bytes.len().min(CACHE_BLOCK - start));
            self.block.extend_from_slice(some);
            each(&self.block[start..])?;
            bytes = rest;
            self.pass_on_full()?;
        }
        Ok(())
    }

    /// Adds zeros.
    pub(crate) fn zeros(&mut self, mut len: u64) -> Result<()> {
        while len > 0 {
            let start = self.block.len();
            let some = len.min((CACHE_BLOCK - start) as u64);
            self.block.resize(start + some as usize, 0);
            len -= some;
            self.pass_on_full()?;
        }
        Ok(())
    }

    fn pass_on_full(&mut self) -> Result<()> {
        if self.block.len() == CACHE_BLOCK {
            self.pass_on()?;
        }
        Ok(())
    }

    fn pass_on(&mut self) -> Result<()> {
        self.block = (self.exchange)(std::mem::take(&mut self.block))?;
        self.block.clear();
        Ok(())
    }
}

/// Writes what `fill` puts into blocks, which runs on a thread of its own if there may be several.
/// `written` is called on this thread for each block, and may end it all.
pub(crate) fn write_behind(
    threads: usize,
    out: &mut dyn Write,
    fill: impl FnOnce(&mut Blocks<'_>) -> Result<()> + Send,
    mut written: impl FnMut() -> Result<()>,
) -> Result<()> {
    let mut write = |block: &[u8]| {
        out.write_all(block).map_err(|error| Error::io("cannot write", error))?;
        written()
    };
    // A thread that does not start would take what it was to run with it.
    let fill = Mutex::new(Some(fill));
    let run = |exchange: &mut dyn FnMut(Vec<u8>) -> Result<Vec<u8>>| {
        let mut blocks = Blocks { block: Vec::with_capacity(CACHE_BLOCK), exchange };
        let fill = fill.lock().unwrap_or_else(PoisonError::into_inner).take();
        fill.map_or(Ok(()), |fill| fill(&mut blocks))?;
        blocks.pass_on()
    };
    if parallel::resolve(threads) > 1 {
        let (filled, to_write) = channel();
        let (emptied, to_fill) = channel();
        let behind = std::thread::scope(|scope| {
            let run = &run;
            let work = move || run(&mut exchange(filled, to_fill));
            let filler = std::thread::Builder::new().spawn_scoped(scope, work);
            let Ok(filler) = filler else { return None };
            let emptying = to_write.iter().try_for_each(|block: Vec<u8>| {
                write(&block)?;
                let _ = emptied.send(block); // the filler may be done
                Ok(())
            });
            // The filler stops at its next block if this thread failed.
            drop((to_write, emptied));
            let filling = filler.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Some(emptying.and(filling))
        });
        if let Some(result) = behind {
            return result;
        }
    }
    run(&mut |block: Vec<u8>| {
        write(&block)?;
        Ok(block)
    })
}

/// Sends full blocks and waits for empty ones.
fn exchange(filled: Sender<Vec<u8>>, to_fill: Receiver<Vec<u8>>) -> impl FnMut(Vec<u8>) -> Result<Vec<u8>> {
    let mut made = 1;
    move |block| {
        // What the writing thread failed with is what the caller hears.
        filled.send(block).map_err(|_| Error::cancelled())?;
        if made < BLOCKS_IN_FLIGHT {
            made += 1;
            return Ok(Vec::with_capacity(CACHE_BLOCK));
        }
        to_fill.recv().map_err(|_| Error::cancelled())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn all_bytes_in_order_whatever_the_threads() {
        let data: Vec<u8> = (0..3 * CACHE_BLOCK as u32 + 77).map(|n| (n * 7 / 3) as u8).collect();
        for threads in [1, 2] {
            let (mut out, mut seen) = (Vec::new(), Vec::new());
            let fill = |blocks: &mut Blocks<'_>| {
                for piece in data.chunks(100_001) {
                    blocks.copy(piece, |copied| {
                        seen.extend_from_slice(copied);
                        Ok(())
                    })?;
                }
                blocks.zeros(9 * CACHE_BLOCK as u64 + 5)
            };
            let mut count = 0;
            let written = || {
                count += 1;
                Ok(())
            };
            write_behind(threads, &mut out, fill, written).unwrap();
            let (content, zeros) = out.split_at(data.len());
            assert!(content == data && seen == data);
            assert!(zeros.len() == 9 * CACHE_BLOCK + 5 && zeros.iter().all(|&byte| byte == 0));
            assert_eq!(count, out.len().div_ceil(CACHE_BLOCK));
        }
    }

    #[test]
    fn errors_of_both_threads_are_returned() {
        for threads in [1, 2] {
            let endless = |blocks: &mut Blocks<'_>| loop {
                blocks.copy(&[1; 1000], |_| Ok(()))?;
            };
            let error = write_behind(threads, &mut Full, endless, || Ok(())).unwrap_err();
            assert!(error.to_string().contains("cannot write"), "{error}");
            let error = write_behind(threads, &mut Vec::new(), endless, || Err(Error::invalid("enough")));
            assert_eq!(error.unwrap_err().to_string(), "enough");
            let fails = |_: &mut Blocks<'_>| Err(Error::invalid("no more"));
            let error = write_behind(threads, &mut Vec::new(), fails, || Ok(())).unwrap_err();
            assert_eq!(error.to_string(), "no more");
        }
    }
}
