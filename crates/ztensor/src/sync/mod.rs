//! Weight sync: the delta stream between trainers and inference hosts.
//!
//! A trainer publishes versions of a model into a folder or an object store, most of them as
//! differences from the version before; hosts bring a local checkpoint or tensors in memory up to
//! date. Streams are read and written in the format that slime, miles, vime and ModelExpress share,
//! and with z4ai payloads in the same envelope.
//!
//! - [`Publisher`]: compares a state with the one before and writes a version, whole or not at all.
//! - [`pull`]: brings a local checkpoint to a version by the shortest way: base and payloads are
//!   checked before the first byte changes, and a journal makes the change survive a crash.
//! - [`MemoryTarget`]: the same for tensors in memory.
//! - [`fold`], [`prune`], [`log`], [`verify`]: maintenance.
//! - [`chain`]: which way leads to a state, for any kind of states.
//!
//! `docs/spec/sync.md` has the format and its rules.
//!
//! ```
//! use ztensor::sync::{PublishOptions, PullOptions, Publisher, Stream, pull};
//!
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = |name: &str| dir.path().join(name);
//! # std::fs::create_dir(path("base")).unwrap();
//! # let model = |values: [f32; 3]| {
//! #     let mut list = ztensor::export::TensorList::default();
//! #     let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
//! #     let tensor = ztensor::Tensor::from_bytes(vec![3], ztensor::DType::F32, bytes);
//! #     list.tensors.push(("w".into(), tensor.unwrap()));
//! #     list
//! # };
//! # let write = |path: std::path::PathBuf, values| {
//! #     let format = ztensor::export::ExportFormat::Safetensors;
//! #     ztensor::export::export(&model(values), path, format, &Default::default()).unwrap();
//! # };
//! # write(path("base/model.safetensors"), [1.0, 2.0, 3.0]);
//! # write(path("step1.safetensors"), [1.0, 2.5, 3.0]);
//! let stream = std::sync::Arc::new(Stream::new(path("stream"), Default::default(), Default::default()));
//! let mut publisher = Publisher::new(stream.clone(), &ztensor::open(path("base"))?, PublishOptions::default())?;
//! publisher.publish_reader(&ztensor::open(path("step1.safetensors"))?)?;
//!
//! let options = PullOptions { base: Some(path("base")), ..PullOptions::default() };
//! let pulled = pull(&stream, path("local"), &options)?;
//! assert_eq!(pulled.version, "000001");
//! assert_eq!(ztensor::open(path("local"))?.view_as::<f32>("w")?, [1.0, 2.5, 3.0]);
//! # Ok::<(), ztensor::Error>(())
//! ```
#![forbid(unsafe_code)]

mod apply;
pub mod chain;
mod checkpoint;
mod checksum;
mod deltas;
mod index;
mod journal;
mod maintain;
mod memory;
mod patch;
mod payload;
mod plan;
mod publish;
mod pull;
mod skyrl;
mod state;
mod stream;
mod target;
#[cfg(test)]
mod tests;

pub use checkpoint::ChangedTensor;
pub use checksum::ChecksumFormat;
pub use index::{Encoding, Extras, Index, Kind, PayloadCompression, TensorEntry};
pub use maintain::{Folded, LogEntry, Status, Verified, fold, log, prune, status, verify};
pub use memory::{Applied, LiveTensor, MemoryTarget, SparseChange};
pub use publish::{PublishOptions, Published, Publisher, TensorInput};
pub use pull::{PullOptions, Pulled, pull};
pub use stream::{BASE_VERSION, Layout, Stream, Version, version_name, version_number};
