//! The programs, end to end.

mod docs;
mod download;
mod edits;
mod inputs;
mod inspect;
mod manners;
mod support;
mod z4ai;
