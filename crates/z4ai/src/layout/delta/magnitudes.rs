//! Chooses magnitude classes: thresholds on the reference that separate differences of different
//! size.

use crate::element::Kind;
use crate::estimate::cost::{self, BIT};
use crate::kernel::magnitude_classes::{self, MAX_CLASSES};

/// Exponents below the largest that are distinguished. (unmeasured)
const MAX_EXPONENTS: usize = 40;
/// Estimated bytes that a class adds to a chunk: descriptions and padding of its streams.
/// (flat)
const CLASS_BYTES: u64 = 120;
/// Classes must save one part in this many, as they take time to partition and merge. (case:
/// `delta.py`)
const MIN_SAVING: u64 = 16;
/// Differences are distinguished by their bit length. (structural: 0 to 64)
const BIT_LENGTHS: usize = 65;

/// A histogram of bit lengths.
type Lengths = [u32; BIT_LENGTHS];

/// Neighbouring powers of two with one code.
struct Class {
    /// The lowest magnitude.
    start: u16,
    lengths: Lengths,
    cost: u64,
}

/// The least that a code for bit lengths of elements of `size` bytes needs.
fn cost_of(size: usize, lengths: &Lengths) -> u64 {
    cost::entropy(&lengths[..=8 * size])
}

/// The thresholds between classes, or none if one class is as good, by a sample of `differences`
/// from `reference` that stands for `times` as many.
pub(crate) fn thresholds(kind: Kind, reference: &[u8], differences: &[u8], times: u64) -> Vec<u16> {
    let size = kind.size();
    // Bits of a magnitude below the exponent.
    let shift = 15 - kind.exponent_bits();
    let power_of = |element: &[u8]| magnitude_classes::magnitude(element) >> shift;
    let largest = reference.chunks_exact(size).map(power_of).max().unwrap_or(0);
    let smallest = largest.saturating_sub(MAX_EXPONENTS as u16 - 1);
    let mut by_power = [[0u32; BIT_LENGTHS]; MAX_EXPONENTS];
    let mut within = 0;
    for (before, difference) in reference.chunks_exact(size).zip(differences.chunks_exact(size)) {
        let mut word = [0; 8];
        word[..size].copy_from_slice(difference);
        let length = u64::BITS - u64::from_le_bytes(word).leading_zeros();
        let power = power_of(before).saturating_sub(smallest);
        by_power[usize::from(power)][length as usize] += 1;
        // The highest bit is implied by the length; those below are noise.
        within += u64::from(length.saturating_sub(1)) * BIT;
    }
    let mut all = [0; BIT_LENGTHS];
    let mut classes = Vec::with_capacity(MAX_EXPONENTS);
    for (power, lengths) in by_power.into_iter().enumerate() {
        if lengths[..=8 * size].iter().any(|&count| count > 0) {
            (0..=8 * size).for_each(|i| all[i] += lengths[i]);
            let start = (smallest + power as u16) << shift;
            classes.push(Class { start, lengths, cost: cost_of(size, &lengths) });
        }
    }
    let one = cost_of(size, &all);
    let overhead = CLASS_BYTES * 8 * BIT / times.max(1);
    merge(size, &mut classes, overhead);
    let several: u64 = classes.iter().map(|class| class.cost + overhead).sum();
    if several + within + (one + within) / MIN_SAVING > one + within {
        return Vec::new();
    }
    classes[1..].iter().map(|class| class.start).collect()
}

/// Merges adjacent classes until there are few enough and each is worth its overhead.
fn merge(size: usize, classes: &mut Vec<Class>, overhead: u64) {
    let merged =
        |pair: &[Class]| -> Lengths { std::array::from_fn(|i| pair[0].lengths[i] + pair[1].lengths[i]) };
    let rise_of = |pair: &[Class]| cost_of(size, &merged(pair)).saturating_sub(pair[0].cost + pair[1].cost);
    let mut rises: Vec<u64> = classes.windows(2).map(rise_of).collect();
    while let Some((at, &rise)) = rises.iter().enumerate().min_by_key(|&(_, rise)| rise) {
        if rise > overhead && classes.len() <= MAX_CLASSES {
            return;
        }
        let lengths = merged(&classes[at..at + 2]);
        classes[at] = Class { start: classes[at].start, lengths, cost: cost_of(size, &lengths) };
        classes.remove(at + 1);
        rises.remove(at);
        for pair in [at.checked_sub(1), Some(at)].into_iter().flatten() {
            if pair < rises.len() {
                rises[pair] = rise_of(&classes[pair..pair + 2]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_found_where_magnitudes_tell_something() {
        let values: Vec<f32> = (0..8192).map(|i| 2f32.powi(i % 16)).collect();
        let reference: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        // Large values stay, small ones move.
        let told: Vec<u8> = (0..8192u32)
            .flat_map(|i| (if i % 16 < 8 { i / 16 * 37 % 64 } else { 0 }).to_le_bytes())
            .collect();
        let start = (2f32.powi(8).to_bits() >> 16) as u16;
        assert_eq!(thresholds(Kind::F32, &reference, &told, 10), [start]);
        let untold: Vec<u8> = (0..8192u32).flat_map(|i| (i / 16 * 37 % 64).to_le_bytes()).collect();
        assert!(thresholds(Kind::F32, &reference, &untold, 10).is_empty());
    }

    #[test]
    fn there_are_no_more_classes_than_allowed() {
        let reference: Vec<u8> = (0..30_000u32).flat_map(|i| ((i % 30 + 100) << 23).to_le_bytes()).collect();
        let differences: Vec<u8> = (0..30_000u32).flat_map(|i| (1u32 << (i % 30)).to_le_bytes()).collect();
        let found = thresholds(Kind::F32, &reference, &differences, 10);
        assert_eq!(found.len(), MAX_CLASSES - 1);
        assert!(found.is_sorted_by(|a, b| a < b));
    }
}
