use std::ops::Range;

use crate::catalog::{Decode, Extent, Storage};
use crate::error::Result;
use crate::source::Sources;

/// Bytes that equal another component's and are stored once for both. The two are not tied:
/// they must not be treated as tied, or writing to one view would change the other.
#[derive(Debug)]
pub(crate) struct Shared(pub(crate) Storage);

impl Decode for Shared {
    fn encoding(&self) -> &str {
        match &self.0 {
            Storage::Encoded(decoder) => decoder.encoding(),
            _ => "raw",
        }
    }

    fn stored_len(&self) -> u64 {
        self.0.stored_len()
    }

    fn extent(&self) -> Option<Extent> {
        None
    }

    fn extents(&self, sources: &Sources) -> Result<Vec<Extent>> {
        self.0.extents(sources)
    }

    fn work(&self, range: &Range<u64>) -> u64 {
        self.0.work(range)
    }

    fn decode(&self, sources: &Sources, range: Range<u64>, out: &mut [u8], threads: usize) -> Result<()> {
        self.0.read(sources, range, out, threads)
    }

    fn decode_in_order(
        &self,
        sources: &Sources,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Option<Result<()>> {
        match &self.0 {
            Storage::Encoded(decoder) => decoder.decode_in_order(sources, each),
            _ => None,
        }
    }

    fn decoding_verifies(&self) -> bool {
        match &self.0 {
            Storage::Encoded(decoder) => decoder.decoding_verifies(),
            _ => true,
        }
    }

    fn verify(&self, sources: &Sources, threads: usize) -> Option<Result<()>> {
        match &self.0 {
            Storage::Encoded(decoder) => decoder.verify(sources, threads),
            _ => None,
        }
    }
}
