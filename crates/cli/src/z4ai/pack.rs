//! `pack` and `unpack`: safetensors files to packed ones, and back.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ztensor::source::{MapMode, Source};
use ztensor::zstn::{self, PackOptions, UnpackOptions};

use super::args::{Pack, Unpack};
use super::files::{self, Run, Target};
use crate::failure::{FINE, Failure, Outcome};
use crate::human;
use crate::ui::Progress;

pub fn pack(options: &Pack, run: Run) -> Outcome {
    let input = &options.input;
    let usual = || renamed(input, ".safetensors", ".zstn");
    let target = Target::new(options.output.as_deref(), usual, options.force, &[input])?;
    let source = open(input)?;
    let progress = Progress::new("packing", source.len(), run.quiet);
    let settings = PackOptions {
        effort: options.effort,
        level: options.level,
        threads: run.threads,
        durable: false,
        observer: Some(&progress),
    };
    let mut stats = None;
    target.write(|out| {
        stats = Some(zstn::pack_source(source, out, &settings).map_err(|error| in_file(input, error))?);
        Ok(())
    })?;
    drop(progress);
    if let Some(stats) = stats {
        run.say_smaller(input, stats.original_len, stats.packed_len);
        match (stats.opaque, stats.shared) {
            (true, _) => {
                run.say("it breaks a rule of its format: packed as a whole, single tensors cannot be read")
            }
            (false, 0) => {}
            (false, shared) => {
                run.say(format_args!("{} equal tensors are stored once", human::count(shared)))
            }
        }
    }
    Ok(FINE)
}

pub fn unpack(options: &Unpack, run: Run) -> Outcome {
    let input = &options.input;
    let usual = || renamed(input, ".zstn", ".safetensors");
    let target = Target::new(options.output.as_deref(), usual, options.force, &[input])?;
    let source = open(input)?;
    let packed = source.len();
    let info = zstn::inspect_source(Arc::clone(&source)).map_err(|error| in_file(input, error))?;
    let progress = Progress::new("unpacking", info.original_len, run.quiet);
    let settings = UnpackOptions {
        threads: run.threads,
        limits: run.limits,
        observer: Some(&progress),
        ..UnpackOptions::default()
    };
    target.write(|out| {
        zstn::unpack_source(source, out, &settings).map_err(|error| in_file(input, error))?;
        Ok(())
    })?;
    drop(progress);
    run.say_restored(input, packed, info.original_len);
    Ok(FINE)
}

/// A file, what comes through the pipe, or a file elsewhere, of which only what is needed is read.
pub fn open(path: &Path) -> Result<Arc<dyn Source>, Failure> {
    match ztensor::remote::is_url(path) {
        true => Ok(ztensor::source::open(path, MapMode::Auto, &Default::default())?),
        false => files::open(path),
    }
}

fn in_file(path: &Path, error: ztensor::Error) -> Failure {
    // A closed pipe is fine, whoever notices it.
    match error.io_error().is_some_and(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe) {
        true => std::io::Error::from(std::io::ErrorKind::BrokenPipe).into(),
        false if error.file().is_some() => error.into(),
        false => error.in_file(path).into(),
    }
}

/// The name after one suffix is replaced by another, or the other is added.
fn renamed(path: &Path, from: &str, to: &str) -> PathBuf {
    if files::is_pipe(path) {
        return "-".into();
    }
    let stem = files::without_suffix(path, from);
    files::with_suffix(if files::has_suffix(path, from) { &stem } else { path }, to)
}
