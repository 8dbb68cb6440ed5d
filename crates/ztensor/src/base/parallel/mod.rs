//! Scoped threads over an atomic work index.
//!
//! There is no global pool: data loaders fork, and a pool's threads do not
//! survive that. Threads are started per call, only when there is work for them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Error, Result};

mod in_order;

pub(crate) use in_order::in_order;
pub use z4ai::rt::resolve;

/// Bytes that are worth a thread of their own, at least. (structural: copying them takes several times as long as
/// starting one)
pub(crate) const WORTH_A_THREAD: usize = 1 << 20;

/// How many of `threads` a job of `part` bytes may use when all jobs together have `total`.
pub(crate) fn share(threads: usize, part: u64, total: u64) -> usize {
    let threads = resolve(threads) as u128;
    (threads * u128::from(part)).div_ceil(u128::from(total).max(1)).clamp(1, threads) as usize
}

/// Runs `work` once for each item on at most `threads` threads, in order of
/// index as far as starting goes. The first error stops further items from starting.
pub fn for_each<T: Send>(threads: usize, items: Vec<T>, work: impl Fn(T) -> Result<()> + Sync) -> Result<()> {
    let threads = resolve(threads).min(items.len());
    if threads <= 1 {
        return items.into_iter().try_for_each(work);
    }
    let count = items.len();
    let next = AtomicUsize::new(0);
    let claim = |_: usize| {
        let index = next.fetch_add(1, Ordering::Relaxed);
        (index < count).then_some(index)
    };
    run(threads, items, claim, |item, _| work(item))
}

/// Which end of the items a worker of [`from_both_ends`] takes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Front,
    Back,
}

/// Runs `work` once for each item: `front` threads take items from the front on, `back` threads
/// from the back, but only such as have an index of at least `back_from`.
pub(crate) fn from_both_ends<T: Send>(
    (front, back): (usize, usize),
    items: Vec<T>,
    back_from: usize,
    work: impl Fn(T, End) -> Result<()> + Sync,
) -> Result<()> {
    let left = Mutex::new(0..items.len());
    let end_of = |thread: usize| if thread < front { End::Front } else { End::Back };
    let claim = |thread: usize| {
        let mut left = left.lock().ok()?;
        match end_of(thread) {
            End::Front => left.next(),
            End::Back if left.end > back_from => left.next_back(),
            End::Back => None,
        }
    };
    run(front + back, items, claim, |item, thread| work(item, end_of(thread)))
}

/// Runs `work` on `threads` threads, numbered from 0 (the caller's) on, each with the items that
/// `claim` gives it until there are none or one has failed.
fn run<T: Send>(
    threads: usize,
    items: Vec<T>,
    claim: impl Fn(usize) -> Option<usize> + Sync,
    work: impl Fn(T, usize) -> Result<()> + Sync,
) -> Result<()> {
    let items: Vec<Mutex<Option<T>>> = items.into_iter().map(|item| Mutex::new(Some(item))).collect();
    let job = |thread: &mut usize, index: usize| {
        let item = items.get(index).and_then(|slot| slot.lock().ok()?.take());
        item.map_or(Ok(()), |item| work(item, *thread))
    };
    z4ai::rt::run(threads, |thread| thread, claim, job)
}

/// Fills buffers one after another while another thread empties them in that order. `fill` is
/// called with a buffer of any length and contents until it returns `false`.
pub(crate) fn pipeline(
    mut fill: impl FnMut(&mut Vec<u8>) -> Result<bool>,
    mut empty: impl FnMut(&[u8]) -> Result<()> + Send,
) -> Result<()> {
    let (filled, to_empty) = std::sync::mpsc::sync_channel::<Vec<u8>>(1);
    let (emptied, to_fill) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let emptying = std::thread::Builder::new().spawn_scoped(scope, move || {
            for buffer in to_empty {
                empty(&buffer)?;
                // The filler may be done already.
                let _ = emptied.send(buffer);
            }
            Ok(())
        });
        let emptying = emptying.map_err(|error| Error::io("cannot start a thread", error))?;
        let mut buffers = 0;
        let filling = loop {
            let mut buffer = match to_fill.try_recv() {
                Ok(buffer) => buffer,
                Err(_) if buffers < 2 => {
                    buffers += 1;
                    Vec::new()
                }
                // Both are on their way; none comes back if emptying failed.
                Err(_) => match to_fill.recv() {
                    Ok(buffer) => buffer,
                    Err(_) => break Ok(()),
                },
            };
            match fill(&mut buffer) {
                Ok(true) if filled.send(buffer).is_ok() => {}
                Ok(_) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        drop(filled);
        let emptied = emptying.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        filling.and(emptied)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn every_item_is_worked_on_once() {
        for threads in [1, 2, 7] {
            let sum = AtomicU64::new(0);
            for_each(threads, (1..=1000u64).collect(), |n| {
                sum.fetch_add(n, Ordering::Relaxed);
                Ok(())
            })
            .unwrap();
            assert_eq!(sum.into_inner(), 500_500);
        }
    }

    #[test]
    fn from_both_ends_every_item_is_worked_on_once() {
        for (front, back, back_from) in [(1, 0, 0), (1, 3, 0), (2, 4, 500), (1, 1, 1000), (2, 2, 5000)] {
            let sum = AtomicU64::new(0);
            from_both_ends((front, back), (0..1000u64).collect(), back_from, |n, end| {
                assert!(end == End::Front || n >= back_from as u64);
                sum.fetch_add(n, Ordering::Relaxed);
                Ok(())
            })
            .unwrap();
            assert_eq!(sum.into_inner(), 499_500, "{front} {back} {back_from}");
        }
        let error = from_both_ends((1, 2), (0..100).collect(), 0, |n, _| match n {
            99 => Err(Error::invalid("the last")),
            _ => Ok(()),
        });
        assert_eq!(error.unwrap_err().to_string(), "the last");
    }

    #[test]
    fn a_pipeline_keeps_the_order_and_the_first_error() {
        let mut next = 0u8;
        let mut seen = Vec::new();
        let fill = |buffer: &mut Vec<u8>| {
            buffer.clear();
            buffer.push(next);
            next += 1;
            Ok(next <= 100)
        };
        pipeline(fill, |buffer| {
            seen.extend_from_slice(buffer);
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, (0..100).collect::<Vec<u8>>());
        let full = pipeline(|_| Ok(true), |_| Err(Error::invalid("full")));
        assert_eq!(full.unwrap_err().to_string(), "full");
        let broken = pipeline(|_| Err(Error::invalid("broken")), |_| Ok(()));
        assert_eq!(broken.unwrap_err().to_string(), "broken");
    }

    #[test]
    fn the_first_error_is_returned() {
        let error = for_each(3, (0..100).collect(), |n| match n {
            50 => Err(Error::invalid("fifty")),
            _ => Ok(()),
        });
        assert_eq!(error.unwrap_err().to_string(), "fifty");
    }
}
