//! The K types: 256 elements in groups of 16 or 32 whose scales are themselves
//! small integers with one common scale.

use super::{half_at, part};

/// Groups of 16 with scale and offset of four bits each; two bits an element.
#[inline(always)]
pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scale, offset) = (half_at(block, 80), half_at(block, 82));
    for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scales = block[group];
        let (scale, offset) = (scale * f32::from(scales & 15), offset * f32::from(scales >> 4));
        let codes = part::<16>(block, 16 + 32 * (group / 8) + 16 * (group % 2));
        let shift = group / 2 % 4 * 2;
        for i in 0..16 {
            out[i] = scale * f32::from(codes[i] >> shift & 3) - offset;
        }
    }
}

/// Groups of 16 with six-bit scales; two bits an element and a third one apart,
/// which is set where 4 is *not* to be subtracted.
#[inline(always)]
pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let (scale, packed) = (half_at(block, 108), part::<12>(block, 96));
    for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        // Four low bits in nibbles of the first eight bytes, two high bits in the last four.
        let low = packed[group % 8] >> (group / 8 * 4) & 15;
        let high = packed[8 + group % 4] >> (group / 4 * 2) & 3;
        let scale = scale * f32::from((low | high << 4) as i8 - 32);
        let codes = part::<16>(block, 32 + 32 * (group / 8) + 16 * (group % 2));
        let thirds = part::<16>(block, 16 * (group % 2));
        let (shift, third) = (group / 2 % 4 * 2, group / 2);
        for i in 0..16 {
            let subtract = (!thirds[i] >> third & 1) << 2;
            out[i] = scale * f32::from((codes[i] >> shift & 3) as i8 - subtract as i8);
        }
    }
}

/// The six-bit scale and offset of one of the eight groups of `q4_k` and `q5_k`.
#[inline(always)]
fn scale_and_offset(packed: &[u8; 12], group: usize) -> (f32, f32) {
    let (scale, offset) = match group {
        0..4 => (packed[group] & 63, packed[group + 4] & 63),
        // Four bits in the last bytes, two more above the first groups' six.
        _ => (
            packed[group + 4] & 15 | packed[group - 4] >> 2 & 0x30,
            packed[group + 4] >> 4 | packed[group] >> 2 & 0x30,
        ),
    };
    (f32::from(scale), f32::from(offset))
}

/// Groups of 32 with six-bit scale and offset; four bits an element.
#[inline(always)]
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (scale, offset) = (half_at(block, 0), half_at(block, 2));
    let packed = part::<12>(block, 4);
    for (pair, out) in out.as_chunks_mut::<64>().0.iter_mut().enumerate() {
        let codes = part::<32>(block, 16 + 32 * pair);
        for (half, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (small_scale, small_offset) = scale_and_offset(packed, 2 * pair + half);
            let (scale, offset) = (scale * small_scale, offset * small_offset);
            for i in 0..32 {
                out[i] = scale * f32::from(codes[i] >> (4 * half) & 15) - offset;
            }
        }
    }
}

/// As `q4_k`, with a fifth bit per element.
#[inline(always)]
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (scale, offset) = (half_at(block, 0), half_at(block, 2));
    let (packed, fifths) = (part::<12>(block, 4), part::<32>(block, 16));
    for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let codes = part::<32>(block, 48 + 32 * (group / 2));
        let (small_scale, small_offset) = scale_and_offset(packed, group);
        let (scale, offset) = (scale * small_scale, offset * small_offset);
        for i in 0..32 {
            let code = codes[i] >> (group % 2 * 4) & 15 | (fifths[i] >> group & 1) << 4;
            out[i] = scale * f32::from(code) - offset;
        }
    }
}

/// Groups of 16 with eight-bit scales; four bits an element and two more apart.
#[inline(always)]
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let scale = half_at(block, 208);
    let scales = part::<16>(block, 192);
    for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        // Eight groups to a half: four pairs of groups, 32 elements each.
        let (half, pair, odd) = (group / 8, group / 2 % 4, group % 2);
        let low = part::<16>(block, 64 * half + 32 * (pair % 2) + 16 * odd);
        let high = part::<16>(block, 128 + 32 * half + 16 * odd);
        let scale = scale * f32::from(scales[group] as i8);
        for i in 0..16 {
            let code = low[i] >> (pair / 2 * 4) & 15 | (high[i] >> (2 * pair) & 3) << 4;
            out[i] = scale * f32::from(code as i8 - 32);
        }
    }
}

/// A single-precision scale and 256 signed bytes; the sums behind them only
/// speed up products.
#[inline(always)]
pub(super) fn q8_k(block: &[u8; 292], out: &mut [f32; 256]) {
    let scale = f32::from_le_bytes(*part(block, 0));
    let codes = part::<256>(block, 4);
    for i in 0..256 {
        out[i] = scale * f32::from(codes[i] as i8);
    }
}
