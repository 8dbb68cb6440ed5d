use proptest::prelude::*;

use super::restore::BLOCK;
use super::*;
use crate::error::Result;
use crate::sync::checksum::ChecksumFormat;
use crate::sync::index::{Encoding, PayloadCompression};

const FORMATS: [(PayloadCompression, Encoding); 3] = [
    (PayloadCompression::Zstd, Encoding::Xor),
    (PayloadCompression::Zstd, Encoding::Overwrite),
    (PayloadCompression::Z4ai, Encoding::Xor),
];

fn encoded(format: (PayloadCompression, Encoding), old: &[u8], new: &[u8]) -> Step<'static> {
    let of = TensorType { dtype: DType::U8, shape: Shape::from_slice(&[new.len() as u64]) };
    let payload = encode(format.0, format.1, &of, [old, new]).unwrap();
    Step { compression: format.0, encoding: format.1, payload: payload.into() }
}

fn restored(old: &[u8], len: usize, steps: &[Step<'_>]) -> Result<Vec<u8>> {
    let mut out = vec![0; len];
    let mut hasher = Some(ChecksumFormat::Xxh3.hasher());
    restore(Some(old), len as u64, steps, &mut hasher, |at, before, block| {
        assert_eq!(before.unwrap(), &old[at as usize..][..block.len()]);
        out[at as usize..][..block.len()].copy_from_slice(block);
        Ok(())
    })?;
    assert_eq!(hasher.unwrap().finish(), ChecksumFormat::Xxh3.of(&out));
    Ok(out)
}

fn states(len: usize, count: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut state = seed;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    let mut now: Vec<u8> = (0..len).map(|_| random() as u8).collect();
    (0..count)
        .map(|_| {
            let before = now.clone();
            for _ in 0..len / 100 {
                now[random() % len] = random() as u8;
            }
            before
        })
        .collect()
}

#[test]
fn the_worked_example_of_the_specification() {
    let old = [0x10, 0x20, 0x30, 0x40, 0x50, 0x60];
    let new = [0x10, 0x21, 0x30, 0x40, 0x50, 0x6f];
    let overwrite = encoded(FORMATS[1], &old, &new);
    let raw = zstd::bulk::decompress(&overwrite.payload, 14).unwrap();
    assert_eq!(raw, [2, 0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0, 0x21, 0x6f]);
    let xor = encoded(FORMATS[0], &old, &new);
    assert_eq!(zstd::bulk::decompress(&xor.payload, 6).unwrap(), [0, 1, 0, 0, 0, 0xf]);
    for format in FORMATS {
        assert_eq!(restored(&old, 6, &[encoded(format, &old, &new)]).unwrap(), new);
    }
}

#[test]
fn steps_follow_each_other_in_any_mixture_and_over_block_borders() {
    for len in [1, 7, 4096, BLOCK - 1, BLOCK, 2 * BLOCK + 5] {
        let states = states(len.max(100), 4, 3);
        for first in FORMATS {
            for second in FORMATS {
                let steps = [encoded(first, &states[0], &states[1]), encoded(second, &states[1], &states[2])];
                assert!(restored(&states[0], states[0].len(), &steps).unwrap() == states[2]);
            }
        }
    }
}

#[test]
fn another_base_is_not_a_damaged_delta() {
    let states = states(5000, 2, 4);
    let step = encoded(FORMATS[2], &states[0], &states[1]);
    let mut other = states[0].clone();
    other[77] ^= 1;
    let error = restored(&other, 5000, &[step]).unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::Mismatch, "{error}");
}

#[test]
fn folding_needs_no_base() {
    let states = states(5000, 3, 9);
    let [a, b] = [0, 1].map(|at| encoded(FORMATS[0], &states[at], &states[at + 1]).payload);
    let folded = xor_payloads(&a, &b, 5000).unwrap();
    let step = Step { compression: FORMATS[0].0, encoding: FORMATS[0].1, payload: folded.into() };
    assert!(restored(&states[0], 5000, &[step]).unwrap() == states[2]);
    let [a, b] = [0, 1].map(|at| encoded(FORMATS[1], &states[at], &states[at + 1]).payload);
    let folded = Overwrite::decode(&a, 5000).unwrap().then(&Overwrite::decode(&b, 5000).unwrap()).unwrap();
    let step = Step { compression: FORMATS[1].0, encoding: FORMATS[1].1, payload: folded.into() };
    assert!(restored(&states[0], 5000, &[step]).unwrap() == states[2]);
}

#[test]
fn xor_in_place_is_undone_on_errors() {
    for len in [1, 300, (256 << 10) - 1, (512 << 10) + 3] {
        let states = states(len.max(100), 2, 8);
        let (old, new) = (&states[0], &states[1]);
        let payload = encoded(FORMATS[0], old, new).payload;
        let mut bytes = old.clone();
        let mut hasher = Some(ChecksumFormat::Xxh3.hasher());
        xor_in_place(&payload, &mut bytes, &mut hasher).unwrap();
        assert!(bytes == *new);
        assert_eq!(hasher.unwrap().finish(), ChecksumFormat::Xxh3.of(new));
        // Cut, too long, for a tensor of another length.
        for cut in [0, 3, payload.len() / 2, payload.len() - 1] {
            let mut bytes = old.clone();
            assert!(xor_in_place(&payload[..cut], &mut bytes, &mut None).is_err());
            assert!(bytes == *old, "cut at {cut} of {}", payload.len());
        }
        let mut shorter = old[1..].to_vec();
        let longer = xor_in_place(&payload, &mut shorter, &mut Some(ChecksumFormat::Xxh3.hasher()));
        assert!(longer.is_err() && shorter == old[1..]);
    }
}

#[test]
fn damaged_payloads_are_errors_or_change_the_checksum() {
    let states = states(3000, 2, 5);
    for format in FORMATS {
        let step = encoded(format, &states[0], &states[1]);
        for at in 0..step.payload.len() {
            let cut = Step { payload: step.payload[..at].to_vec().into(), ..step };
            assert!(restored(&states[0], 3000, &[cut]).is_err(), "{format:?} cut at {at}");
            let mut bytes = step.payload.to_vec();
            bytes[at] ^= 0x10;
            let flipped = Step { payload: bytes.into(), ..step };
            if let Ok(found) = restored(&states[0], 3000, &[flipped]) {
                // Unused bits of a frame's header may change nothing at all.
                let same = found == states[1];
                assert!(same || ChecksumFormat::Adler32.of(&found) != ChecksumFormat::Adler32.of(&states[1]));
            }
        }
        let mut longer = step.payload.to_vec();
        longer.push(0);
        let longer = Step { payload: longer.into(), ..step };
        assert!(restored(&states[0], 3000, &[longer]).is_err(), "{format:?}");
    }
}

proptest! {
    #[test]
    fn no_payload_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), magic in 0..4usize) {
        let old = [7; 64];
        let start: &[u8] = [&b""[..], b"\x28\xb5\x2f\xfd", b"Z4DL", b"Z4AI"][magic];
        let payload = [start, &bytes].concat();
        for (compression, encoding) in FORMATS {
            let step = Step { compression, encoding, payload: payload.clone().into() };
            let _ = restored(&old, 64, &[step]);
        }
    }
}
