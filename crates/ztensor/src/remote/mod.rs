//! Files that are not on this machine: object stores and web servers.
//!
//! Wherever a path is accepted, so is a URL: `s3://bucket/key`, `gs://bucket/key`,
//! `az://container/key`, `hf://owner/repo/file`, `http://…`, `https://…` and `file://…`. A remote file is
//! read by ranges and never as a whole unless all of it is wanted; a new one is
//! uploaded in parts while it is written, and appears when it is complete.
//!
//! Credentials and endpoints come from the environment variables that the
//! stores' own tools read (`AWS_…`, `GOOGLE_…`, `AZURE_…`), or from [`Options`].
//!
//! ```no_run
//! let reader = ztensor::open("s3://models/llama/model.safetensors")?; // one or two requests
//! let rows = reader.read_rows("model.embed_tokens.weight", 0..16)?; // one more, for these bytes
//! # Ok::<(), ztensor::Error>(())
//! ```
//!
//! This needs the crate's feature `remote`; without it such paths are refused.

mod hub;
mod location;
mod options;

#[cfg(feature = "remote")]
mod cache;
#[cfg(feature = "remote")]
mod coalesce;
#[cfg(feature = "remote")]
mod collect;
#[cfg(feature = "remote")]
mod failure;
#[cfg(feature = "remote")]
mod fetch;
#[cfg(feature = "remote")]
mod http;
#[cfg(feature = "remote")]
#[cfg(feature = "remote")]
mod pinned;
#[cfg(feature = "remote")]
mod raw_http;
#[cfg(feature = "remote")]
mod runtime;
#[cfg(feature = "remote")]
mod settings;
#[cfg(feature = "remote")]
mod source;
pub mod store;
#[cfg(feature = "remote")]
mod upload;
#[cfg(feature = "remote")]
pub mod web;

pub(crate) use location::local;
pub use location::{Location, Place, Scheme, is_url, place};
pub use options::Options;

#[cfg(feature = "remote")]
pub(crate) use source::RemoteSource;
#[cfg(feature = "remote")]
pub(crate) use upload::Upload;

#[cfg(not(feature = "remote"))]
mod absent;
#[cfg(not(feature = "remote"))]
pub(crate) use absent::{RemoteSource, Upload};
