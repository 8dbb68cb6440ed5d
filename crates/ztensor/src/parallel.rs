//! Scoped threads over an atomic work index.
//!
//! There is no global pool: data loaders fork, and a pool's threads do not
//! survive that. Threads are started per call, only when there is work for them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::error::Result;

/// The number of threads that a request for `threads` means: 0 is one per core.
pub fn resolve(threads: usize) -> usize {
    // Asking the system reads several files: once is enough.
    static CORES: OnceLock<usize> = OnceLock::new();
    match threads {
        0 => *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from)),
        n => n,
    }
}

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
    let items: Vec<Mutex<Option<T>>> = items.into_iter().map(|item| Mutex::new(Some(item))).collect();
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let failure = Mutex::new(None);
    let worker = || {
        while !stop.load(Ordering::Relaxed) {
            let Some(slot) = items.get(next.fetch_add(1, Ordering::Relaxed)) else {
                return;
            };
            let Some(item) = slot.lock().ok().and_then(|mut slot| slot.take()) else {
                return;
            };
            if let Err(error) = work(item) {
                stop.store(true, Ordering::Relaxed);
                if let Ok(mut failure) = failure.lock() {
                    failure.get_or_insert(error);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        // The calling thread works too; a helper that cannot be started is done without.
        for _ in 1..threads {
            if std::thread::Builder::new().spawn_scoped(scope, worker).is_err() {
                break;
            }
        }
        worker();
    });
    match failure.into_inner() {
        Ok(Some(error)) => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
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
    fn the_first_error_is_returned() {
        let error = for_each(3, (0..100).collect(), |n| match n {
            50 => Err(Error::invalid("fifty")),
            _ => Ok(()),
        });
        assert_eq!(error.unwrap_err().to_string(), "fifty");
    }
}
