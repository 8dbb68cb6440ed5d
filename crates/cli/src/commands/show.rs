//! `show`: a tensor's values, statistics and histogram.

use std::io::Write;
use std::ops::Range;

use ztensor::{Layout, Tensor};

use super::Common;
use crate::args::Show;
use crate::failure::{FINE, Failure, Outcome};
use crate::human;
use crate::statistics::Statistics;

/// Longest row and most rows that are printed without a slice.
const COLUMNS: u64 = 8;
const ROWS: u64 = 8;

pub fn run(options: &Show, common: Common) -> Outcome {
    let reader = common.open(&options.file)?;
    let tensor = reader.read_object(&options.name)?;
    let mut out = std::io::BufWriter::new(anstream::stdout().lock());
    let dtype = tensor.dtype().map_or("none", |dtype| dtype.name());
    writeln!(out, "{}: {} {dtype} {}", options.name, human::shape(&tensor.shape), tensor.layout)?;
    if tensor.layout == Layout::Dense {
        show_dense(&mut out, options, &tensor)?;
    } else {
        if options.slice.is_some() {
            return Err(Failure::usage(format!("a {} tensor cannot be sliced", tensor.layout)));
        }
        for (role, array) in &tensor.components {
            writeln!(out, "\n{role}: {}, {}", array.dtype, human::bytes(array.bytes.len() as u64))?;
            let numbers = numbers(array.dtype, &array.bytes)?;
            Statistics::of(&numbers).print(&mut out)?;
        }
    }
    for (name, value) in tensor.attributes.iter().flat_map(|attributes| attributes.iter()) {
        writeln!(out, "{name} = {}", crate::json::value(value))?;
    }
    out.flush()?;
    Ok(FINE)
}

fn numbers(dtype: ztensor::DType, bytes: &[u8]) -> ztensor::Result<Vec<f64>> {
    let mut numbers = Vec::new();
    ztensor::numbers::for_each(dtype, bytes, |number| numbers.push(number))?;
    Ok(numbers)
}

fn show_dense(out: &mut impl Write, options: &Show, tensor: &Tensor<'_>) -> Result<(), Failure> {
    let Some(data) = tensor.component("data") else { return Ok(()) };
    let mut values = numbers(data.dtype, &data.bytes)?;
    let elements = tensor.shape.iter().product::<u64>().max(1) as usize;
    // Packed types may carry a few codes of padding; complex ones have two numbers each.
    let per_element = (values.len() / elements).max(1);
    values.truncate(tensor.shape.iter().product::<u64>() as usize * per_element);
    let slice = match &options.slice {
        Some(text) => parse(text, &tensor.shape)?,
        None => shortened(&tensor.shape),
    };
    let mut picked = Vec::new();
    print_values(out, &values, per_element, &tensor.shape, &slice, &mut picked)?;
    writeln!(out)?;
    let shown = if options.slice.is_some() { &picked } else { &values };
    Statistics::of(shown).print(out)?;
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
        return Err(wrong(format!("{} dimensions of a tensor that has {}", parts.len(), shape.len())));
    }
    let mut ranges = Vec::new();
    for (index, &size) in shape.iter().enumerate() {
        let bound = |text: &str, default: u64| -> Result<u64, Failure> {
            if text.is_empty() {
                return Ok(default);
            }
            let number: i64 = text.parse().map_err(|_| wrong(format!("{text:?} is not a number")))?;
            let at = if number < 0 { number + size as i64 } else { number };
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

/// Prints rows of the innermost dimension, with a line between matrices.
fn print_values(
    out: &mut impl Write,
    values: &[f64],
    per_element: usize,
    shape: &[u64],
    slice: &[Range<u64>],
    picked: &mut Vec<f64>,
) -> std::io::Result<()> {
    if slice.iter().any(|range| range.is_empty()) {
        return writeln!(out, "(empty)");
    }
    let mut index: Vec<u64> = slice.iter().map(|range| range.start).collect();
    loop {
        let flat = index.iter().zip(shape).fold(0, |flat, (&at, &size)| flat * size + at) as usize;
        let numbers = &values[flat * per_element..][..per_element];
        picked.extend_from_slice(numbers);
        match numbers {
            [re, im] => write!(out, "{re:>12.5}{im:+.5}i")?,
            _ => write!(out, "{:>13}", short(numbers[0]))?,
        }
        // Count up the innermost dimension first.
        let Some(turned) = (0..index.len()).rev().find(|&dimension| {
            index[dimension] += 1;
            let more = index[dimension] < slice[dimension].end;
            if !more {
                index[dimension] = slice[dimension].start;
            }
            more
        }) else {
            return writeln!(out);
        };
        if turned + 1 < index.len() {
            writeln!(out)?;
        }
        if turned + 2 < index.len() {
            writeln!(out)?;
        }
    }
}

fn short(number: f64) -> String {
    let magnitude = number.abs();
    match number {
        n if n.fract() == 0.0 && magnitude < 1e9 => format!("{n}"),
        n if (1e-3..1e6).contains(&magnitude) => format!("{n:.6}"),
        n if n.is_finite() => format!("{n:.5e}"),
        n => n.to_string(),
    }
}
