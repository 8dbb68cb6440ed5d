//! Whatever goes in comes out, for every kind, length and shape.

mod common;

use common::data::{noise, structured, weights};
use proptest::prelude::*;
use z4ai::{Array, BlockType, DecodeOptions, Effort, Kind, Options};

fn kinds() -> impl Strategy<Value = Kind> {
    prop::sample::select(Kind::all().collect::<Vec<_>>())
}

fn efforts() -> impl Strategy<Value = Effort> {
    prop::sample::select(Effort::all().collect::<Vec<_>>())
}

#[test]
fn efforts_have_names() {
    for effort in Effort::all() {
        assert_eq!(Effort::from_name(effort.name()), Some(effort));
    }
    assert_eq!(Effort::from_name("Fast"), None);
    assert_eq!(Effort::all().next(), Some(Effort::Fast));
}

#[test]
fn no_data_of_any_shape() {
    for shape in [vec![2, 3, 0], vec![0, 1 << 40, 1 << 40], vec![0]] {
        check(&[], &Options { kind: Kind::F32, shape, ..Options::default() });
    }
}

fn check(data: &[u8], options: &Options) -> Vec<u8> {
    let frame = z4ai::compress(data, options).unwrap();
    assert!(frame.len() <= z4ai::max_compressed_len(data.len()));
    let decoded = z4ai::decompress(&frame, &DecodeOptions::default()).unwrap();
    assert!(decoded == data, "{options:?}, {} bytes", data.len());
    let info = z4ai::inspect(&frame).unwrap();
    assert_eq!(info.content_len, data.len() as u64);
    assert_eq!(info.frame_len, frame.len() as u64);
    assert_eq!((info.kind, info.array), (options.kind, options.array.clone()));
    frame
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_bytes(data in prop::collection::vec(any::<u8>(), 0..5000), kind in kinds(), effort in efforts()) {
        check(&data, &Options { kind, effort, ..Options::default() });
    }

    #[test]
    fn few_values(data in prop::collection::vec(0u8..3, 0..5000), kind in kinds(), effort in efforts()) {
        check(&data, &Options { kind, effort, ..Options::default() });
    }

    #[test]
    fn any_blocks(
        bytes in prop::collection::vec(any::<u8>(), 0..9000),
        block_type in prop::sample::select(BlockType::ALL.to_vec()),
        effort in efforts(),
        few: bool,
        rows in 1usize..5,
    ) {
        let unit = block_type.block_bytes() * rows;
        let mut data = bytes[..bytes.len() / unit * unit].to_vec();
        if few {
            data.iter_mut().for_each(|byte| *byte &= 0x31);
        }
        let shape = vec![rows as u64, (data.len() / rows) as u64];
        let options = Options { kind: Kind::U8, effort, blocks: Some(block_type), ..Options::default() };
        let frame = check(&data, &options);
        check(&data, &Options { shape, ..options.clone() });
        let (from, to) = (data.len() / 3, data.len() * 3 / 4);
        let mut out = vec![0; to - from];
        z4ai::decompress_bytes(&frame, from as u64..to as u64, &mut out, &DecodeOptions::default()).unwrap();
        prop_assert!(out == data[from..to]);
    }

    #[test]
    fn weight_like(len in 0usize..40_000, seed: u64, kind in kinds(), effort in efforts()) {
        check(&weights(kind, len, seed, 0), &Options { kind, effort, ..Options::default() });
    }

    #[test]
    fn any_part_in_bytes(len in 1usize..600_000, from: prop::sample::Index, to: prop::sample::Index, kind in kinds()) {
        let data = weights(kind, len, 7, 0);
        let frame = z4ai::compress(&data, &Options { kind, ..Options::default() }).unwrap();
        let (a, b) = (from.index(len + 1), to.index(len + 1));
        let (start, end) = (a.min(b), a.max(b));
        let mut out = vec![0; end - start];
        z4ai::decompress_bytes(&frame, start as u64..end as u64, &mut out, &DecodeOptions::default()).unwrap();
        prop_assert!(out == data[start..end]);
        prop_assert!(z4ai::decompress_bytes(&frame, 0..len as u64 + 1, &mut out, &DecodeOptions::default()).is_err());
    }

    #[test]
    fn with_structure(
        count in 0usize..6000,
        seed: u64,
        kind in kinds(),
        effort in efforts(),
        which in 0usize..8,
        extra in 0usize..3,
    ) {
        let mut data = structured(kind, count, seed, which);
        data.extend(vec![7; extra % kind.size()]);
        check(&data, &Options { kind, effort, ..Options::default() });
    }

    #[test]
    fn ranges_of_structure(count in 1usize..200_000, seed: u64, kind in kinds(), which in 0usize..8, a: u64, b: u64) {
        let data = structured(kind, count, seed, which);
        let frame = check(&data, &Options { kind, ..Options::default() });
        let (a, b) = (a % (count as u64 + 1), b % (count as u64 + 1));
        let range = a.min(b)..a.max(b);
        let bytes = range.start as usize * kind.size()..range.end as usize * kind.size();
        let mut out = vec![0xaa; bytes.len()];
        z4ai::decompress_range(&frame, range, &mut out, &DecodeOptions::default()).unwrap();
        prop_assert!(out == data[bytes]);
    }

    #[test]
    fn shaped(rows in 1u64..90, inner in 1u64..20, outer in 1u64..20, seed: u64, kind in kinds()) {
        let shape = vec![rows, outer, inner];
        let len = (rows * outer * inner) as usize * kind.size();
        let data = weights(kind, len, seed, inner as usize);
        check(&data, &Options { kind, shape, ..Options::default() });
    }

    #[test]
    fn ranges_equal_the_whole(len in 1usize..300_000, seed: u64, kind in kinds(), a: u64, b: u64) {
        let data = weights(kind, len, seed, 0);
        let frame = check(&data, &Options { kind, ..Options::default() });
        let elements = (len / kind.size()) as u64;
        let (a, b) = (a % (elements + 1), b % (elements + 1));
        let range = a.min(b)..a.max(b);
        let bytes = range.start as usize * kind.size()..range.end as usize * kind.size();
        let mut out = vec![0xaa; bytes.len()];
        z4ai::decompress_range(&frame, range, &mut out, &DecodeOptions::default()).unwrap();
        prop_assert!(out == data[bytes]);
    }
}

#[test]
fn many_chunks_every_kind_any_thread_count() {
    for kind in Kind::all() {
        for effort in Effort::all() {
            let data = weights(kind, 3_000_017, 7, 64);
            let mut frames = [1, 2, 3, 7]
                .map(|threads| check(&data, &Options { kind, effort, threads, ..Options::default() }));
            frames.sort();
            assert!(frames[0] == frames[3], "{kind:?} {effort:?}");
            for (start, end) in [(0, 1), (262_143, 262_145), (100, 370_000), (370_000, 374_000)] {
                let mut out = vec![0; (end - start) * kind.size()];
                let options = DecodeOptions { threads: 2, ..DecodeOptions::default() };
                z4ai::decompress_range(&frames[0], start as u64..end as u64, &mut out, &options).unwrap();
                assert!(out == data[start * kind.size()..end * kind.size()]);
            }
        }
    }
}

#[test]
fn classes_of_columns_pay_with_a_shape_and_without() {
    let data = weights(Kind::Bf16, 5400 * 192, 3, 96);
    let encode = |shape: &[u64]| {
        let options = Options { kind: Kind::Bf16, shape: shape.to_vec(), ..Options::default() };
        check(&data, &options).len()
    };
    let (flat, shaped, found) = (encode(&[5400 * 96]), encode(&[5400, 96]), encode(&[]));
    assert!(shaped * 100 < flat * 97, "{shaped} of {flat}");
    assert!(found * 100 < flat * 97, "{found} of {flat}");
}

/// As [`weights`], but three of four have the sign of the one before.
fn smooth_weights(kind: Kind, len: usize, seed: u64) -> Vec<u8> {
    let mut data = weights(kind, len, seed, 0);
    let (mut next, mut sign) = (noise(seed + 1), 0);
    for element in data.chunks_exact_mut(kind.size()) {
        sign ^= u8::from(next().is_multiple_of(4)) << 7;
        let top = element.last_mut().unwrap();
        *top = *top & 0x7f | sign;
    }
    data
}

#[test]
fn signs_that_lean_on_one_another_take_less() {
    let efforts = [Effort::Fast, Effort::Default, Effort::Balanced, Effort::Max];
    for kind in [Kind::Bf16, Kind::F16, Kind::F32, Kind::F64] {
        // More than a chunk, and an odd number of elements.
        let len = 300_007 / kind.size() * kind.size();
        for effort in efforts {
            let options = Options { kind, effort, ..Options::default() };
            let [smooth, rough] =
                [smooth_weights(kind, len, 5), weights(kind, len, 5, 0)].map(|data| check(&data, &options));
            let has =
                |frame: &[u8]| z4ai::streams(frame).unwrap().iter().any(|stream| stream.role == "signs");
            let wide = kind.size() > 2;
            let apart = effort > Effort::Default || effort == Effort::Default && wide;
            assert_eq!(has(&smooth), apart, "{kind:?} {effort:?}");
            if apart {
                // A quarter of changes is worth 0.19 of a bit, less the table.
                let saved = rough.len() as i64 - smooth.len() as i64;
                let bits = (len / kind.size()) as i64;
                assert!(saved * 8 * 100 > bits * 12, "{kind:?} {effort:?}: {saved} bytes");
            }
        }
    }
}

/// Blocks that repeat at any distance and offset.
fn repeated(kind: Kind, block: usize, times: usize, apart: usize, seed: u64) -> Vec<u8> {
    let first = weights(kind, block, seed, 0);
    let other = weights(kind, block, seed + 1, 0);
    let mut data = Vec::new();
    for i in 0..times {
        data.extend_from_slice(&first);
        data.extend(std::iter::repeat_n(i as u8, apart));
        if i % 3 == 1 {
            data.extend_from_slice(&other[i * 11..]);
        }
    }
    data
}

#[test]
fn repeats_are_kept_once() {
    for kind in [Kind::Bf16, Kind::F32, Kind::Raw, Kind::I64] {
        for (block, apart) in [(300_000, 0), (300_001, 0), (300_000, 7), (299_999, 13)] {
            let once = check(&repeated(kind, block, 1, apart, 5), &Options { kind, ..Options::default() });
            let options = Options { kind, threads: 2, ..Options::default() };
            let data = repeated(kind, block, 4, apart, 5);
            let frame = check(&data, &options);
            // The second block is not a repeat.
            assert!(frame.len() < once.len() * 22 / 10, "{kind:?}: {} of {}", frame.len(), once.len());
            assert!(z4ai::compress(&data, &Options { threads: 1, ..options }).unwrap() == frame);
            let roles: Vec<_> = z4ai::streams(&frame).unwrap().iter().map(|stream| stream.role).collect();
            assert!(roles.contains(&"repeats"), "{roles:?}");
        }
    }
}

#[test]
fn any_part_of_repeats_decodes() {
    let kind = Kind::Bf16;
    let data = repeated(kind, 290_002, 5, 3, 9);
    let frame = check(&data, &Options { kind, ..Options::default() });
    let mut next = noise(3);
    for _ in 0..60 {
        let (a, b) = (next() as usize % (data.len() + 1), next() as usize % (data.len() + 1));
        let (start, end) = (a.min(b), a.max(b));
        let mut out = vec![0xaa; end - start];
        let options = DecodeOptions { threads: 1 + next() as usize % 3, ..DecodeOptions::default() };
        z4ai::decompress_bytes(&frame, start as u64..end as u64, &mut out, &options).unwrap();
        assert!(out == data[start..end], "{start}..{end}");
    }
}

#[test]
fn later_efforts_are_never_larger() {
    for kind in [Kind::Bf16, Kind::F32, Kind::F16, Kind::I16, Kind::U8] {
        for which in 0..=8 {
            let data = match which {
                8 => weights(kind, 500_000, 11, 96),
                _ => structured(kind, 60_000, 4, which),
            };
            let sizes: Vec<usize> = Effort::all()
                .skip(1)
                .map(|effort| check(&data, &Options { kind, effort, ..Options::default() }).len())
                .collect();
            assert!(sizes.is_sorted_by(|a, b| a >= b), "{kind:?}, structure {which}: {sizes:?}");
        }
    }
}

#[test]
fn without_search_there_are_no_copies() {
    let data = repeated(Kind::Bf16, 100_000, 4, 0, 1);
    let options = Options { kind: Kind::Bf16, structure: false, ..Options::default() };
    assert!(check(&data, &options).len() > data.len() / 2);
}

/// What each layout is for: the share of the data that it may take at most, in thousandths.
#[test]
fn structure_pays() {
    for (kind, which, most) in [
        (Kind::F32, 0, 200),
        (Kind::F32, 1, 230),
        (Kind::Bf16, 0, 230),
        (Kind::F32, 2, 142),
        (Kind::Bf16, 2, 282),
        (Kind::F32, 3, 252),
        (Kind::F64, 3, 127),
        (Kind::F32, 4, 270),
        (Kind::F32, 5, 300),
        (Kind::I32, 6, 400),
        (Kind::I64, 6, 200),
        (Kind::F32, 7, 20),
    ] {
        // An even seed that is no multiple of three: the dense rest, filled with zeros.
        let data = structured(kind, 300_000, 4, which);
        let frame = check(&data, &Options { kind, ..Options::default() });
        let share = frame.len() * 1000 / data.len();
        assert!(share <= most, "{kind:?}, structure {which}: {share} of 1000");
        // Threads do not matter.
        let options = Options { kind, threads: 1, ..Options::default() };
        assert!(z4ai::compress(&data, &options).unwrap() == frame);
    }
}

#[test]
fn arrays_are_kept() {
    let array = |dtype: &str, shape: &[u64]| Some(Array { dtype: dtype.into(), shape: shape.to_vec() });
    for (array, len) in [
        (array("<f4", &[]), 4),
        (array("<f4", &[3, 5]), 60),
        (array("<f4", &[0, 5]), 0),
        (array("bfloat16", &[2, 2, 2]), 16),
    ] {
        let data = weights(Kind::F32, len, 1, 0);
        check(&data, &Options { kind: Kind::F32, array, ..Options::default() });
    }
    let bad = Options { array: array("<f4", &[7]), ..Options::default() };
    assert_eq!(z4ai::compress(&[0; 12], &bad).unwrap_err().kind(), z4ai::ErrorKind::InvalidArgument);
}

/// Large outputs use non-temporal stores of whole cache lines, whatever the alignment.
#[test]
fn large_outputs_are_decoded_to_any_place() {
    for (kind, effort) in [
        (Kind::Bf16, Effort::Fast),
        (Kind::Bf16, Effort::Default),
        (Kind::F16, Effort::Default),
        (Kind::F32, Effort::Default),
    ] {
        let content = weights(kind, (8 << 20) + 1250 * kind.size(), 7, 0);
        let options = Options { kind, effort, ..Options::default() };
        let frame = z4ai::compress(&content, &options).unwrap();
        let mut memory = vec![0; content.len() + 128];
        let first_line = memory.as_ptr().align_offset(64);
        for place in [0, 1, 2, 8, 16, 40, 63] {
            memory.fill(0xa5);
            let start = first_line + place;
            let out = &mut memory[start..start + content.len()];
            z4ai::decompress_into(&frame, out, &DecodeOptions::default()).unwrap();
            assert!(*out == content, "{kind:?} {effort:?} at {place}");
            assert!(memory[..start].iter().chain(&memory[start + content.len()..]).all(|&byte| byte == 0xa5));
        }
    }
}

#[test]
fn many_blocks() {
    let mut next = noise(11);
    for block_type in BlockType::ALL {
        // Three chunks, of whole rows or not.
        let row = 8 * block_type.block_bytes();
        let rows = 2_600_000 / row;
        let data: Vec<u8> = (0..rows * row).map(|_| (next() & next() & 0x77) as u8).collect();
        let options = Options { kind: Kind::U8, blocks: Some(block_type), ..Options::default() };
        check(&data, &options);
        let shape = vec![rows as u64, row as u64];
        let frame = check(&data, &Options { shape, effort: Effort::Balanced, ..options });
        assert!(frame.len() < data.len() * 9 / 10, "{}", block_type.name());
    }
}

#[test]
fn blocks_are_whole_and_of_bytes() {
    let options = Options { kind: Kind::U8, blocks: Some(BlockType::Q4_0), ..Options::default() };
    assert_eq!(z4ai::compress(&[0; 35], &options).unwrap_err().kind(), z4ai::ErrorKind::InvalidArgument);
    let options = Options { kind: Kind::F32, ..options };
    assert_eq!(z4ai::compress(&[0; 36], &options).unwrap_err().kind(), z4ai::ErrorKind::InvalidArgument);
}
