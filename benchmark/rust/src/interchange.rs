//! Safetensors and npz against the libraries that people use for them.
//! Reading npz needs a Python with the `numpy` package.

use std::fs::File;
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use ztensor::export::{ExportFormat, ExportOptions, TensorList, export};
use ztensor::{DType, Reader, Tensor};

use crate::Entry;
use crate::harness::{Case, noise, time};
use crate::peer::Peer;

/// The cases of this file.
pub const CASES: &[Entry] = &[
    ("open safetensors", open_safetensors),
    ("write safetensors, large", |folder| write_safetensors(folder, 64 << 20, 6)),
    ("write safetensors, small", |folder| write_safetensors(folder, 10_000, 20_000)),
    ("inflate npz", inflate_npz),
];

/// Tensors of equal size with names as models have them.
fn tensors(bytes: &[u8], count: usize) -> Vec<(String, Tensor<'_>)> {
    let shape = [bytes.len() as u64 / 4];
    (0..count)
        .map(|index| {
            let name = format!("model.layers.{}.block.{}.weight", index / 100, index % 100);
            (name, Tensor::from_bytes(&shape[..], DType::F32, bytes).expect("the shape fits"))
        })
        .collect()
}

fn open_safetensors(folder: &Path) {
    let path = folder.join("many.safetensors");
    let list = TensorList { tensors: tensors(&[0; 64], 20_000), ..TensorList::default() };
    export(&list, &path, ExportFormat::Safetensors, &ExportOptions::default()).unwrap();
    Case::new("open a safetensors file with 20,000 tensors", 0, || time(|| Reader::open(&path).unwrap()))
        .against("safetensors crate", 2.0, || {
            time(|| {
                let file = File::open(&path).unwrap();
                // SAFETY: the benchmark's own file, which does not change.
                let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
                SafeTensors::deserialize(&map).unwrap().len()
            })
        })
        .run();
}

fn write_safetensors(folder: &Path, size: usize, count: usize) {
    let bytes = noise(size, 1);
    let list = TensorList { tensors: tensors(&bytes, count), ..TensorList::default() };
    let (ours, theirs) = (folder.join("ours.safetensors"), folder.join("theirs.safetensors"));
    let name = format!("write a safetensors file, {count} tensors of {size} bytes");
    Case::new(&name, (size * count) as u64, || {
        let _ = std::fs::remove_file(&ours);
        time(|| export(&list, &ours, ExportFormat::Safetensors, &ExportOptions::default()).unwrap())
    })
    .against("safetensors crate", 1.0, || {
        let _ = std::fs::remove_file(&theirs);
        time(|| {
            let views = list.tensors.iter().map(|(name, tensor)| {
                let shape = tensor.shape.iter().map(|size| *size as usize).collect();
                (name, TensorView::new(Dtype::F32, shape, &bytes).unwrap())
            });
            safetensors::serialize_to_file(views, None, &theirs).unwrap();
        })
    })
    .run();
    assert!(std::fs::read(&ours).unwrap() == std::fs::read(&theirs).unwrap(), "the files are equal");
}

fn inflate_npz(folder: &Path) {
    let path = folder.join("deflated.npz");
    // Half noise, half zeros: deflate has something to do and something to gain.
    let mut bytes = noise(8 << 20, 3);
    bytes.chunks_mut(8).for_each(|pair| pair[4..].fill(0));
    let list = TensorList { tensors: tensors(&bytes, 8), ..TensorList::default() };
    export(&list, &path, ExportFormat::Npz, &ExportOptions::default().deflate(Some(6))).unwrap();
    let Some(mut peer) = Peer::start("npz_read.py", &[path.as_os_str()]) else {
        println!("\ninflate npz: skipped, BENCH_PYTHON names no Python with the package numpy");
        return;
    };
    Case::new("read a deflated npz into fresh memory", (8 * bytes.len()) as u64, || {
        let mut arrays = Vec::new();
        let spent = time(|| {
            let reader = Reader::open(&path).unwrap();
            let lengths = reader.objects().map(|(_, object)| object.byte_len() as usize);
            arrays = lengths.map(|len| vec![0u8; len]).collect::<Vec<_>>();
            let requests = reader.keys().zip(&mut arrays).map(|(name, out)| (name, "data", &mut out[..]));
            reader.read_many(requests.collect(), None).unwrap();
        });
        assert!(arrays.iter().all(|array| *array == bytes));
        spent
    })
    .against("NumPy", 1.5, || peer.round())
    .run();
}
