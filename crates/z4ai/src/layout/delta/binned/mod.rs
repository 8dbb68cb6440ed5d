//! Binned residuals: single-precision elements as residuals from a prediction, each a bin and an offset in it.
//!
//! The state of an optimizer decays: a moment is the one before times a factor, plus something new. The
//! prediction is the reference times that factor, and the residual is the difference of the magnitudes'
//! bits. Where residuals have 10 to 25 bits, their bit length varies from element to element, and byte
//! planes mix bits that tell something with noise. A bin is an interval of residuals, narrow where
//! their density changes: its index is entropy-coded, in classes of the prediction's exponent, and the
//! position within the bin is stored in as many bits as the bin is wide.
//!
//! Payload: the bin indices of each class, then the offsets of all elements.

pub(super) mod bins;
mod decode;
pub(crate) mod encode;
pub(crate) mod prediction;

pub(super) use decode::BinnedScratch;

use crate::coder::Coder;
use crate::element::Kind;
use crate::error::{Error, Result};
use crate::kernel::magnitude_classes::MAX_CLASSES;
use crate::layout::streams::Streams;
use crate::wire::{Put, Reader};
use prediction::Prediction;

/// The description of a chunk of binned residuals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Binned {
    prediction: Prediction,
    /// The exponents of predictions that classes begin with, but for the first.
    thresholds: Vec<u8>,
    /// One, and another for each threshold.
    classes: Vec<BinClass>,
    /// Bytes of all offsets.
    offsets: u32,
}

/// The bin indices of one class.
#[derive(Debug, Clone, PartialEq, Eq)]
struct BinClass {
    count: u32,
    coder: Coder,
}

impl Binned {
    pub(super) fn read(reader: &mut Reader<'_>, kind: Kind, len: usize) -> Result<Self> {
        if kind != Kind::F32 || !len.is_multiple_of(kind.size()) {
            return Err(Error::corrupt("binned residuals of elements that are not fp32"));
        }
        let prediction = Prediction::new(f32::from_bits(reader.u32()?))
            .ok_or_else(|| Error::corrupt("a factor of a prediction out of its range"))?;
        let count = usize::from(reader.u8()?);
        if !(1..=MAX_CLASSES).contains(&count) {
            return Err(Error::corrupt(format_args!("residuals in {count} classes")));
        }
        let thresholds = (1..count).map(|_| reader.u8()).collect::<Result<Vec<_>>>()?;
        if !thresholds.is_sorted_by(|a, b| a < b) || thresholds.first() == Some(&0) {
            return Err(Error::corrupt("classes that do not follow one another"));
        }
        let elements = len / kind.size();
        let mut left = elements as u64;
        let mut classes = Vec::with_capacity(count);
        for _ in 0..count {
            let count = reader.u32()?;
            left = left
                .checked_sub(u64::from(count))
                .ok_or_else(|| Error::corrupt("classes that are not all of their chunk"))?;
            classes.push(BinClass { count, coder: Coder::read(reader)? });
        }
        let offsets = reader.u32()?;
        if left != 0 || u64::from(offsets) > bins::max_offset_bytes(elements) {
            return Err(Error::corrupt("classes that are not all of their chunk"));
        }
        Ok(Self { prediction, thresholds, classes, offsets })
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.put_u32(self.prediction.factor().to_bits());
        out.put_u8(self.classes.len() as u8);
        self.thresholds.iter().for_each(|&threshold| out.put_u8(threshold));
        for class in &self.classes {
            out.put_u32(class.count);
            class.coder.write(out);
        }
        out.put_u32(self.offsets);
    }

    pub(super) fn payload_len(&self) -> u64 {
        let classes = self.classes.iter().map(|class| class.coder.stored_len(class.count as usize));
        classes.fold(u64::from(self.offsets), u64::saturating_add)
    }

    pub(super) fn streams(&self, streams: &mut Streams) {
        for class in &self.classes {
            streams.add("residual bins", &class.coder, class.count as usize);
        }
        streams.add_stored("residual offsets", "raw", self.offsets as usize, u64::from(self.offsets));
    }

    /// The class of a prediction by its exponent.
    fn class_of(&self) -> [u8; 256] {
        classes_by_exponent(&self.thresholds)
    }
}

/// The number of thresholds that are not above each exponent.
fn classes_by_exponent(thresholds: &[u8]) -> [u8; 256] {
    std::array::from_fn(|exponent| {
        thresholds.iter().filter(|&&threshold| usize::from(threshold) <= exponent).count() as u8
    })
}
