//! `show`: a tensor's values, statistics and histogram.

use std::io::Write;
use std::ops::Range;

use ztensor::object::elements;
use ztensor::{Layout, Reader, Tensor};

use super::Common;
use crate::args::Show;
use crate::failure::{FINE, Failure, Outcome};
use crate::statistics::{Statistics, Steps};
use crate::values::Values;
use crate::{describe, human};

/// Longest row and most rows that are printed without a slice.
const COLUMNS: u64 = 8;
const ROWS: u64 = 8;
/// The histogram: one line, everything in it.
const STEPS: Steps = Steps { count: 40, within: f64::INFINITY };

pub fn run(options: &Show, common: Common) -> Outcome {
    let reader = common.open(&options.file)?;
    let Some(name) = &options.name else {
        return list(&reader);
    };
    let tensor = reader.read_object(name)?;
    // Printed at once, so that a slice that is refused prints nothing.
    let mut out = Vec::new();
    let object = reader.get(name)?;
    let shape = human::shape(&tensor.shape);
    writeln!(out, "{}: {shape} {}", human::escaped(name), describe::dtype(object).line())?;
    match &tensor.layout {
        Layout::Dense => show_dense(&mut out, options, &tensor, common)?,
        Layout::SparseCsr | Layout::SparseCoo => show_components(&mut out, options, &tensor, common)?,
        _ => match tensor.dequantize() {
            Ok(dense) => {
                let dense = Tensor::from_slice(dense.shape, &dense.data)?.into_owned();
                show_dense(&mut out, options, &dense, common)?;
            }
            Err(_) => show_components(&mut out, options, &tensor, common)?,
        },
    }
    for (name, value) in tensor.attributes.iter().flat_map(|attributes| attributes.iter()) {
        let value = crate::json::value(value).to_string();
        writeln!(out, "{} = {}", human::escaped(name), human::escaped(&value))?;
    }
    let mut stdout = crate::output::stdout();
    stdout.write_all(&out)?;
    stdout.flush()?;
    Ok(FINE)
}

/// The names, one per line.
fn list(reader: &Reader) -> Outcome {
    let mut out = crate::output::stdout();
    for name in reader.keys() {
        writeln!(out, "{}", human::escaped(name))?;
    }
    out.flush()?;
    Ok(FINE)
}

/// Statistics of what a tensor is made of, where its values cannot be shown.
fn show_components(
    out: &mut impl Write,
    options: &Show,
    tensor: &Tensor<'_>,
    common: Common,
) -> Result<(), Failure> {
    if options.slice.is_some() {
        return Err(Failure::usage(format!("a tensor of layout {} cannot be sliced", tensor.layout)));
    }
    writeln!(out, "layout: {}", human::escaped(tensor.layout.name()))?;
    for (role, array) in &tensor.components {
        let size = human::bytes(array.bytes.len() as u64);
        writeln!(out, "\n{}: {}, {size}", human::escaped(role), array.dtype)?;
        Values::new(array).statistics(STEPS, common.threads)?.print(out)?;
    }
    Ok(())
}

fn show_dense(
    out: &mut impl Write,
    options: &Show,
    tensor: &Tensor<'_>,
    common: Common,
) -> Result<(), Failure> {
    let Some(data) = tensor.component("data") else { return Ok(()) };
    let values = Values::of_elements(data, elements(&tensor.shape).unwrap_or(0));
    let slice = match &options.slice {
        Some(text) => parse(text, &tensor.shape)?,
        None => shortened(&tensor.shape),
    };
    print_values(out, &values, &tensor.shape, &slice)?;
    writeln!(out)?;
    let statistics = match options.slice {
        Some(_) => Statistics::of(STEPS, 1, 1, |_, each| {
            for_rows(&values, &tensor.shape, &slice, |row, _| {
                each(row);
                Ok::<_, ztensor::Error>(())
            })
        })?,
        None => values.statistics(STEPS, common.threads)?,
    };
    statistics.print(out)?;
    Ok(())
}

/// The first few of every dimension.
fn shortened(shape: &[u64]) -> Vec<Range<u64>> {
    let last = shape.len().saturating_sub(1);
    let few = |(index, &size): (usize, &u64)| match index {
        index if index == last => 0..size.min(COLUMNS),
        index if index + 1 == last => 0..size.min(ROWS),
        _ => 0..size.min(1),
    };
    shape.iter().enumerate().map(few).collect()
}

/// `0:4,:8,-1` against a shape.
fn parse(text: &str, shape: &[u64]) -> Result<Vec<Range<u64>>, Failure> {
    let wrong = |why: String| Failure::usage(format!("--slice {text}: {why}"));
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    if parts.len() > shape.len() {
        return Err(wrong(format!("{} dimensions for a tensor of rank {}", parts.len(), shape.len())));
    }
    let mut ranges = Vec::new();
    for (index, &size) in shape.iter().enumerate() {
        let bound = |text: &str, default: u64| -> Result<u64, Failure> {
            if text.is_empty() {
                return Ok(default);
            }
            let number: i128 = text.parse().map_err(|_| wrong(format!("{text:?} is not a number")))?;
            let at = if number < 0 { number.saturating_add(i128::from(size)) } else { number };
            u64::try_from(at).ok().filter(|at| *at <= size).ok_or_else(|| {
                wrong(format!("{number} lies outside dimension {index}, which has size {size}"))
            })
        };
        let range = match parts.get(index) {
            None => 0..size,
            Some(part) => match part.split_once(':') {
                Some((start, end)) => bound(start, 0)?..bound(end, size)?,
                None => {
                    let at = bound(part, 0)?;
                    if at >= size {
                        return Err(wrong(format!(
                            "{at} lies outside dimension {index}, which has size {size}"
                        )));
                    }
                    at..at + 1
                }
            },
        };
        ranges.push(range.start..range.end.max(range.start));
    }
    Ok(ranges)
}

/// Calls `each` with the numbers of every row of the slice, and how many
/// dimensions end with it (0 if the next row follows in the same matrix).
fn for_rows<E: From<ztensor::Error>>(
    values: &Values<'_>,
    shape: &[u64],
    slice: &[Range<u64>],
    mut each: impl FnMut(&[f64], usize) -> Result<(), E>,
) -> Result<(), E> {
    if slice.iter().any(|range| range.is_empty()) {
        return Ok(());
    }
    let (outer, columns) = match slice.split_last() {
        Some((columns, outer)) => (outer, columns.clone()),
        None => (slice, 0..1), // a scalar is a row of one
    };
    let width = shape.last().copied().unwrap_or(1);
    let mut index: Vec<u64> = outer.iter().map(|range| range.start).collect();
    let mut row = Vec::new();
    loop {
        let flat = index.iter().zip(shape).fold(0, |flat, (&at, &size)| flat * size + at) * width;
        let per = values.per_element();
        row.clear();
        values.read((flat + columns.start) * per, (columns.end - columns.start) * per, &mut row)?;
        // Count up the innermost dimension first.
        let turned = (0..index.len()).rev().find(|&dimension| {
            index[dimension] += 1;
            let more = index[dimension] < outer[dimension].end;
            if !more {
                index[dimension] = outer[dimension].start;
            }
            more
        });
        each(&row, turned.map_or(outer.len(), |dimension| outer.len() - 1 - dimension))?;
        if turned.is_none() {
            return Ok(());
        }
    }
}

/// Prints rows of the innermost dimension, with a line between matrices.
fn print_values(
    out: &mut impl Write,
    values: &Values<'_>,
    shape: &[u64],
    slice: &[Range<u64>],
) -> Result<(), Failure> {
    if slice.iter().any(|range| range.is_empty()) {
        return Ok(writeln!(out, "(empty)")?);
    }
    let complex = values.per_element() == 2;
    let mut between = false;
    for_rows(values, shape, slice, |row, ended| {
        if std::mem::replace(&mut between, ended > 0) {
            writeln!(out)?;
        }
        for element in row.chunks(if complex { 2 } else { 1 }) {
            match element {
                [re, im] => write!(out, "{re:>12.5}{im:+.5}i")?,
                _ => write!(out, "{:>13}", human::number(element[0]))?,
            }
        }
        Ok::<_, Failure>(writeln!(out)?)
    })
}
