//! Chooses magnitude classes: thresholds on the reference that separate differences of different
//! size.

use crate::element::Kind;
use crate::estimate::cost::{self, BIT};
use crate::kernel::histogram;
use crate::kernel::magnitude_classes::{self, MAX_CLASSES};

/// Exponents below the largest that are distinguished. (limit: rows of a table of counts;
/// smaller references share the last)
const MAX_EXPONENTS: usize = 40;
/// Estimated bytes that a class adds to a chunk: descriptions and padding of its streams.
/// (flat)
const CLASS_BYTES: u64 = 120;
/// Classes must save one part in this many, as they take time to partition and merge. (case:
/// `delta.py`)
const MIN_SAVING: u64 = 16;
/// Classes, at most, where at most one difference in `SPARSE_BELOW` is not zero: each takes a mask of every vector to
/// make and to restore, and those beyond save 1 to 2 % of little. (case: `sync.py`, training steps)
const MAX_SPARSE_CLASSES: usize = 4;
const SPARSE_BELOW: u32 = 32;
/// Differences are distinguished by their bit length. (structural: 0 to 64)
const BIT_LENGTHS: usize = 65;

/// Neighbouring powers of two with one code for `N` symbols.
struct Class<const N: usize> {
    /// The lowest magnitude.
    start: u16,
    counts: [u32; N],
    cost: u64,
}

impl<const N: usize> Class<N> {
    fn new(start: u16, counts: [u32; N]) -> Self {
        Self { start, counts, cost: cost::entropy(&counts) }
    }
}

/// The thresholds between classes, or none if one class is as good, by a sample of `differences`
/// from `reference` that stands for `times` as many.
pub(crate) fn thresholds(kind: Kind, reference: &[u8], differences: &[u8], times: u64) -> Vec<u16> {
    match kind.size() {
        2 => thresholds_of::<2>(kind, reference, differences, times),
        4 => thresholds_of::<4>(kind, reference, differences, times),
        _ => thresholds_of::<8>(kind, reference, differences, times),
    }
}

/// As [`thresholds`], of elements of `SIZE` bytes.
fn thresholds_of<const SIZE: usize>(
    kind: Kind,
    reference: &[u8],
    differences: &[u8],
    times: u64,
) -> Vec<u16> {
    let (reference, differences) = (reference.as_chunks::<SIZE>().0, differences.as_chunks::<SIZE>().0);
    // Bits of a magnitude below the exponent.
    let shift = 15 - kind.exponent_bits();
    let power_of = |element: &[u8; SIZE]| magnitude_classes::magnitude(element) >> shift;
    let powers: Vec<u16> = reference.iter().map(power_of).collect();
    let largest = powers.iter().copied().max().unwrap_or(0);
    let smallest = largest.saturating_sub(MAX_EXPONENTS as u16 - 1);
    let powers: Vec<u8> = powers.iter().map(|power| power.saturating_sub(smallest) as u8).collect();
    let totals = histogram::exact(&powers);
    let mut by_power = [[0u32; BIT_LENGTHS]; MAX_EXPONENTS];
    let mut within = 0;
    // Most differences of a sparse change are zero: these are only counted.
    by_power.iter_mut().zip(totals).for_each(|(lengths, total)| lengths[0] = total);
    for (&power, difference) in powers.iter().zip(differences) {
        let mut word = [0; 8];
        word[..SIZE].copy_from_slice(difference);
        let word = u64::from_le_bytes(word);
        if word == 0 {
            continue;
        }
        let length = u64::BITS - word.leading_zeros();
        let lengths = &mut by_power[usize::from(power)];
        lengths[0] -= 1;
        lengths[length as usize] += 1;
        // The highest bit is implied by the length; those below are noise.
        within += u64::from(length - 1) * BIT;
    }
    let mut all = [0; BIT_LENGTHS];
    let mut classes = Vec::with_capacity(MAX_EXPONENTS);
    for (power, lengths) in by_power.into_iter().enumerate() {
        if lengths[..=8 * SIZE].iter().any(|&count| count > 0) {
            (0..=8 * SIZE).for_each(|i| all[i] += lengths[i]);
            classes.push(Class::new((smallest + power as u16) << shift, lengths));
        }
    }
    let one = cost::entropy(&all);
    let overhead = CLASS_BYTES * 8 * BIT / times.max(1);
    let sparse = all[1..].iter().sum::<u32>() <= reference.len() as u32 / SPARSE_BELOW;
    merge(&mut classes, overhead, if sparse { MAX_SPARSE_CLASSES } else { MAX_CLASSES });
    let several: u64 = classes.iter().map(|class| class.cost + overhead).sum();
    if several + within + (one + within) / MIN_SAVING > one + within {
        return Vec::new();
    }
    classes[1..].iter().map(|class| class.start).collect()
}

/// The thresholds between classes of exponents whose symbols have these counts, where each costs
/// `overhead`, in units of [`BIT`].
pub(crate) fn exponent_thresholds(by_exponent: &[[u32; 256]], overhead: u64) -> Vec<u8> {
    let used = by_exponent.iter().enumerate().filter(|(_, counts)| counts.iter().any(|&count| count > 0));
    let mut classes: Vec<_> = used.map(|(exponent, counts)| Class::new(exponent as u16, *counts)).collect();
    // Those far below the largest, of few elements, are not told apart.
    if let Some(rare) = classes.len().checked_sub(MAX_EXPONENTS) {
        let below = classes.drain(..rare).collect::<Vec<_>>();
        let first = &mut classes[0];
        let counts = below.iter().fold(first.counts, |sum, class| added(&sum, &class.counts));
        *first = Class::new(first.start, counts);
    }
    merge(&mut classes, overhead, MAX_CLASSES);
    classes.iter().skip(1).map(|class| class.start as u8).collect()
}

fn added<const N: usize>(a: &[u32; N], b: &[u32; N]) -> [u32; N] {
    std::array::from_fn(|i| a[i] + b[i])
}

/// Merges adjacent classes until there are at most `most` and each is worth its overhead.
fn merge<const N: usize>(classes: &mut Vec<Class<N>>, overhead: u64, most: usize) {
    let rise_of = |pair: &[Class<N>]| {
        let both = cost::entropy(&added(&pair[0].counts, &pair[1].counts));
        both.saturating_sub(pair[0].cost + pair[1].cost)
    };
    let mut rises: Vec<u64> = classes.windows(2).map(rise_of).collect();
    while let Some((at, &rise)) = rises.iter().enumerate().min_by_key(|&(_, rise)| rise) {
        if rise > overhead && classes.len() <= most {
            return;
        }
        classes[at] = Class::new(classes[at].start, added(&classes[at].counts, &classes[at + 1].counts));
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
