//! Unified, zero-copy, safe I/O for tensor files.

mod buffer;
mod decode;
pub mod digest;
pub mod dtype;
pub mod error;
pub mod format;
pub mod object;
pub mod parallel;
pub mod source;
mod validate;
pub mod value;

pub use digest::{Checksum, Digest};
pub use dtype::{DType, Element};
pub use error::{Error, Kind, Result};
pub use format::Format;
pub use object::{Component, Extent, Layout, Object};
pub use value::{Attributes, Value};
