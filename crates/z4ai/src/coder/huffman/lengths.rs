//! Canonical Huffman codes of at most [`MAX_LEN`] bits: making them, and keeping them in a frame.

use crate::error::{Error, Result};
use crate::wire::Reader;

/// The longest code, and so the width of the decoder's look-up. (format)
pub(crate) const MAX_LEN: u32 = 11;

/// The code length of every symbol; 0 where the symbol does not occur.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lengths(pub(crate) [u8; 256]);

/// Nibble that announces a run of absent symbols; the next nibble is its length less two.
const RUN: u8 = 15;
/// Absent symbols of a run, at most. (format)
const LONGEST_RUN: usize = 17;

impl Lengths {
    /// The best lengths for these counts, or `None` when fewer than two symbols occur.
    pub(crate) fn for_counts(counts: &[u32; 256]) -> Option<Self> {
        // By count and then by symbol, both in one number.
        let (mut leaves, mut used) = ([0; 256], 0);
        for (symbol, &count) in counts.iter().enumerate() {
            leaves[used] = u64::from(count) << 8 | symbol as u64;
            used += usize::from(count > 0);
        }
        let leaves = &mut leaves[..used];
        if leaves.len() < 2 {
            return None;
        }
        leaves.sort_unstable();
        let leaves = &*leaves;
        let per_length = limit(depths(leaves));
        // Rarest symbols first, so the longest codes are handed out first.
        let mut lengths = [0; 256];
        let mut symbols = leaves.iter();
        for len in (1..=MAX_LEN as usize).rev() {
            for &leaf in symbols.by_ref().take(per_length[len] as usize) {
                lengths[usize::from(leaf as u8)] = len as u8;
            }
        }
        Some(Self(lengths))
    }

    /// The bits these codes take for these counts. Every symbol that occurs must have a code.
    pub(crate) fn cost_bits(&self, counts: &[u32; 256]) -> u64 {
        counts.iter().zip(&self.0).map(|(&count, &len)| u64::from(count) * u64::from(len)).sum()
    }

    /// The canonical codes: shorter ones first, equal lengths by symbol; codes of a length count
    /// upwards.
    pub(crate) fn codes(&self) -> [u16; 256] {
        let mut next = [0u16; MAX_LEN as usize + 2];
        for &len in &self.0 {
            if len > 0 {
                next[usize::from(len) + 1] += 1;
            }
        }
        for len in 1..next.len() {
            next[len] = (next[len] + next[len - 1]) << 1;
        }
        // `next[len]` now is the first code of `len` bits, as of a `len - 1`-bit prefix doubled.
        let mut codes = [0; 256];
        for (code, &len) in codes.iter_mut().zip(&self.0) {
            if len > 0 {
                *code = next[usize::from(len)];
                next[usize::from(len)] += 1;
            }
        }
        codes
    }

    /// Writes first symbol, last symbol, then one nibble per length between them, low nibble
    /// first; runs of 2 to 17 absent symbols are two nibbles.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let (first, last) = self.ends();
        out.extend([first as u8, last as u8]);
        let mut nibbles = Vec::with_capacity(last - first + 2);
        self.for_nibbles(|nibble| nibbles.push(nibble));
        if nibbles.len() % 2 == 1 {
            nibbles.push(0);
        }
        out.extend(nibbles.chunks_exact(2).map(|pair| pair[0] | pair[1] << 4));
    }

    /// The bytes that [`write`](Self::write) takes.
    pub(crate) fn written_len(&self) -> usize {
        let mut nibbles: usize = 0;
        self.for_nibbles(|_| nibbles += 1);
        2 + nibbles.div_ceil(2)
    }

    /// The first and the last symbol.
    fn ends(&self) -> (usize, usize) {
        let first = self.0.iter().position(|&l| l > 0).unwrap_or(0);
        let last = self.0.iter().rposition(|&l| l > 0).unwrap_or(0);
        (first, last)
    }

    /// Calls `put` with every nibble that [`write`](Self::write) makes of the lengths.
    fn for_nibbles(&self, mut put: impl FnMut(u8)) {
        let (first, last) = self.ends();
        let mut at = first;
        while at <= last {
            // Not `if absent >= 2 { absent.min(LONGEST_RUN) } else { 1 }` of a run that may be empty: LLVM 22 makes
            // 0 of it where `min` is inlined late (Rust 1.95 to 1.97), which is a loop without end.
            if self.0[at] > 0 {
                put(self.0[at]);
                at += 1;
                continue;
            }
            let run = self.0[at..=last].iter().take_while(|&&l| l == 0).count().min(LONGEST_RUN);
            if run == 1 {
                put(0);
            } else {
                put(RUN);
                put((run - 2) as u8);
            }
            at += run;
        }
    }

    /// Reads what [`write`](Self::write) wrote; refuses lengths that do not make a complete code.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let first = usize::from(reader.u8()?);
        let last = usize::from(reader.u8()?);
        let mut lengths = [0; 256];
        let mut at = first;
        let mut pending = None;
        let mut nibble = |reader: &mut Reader<'_>| -> Result<u8> {
            if let Some(high) = pending.take() {
                return Ok(high);
            }
            let byte = reader.u8()?;
            pending = Some(byte >> 4);
            Ok(byte & 15)
        };
        while at <= last {
            match nibble(reader)? {
                RUN => at += usize::from(nibble(reader)?) + 2,
                len if u32::from(len) <= MAX_LEN => {
                    lengths[at] = len;
                    at += 1;
                }
                len => {
                    return Err(Error::corrupt(format_args!(
                        "a Huffman code of {len} bits, above the limit of {MAX_LEN}"
                    )));
                }
            }
        }
        let space: u32 =
            lengths.iter().filter(|&&len| len > 0).map(|&len| 1 << (MAX_LEN - u32::from(len))).sum();
        if at != last + 1 || pending.unwrap_or(0) != 0 || space != 1 << MAX_LEN {
            return Err(Error::corrupt("Huffman lengths that make no complete code"));
        }
        Ok(Self(lengths))
    }
}

/// The number of leaves at each depth of the Huffman tree over `leaves`: counts above the lowest
/// eight bits, sorted.
fn depths(leaves: &[u64]) -> [u32; 256] {
    let n = leaves.len();
    // Two queues: the sorted leaves and, behind them, the inner nodes, which come out sorted.
    // Absent nodes are heavier than all others.
    let mut weight = [u64::MAX; 2 * 256];
    weight.iter_mut().zip(leaves).for_each(|(weight, leaf)| *weight = leaf >> 8);
    let mut parent = [0u16; 2 * 256];
    let (mut leaf, mut inner) = (0, n + 1);
    for node in n + 1..2 * n {
        let mut sum = 0;
        for _ in 0..2 {
            // Neither a branch nor a detour by memory: which of the two it is can hardly be
            // foreseen.
            let is_leaf = weight[leaf] <= weight[inner];
            let child = if is_leaf { leaf } else { inner };
            sum += weight[leaf].min(weight[inner]);
            parent[child] = node as u16;
            leaf += usize::from(is_leaf);
            inner += usize::from(!is_leaf);
        }
        weight[node] = sum;
    }
    let mut depth = [0u8; 2 * 256];
    let mut per_depth = [0; 256];
    for node in (n + 1..2 * n - 1).rev() {
        depth[node] = depth[usize::from(parent[node])] + 1;
    }
    for &parent in &parent[..n] {
        per_depth[usize::from(depth[usize::from(parent)]) + 1] += 1;
    }
    per_depth
}

/// Shortens codes above [`MAX_LEN`] at the least cost to the others, keeping the code complete.
fn limit(mut per_depth: [u32; 256]) -> [u32; 256] {
    let max = MAX_LEN as usize;
    let deeper: u32 = per_depth[max + 1..].iter().sum();
    per_depth[max + 1..].fill(0);
    per_depth[max] += deeper;
    let mut space: u32 = (1..=max).map(|len| per_depth[len] << (max - len)).sum();
    while space > 1 << max {
        // One leaf of full length becomes the sibling of the deepest shorter leaf, which moves
        // down.
        let Some(shorter) = (1..max).rev().find(|&len| per_depth[len] > 0) else {
            unreachable!("256 leaves fit at full length");
        };
        per_depth[max] -= 1;
        per_depth[shorter] -= 1;
        per_depth[shorter + 1] += 2;
        space -= 1;
    }
    per_depth
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counts() -> impl Strategy<Value = [u32; 256]> {
        prop::collection::vec((any::<u8>(), 1u32..1 << 24), 2..200).prop_map(|pairs| {
            let mut counts = [0; 256];
            for (symbol, count) in pairs {
                counts[usize::from(symbol)] = count;
            }
            counts
        })
    }

    proptest! {
        #[test]
        fn lengths_survive_the_wire(counts in counts()) {
            if let Some(lengths) = Lengths::for_counts(&counts) {
                let mut bytes = Vec::new();
                lengths.write(&mut bytes);
                prop_assert_eq!(lengths.written_len(), bytes.len());
                let mut reader = Reader::new(&bytes);
                prop_assert_eq!(Lengths::read(&mut reader).unwrap(), lengths);
                prop_assert_eq!(reader.remaining(), 0);
            }
        }

        #[test]
        fn codes_are_prefix_free_and_ordered(counts in counts()) {
            if let Some(lengths) = Lengths::for_counts(&counts) {
                let codes = lengths.codes();
                let mut all: Vec<(u8, u8)> =
                    (0..=255u8).filter(|&s| lengths.0[s as usize] > 0).map(|s| (lengths.0[s as usize], s)).collect();
                all.sort_unstable();
                let mut at = 0u32;
                for (len, symbol) in all {
                    prop_assert_eq!(u32::from(codes[symbol as usize]) << (MAX_LEN - u32::from(len)), at);
                    at += 1 << (MAX_LEN - u32::from(len));
                }
                prop_assert_eq!(at, 1 << MAX_LEN);
            }
        }
    }

    #[test]
    fn fibonacci_counts_are_limited() {
        let mut counts = [0; 256];
        let (mut a, mut b) = (1u32, 1u32);
        for count in counts.iter_mut().take(40) {
            *count = a;
            (a, b) = (b, a.saturating_add(b));
        }
        let lengths = Lengths::for_counts(&counts).unwrap();
        assert!(lengths.0.iter().all(|&l| u32::from(l) <= MAX_LEN));
        assert_eq!(lengths.0[39], 1);
    }
}
