//! The `ztensor` program, end to end.

mod docs;
mod download;
mod edits;
mod inputs;
mod inspect;
mod manners;
mod support;
