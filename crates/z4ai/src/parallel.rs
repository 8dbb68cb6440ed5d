//! Scoped threads over an atomic work index. No global pool, so it works after a fork.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};

use crate::error::Result;

/// The threads to run for a caller's `threads` (0: one per core) and so many jobs.
fn workers(threads: usize, jobs: usize) -> usize {
    let wanted = match threads {
        0 => std::thread::available_parallelism().map_or(1, NonZero::get),
        n => n,
    };
    wanted.min(jobs).max(1)
}

/// Runs `job(state, i)` for every `i` below `jobs` on at most `threads` threads, each with its own
/// state; stops at the first error, of which the one with the lowest index is returned.
pub(crate) fn for_each<S>(
    threads: usize,
    jobs: usize,
    state: impl Fn() -> S + Sync,
    job: impl Fn(&mut S, usize) -> Result<()> + Sync,
) -> Result<()> {
    let workers = workers(threads, jobs);
    if workers == 1 {
        let mut state = state();
        return (0..jobs).try_for_each(|i| job(&mut state, i));
    }
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let failure = Mutex::new(None);
    let work = || {
        let mut state = state();
        while !stop.load(Ordering::Relaxed) {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= jobs {
                break;
            }
            if let Err(error) = job(&mut state, i) {
                stop.store(true, Ordering::Relaxed);
                let mut first = failure.lock().unwrap_or_else(|e| e.into_inner());
                if first.as_ref().is_none_or(|(at, _)| i < *at) {
                    *first = Some((i, error));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..workers {
            scope.spawn(work);
        }
        work();
    });
    match failure.into_inner().unwrap_or_else(|e| e.into_inner()) {
        Some((_, error)) => Err(error),
        None => Ok(()),
    }
}

/// Lets workers that finish out of order hand in their results in order.
pub(crate) struct InOrder<T> {
    state: Mutex<State<T>>,
    passed: Condvar,
}

struct State<T> {
    turn: usize,
    /// A worker died before its turn: nobody will come after it.
    abandoned: bool,
    sink: T,
}

impl<T> InOrder<T> {
    pub(crate) fn new(sink: T) -> Self {
        Self { state: Mutex::new(State { turn: 0, abandoned: false, sink }), passed: Condvar::new() }
    }

    /// Makes the result of job `i` and hands it in when all before it are in. Every index must
    /// come exactly once, and jobs must be taken in order.
    pub(crate) fn deliver<R>(&self, i: usize, make: impl FnOnce() -> R, hand_in: impl FnOnce(&mut T, R)) {
        let guard = Abandon(self);
        let result = make();
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        while state.turn != i && !state.abandoned {
            state = self.passed.wait(state).unwrap_or_else(|e| e.into_inner());
        }
        if !state.abandoned {
            hand_in(&mut state.sink, result);
            state.turn += 1;
        }
        drop(state);
        std::mem::forget(guard);
        self.passed.notify_all();
    }

    pub(crate) fn into_inner(self) -> T {
        self.state.into_inner().unwrap_or_else(|e| e.into_inner()).sink
    }
}

/// Wakes everyone up when a worker panics, so that the panic can travel on.
struct Abandon<'a, T>(&'a InOrder<T>);

impl<T> Drop for Abandon<'_, T> {
    fn drop(&mut self) {
        self.0.state.lock().unwrap_or_else(|e| e.into_inner()).abandoned = true;
        self.0.passed.notify_all();
    }
}
