//! Unified, zero-copy, safe I/O for tensor files.

mod atomic;
mod buffer;
mod decode;
pub mod digest;
pub mod dtype;
pub mod error;
pub mod export;
pub mod format;
pub mod object;
pub mod parallel;
pub mod progress;
pub mod read;
mod simd;
pub mod source;
pub mod tensor;
mod validate;
pub mod value;
pub mod write;

#[doc(hidden)]
pub use buffer::advise_huge;
pub use digest::{Checksum, Digest};
pub use dtype::{DType, Element};
pub use error::{Error, Kind, Result};
pub use format::Format;
pub use format::gguf;
pub use object::{Component, Extent, Layout, Object, Shape};
pub use progress::Observer;
pub use read::{OpenOptions, Reader, Verification};
pub use tensor::{Array, Tensor};
pub use value::{Attributes, Value};
pub use write::{Compression, WriteOptions, Writer};
