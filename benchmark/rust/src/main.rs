//! `cargo run --release -p ztensor-bench [FILTER]`: every case whose name holds FILTER.
//!
//! Files are made in the system's temporary folder, or in `BENCH_DIR`.

mod cli;
mod container;
mod edits;
mod families;
mod gguf;
mod harness;
mod hdf5;
mod interchange;
mod peer;
mod pickle;

use std::path::Path;
use std::process::ExitCode;

/// A case: its name and what runs it in a folder of its own.
type Entry = (&'static str, fn(&Path));

fn main() -> ExitCode {
    let filter = std::env::args().nth(1).unwrap_or_default();
    if filter == cli::AS_ZTENSOR {
        return ztensor_cli::run(std::env::args_os().skip(1));
    }
    let folder = match std::env::var_os("BENCH_DIR") {
        Some(folder) => tempfile::tempdir_in(folder),
        None => tempfile::tempdir(),
    }
    .expect("a folder for the benchmark's files");
    let cases: Vec<&Entry> = [
        container::CASES,
        cli::CASES,
        edits::CASES,
        interchange::CASES,
        gguf::CASES,
        hdf5::CASES,
        pickle::CASES,
        families::CASES,
    ]
    .into_iter()
    .flatten()
    .collect();
    for (name, run) in cases.into_iter().filter(|(name, _)| name.contains(&filter)) {
        let folder = folder.path().join(name.replace(['/', ' '], "_"));
        std::fs::create_dir(&folder).expect("a folder for the case");
        run(&folder);
        std::fs::remove_dir_all(&folder).expect("to clean up after the case");
    }
    ExitCode::SUCCESS
}
