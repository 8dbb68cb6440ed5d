//! Bit packing of palette indices of one, two or four bits.

use crate::simd::prefetch::{DISTANCE, Hint, prefetch};
use crate::simd::{Isa, dispatch, dispatch_wide};

dispatch_wide! {
    /// Expands indices of `width` bits, lowest first, through the palette. `stored` must hold
    /// exactly the indices of `out`.
    pub(crate) fn expand(width: u32, palette: &[u8; 16], stored: &[u8], out: &mut [u8]) = expand_with
}

#[inline(always)]
fn expand_with(isa: impl Isa, width: u32, palette: &[u8; 16], stored: &[u8], out: &mut [u8]) {
    let whole = match width {
        4 => expand_nibbles(isa, palette, stored, out),
        2 => expand_groups::<4>(2, palette, stored, out),
        _ => expand_groups::<8>(1, palette, stored, out),
    };
    let per_byte = 8 / width as usize;
    for index in whole..out.len() {
        out[index] = palette[index_at(stored, index, width, per_byte)];
    }
}

#[inline(always)]
fn index_at(stored: &[u8], index: usize, width: u32, per_byte: usize) -> usize {
    let byte = stored[index / per_byte];
    usize::from(byte >> (index % per_byte * width as usize)) & ((1 << width) - 1)
}

/// Whole blocks of 32 nibbles by byte shuffles; returns how many indices that were.
#[inline(always)]
fn expand_nibbles(isa: impl Isa, palette: &[u8; 16], stored: &[u8], out: &mut [u8]) -> usize {
    let mut done = 0;
    for (stored, out) in stored.chunks_exact(16).zip(out.chunks_exact_mut(32)) {
        prefetch(stored.as_ptr().wrapping_add(DISTANCE), Hint::L1);
        let mut nibbles = [0; 16];
        nibbles.copy_from_slice(stored);
        out.copy_from_slice(&isa.look_up(*palette, nibbles));
        done += 32;
    }
    done
}

/// Whole stored bytes through a table from byte to its `N` values.
#[inline(always)]
fn expand_groups<const N: usize>(width: u32, palette: &[u8; 16], stored: &[u8], out: &mut [u8]) -> usize {
    let table: [[u8; N]; 256] = std::array::from_fn(|byte| {
        std::array::from_fn(|i| palette[byte >> (i * width as usize) & ((1 << width) - 1)])
    });
    let mut done = 0;
    for (&stored, out) in stored.iter().zip(out.chunks_exact_mut(N)) {
        out.copy_from_slice(&table[usize::from(stored)]);
        done += N;
    }
    done
}

/// Packs the indices of `bytes`, each below `1 << width` and of one byte, lowest bits first.
pub(crate) fn pack(width: u32, bytes: &[u8], index_of: &[u8; 256], out: &mut Vec<u8>) {
    match width {
        4 => pack_groups::<2>(width, bytes, index_of, out),
        2 => pack_groups::<4>(width, bytes, index_of, out),
        _ => {
            let start = out.len();
            out.resize(start + bytes.len().div_ceil(8), 0);
            // Of the bytes that occur one at most has index 1.
            if let Some(set) = index_of.iter().position(|&index| index == 1) {
                pack_bits(bytes, set as u8, &mut out[start..]);
            }
        }
    }
}

/// Added to the index of a byte that has one.
pub(crate) const KNOWN: u8 = 16;

/// Packs 4-bit indices, lowest first. `known[byte]` is the index of a byte plus [`KNOWN`], or 0 for
/// an outlier, which gets index 0 and whose position is appended to `unknown`. Fastest where all
/// known bytes are among sixteen consecutive ones.
pub(crate) fn pack_known(bytes: &[u8], known: &[u8; 256], out: &mut Vec<u8>, unknown: &mut Vec<u32>) {
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(2), 0);
    let out = &mut out[start..];
    let done = pack_blocks(bytes, known, out, unknown);
    for (index, &byte) in bytes.iter().enumerate().skip(done) {
        let found = known[usize::from(byte)];
        if found == 0 {
            unknown.push(index as u32);
        }
        out[index / 2] |= (found % KNOWN) << (index % 2 * 4);
    }
}

dispatch! {
    /// As [`pack_known`], whole blocks; returns how many bytes that were.
    fn pack_blocks(bytes: &[u8], known: &[u8; 256], out: &mut [u8], unknown: &mut Vec<u32>) -> usize
        = pack_blocks_with
}

#[inline(always)]
fn pack_blocks_with(
    isa: impl Isa,
    bytes: &[u8],
    known: &[u8; 256],
    out: &mut [u8],
    unknown: &mut Vec<u32>,
) -> usize {
    let lowest = known.iter().position(|&index| index > 0).unwrap_or(0);
    let highest = known.iter().rposition(|&index| index > 0).unwrap_or(0);
    if highest - lowest >= 16 {
        return pack_found(isa, bytes, |block| block.map(|byte| known[usize::from(byte)]), out, unknown);
    }
    let window = std::array::from_fn(|i| known.get(lowest + i).copied().unwrap_or(0));
    // Bytes outside the sixteen get an index that the shuffle maps to 0.
    let place = |byte: u8| byte.wrapping_sub(lowest as u8).saturating_add(112);
    let find = |block: &[u8; 32]| {
        let mut found = [0; 32];
        for (bytes, found) in block.as_chunks::<16>().0.iter().zip(found.as_chunks_mut::<16>().0) {
            *found = isa.shuffle(window, bytes.map(place));
        }
        found
    };
    pack_found(isa, bytes, find, out, unknown)
}

#[inline(always)]
fn pack_found(
    isa: impl Isa,
    bytes: &[u8],
    find: impl Fn(&[u8; 32]) -> [u8; 32],
    out: &mut [u8],
    unknown: &mut Vec<u32>,
) -> usize {
    let blocks = bytes.as_chunks::<32>().0;
    for (number, (block, out)) in blocks.iter().zip(out.as_chunks_mut::<16>().0).enumerate() {
        let found = find(block);
        let mut others = isa.equal(found, 0);
        while others != 0 {
            unknown.push(number as u32 * 32 + others.trailing_zeros());
            others &= others - 1;
        }
        let pairs: [u16; 16] = std::array::from_fn(|i| u16::from_le_bytes([found[2 * i], found[2 * i + 1]]));
        *out = isa.low_bytes(pairs.map(|pair| pair & 0xf | pair >> 4 & 0xf0));
    }
    blocks.len() * 32
}

dispatch! {
    /// Sets the bits of the bytes that are `set` in `out`, which is zero.
    fn pack_bits(bytes: &[u8], set: u8, out: &mut [u8]) = pack_bits_with
}

#[inline(always)]
fn pack_bits_with(isa: impl Isa, bytes: &[u8], set: u8, out: &mut [u8]) {
    let (blocks, rest) = bytes.as_chunks::<32>();
    let (words, last) = out.split_at_mut(blocks.len() * 4);
    for (word, block) in words.as_chunks_mut::<4>().0.iter_mut().zip(blocks) {
        *word = isa.equal(*block, set).to_le_bytes();
    }
    for (i, &byte) in rest.iter().enumerate() {
        last[i / 8] |= u8::from(byte == set) << (i % 8);
    }
}

fn pack_groups<const N: usize>(width: u32, bytes: &[u8], index_of: &[u8; 256], out: &mut Vec<u8>) {
    let pack = |group: &[u8]| {
        group.iter().rev().fold(0u8, |packed, &byte| packed << width | index_of[usize::from(byte)])
    };
    let groups = bytes.chunks_exact(N);
    let rest = groups.remainder();
    out.extend(groups.map(pack));
    if !rest.is_empty() {
        out.push(pack(rest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Portable;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn known_bytes_are_packed_and_others_named(
            bytes in prop::collection::vec(any::<u8>(), 0..300), spread in 1u8..20, base: u8, missing in 0usize..16
        ) {
            let bytes: Vec<u8> = bytes.iter().map(|byte| base.saturating_add(byte % spread)).collect();
            // Consecutive with a gap, and scattered.
            let close = (0..16u8).filter(|&i| usize::from(i) != missing).map(|i| base.saturating_add(i)).collect();
            for palette in [close, vec![0, base.saturating_add(1), 255]] {
                let mut known = [0; 256];
                palette.iter().enumerate().for_each(|(i, &byte)| known[usize::from(byte)] = KNOWN + i as u8);
                let named = |&(_, byte): &(usize, &u8)| known[usize::from(*byte)] == 0;
                let expected: Vec<u32> =
                    bytes.iter().enumerate().filter(named).map(|(index, _)| index as u32).collect();
                let mut plain = Vec::new();
                pack(4, &bytes, &known.map(|index| index % KNOWN), &mut plain);
                let (mut out, mut unknown) = (vec![9], Vec::new());
                pack_known(&bytes, &known, &mut out, &mut unknown);
                prop_assert_eq!((&out[1..], &unknown), (&plain[..], &expected));
                let (mut out, mut unknown) = (vec![0; plain.len()], Vec::new());
                let done = pack_blocks_with(Portable, &bytes, &known, &mut out, &mut unknown);
                prop_assert_eq!(&out[..done / 2], &plain[..done / 2]);
                prop_assert!(expected.iter().copied().take_while(|&index| index < done as u32).eq(unknown));
            }
        }

        #[test]
        fn indices_survive(bytes in prop::collection::vec(any::<u8>(), 0..300), palette: [u8; 16], choice in 0usize..3) {
            let width = [1u32, 2, 4][choice];
            let identity = std::array::from_fn(|i| i as u8);
            let indices: Vec<u8> = bytes.iter().map(|byte| byte & ((1 << width) - 1)).collect();
            let mut stored = Vec::new();
            pack(width, &indices, &identity, &mut stored);
            if width == 1 {
                let mut bits = vec![0; stored.len()];
                pack_bits_with(Portable, &indices, 1, &mut bits);
                prop_assert_eq!(&bits, &stored);
            }
            // The naive twin: one bit after the other.
            let bit = |at: usize| stored[at / 8] >> (at % 8) & 1;
            let naive: Vec<u8> = (0..indices.len())
                .map(|i| (0..width as usize).map(|b| bit(i * width as usize + b) << b).sum::<u8>())
                .collect();
            prop_assert_eq!(&naive, &indices);
            let expected: Vec<u8> = indices.iter().map(|&i| palette[usize::from(i)]).collect();
            let mut out = vec![0; indices.len()];
            expand(width, &palette, &stored, &mut out);
            prop_assert_eq!(&out, &expected);
            out.fill(0);
            expand_with(Portable, width, &palette, &stored, &mut out);
            prop_assert_eq!(&out, &expected);
        }
    }
}
