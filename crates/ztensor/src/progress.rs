//! Watching long calls, and stopping them.

pub use z4ai::Observer;

use crate::error::{Error, Result};

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
