//! Frames and decoded bytes do not depend on the SIMD level: neither the detected nor a forced one.

mod common;

use common::Random;
use common::data::{nudge, structured, weights};
use z4ai::{BlockType, DecodeOptions, Effort, Kind, Options, SimdLevel, delta};

/// Runs `work` at every level that the machine has, and returns what the lowest level made if all
/// made the same.
fn at_every_level<T: PartialEq>(what: &str, work: impl Fn() -> T) -> T {
    let mut results = SimdLevel::available().map(|level| {
        let _forced = level.force().unwrap();
        assert_eq!(SimdLevel::current().unwrap(), level);
        (level, work())
    });
    let (lowest, expected) = results.next().unwrap();
    for (level, result) in results {
        assert!(result == expected, "{what}: {level} and {lowest} differ");
    }
    expected
}

fn decode_checked(what: &str, frame: &[u8], data: &[u8], size: usize) {
    let one = DecodeOptions { threads: 1, ..DecodeOptions::default() };
    at_every_level(what, || {
        assert!(z4ai::decompress(frame, &one).unwrap() == data, "{what}");
        let mut out = vec![0xaa; data.len()];
        z4ai::decompress_into(frame, &mut out, &DecodeOptions::default()).unwrap();
        assert!(out == data, "{what}, into");
        let range = data.len() / size / 3..data.len() / size * 3 / 4;
        let mut part = vec![0xaa; range.len() * size];
        z4ai::decompress_range(frame, range.start as u64..range.end as u64, &mut part, &one).unwrap();
        assert!(part == data[range.start * size..range.end * size], "{what}, range");
    });
}

#[test]
fn a_forced_level_holds_until_it_is_dropped() {
    at_every_level("levels", || {
        let same = (0..1000).all(|_| SimdLevel::current() == SimdLevel::current());
        assert!(same);
    });
    let highest = SimdLevel::available().last().unwrap();
    let forced = highest.force().unwrap();
    assert_eq!(SimdLevel::current().unwrap(), highest);
    drop(forced);
    assert!(SimdLevel::available().any(|level| level == SimdLevel::current().unwrap()));
}

#[test]
fn blocks_are_the_same_at_every_level() {
    let mut random = common::data::noise(3);
    for block_type in BlockType::ALL {
        let len = 1111 * block_type.block_bytes();
        let data: Vec<u8> = (0..len).map(|_| (random() & random() & 0x7f) as u8).collect();
        for effort in Effort::all() {
            let options = Options { kind: Kind::U8, effort, blocks: Some(block_type), ..Options::default() };
            let what = format!("{} {}", block_type.name(), effort.name());
            let frame = at_every_level(&what, || z4ai::compress(&data, &options).unwrap());
            decode_checked(&what, &frame, &data, 1);
        }
    }
}

#[test]
fn rows_and_columns_are_the_same_at_every_level() {
    let mut random = common::data::noise(9);
    let (rows, columns) = (150usize, 333usize);
    let scale = |i: usize| 2f64.powi((i / columns * 7 % 9 + i % columns * 5 % 11) as i32 - 20);
    let values: Vec<f64> =
        (0..rows * columns).map(|i| (random() % 4096) as f64 / 4096.0 * scale(i) - 1e-9).collect();
    for kind in Kind::all().filter(|kind| kind.is_float()) {
        let bytes = |value: &f64| match kind {
            Kind::F64 => value.to_le_bytes().to_vec(),
            Kind::F32 => (*value as f32).to_le_bytes().to_vec(),
            Kind::Bf16 => (((*value as f32).to_bits() >> 16) as u16).to_le_bytes().to_vec(),
            // Any bits that grow with the value.
            Kind::F16 => (((*value as f32).to_bits() >> 15) as u16 & 0x7fff).to_le_bytes().to_vec(),
            _ => vec![((*value as f32).to_bits() >> 20) as u8],
        };
        let data: Vec<u8> = values.iter().flat_map(bytes).collect();
        for effort in Effort::all() {
            let shape = vec![rows as u64, columns as u64];
            let options = Options { kind, effort, shape, ..Options::default() };
            let what = format!("{} {}", kind.name(), effort.name());
            let frame = at_every_level(&what, || z4ai::compress(&data, &options).unwrap());
            decode_checked(&what, &frame, &data, kind.size());
            let streams = z4ai::streams(&frame).unwrap();
            let leveled = streams.iter().any(|stream| stream.role == "levels");
            assert!(leveled || effort == Effort::Fast || kind.size() == 1 || kind == Kind::F16, "{what}");
        }
    }
}

#[test]
fn frames_are_the_same_at_every_level() {
    for kind in Kind::all() {
        for effort in Effort::all() {
            // Lengths that leave something over for every vector width.
            let count = if effort == Effort::Max { 9_001 } else { 30_011 };
            let mut cases: Vec<_> = (0..8).map(|which| structured(kind, count, 5, which)).collect();
            cases.push(weights(kind, count * kind.size(), 3, 0));
            cases.push(weights(kind, count * kind.size() + 3, 4, 61));
            for (case, data) in cases.iter().enumerate() {
                let what = format!("{} {} case {case}", kind.name(), effort.name());
                let options = Options { kind, effort, threads: 1, ..Options::default() };
                let frame = at_every_level(&what, || z4ai::compress(data, &options).unwrap());
                decode_checked(&what, &frame, data, kind.size());
            }
        }
    }
}

#[test]
fn shaped_frames_are_the_same_at_every_level() {
    for kind in [Kind::Bf16, Kind::F16, Kind::F32] {
        for (rows, columns) in [(300, 61), (61, 300), (1000, 128), (7, 9001)] {
            let data = weights(kind, rows * columns * kind.size(), 8, columns);
            let shape = vec![rows as u64, columns as u64];
            for effort in Effort::all() {
                let what = format!("{} {} {shape:?}", kind.name(), effort.name());
                let options = Options { kind, effort, shape: shape.clone(), ..Options::default() };
                let frame = at_every_level(&what, || z4ai::compress(&data, &options).unwrap());
                decode_checked(&what, &frame, &data, kind.size());
            }
        }
    }
}

#[test]
fn large_frames_are_the_same_at_every_level() {
    // Above the size from which outputs are written with non-temporal stores.
    for kind in [Kind::Bf16, Kind::F16, Kind::F32] {
        let data = weights(kind, 9 << 20, 6, 0);
        for effort in [Effort::Fast, Effort::Default] {
            let what = format!("{} {}, large", kind.name(), effort.name());
            let options = Options { kind, effort, ..Options::default() };
            let frame = at_every_level(&what, || z4ai::compress(&data, &options).unwrap());
            decode_checked(&what, &frame, &data, kind.size());
        }
    }
}

#[test]
fn deltas_are_the_same_at_every_level() {
    let decoding = DecodeOptions::default();
    for kind in Kind::all() {
        for (one_in, steps) in [(2000, 1), (100, 1), (9, 3), (2, 40), (1, 4000)] {
            let reference = weights(kind, 70_001 * kind.size(), 9, 0);
            let mut current = reference.clone();
            nudge(&mut current, kind.size(), one_in, steps, &mut Random(77));
            let what = format!("{}, one in {one_in} by up to {steps}", kind.name());
            let options = Options { kind, ..Options::default() };
            let frame = at_every_level(&what, || delta::compress(&current, &reference, &options).unwrap());
            at_every_level(&what, || {
                assert!(delta::decompress(&frame, &reference, &decoding).unwrap() == current, "{what}");
                let mut out = vec![0xaa; current.len()];
                delta::decompress_into(&frame, &reference, &mut out, &decoding).unwrap();
                assert!(out == current, "{what}, into");
                let mut buffer = reference.clone();
                delta::apply(&frame, &mut buffer, &decoding).unwrap();
                assert!(buffer == current, "{what}, in place");
            });
        }
    }
}

#[test]
fn golden_frames_decode_at_every_level() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let (mut frames, mut deltas) = (0, 0);
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let read = |extension: &str| std::fs::read(path.with_extension(extension)).unwrap();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("z4ai") => {
                frames += 1;
                let (frame, raw) = (read("z4ai"), read("raw"));
                at_every_level("golden", || {
                    assert!(z4ai::decompress(&frame, &DecodeOptions::default()).unwrap() == raw, "{path:?}");
                });
            }
            Some("z4dl") => {
                deltas += 1;
                let (frame, reference, raw) = (read("z4dl"), read("ref"), read("raw"));
                at_every_level("golden", || {
                    let decoded = delta::decompress(&frame, &reference, &DecodeOptions::default()).unwrap();
                    assert!(decoded == raw, "{path:?}");
                });
            }
            _ => {}
        }
    }
    assert!(frames > 20 && deltas > 5, "{frames} frames and {deltas} deltas");
}
