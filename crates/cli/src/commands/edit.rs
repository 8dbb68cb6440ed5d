//! `merge`, `append`, `remove`, `compact` and `repair`: edits of `.zt` files.

use ztensor::edit::{self, Repaired};
use ztensor::{Compression, WriteOptions, Writer};

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
    let size = edit::merge_with(&inputs, output, clash)?;
    common.say(format_args!("{}: {} files, {}", output.display(), inputs.len(), human::bytes(size)));
    Ok(FINE)
}

pub fn append(options: &Append, common: Common) -> Outcome {
    let reader = common.open(&options.from)?;
    let chosen = options.which.choose(&reader)?;
    let names: Vec<&str> = chosen.iter().map(|(name, _)| *name).collect();
    let total = chosen.iter().map(|(_, object)| object.stored_len()).sum();
    let write = WriteOptions {
        compression: options.level.map_or(Compression::None, Compression::Zstd),
        checksum: options.checksum.into(),
    };
    let mut writer = Writer::append(&options.target)?;
    writer.set_threads(common.threads);
    {
        let progress = Progress::new("appending", total, common.quiet);
        writer.write_from(&reader, &names, write, Some(&progress))?;
    }
    let size = writer.finish()?;
    let (target, count) = (options.target.display(), names.len());
    common.say(format_args!("{target}: {count} tensors added, now {}", human::bytes(size)));
    Ok(FINE)
}

pub fn remove(options: &Remove, common: Common) -> Outcome {
    let output = options.output.check(&[&options.file])?;
    let size = edit::remove_tensors(&options.file, output, &options.names)?;
    common.say(format_args!(
        "{}: {} tensors fewer, {}",
        output.display(),
        options.names.len(),
        human::bytes(size)
    ));
    Ok(FINE)
}

pub fn compact(options: &Compact, common: Common) -> Outcome {
    let done = match &options.output {
        Some(output) => {
            let output = Output { output: output.clone(), force: options.force };
            edit::compact_to(&options.file, output.check(&[&options.file])?)?
        }
        None => edit::compact(&options.file)?,
    };
    let saved = human::bytes(done.before.saturating_sub(done.after));
    let written = options.output.as_ref().unwrap_or(&options.file).display();
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
