//! What a delta changes, without its base.

use std::path::Path;
use std::sync::Arc;

use super::ModelDigest;
use super::segments::{BaseCheck, Delta, How};
use crate::error::Result;
use crate::remote::Options;
use crate::source::{self, MapMode, Source};

/// What a delta is, and what it changes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// The version of the delta: 1 or 2.
    pub version: u8,
    /// What its base is known by; version 1 has a digest of its own kind.
    pub base: Option<ModelDigest>,
    /// What its target is known by; version 1 does not say.
    pub target: Option<ModelDigest>,
    /// Bytes of the delta.
    pub delta_len: u64,
    /// Bytes of the target.
    pub target_len: u64,
    /// The target's tensors in the order of the file. One that has more rows than in the base comes
    /// twice, with those that are there and those that are new.
    pub changes: Vec<Change>,
}

/// What became of one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// Its name.
    pub name: String,
    /// `copy`, `delta`, `full`, or `same` as another tensor of the target.
    pub how: &'static str,
    /// The tensor of the base that it is made from, for `copy` and `delta`.
    pub from: Option<String>,
    /// Bytes of the tensor.
    pub len: u64,
    /// Bytes that it takes in the delta.
    pub stored_len: u64,
}

/// Describes a delta.
pub fn info(path: impl AsRef<Path>) -> Result<Info> {
    let path = path.as_ref();
    info_source(source::open(path, MapMode::Auto, &Options::default())?).map_err(|error| error.in_file(path))
}

/// Describes a delta of any source, such as memory.
pub fn info_source(source: Arc<dyn Source>) -> Result<Info> {
    let delta_len = source.len();
    let delta = Delta::read(source)?;
    let changes = delta.segments.iter().filter(|segment| !segment.name.is_empty()).map(|segment| Change {
        name: segment.name.clone(),
        how: match segment.how {
            How::Copy(_) => "copy",
            How::Delta(..) => "delta",
            How::Same(_) => "same",
            How::Frame(..) | How::Raw(..) | How::Zeros => "full",
        },
        from: segment.how.place().map(|place| place.name.clone()),
        len: segment.len,
        stored_len: segment.how.extent().map_or(0, |extent| extent.len),
    });
    Ok(Info {
        version: delta.version,
        base: match delta.base {
            BaseCheck::Model(digest) => Some(digest),
            BaseCheck::Data(_) => None,
        },
        target: delta.target.map(|(digest, _)| digest),
        delta_len,
        target_len: delta.target_len,
        changes: changes.collect(),
    })
}
