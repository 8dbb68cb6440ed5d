//! Progress and cancellation of long calls.

use std::fmt;
use std::sync::Arc;

/// Receives the bytes done since its last call; says whether to go on.
/// Called from several threads at once.
pub trait Observer: Sync {
    /// `bytes` more are done. `false` cancels the call.
    fn advance(&self, bytes: u64) -> bool;

    /// All bytes are done, and the result is about to appear under its name. `false` is the last
    /// chance to cancel that.
    fn finish(&self) -> bool {
        self.advance(0)
    }
}

impl<F: Fn(u64) -> bool + Sync> Observer for F {
    fn advance(&self, bytes: u64) -> bool {
        self(bytes)
    }
}

/// An observer that options own and share with their clones.
#[derive(Clone)]
pub struct SharedObserver(Arc<dyn Observer + Send + Sync>);

impl SharedObserver {
    /// Shares an observer, such as a closure.
    pub fn new(observer: impl Observer + Send + 'static) -> Self {
        Self(Arc::new(observer))
    }
}

impl From<Arc<dyn Observer + Send + Sync>> for SharedObserver {
    fn from(observer: Arc<dyn Observer + Send + Sync>) -> Self {
        Self(observer)
    }
}

impl Observer for SharedObserver {
    fn advance(&self, bytes: u64) -> bool {
        self.0.advance(bytes)
    }

    fn finish(&self) -> bool {
        self.0.finish()
    }
}

impl fmt::Debug for SharedObserver {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SharedObserver")
    }
}
