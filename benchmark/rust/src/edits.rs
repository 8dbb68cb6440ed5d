//! Edits of a large file against writing it anew, syncs included on both sides.

use std::fs::File;
use std::path::{Path, PathBuf};

use ztensor::edit::Placement;
use ztensor::{Reader, Writer};

use crate::Entry;
use crate::harness::{Case, noise, time};

/// The cases of this file.
pub const CASES: &[Entry] = &[("edit a 1 GB file: append", append), ("edit a 1 GB file: replace", replace)];

const TENSOR: usize = 64 << 20;
const SMALL: usize = 1 << 20;

/// A file of 1 GB, all of it on the disk.
fn model(folder: &Path) -> PathBuf {
    let path = folder.join("model.zt");
    let mut writer = Writer::create_durable(&path).unwrap();
    for index in 0..15 {
        writer.add(&index.to_string(), &[TENSOR as u64], &noise(TENSOR, index + 1)).unwrap();
    }
    writer.add("small", &[SMALL as u64], &noise(SMALL, 99)).unwrap();
    writer.finish().unwrap();
    path
}

/// The least that writing a file anew takes: the kernel copies it, the disk gets
/// it, and it is put in the place of the old one.
fn rewrite(path: &Path) {
    let new = path.with_extension("new");
    std::fs::copy(path, &new).unwrap();
    File::open(&new).unwrap().sync_all().unwrap();
    std::fs::rename(&new, path).unwrap();
    File::open(path.parent().unwrap()).unwrap().sync_all().unwrap();
}

fn append(folder: &Path) {
    let path = model(folder);
    let data = noise(4096, 5);
    let mut count = 0;
    Case::new("append 4 KB to a 1 GB file", 0, || {
        count += 1;
        let name = format!("new {count}");
        time(|| {
            let mut writer = Writer::append(&path).unwrap();
            writer.add(&name, &[4096], &data).unwrap();
            writer.finish().unwrap()
        })
    })
    .against("copy, sync and rename", 20.0, || time(|| rewrite(&path)))
    .run();
}

fn replace(folder: &Path) {
    let path = model(folder);
    let data = [noise(SMALL, 6), noise(SMALL, 7)];
    let mut count = 0;
    let mut run = |placement: Placement| {
        count += 1;
        time(|| assert_eq!(ztensor::replace_tensor(&path, "small", &data[count % 2]).unwrap(), placement))
    };
    Case::new("replace 1 MB in a 1 GB file", 0, || run(Placement::InPlace))
        .against("copy, sync and rename", 20.0, || time(|| rewrite(&path)))
        .run();
    let reader = Reader::open_mmap(&path).unwrap();
    Case::new("the same while a reader has it open", 0, || run(Placement::Appended)).run();
    assert!(reader.view("small").is_ok());
}
