//! Deltas: what was current comes back, from its own reference and from no other.

mod common;

use common::Random;
use proptest::prelude::*;
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

/// Moves one element in `one_in` by up to `steps` of its lowest bit, either way.
fn nudge(bytes: &mut [u8], size: usize, one_in: usize, steps: i64, random: &mut Random) {
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

/// Encodes, decodes by every door, and returns the frame.
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
    // One in so many changed by one step, and the most bits an element may take: the entropy of
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
    }
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
    }
}

/// Small frames of every make: lists, planes, planes with a list, no reference, nothing changed.
fn small_frames() -> Vec<(Vec<u8>, Vec<u8>, Vec<u8>)> {
    let mut random = Random(21);
    let mut frames = Vec::new();
    for (kind, one_in, steps) in [
        (Kind::Bf16, 20, 1),
        (Kind::Bf16, 1, 100),
        (Kind::F32, 1, 1 << 12),
        (Kind::F64, 1, 1 << 20),
        (Kind::I8, 2, 1),
        (Kind::Raw, 1, 1 << 40),
        (Kind::U32, 1 << 40, 1),
    ] {
        let reference = weights(kind, 200, &mut random);
        let mut current = reference.clone();
        nudge(&mut current, kind.size(), one_in, steps, &mut random);
        if kind == Kind::F32 {
            // A few elements leave the planes.
            for at in [3, 100, 101] {
                current[at * 4 + 3] ^= 0x40;
            }
        }
        let frame = check(&current, &reference, &options(kind));
        frames.push((frame, reference, current));
    }
    frames
}

#[test]
fn every_flipped_bit_is_noticed() {
    for (frame, reference, _) in small_frames() {
        for at in 0..frame.len() {
            for bit in 0..8 {
                let mut bad = frame.clone();
                bad[at] ^= 1 << bit;
                let result = delta::decompress(&bad, &reference, &DecodeOptions::default());
                assert!(result.is_err(), "byte {at} bit {bit} of {}", frame.len());
            }
        }
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
fn doors_are_not_mixed_up() {
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
fn version_2_deltas_come_through_the_same_doors() {
    let decoding = DecodeOptions::default();
    for sample in common::samples() {
        let Some(reference) = &sample.reference else { continue };
        assert!(delta::is_delta(&sample.frame));
        let decoded = delta::decompress(&sample.frame, reference, &decoding).unwrap();
        assert_eq!(common::sha256(&decoded), sample.sha256);
        let mut buffer = reference.clone();
        delta::apply(&sample.frame, &mut buffer, &decoding).unwrap();
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
}
