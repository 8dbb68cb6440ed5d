//! Partitions of a tensor into chunks: boxes inside its shape that are disjoint and cover it.
//!
//! Where chunks come from an untrusted document, counting their elements proves nothing: two that
//! overlap hide a gap of the same size, and a gap is memory that is never written. So a partition
//! is proved, once, by [`prove`], and its work is bounded whatever the chunks are.

use crate::error::{Error, Result};

/// A box: where it starts and how far it reaches, in each dimension.
pub type Chunk<'a> = (&'a [u64], &'a [u64]);

/// Steps of a proof, each the look at one chunk or one pair of chunks. A grid of a million chunks
/// takes some millions; only chunks that no plane separates are compared in pairs.
const STEPS: u64 = 1 << 26;

/// Proves that chunks are a partition of a shape: each is inside it, no two overlap, and together
/// they have all of its elements. Empty chunks are allowed anywhere inside.
pub fn prove(shape: &[u64], chunks: &[Chunk<'_>]) -> Result<()> {
    let volume = |sizes: &[u64]| match sizes.contains(&0) {
        true => Some(0),
        false => sizes.iter().try_fold(1u64, |volume, size| volume.checked_mul(*size)),
    };
    let total = volume(shape).ok_or_else(|| {
        Error::corrupt("chunk.size", format!("the number of elements of {shape:?} overflows"))
    })?;
    let (mut covered, mut solid) = (0u64, Vec::with_capacity(chunks.len()));
    for (index, (offsets, sizes)) in chunks.iter().enumerate() {
        let inside =
            offsets.len() == shape.len()
                && sizes.len() == shape.len()
                && shape.iter().zip(*offsets).zip(*sizes).all(|((whole, offset), size)| {
                    offset.checked_add(*size).is_some_and(|end| end <= *whole)
                });
        if !inside {
            let message = format!("a chunk of {sizes:?} at {offsets:?} is not inside {shape:?}");
            return Err(Error::corrupt("chunk.outside", message));
        }
        // No larger than the shape, so that neither this nor the sum of disjoint chunks overflows.
        let len = volume(sizes).unwrap_or(u64::MAX);
        covered = covered.saturating_add(len);
        if len > 0 {
            solid.push(index);
        }
    }
    if covered <= total {
        refuse_overlaps(chunks, solid, shape.len())?;
    }
    if covered > total {
        let message = format!("its chunks overlap: they have {covered} elements, it has {total}");
        return Err(Error::corrupt("chunk.overlap", message));
    }
    if covered < total {
        let message = format!("its chunks have {covered} of its {total} elements");
        return Err(Error::corrupt("chunk.missing", message));
    }
    Ok(())
}

/// Separates chunks by planes that none of them crosses, in one dimension after the other, and
/// compares in pairs only what is left. Overlapping chunks are never separated.
fn refuse_overlaps(chunks: &[Chunk<'_>], solid: Vec<usize>, dims: usize) -> Result<()> {
    let span = |index: usize, dim: usize| {
        let (offsets, sizes) = chunks[index];
        (offsets[dim], offsets[dim] + sizes[dim])
    };
    let meet = |one: usize, other: usize| {
        (0..dims).all(|dim| {
            let ((start, end), (other_start, other_end)) = (span(one, dim), span(other, dim));
            start < other_end && other_start < end
        })
    };
    let mut steps = STEPS;
    let mut charge = |cost: u64| {
        steps = steps.checked_sub(cost).ok_or_else(|| {
            Error::unsupported("its chunks are too irregular to prove that they do not overlap")
        })?;
        Ok::<_, Error>(())
    };
    // Groups of chunks, the next dimension to cut in, and how many dimensions did not help.
    let mut groups = vec![(solid, 0usize, 0usize)];
    while let Some((mut group, dim, failed)) = groups.pop() {
        if group.len() < 2 {
            continue;
        }
        if failed == dims {
            charge((group.len() as u64).saturating_mul(group.len() as u64) / 2)?;
            for (at, &one) in group.iter().enumerate() {
                if let Some(&other) = group[at + 1..].iter().find(|other| meet(one, **other)) {
                    let message = format!(
                        "a chunk of {:?} at {:?} and one of {:?} at {:?} overlap",
                        chunks[one].1, chunks[one].0, chunks[other].1, chunks[other].0
                    );
                    return Err(Error::corrupt("chunk.overlap", message));
                }
            }
            continue;
        }
        charge(group.len() as u64)?;
        group.sort_unstable_by_key(|&index| span(index, dim));
        let next = (dim + 1) % dims;
        let (mut parts, mut part, mut reach) = (Vec::new(), Vec::new(), 0);
        for index in group {
            let (start, end) = span(index, dim);
            if !part.is_empty() && start >= reach {
                parts.push(std::mem::take(&mut part));
            }
            part.push(index);
            reach = reach.max(end);
        }
        parts.push(part);
        let failed = if parts.len() == 1 { failed + 1 } else { 0 };
        groups.extend(parts.into_iter().map(|part| (part, next, failed)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ErrorKind;

    type Owned = (Vec<u64>, Vec<u64>);

    fn proved(shape: &[u64], chunks: &[Owned]) -> Result<()> {
        let chunks: Vec<Chunk<'_>> =
            chunks.iter().map(|(offsets, sizes)| (&offsets[..], &sizes[..])).collect();
        prove(shape, &chunks)
    }

    /// The same question, answered element by element.
    fn tiles(shape: &[u64], chunks: &[Owned]) -> bool {
        let total = shape.iter().product::<u64>() as usize;
        let mut seen = vec![0u32; total];
        for (offsets, sizes) in chunks {
            if (0..shape.len()).any(|dim| offsets[dim] + sizes[dim] > shape[dim]) {
                return false;
            }
            for mut number in 0..sizes.iter().product::<u64>() {
                let mut at = vec![0; shape.len()];
                for dim in (0..shape.len()).rev() {
                    at[dim] = offsets[dim] + number % sizes[dim];
                    number /= sizes[dim];
                }
                let index = at.iter().zip(shape).fold(0, |index, (at, size)| index * size + at);
                seen[index as usize] += 1;
            }
        }
        seen.iter().all(|count| *count == 1)
    }

    /// Cuts boxes in two at random places, then perhaps moves or resizes some.
    fn chunk_lists() -> impl Strategy<Value = (Vec<u64>, Vec<Owned>)> {
        let shape = prop::collection::vec(0..7u64, 0..4);
        let cuts = prop::collection::vec((any::<u16>(), any::<u8>(), 0..7u64), 0..12);
        let damage = prop::collection::vec((any::<u16>(), any::<u8>(), any::<bool>(), -2..=2i64), 0..3);
        (shape, cuts, damage).prop_map(|(shape, cuts, damage)| {
            let dims = shape.len();
            let mut chunks = vec![(vec![0; dims], shape.clone())];
            for (which, dim, at) in cuts {
                let which = usize::from(which) % chunks.len();
                if dims == 0 {
                    continue;
                }
                let dim = usize::from(dim) % dims;
                let (mut offsets, mut sizes) = chunks[which].clone();
                let at = at.min(sizes[dim]);
                chunks[which].1[dim] = at;
                offsets[dim] += at;
                sizes[dim] -= at;
                chunks.push((offsets, sizes));
            }
            for (which, dim, moves, by) in damage {
                let which = usize::from(which) % chunks.len();
                if dims == 0 {
                    continue;
                }
                let (offsets, sizes) = &mut chunks[which];
                let value = if moves { offsets } else { sizes };
                let value = &mut value[usize::from(dim) % dims];
                *value = value.saturating_add_signed(by);
            }
            (shape, chunks)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn accepted_exactly_if_every_element_is_covered_once((shape, chunks) in chunk_lists()) {
            prop_assert_eq!(proved(&shape, &chunks).is_ok(), tiles(&shape, &chunks), "{:?} {:?}", shape, chunks);
        }
    }

    #[test]
    fn overlaps_that_hide_a_gap_are_refused() {
        let error = proved(&[1024], &[(vec![0], vec![512]), (vec![1], vec![512])]).unwrap_err();
        assert!(error.to_string().contains("overlap"), "{error}");
        proved(&[1024], &[(vec![0], vec![512]), (vec![512], vec![512])]).unwrap();
        // Five boxes that no plane separates.
        let pinwheel =
            [([0, 0], [2, 1]), ([0, 1], [1, 2]), ([1, 2], [2, 1]), ([2, 0], [1, 2]), ([1, 1], [1, 1])];
        let mut pinwheel: Vec<Owned> = pinwheel.iter().map(|(at, len)| (at.to_vec(), len.to_vec())).collect();
        proved(&[3, 3], &pinwheel).unwrap();
        pinwheel[4].0 = vec![0, 1];
        assert!(proved(&[3, 3], &pinwheel).unwrap_err().to_string().contains("overlap"));
    }

    #[test]
    fn scalars_empty_tensors_and_numbers_that_overflow() {
        let scalar = (vec![], vec![]);
        proved(&[], std::slice::from_ref(&scalar)).unwrap();
        assert!(proved(&[], &[]).is_err());
        assert!(proved(&[], &[scalar.clone(), scalar]).is_err());
        proved(&[0, 5], &[]).unwrap();
        proved(&[0, u64::MAX, u64::MAX], &[(vec![0, 3, 0], vec![0, 7, 1])]).unwrap();
        assert!(proved(&[u64::MAX, 2], &[]).is_err());
        assert!(proved(&[4], &[(vec![u64::MAX], vec![2])]).is_err());
        assert!(proved(&[4], &[(vec![0, 0], vec![4, 1])]).is_err());
    }

    #[test]
    fn work_is_bounded() {
        // Columns of one row start in the same row, which sorting by rows alone would not separate.
        let columns: Vec<Owned> = (0..200_000).map(|column| (vec![0, column], vec![3, 1])).collect();
        proved(&[3, 200_000], &columns).unwrap();
        // All in one place: no plane separates them, and there are too many pairs.
        let same = vec![(vec![0], vec![1]); 200_000];
        assert_eq!(proved(&[200_000], &same).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
