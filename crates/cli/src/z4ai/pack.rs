//! `pack` and `unpack`: tensor files to packed ones, and back.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ztensor::Format;
use ztensor::source::{MapMode, Source};
use ztensor::zstn::{self, PackOptions, PackStats, UnpackOptions};

use super::args::{Pack, Unpack};
use super::files::{self, Run, Target};
use super::folder;
use crate::failure::{FINE, Failure, Outcome};
use crate::human;
use crate::ui::Progress;

pub fn pack(options: &Pack, run: Run) -> Outcome {
    if options.input.is_dir() {
        return folder::pack(options, run);
    }
    let usual = packed_name(&options.input);
    pack_file(options, &options.input, options.output.as_deref(), usual, run)?;
    Ok(FINE)
}

/// Packs one file, under the usual name if no other is given.
pub fn pack_file(
    options: &Pack,
    input: &Path,
    output: Option<&Path>,
    usual: PathBuf,
    run: Run,
) -> Result<PackStats, Failure> {
    let target = Target::new(output, || usual, options.force, &[input])?;
    let source = open(input)?;
    let progress = Progress::new("packing", source.len(), run.quiet);
    let settings = PackOptions {
        effort: options.effort,
        level: options.level,
        threads: run.threads,
        durable: false,
        observer: Some(&progress),
    };
    let mut stats = PackStats::default();
    target.write(|out| {
        stats = zstn::pack_source(source, out, &settings).map_err(|error| in_file(input, error))?;
        Ok(())
    })?;
    drop(progress);
    run.say_smaller(input, stats.original_len, stats.packed_len);
    match (stats.format, stats.shared) {
        (None, _) => run.say("not a valid safetensors file: packed as a whole; unpack it to read it"),
        (Some(Format::Safetensors), 0) => {}
        (Some(Format::Safetensors), shared) => {
            run.say(format_args!("{} stored once", human::counted(shared, "duplicate tensor")))
        }
        (Some(_), _) => run.say("unpack it to read it: only packed safetensors files can be read directly"),
    }
    Ok(stats)
}

pub fn unpack(options: &Unpack, run: Run) -> Outcome {
    if options.input.is_dir() {
        return folder::unpack(options, run);
    }
    let usual = restored_name(&options.input);
    unpack_file(&options.input, options.output.as_deref(), usual, options.force, run)?;
    Ok(FINE)
}

/// Restores one file, under the name it was packed from if no other is given.
pub fn unpack_file(
    input: &Path,
    output: Option<&Path>,
    usual: PathBuf,
    force: bool,
    run: Run,
) -> Result<(), Failure> {
    let target = Target::new(output, || usual, force, &[input])?;
    let source = open(input)?;
    let packed = source.len();
    let head = source.bytes(0, packed.min(4096))?;
    if !zstn::is_packed(&head) {
        let looks = ztensor::format::foreign::looks_like(&head);
        let what = match ztensor::OpenOptions::default().open_source(Arc::clone(&source)) {
            Ok(reader) => format!("its format is {}, which is not packed", reader.format()),
            Err(_) => format!("not a packed file (ZSTN): it looks like {looks}"),
        };
        return Err(Failure::bad_file(format!("{}: {what}", files::name(input))));
    }
    drop(head);
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
    Ok(())
}

/// A file, what comes through the pipe, or a file elsewhere, of which only what is needed is read.
pub fn open(path: &Path) -> Result<Arc<dyn Source>, Failure> {
    match ztensor::remote::is_url(path) {
        true => Ok(ztensor::source::open(path, MapMode::Auto, &Default::default())?),
        false => files::open(path),
    }
}

fn in_file(path: &Path, error: ztensor::Error) -> Failure {
    // A closed pipe is no failure, whichever side notices it.
    match error.io_error().is_some_and(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe) {
        true => std::io::Error::from(std::io::ErrorKind::BrokenPipe).into(),
        false if error.file().is_some() => error.into(),
        false => error.in_file(path).into(),
    }
}

/// The variant in the names of packed safetensors files.
pub const VARIANT: &str = "z4ai";

/// The usual name of a packed file. Transformers look for `model.z4ai.safetensors` and
/// `model.z4ai-00001-of-00002.safetensors` where `variant="z4ai"` is given.
pub fn packed_name(path: &Path) -> PathBuf {
    if files::is_pipe(path) {
        return "-".into();
    }
    if !files::has_suffix(path, ".safetensors") {
        return files::with_suffix(path, ".zstn");
    }
    let stem = files::without_suffix(path, ".safetensors");
    let text = stem.to_string_lossy();
    // A shard's number comes after the variant.
    let shard = text.rfind("-of-").and_then(|of| Some((text[..of].rfind('-')?, of)));
    let numbers = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match shard {
        Some((dash, of)) if numbers(&text[dash + 1..of]) && numbers(&text[of + 4..]) => {
            format!("{}.{VARIANT}{}.safetensors", &text[..dash], &text[dash..]).into()
        }
        _ => files::with_suffix(&stem, &format!(".{VARIANT}.safetensors")),
    }
}

/// The name that a packed file most likely had.
pub fn restored_name(path: &Path) -> PathBuf {
    if files::is_pipe(path) {
        return "-".into();
    }
    let text = path.to_string_lossy();
    if let Some(stem) = text.strip_suffix(".safetensors") {
        return match stem.rfind(&format!(".{VARIANT}")) {
            Some(at) => {
                let rest = &stem[at + 1 + VARIANT.len()..];
                format!("{}{rest}.safetensors", &stem[..at]).into()
            }
            None => files::with_suffix(path, ".out"),
        };
    }
    let stem = files::without_suffix(path, ".zstn");
    match files::has_suffix(path, ".zstn") && stem.extension().is_some() && !files::has_suffix(&stem, ".z4ai")
    {
        true => stem,
        false if files::has_suffix(path, ".zstn") => files::with_suffix(&stem, ".safetensors"),
        false => files::with_suffix(path, ".safetensors"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_transformers_look_for_and_lead_back() {
        for (original, packed) in [
            ("model.safetensors", "model.z4ai.safetensors"),
            ("a/model-00001-of-00002.safetensors", "a/model.z4ai-00001-of-00002.safetensors"),
            ("x-y.safetensors", "x-y.z4ai.safetensors"),
            ("model.pt", "model.pt.zstn"),
            ("model.Q8_0.gguf", "model.Q8_0.gguf.zstn"),
        ] {
            assert_eq!(packed_name(Path::new(original)), Path::new(packed));
            assert_eq!(restored_name(Path::new(packed)), Path::new(original));
        }
        assert_eq!(restored_name(Path::new("model.zstn")), Path::new("model.safetensors"));
        assert_eq!(restored_name(Path::new("x")), Path::new("x.safetensors"));
        assert_eq!(packed_name(Path::new("-")), Path::new("-"));
    }
}
