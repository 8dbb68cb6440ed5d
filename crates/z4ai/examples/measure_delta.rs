//! One contestant of `benchmark/delta.py`: deltas of this codec.
//!
//! `measure_delta CURRENT REFERENCE KIND THREADS` reads both files and then answers commands from
//! standard input, one per line, each with one line: `size` with the bytes of the delta, `build`,
//! `apply` (to other memory) and `in_place` with seconds. Every answer is verified.

use std::hint::black_box;
use std::io::BufRead;
use std::time::Instant;

use z4ai::{DecodeOptions, Kind, Options, delta};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [current, reference, kind, threads] = args.as_slice() else {
        panic!("usage: measure_delta CURRENT REFERENCE KIND THREADS");
    };
    let current = std::fs::read(current).expect("a readable file");
    let reference = std::fs::read(reference).expect("a readable file");
    let threads = threads.parse().expect("THREADS is a number");
    let kind = Kind::from_name(kind).expect("a known KIND");
    let options = Options { kind, threads, ..Options::default() };
    let decode = DecodeOptions { threads, ..DecodeOptions::default() };

    // Every buffer is touched before anything is timed.
    let mut frame = Vec::new();
    delta::compress_into(&current, &reference, &options, &mut frame).expect("encodes");
    let mut out = vec![1u8; current.len()];
    for line in std::io::stdin().lock().lines() {
        let command = line.expect("a line");
        if command == "in_place" {
            out.copy_from_slice(&reference);
        }
        let start = Instant::now();
        match command.as_str() {
            "size" => {
                println!("{}", frame.len());
                continue;
            }
            "build" => delta::compress_into(black_box(&current), &reference, &options, &mut frame),
            "apply" => delta::decompress_into(black_box(&frame), &reference, &mut out, &decode),
            "in_place" => delta::apply(black_box(&frame), &mut out, &decode),
            other => panic!("unknown command {other}"),
        }
        .expect("works");
        let seconds = start.elapsed().as_secs_f64();
        // Before the answer: the next contestant is timed from then on.
        assert!(command == "build" || out == current, "{command} gave other bytes");
        println!("{seconds}");
    }
}
