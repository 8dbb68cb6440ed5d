//! `quantized_group` tensors as numbers.
//!
//! Elements, in row-major order, are unsigned codes of `bits` bits. `packing` says how many of them
//! one word of `packed_weight` holds, `8_per_i32` for example; the first is in the lowest bits.
//! Each run of `group_size` elements has one scale and one zero: `(code - zero) * scale`.

use std::ops::Range;

use crate::base::huge_pages::zeroed_vec;
use crate::base::parallel;
use crate::catalog::elements;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::to_f64;
use crate::tensor::{Array, Tensor};

/// Elements that one thread decodes at a time, at least.
const MIN_JOB: usize = 1 << 18;

/// The numbers of a `quantized_group` tensor, on all cores.
pub(crate) fn dequantize(tensor: &Tensor<'_>) -> Result<Vec<f32>> {
    let group = Group::of(tensor)?;
    let mut out = zeroed_vec::<f32>(group.count as u64)?;
    let groups_per_part = MIN_JOB.div_ceil(group.size);
    let parts: Vec<_> = out.chunks_mut(groups_per_part * group.size).collect();
    parallel::for_each(0, parts.into_iter().enumerate().collect(), |(index, part)| {
        let first = index * groups_per_part;
        for (run, out) in part.chunks_mut(group.size).enumerate() {
            let number = first + run;
            let (scale, zero) = (group.scales[number], group.zeros[number]);
            group.codes(number * group.size..number * group.size + out.len(), |place, code| {
                out[place] = (code as f32 - zero) * scale;
            });
        }
        Ok(())
    })?;
    Ok(out)
}

/// A tensor whose parameters fit its components.
struct Group<'a> {
    count: usize,
    size: usize,
    bits: usize,
    per_word: usize,
    /// Bytes of a word.
    width: usize,
    words: &'a [u8],
    scales: Vec<f32>,
    zeros: Vec<f32>,
}

impl<'a> Group<'a> {
    fn of(tensor: &'a Tensor<'_>) -> Result<Group<'a>> {
        let count = elements(&tensor.shape)
            .and_then(|count| usize::try_from(count).ok())
            .ok_or_else(|| Error::invalid("more elements than this machine can hold"))?;
        let bits = parameter(tensor, "bits", 1..17)?;
        let size = parameter(tensor, "group_size", 1..usize::MAX)?;
        let packing = tensor.attribute("packing").and_then(|value| value.as_text());
        let packed = tensor.require("packed_weight")?;
        let width = packed.dtype.bits() as usize / 8;
        let word = packed.dtype.name();
        let per_word = packing
            .and_then(|packing| packing.strip_suffix(word)?.strip_suffix("_per_")?.parse::<usize>().ok())
            .filter(|&per_word| per_word > 0 && per_word.saturating_mul(bits) <= 8 * width)
            .filter(|_| matches!(packed.dtype, DType::I32 | DType::U32 | DType::U8 | DType::I8 | DType::I64))
            .ok_or_else(|| {
                let shown = packing.unwrap_or("nothing");
                Error::unsupported(format!(
                    "its packing is {shown}: {bits}-bit codes in {word} words are known as N_per_{word} only"
                ))
            })?;
        let group = Group {
            count,
            size,
            bits,
            per_word,
            width,
            words: &packed.bytes,
            scales: floats(tensor.require("scales")?)?,
            zeros: floats(tensor.require("zeros")?)?,
        };
        let groups = count.div_ceil(size);
        let found = [packed.bytes.len() / width, group.scales.len(), group.zeros.len()];
        let expected = [count.div_ceil(per_word), groups, groups];
        if found != expected {
            return Err(Error::unsupported(format!(
                "its words, scales and zeros are {found:?} in number; {count} elements in groups of {size} \
                 take {expected:?}"
            )));
        }
        Ok(group)
    }

    /// Calls `each` with the place in `range`, and the code, of every element there.
    fn codes(&self, range: Range<usize>, mut each: impl FnMut(usize, u64)) {
        let mask = (1 << self.bits) - 1;
        let mut element = range.start;
        while element < range.end {
            let (index, skip) = (element / self.per_word, element % self.per_word);
            let mut word = [0; 8];
            word[..self.width].copy_from_slice(&self.words[index * self.width..][..self.width]);
            let mut rest = u64::from_le_bytes(word) >> (skip * self.bits);
            for _ in skip..self.per_word.min(skip + range.end - element) {
                each(element - range.start, rest & mask);
                rest >>= self.bits;
                element += 1;
            }
        }
    }
}

fn parameter(tensor: &Tensor<'_>, name: &str, allowed: Range<usize>) -> Result<usize> {
    let value = tensor.attribute(name).and_then(|value| value.as_int());
    let value = value.and_then(|value| usize::try_from(value).ok()).filter(|value| allowed.contains(value));
    value.ok_or_else(|| Error::unsupported(format!("its attribute {name} is missing or out of range")))
}

fn floats(array: &Array<'_>) -> Result<Vec<f32>> {
    let mut floats = Vec::new();
    to_f64::for_each(array.dtype, &array.bytes, |number| floats.push(number as f32))?;
    Ok(floats)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Layout;
    use crate::tensor::value::{Attributes, Value};

    fn tensor(shape: &[u64], bits: i64, size: i64, packing: &str, words: &[u32]) -> Tensor<'static> {
        let groups = shape.iter().product::<u64>().div_ceil(size as u64);
        let scales: Vec<f32> = (0..groups).map(|group| 0.5 + group as f32).collect();
        let zeros: Vec<f32> = (0..groups).map(|group| group as f32).collect();
        let bytes = |floats: &[f32]| floats.iter().flat_map(|float| float.to_le_bytes()).collect::<Vec<_>>();
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let components = [
            ("packed_weight".into(), Array::new(DType::I32, words)),
            ("scales".into(), Array::new(DType::F32, bytes(&scales))),
            ("zeros".into(), Array::new(DType::F32, bytes(&zeros))),
        ];
        let attributes: Attributes = [
            ("bits".to_owned(), Value::from(bits)),
            ("group_size".to_owned(), Value::from(size)),
            ("packing".to_owned(), Value::from(packing)),
        ]
        .into_iter()
        .collect();
        Tensor::new(shape, Layout::QuantizedGroup, components, Some(attributes)).unwrap()
    }

    #[test]
    fn codes_are_taken_from_the_lowest_bits_on() {
        let found = dequantize(&tensor(&[2, 6], 4, 4, "8_per_i32", &[0x7654_3210, 0xfedc_ba98])).unwrap();
        let expected = (0..12).map(|code: i32| {
            let group = (code / 4) as f32;
            (code as f32 - group) * (0.5 + group)
        });
        assert_eq!(found, expected.collect::<Vec<_>>());
    }

    #[test]
    fn words_with_bits_to_spare() {
        // Ten codes of three bits; the two highest bits are unused.
        let word = (0..10).fold(0u32, |word, place| word | (place % 8) << (3 * place)) | 0xc000_0000;
        let found = dequantize(&tensor(&[9], 3, 16, "10_per_i32", &[word])).unwrap();
        assert_eq!(found, [0, 1, 2, 3, 4, 5, 6, 7, 0].map(|code| code as f32 * 0.5));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for (bits, size, packing, words) in [
            (4, 4, "4_per_i32", 2),  // too few words for that packing
            (4, 4, "9_per_i32", 2),  // more codes than a word has room for
            (4, 4, "8_per_u8", 2),   // not the type of the words
            (4, 4, "rows", 2),       // no such packing
            (40, 4, "8_per_i32", 2), // no such codes
            (4, 4, "8_per_i32", 3),  // a word too many
        ] {
            let tensor = tensor(&[16], bits, size, packing, &vec![0; words]);
            assert!(dequantize(&tensor).is_err(), "{bits} {size} {packing}");
        }
        let mut no_groups = tensor(&[16], 4, 4, "8_per_i32", &[0; 2]);
        dequantize(&no_groups).unwrap();
        no_groups.attributes.as_mut().unwrap().insert("group_size".to_owned(), Value::from(0i64));
        assert!(dequantize(&no_groups).is_err());
    }
}
