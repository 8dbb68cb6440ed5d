//! Opening torch files against torch itself.
//!
//! Both open a file of 2,000 tensors so that each can be viewed in the mapped
//! file. It needs the `torch` package.

use std::path::Path;

use ztensor::Reader;

use crate::Entry;
use crate::harness::{Case, time};
use crate::peer::Peer;

/// The cases of this file.
pub const CASES: &[Entry] = &[("pickle open", open)];

const TENSORS: usize = 2_000;

fn open(folder: &Path) {
    let file = folder.join("many.pt");
    let count = TENSORS.to_string();
    let Some(mut peer) = Peer::start("pickle_open.py", &[file.as_os_str(), count.as_ref()]) else {
        println!("\npickle open: skipped, BENCH_PYTHON names no Python with the package torch");
        return;
    };
    let reader = Reader::open(&file).unwrap();
    assert_eq!(reader.len(), TENSORS);
    assert!(reader.keys().all(|name| reader.view(name).is_ok_and(|bytes| bytes.len() == 1024)));
    Case::new("pickle open, 2,000 tensors", 0, || time(|| drop(Reader::open(&file).unwrap())))
        .against("torch.load(mmap, weights_only)", 3.0, || peer.round())
        .run();
}
