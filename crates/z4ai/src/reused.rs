//! Buffers that a thread keeps for its next call.
//!
//! Callers encode many buffers in a row, one per tensor, and page faults of fresh memory would take as long as half of
//! the encoding; the public functions have no argument to pass buffers in.

use std::cell::Cell;
use std::thread::LocalKey;

/// Where a thread keeps the buffers of its last call.
pub(crate) type Last<T> = LocalKey<Cell<Option<Box<T>>>>;

/// Buffers that are kept.
pub(crate) trait Reusable: Default + 'static {
    fn last() -> &'static Last<Self>;
}

/// The buffers of the thread's last call, or new ones; the next call gets them.
pub(crate) struct Reused<T: Reusable>(pub(crate) Box<T>);

impl<T: Reusable> Default for Reused<T> {
    fn default() -> Self {
        Self(T::last().take().unwrap_or_default())
    }
}

impl<T: Reusable> Drop for Reused<T> {
    fn drop(&mut self) {
        // Histograms are cleared after their use, which a panic may have cut short.
        if !std::thread::panicking() {
            T::last().set(Some(std::mem::take(&mut self.0)));
        }
    }
}
