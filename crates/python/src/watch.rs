//! Watching long calls: progress callbacks and Ctrl-C.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use ztensor::Observer;

use crate::errors::exception;

/// How often Python is asked whether to go on.
const INTERVAL: Duration = Duration::from_millis(50);

/// An observer that calls back into Python, from the thread that made the call only.
pub(crate) struct Watch {
    callback: Option<Py<PyAny>>,
    caller: ThreadId,
    done: AtomicU64,
    cancelled: AtomicBool,
    state: Mutex<State>,
}

struct State {
    last: Instant,
    reported: u64,
    failure: Option<PyErr>,
}

impl Watch {
    /// `callback(bytes)` is told how many bytes were done since it was last called.
    pub(crate) fn new(callback: Option<Py<PyAny>>) -> Watch {
        Watch {
            callback,
            caller: std::thread::current().id(),
            done: AtomicU64::new(0),
            cancelled: AtomicBool::new(false),
            state: Mutex::new(State { last: Instant::now(), reported: 0, failure: None }),
        }
    }

    /// Runs `work` without the interpreter and raises what it, the callback or a signal raised.
    pub(crate) fn run<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&dyn Observer) -> ztensor::Result<T> + Send,
    ) -> PyResult<T> {
        let result = py.detach(|| work(self));
        if result.is_ok() {
            self.report(py);
        }
        let failure = self.state.lock().ok().and_then(|mut state| state.failure.take());
        match (failure, result) {
            (Some(failure), _) => Err(failure),
            (None, Ok(value)) => Ok(value),
            (None, Err(error)) => Err(exception(py, &error)),
        }
    }

    /// Handles signals and tells the callback what is new.
    fn report(&self, py: Python<'_>) {
        let Ok(mut state) = self.state.lock() else { return };
        let done = self.done.load(Ordering::Relaxed);
        let news = done - state.reported;
        (state.last, state.reported) = (Instant::now(), done);
        drop(state);
        let outcome = py.check_signals().and_then(|()| match &self.callback {
            Some(callback) if news > 0 => callback.call1(py, (news,)).map(drop),
            _ => Ok(()),
        });
        if let Err(error) = outcome {
            self.cancelled.store(true, Ordering::Relaxed);
            if let Ok(mut state) = self.state.lock() {
                state.failure.get_or_insert(error);
            }
        }
    }
}

impl Observer for Watch {
    fn advance(&self, bytes: u64) -> bool {
        self.done.fetch_add(bytes, Ordering::Relaxed);
        if std::thread::current().id() == self.caller {
            let due = self.state.lock().is_ok_and(|state| state.last.elapsed() >= INTERVAL);
            if due {
                Python::try_attach(|py| self.report(py));
            }
        }
        !self.cancelled.load(Ordering::Relaxed)
    }

    /// Tells the callback all there is to tell, so that what it raises still stops the work.
    fn finish(&self) -> bool {
        Python::try_attach(|py| self.report(py));
        !self.cancelled.load(Ordering::Relaxed)
    }
}
