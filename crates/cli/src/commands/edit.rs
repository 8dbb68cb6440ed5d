//! `merge`, `append`, `remove`, `compact` and `repair`: edits of `.zt` files.

use std::path::Path;

use ztensor::edit::{self, CopyOptions, Repaired};
use ztensor::{WriteOptions, Writer};

use super::Common;
use crate::args::{Append, Clash, Compact, Merge, Output, Remove, Repair};
use crate::failure::{FINE, Outcome};
use crate::human;
use crate::ui::Progress;

pub fn merge(options: &Merge, common: Common) -> Outcome {
    let inputs: Vec<_> = options.inputs.iter().map(|input| input.as_path()).collect();
    let output = options.output.check(&inputs)?;
    let clash = match options.metadata {
        Clash::Refuse => edit::Clash::Refuse,
        Clash::First => edit::Clash::KeepFirst,
        Clash::Last => edit::Clash::KeepLast,
    };
    let size = {
        let progress = Progress::new("merging", sizes(&inputs), common.quiet);
        CopyOptions::default().clash(clash).observer(&progress).merge(&inputs, output.clone())?
    };
    common.say(format_args!(
        "{}: {}, {}",
        output.path().display(),
        human::counted(inputs.len() as u64, "file"),
        human::bytes(size)
    ));
    Ok(FINE)
}

pub fn append(options: &Append, common: Common) -> Outcome {
    let reader = common.open(&options.from)?;
    let chosen = options.which.choose(&reader)?;
    let names: Vec<&str> = chosen.iter().map(|(name, _)| *name).collect();
    let total = chosen.iter().map(|(_, object)| object.byte_len()).fold(0, u64::saturating_add);
    let write = WriteOptions {
        compression: options.coding.compression()?.unwrap_or_default(),
        checksum: options.checksum.into(),
    };
    let mut writer = Writer::append(&options.target)?;
    writer.set_threads(common.threads);
    {
        let progress = Progress::new("appending", total, common.quiet);
        writer.write_from(&reader, &names, write, Some(&progress))?;
    }
    let size = writer.finish()?;
    let (target, count) = (options.target.display(), human::counted(names.len() as u64, "tensor"));
    common.say(format_args!("{target}: {count} added, now {}", human::bytes(size)));
    Ok(FINE)
}

pub fn remove(options: &Remove, common: Common) -> Outcome {
    let output = options.output.check(&[&options.file])?;
    let size = {
        let progress = Progress::new("copying", sizes(&[&options.file]), common.quiet);
        CopyOptions::default().observer(&progress).remove_tensors(
            &options.file,
            output.clone(),
            &options.names,
        )?
    };
    common.say(format_args!(
        "{}: {} removed, {}",
        output.path().display(),
        human::counted(options.names.len() as u64, "tensor"),
        human::bytes(size)
    ));
    Ok(FINE)
}

pub fn compact(options: &Compact, common: Common) -> Outcome {
    let output = match &options.output {
        Some(output) => {
            let output = Output { output: output.clone(), force: options.force };
            output.check(&[&options.file])?
        }
        None => options.file.as_path().into(),
    };
    let done = {
        let progress = Progress::new("compacting", sizes(&[&options.file]), common.quiet);
        CopyOptions::default().observer(&progress).compact_to(&options.file, output.clone())?
    };
    let saved = human::bytes(done.before.saturating_sub(done.after));
    let written = output.path().display();
    common.say(format_args!("{written}: {} now, {saved} dropped", human::bytes(done.after)));
    Ok(FINE)
}

pub fn repair(options: &Repair, common: Common) -> Outcome {
    let file = options.file.display();
    match edit::repair(&options.file)? {
        Repaired::Whole => common.say(format_args!("{file}: nothing to repair")),
        Repaired::Restored { dropped } => common.say(format_args!(
            "{file}: back at its last good state; {} of an unfinished edit dropped",
            human::bytes(dropped)
        )),
    }
    Ok(FINE)
}

/// What the inputs take together, for the progress bar.
fn sizes<P: AsRef<Path>>(inputs: &[P]) -> u64 {
    inputs.iter().filter_map(|input| std::fs::metadata(input).ok()).map(|metadata| metadata.len()).sum()
}
