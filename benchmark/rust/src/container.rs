//! The `.zt` container against plain I/O and against the safetensors crate.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use sha2::Digest;
use ztensor::{Checksum, OpenOptions, Reader, Writer};

use crate::Entry;
use crate::harness::{Case, noise, time};

/// The cases of this file.
pub const CASES: &[Entry] = &[
    ("write 64 MB tensors", write_large),
    ("write 10 KB tensors", write_small),
    ("open 50,000 tensors", open_many),
    ("read into warm memory", read_warm),
    ("read into fresh memory", read_fresh),
    ("write with crc32c", |_| write_hashed(Checksum::Crc32c)),
    ("write with sha256", |_| write_hashed(Checksum::Sha256)),
];

fn write_case(name: &str, folder: &Path, tensor: usize, count: usize, bar: f64) {
    let bytes = noise(tensor, 1);
    let (ours, plain) = (folder.join("ours.zt"), folder.join("plain.bin"));
    Case::new(name, (tensor * count) as u64, || {
        let _ = std::fs::remove_file(&ours);
        time(|| {
            let mut writer = Writer::create(&ours).unwrap();
            for index in 0..count {
                writer.add(&format!("layers.{index}.weight"), &[tensor as u64], &bytes).unwrap();
            }
            writer.finish().unwrap()
        })
    })
    .against("plain large writes", bar, || {
        let _ = std::fs::remove_file(&plain);
        // The same bytes from a large buffer, which is what plain writing would use.
        let large = (64 << 20) / tensor.max(1);
        let buffer = bytes.repeat(large.clamp(1, count));
        time(|| {
            let mut file = File::create(&plain).unwrap();
            let mut left = tensor * count;
            while left > 0 {
                let step = left.min(buffer.len());
                file.write_all(&buffer[..step]).unwrap();
                left -= step;
            }
        })
    })
    .run();
}

fn write_large(folder: &Path) {
    write_case("write 64 MB tensors (no fsync)", folder, 64 << 20, 6, 0.9);
}

fn write_small(folder: &Path) {
    write_case("write 10 KB tensors (no fsync)", folder, 10_000, 20_000, 0.5);
}

fn open_many(folder: &Path) {
    const COUNT: usize = 50_000;
    let names: Vec<String> = (0..COUNT)
        .map(|index| format!("model.layers.{}.block.{}.weight", index / 100, index % 100))
        .collect();
    let data = [0u8; 64];
    let (ours, theirs) = (folder.join("many.zt"), folder.join("many.safetensors"));
    let mut writer = Writer::create(&ours).unwrap();
    for name in &names {
        writer.add(name, &[4, 4], bytemuck_f32(&data)).unwrap();
    }
    writer.finish().unwrap();
    let views = names.iter().map(|name| (name, TensorView::new(Dtype::F32, vec![4, 4], &data).unwrap()));
    safetensors::serialize_to_file(views, None, &theirs).unwrap();
    Case::new("open a file with 50,000 tensors", 0, || time(|| Reader::open(&ours).unwrap()))
        .against("safetensors crate", 2.0, || {
            time(|| {
                let file = File::open(&theirs).unwrap();
                // SAFETY: the benchmark's own file, which does not change.
                let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
                SafeTensors::deserialize(&map).unwrap().len()
            })
        })
        .run();
}

/// Sixteen `f32` from 64 bytes, by value: the cases need no more than that.
fn bytemuck_f32(_: &[u8; 64]) -> &'static [f32] {
    &[0.0; 16]
}

const MODEL: usize = 8;
const TENSOR: usize = 48 << 20;

fn model(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("model.zt");
    let mut writer = Writer::create(&path).unwrap();
    for index in 0..MODEL {
        writer.add(&index.to_string(), &[TENSOR as u64], &noise(TENSOR, index as u64 + 1)).unwrap();
    }
    writer.finish().unwrap();
    path
}

fn read_warm(folder: &Path) {
    let path = model(folder);
    let mut buffers: Vec<Vec<u8>> = (0..MODEL).map(|_| vec![1; TENSOR]).collect();
    let mut others = buffers.clone();
    let reader = Reader::open(&path).unwrap();
    Case::new("copying read into warm memory", (MODEL * TENSOR) as u64, || {
        let names: Vec<String> = (0..MODEL).map(|index| index.to_string()).collect();
        time(|| {
            let requests = names.iter().zip(&mut buffers);
            let requests = requests.map(|(name, out)| (name.as_str(), "data", &mut out[..])).collect();
            reader.read_many(requests, None).unwrap();
        })
    })
    .against("parallel plain read", 0.9, || {
        let threads = std::thread::available_parallelism().unwrap().get();
        time(|| {
            let file = File::open(&path).unwrap();
            std::thread::scope(|scope| {
                for (worker, buffers) in others.chunks_mut(MODEL.div_ceil(threads)).enumerate() {
                    let file = &file;
                    scope.spawn(move || {
                        let first = worker * MODEL.div_ceil(threads);
                        for (index, buffer) in buffers.iter_mut().enumerate() {
                            let offset = 64 + (first + index) * TENSOR;
                            file.read_exact_at(buffer, offset as u64).unwrap();
                        }
                    });
                }
            });
        })
    })
    .run();
}

fn read_fresh(folder: &Path) {
    let path = model(folder);
    Case::new("copying read into fresh memory", (MODEL * TENSOR) as u64, || {
        let reader = Reader::open(&path).unwrap();
        let mut tensors = Vec::new();
        let spent = time(|| {
            for index in 0..MODEL {
                tensors.push(reader.read(&index.to_string()).unwrap());
            }
        });
        drop(tensors);
        spent
    })
    .against("plain read, fresh zeroed", 1.5, || {
        let mut tensors = Vec::new();
        let spent = time(|| {
            let mut file = File::open(&path).unwrap();
            for _ in 0..MODEL {
                let mut buffer = vec![0; TENSOR];
                file.read_exact(&mut buffer).unwrap();
                tensors.push(buffer);
            }
        });
        drop(tensors);
        spent
    })
    .run();
    let reader = OpenOptions::default().threads(1).open(&path).unwrap();
    Case::new("the same on one thread", (MODEL * TENSOR) as u64, || {
        let mut tensors = Vec::new();
        let spent = time(|| {
            for index in 0..MODEL {
                tensors.push(reader.read(&index.to_string()).unwrap());
            }
        });
        drop(tensors);
        spent
    })
    .run();
}

fn write_hashed(checksum: Checksum) {
    let bytes = noise(64 << 20, 9);
    let name = format!("write with {checksum:?} to a sink that costs nothing");
    Case::new(&name, bytes.len() as u64, || {
        time(|| {
            let mut writer = Writer::new(std::io::sink()).unwrap();
            writer.add_with("weights", &[bytes.len() as u64], &bytes).checksum(checksum).write().unwrap();
            writer.finish().unwrap()
        })
    })
    .against("the hash alone", 0.8, || {
        time(|| match checksum {
            Checksum::Crc32c => u64::from(crc32c::crc32c(&bytes)),
            _ => u64::from(sha2::Sha256::digest(&bytes)[0]),
        })
    })
    .run();
}
