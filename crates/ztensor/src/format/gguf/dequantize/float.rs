//! Floating-point types, and small floats with a shared scale.

use super::part;

#[inline(always)]
pub(super) fn f32(block: &[u8; 4], out: &mut [f32; 1]) {
    out[0] = f32::from_le_bytes(*block);
}

#[inline(always)]
pub(super) fn f16(block: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = half(u16::from_le_bytes(*block));
}

#[inline(always)]
pub(super) fn bf16(block: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = f32::from_bits(u32::from(u16::from_le_bytes(*block)) << 16);
}

/// Half precision to single, exactly and without a branch, so that loops over it
/// vectorise. (The processor's own instruction is not on every processor.)
#[inline(always)]
pub(super) fn half(bits: u16) -> f32 {
    /// What the exponent of a single exceeds that of the same half by.
    const REBIAS: u32 = (127 - 15) << 23;
    /// 2^-14, the smallest normal half.
    const SMALLEST: u32 = 113 << 23;
    let bits = u32::from(bits);
    let magnitude = (bits & 0x7fff) << 13;
    // A subnormal is its mantissa on top of 2^-14, minus 2^-14: this subtraction is exact.
    let subnormal = (f32::from_bits(magnitude + SMALLEST) - f32::from_bits(SMALLEST)).to_bits();
    let normal = magnitude + REBIAS;
    // Infinities and NaNs have all exponent bits; a NaN becomes a quiet one.
    let quiet = if magnitude > 0x0f80_0000 { 1 << 22 } else { 0 };
    let special = (normal + REBIAS) | quiet;
    let magnitude = if magnitude < 1 << 23 {
        subnormal
    } else if magnitude < 0x0f80_0000 {
        normal
    } else {
        special
    };
    f32::from_bits(magnitude | (bits & 0x8000) << 16)
}

/// Twice the value of a four-bit float (one sign, two exponent, one mantissa
/// bit), which is a whole number: 0, 1, 2, 3, 4, 6, 8, 12 and their negatives.
#[inline(always)]
fn doubled_e2m1(code: u8) -> f32 {
    let magnitude = u32::from(code & 7);
    let exponent = (magnitude >> 1).max(1);
    let mantissa = (magnitude & 1) | u32::from(magnitude > 1) << 1;
    let value = (mantissa << (exponent - 1)) as i32;
    (if code & 8 == 0 { value } else { -value }) as f32
}

/// A power-of-two scale and 32 four-bit floats.
#[inline(always)]
pub(super) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    // Half of 2^(e - 127), because the elements are doubled; the two smallest
    // exponents are subnormal.
    let exponent = u32::from(block[0]);
    let scale = f32::from_bits(match exponent {
        0 | 1 => 0x0020_0000 << exponent,
        _ => (exponent - 1) << 23,
    });
    let codes = part::<16>(block, 1);
    for i in 0..16 {
        out[i] = scale * doubled_e2m1(codes[i] & 15);
        out[i + 16] = scale * doubled_e2m1(codes[i] >> 4);
    }
}

/// Four groups of an eight-bit scale and 16 four-bit floats.
#[inline(always)]
pub(super) fn nvfp4(block: &[u8; 36], out: &mut [f32; 64]) {
    for group in 0..4 {
        let scale = half_of_ue4m3(block[group]);
        let codes = part::<8>(block, 4 + 8 * group);
        let out = &mut out[16 * group..][..16];
        for i in 0..8 {
            out[i] = scale * doubled_e2m1(codes[i] & 15);
            out[i + 8] = scale * doubled_e2m1(codes[i] >> 4);
        }
    }
}

/// Half the value of an unsigned float of four exponent and three mantissa bits.
/// The reference reads its NaN as zero and ignores the eighth bit otherwise.
#[inline(always)]
fn half_of_ue4m3(bits: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(bits >> 3 & 15), u32::from(bits & 7));
    match (bits, exponent) {
        (0x7f, _) => 0.0,
        (_, 0) => mantissa as f32 * (1.0 / 1024.0),
        _ => f32::from_bits((exponent + 127 - 7 - 1) << 23 | mantissa << 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_what_the_half_crate_says() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (half(bits), half::f16::from_bits(bits).to_f32());
            assert_eq!(ours.to_bits(), theirs.to_bits(), "{bits:04x}");
        }
    }

    #[test]
    fn four_bit_floats_are_their_table() {
        let values: Vec<f32> = (0..16).map(doubled_e2m1).collect();
        let table = [0., 1., 2., 3., 4., 6., 8., 12., 0., -1., -2., -3., -4., -6., -8., -12.];
        assert_eq!(values, table);
    }
}
