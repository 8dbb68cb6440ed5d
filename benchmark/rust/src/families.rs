//! Weights in bfloat16: compressed files against raw ones, and model deltas against z4ai 0.2.
//!
//! Deltas need the package `z4ai` of version 0.2 for the interpreter that `BENCH_PYTHON` names.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::path::Path;

use ztensor::export::{ExportFormat, ExportOptions, export};
use ztensor::model_delta::{ApplyOptions, MakeOptions, apply, make};
use ztensor::{Compression, DType, Effort, Reader, Tensor, WriteOptions, Writer};

use crate::Entry;
use crate::harness::{Case, noise, time};
use crate::peer::Peer;

/// The cases of this file.
pub const CASES: &[Entry] = &[
    ("load weights, fast", load_fast),
    ("model delta, fine-tune", |folder| family(folder, "fine-tune", 1.0, tuned)),
    ("model delta, renamed", |folder| {
        family(folder, "fine-tune, renamed, a quarter unrelated", 1.2, renamed)
    }),
];

const TENSORS: u64 = 16;
const ROWS: u64 = 1024;

/// Weights: a few exponents, random signs and mantissas.
fn weights(seed: u64) -> Vec<u8> {
    let mut bytes = noise((ROWS * 1024 * 2) as usize, seed);
    for weight in bytes.chunks_exact_mut(2) {
        let bits = u16::from_le_bytes([weight[0], weight[1]]);
        let exponent = 120 - ((bits >> 7) & 0xff).trailing_zeros().min(8) as u16;
        weight.copy_from_slice(&((bits & 0x807f) | exponent << 7).to_le_bytes());
    }
    bytes
}

/// The last bit of a fifth of the weights is another.
fn trained(seed: u64) -> Vec<u8> {
    let mut bytes = weights(seed);
    let choice = noise(bytes.len() / 2, seed + 1000);
    bytes.iter_mut().step_by(2).zip(choice).for_each(|(low, choice)| *low ^= u8::from(choice < 51));
    bytes
}

fn base(n: u64) -> (String, Vec<u8>) {
    (format!("layers.{n}.weight"), weights(n + 1))
}

fn tuned(n: u64) -> (String, Vec<u8>) {
    let frozen = n.is_multiple_of(4);
    (format!("layers.{n}.weight"), if frozen { weights(n + 1) } else { trained(n + 1) })
}

fn renamed(n: u64) -> (String, Vec<u8>) {
    match n % 4 {
        // A name stays, but what it names has nothing to do with what it was.
        0 => (format!("layers.{n}.weight"), weights(n + 500)),
        1 => (format!("model.layers.{n}.weight"), weights(n + 1)),
        _ => (format!("model.layers.{n}.weight"), trained(n + 1)),
    }
}

/// All tensors of a compressed file into memory that is there, against the same of a raw one.
fn load_fast(folder: &Path) {
    const EACH: u64 = 8;
    let [raw, fast] = ["raw.zt", "fast.zt"].map(|name| folder.join(name));
    for (path, compression) in [(&raw, Compression::None), (&fast, Compression::Z4ai(Effort::Fast))] {
        let mut writer = Writer::create(path).unwrap();
        for n in 0..TENSORS {
            let data: Vec<u8> = (0..EACH).flat_map(|part| weights(n * EACH + part + 1)).collect();
            let tensor = Tensor::from_bytes(&[EACH * ROWS, 1024][..], DType::BF16, data).unwrap();
            let options = WriteOptions { compression, ..WriteOptions::default() };
            writer.write_object_with(&n.to_string(), &tensor, options).unwrap();
        }
        writer.finish().unwrap();
    }
    let names: Vec<String> = (0..TENSORS).map(|n| n.to_string()).collect();
    let len = (EACH * ROWS * 1024 * 2) as usize;
    let buffers = RefCell::new(vec![vec![1u8; len]; names.len()]);
    let load = |path: &Path| {
        time(|| {
            let mut buffers = buffers.borrow_mut();
            let reader = Reader::open(path).unwrap();
            let requests = names.iter().zip(buffers.iter_mut());
            reader
                .read_many(requests.map(|(name, out)| (&**name, "data", &mut out[..])).collect(), None)
                .unwrap();
        })
    };
    Case::new("load a .zt file, fast", TENSORS * len as u64, || load(&fast))
        .against("the same file raw, copied", 0.8, || load(&raw))
        .run();
}

fn write(path: &Path, tensor: fn(u64) -> (String, Vec<u8>)) {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes).unwrap();
    for n in 0..TENSORS {
        let (name, data) = tensor(n);
        writer
            .write_object(&name, &Tensor::from_bytes(&[ROWS, 1024][..], DType::BF16, &data[..]).unwrap())
            .unwrap();
    }
    writer.finish().unwrap();
    let reader = Reader::from_bytes(bytes).unwrap();
    export(&reader, path, ExportFormat::Safetensors, &ExportOptions::default()).unwrap();
}

fn family(folder: &Path, name: &str, bar: f64, target_of: fn(u64) -> (String, Vec<u8>)) {
    let path = |name: &str| folder.join(name);
    let (from, to) = (path("base.safetensors"), path("target.safetensors"));
    write(&from, base);
    write(&to, target_of);
    let size = std::fs::metadata(&to).unwrap().len();
    let (ours, theirs, out, peer_out) = (path("ours"), path("theirs"), path("out"), path("peer out"));
    let start = |command: &str, target: &Path| {
        let arguments = [OsStr::new(command), from.as_ref(), target.as_ref(), theirs.as_ref()];
        Peer::start("model_delta.py", &arguments)
    };
    let Some(mut maker) = start("make", &to) else {
        println!("\nmodel delta, {name}: skipped, BENCH_PYTHON names no Python with z4ai 0.2");
        return;
    };
    let options = MakeOptions::default();
    Case::new(&format!("make a model delta, {name}"), size, || {
        time(|| make(&from, &to, &ours, &options).unwrap())
    })
    .against("z4ai 0.2", 10.0, || maker.round())
    .run();
    let [a, b] = [&ours, &theirs].map(|path| std::fs::metadata(path).unwrap().len());
    let smaller = b as f64 / a as f64;
    let verdict = if smaller >= bar { "met" } else { "MISSED" };
    println!("  {a} bytes, z4ai 0.2 {b}: {smaller:.3} x smaller; bar {bar} {verdict}");
    drop(maker);
    let Some(mut applier) = start("apply", &peer_out) else { return };
    let options = ApplyOptions::default();
    Case::new(&format!("apply a model delta, {name}"), size, || {
        time(|| apply(&from, &ours, &out, &options).unwrap())
    })
    .against("z4ai 0.2", 5.0, || applier.round())
    .run();
    assert!(std::fs::read(&out).unwrap() == std::fs::read(&to).unwrap());
}
