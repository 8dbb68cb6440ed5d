//! Scoped threads over an atomic work index. No global pool, so it works after a fork.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};

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

/// The number of threads for a caller's `threads` (0: one per core) and `jobs` jobs.
pub(crate) fn workers(threads: usize, jobs: usize) -> usize {
    resolve(threads).min(jobs).max(1)
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
    let claim = |_: usize| Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&i| i < jobs);
    run(workers, |_| state(), claim, job)
}

/// As [`for_each`], for jobs that fill memory in order: every thread starts with a contiguous range
/// of its own, and idle threads steal from the end of the longest range. Two threads that touch one
/// fresh huge page at the same time would both clear one, and one of them would be discarded.
pub(crate) fn for_each_apart<S>(
    threads: usize,
    jobs: usize,
    state: impl Fn() -> S + Sync,
    job: impl Fn(&mut S, usize) -> Result<()> + Sync,
) -> Result<()> {
    let workers = workers(threads, jobs);
    if workers == 1 {
        return for_each(1, jobs, state, job);
    }
    let stretches: Vec<Range<usize>> =
        (0..workers).map(|k| k * jobs / workers..(k + 1) * jobs / workers).collect();
    let stretches = Mutex::new(stretches);
    let claim = |worker: usize| {
        let mut stretches = stretches.lock().unwrap_or_else(|e| e.into_inner());
        stretches[worker].next().or_else(|| stretches.iter_mut().max_by_key(|left| left.len())?.next_back())
    };
    run(workers, |_| state(), claim, job)
}

/// Runs jobs on `workers` threads, numbered from 0 (the caller's) on, each as `claim` assigns them. Stops at
/// the first error, of which the one with the lowest index is returned.
pub fn run<S, E: Send>(
    workers: usize,
    state: impl Fn(usize) -> S + Sync,
    claim: impl Fn(usize) -> Option<usize> + Sync,
    job: impl Fn(&mut S, usize) -> std::result::Result<(), E> + Sync,
) -> std::result::Result<(), E> {
    let stop = AtomicBool::new(false);
    let failure = Mutex::new(None);
    let work = |worker: usize| {
        let mut state = state(worker);
        while !stop.load(Ordering::Relaxed) {
            let Some(i) = claim(worker) else { break };
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
        let work = &work;
        // The calling thread works too; a helper that cannot be started is done without.
        for worker in 1..workers {
            if std::thread::Builder::new().spawn_scoped(scope, move || work(worker)).is_err() {
                break;
            }
        }
        work(0);
    });
    match failure.into_inner().unwrap_or_else(|e| e.into_inner()) {
        Some((_, error)) => Err(error),
        None => Ok(()),
    }
}

/// Passes results that complete out of order to a sink in order, without blocking: an early result
/// is left for the worker that delivers its predecessor.
pub(crate) struct InOrder<T, R> {
    state: Mutex<State<T, R>>,
    passed: Condvar,
    /// How far ahead of its turn a result may be.
    ahead: usize,
}

struct State<T, R> {
    turn: usize,
    /// A worker panicked before its turn: no result will follow.
    abandoned: bool,
    /// Absent while a worker uses it.
    sink: Option<T>,
    early: BTreeMap<usize, R>,
    /// Consumed results, whose buffers are reused.
    spare: Vec<R>,
    /// Workers that are blocked because they are too far ahead.
    waiting: usize,
}

impl<T, R: Default> InOrder<T, R> {
    /// For at most `workers` workers.
    pub(crate) fn new(sink: T, workers: usize) -> Self {
        let (early, spare) = (BTreeMap::new(), Vec::new());
        let state = State { turn: 0, abandoned: false, sink: Some(sink), early, spare, waiting: 0 };
        Self { state: Mutex::new(state), passed: Condvar::new(), ahead: 4 * workers }
    }

    fn lock(&self) -> MutexGuard<'_, State<T, R>> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Makes the result of job `i`, in a reused or default one, and passes it to the sink after all
    /// before it. Every index must come exactly once, and jobs must be claimed in order.
    pub(crate) fn deliver(&self, i: usize, make: impl FnOnce(&mut R), hand_in: impl Fn(&mut T, &mut R)) {
        let guard = Abandon(self);
        let mut result = self.lock().spare.pop().unwrap_or_default();
        make(&mut result);
        let mut state = self.lock();
        while i >= state.turn + self.ahead && !state.abandoned {
            state.waiting += 1;
            state = self.passed.wait(state).unwrap_or_else(|e| e.into_inner());
            state.waiting -= 1;
        }
        state.early.insert(i, result);
        while !state.abandoned
            && state.sink.is_some()
            && let turn = state.turn
            && let Some(mut next) = state.early.remove(&turn)
            && let Some(mut sink) = state.sink.take()
        {
            drop(state);
            hand_in(&mut sink, &mut next);
            state = self.lock();
            state.sink = Some(sink);
            state.turn += 1;
            state.spare.push(next);
            if state.waiting > 0 {
                self.passed.notify_all();
            }
        }
        drop(state);
        std::mem::forget(guard);
    }

    /// The sink; `None` if a worker panicked while it used it.
    pub(crate) fn into_inner(self) -> Option<T> {
        self.state.into_inner().unwrap_or_else(|e| e.into_inner()).sink
    }
}

/// Wakes all workers when one panics, so that the panic propagates.
struct Abandon<'a, T, R>(&'a InOrder<T, R>);

impl<T, R> Drop for Abandon<'_, T, R> {
    fn drop(&mut self) {
        self.0.state.lock().unwrap_or_else(|e| e.into_inner()).abandoned = true;
        self.0.passed.notify_all();
    }
}
