//! `compress` and `decompress`: files to frames, and back.

use std::io::Read;
use std::path::{Path, PathBuf};

use z4ai::{DecodeOptions, Kind, Options, ParsedFrame};

use super::args::{Compress, Decompress, Encoding};
use super::files::{self, Run, Target};
use crate::failure::{FINE, Failure, Outcome};
use crate::human;
use crate::ui::Progress;

impl Encoding {
    pub fn options(&self, run: Run, what: &str, total: u64) -> Options {
        Options {
            kind: self.dtype,
            effort: self.effort,
            threads: run.threads,
            level: self.level,
            observer: Some(run.observer(what, total)),
            ..Options::default()
        }
    }
}

/// Longer input from a pipe is not held in memory as a whole.
const WHOLE: u64 = 64 << 20;

pub fn compress(options: &Compress, run: Run) -> Outcome {
    let input = &options.input;
    let usual = || if files::is_pipe(input) { "-".into() } else { files::with_suffix(input, ".z4ai") };
    let target = Target::new(options.output.as_deref(), usual, options.force, &[input])?;
    let kind = match options.width {
        None => options.encoding.dtype,
        Some(1) => Kind::Raw,
        Some(2) => Kind::U16,
        Some(4) => Kind::U32,
        Some(8) => Kind::U64,
        Some(width) => {
            return Err(Failure::usage(format!("--width {width}: expected 1, 2, 4 or 8")));
        }
    };
    if files::is_pipe(input) {
        return compress_pipe(options, kind, &target, run);
    }
    let source = files::open(input)?;
    let data = source.mapped()?;
    let codec = Options {
        kind,
        shape: options.shape.as_ref().map_or_else(Vec::new, |shape| shape.0.clone()),
        structure: !options.fast,
        level: options.earlier.escalate.or(options.encoding.level),
        ..options.encoding.options(run, "compressing", data.len() as u64)
    };
    let frame = z4ai::compress(data, &codec)?;
    target.write_all(&frame, run)?;
    run.say_smaller(input, data.len() as u64, frame.len() as u64);
    if let Ok(reader) = ztensor::OpenOptions::default().open_source(std::sync::Arc::clone(&source))
        && !reader.is_empty()
    {
        let format = crate::describe::format_name(reader.format());
        run.say(format_args!(
            "note: this file has format {format}; `z4ai pack` codes each tensor by its type and makes it smaller"
        ));
    }
    Ok(FINE)
}

/// Standard input: what is short is compressed as a whole, the rest in bounded memory.
fn compress_pipe(options: &Compress, kind: Kind, target: &Target, run: Run) -> Outcome {
    let codec = Options {
        kind,
        shape: options.shape.as_ref().map_or_else(Vec::new, |shape| shape.0.clone()),
        structure: !options.fast,
        level: options.earlier.escalate.or(options.encoding.level),
        ..options.encoding.options(run, "compressing", 0)
    };
    let mut stdin = std::io::stdin().lock();
    let mut head = Vec::new();
    stdin
        .by_ref()
        .take(WHOLE)
        .read_to_end(&mut head)
        .map_err(|error| Failure::io(format!("cannot read -: {}", human::cause(&error))))?;
    let (mut before, mut after) = (head.len() as u64, 0);
    if before < WHOLE {
        let frame = z4ai::compress(&head, &codec)?;
        target.write_all(&frame, run)?;
        after = frame.len() as u64;
    } else {
        target.write(|out| {
            let mut input = std::io::Cursor::new(head).chain(stdin);
            (before, after) = ztensor::write::compress_stream(&mut input, out, &codec)?;
            Ok(())
        })?;
    }
    run.say_smaller(&options.input, before, after);
    Ok(FINE)
}

pub fn decompress(options: &Decompress, run: Run) -> Outcome {
    let input = &options.input;
    let target = restored(input, ".z4ai", options.output.as_deref(), options.force, &[input])?;
    let source = files::open(input)?;
    let frame = source.mapped()?;
    check_kind(input, frame)?;
    let frame = ParsedFrame::parse(frame).map_err(|error| in_file(input, error))?;
    let info = frame.info().map_err(|error| in_file(input, error))?;
    run.limits
        .check(info.content_len, info.frame_len)
        .map_err(|error| Failure::from(error.in_file(input)))?;
    let progress = Progress::new("decompressing", info.content_len, run.quiet);
    let decode = DecodeOptions { threads: run.threads, ..DecodeOptions::default() };
    // Earlier versions have no random access.
    let at_once = info.version == 1 || info.format == "ZRT1";
    target.write(|out| {
        files::write_parts(out, info.content_len, at_once, &progress, |range, part| {
            frame.decompress_bytes(range, part, &decode).map_err(|error| in_file(input, error))
        })
    })?;
    run.say_restored(input, info.frame_len, info.content_len);
    Ok(FINE)
}

/// Where a restored file goes.
pub fn restored(
    input: &Path,
    suffix: &str,
    output: Option<&Path>,
    force: bool,
    inputs: &[&Path],
) -> Result<Target, Failure> {
    let usual = || -> PathBuf {
        if files::is_pipe(input) { "-".into() } else { files::without_suffix(input, suffix) }
    };
    Target::new(output, usual, force, inputs)
}

/// An error of the codec, with the file that it is about.
pub fn in_file(path: &Path, error: z4ai::Error) -> Failure {
    Failure::from(error).about(&files::name(path))
}

/// Refuses what another command is for.
fn check_kind(path: &Path, data: &[u8]) -> Result<(), Failure> {
    let name = files::name(path);
    if z4ai::is_frame(data) {
        return Ok(());
    }
    let message = match data {
        _ if z4ai::delta::is_delta(data) => "is a delta: `z4ai delta apply` restores it",
        [b'Z', b'S', b'T', b'N', ..] => "is a packed model: `z4ai unpack` restores it",
        [b'Z', b'4', b'D', b'M', ..] => "is a model delta: `z4ai model-delta apply` restores it",
        _ => {
            let looks = ztensor::format::foreign::looks_like(&data[..data.len().min(4096)]);
            return Err(Failure::bad_file(format!(
                "{name} is not compressed by z4ai: it looks like {looks}"
            )));
        }
    };
    Err(Failure::bad_file(format!("{name} {message}")))
}
