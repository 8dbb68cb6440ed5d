//! Items made by several threads, and taken by one in their order.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::resolve;
use crate::error::Result;

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
        // A worker that ends early (error, panic) must not leave others waiting for its items.
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::error::Error;

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
}
