//! Damaged and hostile version 1 frames: an error or bytes, never a panic, a hang or memory out
//! of proportion.

mod common;

use common::memory::{Counting, peak_during};
use common::{Random, hostile, samples};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What decoding may hold besides the output: planes before they are joined, tables, and the
/// window of a brotli stream.
const TABLES: usize = 3 << 20;
const WINDOW: usize = 4 << 20;

#[test]
fn hostile_frames_are_refused_without_large_allocations() {
    let hostile = hostile();
    assert_eq!(hostile.len(), 12);
    for (name, frame) in hostile {
        for max_output in [1 << 20, u64::MAX] {
            let options = z4ai::DecodeOptions { max_output, ..Default::default() };
            let (result, peak) = peak_during(|| z4ai::decompress(&frame, &options));
            let error = result.unwrap_err();
            assert!(peak < 128 << 10, "{name}: {error}, {peak} bytes");
        }
    }
}

#[test]
fn samples_cut_anywhere_are_refused() {
    for sample in &samples() {
        let len = sample.frame.len();
        // Large frames everywhere near their ends, and at a stride between.
        let cuts = (0..len).filter(|&cut| len < 8000 || cut < 200 || cut > len - 100 || cut % 53 == 0);
        for cut in cuts {
            let result = sample.decode(&sample.frame[..cut], u64::MAX);
            assert!(result.is_err(), "{} cut to {cut} of {len}", sample.name);
        }
    }
}

#[test]
fn samples_with_more_bytes_are_refused() {
    for sample in &samples() {
        let longer = [sample.frame.as_slice(), &[0]].concat();
        assert!(sample.decode(&longer, u64::MAX).is_err(), "{}", sample.name);
    }
}

/// Decodes a damaged frame and checks what must hold of any input.
fn survive(sample: &common::Sample, damaged: &[u8], what: &str) {
    let limit = 2 * sample.len + 1000;
    let (result, peak) = peak_during(|| sample.decode(damaged, limit as u64));
    if let Ok(decoded) = result {
        assert!(decoded.len() <= limit, "{} {what}", sample.name);
    }
    let allowed = 4 * limit + 8 * damaged.len() + TABLES + WINDOW;
    assert!(peak <= allowed, "{} {what}: {peak} bytes", sample.name);
}

#[test]
fn damaged_headers_are_survived() {
    for sample in &samples() {
        let mut frame = sample.frame.clone();
        for at in 0..frame.len().min(120) {
            let good = frame[at];
            for bad in (0..8).map(|bit| good ^ 1 << bit).chain([0, 0xFF]) {
                frame[at] = bad;
                survive(sample, &frame, &format!("byte {at} = {bad}"));
            }
            frame[at] = good;
        }
    }
}

#[test]
fn absurd_numbers_are_survived() {
    let absurd = [u64::MAX, i64::MIN as u64, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 40];
    for sample in &samples() {
        for at in 0..sample.frame.len().min(80) {
            for number in absurd {
                for size in [4, 8] {
                    let mut frame = sample.frame.clone();
                    let end = frame.len().min(at + size);
                    frame[at..end].copy_from_slice(&number.to_le_bytes()[..end - at]);
                    survive(sample, &frame, &format!("{number:#x} at {at}"));
                }
            }
        }
    }
}

#[test]
fn random_damage_is_survived() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    for sample in &samples() {
        for round in 0..150 {
            let mut frame = sample.frame.clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(frame.len());
                frame[at] = match random.below(3) {
                    0 => random.next() as u8,
                    1 => frame[at] ^ 1 << random.below(8),
                    _ => frame[random.below(frame.len())],
                };
            }
            if random.below(4) == 0 {
                let at = random.below(frame.len());
                let len = random.below(frame.len() - at).min(40);
                match random.below(2) {
                    0 => drop(frame.drain(at..at + len)),
                    _ => frame.extend_from_within(at..at + len),
                }
            }
            survive(sample, &frame, &format!("round {round}"));
        }
    }
}
