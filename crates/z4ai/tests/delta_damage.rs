//! Deltas that are damaged, of another reference, or no deltas: refused before anything changes.

mod common;

use common::Random;
use common::deltas::*;
use z4ai::delta::ParsedDelta;
use z4ai::{DecodeOptions, ErrorKind, Kind, delta};

#[test]
fn another_reference_is_refused_before_anything_is_produced() {
    let [reference, current, frame] = few_changes(19);
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
    let [reference, current, frame] = few_changes(20);
    let mut random = Random(21);
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
