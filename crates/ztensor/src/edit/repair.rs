//! Undoing an edit that was interrupted.

use std::path::Path;

use crate::edit::session::Session;
use crate::error::Result;

/// What [`repair`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repaired {
    /// The file was whole; a journal that was left over is gone.
    Whole,
    /// An interrupted edit was undone.
    Restored {
        /// Bytes of the unfinished edit that were cut off.
        dropped: u64,
    },
}

/// Undoes an edit that was interrupted: the file ends where its journal says.
///
/// There is no hurry to call it: readers look at the journal themselves, and the
/// next edit repairs first. A file that is broken and has no journal is refused,
/// and left as it is.
pub fn repair(path: impl AsRef<Path>) -> Result<Repaired> {
    let (session, _) = Session::open(path.as_ref())?;
    let dropped = session.dropped;
    session.commit()?;
    Ok(if dropped == 0 { Repaired::Whole } else { Repaired::Restored { dropped } })
}
