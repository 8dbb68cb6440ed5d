//! `verify`: structure, every tensor, every digest.

use std::io::Write;

use ztensor::{Kind, Reader, Verification};

use super::Common;
use crate::args::Verify;
use crate::failure::{FINE, Failure, Outcome};
use crate::human;
use crate::ui::Progress;
use crate::values::Values;

pub fn run(options: &Verify, common: Common) -> Outcome {
    // Opening checks the structure.
    let reader = common.open(&options.file)?;
    // A tensor that is too large alone is reported below, and the others are checked.
    let within = |name: &&str| reader.check_limits([*name]).is_ok();
    reader.check_limits(reader.keys().filter(within))?;
    let mut out = crate::output::stdout();
    let (mut failures, mut refused) = (0u64, 0u64);
    let (mut checked, mut unchecked) = (0u64, 0u64);
    {
        let total = reader.objects().map(|(_, object)| object.stored_len()).fold(0, u64::saturating_add);
        let progress = Progress::new("verifying", total, common.quiet);
        for (name, object) in reader.objects() {
            match check(&reader, name, options.values) {
                Ok((verification, notes)) => {
                    match verification {
                        Verification::Checked => checked += 1,
                        Verification::NoDigest => unchecked += 1,
                    }
                    for note in notes {
                        writeln!(out, "{}: {note}", human::escaped(name))?;
                    }
                }
                Err(error) => {
                    match error.kind() {
                        Kind::Limit => refused += 1,
                        _ => failures += 1,
                    }
                    writeln!(out, "{error}")?;
                }
            }
            ztensor::Observer::advance(&progress, object.stored_len());
        }
    }
    if failures == 0 && refused > 0 {
        let of = human::count(reader.len() as u64);
        let message = format!(
            "{}: {refused} of {of} tensors exceed the limits and were not read; the others are fine",
            options.file.display()
        );
        return Err(ztensor::Error::new(Kind::Limit, message).into());
    }
    if failures > 0 {
        out.flush()?;
        let of = human::count(reader.len() as u64);
        return Err(Failure::differs(format!(
            "{}: {failures} of {of} tensors are damaged",
            options.file.display()
        )));
    }
    writeln!(
        out,
        "{}: fine; {} tensors read, {} with digests that agree, {} without",
        options.file.display(),
        human::count(reader.len() as u64),
        human::count(checked),
        human::count(unchecked)
    )?;
    out.flush()?;
    Ok(FINE)
}

/// Reads one tensor in full, and says what is worth knowing of its values.
fn check(reader: &Reader, name: &str, values: bool) -> ztensor::Result<(Verification, Vec<String>)> {
    reader.check_limits([name]).map_err(|error| error.in_tensor(name))?;
    let verification = reader.verify(name)?;
    let tensor = reader.read_object(name)?;
    let mut notes = Vec::new();
    for (role, array) in tensor.components.iter().filter(|_| values) {
        let (mut nan, mut infinite) = (0u64, 0u64);
        Values::new(array).for_chunks(&mut |numbers| {
            nan += numbers.iter().filter(|number| number.is_nan()).count() as u64;
            infinite += numbers.iter().filter(|number| number.is_infinite()).count() as u64;
        })?;
        for (count, what) in [(nan, "not a number"), (infinite, "infinite")] {
            if count > 0 {
                let role = human::escaped(role);
                notes.push(format!("{} values of {role} are {what}", human::count(count)));
            }
        }
    }
    Ok((verification, notes))
}
