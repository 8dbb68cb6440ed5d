//! `verify`: structure, every tensor, every stored checksum.

use std::io::Write;
use std::path::Path;

use ztensor::format::zt2;
use ztensor::{ErrorKind, Format, Reader, Verification};

use super::Common;
use crate::args::Verify;
use crate::failure::{FINE, Failure, Outcome};
use crate::ui::Progress;
use crate::values::Values;
use crate::{files, human};

pub fn run(options: &Verify, common: Common) -> Outcome {
    let paths = files::expanded(&options.files)?;
    files::each(&paths, |path| verify(path, options, common))
}

fn verify(path: &Path, options: &Verify, common: Common) -> Outcome {
    // Opening checks the structure.
    let reader = common.open(path)?;
    reader.verify_shards()?;
    // A tensor that is too large alone is reported below, and the others are checked.
    let within = |name: &&str| reader.check_limits([*name]).is_ok();
    reader.check_limits(reader.keys().filter(within))?;
    let mut out = crate::output::stdout();
    let (mut failures, mut refused, mut checked) = (0u64, 0u64, 0u64);
    {
        let total = reader.objects().map(|(_, object)| object.stored_len()).fold(0, u64::saturating_add);
        let progress = Progress::new("verifying", total, common.quiet);
        for (name, object) in reader.objects() {
            match check(&reader, name, options.values) {
                Ok((verification, notes)) => {
                    checked += u64::from(verification == Verification::Checked);
                    for note in notes {
                        writeln!(out, "{}: {note}", human::escaped(name))?;
                    }
                }
                Err(error) => {
                    match error.kind() {
                        ErrorKind::Limit => refused += 1,
                        _ => failures += 1,
                    }
                    writeln!(out, "{error}")?;
                }
            }
            ztensor::Observer::advance(&progress, object.stored_len());
        }
    }
    let count = reader.len() as u64;
    if failures == 0 && refused > 0 {
        out.flush()?;
        let message = format!(
            "{}: {refused} of {} exceed the limits and were not read; the others are OK",
            path.display(),
            human::counted(count, "tensor")
        );
        return Err(ztensor::Error::new(ErrorKind::Limit, message).into());
    }
    if failures > 0 {
        out.flush()?;
        let are = if failures == 1 { "is" } else { "are" };
        return Err(Failure::differs(format!(
            "{}: {failures} of {} {are} damaged",
            path.display(),
            human::counted(count, "tensor")
        )));
    }
    if options.canonical {
        check_canonical(&reader, path, &mut out)?;
    }
    let form = if options.canonical { ", canonical" } else { "" };
    writeln!(out, "{}: OK ({}{form})", human::path(path), extent(&reader, checked))?;
    out.flush()?;
    Ok(FINE)
}

/// Lists the rules of canonical form that a file breaks, and fails if there are any.
fn check_canonical(reader: &Reader, path: &Path, out: &mut impl Write) -> Result<(), Failure> {
    let broken = zt2::canonical::check(reader)?;
    for violation in &broken {
        writeln!(out, "{}", human::escaped(&violation.to_string()))?;
    }
    out.flush()?;
    match broken.first() {
        None => Ok(()),
        Some(first) => Err(Failure::differs(format!(
            "{}: not in canonical form: rule {} at byte {}",
            path.display(),
            first.rule,
            first.byte
        ))),
    }
}

/// How far the check went: without checksums a flipped bit in a tensor is not noticed.
fn extent(reader: &Reader, checked: u64) -> String {
    let count = reader.len() as u64;
    let tensors = human::counted(count, "tensor");
    match (checked, reader.format()) {
        (checked, _) if checked == count && count > 0 => format!("{tensors}, all checksums match"),
        (1.., _) => format!("{tensors}, {checked} with checksums, which match"),
        (0, Format::Zt | Format::Zstn) if count > 0 => {
            format!(
                "{tensors}, structure only: stored without checksums; `ztensor convert --checksum` adds them"
            )
        }
        (0, _) if count > 0 => format!("{tensors}, structure only: this format stores no checksums"),
        _ => tensors,
    }
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
        for (count, what) in [(nan, "NaN"), (infinite, "Inf")] {
            if count > 0 {
                let of =
                    if &**role == "data" { String::new() } else { format!(" in {}", human::escaped(role)) };
                notes.push(format!("{} {what}{of}", human::count(count)));
            }
        }
    }
    Ok((verification, notes))
}
