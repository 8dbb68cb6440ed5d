//! The payload of one tensor in a delta: how it is made, and how it changes the old bytes.

mod encode;
mod restore;
#[cfg(test)]
mod tests;

use crate::catalog::Shape;
use crate::dtype::DType;

pub(crate) use encode::{MAX_OVERWRITE, ZstdEncoder, delta_options, element_size, encode, encode_whole};
pub(crate) use restore::{Overwrite, Step, restore, xor_in_place, xor_len, xor_payloads};

/// A tensor's type and shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TensorType {
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
}
