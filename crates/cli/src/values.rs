//! The numbers in a tensor's bytes, a few at a time: a tensor as `f64` would take
//! up to 32 times its own memory.

use ztensor::gguf::{self, GgmlType};
use ztensor::{Array, DType, Result, numbers};

use crate::statistics::{Statistics, Steps};

/// Bytes that hold a whole number of elements of every type.
const GROUP: usize = 24;
/// Groups decoded at a time.
const GROUPS: usize = 1024;
/// Numbers that a thread takes at a time; a whole number of groups of every type.
const PART: u64 = (GROUP * GROUPS * 32) as u64;

/// The numbers in an array.
#[derive(Clone, Copy)]
pub struct Values<'a> {
    dtype: DType,
    bytes: &'a [u8],
    count: u64,
}

impl<'a> Values<'a> {
    /// All of them.
    pub fn new(array: &'a Array<'_>) -> Values<'a> {
        let (dtype, bytes) = (array.dtype, &*array.bytes);
        let count = (bytes.len() as u64).saturating_mul(8) / u64::from(number_bits(dtype));
        Values { dtype, bytes, count }
    }

    /// Those of the first `elements` elements: packed types may carry padding.
    pub fn of_elements(array: &'a Array<'_>, elements: u64) -> Values<'a> {
        let all = Values::new(array);
        let count = elements.saturating_mul(all.per_element()).min(all.count);
        Values { count, ..all }
    }

    /// How many there are.
    #[cfg(not(target_family = "wasm"))]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Numbers per element: two for complex types.
    pub fn per_element(&self) -> u64 {
        u64::from(self.dtype.bits() / number_bits(self.dtype))
    }

    /// The numbers `start..start + len`, as far as they are there, appended to `out`.
    pub fn read(&self, start: u64, len: u64, out: &mut Vec<f64>) -> Result<()> {
        let end = start.saturating_add(len).min(self.count);
        if start >= end {
            return Ok(());
        }
        let per_group = (GROUP * 8) as u64 / u64::from(number_bits(self.dtype));
        let first = (start / per_group) as usize * GROUP;
        let last = (end.div_ceil(per_group) as usize * GROUP).min(self.bytes.len());
        let (mut skip, mut take) = (start % per_group, end - start);
        numbers::for_each(self.dtype, &self.bytes[first..last], |number| {
            if skip > 0 {
                skip -= 1;
            } else if take > 0 {
                take -= 1;
                out.push(number);
            }
        })
    }

    /// Calls `each` with all of them, a few thousand at a time.
    #[cfg(not(target_family = "wasm"))]
    pub fn for_chunks(&self, each: &mut dyn FnMut(&[f64])) -> Result<()> {
        self.for_range(0, self.count, each)
    }

    /// Calls `each` with the numbers `start..end`, a few thousand at a time.
    fn for_range(&self, mut start: u64, end: u64, each: &mut dyn FnMut(&[f64])) -> Result<()> {
        let step = ((GROUP * GROUPS * 8) as u64) / u64::from(number_bits(self.dtype));
        let mut chunk = Vec::new();
        while start < end.min(self.count) {
            chunk.clear();
            self.read(start, step.min(end - start), &mut chunk)?;
            each(&chunk);
            start += step;
        }
        Ok(())
    }

    /// What they look like.
    pub fn statistics(&self, steps: Steps, threads: usize) -> Result<Statistics> {
        let parts = self.count.div_ceil(PART);
        Statistics::of(steps, threads, parts as usize, |part, each| {
            let start = part as u64 * PART;
            self.for_range(start, start + PART, each)
        })
    }

    /// Calls `each` with the numbers of two arrays of one type and length, side by side.
    #[cfg(not(target_family = "wasm"))]
    pub fn for_pairs(&self, other: &Values<'_>, each: &mut dyn FnMut(f64, f64)) -> Result<()> {
        let mut start = 0;
        let mut theirs = Vec::new();
        let mut failed = Ok(());
        self.for_chunks(&mut |ours| {
            theirs.clear();
            if failed.is_ok() {
                failed = other.read(start, ours.len() as u64, &mut theirs);
            }
            start += ours.len() as u64;
            ours.iter().zip(&theirs).for_each(|(a, b)| each(*a, *b));
        })?;
        failed
    }
}

/// What the numbers in GGUF blocks look like, dequantized a few blocks at a time.
pub fn block_statistics(kind: GgmlType, blocks: &[u8], steps: Steps, threads: usize) -> Result<Statistics> {
    let (bytes, elements) = (kind.block_bytes() as usize, kind.block_elements() as usize);
    let at_once = (GROUP * GROUPS / elements.max(1)).max(1);
    let per_part = (PART as usize / elements.max(1)).max(1) * bytes;
    let parts: Vec<&[u8]> = blocks.chunks(per_part).collect();
    Statistics::of(steps, threads, parts.len(), |part, each| {
        let (mut floats, mut numbers) = (Vec::new(), Vec::new());
        for some in parts[part].chunks(at_once * bytes) {
            floats.clear();
            floats.resize(some.len() / bytes * elements, 0f32);
            gguf::dequantize(kind, some, &mut floats, 1)?;
            numbers.clear();
            numbers.extend(floats.iter().copied().map(f64::from));
            each(&numbers);
        }
        Ok(())
    })
}

fn number_bits(dtype: DType) -> u32 {
    match dtype {
        DType::C32 | DType::C64 | DType::C128 => dtype.bits() / 2,
        _ => dtype.bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_range_of_any_type_is_the_same_part_of_the_whole() {
        for dtype in DType::ALL {
            let bytes: Vec<u8> = (0..96u8).map(|byte| byte.wrapping_mul(37)).collect();
            let array = Array::new(dtype, bytes.as_slice());
            let mut whole = Vec::new();
            numbers::for_each(dtype, &bytes, |number| whole.push(number)).unwrap();
            let values = Values::new(&array);
            assert_eq!(values.count(), whole.len() as u64, "{dtype}");
            for (start, len) in [(0, 1), (1, 3), (2, 1000), (5, 0), (values.count(), 4)] {
                let mut part = Vec::new();
                values.read(start, len, &mut part).unwrap();
                let end = (start + len).min(values.count()) as usize;
                let expected = &whole[start as usize..end.max(start as usize)];
                let bits = |numbers: &[f64]| numbers.iter().map(|n| n.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&part), bits(expected), "{dtype} {start} {len}");
            }
        }
    }

    #[test]
    fn chunks_cover_everything_once() {
        let numbers: Vec<f32> = (0..100_000).map(|n| n as f32).collect();
        let array = Array::from_slice(&numbers);
        let mut seen = Vec::new();
        Values::new(&array).for_chunks(&mut |chunk| seen.extend_from_slice(chunk)).unwrap();
        assert!(seen.iter().enumerate().all(|(index, n)| *n == index as f64) && seen.len() == 100_000);
        let mut pairs = 0;
        let values = Values::new(&array);
        values.for_pairs(&values, &mut |a, b| pairs += usize::from(a == b)).unwrap();
        assert_eq!(pairs, 100_000);
    }
}
