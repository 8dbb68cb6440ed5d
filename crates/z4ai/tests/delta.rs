//! Deltas: what was current comes back, from its own reference.

mod common;

use common::Random;
use common::data::nudge;
use common::deltas::*;
use proptest::prelude::*;
use z4ai::delta::ParsedDelta;
use z4ai::{Array, DecodeOptions, Effort, ErrorKind, Kind, Options, delta};

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
