//! Choosing classes of differences by the magnitude of what they are differences from.

use super::cost::{self, BIT};
use crate::element::Kind;
use crate::kernel::magnitude::{self, MAX_CLASSES};

/// Powers of two below the largest magnitude that are told apart.
const POWERS: usize = 40;
/// What a class adds to a chunk, in bytes: descriptions of its streams and their ends.
const CLASS: u64 = 120;
/// Classes take time, so they have to save so much: one part in this many.
const WORTH: u64 = 16;
/// Differences told apart: by the number of bits they take.
const LENGTHS: usize = 65;

/// How many differences of each length there are.
type Lengths = [u32; LENGTHS];

/// Neighbouring powers of two with one code.
struct Class {
    /// The lowest magnitude.
    start: u16,
    lengths: Lengths,
    cost: u64,
}

/// The magnitudes that classes begin with but for the first, or none if one class is as good: from a
/// sample of `differences` from `reference`, which stands for `times` as many.
pub(super) fn thresholds(kind: Kind, reference: &[u8], differences: &[u8], times: u64) -> Vec<u16> {
    let size = kind.size();
    // Bits of a magnitude below the exponent.
    let shift = 15 - kind.exponent_bits();
    let power_of = |element: &[u8]| magnitude::of(element) >> shift;
    let largest = reference.chunks_exact(size).map(power_of).max().unwrap_or(0);
    let smallest = largest.saturating_sub(POWERS as u16 - 1);
    let mut by_power = [[0u32; LENGTHS]; POWERS];
    let mut within = 0;
    for (before, difference) in reference.chunks_exact(size).zip(differences.chunks_exact(size)) {
        let mut word = [0; 8];
        word[..size].copy_from_slice(difference);
        let length = u64::BITS - u64::from_le_bytes(word).leading_zeros();
        let power = power_of(before).saturating_sub(smallest);
        by_power[usize::from(power)][length as usize] += 1;
        // The highest bit is known, the ones below it are noise.
        within += u64::from(length.saturating_sub(1)) * BIT;
    }
    let mut all = [0; LENGTHS];
    let mut classes = Vec::with_capacity(POWERS);
    for (power, lengths) in by_power.into_iter().enumerate() {
        if lengths.iter().any(|&count| count > 0) {
            (0..LENGTHS).for_each(|i| all[i] += lengths[i]);
            let start = (smallest + power as u16) << shift;
            classes.push(Class { start, lengths, cost: cost::entropy(&lengths) });
        }
    }
    let one = cost::entropy(&all);
    let overhead = CLASS * 8 * BIT / times.max(1);
    merge(&mut classes, overhead);
    let several: u64 = classes.iter().map(|class| class.cost + overhead).sum();
    if several + within + (one + within) / WORTH > one + within {
        return Vec::new();
    }
    classes[1..].iter().map(|class| class.start).collect()
}

/// Merges neighbours until there are few enough and all are worth what they add.
fn merge(classes: &mut Vec<Class>, overhead: u64) {
    let merged =
        |pair: &[Class]| -> Lengths { std::array::from_fn(|i| pair[0].lengths[i] + pair[1].lengths[i]) };
    let rise_of = |pair: &[Class]| cost::entropy(&merged(pair)).saturating_sub(pair[0].cost + pair[1].cost);
    let mut rises: Vec<u64> = classes.windows(2).map(rise_of).collect();
    while let Some((at, &rise)) = rises.iter().enumerate().min_by_key(|&(_, rise)| rise) {
        if rise > overhead && classes.len() <= MAX_CLASSES {
            return;
        }
        let lengths = merged(&classes[at..at + 2]);
        classes[at] = Class { start: classes[at].start, lengths, cost: cost::entropy(&lengths) };
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
        assert_eq!(thresholds(Kind::F32, &reference, &untold, 10), []);
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
