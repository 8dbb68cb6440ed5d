//! Damaged and hostile frames: every flipped bit and every missing byte is noticed, nothing
//! panics, and nothing is allocated that the frame has not earned.

use proptest::prelude::*;
use z4ai::{Array, BlockType, DecodeOptions, Effort, ErrorKind, Kind, Options};

const LIMIT: DecodeOptions = DecodeOptions { threads: 1, max_output: 1 << 20 };

/// Small frames that between them use every layout, coder and option.
fn frames() -> Vec<(String, Vec<u8>, Vec<u8>)> {
    let mut frames = Vec::new();
    let mut add = |name: &str, data: Vec<u8>, options: Options| {
        let frame = z4ai::compress(&data, &options).unwrap();
        frames.push((name.to_owned(), data, frame));
    };
    let weights = |count: usize, scale: fn(usize) -> f32| -> Vec<f32> {
        let mut state = 12345u32;
        let mut next = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        (0..count).map(|i| (next() + next() + next()) * scale(i)).collect()
    };
    let bf16 = |values: &[f32]| -> Vec<u8> {
        values.iter().flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes()).collect()
    };
    let kind = |kind| Options { kind, ..Options::default() };
    let flat = &weights(400, |_| 0.05);
    let outliers = weights(400, |i| if i % 100 == 7 { 1e30 } else { 0.05 });
    add("bf16", bf16(flat), kind(Kind::Bf16));
    // The golden frame of the name above has lengths of four bytes.
    add("bf16 in eight short streams", bf16(&weights(3000, |_| 0.05)), kind(Kind::Bf16));
    add("bf16 with outliers", bf16(&outliers), kind(Kind::Bf16));
    let fast = Options { effort: Effort::Fast, ..kind(Kind::Bf16) };
    add("bf16 fast with outliers", bf16(&outliers), fast.clone());
    // Of many scales, more than a palette has, and as few as it pays to patch.
    let scattered = weights(2400, |i| if i % 240 == 7 { 2f32.powi(i as i32 / 240 * 9 - 60) } else { 0.05 });
    add("bf16 fast with patches", bf16(&scattered), fast);
    let columns = weights(16 * 64, |i| if i % 16 < 8 { 0.0001 } else { 4.0 });
    let shaped = Options { shape: vec![64, 16], ..kind(Kind::Bf16) };
    add("bf16 columns", bf16(&columns), shaped);
    let rows = weights(16 * 64, |i| if i / 64 % 2 == 0 { 0.0001 } else { 4.0 });
    let shaped = Options { shape: vec![16, 64], ..kind(Kind::Bf16) };
    add("bf16 rows", bf16(&rows), shaped);
    add("fp32", flat.iter().flat_map(|v| v.to_le_bytes()).collect(), kind(Kind::F32));
    let rounded: Vec<u8> = flat.iter().flat_map(|v| (v.to_bits() & !0xffff).to_le_bytes()).collect();
    add("fp32 with dead bytes", rounded, kind(Kind::F32));
    add("fp64", flat.iter().flat_map(|&v| f64::from(v).to_le_bytes()).collect(), kind(Kind::F64));
    add("int32", (0..300i32).flat_map(|v| (v * v % 97).to_le_bytes()).collect(), kind(Kind::I32));
    add("text", b"the same words, the same words again, ".repeat(40), kind(Kind::Raw));
    add("bool", (0..500u32).map(|v| (v * v % 7 == 1) as u8).collect(), kind(Kind::Bool));
    // Six of the sixteen indices of a palette.
    let six = (0..60u32).map(|v| [0, 1, 0x30, 0x46, 0x6b, 0xff][(v * v % 97 % 6) as usize]);
    add("six values", six.collect(), kind(Kind::U8));
    add("empty", Vec::new(), kind(Kind::F16));
    add("odd tail", bf16(flat)[..555].to_vec(), kind(Kind::Bf16));
    // Structure. The signs of zeros, as of weights times a mask, are coded or all the same.
    let zeros = |signed: bool| {
        let value = move |(i, &v): (usize, &f32)| {
            if i % 5 == 0 {
                v
            } else if signed {
                v * 0.0
            } else {
                0.0
            }
        };
        flat.iter().enumerate().flat_map(move |pair| value(pair).to_le_bytes()).collect::<Vec<u8>>()
    };
    add("sparse fp32", zeros(false), kind(Kind::F32));
    add("sparse fp32 with signs", zeros(true), kind(Kind::F32));
    add("constant fp32", 0.75f32.to_le_bytes().repeat(300), kind(Kind::F32));
    let numbers =
        |count: u32, modulus: u32| (0..count).map(move |i| (i.wrapping_mul(2_654_435_761) >> 15) % modulus);
    let scaled = |v: u32, scale: f32| (v as f32 * scale).to_le_bytes();
    add(
        "palette of whole numbers",
        numbers(1100, 13).flat_map(|v| scaled(v, 1.0)).collect(),
        kind(Kind::F32),
    );
    add("palette of any numbers", numbers(1100, 13).flat_map(|v| scaled(v, 0.3)).collect(), kind(Kind::F32));
    add(
        "palette of many numbers",
        numbers(2400, 293).flat_map(|v| scaled(v, 0.3)).collect(),
        kind(Kind::F32),
    );
    let rows = numbers(4096, 16).enumerate().flat_map(|(i, v)| scaled(v, 0.3 + (i / 128) as f32)).collect();
    add("rows of few values", rows, Options { shape: vec![32, 128], ..kind(Kind::F32) });
    add(
        "int64 of a small range",
        (0..400i64).flat_map(|v| (v * v % 997 - 300).to_le_bytes()).collect(),
        kind(Kind::I64),
    );
    add("joined bits", numbers(3000, 31).map(|v| u8::from(v == 1)).collect(), kind(Kind::Bool));
    // Bytes without structure of their own, so that a copy is all that is found.
    let noise: Vec<u8> = numbers(9000, 65_521).map(|v| v as u8).collect();
    let repeated = [&noise[..], b"apart", &noise[1000..8000], &noise[..5000]].concat();
    add("repeats", repeated, kind(Kind::Raw));
    let smooth = weights(1500, |_| 0.05).into_iter().enumerate();
    let smooth = smooth.map(|(i, v)| if i / 7 % 2 == 0 { v.abs() } else { -v.abs() });
    add("fp32 with leaning signs", smooth.flat_map(|v| v.to_le_bytes()).collect(), kind(Kind::F32));
    for block_type in BlockType::ALL {
        let blocks = if block_type.block_elements() > 64 { 12 } else { 40 };
        let data = numbers(blocks * block_type.block_bytes() as u32, 6);
        let data = data.map(|v| [0x77, 0x78, 0x87, 0x88, 0x79, 0x97][v as usize]).collect();
        let options = Options { blocks: Some(block_type), ..kind(Kind::U8) };
        add(&format!("blocks {}", block_type.name()), data, options);
    }
    // Squares whose scale is one of the row times one of the column, as second moments are.
    let moments = weights(64 * 64, |i| 2f32.powi((i / 64 * 7 % 9 + i % 64 * 5 % 11) as i32 - 30));
    let moments: Vec<f32> = moments.into_iter().map(|v| v * v + 1e-30).collect();
    let shaped = Options { shape: vec![64, 64], ..kind(Kind::Bf16) };
    add("bf16 of rows and columns", bf16(&moments), shaped);
    // Magnitudes of one of two scales, by row or by column.
    let scaled = |large: fn(u32) -> bool| {
        let numbers = numbers(64 * 128, 1 << 12).enumerate();
        numbers.map(move |(i, v)| (v >> 11 << 7 | (v % 12 + if large(i as u32) { 0x40 } else { 0x10 })) as u8)
    };
    let shaped = Options { shape: vec![64, 128], ..kind(Kind::F8E4M3) };
    add("fp8 rows", scaled(|i| i / 128 % 2 == 0).collect(), shaped.clone());
    add("fp8 columns", scaled(|i| i % 3 == 0).collect(), shaped);
    let array = Some(Array { dtype: "<f4".into(), shape: vec![20, 20] });
    let data = flat.iter().flat_map(|v| v.to_le_bytes()).collect();
    add("array", data, Options { array, ..kind(Kind::F32) });
    frames
}

/// Frames of what only pays for more data: fractions of bits, and contexts.
fn large_frames() -> Vec<(String, Vec<u8>, Vec<u8>)> {
    let mut state = 1u32;
    let mut next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    let mut bf16 = |scale: fn(usize) -> f32| -> Vec<u8> {
        let values = (0..20_000).map(|i| (next() + next() + next()) * scale(i));
        values.flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes()).collect()
    };
    // Scales that grow, and elements that no window of exponents has.
    let growing = |i: usize| if i % 900 == 7 { 1e-38 } else { 2f32.powi(i as i32 / 700 - 14) };
    let cases =
        [("bf16 balanced", Effort::Balanced, bf16(|_| 0.05)), ("bf16 max", Effort::Max, bf16(growing))];
    let encode = |(name, effort, data): (&str, Effort, Vec<u8>)| {
        let options = Options { kind: Kind::Bf16, effort, ..Options::default() };
        let frame = z4ai::compress(&data, &options).unwrap();
        (name.to_owned(), data, frame)
    };
    let mut frames: Vec<_> = cases.into_iter().map(encode).collect();
    frames.push(blocks_in_classes());
    frames.push(blocks_of_a_convolution());
    frames.push(blocks_with_relative_offsets());
    frames.push(fp8_rows_and_columns());
    frames.push(fp8_of_a_convolution());
    frames.push(fp8_of_two_scales());
    frames.push(fp8_of_positions());
    frames.push(fp8_of_words());
    // The golden frame of their name has shapes in bytes.
    let (_, data, frame) = blocks_in_classes();
    frames.push(("blocks in packed classes".to_owned(), data, frame));
    // Bytes of a smooth distribution, and of two smooth halves.
    let mut normal = |deviation: f32| ((next() + next() + next() + next()) * deviation).round() as i32;
    let curve = (0..20_000).map(|i| if i % 32 == 9 { 127 } else { normal(60.0) as u8 }).collect();
    let mut nibble = || (8 + normal(7.0)).clamp(0, 15) as u8;
    let pairs = (0..20_000).map(|_| nibble() | nibble() << 4).collect();
    for (name, data) in [("int8 of a curve", curve), ("uint8 of pairs", pairs)] {
        let data: Vec<u8> = data;
        let options = Options { kind: Kind::U8, ..Options::default() };
        let frame = z4ai::compress(&data, &options).unwrap();
        frames.push((name.to_owned(), data, frame));
    }
    frames
}

/// Blocks of which some have large scales and small quants, and whose offsets say where zero is.
fn blocks_in_classes() -> (String, Vec<u8>, Vec<u8>) {
    let mut state = 1u32;
    let mut next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 16
    };
    let mut data = Vec::new();
    for _ in 0..3000 {
        let (large, high) = (next() % 4 == 0, next() % 2 == 0);
        let scale = 0x2c00 + if large { 0x900 } else { 0 } + (next() % 64) as u16;
        let offset = 0xb000 + if high { 0x800 } else { 0 } + (next() % 64) as u16;
        data.extend(scale.to_le_bytes());
        data.extend(offset.to_le_bytes());
        let (zero, width) = (if high { 12 } else { 4 }, if large { 2 } else { 6 });
        let mut quant =
            || (zero + (next() % width + next() % width) as i32 - width as i32).clamp(0, 15) as u8;
        data.extend((0..16).map(|_| quant() | quant() << 4));
    }
    let options = Options {
        kind: Kind::U8,
        shape: vec![30, 2000],
        blocks: Some(BlockType::Q4_1),
        ..Options::default()
    };
    let frame = z4ai::compress(&data, &options).unwrap();
    ("blocks in pooled classes".to_owned(), data, frame)
}

/// Blocks whose neighbouring quants are close to each other, and so are their scales.
fn blocks_of_a_convolution() -> (String, Vec<u8>, Vec<u8>) {
    let mut state = 1u32;
    let mut next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    let (mut quant, mut scale) = (0f32, 0f32);
    let mut data = Vec::new();
    for _ in 0..1000 {
        scale = 0.9 * scale + 900.0 * next();
        data.extend((0x2c00 + scale as i32).to_le_bytes()[..2].iter());
        data.extend((0..16).map(|_| {
            let mut nibble = || {
                quant = 0.8 * quant + 5.0 * next();
                (8 + quant.round() as i32).clamp(0, 15) as u8
            };
            nibble() | nibble() << 4
        }));
    }
    let options = Options { kind: Kind::U8, blocks: Some(BlockType::Q4_0), ..Options::default() };
    let frame = z4ai::compress(&data, &options).unwrap();
    ("blocks of a convolution".to_owned(), data, frame)
}

/// Blocks whose offsets are about proportional to their scales.
fn blocks_with_relative_offsets() -> (String, Vec<u8>, Vec<u8>) {
    let mut state = 1u32;
    let mut next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    let mut data = Vec::new();
    for _ in 0..600 {
        let scale = (0x1800 + ((next() + next()) * 2000.0) as i32) as u16;
        let offset = (i32::from(scale) + 0x0c00 + (next() * 200.0) as i32) as u16;
        data.extend([scale.to_le_bytes(), offset.to_le_bytes()].concat());
        let scales: [u8; 8] = std::array::from_fn(|_| (42.0 + 40.0 * next()).clamp(0.0, 63.0) as u8);
        let offsets = scales.map(|scale| (f32::from(scale) * (0.9 + 0.2 * next())).clamp(0.0, 63.0) as u8);
        data.extend((0..4).map(|i| scales[i] | scales[i + 4] >> 4 << 6));
        data.extend((0..4).map(|i| offsets[i] | offsets[i + 4] >> 4 << 6));
        data.extend((0..4).map(|i| scales[i + 4] & 15 | offsets[i + 4] << 4));
        let mut quant = || (8.0 + 6.0 * (next() + next())).clamp(0.0, 15.0) as u8;
        data.extend((0..128).map(|_| quant() | quant() << 4));
    }
    let options = Options { kind: Kind::U8, blocks: Some(BlockType::Q4_K), ..Options::default() };
    let frame = z4ai::compress(&data, &options).unwrap();
    ("blocks with relative offsets".to_owned(), data, frame)
}

/// fp8 e4m3, rounded towards zero.
fn fp8(value: f32) -> u8 {
    let bits = value.abs().min(448.0).to_bits();
    let exponent = (bits >> 23) as i32 - 127 + 7;
    let magnitude = if exponent <= 0 { 0 } else { (exponent as u8) << 3 | (bits >> 20 & 7) as u8 };
    magnitude | u8::from(value < 0.0) << 7
}

fn fp8_frame(name: &str, period: u64, data: Vec<u8>) -> (String, Vec<u8>, Vec<u8>) {
    let shape = vec![data.len() as u64 / period, period];
    let options = Options { kind: Kind::F8E4M3, shape, effort: Effort::Balanced, ..Options::default() };
    let frame = z4ai::compress(&data, &options).unwrap();
    (name.to_owned(), data, frame)
}

/// Rows and columns that differ in scale.
fn fp8_rows_and_columns() -> (String, Vec<u8>, Vec<u8>) {
    let mut state = 1u32;
    let mut next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    let scale = |i: usize| 2f32.powi((i * 7 % 5) as i32 / 2) * 2f32.powi((i % 250 * 3 % 7) as i32 / 3);
    let data =
        (0..250 * 240).map(|i| fp8((next() + next() + next()) * scale(i / 250) * scale(i % 250))).collect();
    fp8_frame("fp8 rows and columns", 250, data)
}

/// Elements that are close to the ones before.
fn fp8_of_a_convolution() -> (String, Vec<u8>, Vec<u8>) {
    let mut state = 1u32;
    let mut next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    let mut value = 0f32;
    let smooth = |_| {
        value = 0.8 * value + next() + next();
        fp8(value)
    };
    let data = (0..40_000).map(smooth).collect();
    fp8_frame("fp8 of a convolution", 200, data)
}

/// Values from -0.5 to 0.5.
fn noise() -> impl FnMut() -> f32 {
    let mut state = 1u32;
    move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    }
}

/// Rows of two scales, each of 13,000 and more elements, whose tables have 2^13 states.
fn fp8_of_two_scales() -> (String, Vec<u8>, Vec<u8>) {
    let mut next = noise();
    let data = (0..200 * 200).map(|i| {
        let scale = if i / 200 % 3 == 0 { 1.0 } else { 6.0 };
        fp8((next() + next() + next()) * scale)
    });
    fp8_frame("fp8 of two scales", 200, data.collect())
}

/// Elements that are close to the ones above them; the last row is shorter.
fn fp8_of_positions() -> (String, Vec<u8>, Vec<u8>) {
    let mut next = noise();
    let mut above = [0f32; 150];
    let smooth = |i: usize| {
        let value = &mut above[i % 150];
        *value = 0.95 * *value + 0.5 * (next() + next());
        fp8(*value)
    };
    let data: Vec<u8> = (0..150 * 200).map(smooth).collect();
    fp8_frame("fp8 of positions", 150, data)
}

/// Columns whose elements are of one sign more often than not, in rows of two scales.
fn fp8_of_words() -> (String, Vec<u8>, Vec<u8>) {
    let mut next = noise();
    let data = (0..250 * 240).map(|i| {
        let (row, column) = (i / 250, i % 250);
        let common = if column % 2 == 0 { 0.6 } else { -0.6 };
        let scale = if row % 3 == 0 { 1.0 } else { 4.0 };
        fp8((next() + next() + next() + common) * scale)
    });
    fp8_frame("fp8 of words", 250, data.collect())
}

#[test]
fn columns_of_fp8_pay() {
    let len_of = |data: &[u8]| {
        let options = Options { kind: Kind::U8, ..Options::default() };
        z4ai::compress(data, &options).unwrap().len()
    };
    let (_, data, frame) = fp8_of_positions();
    let streams = z4ai::streams(&frame).unwrap();
    assert!(
        streams.iter().all(|stream| (stream.role, stream.coder) == ("columns", "order-1 tans")),
        "{streams:?}"
    );
    assert!(frame.len() * 100 < len_of(&data) * 85, "{} of {}", frame.len(), len_of(&data));
    let (_, data, frame) = fp8_of_words();
    assert!(frame.len() * 100 < len_of(&data) * 92, "{} of {}", frame.len(), len_of(&data));
}

#[test]
fn classes_of_rows_and_columns_pay() {
    let (_, data, frame) = fp8_rows_and_columns();
    let alone = z4ai::compress(&data, &Options { kind: Kind::U8, ..Options::default() }).unwrap();
    assert!(frame.len() * 100 < alone.len() * 94, "{} of {}", frame.len(), alone.len());
    let (_, data, frame) = fp8_of_a_convolution();
    let alone = z4ai::compress(&data, &Options { kind: Kind::U8, ..Options::default() }).unwrap();
    assert!(frame.len() * 100 < alone.len() * 93, "{} of {}", frame.len(), alone.len());
}

/// Frames at the default effort: its search is by samples.
#[test]
fn classes_of_one_axis_and_contexts_are_found_by_default() {
    let shaped = |data: &[u8], period: usize, effort| {
        let shape = vec![(data.len() / period) as u64, period as u64];
        z4ai::compress(data, &Options { kind: Kind::F8E4M3, shape, effort, ..Options::default() }).unwrap()
    };
    for ((name, data, balanced), period, coder) in [
        (fp8_of_two_scales(), 200, "pooled tans"),
        (fp8_of_a_convolution(), 200, "order-1 tans"),
        (fp8_of_positions(), 150, "order-1 tans"),
    ] {
        let frame = shaped(&data, period, Effort::Default);
        let streams = z4ai::streams(&frame).unwrap();
        assert!(streams.iter().all(|stream| stream.coder == coder), "{name}: {streams:?}");
        assert!(frame.len() * 100 < balanced.len() * 106, "{name}: {} of {}", frame.len(), balanced.len());
        assert!(z4ai::decompress(&frame, &LIMIT).unwrap() == data, "{name}");
    }
    // Nothing but one distribution has one table.
    let mut next = noise();
    let data: Vec<u8> = (0..200 * 200).map(|_| fp8(next() + next() + next())).collect();
    let streams = z4ai::streams(&shaped(&data, 200, Effort::Default)).unwrap();
    assert!(streams.len() == 1 && streams[0].coder.ends_with("tans"), "{streams:?}");
    assert!(streams[0].role == "bytes", "{streams:?}");
}

/// Blocks of 128 columns that have a scale each.
#[test]
fn classes_of_parts_of_rows_pay() {
    let mut next = noise();
    let blocks: Vec<u8> = (0..384 * 384)
        .map(|i| {
            let (row, column) = (i / 384 / 128, i % 384 / 128);
            let scale = if (row + column) % 2 == 0 { 1.0 } else { 4.0 };
            fp8((next() + next() + next()) * scale)
        })
        .collect();
    let len = |effort| {
        let options = Options { kind: Kind::F8E4M3, shape: vec![384, 384], effort, ..Options::default() };
        let frame = z4ai::compress(&blocks, &options).unwrap();
        assert!(z4ai::decompress(&frame, &LIMIT).unwrap() == blocks);
        frame.len()
    };
    let (default, balanced) = (len(Effort::Default), len(Effort::Balanced));
    assert!(balanced * 100 < default * 96, "{balanced} of {default}");
}

#[test]
fn relative_offsets_of_blocks_pay() {
    let (_, _, frame) = blocks_with_relative_offsets();
    let streams = z4ai::streams(&frame).unwrap();
    let pairs = streams.iter().find(|stream| stream.coder == "order-1 tans").unwrap();
    assert_eq!((pairs.role, pairs.content_len), ("block parameters", 600 * 16));
    // Five bits for a scale, and three for an offset.
    assert!(pairs.stored_len * 16 < pairs.content_len * 10, "{streams:?}");
    let halves: u64 = streams.iter().filter(|s| s.content_len == 600).map(|s| s.stored_len).sum();
    assert!(halves < 600 * 4, "{streams:?}");
}

#[test]
fn neighbours_of_blocks_pay() {
    let (_, _, frame) = blocks_of_a_convolution();
    let streams = z4ai::streams(&frame).unwrap();
    let quants = streams.iter().find(|stream| stream.role == "quants").unwrap();
    assert_eq!(quants.coder, "order-1 tans");
    assert!(quants.stored_len * 100 < quants.content_len * 77, "{streams:?}");
}

#[test]
fn classes_of_blocks_pay() {
    let (_, data, frame) = blocks_in_classes();
    let streams = z4ai::streams(&frame).unwrap();
    let quants: Vec<_> = streams.iter().filter(|stream| stream.role == "quants").collect();
    assert!(quants.iter().all(|stream| stream.coder == "pooled tans") && quants.len() == 1, "{streams:?}");
    let bytes = z4ai::compress(&data, &Options { kind: Kind::U8, ..Options::default() }).unwrap();
    assert!(frame.len() * 20 < bytes.len() * 17, "{} of {}", frame.len(), bytes.len());
}

#[test]
fn flipped_bits_of_large_frames_are_noticed() {
    for ((name, data, frame), coder) in large_frames().into_iter().zip([
        "tans",
        "contexts",
        "pooled tans",
        "order-1 tans",
        "order-1 tans",
        "pooled tans",
        "order-1 tans",
        "pooled tans",
        "order-1 tans",
        "pooled tans",
        "pooled tans",
        "shaped tans",
        "shaped tans",
    ]) {
        assert!(z4ai::decompress(&frame, &LIMIT).unwrap() == data, "{name}");
        assert!(z4ai::streams(&frame).unwrap().iter().any(|stream| stream.coder == coder), "{name}");
        // All of the index, and places all over the payload.
        let index_len = u32::from_le_bytes(frame[24..28].try_into().unwrap()) as usize;
        let index = (frame.len() - index_len) * 8..frame.len() * 8;
        for bit in (0..index.start).step_by(173).chain(index) {
            let mut damaged = frame.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(z4ai::decompress(&damaged, &LIMIT).is_err(), "{name}: bit {bit} went unnoticed");
        }
        // With the checksum made right again, the parser sees what was changed.
        for byte in frame.len() - index_len..frame.len() - 8 {
            for value in [0, 1, 0x7f, 0xff, frame[byte] ^ 1, frame[byte] ^ 0x10] {
                let mut hostile = frame.clone();
                hostile[byte] = value;
                reseal(&mut hostile);
                if let Ok(decoded) = z4ai::decompress(&hostile, &LIMIT) {
                    assert!(decoded == data, "{name}: byte {byte}");
                }
            }
        }
    }
}

#[test]
fn frames_have_what_they_are_named_after() {
    let frames = frames();
    let has = |name: &str, role: &str, coder: &str| {
        let (_, _, frame) = frames.iter().find(|frame| frame.0 == name).unwrap();
        let streams = z4ai::streams(frame).unwrap();
        let found = streams.iter().any(|stream| stream.role == role && stream.coder == coder);
        assert!(found, "{name}: {streams:?}");
    };
    has("fp32 with leaning signs", "signs", "huffman");
    has("bf16 fast with patches", "symbols", "palette");
    has("bf16 fast with patches", "patches", "raw");
    has("six values", "bytes", "palette");
}

#[test]
fn every_flipped_bit_is_noticed() {
    for (name, data, frame) in frames() {
        assert!(z4ai::decompress(&frame, &LIMIT).unwrap() == data, "{name}");
        for bit in 0..frame.len() * 8 {
            let mut damaged = frame.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let result = z4ai::decompress(&damaged, &LIMIT);
            assert!(result.is_err(), "{name}: bit {bit} of {} went unnoticed", frame.len() * 8);
        }
    }
}

#[test]
fn every_missing_or_extra_byte_is_noticed() {
    for (name, _, frame) in frames() {
        for len in 0..frame.len() {
            assert!(z4ai::decompress(&frame[..len], &LIMIT).is_err(), "{name}: cut to {len}");
            assert!(z4ai::inspect(&frame[..len]).is_err(), "{name}: cut to {len}");
        }
        let longer = [frame.as_slice(), &[0]].concat();
        assert!(z4ai::decompress(&longer, &LIMIT).is_err(), "{name}");
    }
}

/// Closes a frame again after its index or header was changed: right checksum and length.
fn reseal(frame: &mut [u8]) {
    let len = frame.len();
    frame[8..16].copy_from_slice(&(len as u64).to_le_bytes());
    let index_len = u32::from_le_bytes(frame[24..28].try_into().unwrap()) as usize;
    let array_len = match frame[6] & 1 {
        0 => 0,
        _ => {
            let Some(&dimensions) = frame.get(33 + usize::from(frame[32])) else { return };
            2 + usize::from(frame[32]) + 8 * usize::from(dimensions)
        }
    };
    if index_len < 8 || index_len + 32 + array_len > len {
        return;
    }
    let head = [&frame[..32 + array_len], &frame[len - index_len..len - 8]].concat();
    let checksum = twox_hash::XxHash3_64::oneshot(&head);
    frame[len - 8..].copy_from_slice(&checksum.to_le_bytes());
}

#[test]
fn hostile_headers_and_indices_do_not_panic() {
    // With the checksum made right again, every bit of header and index reaches the parser.
    for (_, data, frame) in frames() {
        let index_len = u32::from_le_bytes(frame[24..28].try_into().unwrap()) as usize;
        let places = (0..64.min(frame.len())).chain(frame.len() - index_len..frame.len() - 8);
        for byte in places {
            for value in [0, 1, 0x7f, 0x80, 0xfe, 0xff, frame[byte] ^ 1, frame[byte] ^ 0x10] {
                let mut hostile = frame.clone();
                hostile[byte] = value;
                reseal(&mut hostile);
                if let Ok(decoded) = z4ai::decompress(&hostile, &LIMIT) {
                    // Only what no decoded byte depends on may change, such as the kind of an
                    // opaque chunk; content is still that of the checksums. Copies are part of the
                    // index: the one that recomputes the checksum chooses what is copied.
                    let copies = hostile[6] & 4 != 0;
                    assert!(decoded == data || decoded.is_empty() || copies);
                }
                let mut out = vec![0; 8];
                let _ = z4ai::decompress_range(&hostile, 0..4, &mut out, &LIMIT);
            }
        }
    }
}

#[test]
fn declared_sizes_are_not_believed() {
    let frame = z4ai::compress(&[7; 3_000_000], &Options::default()).unwrap();
    let error = z4ai::decompress(&frame, &LIMIT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    let mut huge = frame.clone();
    huge[16..24].copy_from_slice(&(1u64 << 60).to_le_bytes());
    reseal(&mut huge);
    assert_eq!(z4ai::decompress(&huge, &DecodeOptions::default()).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn deterministic_mutations_never_panic() {
    let frames = frames();
    let mut state = 88_172_645_463_325_252u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize
    };
    for round in 0..30_000 {
        let (_, data, frame) = &frames[next() % frames.len()];
        let mut mutant = frame.clone();
        for _ in 0..1 + next() % 4 {
            if mutant.is_empty() {
                break;
            }
            let at = next() % mutant.len();
            match next() % 4 {
                0 => mutant[at] = next() as u8,
                1 => mutant.truncate(at),
                2 => mutant.insert(at, next() as u8),
                _ => {
                    let len = (next() % 9).min(mutant.len() - at);
                    let from = next() % (mutant.len() - len + 1);
                    mutant.copy_within(from..from + len, at);
                }
            }
        }
        if round % 2 == 0 && mutant.len() >= 48 {
            reseal(&mut mutant);
        }
        let decoded = z4ai::decompress(&mutant, &LIMIT);
        // Without a new seal, only an undamaged frame decodes.
        if round % 2 == 1
            && let Ok(decoded) = decoded
        {
            assert!(&decoded == data && mutant == *frame);
        }
    }
}

proptest! {
    #[test]
    fn noise_is_no_frame(mut bytes in prop::collection::vec(any::<u8>(), 0..300), sealed: bool) {
        if sealed && bytes.len() >= 48 {
            bytes[..5].copy_from_slice(b"Z4AI\x02");
            bytes[6..8].fill(0);
            let len = bytes.len() as u32;
            bytes[24..28].copy_from_slice(&(len - 40).to_le_bytes());
            reseal(&mut bytes);
        }
        let _ = z4ai::inspect(&bytes);
        let _ = z4ai::decompress(&bytes, &LIMIT);
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let frame = z4ai::compress(&[1, 2, 3, 4], &Options { kind: Kind::I16, ..Options::default() }).unwrap();
    let options = DecodeOptions::default();
    let mut out = [0; 4];
    let wrong = [
        z4ai::decompress_into(&frame, &mut out[..3], &options),
        z4ai::decompress_range(&frame, 0..3, &mut out, &options),
        z4ai::decompress_range(&frame, 1..2, &mut out, &options),
    ];
    for result in wrong {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    let wrong_shape = Options { shape: vec![3], ..Options::default() };
    assert_eq!(z4ai::compress(&[0; 4], &wrong_shape).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

/// Another thread writes to the data while it is encoded: the frame holds some state of every
/// byte, and is sound.
#[test]
fn data_that_changes_meanwhile_makes_a_sound_frame() {
    use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
    let shared: Vec<AtomicU8> = (0..2_000_000u32).map(|i| AtomicU8::new((i % 251) as u8)).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0u8;
            while !stop.load(Ordering::Relaxed) {
                value = value.wrapping_add(1);
                shared.iter().step_by(7).for_each(|byte| byte.store(value, Ordering::Relaxed));
            }
        });
        // SAFETY: the bytes are alive for the whole scope and always initialised. They do change
        // meanwhile, which is what callers from other languages do, and what this test is about.
        let data = unsafe { std::slice::from_raw_parts(shared.as_ptr().cast::<u8>(), shared.len()) };
        for kind in [Kind::Bf16, Kind::F32, Kind::Raw] {
            for _ in 0..5 {
                let options = Options { kind, threads: 1, ..Options::default() };
                let frame = z4ai::compress(data, &options).unwrap();
                let decoded = z4ai::decompress(&frame, &DecodeOptions::default()).unwrap();
                assert_eq!(decoded.len(), data.len());
                let still = decoded.iter().enumerate().filter(|(i, _)| i % 7 != 0);
                assert!(still.into_iter().all(|(i, &byte)| byte == (i % 251) as u8));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// The frames of the tests above, kept as they were first written: they must stay readable.
/// `Z4AI_WRITE_GOLDEN=1` writes those that are missing.
#[test]
fn golden_frames_stay_readable() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for (name, data, frame) in frames().into_iter().chain(large_frames()) {
        let base = folder.join(name.replace(' ', "_"));
        let (packed, original) = (base.with_extension("z4ai"), base.with_extension("raw"));
        if !packed.exists() && std::env::var_os("Z4AI_WRITE_GOLDEN").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&packed, &frame).unwrap();
            std::fs::write(&original, &data).unwrap();
        }
        let golden = std::fs::read(&packed).unwrap_or_else(|e| panic!("{}: {e}", packed.display()));
        let decoded = z4ai::decompress(&golden, &LIMIT).unwrap();
        assert!(decoded == std::fs::read(&original).unwrap(), "{name}");
    }
}

#[test]
fn levels_of_rows_and_columns_pay() {
    let [frame, flat] = ["bf16 of rows and columns", "bf16"].map(|wanted| {
        frames().into_iter().find(|(name, ..)| name == wanted).map(|(_, _, frame)| frame).unwrap()
    });
    let has_levels =
        |frame: &[u8]| z4ai::streams(frame).unwrap().iter().any(|stream| stream.role == "levels");
    assert!(has_levels(&frame) && !has_levels(&flat));
}
