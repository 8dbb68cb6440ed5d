//! Synthetic weights: dense ones, and ones with every structure that there is a layout for.

use super::Random;
use z4ai::Kind;

pub fn noise(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// Bytes that look like weights of `kind`: a few exponents, rare outliers, zeros.
pub fn weights(kind: Kind, len: usize, seed: u64, row: usize) -> Vec<u8> {
    let mut next = noise(seed);
    let mut bytes = Vec::with_capacity(len + 8);
    let mut index = 0usize;
    while bytes.len() < len {
        let random = next();
        let gauss: f64 = (0..4).map(|i| f64::from((random >> (16 * i)) as u16) / 65536.0 - 0.5).sum();
        let scale = if row > 0 && (index % row).is_multiple_of(3) { 0.002 } else { 0.05 };
        let value = match next() % 1000 {
            0 => 0.0,
            1 => gauss * 1000.0,
            _ => gauss * scale,
        };
        let single = (value as f32).to_bits();
        match (kind.size(), kind) {
            (_, Kind::F16) => bytes.extend(
                ((single >> 16 & 0x8000) as u16 | ((single >> 13).wrapping_sub(0x1c000) & 0x7fff) as u16)
                    .to_le_bytes(),
            ),
            (2, _) => bytes.extend(((single >> 16) as u16).to_le_bytes()),
            (4, _) => bytes.extend(single.to_le_bytes()),
            (8, _) => bytes.extend(value.to_bits().to_le_bytes()),
            _ => bytes.push((value * 100.0) as i8 as u8),
        }
        index += 1;
    }
    bytes.truncate(len);
    bytes
}

/// Values that structure is made of: whole numbers times a scale, as elements of `kind`.
pub fn element(kind: Kind, number: i64, scale: f32) -> Vec<u8> {
    if !kind.is_float() || kind.size() == 1 {
        return number.to_le_bytes()[..kind.size()].to_vec();
    }
    let value = number as f32 * scale;
    let single = value.to_bits();
    match kind {
        Kind::F64 => f64::from(value).to_le_bytes().to_vec(),
        Kind::F32 => single.to_le_bytes().to_vec(),
        _ => ((single >> 16) as u16).to_le_bytes().to_vec(),
    }
}

/// Elements of every structure that there is a layout for.
pub fn structured(kind: Kind, count: usize, seed: u64, which: usize) -> Vec<u8> {
    let mut next = noise(seed);
    let mut bytes = Vec::new();
    let dense = weights(kind, count * kind.size(), seed, 0);
    let size = kind.size();
    let sign = if kind.is_float() { 0x80 } else { 0 };
    let fill = if seed.is_multiple_of(3) { element(kind, 3, 0.5) } else { vec![0; size] };
    let row = 64 + seed as usize % 3 * 100;
    for i in 0..count {
        let random = next();
        match which {
            // Mostly one value, of one sign or both, the rest dense or of few values.
            0 | 1 if random % 100 < 80 => {
                bytes.extend_from_slice(&fill);
                *bytes.last_mut().unwrap() ^= if which == 1 { (random >> 8) as u8 & sign } else { 0 };
            }
            0 | 1 if seed.is_multiple_of(2) => bytes.extend_from_slice(&dense[i * size..][..size]),
            0 | 1 => bytes.extend(element(kind, (random >> 16) as i64 % 9 - 4, 0.3)),
            // Few values, consecutive or not, up to 256 and above.
            2 => bytes.extend(element(kind, (random >> 16) as i64 % 21 - 7, 1.0)),
            3 => bytes.extend(element(kind, (random >> 16) as i64 % 251 * 3 - 77, 0.37)),
            4 => bytes.extend(element(kind, (random >> 16) as i64 % 300, 0.7)),
            // A scale for every row.
            5 => {
                let scale = 0.01 + (i / row) as f32 * 0.0013;
                bytes.extend(element(kind, (random >> 16) as i64 % 16 - 8 + (i / row) as i64, scale));
            }
            // Integers of a small range.
            6 => bytes.extend(element(kind, (random >> 16) as i64 % 5000 - 700, 1.0)),
            // Long runs of one value.
            _ => bytes.extend(element(kind, i as i64 / 777, 0.11)),
        }
    }
    bytes
}

/// Moves one element in `one_in` by up to `steps` of its lowest bit, either way.
pub fn nudge(bytes: &mut [u8], size: usize, one_in: usize, steps: i64, random: &mut Random) {
    for element in bytes.chunks_exact_mut(size) {
        if random.below(one_in) == 0 {
            let mut word = [0; 8];
            word[..size].copy_from_slice(element);
            let change = (random.next() % (2 * steps as u64)) as i64 - steps;
            let change = if change >= 0 { change + 1 } else { change };
            let moved = i64::from_le_bytes(word).wrapping_add(change).to_le_bytes();
            element.copy_from_slice(&moved[..size]);
        }
    }
}
