//! The IQ types: groups of four or eight elements are looked up in a codebook,
//! signs and scales come from elsewhere in the block.

use super::codebook_grids::{IQ1, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};
use super::{half_at, part};

/// The sign bits of eight elements from seven stored ones: the number of minus
/// signs is even.
#[inline(always)]
fn even_signs(seven: u32) -> u8 {
    let seven = seven as u8 & 127;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// One entry of a codebook, scaled and signed.
#[inline(always)]
fn signed<const N: usize>(out: &mut [f32], scale: f32, grid: &[i8; N], signs: u8) {
    for i in 0..N {
        let sign = f32::from_bits(0x3f80_0000 | u32::from(signs >> i & 1) << 31);
        out[i] = scale * f32::from(grid[i]) * sign;
    }
}

#[inline(always)]
fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*part(block, at))
}

#[inline(always)]
fn short(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(*part(block, at))
}

/// The scale of a group from its four bits, as two-bit types have it.
#[inline(always)]
fn quarter_scale(scale: f32, small: u8) -> f32 {
    scale * (0.5 + f32::from(small)) * 0.25
}

/// The `n`th group of four bits.
#[inline(always)]
fn nibble(bytes: &[u8], n: usize) -> u8 {
    bytes[n / 2] >> (n % 2 * 4) & 15
}

#[inline(always)]
pub(super) fn iq2_xxs(block: &[u8; 66], out: &mut [f32; 256]) {
    let scale = half_at(block, 0);
    for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let indices = part::<4>(block, 2 + 8 * group);
        let packed = word(block, 6 + 8 * group);
        let scale = quarter_scale(scale, (packed >> 28) as u8);
        for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            signed(out, scale, &IQ2_XXS[usize::from(indices[i])], even_signs(packed >> (7 * i)));
        }
    }
}

#[inline(always)]
pub(super) fn iq2_xs(block: &[u8; 74], out: &mut [f32; 256]) {
    let (scale, scales) = (half_at(block, 0), part::<8>(block, 66));
    for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let code = short(block, 2 + 2 * i);
        let scale = quarter_scale(scale, nibble(scales, i / 2));
        signed(out, scale, &IQ2_XS[usize::from(code & 511)], even_signs(u32::from(code >> 9)));
    }
}

#[inline(always)]
pub(super) fn iq2_s(block: &[u8; 82], out: &mut [f32; 256]) {
    let scale = half_at(block, 0);
    let (low, signs) = (part::<32>(block, 2), part::<32>(block, 34));
    let (high, scales) = (part::<8>(block, 66), part::<8>(block, 74));
    for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let index = usize::from(low[i]) | usize::from(high[i / 4] >> (i % 4 * 2) & 3) << 8;
        signed(out, quarter_scale(scale, nibble(scales, i / 2)), &IQ2_S[index], signs[i]);
    }
}

#[inline(always)]
pub(super) fn iq3_xxs(block: &[u8; 98], out: &mut [f32; 256]) {
    let (scale, indices) = (half_at(block, 0), part::<64>(block, 2));
    for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let packed = word(block, 66 + 4 * group);
        let scale = scale * (0.5 + (packed >> 28) as f32) * 0.5;
        for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let signs = even_signs(packed >> (7 * i));
            let indices = &indices[8 * group + 2 * i..][..2];
            signed(&mut out[..4], scale, &IQ3_XXS[usize::from(indices[0])], signs);
            signed(&mut out[4..], scale, &IQ3_XXS[usize::from(indices[1])], signs >> 4);
        }
    }
}

#[inline(always)]
pub(super) fn iq3_s(block: &[u8; 110], out: &mut [f32; 256]) {
    let scale = half_at(block, 0);
    let (low, high) = (part::<64>(block, 2), part::<8>(block, 66));
    let (signs, scales) = (part::<32>(block, 74), part::<4>(block, 106));
    for (i, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let index = usize::from(low[i]) | usize::from(high[i / 8] >> (i % 8) & 1) << 8;
        let scale = scale * f32::from(1 + 2 * nibble(scales, i / 8));
        signed(out, scale, &IQ3_S[index], signs[i / 2] >> (i % 2 * 4));
    }
}

/// Eight elements of a one-bit type: an entry, shifted by an eighth up or down.
#[inline(always)]
fn shifted(out: &mut [f32; 8], scale: f32, index: usize, down: bool) {
    let shift = if down { -0.125 } else { 0.125 };
    for (out, &grid) in out.iter_mut().zip(&IQ1[index]) {
        *out = scale * (f32::from(grid) + shift);
    }
}

#[inline(always)]
pub(super) fn iq1_s(block: &[u8; 50], out: &mut [f32; 256]) {
    let (scale, low) = (half_at(block, 0), part::<32>(block, 2));
    for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let packed = short(block, 34 + 2 * group);
        let scale = scale * f32::from(2 * (packed >> 12 & 7) + 1);
        for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let index = usize::from(low[4 * group + i]) | usize::from(packed >> (3 * i) & 7) << 8;
            shifted(out, scale, index, packed & 0x8000 != 0);
        }
    }
}

#[inline(always)]
pub(super) fn iq1_m(block: &[u8; 56], out: &mut [f32; 256]) {
    let (low, high) = (part::<32>(block, 0), part::<16>(block, 32));
    let scales: [u16; 4] = std::array::from_fn(|i| short(block, 48 + 2 * i));
    // The common scale lies in the four top nibbles of the small ones.
    let scale = scales.iter().rev().fold(0, |bits, &scales| bits << 4 | scales >> 12);
    let scale = super::float::half(scale);
    for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let small = scales[i / 8] >> (i / 2 % 4 * 3) & 7;
        let high = nibble(high, i);
        let index = usize::from(low[i]) | usize::from(high & 7) << 8;
        shifted(out, scale * f32::from(2 * small + 1), index, high & 8 != 0);
    }
}

/// The sixteen values of the four-bit types with uneven steps.
const UNEVEN: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// 32 elements of four bits; the first 16 are low nibbles.
#[inline(always)]
fn uneven(out: &mut [f32; 32], scale: f32, codes: &[u8; 16]) {
    // Sixteen products serve 32 elements.
    let values = UNEVEN.map(|value| scale * f32::from(value));
    for i in 0..16 {
        out[i] = values[usize::from(codes[i] & 15)];
        out[i + 16] = values[usize::from(codes[i] >> 4)];
    }
}

#[inline(always)]
pub(super) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    uneven(out, half_at(block, 0), part(block, 2));
}

#[inline(always)]
pub(super) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let (scale, high, low) = (half_at(block, 0), short(block, 2), part::<4>(block, 4));
    for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let small = nibble(low, group) | ((high >> (2 * group) & 3) << 4) as u8;
        uneven(out, scale * f32::from(small as i8 - 32), part(block, 8 + 16 * group));
    }
}
