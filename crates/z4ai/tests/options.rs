//! What callers may ask for beside the effort: levels, no search, progress, names.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use z4ai::{DEFAULT_LEVEL, DecodeOptions, Effort, ErrorKind, Kind, Options, SharedObserver, delta};

/// `rows` rows of 96 bf16 values, every third column of a smaller scale.
fn weights(rows: usize) -> Vec<u8> {
    let mut state = 1u64;
    let values = (0..rows * 96).flat_map(|index| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let gauss: f32 = (0..4).map(|i| f32::from((state >> (16 * i)) as u16) / 65536.0 - 0.5).sum();
        let scale = if (index % 96).is_multiple_of(3) { 0.002 } else { 0.05 };
        (((gauss * scale).to_bits() >> 16) as u16).to_le_bytes()
    });
    values.collect()
}

/// Words of a small vocabulary: what zstd is better at than a code per byte.
fn text() -> Vec<u8> {
    let mut state = 1u32;
    let mut text = Vec::new();
    while text.len() < 700_000 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let number = (state >> 20).to_string();
        text.extend_from_slice(if state >> 31 == 0 { b"weight " } else { b"gradient, " });
        text.extend_from_slice(number.as_bytes());
    }
    text
}

#[test]
fn levels_set_the_zstd_streams() {
    let data = text();
    let frame = |level| z4ai::compress(&data, &Options { level, ..Options::default() }).unwrap();
    assert!(frame(None) == frame(Some(DEFAULT_LEVEL)));
    assert!(frame(Some(19)).len() < frame(Some(1)).len());
    for level in [1, 22] {
        let options = DecodeOptions::default();
        assert!(z4ai::decompress(&frame(Some(level)), &options).unwrap() == data, "{level}");
    }
    for level in [-1, 0, 23] {
        let options = Options { level: Some(level), ..Options::default() };
        let error = z4ai::compress(&data, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.message().contains("1 to 22"), "{error}");
        assert!(delta::compress(&data, &data, &options).is_err());
    }
}

#[test]
fn without_search_there_are_no_classes() {
    let data = weights(5400);
    let frame = |structure| {
        let options = Options { kind: Kind::Bf16, shape: vec![5400, 96], structure, ..Options::default() };
        z4ai::compress(&data, &options).unwrap()
    };
    assert!(frame(true).len() * 100 < frame(false).len() * 97);
    assert!(z4ai::decompress(&frame(false), &DecodeOptions::default()).unwrap() == data);
}

#[test]
fn observers_hear_of_every_byte_and_can_stop() {
    let data = weights(15_625);
    // What is repeated may be found while it is encoded, which is then begun again.
    let repeated = weights(5_000).repeat(3);
    for (data, threads) in [(&data, 1), (&data, 3), (&repeated, 1), (&repeated, 3)] {
        let done = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&done);
        let observer = SharedObserver::new(move |bytes| {
            seen.fetch_add(bytes, Ordering::Relaxed);
            true
        });
        let options = Options { kind: Kind::Bf16, threads, observer: Some(observer), ..Options::default() };
        z4ai::compress(data, &options).unwrap();
        assert_eq!(done.swap(0, Ordering::Relaxed), data.len() as u64);
        delta::compress(data, data, &options).unwrap();
        assert_eq!(done.swap(0, Ordering::Relaxed), data.len() as u64);

        let stop = Options { observer: Some(SharedObserver::new(|_| false)), ..options };
        assert_eq!(z4ai::compress(data, &stop).unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(delta::compress(data, data, &stop).unwrap_err().kind(), ErrorKind::Cancelled);
    }
}

#[test]
fn efforts_have_names() {
    for effort in Effort::all() {
        assert_eq!(Effort::from_name(effort.name()), Some(effort));
    }
    assert_eq!(Effort::from_name("default"), Some(Effort::default()));
    assert_eq!(Effort::from_name("Fast"), None);
}

#[test]
fn frames_are_told_by_their_start() {
    let data = weights(20);
    let frame = z4ai::compress(&data, &Options::default()).unwrap();
    let delta = delta::compress(&data, &data, &Options::default()).unwrap();
    assert!(z4ai::is_frame(&frame) && z4ai::is_frame(b"Z4AIMF01") && z4ai::is_frame(b"ZPL1"));
    assert!(!z4ai::is_frame(&delta) && delta::is_delta(&delta));
    for other in [&b""[..], b"Z4A", b"Z4AI", b"Z4AI\x09", b"ZSTN\x03", &data] {
        assert!(!z4ai::is_frame(other), "{other:?}");
    }
}

#[test]
fn streams_add_up() {
    let data = weights(7000);
    let kind = Kind::Bf16;
    for effort in Effort::all() {
        let frame = z4ai::compress(&data, &Options { kind, effort, ..Options::default() }).unwrap();
        let streams = z4ai::streams(&frame).unwrap();
        let stored: u64 = streams.iter().map(|stream| stream.stored_len).sum();
        assert!(stored < frame.len() as u64 && stored + 4000 > frame.len() as u64, "{streams:?}");
        assert!(streams.iter().any(|stream| stream.role == "symbols"), "{streams:?}");
    }
    // Several chunks, of which one has a change.
    let before = data.repeat(4);
    let mut after = before.clone();
    after[1000] ^= 1;
    let delta = delta::compress(&after, &before, &Options { kind, ..Options::default() }).unwrap();
    let roles: Vec<_> = z4ai::streams(&delta).unwrap().iter().map(|stream| stream.role).collect();
    assert!(roles.contains(&"unchanged") && roles.contains(&"difference places"), "{roles:?}");
    assert!(z4ai::streams(b"nothing").is_err());
}
