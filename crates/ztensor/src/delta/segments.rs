//! What a delta consists of: segments whose contents one after another are the target.

use crate::catalog::Extent;
use crate::decode::Generation;
use crate::error::Result;
use crate::source::Source;
use std::sync::Arc;

use super::ModelDigest;

/// A part of the target.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    /// The tensor it belongs to; empty for what is no tensor.
    pub(crate) name: String,
    /// Bytes of the target.
    pub(crate) len: u64,
    pub(crate) how: How,
}

/// Where a segment's bytes come from.
#[derive(Debug, Clone)]
pub(crate) enum How {
    /// A frame of its own.
    Frame(Extent, Generation),
    /// As they are, with a CRC-32C where the version has one.
    Raw(Extent, Option<u32>),
    /// The base has them.
    Copy(Place),
    /// They differ from what the base has by a delta frame.
    Delta(Extent, Place),
    /// They are those of an earlier segment, which is not such a reference itself.
    Same(usize),
    /// Nothing was stored for them.
    Zeros,
}

/// A range of a base tensor, as long as the segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) name: String,
    pub(crate) role: String,
    pub(crate) offset: u64,
}

impl How {
    /// The bytes in the delta that are needed, if any are.
    pub(crate) fn extent(&self) -> Option<Extent> {
        match self {
            How::Frame(extent, _) | How::Raw(extent, _) | How::Delta(extent, _) => Some(*extent),
            How::Copy(_) | How::Same(_) | How::Zeros => None,
        }
    }

    pub(crate) fn place(&self) -> Option<&Place> {
        match self {
            How::Copy(place) | How::Delta(_, place) => Some(place),
            _ => None,
        }
    }
}

/// What the base must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BaseCheck {
    Model(ModelDigest),
    /// The BLAKE2b of a `.safetensors` file's data, eight bytes long, as version 1 has it.
    Data([u8; 8]),
}

/// A delta, its index checked and nothing decoded.
#[derive(Debug)]
pub(crate) struct Delta {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) version: u8,
    pub(crate) base: BaseCheck,
    /// What the target's tensors are known by, and a hash of the whole target, where the
    /// version has them.
    pub(crate) target: Option<(ModelDigest, u128)>,
    pub(crate) target_len: u64,
    pub(crate) segments: Vec<Segment>,
}

impl Delta {
    pub(crate) fn read(source: Arc<dyn Source>) -> Result<Delta> {
        super::container::read(source)
    }
}
