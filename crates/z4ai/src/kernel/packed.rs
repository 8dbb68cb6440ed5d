//! Bytes from a small palette, as indices of one, two or four bits.

use super::{Isa, dispatch};

dispatch! {
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
        let mut bytes = [0u8; 16];
        bytes.copy_from_slice(stored);
        let low = isa.shuffle(*palette, bytes.map(|b| b & 15));
        let high = isa.shuffle(*palette, bytes.map(|b| b >> 4));
        for i in 0..16 {
            out[2 * i] = low[i];
            out[2 * i + 1] = high[i];
        }
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

/// Packs indices of `width` bits, each below `1 << width`, lowest first.
pub(crate) fn pack(width: u32, indices: impl ExactSizeIterator<Item = u8>, out: &mut Vec<u8>) {
    let per_byte = 8 / width as usize;
    out.reserve(indices.len().div_ceil(per_byte));
    let (mut byte, mut filled) = (0, 0);
    for index in indices {
        byte |= index << filled;
        filled += width;
        if filled == 8 {
            out.push(byte);
            (byte, filled) = (0, 0);
        }
    }
    if filled > 0 {
        out.push(byte);
    }
}
