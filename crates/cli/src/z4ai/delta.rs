//! `delta`: files as their difference from others of the same length.

use z4ai::DecodeOptions;

use super::args::Delta;
use super::files::{self, Run, Target};
use super::frames::{in_file, restored};
use crate::failure::{FINE, Outcome};

pub fn run(options: &Delta, run: Run) -> Outcome {
    match options {
        Delta::Make { current, reference, output, force, encoding } => {
            let usual = || files::with_suffix(current, ".z4dl");
            let target = Target::new(output.as_deref(), usual, *force, &[current, reference])?;
            let (new, old) = (files::read(current)?, files::read(reference)?);
            let options = encoding.options(run, "comparing", new.len() as u64);
            let frame = z4ai::delta::compress(&new, &old, &options)?;
            target.write_all(&frame, run)?;
            run.say_smaller(current, new.len() as u64, frame.len() as u64);
        }
        Delta::Apply { delta, reference, output, force } => {
            let target = restored(delta, ".z4dl", output.as_deref(), *force, &[delta, reference])?;
            let (frame, mut data) = (files::read(delta)?, files::read(reference)?);
            let options = DecodeOptions { threads: run.threads, ..DecodeOptions::default() };
            z4ai::delta::apply(&frame, &mut data, &options).map_err(|error| in_file(delta, error))?;
            target.write_all(&data, run)?;
            run.say_restored(delta, frame.len() as u64, data.len() as u64);
        }
    }
    Ok(FINE)
}
