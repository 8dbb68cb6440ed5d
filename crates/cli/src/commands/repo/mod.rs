//! `repo`: repositories of models.

pub mod args;
mod page;
mod serve;

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};
use ztensor::export::{ExportFormat, ExportOptions, export};
use ztensor::repository::{
    CheckoutOptions, CommitOptions, Committed, FsckOptions, GcOptions, LogEntry, RefKind, Repository,
    Retention, TransferOptions, Transferred,
};
use ztensor::{Effort, OpenOptions, WriteOptions, Writer};

use self::args::Repo;
use super::{Common, diff};
use crate::failure::{DIFFERS, FINE, Failure, Outcome};
use crate::human;
use crate::output::stdout;
use crate::table::{Align, Table};
use crate::ui::Progress;
use crate::untrusted::Untrusted;

pub fn run(command: &Repo, common: Common) -> Outcome {
    match command {
        Repo::Init(options) => {
            Repository::init(&options.repo, Default::default())?;
            common.say(format_args!("{}: a new repository", human::path(&options.repo)));
            Ok(FINE)
        }
        Repo::Commit(options) => commit(options, common),
        Repo::Log(options) => log(options),
        Repo::Show(options) => show(options),
        Repo::Diff(options) => compare(options, common),
        Repo::Checkout(options) => checkout(options, common),
        Repo::Export(options) => export_tensors(options, common),
        Repo::Tag(options) => refs(options, RefKind::Tag, common),
        Repo::Branch(options) => refs(options, RefKind::Branch, common),
        Repo::Du(options) => du(options),
        Repo::Gc(options) => gc(options, common),
        Repo::Fsck(options) => fsck(options, common),
        Repo::Push(options) => transfer(options, true, common),
        Repo::Pull(options) => transfer(options, false, common),
        Repo::Clone(options) => clone(options, common),
        Repo::Serve(options) => serve::run(options, common),
        Repo::Page(options) => page::run(options, common),
    }
}

fn open(path: &Path) -> Result<Repository, Failure> {
    Ok(Repository::open(path, Default::default())?)
}

fn print(value: &Json) -> Outcome {
    let mut out = stdout();
    writeln!(out, "{}", serde_json::to_string_pretty(value).map_err(std::io::Error::from)?)?;
    out.flush()?;
    Ok(FINE)
}

fn line(text: &str) -> String {
    Untrusted::from(text.lines().next().unwrap_or_default()).line().into_owned()
}

/// Bytes of the files below a path, for a progress bar.
fn size(path: &Path) -> u64 {
    let listed = ztensor::remote::store::list(path, &Default::default());
    let folder: u64 = listed.map_or(0, |entries| entries.iter().map(|entry| entry.len).sum());
    folder + std::fs::metadata(path).map_or(0, |metadata| if metadata.is_file() { metadata.len() } else { 0 })
}

fn share(part: u64, whole: u64) -> String {
    format!("{:.1} %", 100.0 * part as f64 / whole.max(1) as f64)
}

fn commit(options: &args::Commit, common: Common) -> Outcome {
    let repository = open(&options.repo)?;
    let author = options.author.clone().or_else(|| std::env::var("USER").ok()).unwrap_or_default();
    let done = {
        let progress = Progress::new("committing", size(&options.path), common.quiet || options.json);
        let settings = CommitOptions {
            message: options.message.clone(),
            author,
            branch: Some(options.branch.clone()),
            tag: options.tag.clone(),
            parents: options.parent.clone(),
            bases: options.base.clone(),
            metadata: options.meta.iter().cloned().collect(),
            exclude: options.exclude.clone(),
            effort: Effort::from_name(&options.effort).unwrap_or_default(),
            threads: common.threads,
            observer: Some(&progress),
            ..CommitOptions::default()
        };
        repository.commit(&options.path, &settings)?
    };
    if options.json {
        return print(&committed(&done));
    }
    common.say(format_args!(
        "{} on {}: {} of {} stored ({}); {} there already, {}, {} by cast, {} whole",
        done.id.short(),
        human::escaped(&done.branch),
        human::bytes(done.stored),
        human::bytes(done.bytes),
        share(done.stored, done.bytes),
        human::counted(done.same, "object"),
        human::counted(done.deltas, "delta"),
        human::count(done.casts),
        human::count(done.whole),
    ));
    Ok(FINE)
}

fn committed(done: &Committed) -> Json {
    json!({
        "commit": done.id.to_string(),
        "branch": done.branch,
        "parent": done.parent.map(|id| id.to_string()),
        "files": done.files,
        "tensors": done.tensors,
        "bytes": done.bytes,
        "stored_bytes": done.stored,
        "same": done.same,
        "deltas": done.deltas,
        "casts": done.casts,
        "whole": done.whole,
    })
}

fn entry(entry: &LogEntry) -> Json {
    let named = |kind| {
        let refs = entry.refs.iter().filter(move |there| there.kind == kind);
        refs.map(|there| there.name.clone()).collect::<Vec<_>>()
    };
    let commit = &entry.commit;
    json!({
        "commit": entry.id.to_string(),
        "parents": commit.parents.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "manifest": commit.manifest.to_string(),
        "message": commit.message,
        "author": commit.author,
        "time": commit.time,
        "files": commit.files,
        "tensors": commit.tensors,
        "bytes": commit.bytes,
        "stored_bytes": commit.stored,
        "metadata": commit.metadata,
        "branches": named(RefKind::Branch),
        "tags": named(RefKind::Tag),
        "forgotten": entry.forgotten,
    })
}

/// A time as `2026-11-17 09:00`, in UTC.
fn date(time: u64) -> String {
    let days = (time / 86400) as i64;
    // Days from 1970 to a civil date: eras of 400 years that begin in March.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", time / 3600 % 24, time / 60 % 60)
}

fn log(options: &args::Log) -> Outcome {
    let entries = open(&options.repo)?.log(&options.name, options.number)?;
    if options.json {
        return print(&entries.iter().map(entry).collect());
    }
    let mut table = Table::new(&[
        ("commit", Align::Left),
        ("time", Align::Left),
        ("refs", Align::Left),
        ("size", Align::Right),
        ("stored", Align::Right),
        ("message", Align::Left),
    ]);
    for entry in &entries {
        let refs: Vec<String> = entry.refs.iter().map(|there| line(&there.name)).collect();
        let forgotten = if entry.forgotten { " (forgotten)" } else { "" };
        table.add(vec![
            entry.id.short(),
            date(entry.commit.time),
            refs.join(", "),
            human::bytes(entry.commit.bytes),
            human::bytes(entry.commit.stored),
            format!("{}{forgotten}", line(&entry.commit.message)),
        ]);
    }
    let mut out = stdout();
    table.print(&mut out, None)?;
    out.flush()?;
    Ok(FINE)
}

fn show(options: &args::Show) -> Outcome {
    let version = open(&options.repo)?.version(&options.name)?;
    let commit = version.commit();
    let tensors = if options.tensors || options.json { version.tensors()? } else { Vec::new() };
    if options.json {
        let files: Vec<_> = version
            .files()
            .iter()
            .map(|file| json!({"path": file.path, "bytes": file.len, "executable": file.executable}))
            .collect();
        let tensors: Vec<_> = tensors
            .iter()
            .map(|tensor| {
                json!({
                    "name": tensor.name,
                    "file": tensor.file,
                    "id": tensor.id.to_string(),
                    "dtype": tensor.dtype.name(),
                    "shape": tensor.shape.to_vec(),
                    "bytes": tensor.len,
                    "form": tensor.form,
                    "stored_bytes": tensor.stored,
                    "depth": tensor.depth,
                })
            })
            .collect();
        return print(&json!({
            "commit": version.id().to_string(),
            "parents": commit.parents.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "message": commit.message,
            "author": commit.author,
            "time": commit.time,
            "metadata": commit.metadata,
            "files": files,
            "tensors": tensors,
        }));
    }
    let mut out = stdout();
    writeln!(out, "commit   {}", version.id())?;
    for parent in &commit.parents {
        writeln!(out, "parent   {parent}")?;
    }
    writeln!(out, "time     {}", date(commit.time))?;
    if !commit.author.is_empty() {
        writeln!(out, "author   {}", line(&commit.author))?;
    }
    for text in commit.message.lines() {
        writeln!(out, "message  {}", line(text))?;
    }
    for (key, value) in &commit.metadata {
        writeln!(out, "{} = {}", line(key), line(value))?;
    }
    writeln!(out, "stored   {} of {}\n", human::bytes(commit.stored), human::bytes(commit.bytes))?;
    match options.tensors {
        false => {
            let mut table = Table::new(&[("file", Align::Left), ("size", Align::Right)]);
            for file in version.files() {
                table.add(vec![line(&file.path), human::bytes(file.len)]);
            }
            table.print(&mut out, None)?;
        }
        true => {
            let mut table = Table::new(&[
                ("tensor", Align::Left),
                ("type", Align::Left),
                ("shape", Align::Left),
                ("size", Align::Right),
                ("form", Align::Left),
                ("stored", Align::Right),
                ("depth", Align::Right),
            ]);
            for tensor in &tensors {
                table.add(vec![
                    line(&tensor.name),
                    tensor.dtype.name().to_owned(),
                    human::shape(&tensor.shape),
                    human::bytes(tensor.len),
                    tensor.form.to_owned(),
                    human::bytes(tensor.stored),
                    tensor.depth.to_string(),
                ]);
            }
            table.print(&mut out, None)?;
        }
    }
    out.flush()?;
    Ok(FINE)
}

fn compare(options: &args::Diff, common: Common) -> Outcome {
    let repository = open(&options.repo)?;
    let reader = |name: &str| -> Result<ztensor::Reader, Failure> {
        let settings = OpenOptions::default().threads(common.threads).limits(common.limits);
        Ok(repository.version(name)?.reader_at("", settings)?)
    };
    let settings = crate::args::Diff {
        a: PathBuf::from(&options.a),
        b: PathBuf::from(&options.b),
        which: options.which.clone(),
        tolerance: None,
        stat: options.stat,
        all: options.all,
        json: options.json,
    };
    diff::readers(&reader(&options.a)?, &reader(&options.b)?, &settings, common)
}

fn checkout(options: &args::Checkout, common: Common) -> Outcome {
    let version = open(&options.repo)?.version(&options.name)?;
    let done = {
        let total = version.files().iter().map(|file| file.len).sum();
        let progress = Progress::new("restoring", total, common.quiet || options.json);
        let settings = CheckoutOptions {
            overwrite: options.force,
            threads: common.threads,
            observer: Some(&progress),
            ..CheckoutOptions::default()
        };
        version.checkout(&options.folder, &settings)?
    };
    if options.json {
        return print(&json!({
            "commit": version.id().to_string(),
            "files": done.files,
            "unchanged": done.unchanged,
            "bytes": done.bytes,
        }));
    }
    common.say(format_args!(
        "{}: {} restored ({}), {} unchanged",
        human::path(&options.folder),
        human::counted(done.files, "file"),
        human::bytes(done.bytes),
        human::count(done.unchanged)
    ));
    Ok(FINE)
}

fn export_tensors(options: &args::Export, common: Common) -> Outcome {
    let version = open(&options.repo)?.version(&options.name)?;
    let settings = OpenOptions::default().threads(common.threads).limits(common.limits);
    let reader = version.reader_at(&options.path, settings)?;
    let to = options.output.check(&[])?;
    let total = reader.objects().map(|(_, object)| object.byte_len()).fold(0, u64::saturating_add);
    {
        let progress = Progress::new("exporting", total, common.quiet);
        match ExportFormat::from_path(&options.output.output) {
            Some(format) => {
                let settings = ExportOptions::default()
                    .threads(common.threads)
                    .drop_attributes(options.drop_metadata)
                    .observer(Some(&progress));
                export(&reader, to, format, &settings)?;
            }
            None if options.output.output.extension().is_some_and(|extension| extension == "zt") => {
                let mut writer = Writer::create(to)?;
                for (name, value) in reader.attributes() {
                    writer.set_attribute(name.clone(), value.clone());
                }
                let names: Vec<&str> = reader.keys().collect();
                writer.write_from(&reader, &names, WriteOptions::default(), Some(&progress))?;
                writer.finish()?;
            }
            None => {
                let message = "the name of OUT has to end in .zt, .safetensors, .gguf, .npz or .zstn";
                return Err(Failure::usage(message));
            }
        }
    }
    common.say(format_args!(
        "{}: {}, {}",
        human::path(&options.output.output),
        human::counted(reader.len() as u64, "tensor"),
        human::bytes(total)
    ));
    Ok(FINE)
}

fn refs(options: &args::Ref, kind: RefKind, common: Common) -> Outcome {
    let repository = open(&options.repo)?;
    let Some(name) = &options.name else {
        let refs: Vec<_> = repository.refs()?.into_iter().filter(|there| there.kind == kind).collect();
        if options.json {
            let pairs = refs.iter().map(|there| (there.name.clone(), Json::from(there.commit.to_string())));
            return print(&Json::Object(pairs.collect()));
        }
        let mut out = stdout();
        for there in refs {
            writeln!(out, "{}  {}", there.commit.short(), line(&there.name))?;
        }
        out.flush()?;
        return Ok(FINE);
    };
    if options.delete {
        repository.delete_ref(kind, name)?;
        common.say(format_args!("{}: removed", human::escaped(name)));
        return Ok(FINE);
    }
    let id = match kind {
        RefKind::Branch => repository.create_branch(name, &options.at, options.force)?,
        RefKind::Tag => repository.create_tag(name, &options.at, options.force)?,
    };
    common.say(format_args!("{}: {}", human::escaped(name), id.short()));
    Ok(FINE)
}

fn du(options: &args::Du) -> Outcome {
    let usage = open(&options.repo)?.usage(options.name.as_deref())?;
    if options.json {
        let versions: Vec<_> = usage
            .versions
            .iter()
            .map(|version| {
                let layers = version.layers.iter().map(
                    |(name, (bytes, new))| json!({"layer": name, "bytes": bytes, "new_stored_bytes": new}),
                );
                json!({
                    "commit": version.id.to_string(),
                    "message": version.message,
                    "bytes": version.bytes,
                    "stored_bytes": version.needed,
                    "new_stored_bytes": version.new,
                    "own_stored_bytes": version.own,
                    "layers": layers.collect::<Vec<_>>(),
                })
            })
            .collect();
        return print(&json!({
            "packs_bytes": usage.packs,
            "stored_bytes": usage.stored,
            "unneeded_bytes": usage.unneeded,
            "bytes": usage.bytes,
            "versions": versions,
        }));
    }
    let mut out = stdout();
    let mut table = Table::new(&[
        ("version", Align::Left),
        ("size", Align::Right),
        ("needs", Align::Right),
        ("new", Align::Right),
        ("own", Align::Right),
        ("message", Align::Left),
    ]);
    for version in &usage.versions {
        table.add(vec![
            version.id.short(),
            human::bytes(version.bytes),
            human::bytes(version.needed),
            human::bytes(version.new),
            human::bytes(version.own),
            line(&version.message),
        ]);
    }
    if options.layers {
        table = Table::new(&[("layer", Align::Left), ("size", Align::Right), ("new", Align::Right)]);
        for (name, (bytes, new)) in usage.versions.first().into_iter().flat_map(|version| &version.layers) {
            table.add(vec![line(name), human::bytes(*bytes), human::bytes(*new)]);
        }
    }
    table.print(&mut out, None)?;
    writeln!(
        out,
        "\n{} in {}: {} stored, {} saved; {} of garbage",
        human::bytes(usage.bytes),
        human::counted(usage.versions.len() as u64, "version"),
        human::bytes(usage.stored),
        share(usage.bytes.saturating_sub(usage.stored), usage.bytes),
        human::bytes(usage.unneeded),
    )?;
    out.flush()?;
    Ok(FINE)
}

fn gc(options: &args::Gc, common: Common) -> Outcome {
    let retention = Retention {
        keep_last: options.keep_last,
        keep_every: options.keep_every,
        keep_within: options.keep_within,
    };
    let settings =
        GcOptions { retention, grace: options.grace, dry_run: options.dry_run, threads: common.threads };
    let done = open(&options.repo)?.gc(&settings)?;
    if options.json {
        return print(&json!({
            "forgotten": done.forgotten.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "condemned": done.condemned,
            "removed": done.removed,
            "removed_bytes": done.removed_bytes,
            "rewritten": done.rewritten,
            "rewritten_bytes": done.rewritten_bytes,
            "dry_run": options.dry_run,
        }));
    }
    let would = if options.dry_run { "would be " } else { "" };
    common.say(format_args!(
        "{} {would}forgotten; {} {would}removed ({}), {} later; {} {would}rewritten ({})",
        human::counted(done.forgotten.len() as u64, "version"),
        human::counted(done.removed.len() as u64, "file"),
        human::bytes(done.removed_bytes),
        human::count(done.condemned.len() as u64),
        human::counted(done.rewritten, "object"),
        human::bytes(done.rewritten_bytes),
    ));
    Ok(FINE)
}

fn fsck(options: &args::Fsck, common: Common) -> Outcome {
    let repository = open(&options.repo)?;
    let found = {
        let total = if options.full { repository.usage(None).map_or(0, |usage| usage.bytes) } else { 0 };
        let progress = Progress::new("checking", total, common.quiet || options.json || !options.full);
        let settings = FsckOptions {
            full: options.full,
            repair: options.repair,
            threads: common.threads,
            observer: Some(&progress),
        };
        repository.fsck(&settings)?
    };
    let code = if found.errors.is_empty() { FINE } else { DIFFERS };
    if options.json {
        print(&json!({
            "errors": found.errors,
            "warnings": found.warnings,
            "refs": found.refs,
            "commits": found.commits,
            "versions": found.versions,
            "packs": found.packs,
            "objects": found.objects,
            "unneeded": found.unneeded,
            "decoded_bytes": found.decoded,
        }))?;
        return Ok(code);
    }
    for error in &found.errors {
        crate::output::say(Some(crate::output::Label::Error), human::escaped(error));
    }
    for warning in &found.warnings {
        common.say(format_args!("warning: {}", human::escaped(warning)));
    }
    common.say(format_args!(
        "{}: {}, {}, {}; {} damaged or missing",
        if found.errors.is_empty() { "clean" } else { "damaged" },
        human::counted(found.versions, "version"),
        human::counted(found.objects, "object"),
        human::counted(found.packs, "pack"),
        found.errors.len(),
    ));
    Ok(code)
}

fn report(done: &Transferred, json: bool, common: Common) -> Outcome {
    if json {
        return print(&json!({
            "refs": done.refs,
            "commits": done.commits,
            "objects": done.objects,
            "bytes": done.bytes,
        }));
    }
    common.say(format_args!(
        "{}, {} ({}); {} changed",
        human::counted(done.commits, "commit"),
        human::counted(done.objects, "object"),
        human::bytes(done.bytes),
        human::counted(done.refs.len() as u64, "ref"),
    ));
    Ok(FINE)
}

fn transfer(options: &args::Transfer, push: bool, common: Common) -> Outcome {
    let (repository, other) = (open(&options.repo)?, open(&options.other)?);
    let done = {
        let source = if push { &repository } else { &other };
        let total = source.usage(None).map_or(0, |usage| usage.stored);
        let progress = Progress::new("copying", total, common.quiet || options.json);
        let settings =
            TransferOptions { refs: options.refs.clone(), force: options.force, observer: Some(&progress) };
        match push {
            true => repository.push(&other, &settings)?,
            false => repository.pull(&other, &settings)?,
        }
    };
    report(&done, options.json, common)
}

fn clone(options: &args::CloneRepo, common: Common) -> Outcome {
    let source = open(&options.source)?;
    let done = {
        let total = source.usage(None).map_or(0, |usage| usage.stored);
        let progress = Progress::new("copying", total, common.quiet || options.json);
        let settings =
            TransferOptions { refs: options.refs.clone(), force: false, observer: Some(&progress) };
        source.clone_to(&options.repo, Default::default(), &settings)?.1
    };
    report(&done, options.json, common)
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00");
        assert_eq!(date(951_782_400), "2000-02-29 00:00");
        assert_eq!(date(1_794_906_060), "2026-11-17 09:01");
        assert_eq!(date(4_107_542_399), "2100-02-28 23:59");
    }
}
