//! Reading chunked HDF5 datasets against h5py.
//!
//! Both open the file, read one dataset of 32 MiB into memory that is already
//! there, and close it; what both read is compared before anything is timed. It
//! needs the `h5py` package.

use std::path::Path;

use ztensor::Reader;

use crate::Entry;
use crate::harness::{Case, time};
use crate::peer::Peer;

/// The cases of this file.
pub const CASES: &[Entry] = &[("hdf5 chunks", chunks)];

fn chunks(folder: &Path) {
    for filters in ["none", "gzip", "shuffle+gzip", "lzf"] {
        let (file, result) = (folder.join("chunks.h5"), folder.join("result"));
        let arguments = [file.as_os_str(), filters.as_ref(), result.as_os_str()];
        let Some(mut peer) = Peer::start("hdf5_read.py", &arguments) else {
            println!("\nhdf5 chunks: skipped, BENCH_PYTHON names no Python with the package h5py");
            return;
        };
        let expected = std::fs::read(&result).expect("what h5py wrote");
        let mut destination = vec![0; expected.len()];
        Reader::open(&file).unwrap().read_into("data", &mut destination).unwrap();
        assert!(destination == expected, "{filters}: other elements than h5py reads");
        Case::new(&format!("hdf5 chunks, {filters}"), expected.len() as u64, || {
            time(|| Reader::open(&file).unwrap().read_into("data", &mut destination).unwrap())
        })
        .against("h5py", 1.5, || peer.round())
        .run();
    }
}
