use std::ops::Range;

use crate::catalog::{Decode, Extent};
use crate::error::{Error, Result, quoted};
use crate::source::Sources;

/// An encoding that this version does not know: the file opens, other tensors
/// can be read, edits copy it as it is, and reading it says its name.
#[derive(Debug)]
pub(crate) struct UnknownEncoding {
    name: Box<str>,
    extent: Extent,
}

impl UnknownEncoding {
    pub(crate) fn new(name: &str, extent: Extent) -> UnknownEncoding {
        UnknownEncoding { name: name.into(), extent }
    }
}

impl Decode for UnknownEncoding {
    fn encoding(&self) -> &str {
        &self.name
    }

    fn stored_len(&self) -> u64 {
        self.extent.len
    }

    fn extent(&self) -> Option<Extent> {
        Some(self.extent)
    }

    fn content_extent(&self) -> Option<Extent> {
        Some(self.extent)
    }

    fn decode(&self, _: &Sources, _: Range<u64>, _: &mut [u8], _: usize) -> Result<()> {
        Err(Error::unsupported(format!(
            "it is stored with the encoding {}, which this version does not know",
            quoted(&self.name)
        )))
    }
}
