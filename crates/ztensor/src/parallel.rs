//! Scoped threads over an atomic work index.
//!
//! There is no global pool: data loaders fork, and a pool's threads do not
//! survive that. Threads are started per call, only when there is work for them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::error::{Error, Result};

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
    let stop = AtomicBool::new(false);
    let failure = Mutex::new(None);
    let worker = |thread: usize| {
        while !stop.load(Ordering::Relaxed) {
            let Some(slot) = claim(thread).and_then(|index| items.get(index)) else {
                return;
            };
            let Some(item) = slot.lock().ok().and_then(|mut slot| slot.take()) else {
                return;
            };
            if let Err(error) = work(item, thread) {
                stop.store(true, Ordering::Relaxed);
                if let Ok(mut failure) = failure.lock() {
                    failure.get_or_insert(error);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let worker = &worker;
        // The calling thread works too; a helper that cannot be started is done without.
        for thread in 1..threads {
            if std::thread::Builder::new().spawn_scoped(scope, move || worker(thread)).is_err() {
                break;
            }
        }
        worker(0);
    });
    match failure.into_inner() {
        Ok(Some(error)) => Err(error),
        _ => Ok(()),
    }
}

/// Makes something of each item on `threads` threads, while the calling thread takes what was made
/// in the order of the items. No more is made ahead of it than from items that weigh `most`
/// together, or from one.
pub(crate) fn in_order<T: Send, R: Send>(
    threads: usize,
    items: Vec<(u64, T)>,
    most: u64,
    make: impl Fn(T) -> Result<R> + Sync,
    mut take: impl FnMut(R) -> Result<()>,
) -> Result<()> {
    let (threads, count) = (resolve(threads).min(items.len()), items.len());
    if threads <= 1 {
        return items.into_iter().try_for_each(|(_, item)| take(make(item)?));
    }
    let line = Line {
        state: Mutex::new(LineState {
            items: items.into_iter().enumerate().collect::<Vec<_>>().into_iter(),
            made: BTreeMap::new(),
            ahead: 0,
            stopped: false,
        }),
        changed: Condvar::new(),
    };
    std::thread::scope(|scope| {
        let (line, make) = (&line, &make);
        // However anybody ends before their time, nobody waits for what they would have made or taken.
        let _stop = StopOnPanic(line);
        let work = move || {
            let _stop = StopOnPanic(line);
            while let Some((index, weight, item)) = line.claim(most) {
                let made = make(item);
                line.lock().made.insert(index, (weight, made));
                line.changed.notify_all();
            }
        };
        let started = (0..threads)
            .take_while(|_| std::thread::Builder::new().spawn_scoped(scope, work).is_ok())
            .count();
        if started == 0 {
            work_alone(line, make, &mut take)?;
            return Ok(());
        }
        for index in 0..count {
            let Some((weight, made)) = line.wait_for(index) else {
                break; // a worker panicked, and the scope passes that on
            };
            if let Err(error) = made.and_then(&mut take) {
                line.stop();
                return Err(error);
            }
            line.lock().ahead -= weight;
            line.changed.notify_all();
        }
        Ok(())
    })
}

/// Without any thread to help, items are made and taken in turn.
fn work_alone<T, R>(
    line: &Line<T, R>,
    make: impl Fn(T) -> Result<R>,
    mut take: impl FnMut(R) -> Result<()>,
) -> Result<()> {
    while let Some((_, _, item)) = line.claim(u64::MAX) {
        take(make(item)?)?;
    }
    Ok(())
}

/// What the threads of [`in_order`] share.
struct Line<T, R> {
    state: Mutex<LineState<T, R>>,
    changed: Condvar,
}

struct LineState<T, R> {
    items: std::vec::IntoIter<(usize, (u64, T))>,
    made: BTreeMap<usize, (u64, Result<R>)>,
    /// What the items weigh that were claimed and not yet taken.
    ahead: u64,
    stopped: bool,
}

impl<T, R> Line<T, R> {
    // A panic while the lock is held leaves a valid state, so poisoning means nothing here.
    fn lock(&self) -> MutexGuard<'_, LineState<T, R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next item, when there is room for what becomes of it.
    fn claim(&self, most: u64) -> Option<(usize, u64, T)> {
        let mut state = self.lock();
        loop {
            let weight = state.items.as_slice().first().map(|(_, (weight, _))| *weight)?;
            if state.stopped {
                return None;
            }
            if state.ahead == 0 || state.ahead.saturating_add(weight) <= most {
                state.ahead = state.ahead.saturating_add(weight);
                return state.items.next().map(|(index, (weight, item))| (index, weight, item));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What became of an item; nothing if that will never be known.
    fn wait_for(&self, index: usize) -> Option<(u64, Result<R>)> {
        let mut state = self.lock();
        loop {
            if let Some(made) = state.made.remove(&index) {
                return Some(made);
            }
            if state.stopped {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }
}

struct StopOnPanic<'a, T, R>(&'a Line<T, R>);

impl<T, R> Drop for StopOnPanic<'_, T, R> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
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
    fn what_is_made_is_taken_in_order_and_not_too_far_ahead() {
        for (threads, most) in [(1, 100), (2, 1), (4, 100), (7, u64::MAX)] {
            let ahead = AtomicU64::new(0);
            let mut taken = Vec::new();
            let make = |n: u64| {
                let now = ahead.fetch_add(n % 30, Ordering::SeqCst);
                assert!(now == 0 || now + n % 30 <= most.max(30), "{now} ahead with {n}");
                Ok(n)
            };
            let take = |n| {
                ahead.fetch_sub(n % 30, Ordering::SeqCst);
                taken.push(n);
                Ok(())
            };
            in_order(threads, (0..500).map(|n| (n % 30, n)).collect(), most, make, take).unwrap();
            assert_eq!(taken, (0..500).collect::<Vec<u64>>());
        }
    }

    #[test]
    fn making_and_taking_may_fail_or_panic() {
        let items = || (0..100).map(|n| (1, n)).collect::<Vec<(u64, u64)>>();
        let mut taken = 0;
        let made = |n| if n == 50 { Err(Error::invalid("fifty")) } else { Ok(n) };
        let error = in_order(3, items(), 10, made, |_| {
            taken += 1;
            Ok(())
        });
        assert_eq!((error.unwrap_err().to_string().as_str(), taken), ("fifty", 50));
        let error = in_order(3, items(), 10, Ok, |n| match n {
            20 => Err(Error::invalid("full")),
            _ => Ok(()),
        });
        assert_eq!(error.unwrap_err().to_string(), "full");
        let panicked = std::panic::catch_unwind(|| {
            in_order(3, items(), 10, |n| if n == 7 { panic!("seven") } else { Ok(n) }, |_| Ok(()))
        });
        assert!(panicked.is_err());
        let panicked = std::panic::catch_unwind(|| {
            in_order(3, items(), 10, Ok, |n| if n == 7 { panic!("seven") } else { Ok(()) })
        });
        assert!(panicked.is_err());
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
