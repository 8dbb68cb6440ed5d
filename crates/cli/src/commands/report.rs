//! `report`: an HTML report of a file.

use std::io::Write;

use ztensor::{Destination, Observer};

use super::Common;
use crate::args::{Output, Report};
use crate::failure::{FINE, Outcome};
use crate::human;
use crate::report::page::{self, failed};
use crate::report::{analysis, head};
use crate::ui::Progress;

pub fn run(options: &Report, common: Common) -> Outcome {
    let place = Output { output: options.place(), force: options.force };
    let mut output = place.check(&[&options.file])?;
    if options.output.is_none()
        && let (Some(folder), Some(name)) = (place.output.parent(), place.output.file_name())
    {
        output = Destination::derived(folder, name)?.overwrite(options.force);
    }
    let reader = common.open(&options.file)?;
    let chosen = options.which.choose(&reader)?;
    reader.check_limits(chosen.iter().map(|(name, _)| *name))?;
    let total = chosen.iter().map(|(_, object)| object.byte_len()).fold(0, u64::saturating_add);
    let title = options.file.file_name().unwrap_or(options.file.as_os_str()).to_string_lossy();
    {
        let progress = Progress::new("analysing", total, common.quiet);
        ztensor::write_atomically(output.clone(), |out| {
            page::write(out, &human::escaped(&title), |out| {
                // The head of the document is small; the list of tensors is written as it is made.
                let head = head(&title, &reader)?.to_string();
                write!(out, "{},\"tensors\":[", head.trim_end_matches('}')).map_err(failed)?;
                for (index, (name, object)) in chosen.iter().enumerate() {
                    let tensor = analysis::tensor(&reader, name, object, common.threads)?;
                    let comma = if index > 0 { "," } else { "" };
                    write!(out, "{comma}\n{tensor}").map_err(failed)?;
                    if !progress.advance(object.byte_len()) {
                        return Err(ztensor::Error::cancelled());
                    }
                }
                write!(out, "\n]}}").map_err(failed)
            })
        })?;
    }
    let size = human::bytes(ztensor::remote::store::len(output.path(), &Default::default())?.unwrap_or(0));
    let tensors = human::counted(chosen.len() as u64, "tensor");
    common.say(format_args!("{}: {tensors}, {size}", output.path().display()));
    Ok(FINE)
}
