//! `diff`: two files, tensor by tensor.

use std::collections::HashMap;
use std::io::Write;

use serde_json::{Value as Json, json};
use ztensor::{Array, Layout, Object, Reader, Tensor};

use super::Common;
use crate::args::Diff;
use crate::failure::{DIFFERS, FINE, Outcome};
use crate::fold;
use crate::human;
use crate::table::{self, Align, Table};
use crate::ui::Progress;
use crate::values::Values;

/// How a tensor of both files differs.
enum Change {
    Same,
    /// Another shape, type, layout or set of components.
    Kind(String),
    /// Other values.
    Values(Distance),
}

/// How far the values of two tensors are apart. Values that are not finite in either file count
/// as changed and nothing else.
#[derive(Debug, Clone, Copy, Default)]
struct Distance {
    count: u64,
    /// Values whose bits differ.
    changed: u64,
    /// Values that differ by more than the tolerance.
    beyond: u64,
    /// The largest absolute difference.
    largest: f64,
    /// The sum of absolute differences.
    sum: f64,
    /// The sum of squared differences, of squares of both files, and of products.
    squares: f64,
    before: f64,
    after: f64,
    products: f64,
}

impl Distance {
    fn add(&mut self, before: f64, after: f64, tolerance: (f64, f64)) {
        // Compared as bits, so that a changed zero or NaN is a change too.
        let changed = before.to_bits() != after.to_bits();
        self.changed += u64::from(changed);
        let difference = (after - before).abs();
        let close = !changed || difference <= tolerance.0 + tolerance.1 * before.abs();
        self.beyond += u64::from(!close);
        if difference.is_finite() {
            self.largest = self.largest.max(difference);
            self.sum += difference;
            self.squares += difference * difference;
            self.before += before * before;
            self.after += after * after;
            self.products += before * after;
        }
    }

    /// Adds another tensor's distance, for a row that stands for several.
    fn and(self, other: Distance) -> Distance {
        Distance {
            count: self.count + other.count,
            changed: self.changed + other.changed,
            beyond: self.beyond + other.beyond,
            largest: self.largest.max(other.largest),
            sum: self.sum + other.sum,
            squares: self.squares + other.squares,
            before: self.before + other.before,
            after: self.after + other.after,
            products: self.products + other.products,
        }
    }

    fn mean(&self) -> f64 {
        self.sum / self.count.max(1) as f64
    }

    fn fraction(&self) -> f64 {
        self.changed as f64 / self.count.max(1) as f64
    }

    /// The norm of the difference as a part of the norm of the first file's tensor.
    fn relative(&self) -> Option<f64> {
        (self.before > 0.0).then(|| (self.squares / self.before).sqrt())
    }

    fn cosine(&self) -> Option<f64> {
        let norms = (self.before * self.after).sqrt();
        (norms > 0.0).then(|| (self.products / norms).clamp(-1.0, 1.0))
    }
}

pub fn run(options: &Diff, common: Common) -> Outcome {
    let (a, b) = (common.open(&options.a)?, common.open(&options.b)?);
    readers(&a, &b, options, common)
}

/// Compares what two readers hold.
pub fn readers(a: &Reader, b: &Reader, options: &Diff, common: Common) -> Outcome {
    let (in_a, in_b) = (options.which.filter(a), options.which.filter(b));
    if in_a.is_empty() && in_b.is_empty() && !(a.is_empty() && b.is_empty()) {
        return Err(options.which.nothing());
    }
    let in_both = |name: &&str| a.contains(name) && b.contains(name);
    for (reader, objects) in [(a, &in_a), (b, &in_b)] {
        reader.check_limits(objects.iter().map(|(name, _)| *name).filter(in_both))?;
    }
    let mut changes: Vec<(&str, Change)> = Vec::new();
    {
        let total = in_a.iter().map(|(_, object)| object.byte_len()).fold(0, u64::saturating_add);
        let progress = Progress::new("comparing", total, common.quiet);
        for (name, object) in &in_a {
            if b.contains(name) {
                changes.push((name, compare(a, b, name, options)?));
            }
            ztensor::Observer::advance(&progress, object.byte_len());
        }
    }
    let only_a: Vec<(&str, &Object)> = in_a.iter().copied().filter(|(name, _)| !b.contains(name)).collect();
    let only_b: Vec<(&str, &Object)> = in_b.iter().copied().filter(|(name, _)| !a.contains(name)).collect();
    let mut out = crate::output::stdout();
    if options.json {
        let document = document(&changes, &only_a, &only_b);
        serde_json::to_writer_pretty(&mut out, &document).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        let objects: HashMap<&str, &Object> = in_a.iter().copied().collect();
        print(&mut out, options, &changes, &objects, &only_a, &only_b)?;
    }
    out.flush()?;
    let same = changes.iter().all(|(_, change)| matches!(change, Change::Same));
    Ok(if same && only_a.is_empty() && only_b.is_empty() { FINE } else { DIFFERS })
}

fn compare(a: &Reader, b: &Reader, name: &str, options: &Diff) -> ztensor::Result<Change> {
    let (x, y) = (a.read_object(name)?, b.read_object(name)?);
    let kind = |reader: &Reader, tensor: &Tensor<'_>| {
        let dtype = reader.get(name).map_or("none".into(), crate::describe::dtype);
        let layout = match &tensor.layout {
            Layout::Dense => String::new(),
            Layout::Other(layout) if layout.contains('.') => String::new(),
            layout => format!(" {layout}"),
        };
        format!("{} {}{layout}", human::shape(&tensor.shape), dtype.line())
    };
    let same_parts = x.components.len() == y.components.len()
        && x.components.iter().all(|(role, array)| {
            y.component(role)
                .is_some_and(|other| other.dtype == array.dtype && other.bytes.len() == array.bytes.len())
        });
    if x.shape != y.shape || x.layout != y.layout || !same_parts {
        return Ok(Change::Kind(format!("{} → {}", kind(a, &x), kind(b, &y))));
    }
    let equal = |(role, array): &(ztensor::object::Role, Array<'_>)| {
        y.component(role).is_some_and(|o| o.bytes == array.bytes)
    };
    if x.components.iter().all(equal) {
        return Ok(Change::Same);
    }
    let tolerance = options.tolerances();
    let mut distance = Distance::default();
    let mut add = |ours: &Array<'_>, theirs: &Array<'_>| -> ztensor::Result<()> {
        let (ours, theirs) = (Values::new(ours), Values::new(theirs));
        distance.count += ours.count();
        ours.for_pairs(&theirs, &mut |before, after| distance.add(before, after, tolerance))
    };
    // What quantized tensors stand for is compared, not the bytes of their blocks.
    let quantized = !matches!(x.layout, Layout::Dense | Layout::SparseCsr | Layout::SparseCoo);
    match (quantized.then(|| x.dequantize().ok()).flatten(), quantized.then(|| y.dequantize().ok()).flatten())
    {
        (Some(x), Some(y)) => add(&Array::from_slice(&x.data), &Array::from_slice(&y.data))?,
        _ => {
            for (role, array) in &x.components {
                if let Some(other) = y.component(role) {
                    add(array, other)?;
                }
            }
        }
    }
    // Integers beyond 2^53 and payloads of NaN are not all told apart as numbers.
    if distance.changed == 0 {
        (distance.changed, distance.beyond) = (1, 1);
    }
    match options.has_tolerance() && distance.beyond == 0 {
        true => Ok(Change::Same),
        false => Ok(Change::Values(distance)),
    }
}

/// A line of the table: changed tensors that differ only in their layer numbers.
struct Line {
    name: String,
    count: u64,
    distance: Distance,
}

/// Changed tensors, folded unless all are asked for; the largest relative change first.
fn lines(changes: &[(&str, Change)], objects: &HashMap<&str, &Object>, all: bool) -> Vec<Line> {
    let changed: Vec<(&str, &Object, Distance)> = changes
        .iter()
        .filter_map(|(name, change)| match change {
            Change::Values(distance) => Some((*name, *objects.get(name)?, *distance)),
            _ => None,
        })
        .collect();
    let mut lines = Vec::new();
    if all {
        lines.extend(changed.iter().map(|(name, _, distance)| Line {
            name: (*name).to_owned(),
            count: 1,
            distance: *distance,
        }));
    } else {
        let listed: Vec<(&str, &Object)> = changed.iter().map(|(name, object, _)| (*name, *object)).collect();
        for (row, members) in fold::grouped(&listed) {
            let distances = members.iter().map(|index| changed[*index].2);
            let distance = distances.reduce(Distance::and).unwrap_or_default();
            lines.push(Line { name: row.name, count: row.count, distance });
        }
    }
    let weight = |line: &Line| line.distance.relative().unwrap_or(f64::INFINITY);
    lines.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
    lines
}

fn print(
    out: &mut impl Write,
    options: &Diff,
    changes: &[(&str, Change)],
    objects: &HashMap<&str, &Object>,
    only_a: &[(&str, &Object)],
    only_b: &[(&str, &Object)],
) -> std::io::Result<()> {
    writeln!(out, "a: {}\nb: {}", human::path(&options.a), human::path(&options.b))?;
    let lines = lines(changes, objects, options.all);
    if !options.stat {
        if !lines.is_empty() {
            let mut columns = vec![("changed", Align::Left)];
            let folded = lines.iter().any(|line| line.count > 1);
            if folded {
                columns.push(("tensors", Align::Right));
            }
            let right = ["values", "max abs", "mean abs", "relative", "cosine"];
            columns.extend(right.map(|name| (name, Align::Right)));
            let mut table = Table::new(&columns);
            let optional = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), short);
            for line in &lines {
                let distance = &line.distance;
                let mut cells = vec![human::escaped(&line.name).into_owned()];
                if folded {
                    cells.push(human::count(line.count));
                }
                cells.extend([
                    format!("{:.1} %", distance.fraction() * 100.0),
                    short(distance.largest),
                    short(distance.mean()),
                    optional(distance.relative()),
                    distance.cosine().map_or_else(|| "-".to_owned(), |cosine| format!("{cosine:.6}")),
                ]);
                table.add(cells);
            }
            writeln!(out)?;
            table.print(out, table::width())?;
        }
        let mut first = true;
        for (name, change) in changes {
            if let Change::Kind(what) = change {
                if std::mem::take(&mut first) {
                    writeln!(out, "\nother shape or type")?;
                }
                writeln!(out, "{}  {}", human::escaped(name), human::escaped(what))?;
            }
        }
        for (objects, file) in [(only_a, "a"), (only_b, "b")] {
            if !objects.is_empty() {
                writeln!(out, "\nonly in {file}")?;
            }
            let rows = if options.all { fold::unfolded(objects) } else { fold::folded(objects) };
            for row in rows {
                let count = if row.count > 1 { format!("{} × ", row.count) } else { String::new() };
                let shape = human::shape(&row.object.shape);
                writeln!(out, "{}  {count}{shape}", human::escaped(&row.name))?;
            }
        }
        writeln!(out)?;
    }
    let same = changes.iter().filter(|(_, change)| matches!(change, Change::Same)).count();
    let word = if options.has_tolerance() { "within tolerance" } else { "identical" };
    writeln!(
        out,
        "{}: {same} {word}, {} changed, {} only in a, {} only in b",
        human::counted((changes.len() + only_a.len() + only_b.len()) as u64, "tensor"),
        changes.len() - same,
        only_a.len(),
        only_b.len(),
    )?;
    let all = lines.iter().map(|line| line.distance).reduce(Distance::and);
    if let Some(all) = all.filter(|_| options.stat) {
        let optional = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), short);
        writeln!(
            out,
            "changed tensors: {:.1} % of values, max abs {}, mean abs {}, relative {}, cosine {}",
            all.fraction() * 100.0,
            short(all.largest),
            short(all.mean()),
            optional(all.relative()),
            all.cosine().map_or_else(|| "-".to_owned(), |cosine| format!("{cosine:.6}")),
        )?;
    }
    Ok(())
}

/// A number in three significant digits.
fn short(value: f64) -> String {
    match value == 0.0 || !value.is_finite() {
        true => human::number(value),
        false => {
            let scale = 10f64.powi(2 - value.abs().log10().floor() as i32);
            match scale.is_finite() && scale > 0.0 {
                true => human::number((value * scale).round() / scale),
                false => human::number(value),
            }
        }
    }
}

fn document(changes: &[(&str, Change)], only_a: &[(&str, &Object)], only_b: &[(&str, &Object)]) -> Json {
    let same: Vec<&str> =
        changes.iter().filter(|(_, change)| matches!(change, Change::Same)).map(|(name, _)| *name).collect();
    let changed: Vec<Json> = changes
        .iter()
        .filter_map(|(name, change)| match change {
            Change::Same => None,
            Change::Kind(what) => Some(json!({"name": name, "kind": what})),
            Change::Values(distance) => Some(json!({
                "name": name,
                "max_abs": distance.largest,
                "mean_abs": distance.mean(),
                "fraction_changed": distance.fraction(),
                "relative": distance.relative(),
                "cosine": distance.cosine(),
            })),
        })
        .collect();
    let names = |objects: &[(&str, &Object)]| objects.iter().map(|(name, _)| json!(name)).collect::<Vec<_>>();
    json!({"same": same, "changed": changed, "only_in_a": names(only_a), "only_in_b": names(only_b)})
}
