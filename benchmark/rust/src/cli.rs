//! The command line, started as a process of its own each time.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use ztensor::export::{ExportFormat, ExportOptions, TensorList, export};
use ztensor::{DType, Reader, Tensor, Writer};

use crate::Entry;
use crate::harness::{Case, noise, time};

/// The cases of this file.
pub const CASES: &[Entry] =
    &[("command line, convert", convert), ("command line, info", info), ("command line, compress", compress)];

/// The word after which this program's arguments are `ztensor`'s.
pub const AS_ZTENSOR: &str = "ztensor";

/// `ztensor` with these arguments, from start to end.
fn ztensor(args: &[&str], folder: &Path) -> Duration {
    let program = std::env::current_exe().expect("this program's path");
    let mut command = Command::new(program);
    run(command.arg(AS_ZTENSOR).args(args).arg("--quiet").current_dir(folder))
}

fn run(command: &mut Command) -> Duration {
    command.stdout(Stdio::null());
    let mut good = false;
    let spent = time(|| good = command.status().is_ok_and(|status| status.success()));
    assert!(good, "{command:?}");
    spent
}

fn convert(folder: &Path) {
    const SIZE: usize = 32 << 20;
    const COUNT: usize = 8;
    let bytes = noise(SIZE, 1);
    let tensors = (0..COUNT).map(|index| {
        let shape = [SIZE as u64 / 2];
        let tensor = Tensor::from_bytes(&shape[..], DType::BF16, &bytes).expect("the shape fits");
        (format!("model.layers.{index}.weight"), tensor)
    });
    let list = TensorList { tensors: tensors.collect(), ..TensorList::default() };
    let path = folder.join("model.safetensors");
    export(&list, &path, ExportFormat::Safetensors, &ExportOptions::default()).unwrap();
    let remove = |name: &str| {
        let _ = std::fs::remove_file(folder.join(name));
    };
    Case::new("ztensor convert, safetensors to zt", (SIZE * COUNT) as u64, || {
        remove("model.zt");
        ztensor(&["convert", "model.safetensors", "-o", "model.zt"], folder)
    })
    .against("cp", 0.8, || {
        remove("copy.safetensors");
        run(Command::new("cp").arg(&path).arg(folder.join("copy.safetensors")))
    })
    .run();
}

fn info(folder: &Path) {
    let path = folder.join("many.zt");
    let mut writer = Writer::create(&path).unwrap();
    for index in 0..50_000 {
        let name = format!("model.layers.{}.block.{}.weight", index / 100, index % 100);
        writer.add(&name, &[4, 4], &[0f32; 16]).unwrap();
    }
    writer.finish().unwrap();
    // A third of the speed is three times as long.
    Case::new("ztensor info, 50,000 tensors, start to end", 0, || ztensor(&["info", "many.zt"], folder))
        .against("the library's own open", 1.0 / 3.0, || time(|| Reader::open(&path).unwrap().len()))
        .run();
}

fn compress(folder: &Path) {
    const SIZE: usize = 8 << 20;
    const COUNT: usize = 12;
    let mut writer = Writer::create(folder.join("model.zt")).unwrap();
    for index in 0..COUNT {
        // Half noise, half the same: as in weights, there is something to gain.
        let mut bytes = noise(SIZE, index as u64 + 1);
        bytes.chunks_mut(2).for_each(|pair| pair[pair.len() - 1] &= 3);
        writer.add(&format!("layers.{index}.weight"), &[SIZE as u64], &bytes).unwrap();
    }
    writer.finish().unwrap();
    let round = |threads: &str| {
        let _ = std::fs::remove_file(folder.join("small.zt"));
        ztensor(&["compress", "model.zt", "-o", "small.zt", "--threads", threads], folder)
    };
    Case::new("ztensor compress, two threads", (SIZE * COUNT) as u64, || round("2"))
        .against("one thread", 1.6, || round("1"))
        .run();
}
