//! Buffers with a reference, and their deltas.

use super::Random;
use super::data::nudge;
use z4ai::delta::{ChangedPlaces, ParsedDelta};
use z4ai::{DecodeOptions, Kind, Options, delta};

pub fn options(kind: Kind) -> Options {
    Options { kind, ..Options::default() }
}

/// Values around zero whose exponents vary as those of weights do, as bytes of `kind`.
pub fn weights(kind: Kind, count: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count * kind.size());
    for _ in 0..count {
        let bits = random.next();
        let uniform = f64::from(bits as u32) / f64::from(u32::MAX) - 0.5;
        let value = uniform * uniform * uniform;
        match kind.size() {
            1 => bytes.push((value * 127.0) as i8 as u8),
            2 => bytes.extend(&(value as f32).to_le_bytes()[2..]),
            4 => bytes.extend((value as f32).to_le_bytes()),
            _ => bytes.extend(value.to_le_bytes()),
        }
    }
    bytes
}

/// Makes the same frame while the reference becomes the current content.
pub fn check_advance(current: &[u8], reference: &[u8], options: &Options, frame: &[u8]) {
    let seen = std::sync::Mutex::new(Vec::new());
    let (mut kept, mut advanced) = (reference.to_vec(), Vec::new());
    delta::advance_into(current, &mut kept, options, &mut advanced, &|chunk: delta::EncodedChunk<'_>| {
        let range = chunk.start..chunk.start + chunk.content.len();
        assert!(chunk.content == &current[range.clone()]);
        let differ = |[a, b]: [&[u8]; 2]| a.iter().zip(b).filter(|(a, b)| a != b).count();
        assert_eq!(differ(chunk.elements), differ([&current[range.clone()], &reference[range.clone()]]));
        seen.lock().unwrap().push(range);
    })
    .unwrap();
    assert!(kept == current && advanced == frame);
    let mut seen = seen.into_inner().unwrap();
    seen.sort_by_key(|range| range.start);
    let end = seen.iter().fold(0, |end, range| {
        assert_eq!(range.start, end);
        range.end
    });
    assert_eq!(end, current.len());
}

/// Encodes, decodes by every function, and returns the frame.
pub fn check(current: &[u8], reference: &[u8], options: &Options) -> Vec<u8> {
    let decoding = DecodeOptions::default();
    let frame = delta::compress(current, reference, options).unwrap();
    assert!(delta::is_delta(&frame));
    assert!(frame.len() <= current.len() + 2400 + (current.len() / 262_144 + 2) * 31);
    let decoded = delta::decompress(&frame, reference, &decoding).unwrap();
    assert!(decoded == current, "{options:?}, {} bytes", current.len());
    let mut out = vec![0xAA; current.len()];
    delta::decompress_into(&frame, reference, &mut out, &decoding).unwrap();
    assert!(out == current);
    let mut buffer = reference.to_vec();
    delta::apply(&frame, &mut buffer, &decoding).unwrap();
    assert!(buffer == current);
    let parsed = ParsedDelta::parse(&frame).unwrap();
    if parsed.is_invertible() {
        parsed.revert(&mut buffer, &decoding).unwrap();
        assert!(buffer == reference);
    }
    check_advance(current, reference, options, &frame);
    let mut buffer = reference.to_vec();
    parsed.verify(&buffer, &decoding).unwrap();
    parsed.apply_verified(&mut buffer, &decoding).unwrap();
    assert!(buffer == current);
    let (mut buffer, mut seen) = (reference.to_vec(), 0);
    let changes = parsed.verify_parts(reference, &decoding, |at, old, new, changed| {
        let part = &mut buffer[at as usize..at as usize + new.len()];
        assert!(part == old);
        match changed {
            None => part.copy_from_slice(new),
            Some(ChangedPlaces { size, elements }) => {
                assert!(elements.is_sorted_by(|a, b| a < b));
                for range in
                    elements.iter().map(|&element| element as usize * size..(element as usize + 1) * size)
                {
                    part[range.clone()].copy_from_slice(&new[range]);
                }
            }
        }
        assert_eq!(at, seen);
        seen += new.len() as u64;
    });
    changes.unwrap();
    assert!(buffer == current && seen == current.len() as u64);
    let info = delta::inspect(&frame).unwrap();
    assert_eq!((info.format, info.version), ("Z4DL", 3));
    assert_eq!((info.content_len, info.frame_len), (current.len() as u64, frame.len() as u64));
    frame
}

/// A fine-tune of `count` weights: small ones move by many representable values, large ones seldom.
pub fn fine_tune(kind: Kind, count: usize, random: &mut Random) -> (Vec<u8>, Vec<u8>) {
    let reference = weights(kind, count, random);
    let mut current = reference.clone();
    for element in current.chunks_exact_mut(kind.size()) {
        let noise = f64::from(random.next() as u32) / f64::from(u32::MAX) - 0.5;
        let value: f64 = match kind {
            Kind::Bf16 => f32::from_le_bytes([0, 0, element[0], element[1]]).into(),
            Kind::F32 => f32::from_le_bytes(element.try_into().unwrap()).into(),
            _ => f64::from_le_bytes(element.try_into().unwrap()),
        };
        let moved = value + noise * 1e-5;
        match kind {
            Kind::Bf16 => {
                let nearest = ((moved as f32).to_bits() + 0x8000) >> 16;
                element.copy_from_slice(&(nearest as u16).to_le_bytes());
            }
            Kind::F32 => element.copy_from_slice(&(moved as f32).to_le_bytes()),
            _ => element.copy_from_slice(&moved.to_le_bytes()),
        }
    }
    (reference, current)
}

/// Frames whose differences are in classes: distances, and bits.
pub fn classed_frames() -> Vec<(Vec<u8>, Vec<u8>, Vec<u8>)> {
    let mut random = Random(23);
    let (reference, current) = fine_tune(Kind::Bf16, 8200, &mut random);
    // The lowest bits of small values flip, and those of others do not.
    let mut flipped = reference.clone();
    for element in flipped.chunks_exact_mut(2) {
        let small = u16::from_le_bytes([element[0], element[1]]) & 0x7fff < 0x3b00;
        element[0] ^= u8::from(small && random.below(2) == 0);
    }
    let frame = |current: Vec<u8>| {
        let frame = check(&current, &reference, &options(Kind::Bf16));
        (frame, reference.clone(), current)
    };
    vec![frame(current), frame(flipped)]
}

/// Two steps of a moment of an optimizer: it decays, and something of either sign, or something positive,
/// is added, of one scale for elements of several.
pub fn moment(count: usize, factor: f32, positive: bool, random: &mut Random) -> (Vec<u8>, Vec<u8>) {
    let (mut reference, mut current) = (Vec::new(), Vec::new());
    // Sums of three are about normal.
    let mut normal = || (0..3).map(|_| random.next() as u32 as f32 / u32::MAX as f32 - 0.5).sum::<f32>();
    for i in 0..count {
        let before = normal() * 2f32.powi(-20 - (i / 256 % 8) as i32);
        let new = normal() * (1.0 - factor) * 2f32.powi(-20);
        let (before, new) = if positive { (before.abs(), new.abs()) } else { (before, new) };
        reference.extend(before.to_le_bytes());
        current.extend((before * factor + new).to_le_bytes());
    }
    (reference, current)
}

/// Frames of residuals in bins, with infinities, NaN, zeros, subnormals and changed signs among them.
pub fn binned_frame() -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    let (mut reference, mut current) = moment(8200, 0.99, false, &mut Random(31));
    let special =
        [0u32, 1 << 31, 1, 0x7f80_0000, 0xff80_0000, 0x7fc0_0001, 0xffff_ffff, 0x0080_0000, 15 << 23];
    for (i, &now) in special.iter().enumerate() {
        for (j, &before) in special.iter().enumerate() {
            let at = (100 + 9 * i + j) * 4;
            reference[at..at + 4].copy_from_slice(&before.to_le_bytes());
            current[at..at + 4].copy_from_slice(&now.to_le_bytes());
        }
    }
    let frame = check(&current, &reference, &options(Kind::F32));
    (frame, reference, current)
}

/// The relation of the only chunk of a frame to its reference.
pub fn relation(frame: &[u8]) -> u8 {
    frame[first_description(frame) + 4 + 8 + 8 + 8]
}

pub fn first_description(frame: &[u8]) -> usize {
    frame.len() - u32::from_le_bytes(frame[24..28].try_into().unwrap()) as usize
}

/// Makes the checksum of header and index that of what they are now.
pub fn reseal(frame: &mut [u8]) {
    let len = frame.len();
    let index_len = u32::from_le_bytes(frame[24..28].try_into().unwrap()) as usize;
    if frame[6] == 0 && (8..=len - 32).contains(&index_len) {
        let head = [&frame[..32], &frame[len - index_len..len - 8]].concat();
        let seal = twox_hash::XxHash3_64::oneshot(&head).to_le_bytes();
        frame[len - 8..].copy_from_slice(&seal);
    }
}

/// Small frames of every make: lists by gaps and marks, planes, planes with a list, no reference,
/// nothing changed, classes, bins.
pub fn small_frames() -> Vec<(Vec<u8>, Vec<u8>, Vec<u8>)> {
    let mut random = Random(21);
    let mut frames = Vec::new();
    for (kind, one_in, steps) in [
        (Kind::Bf16, 40, 1),
        (Kind::Bf16, 6, 1),
        (Kind::F32, 1, 1 << 12),
        (Kind::F64, 1, 1 << 20),
        (Kind::I8, 2, 1),
        (Kind::Raw, 1, 1 << 40),
        (Kind::U32, 1 << 40, 1),
        (Kind::F16, 1 << 40, 1),
    ] {
        let reference = weights(kind, 200, &mut random);
        let mut current = reference.clone();
        nudge(&mut current, kind.size(), one_in, steps, &mut random);
        match kind {
            // A few elements leave the planes.
            Kind::F32 => [3, 100, 101].iter().for_each(|at| current[at * 4 + 3] ^= 0x40),
            // Signs alone.
            Kind::F16 => (0..200).step_by(3).for_each(|at| current[at * 2 + 1] ^= 0x80),
            _ => {}
        }
        let frame = check(&current, &reference, &options(kind));
        frames.push((frame, reference, current));
    }
    frames.extend(classed_frames());
    frames.push(binned_frame());
    frames
}

/// A reference, the same after a few changes, and the delta.
pub fn few_changes(seed: u64) -> [Vec<u8>; 3] {
    let mut random = Random(seed);
    let reference = weights(Kind::Bf16, 600_000, &mut random);
    let mut current = reference.clone();
    nudge(&mut current, 2, 10, 1, &mut random);
    let frame = check(&current, &reference, &options(Kind::Bf16));
    [reference, current, frame]
}
