//! Writing: the streaming [`Writer`] of `.zt` files, exports to other formats, and the disk
//! operations that every new file goes through.

pub mod assemble;
pub(crate) mod atomic;
mod batch;
pub(crate) mod behind;
pub(crate) mod compress;
pub(crate) mod destination;
pub(crate) mod disk;
pub mod export;
pub(crate) mod from_reader;
mod options;
mod plan;
mod sink;
pub(crate) mod stream;
pub(crate) mod vectored;
mod version2;
mod writer;

pub use options::{Compression, CreateOptions, WriteOptions, ZtVersion};
pub use plan::Plan;
pub(crate) use sink::Sink;
pub use stream::{PendingTensor, TensorStream, compress_stream};
pub use writer::*;
