//! `model-delta`: models as what they changed in another one.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};
use ztensor::model_delta::{self, ApplyOptions, Info, MakeOptions};

use super::args::ModelDelta;
use super::files::{self, Run, Target};
use crate::failure::{FINE, Outcome};
use crate::human;
use crate::ui::Progress;

pub fn run(options: &ModelDelta, run: Run) -> Outcome {
    match options {
        ModelDelta::Make { target, base, output, force, effort, level } => {
            let usual = || files::with_suffix(target, ".z4dm");
            let out = Target::new(output.as_deref(), usual, *force, &[target, base])?;
            let total = std::fs::metadata(target).map_or(0, |metadata| metadata.len());
            let progress = Progress::new("comparing", total, run.quiet);
            let settings = MakeOptions {
                effort: *effort,
                level: *level,
                threads: run.threads,
                limits: run.limits,
                durable: false,
                observer: Some(&progress),
            };
            let stats = model_delta::make(base, target, out.file()?, &settings)?;
            drop(progress);
            run.say_smaller(target, stats.target_len, stats.delta_len);
            run.say(format_args!(
                "{} copied, {} renamed, {} changed, {} in full, {} equal to others",
                stats.copied, stats.renamed, stats.deltas, stats.full, stats.shared
            ));
            Ok(FINE)
        }
        ModelDelta::Apply { base, deltas, output: None, base_id, .. } => {
            apply_in_place(base, deltas, *base_id, run)
        }
        ModelDelta::Apply { base, deltas, output: Some(output), force, base_id, .. } => {
            let inputs: Vec<&Path> = [base].into_iter().chain(deltas).map(|path| path.as_path()).collect();
            let out = Target::new(Some(output), || output.clone(), *force, &inputs)?;
            let infos = deltas.iter().map(model_delta::info).collect::<Result<Vec<_>, _>>()?;
            let total = infos.iter().map(|info| info.target_len).sum();
            let progress = Progress::new("restoring", total, run.quiet);
            let settings = ApplyOptions {
                threads: run.threads,
                limits: run.limits,
                base_id: *base_id,
                observer: Some(&progress),
                ..ApplyOptions::default()
            };
            let len = model_delta::apply_chain(base, deltas, out.file()?, &settings)?;
            drop(progress);
            run.say(format_args!("{}: {}", files::name(output), human::bytes(len)));
            Ok(FINE)
        }
        ModelDelta::Info { delta, json } => describe(delta, &model_delta::info(delta)?, *json),
    }
}

/// Brings a `.zt` file up to date, one delta after another, each kill-safe.
fn apply_in_place(
    path: &Path,
    deltas: &[PathBuf],
    mut base_id: Option<ztensor::ContentId>,
    run: Run,
) -> Outcome {
    crate::ui::catch_interrupts();
    for delta in deltas {
        let total = model_delta::info(delta)?.target_len;
        let progress = Progress::new("updating", total, run.quiet);
        let settings = ApplyOptions {
            threads: run.threads,
            limits: run.limits,
            base_id: base_id.take(),
            observer: Some(&progress),
            ..ApplyOptions::default()
        };
        let stats = model_delta::apply_in_place(path, delta, &settings)?;
        drop(progress);
        run.say(format_args!(
            "{}: {} written, {} removed, {} now",
            files::name(path),
            human::counted(stats.written, "tensor"),
            human::count(stats.removed),
            human::bytes(stats.len)
        ));
    }
    Ok(FINE)
}

/// Prints what a delta changes, tensor by tensor.
pub fn describe(path: &Path, info: &Info, json: bool) -> Outcome {
    let mut out = crate::output::stdout();
    let digest = |digest: &Option<model_delta::ModelDigest>| digest.map(|digest| digest.to_string());
    if json {
        let tensors: Vec<Json> = info
            .changes
            .iter()
            .map(|change| {
                json!({
                    "name": change.name,
                    "how": change.how,
                    "from": change.from,
                    "bytes": change.len,
                    "stored_bytes": change.stored_len,
                })
            })
            .collect();
        let document = json!({
            "file": path.display().to_string(),
            "format": "Z4DM",
            "version": info.version,
            "base": digest(&info.base),
            "target": digest(&info.target),
            "bytes": info.target_len,
            "stored_bytes": info.delta_len,
            "tensors": tensors,
        });
        writeln!(out, "{document:#}")?;
        out.flush()?;
        return Ok(FINE);
    }
    let unknown = || "not recorded".to_owned();
    writeln!(out, "{:<12}{}", "file", files::name(path))?;
    writeln!(out, "{:<12}Z4DM {}", "format", info.version)?;
    writeln!(out, "{:<12}{}", "base", digest(&info.base).unwrap_or_else(unknown))?;
    writeln!(out, "{:<12}{}", "target", digest(&info.target).unwrap_or_else(unknown))?;
    writeln!(out, "{:<12}{}", "original", human::bytes(info.target_len))?;
    let saved = files::saved(info.target_len, info.delta_len);
    writeln!(out, "{:<12}{}{saved}", "stored", human::bytes(info.delta_len))?;
    let names: Vec<_> = info.changes.iter().map(|change| human::escaped(&change.name)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).clamp(4, 60) + 2;
    if !names.is_empty() {
        writeln!(out, "\n{:<width$}{:<7}{:>12}{:>12}  from", "name", "how", "original", "stored")?;
    }
    for (change, name) in info.changes.iter().zip(&names) {
        let (len, stored) = (human::bytes(change.len), human::bytes(change.stored_len));
        let from = change.from.as_deref().filter(|from| *from != change.name).unwrap_or("");
        let line = format!("{name:<width$}{:<7}{len:>12}{stored:>12}  {}", change.how, human::escaped(from));
        writeln!(out, "{}", line.trim_end())?;
    }
    out.flush()?;
    Ok(FINE)
}
