//! Deltas: what was current comes back, from its own reference and from no other.

mod common;

use common::Random;
use common::data::nudge;
use proptest::prelude::*;
use z4ai::delta::{ChangedPlaces, ParsedDelta};
use z4ai::{Array, DecodeOptions, Effort, ErrorKind, Kind, Options, delta};

fn options(kind: Kind) -> Options {
    Options { kind, ..Options::default() }
}

/// Values around zero whose exponents vary as those of weights do, as bytes of `kind`.
fn weights(kind: Kind, count: usize, random: &mut Random) -> Vec<u8> {
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
fn check_advance(current: &[u8], reference: &[u8], options: &Options, frame: &[u8]) {
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
fn check(current: &[u8], reference: &[u8], options: &Options) -> Vec<u8> {
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

#[test]
fn every_kind_and_density_comes_back() {
    let mut random = Random(11);
    for kind in Kind::all() {
        let reference = weights(kind, 3001, &mut random);
        for (one_in, steps) in [(1, 1), (1, 100), (2, 1), (5, 1), (20, 3), (1000, 1), (5000, 1 << 40)] {
            let mut current = reference.clone();
            nudge(&mut current, kind.size(), one_in, steps, &mut random);
            for effort in [Effort::Fast, Effort::Default] {
                check(&current, &reference, &Options { effort, ..options(kind) });
            }
        }
    }
}

#[test]
fn equal_buffers_take_almost_nothing() {
    let mut random = Random(12);
    let reference = weights(Kind::Bf16, 1 << 20, &mut random);
    let frame = check(&reference, &reference, &options(Kind::Bf16));
    // Header, checksum, and the description of each chunk: no payload at all.
    assert_eq!(frame.len(), 32 + 8 + 34 * delta::inspect(&frame).unwrap().chunks);
}

#[test]
fn empty_and_odd_lengths_come_back() {
    let mut random = Random(13);
    for kind in Kind::all() {
        for len in [0, 1, 2, 3, 5, 7, 8, 9, 63, 4097] {
            let reference: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
            let mut current = reference.clone();
            nudge(&mut current, 1, 3, 5, &mut random);
            check(&current, &reference, &options(kind));
        }
    }
}

#[test]
fn unrelated_buffers_cost_no_more_than_without_a_reference() {
    let mut random = Random(14);
    for kind in [Kind::Bf16, Kind::F32, Kind::I8] {
        let reference = weights(kind, 300_000, &mut random);
        let current = weights(kind, 300_000, &mut random);
        let frame = check(&current, &reference, &options(kind));
        let plain = z4ai::compress(&current, &options(kind)).unwrap();
        assert!(frame.len() <= plain.len() + 100, "{kind:?}: {} against {}", frame.len(), plain.len());
    }
}

#[test]
fn flipped_signs_are_few_bits() {
    let mut random = Random(15);
    let reference = weights(Kind::F32, 100_000, &mut random);
    let mut current = reference.clone();
    for element in current.chunks_exact_mut(4) {
        element[3] ^= (random.next() as u8 & 1) << 7;
    }
    let frame = check(&current, &reference, &options(Kind::F32));
    assert!(frame.len() < 14_000, "{}", frame.len());
}

#[test]
fn small_changes_take_few_bits() {
    let mut random = Random(16);
    let count = 500_000;
    let reference = weights(Kind::Bf16, count, &mut random);
    // One in `one_in` changed by one step, and the most bits an element may take: the entropy of
    // where and which way, and a tenth more.
    for (one_in, bits) in [(100, 0.0908), (20, 0.3364), (5, 0.9219)] {
        let mut current = reference.clone();
        nudge(&mut current, 2, one_in, 1, &mut random);
        let frame = check(&current, &reference, &options(Kind::Bf16));
        let spent = frame.len() as f64 * 8.0 / count as f64;
        assert!(spent < bits * 1.1, "one in {one_in}: {spent} bits");
    }
}

#[test]
fn frames_do_not_depend_on_threads() {
    let mut random = Random(17);
    let reference = weights(Kind::Bf16, 2 << 20, &mut random);
    let mut current = reference.clone();
    nudge(&mut current, 2, 7, 2, &mut random);
    let frames = [1, 2, 5].map(|threads| {
        delta::compress(&current, &reference, &Options { threads, ..options(Kind::Bf16) }).unwrap()
    });
    assert!(frames[0] == frames[1] && frames[0] == frames[2]);
    for threads in [1, 3] {
        let decoding = DecodeOptions { threads, ..DecodeOptions::default() };
        assert!(delta::decompress(&frames[0], &reference, &decoding).unwrap() == current);
        let mut buffer = reference.clone();
        delta::apply(&frames[0], &mut buffer, &decoding).unwrap();
        assert!(buffer == current);
    }
}

#[test]
fn ranges_need_only_their_part_of_the_reference() {
    let mut random = Random(18);
    let reference = weights(Kind::F32, 1_000_000, &mut random);
    let mut current = reference.clone();
    nudge(&mut current, 4, 3, 9, &mut random);
    let frame = check(&current, &reference, &options(Kind::F32));
    let decoding = DecodeOptions::default();
    for (start, end) in [(0, 0), (0, 1), (131_071, 131_073), (200_000, 450_001), (999_999, 1_000_000)] {
        let mut out = vec![0; (end - start) * 4];
        delta::decompress_range(&frame, &reference, start as u64..end as u64, &mut out, &decoding).unwrap();
        assert!(out == current[start * 4..end * 4]);
    }
    // Another byte far away does not matter; one in the same chunk does.
    let mut far = reference.clone();
    *far.last_mut().unwrap() ^= 1;
    let mut out = vec![0; 400];
    delta::decompress_range(&frame, &far, 0..100, &mut out, &decoding).unwrap();
    assert!(out == current[..400]);
    let error = delta::decompress_range(&frame, &far, 999_900..1_000_000, &mut out, &decoding).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch);
    let error =
        delta::decompress_range(&frame, &reference, 999_901..1_000_001, &mut out, &decoding).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn another_reference_is_refused_before_anything_is_produced() {
    let mut random = Random(19);
    let reference = weights(Kind::Bf16, 600_000, &mut random);
    let mut current = reference.clone();
    nudge(&mut current, 2, 10, 1, &mut random);
    let frame = check(&current, &reference, &options(Kind::Bf16));
    let decoding = DecodeOptions::default();
    let changed = |at: usize| {
        let mut changed = reference.clone();
        changed[at] ^= 0x10;
        changed
    };
    let longer = [&reference[..], &[0]].concat();
    let shorter = reference[..reference.len() - 1].to_vec();
    for wrong in [changed(0), changed(reference.len() - 1), longer, shorter, vec![], current.clone()] {
        let error = delta::decompress(&frame, &wrong, &decoding).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        let mut out = vec![0x55; current.len()];
        let error = delta::decompress_into(&frame, &wrong, &mut out, &decoding).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        assert!(out.iter().all(|&byte| byte == 0x55));
        let mut buffer = wrong.clone();
        let error = delta::apply(&frame, &mut buffer, &decoding).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        assert!(buffer == wrong);
        let parsed = ParsedDelta::parse(&frame).unwrap();
        assert_eq!(parsed.verify(&wrong, &decoding).unwrap_err().kind(), ErrorKind::Mismatch);
        let error = parsed.verify_parts(&wrong, &decoding, |_, _, _, _| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
    }
    let parsed = ParsedDelta::parse(&frame).unwrap();
    assert!(parsed.apply_verified(&mut reference[1..].to_vec(), &decoding).is_err());
}

#[test]
fn a_damaged_frame_leaves_the_buffer_as_it_was() {
    let mut random = Random(20);
    let reference = weights(Kind::Bf16, 600_000, &mut random);
    let mut current = reference.clone();
    nudge(&mut current, 2, 10, 1, &mut random);
    let frame = check(&current, &reference, &options(Kind::Bf16));
    for _ in 0..50 {
        let mut bad = frame.clone();
        bad[random.below(frame.len())] ^= 1 << random.below(8);
        let mut buffer = reference.clone();
        delta::apply(&bad, &mut buffer, &DecodeOptions::default()).unwrap_err();
        assert!(buffer == reference);
        let Ok(parsed) = ParsedDelta::parse(&bad) else { continue };
        if parsed.verify(&buffer, &DecodeOptions::default()).is_ok() {
            // A bit that nothing depends on.
            parsed.apply_verified(&mut buffer, &DecodeOptions::default()).unwrap();
            assert!(buffer == current);
        }
    }
}

/// A fine-tune of `count` weights: small ones move by many representable values, large ones seldom.
fn fine_tune(kind: Kind, count: usize, random: &mut Random) -> (Vec<u8>, Vec<u8>) {
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
fn classed_frames() -> Vec<(Vec<u8>, Vec<u8>, Vec<u8>)> {
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
fn moment(count: usize, factor: f32, positive: bool, random: &mut Random) -> (Vec<u8>, Vec<u8>) {
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
fn binned_frame() -> (Vec<u8>, Vec<u8>, Vec<u8>) {
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
fn relation(frame: &[u8]) -> u8 {
    frame[first_description(frame) + 4 + 8 + 8 + 8]
}

fn first_description(frame: &[u8]) -> usize {
    frame.len() - u32::from_le_bytes(frame[24..28].try_into().unwrap()) as usize
}

#[test]
fn state_that_decays_is_found_by_its_values() {
    for (factor, positive) in [(0.9, false), (0.97, false), (0.999, true), (0.9987, true)] {
        let (reference, current) = moment(60_000, factor, positive, &mut Random(33));
        for effort in Effort::all() {
            let frame = check(&current, &reference, &Options { effort, ..options(Kind::F32) });
            assert_eq!(relation(&frame) == 5, effort > Effort::Fast, "{factor} {}", effort.name());
            if effort > Effort::Fast {
                let at = first_description(&frame) + 29;
                let found = f32::from_le_bytes(frame[at..at + 4].try_into().unwrap());
                // What is added has one sign: a factor that is too large would leave the other one.
                assert!(!positive || (found - factor).abs() < 0.002, "{found} for {factor}");
                let fast = Options { effort: Effort::Fast, ..options(Kind::F32) };
                let planes = delta::compress(&current, &reference, &fast).unwrap();
                assert!(frame.len() < planes.len(), "{} of {}", frame.len(), planes.len());
            }
        }
    }
}

#[test]
fn bins_that_do_not_fit_are_refused() {
    let (frame, reference, _) = binned_frame();
    assert_eq!(relation(&frame), 5);
    let at = first_description(&frame) + 29;
    let classes = usize::from(frame[at + 4]);
    assert!(classes > 2);
    let first = at + 5 + classes - 1;
    let refused = |change: &dyn Fn(&mut [u8])| {
        let mut bad = frame.clone();
        change(&mut bad);
        reseal(&mut bad);
        let error = delta::decompress(&bad, &reference, &DecodeOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        let mut buffer = reference.clone();
        delta::apply(&bad, &mut buffer, &DecodeOptions::default()).unwrap_err();
        error.to_string()
    };
    for factor in [0f32, -0.5, 1.5, f32::NAN, f32::INFINITY, 1e-6] {
        assert!(refused(&|bad| bad[at..at + 4].copy_from_slice(&factor.to_le_bytes())).contains("factor"));
    }
    // Too few, too many, thresholds that are zero or equal.
    assert!(refused(&|bad| bad[at + 4] = 0).contains("classes"));
    assert!(refused(&|bad| bad[at + 4] = 9).contains("classes"));
    assert!(refused(&|bad| bad[at + 5] = 0).contains("follow"));
    assert!(refused(&|bad| bad[at + 5] = bad[at + 6]).contains("follow"));
    // More elements than there are, and another class for some of them.
    assert!(refused(&|bad| bad[first + 3] = 0xff).contains("not all"));
    assert!(refused(&|bad| bad[first] ^= 1).contains("not all"));
    refused(&|bad| bad[at + 5] -= 1);
    // More bytes of offsets than any elements have.
    let end = frame.len() - 8;
    assert!(refused(&|bad| bad[end - 1] = 0xff).contains("not all"));
    // Elements of another kind.
    assert!(refused(&|bad| bad[5] = 6).contains("fp32"));
}

/// The bits that an element takes at least if its distance is coded byte by byte, one code for all.
fn bits_without_classes(size: usize, current: &[u8], reference: &[u8]) -> f64 {
    let order = |element: &[u8]| {
        let mut word = [0; 8];
        word[8 - size..].copy_from_slice(element);
        let bits = i64::from_le_bytes(word);
        (if bits < 0 { bits ^ i64::MAX } else { bits }) >> (64 - 8 * size)
    };
    let pairs = current.chunks_exact(size).zip(reference.chunks_exact(size));
    let distances: Vec<i64> = pairs.map(|(now, before)| order(now) - order(before)).collect();
    let mut bits = 0.0;
    for byte in 0..size {
        let mut counts = [0f64; 256];
        distances.iter().for_each(|&d| counts[(d << 1 ^ d >> 63) as usize >> (8 * byte) & 255] += 1.0);
        let total = distances.len() as f64;
        bits += counts.iter().filter(|&&n| n > 0.0).map(|n| n / total * (total / n).log2()).sum::<f64>();
    }
    bits
}

#[test]
fn classes_by_magnitude_make_fine_tunes_smaller() {
    let mut random = Random(24);
    for (kind, effort) in [(Kind::Bf16, Effort::Default), (Kind::F32, Effort::Balanced)] {
        let (reference, current) = fine_tune(kind, 200_000, &mut random);
        let frame = check(&current, &reference, &Options { effort, ..options(kind) });
        let spent = frame.len() as f64 * 8.0 / 200_000.0;
        let least = bits_without_classes(kind.size(), &current, &reference);
        assert!(spent < least * 0.95, "{kind:?}: {spent} bits of {least}");
    }
}

/// Frames kept as they were first written, `Z4AI_WRITE_GOLDEN=1` writes those that are missing.
#[test]
fn golden_deltas_stay_readable() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let names = ["gaps", "marks", "planes_and_list", "planes", "bytes", "fresh", "unchanged", "bits"];
    let classed = ["distances_in_classes", "bits_in_classes", "bins"];
    let frames = small_frames();
    assert_eq!(frames.len(), names.len() + classed.len());
    for ((frame, reference, current), name) in frames.into_iter().zip(names.into_iter().chain(classed)) {
        let path = |kind: &str| folder.join(format!("delta_{name}.{kind}"));
        if !path("z4dl").exists() && std::env::var_os("Z4AI_WRITE_GOLDEN").is_some() {
            for (kind, bytes) in [("z4dl", frame), ("ref", reference), ("raw", current)] {
                std::fs::write(path(kind), bytes).unwrap();
            }
        }
        let [frame, reference, current] =
            ["z4dl", "ref", "raw"].map(|kind| std::fs::read(path(kind)).expect("a golden file"));
        let decoded = delta::decompress(&frame, &reference, &DecodeOptions::default()).unwrap();
        assert!(decoded == current, "{name}");
    }
}

/// Makes the checksum of header and index that of what they are now.
fn reseal(frame: &mut [u8]) {
    let len = frame.len();
    let index_len = u32::from_le_bytes(frame[24..28].try_into().unwrap()) as usize;
    if frame[6] == 0 && (8..=len - 32).contains(&index_len) {
        let head = [&frame[..32], &frame[len - index_len..len - 8]].concat();
        let seal = twox_hash::XxHash3_64::oneshot(&head).to_le_bytes();
        frame[len - 8..].copy_from_slice(&seal);
    }
}

/// Descriptions that say something else, sealed as if they had always said so.
#[test]
fn changed_descriptions_never_panic() {
    let mut random = Random(25);
    for (frame, reference, _) in small_frames() {
        let index_len = u32::from_le_bytes(frame[24..28].try_into().unwrap()) as usize;
        for _ in 0..3000 {
            let mut bad = frame.clone();
            for _ in 0..1 + random.below(3) {
                let at = frame.len() - index_len + random.below(index_len - 8);
                bad[at] = random.next() as u8;
            }
            reseal(&mut bad);
            let _ = delta::decompress(&bad, &reference, &DecodeOptions::default());
            let _ = delta::inspect(&bad);
        }
    }
}

#[test]
fn classes_that_do_not_fit_are_refused() {
    let (frame, reference, _) = classed_frames().remove(0);
    let index_len = u32::from_le_bytes(frame[24..28].try_into().unwrap()) as usize;
    // Length, checksum, reference, stored and relation stand before the classes.
    let at = frame.len() - index_len + 4 + 8 + 8 + 8 + 1;
    let classes = usize::from(frame[at]);
    assert_eq!(frame[at - 1], 4);
    let counts = at + 1 + 2 * (classes - 1);
    let refused = |change: &dyn Fn(&mut [u8])| {
        let mut bad = frame.clone();
        change(&mut bad);
        reseal(&mut bad);
        let error = delta::decompress(&bad, &reference, &DecodeOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        error.to_string()
    };
    // Too few, too many, thresholds that are zero, too large, equal.
    assert!(refused(&|bad| bad[at] = 1).contains("classes"));
    assert!(refused(&|bad| bad[at] = 9).contains("classes"));
    assert!(refused(&|bad| bad[at + 1..at + 3].fill(0)).contains("follow"));
    assert!(refused(&|bad| bad[counts - 1] = 0x80).contains("follow"));
    assert!(refused(&|bad| bad.copy_within(at + 1..at + 3, at + 3)).contains("follow"));
    // Counts that are not all, and counts that the reference does not have.
    assert!(refused(&|bad| bad[counts] ^= 1).contains("not all"));
    refused(&|bad| {
        let count = |at: usize| u32::from_le_bytes(frame[at..at + 4].try_into().unwrap());
        let last = counts + 4 * (classes - 1);
        bad[counts..counts + 4].copy_from_slice(&(count(counts) + 8).to_le_bytes());
        bad[last..last + 4].copy_from_slice(&(count(last) - 8).to_le_bytes());
    });
    // One threshold a little higher: some elements are of another class.
    assert!(refused(&|bad| bad[at + 1] ^= 0x40).contains("reference does not have"));
}

/// Small frames of every make: lists by gaps and marks, planes, planes with a list, no reference,
/// nothing changed, classes, bins.
fn small_frames() -> Vec<(Vec<u8>, Vec<u8>, Vec<u8>)> {
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

#[test]
fn every_flipped_bit_is_noticed() {
    for (frame, reference, _) in small_frames() {
        // Every bit of all but the long ones, of these one of every few bytes.
        for at in (0..frame.len()).step_by(1 + frame.len() / 1000) {
            for bit in 0..8 {
                let mut bad = frame.clone();
                bad[at] ^= 1 << bit;
                let result = delta::decompress(&bad, &reference, &DecodeOptions::default());
                assert!(result.is_err(), "byte {at} bit {bit} of {}", frame.len());
            }
        }
    }
}

/// Of the sixteen indices of a palette, those that nothing needs meant the same as the first.
#[test]
fn a_palette_with_room_hides_no_damage() {
    let current = b"kkkkk\xff\xff\xff\xff\xff\xff\xffFkkkkkk0kkk\0\0\0\x01\0\0\0\0\0kkk";
    let reference = b"kkkkkkkkkkkkkkkkk\x97\x14\xf4Zx\x03\n\n\xcdEE;\xba\xbaLEE\0";
    let frame = check(current, reference, &options(Kind::U8));
    for bit in 0..8 * frame.len() {
        let mut bad = frame.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let result = delta::decompress(&bad, reference, &DecodeOptions::default());
        assert!(result.is_err(), "bit {bit} of {}", frame.len());
    }
}

#[test]
fn frames_cut_anywhere_or_longer_are_refused() {
    for (frame, reference, _) in small_frames() {
        for cut in 0..frame.len() {
            delta::decompress(&frame[..cut], &reference, &DecodeOptions::default()).unwrap_err();
        }
        let longer = [&frame[..], &[0]].concat();
        delta::decompress(&longer, &reference, &DecodeOptions::default()).unwrap_err();
    }
}

#[test]
fn frames_and_deltas_refuse_each_other() {
    let (frame, reference, current) = small_frames().remove(0);
    let decoding = DecodeOptions::default();
    let error = z4ai::decompress(&frame, &decoding).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let plain = z4ai::compress(&current, &options(Kind::Bf16)).unwrap();
    assert!(!delta::is_delta(&plain));
    let error = delta::decompress(&plain, &reference, &decoding).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let error = delta::compress(&current, &reference[1..], &options(Kind::Bf16)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let limit = DecodeOptions { max_output: current.len() as u64 - 1, ..decoding.clone() };
    let error = delta::decompress(&frame, &reference, &limit).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    let error = delta::decompress_into(&frame, &reference, &mut [0; 3], &decoding).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn arrays_are_described() {
    let mut random = Random(22);
    let reference = weights(Kind::F32, 600, &mut random);
    let array = Array { dtype: "<f4".into(), shape: vec![20, 30] };
    let with_array = Options { array: Some(array.clone()), ..options(Kind::F32) };
    let frame = check(&reference, &reference, &with_array);
    assert_eq!(delta::inspect(&frame).unwrap().array, Some(array));
}

#[test]
fn version_2_deltas_are_decoded_by_the_same_functions() {
    let decoding = DecodeOptions::default();
    for sample in common::samples() {
        let Some(reference) = &sample.reference else { continue };
        assert!(delta::is_delta(&sample.frame));
        let decoded = delta::decompress(&sample.frame, reference, &decoding).unwrap();
        assert_eq!(common::sha256(&decoded), sample.sha256);
        let mut buffer = reference.clone();
        delta::apply(&sample.frame, &mut buffer, &decoding).unwrap();
        assert!(buffer == decoded);
        let parsed = ParsedDelta::parse(&sample.frame).unwrap();
        let mut buffer = reference.clone();
        parsed.verify(&buffer, &decoding).unwrap();
        parsed.apply_verified(&mut buffer, &decoding).unwrap();
        assert!(buffer == decoded);
        let mut part = [0; 10];
        delta::decompress_range(&sample.frame, reference, 100..110, &mut part, &decoding).unwrap();
        assert_eq!(part, decoded[100..110]);
        let info = delta::inspect(&sample.frame).unwrap();
        assert_eq!((info.format, info.version, info.content_len), ("Z4DL", 2, decoded.len() as u64));
        let mut wrong = reference.clone();
        wrong[7] ^= 1;
        let error = delta::apply(&sample.frame, &mut wrong, &decoding).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn anything_comes_back(
        kind in prop::sample::select(Kind::all().collect::<Vec<_>>()),
        reference in prop::collection::vec(any::<u8>(), 0..3000),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..200),
        dense in any::<bool>(),
    ) {
        let mut current = reference.clone();
        if !reference.is_empty() {
            for (at, value) in edits {
                current[at.index(reference.len())] = value;
            }
        }
        if dense {
            for (i, byte) in current.iter_mut().enumerate() {
                *byte = byte.wrapping_add((i % 3) as u8);
            }
        }
        check(&current, &reference, &options(kind));
    }

    /// Elements of any bits, predicted by any reference: enough of them that bins are considered.
    #[test]
    fn anything_in_bins_comes_back(
        seed in any::<u64>(),
        factor in 0.5f32..1.0,
        positive in any::<bool>(),
        count in 8192usize..12_000,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u32>(), any::<u32>()), 0..300),
    ) {
        let (mut reference, mut current) = moment(count, factor, positive, &mut Random(seed));
        for (at, before, now) in edits {
            let at = at.index(count) * 4;
            reference[at..at + 4].copy_from_slice(&before.to_le_bytes());
            current[at..at + 4].copy_from_slice(&now.to_le_bytes());
        }
        check(&current, &reference, &options(Kind::F32));
    }
}

#[test]
fn a_range_says_what_of_the_reference_it_reads() {
    // Several chunks, which are long where little changed.
    let before: Vec<u8> = (0..2_000_000u32).flat_map(|i| (i as f32).sqrt().to_le_bytes()).collect();
    let mut after = before.clone();
    after.iter_mut().step_by(4000).for_each(|byte| *byte ^= 1);
    let options = Options { kind: Kind::F32, ..Options::default() };
    let frame = delta::compress(&after, &before, &options).unwrap();
    let parsed = delta::ParsedDelta::parse(&frame).unwrap();
    let len = before.len() as u64;
    for range in [0..1, 5..100, 300_000..700_001, len - 1..len, 0..len] {
        let needed = parsed.reference_range(range.clone()).unwrap();
        assert!(needed.start <= range.start && needed.end >= range.end && needed.end <= len, "{range:?}");
        // Everything else may be anything.
        let mut partial = vec![0xAA; before.len()];
        let place = needed.start as usize..needed.end as usize;
        partial[place.clone()].copy_from_slice(&before[place]);
        let mut out = vec![0; (range.end - range.start) as usize];
        parsed.decompress_bytes(&partial, range.clone(), &mut out, &DecodeOptions::default()).unwrap();
        assert!(out == after[range.start as usize..range.end as usize], "{range:?}");
        // Or need not be there at all.
        let part = &before[needed.start as usize..needed.end as usize];
        out.fill(0);
        parsed.restore_bytes(part, range.clone(), &mut out, &DecodeOptions::default()).unwrap();
        assert!(out == after[range.start as usize..range.end as usize], "{range:?}");
        let short = parsed.restore_bytes(&part[1..], range.clone(), &mut out, &DecodeOptions::default());
        assert_eq!(short.unwrap_err().kind(), ErrorKind::Mismatch, "{range:?}");
        let mut wrong = part.to_vec();
        wrong[(range.start - needed.start) as usize] ^= 1;
        assert!(parsed.restore_bytes(&wrong, range.clone(), &mut out, &DecodeOptions::default()).is_err());
    }
    assert!(parsed.reference_range(0..1).unwrap().end < len / 2, "only a part");
    assert_eq!(parsed.reference_range(len..len + 5).unwrap(), 0..0);
}
