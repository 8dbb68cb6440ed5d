//! One contestant of `benchmark/codec.py`: this codec and the machine's memory copy.
//!
//! `measure FILE KIND EFFORT THREADS LIMIT [SHAPES]` reads (the first LIMIT bytes of) FILE and then
//! answers commands from standard input, one per line, each with one line: `size` with the bytes of
//! the frames, `streams` with what they are made of, `compress`, `dense` (to compress without
//! looking for anything but rows and columns of one scale), `decompress`, `fresh` and `memcpy` with
//! seconds. SHAPES is a file of lines `offset length dimension…`, one per tensor; without it the
//! whole file is one buffer. With `LIMIT` 0 the whole file is taken.

use std::hint::black_box;
use std::io::BufRead;
use std::time::Instant;

use z4ai::{BlockType, DecodeOptions, Effort, Kind, Options};

struct Part {
    bytes: std::ops::Range<usize>,
    options: Options,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [file, kind, effort, threads, limit, shapes @ ..] = args.as_slice() else {
        panic!("usage: measure FILE KIND EFFORT THREADS LIMIT [SHAPES]");
    };
    let mut data = std::fs::read(file).expect("a readable file");
    let limit: usize = limit.parse().expect("LIMIT is a number");
    if limit > 0 {
        data.truncate(limit);
    }
    let threads = threads.parse().expect("THREADS is a number");
    let options = Options {
        kind: Kind::from_name(kind).unwrap_or(Kind::U8),
        blocks: BlockType::from_name(kind),
        effort: Effort::from_name(effort).expect("a known EFFORT"),
        threads,
        ..Options::default()
    };
    assert!(options.blocks.is_some() || Kind::from_name(kind).is_some(), "a known KIND or block type");
    let parts = parts(data.len(), &options, shapes.first());
    let decode = DecodeOptions { threads, ..DecodeOptions::default() };

    // Every buffer is touched before anything is timed.
    let mut frames = vec![Vec::new(); parts.len()];
    for (part, frame) in parts.iter().zip(&mut frames) {
        z4ai::compress_into(&data[part.bytes.clone()], &part.options, frame).expect("encodes");
    }
    let mut out = vec![1u8; data.len()];
    let mut fresh = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let command = line.expect("a line");
        let start = Instant::now();
        match command.as_str() {
            "size" => {
                println!("{}", frames.iter().map(Vec::len).sum::<usize>());
                continue;
            }
            "streams" => {
                let streams = frames.iter().flat_map(|frame| z4ai::streams(frame).expect("a frame"));
                let lines =
                    streams.map(|s| format!("{} {} {} {}", s.role, s.coder, s.content_len, s.stored_len));
                println!("{}", lines.collect::<Vec<_>>().join("; "));
                continue;
            }
            "compress" | "dense" => {
                for (part, frame) in parts.iter().zip(&mut frames) {
                    let options = Options { dense: command == "dense", ..part.options.clone() };
                    z4ai::compress_into(&data[part.bytes.clone()], &options, frame).expect("encodes");
                }
            }
            "decompress" => {
                for (part, frame) in parts.iter().zip(&frames) {
                    z4ai::decompress_into(frame, &mut out[part.bytes.clone()], &decode).expect("decodes");
                }
            }
            "fresh" => {
                // As with the others, giving memory back is not timed.
                fresh.extend(frames.iter().map(|frame| z4ai::decompress(frame, &decode).expect("decodes")));
            }
            "memcpy" => out.copy_from_slice(black_box(&data)),
            other => panic!("unknown command {other}"),
        }
        let seconds = start.elapsed().as_secs_f64();
        assert!(command != "decompress" || out == data, "decoded bytes differ");
        println!("{seconds:.9}");
        black_box(&fresh);
        fresh.clear();
    }
}

fn parts(len: usize, options: &Options, shapes: Option<&String>) -> Vec<Part> {
    let Some(shapes) = shapes else {
        return vec![Part { bytes: 0..len, options: options.clone() }];
    };
    let lines = std::fs::read_to_string(shapes).expect("readable SHAPES");
    lines
        .lines()
        .map(|line| {
            let numbers: Vec<u64> = line.split(' ').map(|n| n.parse().expect("a number")).collect();
            let (start, len) = (numbers[0] as usize, numbers[1] as usize);
            let options = Options { shape: numbers[2..].to_vec(), ..options.clone() };
            Part { bytes: start..start + len, options }
        })
        .filter(|part| part.bytes.end <= len)
        .collect()
}
