//! Frames of which only a part is fetched.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use z4ai::partial::{self, Outline};
use z4ai::{Array, DecodeOptions, Effort, ErrorKind, Kind, Options};

/// Weights as bf16, and the first third of them once more: a frame with several chunks and copies.
fn data(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let weight = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let exponent = 120 - (state >> 40).trailing_zeros().min(8) as u16;
        (((state >> 48) as u16 & 0x807f) | exponent << 7).to_le_bytes()
    };
    let mut bytes: Vec<u8> = (0..len / 2).flat_map(weight).collect();
    let repeated = bytes[..len / 6 * 2].to_vec();
    bytes.extend(repeated);
    bytes
}

fn part(frame: &[u8], range: Range<u64>) -> Vec<u8> {
    frame[range.start as usize..range.end as usize].to_vec()
}

fn outline(frame: &[u8]) -> z4ai::Result<Outline> {
    let len = frame.len() as u64;
    let head = part(frame, 0..len.min(partial::HEAD));
    let index = part(frame, partial::index_range(&head, len)?);
    Outline::new(head, index, len)
}

/// Decodes a range from just what it needs; says how many bytes of the frame that were.
fn fetched(frame: &[u8], range: Range<u64>) -> z4ai::Result<(Vec<u8>, u64)> {
    let outline = outline(frame)?;
    let needed = outline.needed(range.clone())?;
    let bytes = needed.iter().map(|range| range.end - range.start).sum();
    let pieces: Vec<_> = needed.into_iter().map(|range| (range.start, part(frame, range))).collect();
    let mut out = vec![0; (range.end - range.start) as usize];
    outline.decompress_bytes(&pieces, range, &mut out, &DecodeOptions::default())?;
    Ok((out, bytes))
}

fn options(effort: Effort, array: bool) -> Options {
    let array = array.then(|| Array { dtype: "bfloat16".into(), shape: vec![1] });
    Options { kind: Kind::Bf16, effort, array, ..Options::default() }
}

#[test]
fn any_range_from_just_its_chunks() {
    let data = data(3 << 20, 5);
    let len = data.len() as u64;
    for (effort, array) in [(Effort::Fast, false), (Effort::Default, true), (Effort::Balanced, false)] {
        let frame = z4ai::compress(&data, &options(effort, array)).unwrap();
        assert_eq!(outline(&frame).unwrap().info().content_len, len);
        for range in [0..1, 7..100, len / 2..len / 2 + 999, len - 3..len, 5..5, 100_000..1_000_000, 0..len] {
            let (out, bytes) = fetched(&frame, range.clone()).unwrap();
            assert!(out == data[range.start as usize..range.end as usize], "{effort:?} {range:?}");
            assert!(bytes <= frame.len() as u64);
            if range.end - range.start < 1000 {
                assert!(bytes < frame.len() as u64 / 5, "{effort:?} {range:?}: {bytes} of {}", frame.len());
            }
        }
        // A range that is partly copied needs chunks that do not touch; the fast tier has no
        // copies.
        let tail = outline(&frame).unwrap().needed(len / 4 * 3 - 2000..len / 4 * 3 + 2000).unwrap();
        assert!(tail.windows(2).all(|pair| pair[0].end < pair[1].start));
        assert!(tail.len() > 1 || effort == Effort::Fast, "{effort:?}: {tail:?}");
    }
}

#[test]
fn chunks_that_are_fetched_one_by_one() {
    let data = data(3 << 20, 11);
    let len = data.len() as u64;
    for effort in [Effort::Fast, Effort::Default, Effort::Balanced] {
        let frame = z4ai::compress(&data, &options(effort, true)).unwrap();
        let outline = outline(&frame).unwrap();
        for (range, threads) in [(0..len, 1), (0..len, 3), (0..len, 99), (7..500_001, 2), (9..9, 2)] {
            let fetched = AtomicU64::new(0);
            let fetch = |at: u64, out: &mut [u8]| {
                out.copy_from_slice(&frame[at as usize..at as usize + out.len()]);
                fetched.fetch_add(out.len() as u64, Ordering::Relaxed);
                true
            };
            let mut out = vec![0; (range.end - range.start) as usize];
            let options = DecodeOptions { threads, ..DecodeOptions::default() };
            outline.decompress_fetched(fetch, range.clone(), &mut out, &options).unwrap();
            assert!(out == data[range.start as usize..range.end as usize], "{effort:?} {range:?}");
            let needed: u64 =
                outline.needed(range).unwrap().iter().map(|range| range.end - range.start).sum();
            assert_eq!(fetched.into_inner(), needed, "each chunk once");
        }
        // Bytes that cannot be had, or are others.
        let (mut out, options) = (vec![0; data.len()], DecodeOptions::default());
        let missing = |at: u64, out: &mut [u8]| {
            out.fill(0);
            at < len / 4
        };
        let error = outline.decompress_fetched(missing, 0..len, &mut out, &options).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Cancelled | ErrorKind::Corrupt), "{error}");
        let error = outline.decompress_fetched(|_, _| false, 0..len, &mut out, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
    }
}

#[test]
fn what_is_missing_or_damaged_is_an_error() {
    let data = data(1 << 20, 9);
    let frame = z4ai::compress(&data, &options(Effort::Default, false)).unwrap();
    let (len, whole) = (frame.len() as u64, outline(&frame).unwrap());
    let mut out = vec![0; 100];
    let none: [(u64, &[u8]); 0] = [];
    let decode = |outline: &Outline, pieces: &[(u64, Vec<u8>)], out: &mut [u8]| {
        outline.decompress_bytes(pieces, 50..150, out, &DecodeOptions::default())
    };
    assert!(whole.decompress_bytes(&none, 500_000..500_100, &mut out, &DecodeOptions::default()).is_err());
    let [needed] = &whole.needed(50..150).unwrap()[..] else { panic!("one chunk") };
    let piece = part(&frame, needed.clone());
    decode(&whole, &[(needed.start, piece.clone())], &mut out).unwrap();
    assert_eq!(out, data[50..150]);
    // Too short, at another place, with a flipped bit.
    assert!(decode(&whole, &[(needed.start, piece[..piece.len() - 1].to_vec())], &mut out).is_err());
    assert!(decode(&whole, &[(needed.start + 1, piece.clone())], &mut out).is_err());
    let mut damaged = piece.clone();
    damaged[piece.len() / 2] ^= 4;
    let error = decode(&whole, &[(needed.start, damaged)], &mut out).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    // Ranges that are not there.
    let content = data.len() as u64;
    for range in [content..content + 1, content + 1..content + 1, 0..u64::MAX] {
        assert!(whole.needed(range).is_err());
    }
    #[allow(clippy::reversed_empty_ranges)]
    let reversed = whole.needed(7..5);
    assert!(reversed.is_err());
    // Every bit of head and index counts.
    let index = partial::index_range(&frame, len).unwrap();
    for at in (0..32).chain(index.start..len) {
        let mut damaged = frame.clone();
        damaged[at as usize] ^= 1 << (at % 8);
        assert!(outline(&damaged).is_err(), "{at}");
    }
    // Heads and indexes that are cut short, or of a frame of another length.
    for short in 0..32 {
        assert!(partial::index_range(&frame[..short], len).is_err(), "{short}");
        assert!(Outline::new(frame[..short].to_vec(), part(&frame, index.clone()), len).is_err());
    }
    for wrong in [0, 31, 32, len - 1, len + 1, u64::MAX] {
        assert!(partial::index_range(&frame, wrong).is_err(), "{wrong}");
        assert!(Outline::new(frame[..64].to_vec(), part(&frame, index.clone()), wrong).is_err(), "{wrong}");
    }
    assert!(Outline::new(frame[..64].to_vec(), part(&frame, index.start + 1..len), len).is_err());
    assert!(Outline::new(frame[..64].to_vec(), Vec::new(), len).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn ranges_of_frames_of_any_length(len in 0usize..900_000, seed: u64, a: prop::sample::Index, b: prop::sample::Index) {
        let data = data(len, seed);
        let frame = z4ai::compress(&data, &options(Effort::Default, false)).unwrap();
        let (a, b) = (a.index(data.len() + 1) as u64, b.index(data.len() + 1) as u64);
        let range = a.min(b)..a.max(b);
        let (out, _) = fetched(&frame, range.clone()).unwrap();
        prop_assert!(out == data[range.start as usize..range.end as usize]);
    }
}
