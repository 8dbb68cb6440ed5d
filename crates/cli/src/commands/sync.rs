//! `sync`: streams of weight versions.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use ztensor::Reader;
use ztensor::sync::{
    self, BASE_VERSION, ChecksumFormat, Encoding, Layout, LogEntry, PayloadCompression, PublishOptions,
    Publisher, PullOptions, Stream, chain::Anchors, version_name,
};

use super::Common;
use crate::args::Sync;
use crate::failure::{DIFFERS, FINE, Failure, Outcome};
use crate::output::stdout;
use crate::table::{Align, Table};
use crate::ui::Progress;
use crate::untrusted::Untrusted;
use crate::{human, output};

pub fn run(options: &Sync, common: Common) -> Outcome {
    match options {
        Sync::Publish { .. } => publish(options, common),
        Sync::Pull { .. } => pull(options, common),
        Sync::Status { stream, local, json } => status(stream, local.as_deref(), *json),
        Sync::Log { stream, json } => log(stream, *json),
        Sync::Fold { stream, from, to, base } => fold(stream, *from, *to, base.as_deref(), common),
        Sync::Prune { stream, keep, in_use, dry_run } => prune(stream, *keep, in_use, *dry_run, common),
        Sync::Verify { local, json } => verify(local, *json, common),
    }
}

fn open(stream: &Path, layout: Layout) -> Arc<Stream> {
    Arc::new(Stream::new(stream, layout, Default::default()))
}

fn size(reader: &Reader) -> u64 {
    reader.objects().map(|(_, object)| object.byte_len()).fold(0, u64::saturating_add)
}

fn print(value: &serde_json::Value) -> Outcome {
    let mut out = stdout();
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    writeln!(out, "{text}")?;
    out.flush()?;
    Ok(FINE)
}

fn publish(options: &Sync, common: Common) -> Outcome {
    let Sync::Publish {
        new,
        stream,
        previous,
        encoding,
        compression,
        checksum,
        full,
        anchor_every,
        replace_unfinished,
    } = options
    else {
        return Err(Failure::usage("not a publish command"));
    };
    let settings = PublishOptions {
        encoding: Encoding::from_name(encoding)?,
        compression: PayloadCompression::from_name(compression)?,
        checksum: checksum.as_deref().map(ChecksumFormat::from_name).transpose()?,
        anchors: Anchors { every: *anchor_every, ..Anchors::default() },
        files_from: new.is_dir().then(|| new.clone()),
        threads: common.threads,
        replace_unfinished: *replace_unfinished,
        ..PublishOptions::default()
    };
    let (old, new) = (common.open(previous)?, common.open(new)?);
    let mut publisher = Publisher::new(open(stream, Layout::Numbered), &old, settings)?;
    let published = publisher.publish_reader_as(&new, None, *full)?;
    let kind = match published.full {
        Some(reason) => format!("full ({reason})"),
        None => human::counted(published.changed as u64, "changed tensor"),
    };
    common.say(format_args!(
        "version {}: {kind}, {} of {}",
        published.version,
        human::bytes(published.bytes),
        human::bytes(published.total)
    ));
    if published.full.is_none() && published.encoding.name() != encoding {
        common.say("note: xor was used, because overwrite cannot address tensors of more than 4 GiB");
    }
    Ok(FINE)
}

fn pull(options: &Sync, common: Common) -> Outcome {
    let Sync::Pull { stream, local, base, version, restart, allow_structure, layout, no_fsync, json } =
        options
    else {
        return Err(Failure::usage("not a pull command"));
    };
    let total = base.as_ref().map(|base| common.open(base)).transpose()?.map_or(0, |reader| size(&reader));
    let pulled = {
        let progress = Progress::new("pulling", total, common.quiet || *json);
        let settings = PullOptions {
            version: version.clone(),
            base: base.clone(),
            restart: *restart,
            allow_structure: *allow_structure,
            threads: common.threads,
            durable: !no_fsync,
            observer: Some(&progress),
            ..PullOptions::default()
        };
        sync::pull(&open(stream, Layout::from_name(layout)?), local, &settings)?
    };
    if *json {
        let changed: Vec<_> = pulled
            .changed
            .iter()
            .map(|tensor| {
                json!({
                    "name": tensor.name,
                    "file": tensor.file,
                    "offset": tensor.offset,
                    "bytes": tensor.len,
                    "dtype": tensor.dtype.name(),
                    "shape": tensor.shape.to_vec(),
                })
            })
            .collect();
        return print(&json!({
            "from": pulled.from,
            "version": pulled.version,
            "steps": pulled.steps,
            "read_bytes": pulled.read,
            "changed": changed,
        }));
    }
    let what = match pulled.steps.is_empty() {
        true => "already there".to_owned(),
        false => format!(
            "{}; {} changed, {} read",
            pulled.steps.join(", "),
            human::counted(pulled.changed.len() as u64, "tensor"),
            human::bytes(pulled.read)
        ),
    };
    common.say(format_args!("{}: version {}: {what}", human::path(local), human::escaped(&pulled.version)));
    Ok(FINE)
}

fn status(stream: &Path, local: Option<&Path>, json: bool) -> Outcome {
    let found = sync::status(&open(stream, Layout::Numbered), local)?;
    if json {
        return print(&json!({
            "newest": found.newest,
            "newest_full": found.newest_full,
            "versions": found.versions,
            "applied": found.applied,
            "interrupted": found.interrupted,
        }));
    }
    let shown = |version: &Option<String>| match version {
        Some(version) => Untrusted::from(version.as_str()).line().into_owned(),
        None => "none".to_owned(),
    };
    let mut out = stdout();
    writeln!(out, "versions     {}", found.versions)?;
    writeln!(out, "newest       {}", shown(&found.newest))?;
    writeln!(out, "newest full  {}", shown(&found.newest_full))?;
    if local.is_some() {
        let interrupted =
            if found.interrupted { " (a pull was interrupted: the next one finishes it)" } else { "" };
        writeln!(out, "local        {}{interrupted}", shown(&found.applied))?;
    }
    out.flush()?;
    Ok(FINE)
}

fn log(stream: &Path, json: bool) -> Outcome {
    let entries = sync::log(&open(stream, Layout::Numbered))?;
    if json {
        let entries: Vec<_> = entries
            .iter()
            .map(|entry| {
                json!({
                    "version": entry.version,
                    "base": entry.base,
                    "form": entry.form,
                    "tensors": entry.tensors,
                    "changed_elements": entry.changed.map(|changed| changed.0),
                    "elements": entry.changed.map(|changed| changed.1),
                    "norm": entry.norm,
                    "bytes": entry.bytes,
                })
            })
            .collect();
        return print(&json!(entries));
    }
    let mut table = Table::new(&[
        ("version", Align::Left),
        ("from", Align::Left),
        ("form", Align::Left),
        ("tensors", Align::Right),
        ("changed", Align::Right),
        ("norm", Align::Right),
        ("bytes", Align::Right),
    ]);
    for entry in entries {
        table.add(row(entry));
    }
    let mut out = stdout();
    table.print(&mut out, None)?;
    out.flush()?;
    Ok(FINE)
}

fn row(entry: LogEntry) -> Vec<String> {
    let line = |text: &str| Untrusted::from(text).line().into_owned();
    let changed = match entry.changed {
        Some((changed, all)) => format!("{:.3} %", 100.0 * changed as f64 / all.max(1) as f64),
        None => String::new(),
    };
    vec![
        line(&entry.version),
        entry.base.as_deref().map(line).unwrap_or_default(),
        entry.form,
        human::count(entry.tensors as u64),
        changed,
        entry.norm.map(human::number).unwrap_or_default(),
        human::bytes(entry.bytes),
    ]
}

fn fold(stream: &Path, from: u64, to: Option<u64>, base: Option<&Path>, common: Common) -> Outcome {
    let stream = open(stream, Layout::Numbered);
    let to = match to {
        Some(to) => version_name(to),
        None => stream.newest()?.unwrap_or_else(|| BASE_VERSION.to_owned()),
    };
    let base = base.map(|base| common.open(base)).transpose()?;
    let settings = PublishOptions { threads: common.threads, ..PublishOptions::default() };
    let folded = sync::fold(&stream, &version_name(from), &to, base.as_ref(), &settings)?;
    common.say(format_args!(
        "versions {} to {}: {} instead of {}",
        folded.from,
        folded.to,
        human::bytes(folded.bytes),
        human::bytes(folded.deltas)
    ));
    Ok(FINE)
}

fn prune(stream: &Path, keep: u64, in_use: &[u64], dry_run: bool, common: Common) -> Outcome {
    let in_use: Vec<String> = in_use.iter().copied().map(version_name).collect();
    let removed = sync::prune(&open(stream, Layout::Numbered), keep, &in_use, dry_run)?;
    let mut out = stdout();
    for folder in &removed {
        writeln!(out, "{}", Untrusted::from(folder.as_str()).line())?;
    }
    out.flush()?;
    let what = if dry_run { "would be removed" } else { "removed" };
    common.say(format_args!("{} {what}", human::counted(removed.len() as u64, "folder")));
    Ok(FINE)
}

fn verify(local: &Path, json: bool, common: Common) -> Outcome {
    let found = sync::verify(local, common.threads)?;
    let code = if found.differ.is_empty() { FINE } else { DIFFERS };
    if json {
        print(&json!({
            "version": found.version,
            "checked": found.checked,
            "unknown": found.unknown,
            "differ": found.differ,
        }))?;
        return Ok(code);
    }
    for name in &found.differ {
        output::say(None, format_args!("{}: not what was applied", Untrusted::from(name.as_str()).line()));
    }
    let version = found.version.as_deref().unwrap_or("none");
    common.say(format_args!(
        "version {}: {} compared, {} differ, {} unknown",
        human::escaped(version),
        human::counted(found.checked as u64, "tensor"),
        found.differ.len(),
        found.unknown.len()
    ));
    Ok(code)
}
