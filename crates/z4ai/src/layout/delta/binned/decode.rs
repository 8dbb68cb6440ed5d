//! Decodes binned residuals.

use super::Binned;
use super::bins::{self, BINS};
use crate::coder;
use crate::error::{Error, Result};
use crate::kernel::magnitude_classes::MAX_CLASSES;
use crate::layout::hashed_output::HashedOutput;
use crate::memory::grow;
use crate::wire::Reader;

/// Predictions of a part. (structural: elements of four bytes)
const PART: usize = HashedOutput::LEN / 4;

/// Buffers that decoding reuses.
#[derive(Default)]
pub(crate) struct BinnedScratch {
    /// Bin indices, class after class.
    indices: Vec<u8>,
    predictions: Vec<u32>,
}

/// Decoded bin indices, and offsets, as far as they are not consumed.
pub(crate) struct Opened<'a> {
    binned: &'a Binned,
    class_of: [u8; 256],
    indices: &'a [u8],
    /// The next index of each class, and the end of the class.
    next: [usize; MAX_CLASSES],
    ends: [usize; MAX_CLASSES],
    offsets: &'a [u8],
    /// Bits of the offsets that are consumed.
    at: usize,
    predictions: &'a mut [u32],
}

impl Binned {
    /// Decodes the streams.
    pub(in crate::layout::delta) fn open<'a>(
        &'a self,
        payload: &'a [u8],
        scratch: &'a mut BinnedScratch,
        coders: &mut coder::DecodeScratch,
    ) -> Result<Opened<'a>> {
        let mut payload = Reader::new(payload);
        let count = self.classes.iter().map(|class| class.count as usize).sum();
        grow(&mut scratch.indices, count);
        scratch.predictions.resize(PART, 0);
        let (mut next, mut ends) = ([0; MAX_CLASSES], [0; MAX_CLASSES]);
        let mut at = 0;
        for (i, class) in self.classes.iter().enumerate() {
            let len = class.count as usize;
            let stored = usize::try_from(class.coder.stored_len(len))
                .map_err(|_| Error::corrupt("a stream beyond its chunk"))?;
            class.coder.decode(payload.take(stored)?, &mut scratch.indices[at..at + len], coders)?;
            (next[i], ends[i]) = (at, at + len);
            at += len;
        }
        Ok(Opened {
            binned: self,
            class_of: self.class_of(),
            indices: &scratch.indices[..count],
            next,
            ends,
            offsets: payload.take(self.offsets as usize)?,
            at: 0,
            predictions: &mut scratch.predictions,
        })
    }
}

impl Opened<'_> {
    /// Restores the next elements to `out` from their `reference`; `None`: `out` has it.
    pub(in crate::layout::delta) fn restore(
        &mut self,
        reference: Option<&[u8]>,
        out: &mut [u8],
    ) -> Result<()> {
        let predictions = &mut self.predictions[..out.len() / 4];
        self.binned.prediction.fill(reference.unwrap_or(out), predictions);
        let mut next = self.next;
        let mut at = self.at;
        for (out, &prediction) in out.as_chunks_mut::<4>().0.iter_mut().zip(&*predictions) {
            let class = usize::from(self.class_of[(prediction >> 23 & 255) as usize]) % MAX_CLASSES;
            // A class that is too short continues in the next one; that is refused below.
            let Some(&index) = self.indices.get(next[class]) else { return Err(other_classes()) };
            next[class] += 1;
            let bin = BINS[usize::from(index)];
            let word = match self.offsets.get(at / 8..).and_then(|rest| rest.first_chunk()) {
                Some(bytes) => u64::from_le_bytes(*bytes),
                None => last_word(self.offsets, at / 8),
            };
            let offset = (word >> (at % 8)) as u32 & ((1 << bin.bits) - 1);
            at += bin.bits as usize;
            *out = bins::element(prediction, bin, offset).to_le_bytes();
        }
        if next.iter().zip(&self.ends).any(|(next, end)| next > end) {
            return Err(other_classes());
        }
        (self.next, self.at) = (next, at);
        Ok(())
    }

    /// Refuses classes and offsets that are not all consumed, or too short.
    pub(in crate::layout::delta) fn finish(self) -> Result<()> {
        if self.next != self.ends {
            return Err(other_classes());
        }
        let padding = (self.offsets.len() * 8).checked_sub(self.at).filter(|&bits| bits < 8);
        match padding.map(|bits| self.offsets.last().is_none_or(|&last| u32::from(last) >> (8 - bits) == 0)) {
            Some(true) => Ok(()),
            _ => Err(Error::corrupt("offsets of residuals that do not fit their bins")),
        }
    }
}

/// The bytes from `at` on, at most eight, followed by zeros.
#[cold]
fn last_word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    let rest = bytes.get(at..).unwrap_or_default();
    let len = rest.len().min(8);
    word[..len].copy_from_slice(&rest[..len]);
    u64::from_le_bytes(word)
}

fn other_classes() -> Error {
    Error::corrupt("classes that the reference does not have")
}
