//! `delta`: files as their difference from others of the same length.

use z4ai::DecodeOptions;
use z4ai::delta::ParsedDelta;

use super::args::Delta;
use super::files::{self, Run, Target};
use super::frames::{in_file, restored};
use crate::failure::{FINE, Failure, Outcome};
use crate::ui::Progress;

pub fn run(options: &Delta, run: Run) -> Outcome {
    match options {
        Delta::Make { current, reference, output, force, encoding } => {
            let usual = || files::with_suffix(current, ".z4dl");
            let target = Target::new(output.as_deref(), usual, *force, &[current, reference])?;
            let sources = (files::open(current)?, files::open(reference)?);
            let (new, old) = (sources.0.mapped()?, sources.1.mapped()?);
            let options = encoding.options(run, "comparing", new.len() as u64);
            let frame = z4ai::delta::compress(new, old, &options)?;
            target.write_all(&frame, run)?;
            run.say_smaller(current, new.len() as u64, frame.len() as u64);
        }
        Delta::Apply { delta, reference, output, force } => {
            let target = restored(delta, ".z4dl", output.as_deref(), *force, &[delta, reference])?;
            let sources = (files::open(delta)?, files::open(reference)?);
            let (frame, old) = (sources.0.mapped()?, sources.1.mapped()?);
            let failed = |error| in_file(delta, error);
            let parsed = ParsedDelta::parse(frame).map_err(failed)?;
            let info = parsed.info().map_err(failed)?;
            let stored = (frame.len() as u64).saturating_add(old.len() as u64);
            let allowed = run.limits.check(info.content_len, stored);
            allowed.map_err(|error| Failure::from(error.in_file(delta)))?;
            let options = DecodeOptions { threads: run.threads, ..DecodeOptions::default() };
            let progress = Progress::new("restoring", info.content_len, run.quiet);
            // Earlier versions have no random access.
            let at_once = z4ai::legacy::is_legacy_delta(frame);
            target.write(|out| {
                files::write_parts(out, info.content_len, at_once, &progress, |range, part| {
                    parsed.decompress_bytes(old, range, part, &options).map_err(failed)
                })
            })?;
            drop(progress);
            run.say_restored(delta, frame.len() as u64, info.content_len);
        }
    }
    Ok(FINE)
}
