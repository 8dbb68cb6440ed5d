//! Types whose blocks have one scale, perhaps an offset, and small integers.

use super::{half_at, part};

/// A scale and a sign per element.
#[inline(always)]
pub(super) fn q1_0(block: &[u8; 18], out: &mut [f32; 128]) {
    let scale = half_at(block, 0);
    for (&bits, out) in part::<16>(block, 2).iter().zip(out.as_chunks_mut::<8>().0) {
        for (i, out) in out.iter_mut().enumerate() {
            *out = if bits >> i & 1 == 0 { -scale } else { scale };
        }
    }
}

/// A scale and 32 numbers of four bits around 8.
#[inline(always)]
pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let (scale, codes) = (half_at(block, 0), part::<16>(block, 2));
    for i in 0..16 {
        out[i] = scale * f32::from((codes[i] & 15) as i8 - 8);
        out[i + 16] = scale * f32::from((codes[i] >> 4) as i8 - 8);
    }
}

/// A scale, an offset, and 32 numbers of four bits.
#[inline(always)]
pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (scale, offset) = (half_at(block, 0), half_at(block, 2));
    let codes = part::<16>(block, 4);
    for i in 0..16 {
        out[i] = scale * f32::from(codes[i] & 15) + offset;
        out[i + 16] = scale * f32::from(codes[i] >> 4) + offset;
    }
}

/// The five-bit codes of `q5_0` and `q5_1`: four bits each, and a word of fifth bits.
#[inline(always)]
fn five_bits(fifth: &[u8; 4], codes: &[u8; 16]) -> [u8; 32] {
    let fifth = u32::from_le_bytes(*fifth);
    let mut all = [0; 32];
    for i in 0..16 {
        all[i] = codes[i] & 15 | ((fifth >> i & 1) << 4) as u8;
        all[i + 16] = codes[i] >> 4 | ((fifth >> (i + 16) & 1) << 4) as u8;
    }
    all
}

/// A scale and 32 numbers of five bits around 16.
#[inline(always)]
pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let scale = half_at(block, 0);
    let codes = five_bits(part(block, 2), part(block, 6));
    for i in 0..32 {
        out[i] = scale * f32::from(codes[i] as i8 - 16);
    }
}

/// A scale, an offset, and 32 numbers of five bits.
#[inline(always)]
pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (scale, offset) = (half_at(block, 0), half_at(block, 2));
    let codes = five_bits(part(block, 4), part(block, 8));
    for i in 0..32 {
        out[i] = scale * f32::from(codes[i]) + offset;
    }
}

/// A scale and 32 signed bytes.
#[inline(always)]
pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let (scale, codes) = (half_at(block, 0), part::<32>(block, 2));
    for i in 0..32 {
        out[i] = f32::from(codes[i] as i8) * scale;
    }
}

/// 256 ternary digits, five to a byte (four in the last bytes), and a scale.
#[inline(always)]
pub(super) fn tq1_0(block: &[u8; 54], out: &mut [f32; 256]) {
    /// A byte is a fraction of 243 (or 81) parts in base 3: multiplying it by a
    /// power of three brings a digit to the front, and by three more reads it.
    #[inline(always)]
    fn digit(byte: u8, power: u8) -> f32 {
        f32::from(((u16::from(byte.wrapping_mul(power)) * 3) >> 8) as i8 - 1)
    }
    let scale = half_at(block, 52);
    for (n, power) in [1, 3, 9, 27, 81].into_iter().enumerate() {
        for i in 0..32 {
            out[32 * n + i] = scale * digit(block[i], power);
        }
        for i in 0..16 {
            out[160 + 16 * n + i] = scale * digit(block[32 + i], power);
        }
    }
    for (n, power) in [1, 3, 9, 27].into_iter().enumerate() {
        for i in 0..4 {
            out[240 + 4 * n + i] = scale * digit(block[48 + i], power);
        }
    }
}

/// 256 ternary digits of two bits, and a scale.
#[inline(always)]
pub(super) fn tq2_0(block: &[u8; 66], out: &mut [f32; 256]) {
    let scale = half_at(block, 64);
    for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (codes, shift) = (part::<32>(block, 32 * (group / 4)), 2 * (group % 4));
        for i in 0..32 {
            out[i] = scale * f32::from((codes[i] >> shift & 3) as i8 - 1);
        }
    }
}
