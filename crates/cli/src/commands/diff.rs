//! `diff`: two files, tensor by tensor.

use std::io::Write;

use serde_json::{Value as Json, json};
use ztensor::{Reader, Tensor};

use super::Common;
use crate::args::Diff;
use crate::failure::{DIFFERS, FINE, Outcome};
use crate::human;
use crate::ui::Progress;
use crate::values::Values;

/// How a tensor of both files differs.
enum Change {
    Same,
    /// Another shape, type, layout or set of components.
    Kind(String),
    /// Other values.
    Values {
        largest: f64,
        mean: f64,
        fraction: f64,
    },
}

pub fn run(options: &Diff, common: Common) -> Outcome {
    let (a, b) = (common.open(&options.a)?, common.open(&options.b)?);
    let (in_a, in_b) = (options.which.filter(&a), options.which.filter(&b));
    if in_a.is_empty() && in_b.is_empty() && !(a.is_empty() && b.is_empty()) {
        return Err(options.which.nothing());
    }
    let in_both = |name: &&str| a.contains(name) && b.contains(name);
    for (reader, objects) in [(&a, &in_a), (&b, &in_b)] {
        reader.check_limits(objects.iter().map(|(name, _)| *name).filter(in_both))?;
    }
    let mut changes: Vec<(&str, Change)> = Vec::new();
    {
        let total = in_a.iter().map(|(_, object)| object.byte_len()).fold(0, u64::saturating_add);
        let progress = Progress::new("comparing", total, common.quiet);
        for (name, object) in in_a.iter().filter(|(name, _)| b.contains(name)) {
            changes.push((name, compare(&a, &b, name)?));
            ztensor::Observer::advance(&progress, object.byte_len());
        }
    }
    let only_a: Vec<&str> = in_a.iter().map(|(name, _)| *name).filter(|name| !b.contains(name)).collect();
    let only_b: Vec<&str> = in_b.iter().map(|(name, _)| *name).filter(|name| !a.contains(name)).collect();
    let mut out = crate::output::stdout();
    if options.json {
        let document = document(&changes, &only_a, &only_b);
        serde_json::to_writer_pretty(&mut out, &document).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        print(&mut out, options, &changes, &only_a, &only_b)?;
    }
    out.flush()?;
    let same = changes.iter().all(|(_, change)| matches!(change, Change::Same));
    Ok(if same && only_a.is_empty() && only_b.is_empty() { FINE } else { DIFFERS })
}

fn compare(a: &Reader, b: &Reader, name: &str) -> ztensor::Result<Change> {
    let (x, y) = (a.read_object(name)?, b.read_object(name)?);
    let kind = |tensor: &Tensor<'_>| {
        let dtype = tensor.dtype().map_or("none", |dtype| dtype.name());
        format!("{} {} {}", human::shape(&tensor.shape), dtype, tensor.layout)
    };
    let same_parts = x.components.len() == y.components.len()
        && x.components.iter().all(|(role, array)| {
            y.component(role)
                .is_some_and(|other| other.dtype == array.dtype && other.bytes.len() == array.bytes.len())
        });
    if x.shape != y.shape || x.layout != y.layout || !same_parts {
        return Ok(Change::Kind(format!("{} became {}", kind(&x), kind(&y))));
    }
    let (mut largest, mut sum, mut changed, mut count) = (0f64, 0f64, 0u64, 0u64);
    for (role, array) in &x.components {
        let Some(other) = y.component(role) else { continue };
        let (ours, theirs) = (Values::new(array), Values::new(other));
        count += ours.count();
        if array.bytes == other.bytes {
            continue;
        }
        ours.for_pairs(&theirs, &mut |before, after| {
            // Compared as bits, so that a changed zero or NaN is a change too.
            if before.to_bits() != after.to_bits() {
                changed += 1;
                let difference = (after - before).abs();
                if difference.is_finite() {
                    largest = largest.max(difference);
                    sum += difference;
                }
            }
        })?;
        // Integers beyond 2^53 and payloads of NaN are not all told apart as numbers.
        changed = changed.max(1);
    }
    if changed == 0 {
        return Ok(Change::Same);
    }
    let count = count.max(1) as f64;
    Ok(Change::Values { largest, mean: sum / count, fraction: changed as f64 / count })
}

fn print(
    out: &mut impl Write,
    options: &Diff,
    changes: &[(&str, Change)],
    only_a: &[&str],
    only_b: &[&str],
) -> std::io::Result<()> {
    let mut same = 0;
    for (name, change) in changes {
        match change {
            Change::Same => same += 1,
            Change::Kind(what) => writeln!(out, "{}: {}", human::escaped(name), human::escaped(what))?,
            Change::Values { largest, mean, fraction } => writeln!(
                out,
                "{}: {:.2} % of values changed, by {largest:.3e} at most and {mean:.3e} on average",
                human::escaped(name),
                fraction * 100.0
            )?,
        }
    }
    for (names, file) in [(only_a, &options.a), (only_b, &options.b)] {
        for name in names {
            writeln!(out, "{}: only in {}", human::escaped(name), file.display())?;
        }
    }
    writeln!(
        out,
        "{same} the same, {} changed, {} only in {}, {} only in {}",
        changes.len() - same,
        only_a.len(),
        options.a.display(),
        only_b.len(),
        options.b.display()
    )
}

fn document(changes: &[(&str, Change)], only_a: &[&str], only_b: &[&str]) -> Json {
    let same: Vec<&str> =
        changes.iter().filter(|(_, change)| matches!(change, Change::Same)).map(|(name, _)| *name).collect();
    let changed: Vec<Json> = changes
        .iter()
        .filter_map(|(name, change)| match change {
            Change::Same => None,
            Change::Kind(what) => Some(json!({"name": name, "kind": what})),
            Change::Values { largest, mean, fraction } => Some(json!({
                "name": name, "max_abs": largest, "mean_abs": mean, "fraction_changed": fraction,
            })),
        })
        .collect();
    json!({"same": same, "changed": changed, "only_in_a": only_a, "only_in_b": only_b})
}
