//! Reading: from a catalog to the caller's memory.
//!
//! `reader.rs` is the [`Reader`] itself. The other files are parts of it: verification, batches of
//! remote tensors, subarrays, cold loads with `O_DIRECT`, decoding ahead of the consumer, and views
//! that share a storage.

mod batch;
mod direct_io;
mod limits;
mod locate;
mod options;
pub mod prefetch;
mod reader;
mod subarray;
mod verify;
pub mod views;

pub(crate) use limits::Charge;
pub use limits::Limits;
pub use locate::Location;
pub use options::{OpenOptions, PicklePolicy};
pub(crate) use reader::Job;
pub use reader::Reader;
pub(crate) use subarray::Runs;
pub use subarray::Subarray;
pub use verify::{Summary, Verification};
pub(crate) use verify::{compare, hasher};
