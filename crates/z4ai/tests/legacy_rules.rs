//! One crafted frame for each rule that version 1 frames must keep: the frame without the flaw
//! decodes, the frame with it is refused, and by that rule.

mod common;

use z4ai::{DecodeOptions, legacy};

fn decode(frame: &[u8]) -> Result<Vec<u8>, String> {
    let options = DecodeOptions { max_output: 1 << 20, ..Default::default() };
    legacy::decompress(frame, &options).map_err(|error| error.to_string())
}

#[track_caller]
fn refused(frame: &[u8], rule: &str) {
    let error = decode(frame).expect_err(rule);
    assert!(error.contains(rule), "refused by \"{error}\", not \"{rule}\"");
}

/// A `Z4AI` frame with these planes: method, decoded length, payload.
fn z4ai(transform: u8, width: u8, spec: &[u8], tail: &[u8], planes: &[(u8, u64, &[u8])]) -> Vec<u8> {
    let mut frame = b"Z4AI\x01\x00".to_vec();
    frame.extend([transform, width, planes.len() as u8, 0, spec.len() as u8]);
    frame.extend(spec);
    frame.push(0);
    frame.extend((tail.len() as u32).to_le_bytes());
    frame.extend(tail);
    records(&mut frame, planes);
    frame
}

fn records(frame: &mut Vec<u8>, streams: &[(u8, u64, &[u8])]) {
    for (method, len, payload) in streams {
        frame.push(*method);
        frame.extend(len.to_le_bytes());
        frame.extend((payload.len() as u64).to_le_bytes());
        frame.extend(*payload);
    }
}

fn opaque(method: u8, len: u64, payload: &[u8]) -> Vec<u8> {
    z4ai(0, 1, b"", b"", &[(method, len, payload)])
}

/// A `ZARA` frame of one raw stream.
fn zara(method: u8, len: u64, payload: &[u8]) -> Vec<u8> {
    zara_fields(0, b"", 0, &[(method, len, payload)])
}

fn zara_fields(transform: u8, spec: &[u8], count: u64, streams: &[(u8, u64, &[u8])]) -> Vec<u8> {
    let mut frame = b"ZARA\x01\x00".to_vec();
    frame.extend([transform, 2, streams.len() as u8, spec.len() as u8]);
    frame.extend(spec);
    frame.extend(count.to_le_bytes());
    frame.extend([0, 0, 0, 0, 0, 0]);
    records(&mut frame, streams);
    frame
}

fn zstd(content: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(content, 1).unwrap()
}

/// A model of one symbol, whose stream needs no bytes however long it is.
fn table(entries: &[(usize, u16)]) -> Vec<u8> {
    let mut table = vec![0; 512];
    for &(symbol, frequency) in entries {
        table[symbol * 2..][..2].copy_from_slice(&frequency.to_le_bytes());
    }
    table
}

const START: u32 = 1 << 23;

fn states(states: &[u32]) -> Vec<u8> {
    states.iter().flat_map(|state| state.to_le_bytes()).collect()
}

fn numbers(values: &[u32]) -> Vec<u8> {
    states(values)
}

/// Plane method 3 with one stream.
fn rans_shared(count: u64, table: &[u8], stream: &[u8]) -> Vec<u8> {
    [&count.to_le_bytes(), table, stream].concat()
}

/// Plane method 4.
fn rans_chunks(count: u64, tables: &[u8], lengths: &[u32], streams: &[u8]) -> Vec<u8> {
    let tables = zstd(tables);
    [
        &(count | 1 << 62).to_le_bytes()[..],
        &numbers(&[lengths.len() as u32, tables.len() as u32]),
        &numbers(lengths),
        &tables,
        streams,
    ]
    .concat()
}

/// Plane method 5 with one chunk of four segments.
fn rans_order1(count: u32, model: &[u8], segments: &[u32; 4], streams: &[u8]) -> Vec<u8> {
    let model = zstd(model);
    let chunk = [&numbers(segments), streams].concat();
    [
        b"R1\x04\x00".as_slice(),
        &numbers(&[count, model.len() as u32]),
        &1u16.to_le_bytes(),
        &model,
        &numbers(&[chunk.len() as u32]),
        &chunk,
    ]
    .concat()
}

#[test]
fn lengths_agree() {
    assert_eq!(decode(&opaque(0, 3, b"abc")).unwrap(), b"abc");
    refused(&opaque(0, 4, b"abc"), "3 bytes are stored where 4");
    refused(&opaque(9, 3, b"abc"), "unknown stream method 9");
    let planes: &[(u8, u64, &[u8])] = &[(0, 2, b"ac"), (0, 2, b"bd")];
    assert_eq!(decode(&z4ai(1, 2, b"", b"!", planes)).unwrap(), b"abcd!");
    refused(&z4ai(1, 2, b"", b"!!", planes), "tail of 2 bytes");
    refused(&z4ai(1, 3, b"", b"", planes), "2 streams where 3");
    refused(&z4ai(0, 1, b"", b"", planes), "2 streams where 1");
    refused(&z4ai(0, 1, b"", b"", &[]), "0 streams where 1");
    refused(&z4ai(1, 0, b"", b"", &[]), "0 streams where 0");
    refused(&z4ai(4, 2, b"", b"", planes), "unknown transform 4");
    let uneven: &[(u8, u64, &[u8])] = &[(0, 2, b"ac"), (0, 1, b"b")];
    refused(&z4ai(1, 2, b"", b"", uneven), "disagree");
}

#[test]
fn float_fields_fit_their_type() {
    let fields = |sign: u8, exponent: u8, mantissa: u8| {
        let [sign, exponent, mantissa] = [sign, exponent, mantissa].map(|byte| [byte]);
        let planes: &[(u8, u64, &[u8])] = &[(0, 1, &sign), (0, 1, &exponent), (0, 1, &mantissa)];
        z4ai(2, 0, b"bfloat16", b"", planes)
    };
    assert_eq!(decode(&fields(0x80, 0x7F, 0x01)).unwrap(), [0x81, 0xBF]);
    refused(&fields(0x40, 0x7F, 0x01), "sign stream");
    refused(&fields(0x80, 0x7F, 0x81), "more bits than its type");
    let three: &[(u8, u64, &[u8])] = &[(0, 1, &[0]), (0, 1, &[0]), (0, 1, &[0])];
    refused(&z4ai(2, 0, b"float16", b"", three), "unknown transform");
    refused(&zara_fields(2, b"float8", 1, three), "unknown float type");
    refused(&zara_fields(2, b"bfloat16", 2, three), "disagree");
    refused(&zara_fields(2, b"float32", u64::MAX, three), "disagree");
    assert!(decode(&zara_fields(2, b"bfloat16", 1, three)).is_ok());
    assert!(decode(&zara_fields(3, b"bfloat16", 1, three)).is_ok());
}

#[test]
fn zstd_payloads_state_their_size() {
    let content = [7u8; 300];
    let good = zstd(&content);
    assert_eq!(decode(&opaque(1, 300, &good)).unwrap(), content);
    refused(&opaque(1, 299, &good), "where 299 are the limit");
    refused(&opaque(1, 301, &good), "states 300 bytes where 301");
    let longer = [&good[..], &[0]].concat();
    refused(&opaque(1, 300, &longer), "left over");
    let twice = [&good[..], &zstd(b"")].concat();
    refused(&opaque(1, 300, &twice), "left over");
    let skippable = [&[0x50, 0x2A, 0x4D, 0x18, 0, 0, 0, 0], &good[..]].concat();
    refused(&opaque(1, 300, &skippable), "magic");

    let magic = [0x28, 0xB5, 0x2F, 0xFD];
    // One run of 100 bytes; window of 1 KiB; content size in two bytes less 256.
    let mut run = (100u32 << 3 | 2 | 1).to_le_bytes();
    run[3] = b'x';
    let unsized_frame = [&magic[..], &[0x00, 0x00], &run].concat();
    refused(&opaque(1, 100, &unsized_frame), "does not state its content");
    let liar = [&magic[..], &[0x40, 0x00, 44, 0], &run].concat();
    refused(&opaque(1, 300, &liar), "at most 100");
    let window = [&magic[..], &[0x80, 18 << 3, 100, 0, 0, 0], &run].concat();
    refused(&opaque(1, 100, &window), "zstd window");
    let honest = [&magic[..], &[0x80, 17 << 3, 100, 0, 0, 0], &run].concat();
    assert_eq!(decode(&opaque(1, 100, &honest)).unwrap(), [b'x'; 100]);
    let dictionary = [&magic[..], &[0x21, 9, 100], &run].concat();
    refused(&opaque(1, 100, &dictionary), "dictionary");
    let reserved = [&magic[..], &[0x20, 100, 7, 0, 0]].concat();
    refused(&opaque(1, 100, &reserved), "reserved type");
}

#[test]
fn block_lists_tile_their_plane() {
    let (first, last) = (zstd(&[1; 200]), zstd(&[2; 100]));
    let lengths = [first.len() as u32, last.len() as u32];
    let list = |block_size: u32, lengths: &[u32], blocks: &[&[u8]]| {
        let head = numbers(&[block_size, lengths.len() as u32]);
        [&head[..], &numbers(lengths), &blocks.concat()].concat()
    };
    let good = list(200, &lengths, &[&first, &last]);
    assert_eq!(decode(&opaque(2, 300, &good)).unwrap().len(), 300);
    let swapped = [lengths[1], lengths[0]];
    refused(&opaque(2, 300, &list(200, &swapped, &[&last, &first])), "states 100");
    refused(&opaque(2, 401, &good), "do not make 401");
    refused(&opaque(2, 200, &good), "do not make 200");
    refused(&opaque(2, 300, &list(0, &lengths, &[&first, &last])), "do not make");
    refused(&opaque(2, 0, &list(200, &[], &[])), "do not make 0");
    let long = list(200, &[lengths[0], lengths[1] + 1], &[&first, &last]);
    refused(&opaque(2, 300, &long), "add up to");
    let many = [&numbers(&[1, u32::MAX])[..], &[0; 40]].concat();
    refused(&opaque(2, u32::MAX.into(), &many), "zstd block lengths needs");
}

#[test]
fn shared_rans_models_are_exact() {
    let one = table(&[(65, 16384)]);
    let still = states(&[START; 4]);
    let good = rans_shared(10, &one, &still);
    assert_eq!(decode(&opaque(3, 10, &good)).unwrap(), [65; 10]);
    assert_eq!(decode(&zara(3, 10, &good)).unwrap(), [65; 10]);
    assert_eq!(decode(&opaque(3, 0, &[0; 8])).unwrap(), b"");
    refused(&opaque(3, 0, &[0; 9]), "left over");
    refused(&opaque(3, 11, &good), "states 10 symbols where 11");
    let short = table(&[(65, 16383)]);
    refused(&opaque(3, 10, &rans_shared(10, &short, &still)), "add up to 16383");
    let over = table(&[(65, 16384), (66, 1)]);
    refused(&opaque(3, 10, &rans_shared(10, &over, &still)), "add up to 16385");
    for wrong in [0, START - 1, 1 << 31, u32::MAX] {
        let stream = states(&[START, START, START, wrong]);
        refused(&opaque(3, 10, &rans_shared(10, &one, &stream)), "start state");
    }
    let moved = states(&[START, START, START, START + 1]);
    refused(&opaque(3, 10, &rans_shared(10, &one, &moved)), "does not end");
    let unread = [&still[..], &[0]].concat();
    refused(&opaque(3, 10, &rans_shared(10, &one, &unread)), "does not end");
    let two = table(&[(65, 8192), (66, 8192)]);
    refused(&opaque(3, 10, &rans_shared(10, &two, &still)), "ends early");
    refused(&opaque(3, 10, &rans_shared(10, &one, &still[..12])), "rANS state needs");
}

#[test]
fn rans_chunks_have_symbols_and_streams() {
    let one = table(&[(65, 16384)]);
    let still = states(&[START; 4]);
    let (two, both) = ([&one[..], &one].concat(), [&still[..], &still].concat());
    let good = rans_chunks(10, &two, &[16, 16], &both);
    assert_eq!(decode(&opaque(4, 10, &good)).unwrap(), [65; 10]);
    let few = rans_chunks(1, &two, &[16, 16], &both);
    refused(&opaque(4, 1, &few), "1 symbols in 2 rANS chunks");
    refused(&opaque(4, 10, &rans_chunks(10, &[], &[], &[])), "in 0 rANS chunks");
    refused(&opaque(4, 10, &rans_chunks(10, &two, &[15, 17], &both)), "fewer than the 16");
    refused(&opaque(4, 10, &rans_chunks(10, &two, &[16, 17], &both)), "add up to 33");
    refused(&opaque(4, 10, &rans_chunks(10, &one, &[16, 16], &both)), "states 512");
    let mut unmarked = good.clone();
    unmarked[7] = 0;
    refused(&opaque(4, 10, &unmarked), "lacks the mark");
    assert_eq!(decode(&opaque(4, 0, &[0; 8])).unwrap(), b"");
    refused(&opaque(4, 1, &[0; 8]), "states 0 symbols");

    let shared = |count: u64, chunks: u16, lengths: &[u32]| {
        [&(count | 1 << 63).to_le_bytes()[..], &chunks.to_le_bytes(), &one, &numbers(lengths), &both].concat()
    };
    assert_eq!(decode(&opaque(3, 10, &shared(10, 2, &[16, 16]))).unwrap(), [65; 10]);
    refused(&opaque(3, 10, &shared(10, 0, &[])), "in 0 rANS chunks");
    refused(&opaque(3, 10, &shared(10, 2, &[16, 15])), "fewer than the 16");
}

#[test]
fn order_1_models_are_exact() {
    // Context 0 always gives 0.
    let model = |context: u8, entries: &[(u8, u16)]| {
        let mut record = vec![context];
        record.extend((entries.len() as u16).to_le_bytes());
        for (symbol, frequency) in entries {
            record.push(*symbol);
            record.extend(frequency.to_le_bytes());
        }
        record
    };
    let zero = model(0, &[(0, 4096)]);
    let still = states(&[START; 4]);
    let plane = |model: &[u8]| opaque(5, 9, &rans_order1(9, model, &[4; 4], &still));
    assert_eq!(decode(&plane(&zero)).unwrap(), [0; 9]);
    refused(&plane(&model(0, &[(0, 4095)])), "do not fill");
    refused(&plane(&model(0, &[(0, 4096), (1, 1)])), "overfill");
    refused(&plane(&model(0, &[(0, u16::MAX)])), "overfill");
    refused(&plane(&model(0, &[(1, 2048), (1, 2048)])), "symbols do not ascend");
    refused(&plane(&[&zero[..], &zero].concat()), "contexts do not ascend");
    refused(&plane(&model(1, &[(0, 4096)])), "context 0 has no model");
    refused(&plane(&model(0, &[(1, 4096)])), "context 1 has no model");
    refused(&plane(b""), "context 0 has no model");
    refused(&plane(&zero[..5]), "order-1 frequency needs");
    refused(&plane(&[0; 200_000]), "197376 are the limit");
    let uneven = rans_order1(9, &zero, &[4, 4, 3, 5], &still);
    refused(&opaque(5, 9, &uneven), "fewer than the 4");
    let wild = rans_order1(9, &zero, &[4, 4, 4, u32::MAX], &still);
    refused(&opaque(5, 9, &wild), "add up to");
    let mut segments = rans_order1(9, &zero, &[4; 4], &still);
    segments[2] = 5;
    refused(&opaque(5, 9, &segments), "5 segments");
    let moved = states(&[START, START, START, START + 4096]);
    refused(&opaque(5, 9, &rans_order1(9, &zero, &[4; 4], &moved)), "does not end");
    let empty = [b"R1\x04\x00".as_slice(), &[0; 10]].concat();
    assert_eq!(decode(&opaque(5, 0, &empty)).unwrap(), b"");
}

#[test]
fn brotli_streams_hold_what_they_state() {
    let head = |bits: &[(u64, u32)]| {
        let (mut value, mut at) = (0u64, 0);
        for (bit, width) in bits {
            value |= bit << at;
            at += width;
        }
        value.to_le_bytes()[..at.div_ceil(8) as usize].to_vec()
    };
    // A window of 16 bits, ISLAST 0, MNIBBLES 0 (four), MLEN - 1, ISUNCOMPRESSED 1.
    let block = |len: u64| head(&[(0, 1), (0, 1), (0, 2), (len - 1, 16), (1, 1)]);
    // After the uncompressed block an empty last one.
    let stream = [&block(4)[..], b"hell", &[3]].concat();
    assert_eq!(decode(&zara(2, 4, &stream)).unwrap(), b"hell");
    refused(&zara(2, 5, &stream), "lacks 1 of 5");
    refused(&zara(2, 3, &stream), "holds more than it states");
    refused(&zara(2, 4, &stream[..stream.len() - 1]), "ends early");
    refused(&zara(2, 4, &[&stream[..], &[0]].concat()), "left over");
    refused(&zara(2, 4, &[]), "brotli stream of 0 bytes");
    for window in [0x0D, 0x0F, 0x11] {
        refused(&zara(2, 4, &[window, 0, 0, 0]), "brotli window");
    }

    let list = |block_size: u32, blocks: &[&[u8]]| {
        let lengths: Vec<u32> = blocks.iter().map(|block| block.len() as u32).collect();
        let head = numbers(&[block_size, blocks.len() as u32]);
        [&head[..], &numbers(&lengths), &blocks.concat()].concat()
    };
    assert_eq!(decode(&zara(4, 4, &list(4, &[&stream]))).unwrap(), b"hell");
    refused(&zara(4, 8, &list(4, &[&stream, &stream])), "below 4096");
    let large = [&block(4096)[..], &[b'x'; 4096], &[3]].concat();
    let both = decode(&zara(4, 4100, &list(4096, &[&large, &stream])));
    assert_eq!(both.unwrap().len(), 4100);
    refused(&zara(4, 4101, &list(4096, &[&large, &stream])), "lacks 1 of 5");
    refused(&zara(4, 0, &list(4096, &[])), "do not make 0");
}

/// A sparse frame of two-byte elements with its values stored in one stream.
fn sparse(count: u64, nonzero: u64, tail: &[u8], bitmap: &[u8], values: &[u8]) -> Vec<u8> {
    let mut frame = b"ZSP1\x01\x02\x00\x00".to_vec();
    frame.extend(count.to_le_bytes());
    frame.extend(nonzero.to_le_bytes());
    frame.extend((tail.len() as u32).to_le_bytes());
    frame.extend([0, 0]);
    frame.extend(tail);
    frame.extend((bitmap.len() as u64).to_le_bytes());
    frame.extend(bitmap);
    frame.extend(values);
    frame
}

fn turbo(len: u64, payload: &[u8]) -> Vec<u8> {
    let mut frame = b"ZRT1\x02\x02".to_vec();
    frame.extend(len.to_le_bytes());
    frame.extend([0, 1]);
    records(&mut frame, &[(0, payload.len() as u64, payload)]);
    frame
}

#[test]
fn sparse_frames_count_right() {
    let (bitmap, values) = (zstd(&[0b0101_0000]), turbo(4, b"abcd"));
    let good = sparse(5, 2, b"!", &bitmap, &values);
    assert_eq!(decode(&good).unwrap(), b"\0\0ab\0\0cd\0\0!");
    refused(&sparse(5, 2, b"!!", &bitmap, &values), "tail of 2");
    refused(&sparse(5, 6, b"", &bitmap, &values), "6 of 5");
    refused(&sparse(5, 1, b"", &bitmap, &turbo(2, b"ab")), "2 bits set for 1");
    refused(&sparse(5, 2, b"", &bitmap, &turbo(2, b"ab")), "does not hold its 2");
    refused(&sparse(5, 0, b"", &bitmap, &values), "all elements are zero");
    refused(&sparse(3, 2, b"", &bitmap, &values), "bitmap has bits set");
    refused(&sparse(9, 2, b"", &bitmap, &values), "states 1 bytes where 2");
    refused(&sparse(0, 0, b"", &bitmap, b""), "bitmap for no elements");
    assert_eq!(decode(&sparse(0, 0, b"!", b"", b"")).unwrap(), b"!");
    refused(&sparse(1 << 63, 0, b"", &bitmap, b""), "overflows");
    let mut padded = good.clone();
    padded[7] = 1;
    refused(&padded, "padding 1");
    padded[7] = 0;
    padded[5] = 3;
    refused(&padded, "sparse width 3");
    padded[5] = 2;
    padded[4] = 2;
    refused(&padded, "version 2");
}

#[test]
fn turbo_frames_state_their_length() {
    assert_eq!(decode(&turbo(4, b"abcd")).unwrap(), b"abcd");
    refused(&turbo(5, b"abcd"), "states 5 bytes but holds 4");
    let empty = [b"ZRT1\x02\x02".as_slice(), &[0; 10]].concat();
    assert_eq!(decode(&empty).unwrap(), b"");
}

fn palette(count: u64, distinct: u32, codebook: &[u8], indices: &[u8]) -> Vec<u8> {
    let mut frame = b"ZPL1\x01\x02\x00\x01".to_vec();
    frame.extend(count.to_le_bytes());
    frame.extend(distinct.to_le_bytes());
    frame.extend([0; 6]);
    frame.extend((codebook.len() as u32).to_le_bytes());
    frame.extend(codebook);
    frame.extend(indices);
    frame
}

#[test]
fn palette_indices_have_values() {
    let (codebook, indices) = (zstd(b"aabb"), zstd(&[1, 0, 1]));
    let good = palette(3, 2, &codebook, &indices);
    assert_eq!(decode(&good).unwrap(), b"bbaabb");
    refused(&palette(3, 2, &codebook, &zstd(&[1, 2, 1])), "index 2 among 2");
    refused(&palette(3, 0, &codebook, &indices), "palette of 0 values");
    refused(&palette(3, 4, &codebook, &indices), "palette of 4 values for 3");
    refused(&palette(3, 3, &codebook, &indices), "states 4 bytes where 6");
    refused(&palette(4, 2, &codebook, &indices), "states 3 bytes where 4");
    refused(&palette(u64::MAX, 2, &codebook, &indices), "elements and a tail");
    refused(&palette(0, 0, b"", &indices), "for no elements");
    assert_eq!(decode(&palette(0, 0, b"", b"")).unwrap(), b"");
    let mut wide = good.clone();
    wide[7] = 3;
    refused(&wide, "indices of 3 bytes");
}

#[test]
fn chunks_add_up() {
    let chunk = |elements: u32, tail: &[u8], planes: &[(u8, &[u8])]| {
        let mut chunk = elements.to_le_bytes().to_vec();
        chunk.push(tail.len() as u8);
        chunk.extend(tail);
        for (method, payload) in planes {
            chunk.push(*method);
            chunk.extend((payload.len() as u32).to_le_bytes());
            chunk.extend(*payload);
        }
        chunk
    };
    let frame = |width: u8, count: u32, chunks: &[&[u8]]| {
        [b"Z4AIMF01\0", &[width][..], &count.to_le_bytes(), &chunks.concat()].concat()
    };
    let first = chunk(2, b"", &[(0, b"ac"), (1, &zstd(b"bd"))]);
    let last = chunk(0, b"!", &[(0, b""), (0, b"")]);
    assert_eq!(decode(&frame(2, 2, &[&first, &last])).unwrap(), b"abcd!");
    assert_eq!(decode(&frame(2, 0, &[])).unwrap(), b"");
    refused(&frame(0, 0, &[]), "width 0");
    refused(&frame(2, 1, &[&first, &last]), "left over");
    refused(&frame(2, u32::MAX, &[&first, &last]), "chunk element count needs");
    refused(&frame(2, 1, &[&chunk(2, b"!!", &[])]), "tail of 2");
    let short = chunk(2, b"", &[(0, b"ac"), (0, b"b")]);
    refused(&frame(2, 1, &[&short]), "1 bytes are stored where 2");
    let bomb = chunk(u32::MAX, b"", &[(1, &zstd(b"ab"))]);
    refused(&frame(1, 1, &[&bomb]), "states 2 bytes where 4294967295");
}

#[test]
fn arrays_have_the_size_of_their_shape() {
    let sample = common::samples();
    let sample = sample.iter().find(|s| s.name == "array_f4_40x30").unwrap();
    let decode = |frame: &[u8]| legacy::decompress_array(frame, &DecodeOptions::default());
    assert!(decode(&sample.frame).is_ok());
    // Magic, version, flags, transform, width, planes, then dtype with its length.
    assert_eq!(&sample.frame[9..13], b"\x03<f4");
    let mut other = sample.frame.clone();
    for (dtype, rule) in
        [(b"<f8", "does not have 4800 bytes"), (b"|O4", "no plain bytes"), (b"\xFFf4", "not ASCII")]
    {
        other[10..13].copy_from_slice(dtype);
        let error = decode(&other).unwrap_err().to_string();
        assert!(error.contains(rule), "{error}");
        // The bytes can still be decoded without the array.
        assert!(legacy::decompress(&other, &DecodeOptions::default()).is_ok());
    }
}

#[test]
fn deltas_hold_core_frames_of_their_length() {
    let samples = common::samples();
    let sample = samples.iter().find(|s| s.name == "delta_identical").unwrap();
    let reference = sample.reference.as_ref().unwrap();
    let apply = |frame: &[u8]| legacy::decompress_delta(frame, reference, &DecodeOptions::default());
    assert!(apply(&sample.frame).is_ok());
    let header = &sample.frame[..32];
    let short = [header, &opaque(0, 1, b"x")].concat();
    assert!(apply(&short).unwrap_err().to_string().contains("difference of 1 bytes"));
    for inner in [zara(0, 1, b"x"), turbo(1, b"x"), sample.frame.clone(), vec![]] {
        let error = apply(&[header, &inner].concat()).unwrap_err().to_string();
        assert!(error.contains("core frame"), "{error}");
    }
}
