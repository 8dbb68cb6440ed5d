//! Encoding groups of elements with a palette each: finding how long groups are, and listing their
//! values.

use crate::estimate::cost::{self, BIT};
use crate::estimate::probe::{Sample, Sketch};
use crate::kernel::sparse::load;
use crate::layout::grouped::MAX_VALUES;
use crate::layout::split::classes::Hint;

/// Consecutive elements sampled at two positions: at most [`MAX_DISTINCT`] may be distinct.
/// (case: sweep; with more elements, or half of the values, groups of 8-bit values are missed, up to 2.5
/// times as large)
const SAMPLE_RUN: usize = 256;
const MAX_DISTINCT: usize = 160;
/// Group lengths tried without a shape; row lengths are often multiples of these. (case:
/// `structure.py`)
const GROUP_LENGTHS: [usize; 7] = [64, 128, 256, 512, 1024, 2048, 4096];
/// Groups sampled to compare lengths. (flat, 2 % smaller doubled where 95 % are zero)
const SAMPLED_GROUPS: usize = 6;

/// The values of all groups, and the index of every element.
#[derive(Default)]
pub(crate) struct Groups {
    pub(crate) counts: Vec<u8>,
    pub(crate) values: Vec<u8>,
    pub(crate) indices: Vec<u8>,
}

/// The group length with the lowest estimated cost, and that cost in units of [`BIT`] per element;
/// `None` if a small sample rules groups out.
pub(crate) fn find(content: &[u8], size: usize, hint: &Hint) -> Option<(u64, usize)> {
    let count = content.len() / size;
    if count < 2 * SAMPLE_RUN {
        return None;
    }
    for at in [count / 5, count / 2] {
        let neighbours = &content[at * size..][..SAMPLE_RUN * size];
        if Sketch::of(neighbours, size, 1, SAMPLE_RUN).distinct() > MAX_DISTINCT
            || Sample::of(neighbours, size, 1, SAMPLE_RUN).distinct > MAX_DISTINCT
        {
            return None;
        }
    }
    let lengths = if hint.shaped { hint.periods.as_slice() } else { &GROUP_LENGTHS };
    let costs = lengths.iter().filter_map(|&length| Some((cost_of(content, size, length)?, length)));
    costs.min()
}

/// About what groups of `length` take, in units of [`BIT`] per element, judged by a few of them.
fn cost_of(content: &[u8], size: usize, length: usize) -> Option<u64> {
    let groups = content.len() / size / length;
    if groups == 0 {
        return None;
    }
    let looked_at = groups.min(SAMPLED_GROUPS);
    let (mut bits, mut elements) = (0, 0);
    for i in 0..looked_at {
        let at = i * (groups - 1) / (looked_at - 1).max(1) * length;
        let group = &content[at * size..(at + length) * size];
        let mut values: Vec<u64> = group.chunks_exact(size).map(load).collect();
        values.sort_unstable();
        let counts: Vec<u32> = values.chunk_by(|a, b| a == b).map(|same| same.len() as u32).collect();
        if counts.len() > MAX_VALUES {
            return None;
        }
        bits += cost::entropy(&counts) + counts.len() as u64 * size as u64 * 8 * BIT;
        elements += length as u64;
    }
    Some(bits / elements)
}

/// Lists the values of all groups; false if one of them has too many.
pub(crate) fn list(content: &[u8], size: usize, length: usize, to: &mut Groups) -> bool {
    to.counts.clear();
    to.values.clear();
    to.indices.clear();
    let top = 8 * size as u32 - 1;
    // Negative numbers first, their magnitudes falling for floats: in either case in one order.
    let order = |value: u64| (value >> top == 0, if value >> top == 1 { !value } else { value });
    let mut values: Vec<u64> = Vec::with_capacity(length);
    for group in content.chunks(length * size) {
        values.clear();
        values.extend(group.chunks_exact(size).map(load));
        values.sort_unstable_by_key(|&value| order(value));
        values.dedup();
        if values.len() > MAX_VALUES {
            return false;
        }
        let negative = values.partition_point(|&value| value >> top == 1) as u8;
        for element in group.chunks_exact(size) {
            let key = order(load(element));
            let rank = values.partition_point(|&value| order(value) < key);
            to.indices.push((rank as u8).wrapping_sub(negative));
        }
        to.counts.push((values.len() - 1) as u8);
        to.values.extend(values.iter().flat_map(|value| value.to_le_bytes().into_iter().take(size)));
    }
    true
}
