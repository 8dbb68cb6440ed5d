//! The split layout: symbols, packed bits and byte planes as separate streams.
//!
//! Payload: the packed bits if any, the byte planes from the lowest on, the sign changes if signs
//! are separate, one stream of codes per scale class (or one for all, or context-modelled codes),
//! then the patches: all indices, then all symbols. Mostly raw streams come first, so that an
//! encoder can split elements directly into the payload.

pub(crate) mod classes;
mod decode;
pub(crate) mod encode;
mod wire;

pub(crate) use decode::{SplitScratch, decode_stream};
pub(crate) use wire::{PATCH, Split, read_class_numbers, read_classes_of, write_axis, write_class_numbers};
