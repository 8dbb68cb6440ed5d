//! Frames of content that comes piece by piece.

use proptest::prelude::*;
use z4ai::{Array, DecodeOptions, Effort, Error, ErrorKind, Kind, Options, StreamEncoder};

fn streamed(data: &[u8], options: &Options, len: Option<u64>, pieces: &[usize]) -> Result<Vec<u8>, Error> {
    let mut encoder = StreamEncoder::new(options, len)?;
    let mut payload = Vec::new();
    let mut put = |bytes: &[u8]| {
        payload.extend_from_slice(bytes);
        Ok::<_, Error>(())
    };
    let (mut rest, mut sizes) = (data, pieces.iter().cycle());
    while !rest.is_empty() {
        let size = sizes.next().map_or(rest.len(), |size| (*size).clamp(1, rest.len()));
        let (piece, after) = rest.split_at(size);
        encoder.write(piece, &mut put)?;
        rest = after;
    }
    assert_eq!(encoder.content_len(), data.len() as u64);
    let ends = encoder.finish(&mut put)?;
    Ok([&ends.header[..], &payload, &ends.index].concat())
}

/// Weights of one scale per row: nothing that a palette or long matches would find.
fn weights(len: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..len / 4)
        .flat_map(|_| (next() * next()).to_le_bytes())
        .chain(std::iter::repeat_n(7, len % 4))
        .collect()
}

#[test]
fn the_frame_is_that_of_all_data_at_once() {
    // Several batches, a last chunk that is merged, one that is not, and half an element.
    for len in [0, 3, 1000, 248 << 10, (248 << 10) + 5, 40 << 20, (33 << 20) + 8, (20 << 20) + 100_003] {
        let data = weights(len);
        for effort in [Effort::Fast, Effort::Default, Effort::Balanced] {
            let options = Options { kind: Kind::F32, effort, ..Options::default() };
            let whole = z4ai::compress(&data, &options).unwrap();
            for (announced, pieces) in
                [(None, &[777_777][..]), (Some(len as u64), &[5 << 20, 3]), (None, &[1 << 30])]
            {
                let one = Options { threads: 1, ..options.clone() };
                for options in [&options, &one] {
                    let frame = streamed(&data, options, announced, pieces).unwrap();
                    assert!(frame == whole, "{len} {effort:?} {announced:?}");
                }
            }
        }
    }
}

#[test]
fn groups_of_chunks_are_the_same() {
    let data = weights((5 << 20) + 4444);
    let options = Options { kind: Kind::F32, effort: Effort::Max, ..Options::default() };
    let frame = streamed(&data, &options, None, &[100_000]).unwrap();
    assert!(frame == z4ai::compress(&data, &options).unwrap());
}

#[test]
fn shapes_and_arrays_are_those_of_all_data() {
    let data = weights(300 * 5000 * 4);
    let array = Some(Array { dtype: "float32".to_owned(), shape: vec![300, 5000] });
    let options = Options { kind: Kind::F32, shape: vec![300, 5000], array, ..Options::default() };
    let frame = streamed(&data, &options, None, &[65_536]).unwrap();
    assert!(frame == z4ai::compress(&data, &options).unwrap());
    let short = streamed(&data[4..], &options, None, &[1 << 20]).unwrap_err();
    assert_eq!(short.kind(), ErrorKind::InvalidArgument);
    assert!(streamed(&[&data[..], &[0; 4]].concat(), &options, None, &[1 << 20]).is_err());
    assert!(StreamEncoder::new(&options, Some(8)).is_err());
    assert!(StreamEncoder::new(&Options { shape: vec![u64::MAX, 3], ..options }, None).is_err());
}

#[test]
fn repeated_content_decodes_without_its_matches() {
    let piece = weights(1 << 20);
    let data = piece.repeat(20);
    let options = Options { kind: Kind::F32, ..Options::default() };
    let frame = streamed(&data, &options, None, &[1_234_567]).unwrap();
    assert!(z4ai::decompress(&frame, &DecodeOptions::default()).unwrap() == data);
}

#[derive(Debug)]
struct Stopped;

impl From<Error> for Stopped {
    fn from(error: Error) -> Stopped {
        panic!("the codec failed: {error}")
    }
}

#[test]
fn an_error_of_the_consumer_ends_it() {
    let data = weights(40 << 20);
    let mut encoder = StreamEncoder::new(&Options::default(), None).unwrap();
    let failed = encoder.write(&data, |_| Err(Stopped));
    assert!(failed.is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_pieces_decode_to_the_data(
        kind in prop::sample::select(Kind::all().collect::<Vec<_>>()),
        data in prop::collection::vec(any::<u8>(), 0..3000),
        pieces in prop::collection::vec(1usize..500, 1..5),
    ) {
        let options = Options { kind, structure: false, ..Options::default() };
        let frame = streamed(&data, &options, None, &pieces).unwrap();
        prop_assert_eq!(z4ai::decompress(&frame, &DecodeOptions::default()).unwrap(), data);
    }
}
