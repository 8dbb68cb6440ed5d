//! Encodes binned residuals: the factor, the bins, and their classes.

use super::bins::BIN_INDEX;
use super::prediction::Prediction;
use super::{BinClass, Binned, classes_by_exponent};
use crate::coder::{EncodeScratch, choose};
use crate::estimate::cost::{self, BIT};
use crate::kernel::magnitude_classes::MAX_CLASSES;
use crate::layout::delta::magnitudes;
use crate::options::Effort;

/// Factors that optimizers have: one less the learning rates of moments. (structural: the defaults of Adam,
/// LAMB, Lion and their usual settings)
const USUAL_FACTORS: [f32; 8] = [0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9995, 0.9999];
/// Estimated bytes that a class adds to a chunk: descriptions and padding of its streams. (flat)
const CLASS_BYTES: u64 = 120;

/// Buffers of an encoder.
#[derive(Default)]
pub(crate) struct BinnedEncoder {
    predictions: Vec<u32>,
    indices: Vec<u8>,
    sorted: Vec<u8>,
    offsets: Vec<u8>,
    ratios: Vec<f32>,
    coder: EncodeScratch,
}

/// The prediction for which a sample of `current` and `reference` takes the least, without classes.
pub(crate) fn predict(current: &[u8], reference: &[u8], scratch: &mut BinnedEncoder) -> Prediction {
    let mut candidates = vec![Prediction::UNCHANGED];
    candidates.extend(USUAL_FACTORS.into_iter().filter_map(Prediction::new));
    let estimated = estimated(current, reference, &mut scratch.ratios);
    candidates.extend(estimated.into_iter().filter_map(Prediction::new));
    let best = candidates.into_iter().min_by_key(|&prediction| cost_of(current, reference, prediction));
    best.unwrap_or(Prediction::UNCHANGED)
}

/// What a sample that stands for `times` as many elements takes in classes, in units of [`BIT`].
pub(crate) fn cost_in_classes(current: &[u8], reference: &[u8], prediction: Prediction, times: u64) -> u64 {
    let mut by_exponent = vec![[0u32; 256]; 256];
    let mut offsets = 0;
    for (now, before) in words(current).zip(words(reference)) {
        let expected = prediction.of(before);
        let (index, _, bits) = BIN_INDEX.find(now, expected);
        by_exponent[(expected >> 23 & 255) as usize][usize::from(index)] += 1;
        offsets += u64::from(bits);
    }
    let overhead = CLASS_BYTES * 8 * BIT / times.max(1);
    let thresholds = magnitudes::exponent_thresholds(&by_exponent, overhead);
    let counts = counts_of_classes(&thresholds, &by_exponent);
    counts.iter().map(|counts| cost::entropy(counts) + overhead).sum::<u64>() + offsets * BIT
}

/// The counts of bins in each class.
fn counts_of_classes(thresholds: &[u8], by_exponent: &[[u32; 256]]) -> Vec<[u32; 256]> {
    let mut counts = vec![[0u32; 256]; thresholds.len() + 1];
    for (counted, class) in by_exponent.iter().zip(classes_by_exponent(thresholds)) {
        counts[usize::from(class)].iter_mut().zip(counted).for_each(|(sum, count)| *sum += count);
    }
    counts
}

/// What elements take, in units of [`BIT`].
fn cost_of(current: &[u8], reference: &[u8], prediction: Prediction) -> u64 {
    let mut counts = [0; 256];
    let mut offsets = 0;
    for (now, before) in words(current).zip(words(reference)) {
        let (index, _, bits) = BIN_INDEX.find(now, prediction.of(before));
        counts[usize::from(index)] += 1;
        offsets += u64::from(bits);
    }
    cost::entropy(&counts) + offsets * BIT
}

/// Factors that the data suggest: the median of the ratios of elements to their references, for state to
/// which something of either sign is added, and the least, for state to which something positive is.
fn estimated(current: &[u8], reference: &[u8], ratios: &mut Vec<f32>) -> Vec<f32> {
    ratios.clear();
    let both = words(current)
        .zip(words(reference))
        .map(|(now, before)| (f32::from_bits(now), f32::from_bits(before)));
    ratios.extend(
        both.filter(|(now, before)| now.is_normal() && before.is_normal()).map(|(now, before)| now / before),
    );
    ratios.sort_unstable_by(f32::total_cmp);
    [ratios.get(ratios.len() / 2), ratios.first()].into_iter().flatten().copied().collect()
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word))
}

impl BinnedEncoder {
    /// Appends the residuals of `current`.
    pub(crate) fn encode(
        &mut self,
        current: &[u8],
        reference: &[u8],
        prediction: Prediction,
        effort: Effort,
        payload: &mut Vec<u8>,
    ) -> Binned {
        let count = current.len() / 4;
        self.predictions.resize(count, 0);
        prediction.fill(reference, &mut self.predictions);
        self.indices.resize(count, 0);
        self.offsets.clear();
        // Every offset is written as eight bytes, over the end of the one before.
        self.offsets.resize(count * 4 + 8, 0);
        let mut by_exponent = vec![[0u32; 256]; 256];
        let (mut pending, mut bits, mut at) = (0u64, 0, 0);
        let both = words(current).zip(&self.predictions);
        for ((now, &expected), to) in both.zip(&mut self.indices) {
            let (index, offset, width) = BIN_INDEX.find(now, expected);
            *to = index;
            by_exponent[(expected >> 23 & 255) as usize][usize::from(index)] += 1;
            pending |= u64::from(offset) << bits;
            bits += width;
            // At most seven bits stay, and 38 are pending with the next offset.
            if let Some(out) = self.offsets.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
                *out = pending.to_le_bytes();
            }
            at += bits as usize / 8;
            pending >>= bits / 8 * 8;
            bits %= 8;
        }
        self.offsets.truncate(at + usize::from(bits > 0));
        let overhead = CLASS_BYTES * 8 * BIT;
        let thresholds = magnitudes::exponent_thresholds(&by_exponent, overhead);
        let classes = self.encode_classes(&thresholds, &by_exponent, effort, payload);
        payload.extend_from_slice(&self.offsets);
        Binned { prediction, thresholds, classes, offsets: self.offsets.len() as u32 }
    }

    /// Appends the bin indices of each class.
    fn encode_classes(
        &mut self,
        thresholds: &[u8],
        by_exponent: &[[u32; 256]],
        effort: Effort,
        payload: &mut Vec<u8>,
    ) -> Vec<BinClass> {
        let class_of = classes_by_exponent(thresholds);
        let counts = counts_of_classes(thresholds, by_exponent);
        let lens: Vec<usize> = counts.iter().map(|counts| counts.iter().sum::<u32>() as usize).collect();
        let mut sorted = &self.indices;
        if !thresholds.is_empty() {
            let mut next = [0; MAX_CLASSES];
            for class in 1..lens.len() {
                next[class] = next[class - 1] + lens[class - 1];
            }
            self.sorted.resize(self.indices.len(), 0);
            for (&index, prediction) in self.indices.iter().zip(&self.predictions) {
                let next = &mut next[usize::from(class_of[(prediction >> 23 & 255) as usize])];
                self.sorted[*next] = index;
                *next += 1;
            }
            sorted = &self.sorted;
        }
        let mut rest = sorted.as_slice();
        let classes = counts.iter().zip(lens).map(|(counts, len)| {
            let indices;
            (indices, rest) = rest.split_at(len);
            let coder = choose::encode_codes(indices, counts, effort, payload, &mut self.coder);
            BinClass { count: len as u32, coder }
        });
        classes.collect()
    }
}
