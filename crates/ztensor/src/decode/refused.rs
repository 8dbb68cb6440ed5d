use std::ops::Range;

use crate::catalog::{Decode, Extent};
use crate::error::{Error, Result};
use crate::source::Sources;

/// Something that cannot be read as numbers: the file opens, other tensors can
/// be read, and reading this one says why not.
#[derive(Debug)]
pub(crate) struct Refused {
    encoding: Box<str>,
    why: Box<str>,
    stored_len: u64,
}

impl Refused {
    /// `why` completes the sentence "this cannot be read: …".
    pub(crate) fn new(encoding: &str, why: impl Into<Box<str>>, stored_len: u64) -> Refused {
        Refused { encoding: encoding.into(), why: why.into(), stored_len }
    }
}

impl Decode for Refused {
    fn encoding(&self) -> &str {
        &self.encoding
    }

    fn stored_len(&self) -> u64 {
        self.stored_len
    }

    fn extent(&self) -> Option<Extent> {
        None
    }

    fn decode(&self, _: &Sources, _: Range<u64>, _: &mut [u8], _: usize) -> Result<()> {
        Err(Error::unsupported(format!("this cannot be read: {}", self.why)))
    }
}
