//! Bytes from a small palette, as indices of one, two or four bits.

use super::{Isa, copy, dispatch, dispatch_wide};

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
        copy::fetch(stored.as_ptr().wrapping_add(copy::AHEAD), true);
        let mut nibbles = [0; 16];
        nibbles.copy_from_slice(stored);
        out.copy_from_slice(&isa.look_up(*palette, nibbles));
        done += 32;
    }
    done
}

/// Whole stored bytes by a table from byte to the `N` values its indices stand for.
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
    use super::super::Portable;
    use super::*;
    use proptest::prelude::*;

    proptest! {
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
