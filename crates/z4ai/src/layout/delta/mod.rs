//! The delta layout: a chunk as its difference from a reference.
//!
//! Differences are split by significance. The low bytes of all elements are byte planes; the high
//! bytes of the elements that are not zero above those are a list with their positions. Where few
//! elements changed there are no planes, only the list.
//!
//! The size of a change depends on the magnitude of the value, which the reference tells: where
//! that pays, differences are partitioned into magnitude classes, and each class is split
//! separately.
//!
//! Dense changes of single precision may be residuals from a prediction instead, see [`binned`].
//!
//! Payload, for each class: the planes from the lowest on, the positions of the list, its values
//! from the lowest byte on.

pub(crate) mod binned;
mod decode;
pub(crate) mod differences;
pub(crate) mod magnitudes;
mod wire;

pub use decode::ChangedPlaces;
pub(crate) use decode::{DeltaScratch, EachPart, Output};
pub(crate) use wire::{Body, Class, Delta, Difference, Elements, Hashes, List, Places};
