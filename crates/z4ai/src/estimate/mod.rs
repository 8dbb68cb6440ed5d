//! Samples, and prices in fractions of a bit: what choices between encodings are made by.

pub(crate) mod cost;
pub(crate) mod probe;
pub(crate) mod sampling;
