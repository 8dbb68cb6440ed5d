//! Dequantizing against the reference implementation in Python.
//!
//! The reference runs in a process of its own and takes turns with ours; its
//! results are compared bit by bit before anything is timed. It needs the `gguf`
//! package.

use std::path::Path;

use ztensor::gguf::{self, GgmlType};
use ztensor::{Array, DType, Layout, Tensor};

use crate::Entry;
use crate::harness::{Case, noise, time};
use crate::peer::Peer;

/// The cases of this file.
pub const CASES: &[Entry] = &[("dequantize gguf", dequantize)];

const ROWS: u64 = 2048;
const COLUMNS: u64 = 4096;

fn dequantize(folder: &Path) {
    let known = GgmlType::ALL.into_iter().filter(|ggml_type| {
        // The reference does not know these, or does not call them quantized.
        let unknown = matches!(ggml_type, GgmlType::Q1_0 | GgmlType::Q8_K);
        !unknown && (ggml_type.is_block() || matches!(ggml_type, GgmlType::F16 | GgmlType::BF16))
    });
    for ggml_type in known {
        let bytes = ggml_type.byte_len(&[ROWS, COLUMNS]).expect("rows of whole blocks");
        let blocks = noise(bytes as usize, 1 + u64::from(ggml_type.id()));
        let Some(mut peer) = start(ggml_type, &blocks, folder) else {
            println!("\ndequantize {ggml_type}: skipped, BENCH_PYTHON names no Python with the package gguf");
            return;
        };
        compare(ggml_type, &blocks, &folder.join("result"));
        let tensor = match ggml_type.dtype() {
            Some(dtype) => Tensor::from_bytes([ROWS, COLUMNS].as_slice(), dtype, &blocks[..]),
            None => Tensor::new(
                [ROWS, COLUMNS].as_slice(),
                Layout::Other(ggml_type.layout_name().into()),
                [("blocks".into(), Array::new(DType::U8, &blocks[..]))],
                None,
            ),
        };
        let tensor = tensor.expect("a tensor of those blocks");
        // Plain halves are converted at the speed of memory, which Python has too.
        let bar = if ggml_type.is_block() { 5.0 } else { 3.0 };
        Case::new(&format!("dequantize {ggml_type} to fresh f32"), ROWS * COLUMNS * 4, || {
            time(|| tensor.dequantize().unwrap())
        })
        .against("gguf in Python", bar, || peer.round())
        .run();
    }
}

/// Fails unless ours is bit by bit what the reference wrote; any NaN is a NaN.
fn compare(ggml_type: GgmlType, blocks: &[u8], result: &Path) {
    let mut ours = vec![0f32; (ROWS * COLUMNS) as usize];
    gguf::dequantize(ggml_type, blocks, &mut ours, 0).unwrap();
    let theirs = std::fs::read(result).unwrap();
    assert_eq!(theirs.len(), 4 * ours.len());
    for (index, (ours, theirs)) in ours.iter().zip(theirs.as_chunks().0).enumerate() {
        let theirs = f32::from_le_bytes(*theirs);
        let same = ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan();
        assert!(same, "{ggml_type}: element {index} is {ours:e} instead of {theirs:e}");
    }
}

fn start(ggml_type: GgmlType, blocks: &[u8], folder: &Path) -> Option<Peer> {
    let (input, result) = (folder.join("blocks"), folder.join("result"));
    std::fs::write(&input, blocks).expect("to write the blocks");
    let row = (blocks.len() as u64 / ROWS).to_string();
    let arguments = [ggml_type.name().as_ref(), input.as_os_str(), row.as_ref(), result.as_os_str()];
    Peer::start("gguf_dequantize.py", &arguments)
}
