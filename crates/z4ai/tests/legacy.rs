//! Every kind of version 1 frame decodes to what it was made from.

mod common;

use common::{samples, sha256};
use z4ai::{DecodeOptions, ErrorKind, legacy};

#[test]
fn every_sample_decodes_bit_identically() {
    let samples = samples();
    assert_eq!(samples.len(), 52);
    for sample in &samples {
        let decoded = sample.decode(&sample.frame, u64::MAX);
        let decoded = decoded.unwrap_or_else(|error| panic!("{}: {error}", sample.name));
        assert_eq!(decoded.len(), sample.len, "{}", sample.name);
        assert_eq!(sha256(&decoded), sample.sha256, "{}", sample.name);
    }
}

#[test]
fn the_public_functions_read_them_too() {
    let options = DecodeOptions::default();
    for sample in samples().iter().filter(|sample| sample.reference.is_none()) {
        assert!(legacy::is_legacy(&sample.frame), "{}", sample.name);
        let decoded = z4ai::decompress(&sample.frame, &options).unwrap();
        assert_eq!(sha256(&decoded), sample.sha256, "{}", sample.name);
        let info = z4ai::inspect(&sample.frame).unwrap();
        assert_eq!(info.format, sample.kind, "{}", sample.name);
        assert_eq!(info.content_len, sample.len as u64, "{}", sample.name);

        let mut out = vec![0xAA; sample.len];
        z4ai::decompress_into(&sample.frame, &mut out, &options).unwrap();
        assert!(out == decoded, "{}", sample.name);
        let mut part = vec![0; sample.len / 3];
        let start = sample.len / 2;
        let range = start as u64..(start + part.len()) as u64;
        z4ai::decompress_range(&sample.frame, range.clone(), &mut part, &options).unwrap();
        assert!(part == decoded[start..][..part.len()], "{}", sample.name);

        let beyond = sample.len as u64..sample.len as u64 + 1;
        let error = z4ai::decompress_range(&sample.frame, beyond, &mut [0], &options);
        assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}

#[test]
fn the_output_must_have_the_right_length() {
    let options = DecodeOptions::default();
    for sample in &samples() {
        for len in [sample.len + 1, sample.len.wrapping_sub(1)] {
            if len == usize::MAX {
                continue;
            }
            let mut out = vec![0; len];
            let error = match &sample.reference {
                Some(reference) => {
                    legacy::decompress_delta_into(&sample.frame, reference, &mut out, &options)
                }
                None => legacy::decompress_into(&sample.frame, &mut out, &options),
            };
            assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
    }
}

#[test]
fn the_callers_limit_holds() {
    for sample in samples().iter().filter(|sample| sample.len > 0) {
        let limit = sample.len as u64;
        assert!(sample.decode(&sample.frame, limit).is_ok(), "{}", sample.name);
        let error = sample.decode(&sample.frame, limit - 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{}", sample.name);
    }
}

#[test]
fn arrays_come_with_their_type_and_shape() {
    let options = DecodeOptions::default();
    let mut arrays = 0;
    for sample in samples().iter().filter(|sample| sample.reference.is_none()) {
        let result = legacy::decompress_array(&sample.frame, &options);
        let Some((dtype, shape)) = &sample.array else {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidArgument);
            continue;
        };
        let (array, bytes) = result.unwrap();
        assert_eq!((&array.dtype, &array.shape), (dtype, shape));
        assert_eq!(sha256(&bytes), sample.sha256, "{}", sample.name);
        assert_eq!(z4ai::inspect(&sample.frame).unwrap().array, Some(array));
        arrays += 1;
    }
    assert_eq!(arrays, 5);
}

#[test]
fn deltas_refuse_another_reference() {
    let options = DecodeOptions::default();
    for sample in &samples() {
        let Some(reference) = &sample.reference else {
            continue;
        };
        assert!(legacy::is_legacy_delta(&sample.frame));
        assert!(!legacy::is_legacy(&sample.frame));
        let mut changed = reference.clone();
        *changed.last_mut().unwrap() ^= 1;
        let longer = [reference.as_slice(), &[0]].concat();
        let shorter = &reference[1..];
        for wrong in [&changed[..], &longer, shorter, &[]] {
            let error = legacy::decompress_delta(&sample.frame, wrong, &options).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{}", sample.name);
        }
        let mut out = vec![0; reference.len()];
        legacy::decompress_delta_into(&sample.frame, reference, &mut out, &options).unwrap();
        assert_eq!(sha256(&out), sample.sha256, "{}", sample.name);
        let error = z4ai::decompress(&sample.frame, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{}", sample.name);
    }
}

#[test]
fn an_empty_delta_has_the_digest_of_nothing() {
    let empty = samples().into_iter().find(|s| s.name == "z4ai_empty_None");
    let digest =
        [0xca, 0xe6, 0x69, 0x41, 0xd9, 0xef, 0xbd, 0x40, 0x4e, 0x4d, 0x88, 0x75, 0x8e, 0xa6, 0x76, 0x70];
    let mut frame = b"Z4DL\x02\0\0\0".to_vec();
    frame.extend(0u64.to_le_bytes());
    frame.extend(digest);
    frame.extend(empty.unwrap().frame);
    let options = DecodeOptions::default();
    assert_eq!(legacy::decompress_delta(&frame, &[], &options), Ok(vec![]));
}

#[test]
fn other_frames_are_not_ours() {
    for frame in [
        &b""[..],
        b"Z4A",
        b"Z4AI",
        b"Z4AI\x02",
        b"Z4AI\x4d",
        b"Z4AIMF02",
        b"ZARA\x02",
        b"ZSTN\x03",
        b"Z4DM\x01",
        b"Z4DL\x02",
    ] {
        assert!(!legacy::is_legacy(frame), "{frame:?}");
        let error = legacy::decompress(frame, &DecodeOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{frame:?}");
    }
}
