//! Reading: from a catalog to the caller's memory.
//!
//! [`reader`](self) is the [`Reader`] itself. The other files are parts of it: batches of remote
//! tensors, subarrays, cold loads with `O_DIRECT`, decoding ahead of the consumer, and views that
//! share a storage.

mod batch;
mod direct_io;
mod limits;
pub mod prefetch;
mod reader;
mod subarray;
pub mod views;

pub(crate) use limits::Charge;
pub use limits::Limits;
pub(crate) use reader::{Job, compare, hasher};
pub use reader::{OpenOptions, PicklePolicy, Reader, Verification};
pub(crate) use subarray::Runs;
pub use subarray::Subarray;
