//! What can be asked of sources where every read is a request.

use std::any::Any;
use std::fmt;
use std::ops::Range;

use crate::error::Result;
use crate::source::Source;

/// What is going to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Headers, by a parser: a few bytes here and there, often one after another.
    Headers,
    /// Data: exactly what is asked for.
    Data,
}

/// How much may be under way at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Requests.
    pub connections: usize,
    /// Bytes that are held for decoding.
    pub memory: u64,
}

/// Bytes that were fetched and can be read without a request as long as this lives.
pub struct Staged(Box<dyn Any + Send + Sync>);

impl Staged {
    /// Holds what holds the bytes.
    pub fn new(held: impl Any + Send + Sync) -> Staged {
        Staged(Box::new(held))
    }

    /// What it was made of, for the source that made it: its memory can be used again.
    pub fn into_held<T: Any>(self) -> Option<T> {
        self.0.downcast().ok().map(|held| *held)
    }
}

impl fmt::Debug for Staged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Staged")
    }
}

/// A source where every read is a request, so that many are better made at once.
pub trait Remote: Source {
    /// How much may be under way at a time.
    fn budget(&self) -> Budget;

    /// Says what the next reads are for.
    fn expect(&self, access: Access);

    /// Whether a range can be read without a request.
    fn holds(&self, range: Range<u64>) -> bool;

    /// Fills several buffers: sorted, joined where they are close, in parallel. `done`
    /// hears how many bytes have arrived since, and its error stops everything.
    fn read_many(
        &self,
        requests: Vec<(u64, &mut [u8])>,
        done: &mut (dyn FnMut(u64) -> Result<()> + Send),
    ) -> Result<()>;

    /// Fetches ranges for those who read them piece by piece, into the memory of what was staged
    /// `before`, as far as that fits: fresh memory takes longer to touch than to fill.
    fn stage(&self, ranges: &[Range<u64>], before: Option<Staged>) -> Result<Staged>;

    /// Fetches ranges that a parser is about to read; ends are clipped.
    fn fetch_headers(&self, ranges: &[Range<u64>]) -> Result<()>;
}
