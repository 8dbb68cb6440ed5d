//! One tensor at a time: what its values look like, and how well they compress.

use std::borrow::Cow;

use serde_json::{Value as Json, json};
use ztensor::gguf::{self, GgmlType};
use ztensor::{Array, Layout, Object, Reader, Tensor};

use crate::statistics::{Statistics, Steps};
use crate::values::{Values, block_statistics};
use crate::{describe, human};

/// Bins of a histogram; values beyond this many standard deviations are only counted.
const STEPS: Steps = Steps { count: 64, within: 5.0 };

/// Bytes of a component that are compressed to estimate the rest, and from how many places of it
/// they are taken. Neighbouring rows resemble each other, which is why a large number of small places
/// estimates better than a few large ones; the ends of a tensor are atypical (rare tokens, padding) and left out.
const SAMPLE: usize = 1 << 20;
const PLACES: usize = 64;

/// What the header says of one tensor: all but its values.
pub fn described(name: &str, object: &Object) -> Json {
    let roles: Vec<_> = object.components.iter().map(|(role, _)| human::escaped(role)).collect();
    json!({
        "name": human::escaped(name),
        "layer": human::escaped(layer(name)),
        "shape": object.shape.as_slice(),
        "dtype": describe::dtype(object).line(),
        "layout": human::escaped(object.layout.name()),
        "components": roles,
        "encoding": describe::encoding(object).line(),
        "elements": object.elements().unwrap_or(0),
        "bytes": object.byte_len(),
        "stored": object.stored_len(),
    })
}

/// The part of a model that a tensor belongs to: its name up to the first number
/// that stands alone, or without its last word where there is none.
fn layer(name: &str) -> &str {
    let mut end = 0;
    for piece in name.split_inclusive(['.', '/']) {
        let word = piece.trim_end_matches(['.', '/']);
        if !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit()) {
            return &name[..end + word.len()];
        }
        end += piece.len();
    }
    name.rfind(['.', '/']).filter(|end| *end > 0).map_or(name, |end| &name[..end])
}

/// What the page is told of one tensor, whose values are read.
pub fn tensor(reader: &Reader, name: &str, object: &Object, threads: usize) -> ztensor::Result<Json> {
    reader.verify(name)?; // a picture of damaged values would mislead
    let tensor = reader.read_object(name)?;
    let (statistics, note) = match statistics(&tensor, threads)? {
        Ok(statistics) => (Some(statistics), None),
        Err(note) => (None, Some(note)),
    };
    let (sampled, compressed) = estimate(&tensor, threads);
    let mut described = described(name, object);
    described["values"] = statistics.map_or(Json::Null, |statistics| values(&statistics));
    described["note"] = note.into();
    described["sample"] = json!({"bytes": sampled, "compressed": compressed});
    Ok(described)
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
        let sample = sample(array, columns.saturating_mul(kind.size() as u64));
        if sample.is_empty() {
            continue;
        }
        let rows = sample.len() as u64 / kind.size() as u64 / columns;
        let whole = rows * columns * kind.size() as u64 == sample.len() as u64;
        let shape = if columns > 1 && rows > 0 && whole { vec![rows, columns] } else { Vec::new() };
        let options = z4ai::Options { kind, threads, shape, ..z4ai::Options::default() };
        // What does not get smaller is stored as it is.
        let compressed = z4ai::compress(&sample, &options).map_or(sample.len(), |frame| frame.len());
        total.0 += sample.len() as u64;
        total.1 += compressed.min(sample.len()) as u64;
    }
    total
}

/// All of a small component; of a large one, evenly spread pieces that are whole rows of `row`
/// bytes where a row is not too much.
fn sample<'a>(array: &'a Array<'_>, row: u64) -> Cow<'a, [u8]> {
    let bytes = &*array.bytes;
    if bytes.len() <= SAMPLE {
        return Cow::Borrowed(bytes);
    }
    let unit = usize::try_from(row).ok().filter(|row| *row <= SAMPLE / PLACES).unwrap_or(16);
    let len = SAMPLE / PLACES / unit * unit;
    // The middle of each of as many equal parts as there are places.
    let start = |place: usize| {
        let middle = (2 * place as u128 + 1) * (bytes.len() - len) as u128 / (2 * PLACES as u128);
        middle as usize / unit * unit
    };
    let mut taken = Vec::with_capacity(PLACES * len);
    (0..PLACES).for_each(|place| taken.extend_from_slice(&bytes[start(place)..start(place) + len]));
    Cow::Owned(taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ztensor::DType;

    #[test]
    fn layers_end_at_the_first_number() {
        for (name, expected) in [
            ("model.layers.12.mlp.up.weight", "model.layers.12"),
            ("blk.0.attn_q.weight", "blk.0"),
            ("encoder/layer/3/kernel", "encoder/layer/3"),
            ("lm_head.weight", "lm_head"),
            ("a.b.c", "a.b"),
            ("norm", "norm"),
            ("0", "0"),
            (".x", ".x"),
            ("", ""),
            ("é.7.w", "é.7"),
        ] {
            assert_eq!(layer(name), expected, "{name}");
        }
    }

    #[test]
    fn samples_are_whole_rows_and_not_from_the_ends() {
        for (len, row) in [(10, 1), (SAMPLE, 12), (SAMPLE + 1, 1), (9_999_990, 30), (8 << 20, 1 << 22)] {
            let bytes: Vec<u8> = (0..len).map(|at| (at / row % 251) as u8).collect();
            let array = Array::new(DType::U8, bytes.as_slice());
            let taken = sample(&array, row as u64);
            assert!(taken.len() <= SAMPLE && taken.len() * 2 >= len.min(SAMPLE), "{len} {row}");
            if len > SAMPLE && row < SAMPLE / PLACES {
                // Every row is of one byte's value, and complete.
                assert!(taken.chunks(row).all(|row| row.iter().all(|byte| *byte == row[0])), "{len} {row}");
            }
        }
        assert!(sample(&Array::new(DType::U8, &[][..]), 1).is_empty());
    }

    /// Rows at both ends that compress far better than the others must not decide the estimate.
    #[test]
    fn the_estimate_is_within_two_points_of_the_whole() {
        let (rows, columns) = (40_000u64, 128u64);
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 24) as f32 - 0.5
        };
        let mut numbers = Vec::new();
        for row in 0..rows {
            let scale = if !(1000..39_000).contains(&row) { 0.0 } else { 0.02 + (row % 7) as f32 * 0.01 };
            numbers.extend((0..columns).map(|_| (next() + next() + next()) * scale));
        }
        let tensor = Tensor::from_slice(&[rows, columns][..], &numbers).unwrap();
        let (sampled, compressed) = estimate(&tensor, 1);
        let bytes = &tensor.component("data").unwrap().bytes;
        let shape = vec![rows, columns];
        let options = z4ai::Options { kind: z4ai::Kind::F32, shape, ..z4ai::Options::default() };
        let whole = z4ai::compress(bytes, &options).unwrap().len() as f64 / bytes.len() as f64;
        let estimated = compressed as f64 / sampled as f64;
        assert!((estimated - whole).abs() < 0.02, "{estimated} of {whole}");
    }
}
