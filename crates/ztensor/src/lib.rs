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

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod base;
pub mod catalog;
mod decode;
pub mod delta;
pub mod digest;
pub mod dtype;
pub mod edit;
pub mod error;
pub mod format;
pub mod id;
pub mod partition;
mod platform;
pub mod progress;
pub mod read;
pub mod remote;
pub mod repository;
pub mod scan;
pub mod schemes;
pub mod source;
mod suggest;
pub mod sync;
pub mod tensor;
pub mod write;

#[doc(hidden)]
pub use base::huge_pages::advise_huge;
pub use base::parallel;
#[doc(hidden)]
pub use base::trusted;
pub use catalog::{Component, Extent, Layout, Object, Shape};
pub use digest::{Checksum, Digest};
pub use dtype::{DType, Element};
pub use edit::{compact, compact_to, merge, remove_tensors, repair, replace_tensor};
pub use error::{Error, ErrorKind, Result};
pub use format::Format;
pub use format::{gguf, zstn};
pub use id::ContentId;
pub use progress::Observer;
pub use read::{Limits, OpenOptions, PicklePolicy, Reader, Subarray, Verification};
pub use tensor::value::{Attributes, Value};
pub use tensor::{Array, Tensor};
#[doc(hidden)]
pub use write::atomic::{rename_new, write_atomically};
pub use write::destination::Destination;
pub use write::{Compression, Plan, WriteOptions, Writer, ZtVersion};
pub use z4ai::Effort;

// Earlier paths of public modules, kept for one release.
#[doc(hidden)]
pub use catalog as object;
#[doc(hidden)]
pub use delta as model_delta;
#[doc(hidden)]
pub use error::ErrorKind as Kind;
#[doc(hidden)]
pub use read::{Subarray as Part, prefetch as ahead};
#[doc(hidden)]
pub use tensor::{to_f64 as numbers, value};
#[doc(hidden)]
pub use write::{assemble, export};

/// Opens a tensor file of any format: the same as [`Reader::open`].
pub fn open(path: impl AsRef<std::path::Path>) -> Result<Reader> {
    Reader::open(path)
}

/// The tutorial, compiled; `tests/guide.rs` has the examples of `docs/rust.md`.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/tutorials/rust.md")]
mod guide {}
