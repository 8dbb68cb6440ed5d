//! Unified, zero-copy, safe I/O for tensor files.
//!
//! [`open`] reads whatever weights come in, by one API and without executing
//! anything in them; [`Writer`] writes `.zt` files, which hold dense, sparse and
//! quantized tensors, compressed and checksummed if you like.
//!
//! ```
//! use ztensor::{Checksum, Compression, Writer};
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("model.zt");
//! let weights: Vec<f32> = (0..6).map(|n| n as f32).collect();
//!
//! let mut writer = Writer::create(&path)?;
//! writer.add("weights", &[2, 3], &weights)?;
//! writer
//!     .add_with("small", &[6], &weights)
//!     .compress(Compression::Zstd(3))
//!     .checksum(Checksum::Crc32c)
//!     .write()?;
//! writer.finish()?;
//!
//! let reader = ztensor::open(&path)?;
//! assert_eq!(reader.view_as::<f32>("weights")?, weights); // no copy
//! assert_eq!(reader.read_as::<f32>("small")?, weights); // decoded, digest compared
//! # Ok::<(), ztensor::Error>(())
//! ```
//!
//! A [`Reader`] is a catalog of [`Object`]s and where their bytes are. Bytes that
//! lie in the file as they are in memory can be viewed; everything else is
//! decoded when it is read. An [`Error`] names the file, the tensor and the rule
//! that was broken.
//!
//! # A file that changes while it is mapped
//!
//! Views borrow from a mapping. A program that truncates a mapped file makes the
//! next touch of the lost part end the process (`SIGBUS`), and one that rewrites
//! it in place changes what views show. This library's own writers do neither:
//! new files replace old ones by renaming, and edits respect mapped readers. For
//! files that others may change meanwhile, open with [`source::MapMode::Never`]:
//! every byte is then read, and trouble is an error.

pub mod ahead;
pub mod assemble;
mod atomic;
mod batch;
mod buffer;
mod codec;
mod cold;
mod compress;
mod crc;
mod decode;
pub mod digest;
mod disk;
pub mod dtype;
pub mod edit;
pub mod error;
pub mod export;
pub mod format;
mod gather;
pub mod model_delta;
pub mod numbers;
pub mod object;
pub mod parallel;
mod parts;
pub mod progress;
mod quantized;
pub mod read;
pub mod remote;
mod simd;
pub mod source;
pub mod tensor;
mod transfer;
mod validate;
pub mod value;
pub mod write;

#[doc(hidden)]
pub use atomic::write_atomically;
#[doc(hidden)]
pub use buffer::advise_huge;
pub use digest::{Checksum, Digest};
pub use dtype::{DType, Element};
pub use edit::{compact, compact_to, merge, remove_tensors, repair, replace_tensor};
pub use error::{Error, Kind, Result};
pub use format::Format;
pub use format::{gguf, zstn};
pub use object::{Component, Extent, Layout, Object, Shape};
pub use parts::Part;
pub use progress::Observer;
pub use read::{OpenOptions, Reader, Verification};
pub use tensor::{Array, Tensor};
pub use value::{Attributes, Value};
pub use write::{Compression, Plan, WriteOptions, Writer};
pub use z4ai::Effort;

/// Opens a tensor file of any format: the same as [`Reader::open`].
pub fn open(path: impl AsRef<std::path::Path>) -> Result<Reader> {
    Reader::open(path)
}

/// The examples of `docs/rust.md`, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/rust.md")]
mod guide {}
