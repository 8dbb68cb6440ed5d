//! Watching long calls, and stopping them.

use crate::error::{Error, Result};

/// Told how many bytes were done since the last call; says whether to go on.
/// Called from several threads at once.
pub trait Observer: Sync {
    /// `bytes` more are done. `false` cancels the call.
    fn advance(&self, bytes: u64) -> bool;

    /// All bytes are done, and what was made is about to appear under its name. `false` is the
    /// last chance to cancel that.
    fn finish(&self) -> bool {
        self.advance(0)
    }
}

impl<F: Fn(u64) -> bool + Sync> Observer for F {
    fn advance(&self, bytes: u64) -> bool {
        self(bytes)
    }
}

/// Reports to an observer, if there is one.
pub(crate) fn advance(observer: Option<&dyn Observer>, bytes: u64) -> Result<()> {
    match observer {
        Some(observer) if !observer.advance(bytes) => Err(Error::cancelled()),
        _ => Ok(()),
    }
}

/// Asks an observer, if there is one, whether the result may appear.
pub(crate) fn finish(observer: Option<&dyn Observer>) -> Result<()> {
    match observer {
        Some(observer) if !observer.finish() => Err(Error::cancelled()),
        _ => Ok(()),
    }
}
