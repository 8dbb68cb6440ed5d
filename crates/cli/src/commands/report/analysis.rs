//! One tensor at a time: what its values look like, and how well they compress.

use serde_json::{Value as Json, json};
use ztensor::gguf::{self, GgmlType};
use ztensor::{Array, Layout, Object, Reader, Tensor};

use crate::statistics::{Statistics, Steps};
use crate::values::{Values, block_statistics};
use crate::{describe, fold, human};

/// Steps of a histogram; numbers farther out than so many deviations are only counted.
const STEPS: Steps = Steps { count: 64, within: 5.0 };

/// Bytes of a component that are compressed to estimate the rest, and in how many
/// places of it they lie.
const SAMPLE: usize = 1 << 20;
const PLACES: usize = 4;

/// What the page is told of one tensor.
pub fn tensor(reader: &Reader, name: &str, object: &Object, threads: usize) -> ztensor::Result<Json> {
    reader.verify(name)?; // a picture of damaged values would mislead
    let tensor = reader.read_object(name)?;
    let (statistics, note) = match statistics(&tensor, threads)? {
        Ok(statistics) => (Some(statistics), None),
        Err(note) => (None, Some(note)),
    };
    let (sampled, compressed) = estimate(&tensor, threads);
    let roles: Vec<_> = object.components.iter().map(|(role, _)| human::escaped(role)).collect();
    Ok(json!({
        "name": human::escaped(name),
        "layer": human::escaped(fold::layer(name)),
        "shape": object.shape.as_slice(),
        "dtype": describe::dtype(object).line(),
        "layout": human::escaped(object.layout.name()),
        "components": roles,
        "encoding": describe::encoding(object).line(),
        "elements": object.elements().unwrap_or(0),
        "bytes": object.byte_len(),
        "stored": object.stored_len(),
        "values": statistics.map(|statistics| values(&statistics)),
        "note": note,
        "sample": {"bytes": sampled, "compressed": compressed},
    }))
}

fn values(statistics: &Statistics) -> Json {
    let Statistics { min, max, mean, deviation, histogram, .. } = statistics;
    let known = |number: &f64| statistics.has_range().then_some(*number);
    json!({
        "count": statistics.count,
        "zeros": statistics.zeros,
        "nan": statistics.nan,
        "infinite": statistics.infinite,
        "min": known(min),
        "max": known(max),
        "mean": known(mean),
        "deviation": known(deviation),
        "histogram": statistics.has_range().then(|| json!({
            "low": histogram.low,
            "high": histogram.high,
            "below": histogram.below,
            "above": histogram.above,
            "counts": histogram.counts,
        })),
    })
}

/// The values that a tensor stands for, or why they are not known.
fn statistics(tensor: &Tensor<'_>, threads: usize) -> ztensor::Result<Result<Statistics, String>> {
    let elements = ztensor::object::elements(&tensor.shape).unwrap_or(0);
    let found = match &tensor.layout {
        Layout::Dense => match tensor.component("data") {
            Some(data) => Values::of_elements(data, elements).statistics(STEPS, threads)?,
            None => return Ok(Err("It has no data.".to_owned())),
        },
        Layout::SparseCsr | Layout::SparseCoo => match tensor.component("values") {
            Some(stored) => {
                let stored = Values::new(stored);
                let mut found = stored.statistics(STEPS, threads)?;
                // What is not stored is zero.
                let absent = elements.saturating_mul(stored.per_element()).saturating_sub(found.count);
                found.count += absent;
                found.zeros += absent;
                found
            }
            None => return Ok(Err("It has no values.".to_owned())),
        },
        Layout::QuantizedGroup => match tensor.dequantize() {
            Ok(dense) => Values::new(&Array::from_slice(&dense.data)).statistics(STEPS, threads)?,
            Err(error) => return Ok(Err(format!("Its values are not known: {error}."))),
        },
        layout => {
            let kind = GgmlType::from_layout_name(layout.name());
            let turned = tensor.attribute(gguf::ORDER_ATTRIBUTE).is_some();
            match (kind, tensor.component("blocks")) {
                (Some(kind), Some(blocks)) if !turned => {
                    block_statistics(kind, &blocks.bytes, STEPS, threads)?
                }
                _ => return Ok(Err("Values of this layout are not decoded.".to_owned())),
            }
        }
    };
    Ok(Ok(found))
}

/// Bytes that were tried, and what z4ai makes of them.
fn estimate(tensor: &Tensor<'_>, threads: usize) -> (u64, u64) {
    let row = tensor.shape.split_first().map_or(1, |(_, inner)| inner.iter().product::<u64>().max(1));
    let mut total = (0, 0);
    for (_, array) in &tensor.components {
        let kind = array.dtype.codec_kind();
        let columns = if tensor.layout == Layout::Dense { row } else { 1 };
        for piece in sample(array, columns.saturating_mul(kind.size() as u64)) {
            let rows = piece.len() as u64 / kind.size() as u64 / columns;
            let shape = if columns > 1 && rows > 0 { vec![rows, columns] } else { Vec::new() };
            let options = z4ai::Options { kind, threads, shape, ..z4ai::Options::default() };
            // What does not get smaller is stored as it is.
            let compressed = z4ai::compress(piece, &options).map_or(piece.len(), |frame| frame.len());
            total.0 += piece.len() as u64;
            total.1 += compressed.min(piece.len()) as u64;
        }
    }
    total
}

/// All of a small component; of a large one, pieces evenly spread that are whole
/// rows of `row` bytes where a few rows are not too much.
fn sample<'a>(array: &'a Array<'_>, row: u64) -> Vec<&'a [u8]> {
    let bytes = &*array.bytes;
    if bytes.len() <= SAMPLE {
        return if bytes.is_empty() { Vec::new() } else { vec![bytes] };
    }
    let unit = usize::try_from(row).ok().filter(|row| *row <= SAMPLE / PLACES).unwrap_or(16);
    let len = SAMPLE / PLACES / unit * unit;
    let apart = (bytes.len() - len) / (PLACES - 1) / unit * unit;
    (0..PLACES).map(|place| &bytes[place * apart..place * apart + len]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ztensor::DType;

    #[test]
    fn samples_are_whole_rows_from_the_first_to_the_last() {
        for (len, row) in [(10, 1), (SAMPLE, 12), (SAMPLE + 1, 1), (9_999_990, 30), (8 << 20, 1 << 22)] {
            let bytes = vec![0u8; len];
            let array = Array::new(DType::U8, bytes.as_slice());
            let pieces = sample(&array, row);
            let taken: usize = pieces.iter().map(|piece| piece.len()).sum();
            assert!(taken <= SAMPLE && taken * 2 >= len.min(SAMPLE), "{len} {row}: {taken}");
            for piece in &pieces {
                let start = piece.as_ptr() as usize - bytes.as_ptr() as usize;
                let unit = if row > (SAMPLE / PLACES) as u64 { 16 } else { row as usize };
                assert!(len <= SAMPLE || start.is_multiple_of(unit) && piece.len().is_multiple_of(unit));
            }
        }
        assert!(sample(&Array::new(DType::U8, &[][..]), 1).is_empty());
    }
}
