//! The programs, end to end.

mod docs;
mod download;
mod edits;
mod hostile;
mod identity;
mod inputs;
mod inspect;
mod limits;
mod manners;
mod report;
mod scan;
mod signatures;
mod support;
mod z4ai;
