//! What every format's tests share: the conformance suite that each reader must
//! pass, and the comparison of sample files with what their makers say is in them.
#![allow(dead_code)] // each test program uses a part of it

pub mod allocations;
pub mod conformance;
pub mod fixtures;
pub mod zip;
