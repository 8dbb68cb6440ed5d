//! Which parts of a file hold the same bytes.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;

use twox_hash::XxHash3_128;

use crate::base::parallel;
use crate::catalog::Extent;
use crate::error::Result;
use crate::source::{Sources, zeroed};

/// Parts are first compared by this many bytes at each of a few places.
const SAMPLED_BYTES: u64 = 512;
/// Parts shorter than this are not worth a reference.
pub(super) const WORTHWHILE: u64 = 32;
/// Parts are hashed and compared in pieces of this size.
const COMPARED_PIECE: u64 = 4 << 20;

/// For each part the first one before it with the same bytes, if there is one.
///
/// Samples rule most parts out, a hash over all bytes nearly all others, and what is left is
/// compared byte for byte: a forged hash collision cannot merge two different tensors.
pub(crate) fn find(sources: &Sources, parts: &[Extent], threads: usize) -> Result<Vec<Option<usize>>> {
    let long: Vec<usize> = (0..parts.len()).filter(|&index| parts[index].len >= WORTHWHILE).collect();
    let alike = groups(&long, threads, |index| Ok(parts[index].len))?;
    let alike = regroup(alike, threads, |index| samples(sources, parts[index]))?;
    let alike = regroup(alike, threads, |index| whole(sources, parts[index]))?;
    let mut first = vec![None; parts.len()];
    for group in alike {
        for &other in &group[1..] {
            if same(sources, parts[group[0]], parts[other])? {
                first[other] = Some(group[0]);
            }
        }
    }
    Ok(first)
}

/// The members of each group, grouped again.
fn regroup<K: Hash + Eq + Send>(
    alike: Vec<Vec<usize>>,
    threads: usize,
    key: impl Fn(usize) -> Result<K> + Sync,
) -> Result<Vec<Vec<usize>>> {
    groups(&alike.concat(), threads, key)
}

/// Indices of equal keys together, in their order; those that are alone are left out.
fn groups<K: Hash + Eq + Send>(
    indices: &[usize],
    threads: usize,
    key: impl Fn(usize) -> Result<K> + Sync,
) -> Result<Vec<Vec<usize>>> {
    let keyed = Mutex::new(HashMap::<K, Vec<usize>>::new());
    parallel::for_each(threads, indices.to_vec(), |index| {
        let key = key(index)?;
        keyed.lock().unwrap_or_else(|error| error.into_inner()).entry(key).or_default().push(index);
        Ok(())
    })?;
    let keyed = keyed.into_inner().unwrap_or_else(|error| error.into_inner());
    let mut groups: Vec<_> = keyed.into_values().filter(|group| group.len() > 1).collect();
    groups.iter_mut().for_each(|group| group.sort_unstable());
    Ok(groups)
}

/// A hash over a few places of a part, and its length.
fn samples(sources: &Sources, part: Extent) -> Result<(u64, u128)> {
    let mut hasher = XxHash3_128::new();
    let mut sample = [0; SAMPLED_BYTES as usize];
    let last = part.len.saturating_sub(SAMPLED_BYTES);
    for eighth in 0..=8 {
        let sample = &mut sample[..part.len.min(SAMPLED_BYTES) as usize];
        // Below 2^64 / 8 bytes, which no file reaches.
        sources.read(part, last / 8 * eighth, sample)?;
        hasher.write(sample);
        if last == 0 {
            break;
        }
    }
    Ok((part.len, hasher.finish_128()))
}

/// A hash over all bytes of a part, and its length.
pub(crate) fn whole(sources: &Sources, part: Extent) -> Result<(u64, u128)> {
    let mut hasher = XxHash3_128::new();
    pieces(part, |skip, len| {
        hasher.write(&sources.bytes(Extent { offset: part.offset + skip, len, ..part })?);
        Ok(true)
    })?;
    Ok((part.len, hasher.finish_128()))
}

/// Whether two parts of one length have the same bytes.
fn same(sources: &Sources, a: Extent, b: Extent) -> Result<bool> {
    let (mut left, mut right) = (zeroed(a.len.min(COMPARED_PIECE))?, zeroed(a.len.min(COMPARED_PIECE))?);
    let mut same = a.len == b.len;
    pieces(a, |skip, len| {
        let (left, right) = (&mut left[..len as usize], &mut right[..len as usize]);
        sources.read(a, skip, left)?;
        sources.read(b, skip, right)?;
        same &= left == right;
        Ok(same)
    })?;
    Ok(same)
}

/// Start and length of each piece, as long as the caller wants more.
fn pieces(part: Extent, mut each: impl FnMut(u64, u64) -> Result<bool>) -> Result<()> {
    for skip in (0..part.len).step_by(COMPARED_PIECE as usize) {
        if !each(skip, (part.len - skip).min(COMPARED_PIECE))? {
            return Ok(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::source::MemorySource;

    #[test]
    fn equals_are_found_and_near_equals_are_not() {
        let mut bytes = vec![7u8; 60_000];
        bytes[12_345] = 8; // between two samples
        bytes.extend_from_within(..10_000);
        let sources = Sources::one(Arc::new(MemorySource::new(bytes)));
        let parts = [
            Extent::new(10_000, 10_000),
            Extent::new(0, 10_000),
            Extent::new(20_000, 10_000),
            Extent::new(60_000, 10_000),
            Extent::new(0, 9_999),
            Extent::new(0, 31),
            Extent::new(1, 31),
        ];
        for threads in [1, 3] {
            let found = find(&sources, &parts, threads).unwrap();
            assert_eq!(found, [None, None, Some(1), Some(1), None, None, None]);
        }
    }
}
