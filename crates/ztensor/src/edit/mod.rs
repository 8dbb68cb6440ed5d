//! Edits of `.zt` files that cannot lose them: append, replace, remove, merge,
//! compact, repair.
//!
//! After a kill or a power cut at any instant a file holds the old state or the
//! new one. Two means are enough for that:
//!
//! - **A new file, then a rename** ([`remove_tensors`], [`merge`], [`compact`]):
//!   stored bytes are copied as they are to a temporary sibling, which takes the
//!   name when the disk has all of it.
//! - **Behind the footer** ([`Writer::append`](crate::Writer::append),
//!   [`replace_tensor`]): new bytes, a new manifest and a new footer are written
//!   after the old footer, which stays valid. Before that a journal beside the
//!   file says how long the good file is; removing it makes the edit final. A
//!   reader that meets a journal opens the length that it names, and the next
//!   editor, or [`repair`], cuts the file there.
//!
//! No edit changes bytes that a reader may be looking at: [`replace_tensor`] moves
//! new data to the old place only while no reader of this library has the file open.
//! One file has one editor at a time; a second is refused at once.
//!
//! `docs/edits.md` states the guarantees and the journal's format.
#![forbid(unsafe_code)]

mod append;
mod copy;
pub(crate) mod journal;
mod lock;
mod repair;
mod replace;
mod session;
#[cfg(test)]
pub(crate) mod tests;

pub use copy::{Clash, Compacted, CopyOptions, compact, compact_to, merge, merge_with, remove_tensors};
pub use repair::{Repaired, repair};
pub use replace::{Placement, replace_tensor, replace_tensor_as};
