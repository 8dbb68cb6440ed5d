//! The numbers of quantized weights, as the libraries whose schemes they are compute them.

use half::{bf16, f16};

use super::state::BitsandbytesState;
use super::{Quantized, Scheme};
use crate::base::huge_pages::zeroed_vec;
use crate::base::parallel;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::read::Reader;
use crate::tensor::to_f64;

/// Where column `8 j + i` of AWQ's outputs is in word `j`. (format)
pub(super) const AWQ_ORDER: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

impl Quantized {
    /// The numbers of the weight, on all cores.
    pub fn dequantize(&self, reader: &Reader) -> Result<Vec<f32>> {
        let at = |error: Error| error.in_tensor(&*self.name);
        match self.scheme {
            Scheme::Gptq | Scheme::Awq => self.words(reader),
            Scheme::PackedIntegers => self.packed(reader),
            Scheme::Fp8 | Scheme::Int8 => self.scaled(reader),
            Scheme::Mxfp4 | Scheme::Mxfp6E2m3 | Scheme::Mxfp6E3m2 | Scheme::Mxfp8 => self.mx(reader),
            Scheme::Nvfp4 => self.nvfp4(reader),
            Scheme::Bitsandbytes => self.bitsandbytes(reader),
            Scheme::OptimizerState => self.optimizer(reader),
        }
        .map_err(at)
    }

    /// Type and bytes of a tensor that the scheme has.
    fn part(&self, reader: &Reader, role: &str) -> Result<(DType, Vec<u8>)> {
        let name = self.tensor(role).ok_or_else(|| Error::invalid(format!("it has no {role}")))?;
        let dtype = reader
            .get(name)?
            .dtype()
            .ok_or_else(|| Error::invalid(format!("its {role} have no element type")))?;
        Ok((dtype, reader.read(name)?))
    }

    fn floats(&self, reader: &Reader, role: &str) -> Result<(DType, Vec<f32>)> {
        let (dtype, bytes) = self.part(reader, role)?;
        let mut floats = Vec::with_capacity(bytes.len() / dtype.size().unwrap_or(1));
        to_f64::for_each(dtype, &bytes, |number| floats.push(number as f32))?;
        Ok((dtype, floats))
    }

    fn integers(&self, reader: &Reader, role: &str) -> Result<Vec<u32>> {
        let (dtype, bytes) = self.part(reader, role)?;
        match dtype {
            DType::I32 | DType::U32 => {
                Ok(bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
            }
            other => Err(Error::unsupported(format!("its {role} are {other}, which is not supported"))),
        }
    }

    /// Inner size: elements of a row.
    fn row(&self) -> usize {
        self.shape.last().map_or(0, |&row| row as usize)
    }

    /// Fills the weight row by row.
    fn rows(&self, fill: impl Fn(usize, &mut [f32]) + Sync) -> Result<Vec<f32>> {
        let mut out = zeroed_vec::<f32>(self.elements())?;
        let rows: Vec<(usize, &mut [f32])> = out.chunks_mut(self.row().max(1)).enumerate().collect();
        parallel::for_each(0, rows, |(row, out)| {
            fill(row, out);
            Ok(())
        })?;
        Ok(out)
    }

    /// Refuses tensors of other lengths than the shape asks for.
    fn expect(&self, what: &str, found: usize, expected: u64) -> Result<()> {
        match found as u64 == expected {
            true => Ok(()),
            false => Err(Error::unsupported(format!("it has {found} {what} instead of {expected}"))),
        }
    }

    /// GPTQ and AWQ: inputs by outputs.
    fn words(&self, reader: &Reader) -> Result<Vec<f32>> {
        let [inputs, outputs] = self.shape[..] else { return Err(Error::invalid("not a matrix")) };
        let (dtype, scales) = self.floats(reader, "scales")?;
        let (words, zeros) = (self.integers(reader, "words")?, self.integers(reader, "zeros")?);
        let (bits, columns) = (self.bits as usize, outputs as usize);
        let groups = inputs.div_ceil(self.group);
        self.expect("scales", scales.len(), groups * outputs)?;
        self.expect("words of zero points", zeros.len(), groups * (outputs * bits as u64 / 32))?;
        self.expect("words", words.len(), inputs * outputs * bits as u64 / 32)?;
        let order = match self.tensor("groups") {
            None => (0..inputs).map(|input| (input / self.group) as u32).collect(),
            Some(_) => self.integers(reader, "groups")?,
        };
        self.expect("groups of inputs", order.len(), inputs)?;
        if order.iter().any(|&group| u64::from(group) >= groups) {
            return Err(Error::corrupt("schemes.group", "an input of a group that there is not"));
        }
        let awq = self.scheme == Scheme::Awq;
        // What is added to a stored zero point.
        let bias = if awq { 0.0 } else { 1.0 };
        // Words of a row of zero points, and of AWQ's elements.
        let across = columns * bits / 32;
        self.rows(|input, out| {
            let group = order[input] as usize;
            for (column, out) in out.iter_mut().enumerate() {
                let place = if awq { column / 8 * 8 + AWQ_ORDER[column % 8] } else { column };
                let zero = code(&zeros[group * across..], 1, place, bits);
                let code = match awq {
                    true => code(&words[input * across..], 1, place, bits),
                    false => code(&words[column..], columns, input, bits),
                };
                let number = code as f32 - (zero as f32 + bias);
                *out = rounded(dtype, number * scales[group * columns + column]);
            }
        })
    }

    /// Integers that compressed-tensors packs: outputs by inputs, the first in the lowest bits; zero
    /// points are packed along the outputs.
    fn packed(&self, reader: &Reader) -> Result<Vec<f32>> {
        if self.tensor("groups").is_some() {
            return Err(Error::unsupported("packed integers with groups in an order of their own"));
        }
        let [outputs, inputs] = self.shape[..] else { return Err(Error::invalid("not a matrix")) };
        let (dtype, scales) = self.floats(reader, "scales")?;
        let words = self.integers(reader, "words")?;
        let bits = self.bits as usize;
        let middle = (1i32 << (bits - 1)) as f32;
        let per_row = (inputs * bits as u64).div_ceil(32);
        self.expect("words", words.len(), outputs * per_row)?;
        let groups = if self.group == 0 { 1 } else { inputs.div_ceil(self.group) };
        let one = scales.len() == 1;
        self.expect("scales", scales.len(), if one { 1 } else { outputs * groups })?;
        let zeros = match self.tensor("zeros") {
            None => None,
            Some(_) => Some(self.integers(reader, "zeros")?),
        };
        if let Some(zeros) = &zeros {
            let expected = (outputs * bits as u64).div_ceil(32) * groups;
            self.expect("words of zero points", zeros.len(), expected)?;
        }
        let group = if self.group == 0 { inputs.max(1) } else { self.group } as usize;
        let (per_row, groups) = (per_row as usize, groups as usize);
        self.rows(|row, out| {
            let words = &words[row * per_row..];
            for (column, out) in out.iter_mut().enumerate() {
                let zero = match &zeros {
                    None => middle,
                    Some(zeros) => code(&zeros[column / group..], groups, row, bits) as f32,
                };
                let scale = if one { scales[0] } else { scales[row * groups + column / group] };
                *out = rounded(dtype, (code(words, 1, column, bits) as f32 - zero) * scale);
            }
        })
    }

    /// Elements of eight bits.
    fn scaled(&self, reader: &Reader) -> Result<Vec<f32>> {
        let (_, values) = self.floats(reader, "values")?;
        let (dtype, scales) = self.floats(reader, "scales")?;
        self.expect("values", values.len(), self.elements())?;
        let row_len = self.row();
        let rows = self.elements() as usize / row_len.max(1);
        let block = self.group as usize;
        let expected = match (block, scales.len()) {
            (0, 1) => 1,
            (0, _) => rows,
            _ => rows.div_ceil(block) * row_len.div_ceil(block),
        };
        self.expect("scales", scales.len(), expected as u64)?;
        self.rows(|row, out| {
            let values = &values[row * row_len..][..out.len()];
            for (column, (out, value)) in out.iter_mut().zip(values).enumerate() {
                let scale = match (block, scales.len()) {
                    (0, 1) => scales[0],
                    (0, _) => scales[row],
                    _ => scales[row / block * row_len.div_ceil(block) + column / block],
                };
                *out = rounded(dtype, value * scale);
            }
        })
    }

    fn mx(&self, reader: &Reader) -> Result<Vec<f32>> {
        let (dtype, words) = self.part(reader, "words")?;
        let (_, scales) = self.exponents(reader)?;
        // torchao has floats of six bits in a byte each; others have no room between elements.
        let spread = self.bits == 6 && words.len() as u64 == self.elements();
        let stride = if spread { 8 } else { self.bits as usize };
        let bytes = self.elements().checked_mul(stride as u64).map(|bits| bits / 8);
        self.expect("bytes", words.len(), bytes.unwrap_or(u64::MAX))?;
        self.expect("scales", scales.len(), self.elements() / self.group)?;
        let table: Vec<f64> = match self.scheme {
            Scheme::Mxfp4 => small_floats(2, 1).collect(),
            Scheme::Mxfp6E2m3 => small_floats(2, 3).collect(),
            Scheme::Mxfp6E3m2 => small_floats(3, 2).collect(),
            _ => {
                let (codes, mut values): (Vec<u8>, _) = ((0..=255).collect(), Vec::with_capacity(256));
                to_f64::for_each(dtype, &codes, |number| values.push(number))?;
                values
            }
        };
        let (row_len, group) = (self.row(), self.group as usize);
        self.rows(|row, out| {
            for (column, out) in out.iter_mut().enumerate() {
                let at = row * row_len + column;
                let value = table[element(&words, at, stride) & (table.len() - 1)];
                // In double precision, so that no product is out of range before it is rounded.
                *out = (value * scales[at / group]) as f32;
            }
        })
    }

    /// The scales that exponents (E8M0) stand for.
    fn exponents(&self, reader: &Reader) -> Result<(DType, Vec<f64>)> {
        if self.tensor("swizzled scales").is_some() {
            return Err(Error::unsupported("its scales are in the order of a GPU's matrix unit"));
        }
        let (dtype, bytes) = self.part(reader, "scales")?;
        Ok((dtype, bytes.iter().map(|&byte| crate::tensor::scaled::exponent(byte)).collect()))
    }

    fn nvfp4(&self, reader: &Reader) -> Result<Vec<f32>> {
        if self.tensor("swizzled scales").is_some() {
            return Err(Error::unsupported("its scales are in the order of a GPU's matrix unit"));
        }
        let (_, words) = self.part(reader, "words")?;
        let (_, mut scales) = self.floats(reader, "scales")?;
        self.expect("bytes", words.len(), self.elements() / 2)?;
        self.expect("scales", scales.len(), self.elements() / self.group)?;
        // compressed-tensors divides by the scale of the tensor, others multiply.
        for (role, divides) in [("global scale", true), ("factor", false)] {
            if self.tensor(role).is_some() {
                let (_, whole) = self.floats(reader, role)?;
                self.expect("scales of the tensor", whole.len(), 1)?;
                scales.iter_mut().for_each(|scale| {
                    *scale = if divides { *scale / whole[0] } else { *scale * whole[0] };
                });
            }
        }
        let table: Vec<f32> = small_floats(2, 1).map(|value| value as f32).collect();
        let (row_len, group) = (self.row(), self.group as usize);
        self.rows(|row, out| {
            for (column, out) in out.iter_mut().enumerate() {
                let at = row * row_len + column;
                *out = table[element(&words, at, 4)] * scales[at / group];
            }
        })
    }

    fn bitsandbytes(&self, reader: &Reader) -> Result<Vec<f32>> {
        let state = match self.tensor("state") {
            None => None,
            Some(_) => Some(BitsandbytesState::parse(&self.part(reader, "state")?.1)?),
        };
        let scales = match (self.tensor("nested scales"), state.as_ref().and_then(|state| state.nested)) {
            (None, _) => self.single(reader, "scales")?,
            (Some(_), Some((block, offset))) => {
                let (dtype, codes) = self.part(reader, "scales")?;
                let (scales, table) =
                    (self.single(reader, "nested scales")?, self.single(reader, "nested table")?);
                self.expect("scales of scales", scales.len(), (codes.len() as u64).div_ceil(block))?;
                self.expect("entries of the table of scales", table.len(), 256)?;
                if dtype != DType::U8 {
                    return Err(Error::unsupported(format!("quantized scales of {dtype}")));
                }
                let number = |(at, &code): (usize, &u8)| {
                    table[usize::from(code)] * scales[at / block as usize] + offset
                };
                codes.iter().enumerate().map(number).collect()
            }
            (Some(_), None) => {
                return Err(Error::unsupported(
                    "scales that are quantized themselves, without a quant_state",
                ));
            }
        };
        let dtype = state.and_then(|state| state.dtype).unwrap_or(DType::F32);
        self.indices(reader, &scales, 4, dtype)
    }

    fn optimizer(&self, reader: &Reader) -> Result<Vec<f32>> {
        let scales = self.single(reader, "scales")?;
        self.indices(reader, &scales, self.bits as usize, DType::F32)
    }

    /// Floats that are of single precision.
    fn single(&self, reader: &Reader, role: &str) -> Result<Vec<f32>> {
        match self.floats(reader, role)? {
            (DType::F32, floats) => Ok(floats),
            (other, _) => Err(Error::unsupported(format!("its {role} are {other}, which is not supported"))),
        }
    }

    /// Entries of a table by indices of four or eight bits, times the scale of their run.
    fn indices(&self, reader: &Reader, scales: &[f32], bits: usize, dtype: DType) -> Result<Vec<f32>> {
        let (_, words) = self.part(reader, "words")?;
        let table = self.single(reader, "table")?;
        self.expect("bytes", words.len(), (self.elements().saturating_mul(bits as u64)).div_ceil(8))?;
        self.expect("scales", scales.len(), self.elements().div_ceil(self.group))?;
        self.expect("entries of the table", table.len(), 1 << bits)?;
        // The first of two is in the high bits.
        let place = |at: usize| if bits == 4 { at ^ 1 } else { at };
        let (row_len, group) = (self.row(), self.group as usize);
        self.rows(|row, out| {
            for (column, out) in out.iter_mut().enumerate() {
                let at = row * row_len + column;
                *out = rounded(dtype, table[element(&words, place(at), bits)] * scales[at / group]);
            }
        })
    }
}

/// Element `at` of a stream of `bits` bits each, the first in the lowest bits of the first byte.
pub(crate) fn element(bytes: &[u8], at: usize, bits: usize) -> usize {
    let position = at * bits;
    let low = usize::from(bytes[position / 8]);
    let high = bytes.get(position / 8 + 1).map_or(0, |&byte| usize::from(byte));
    (high << 8 | low) >> (position % 8) & ((1 << bits) - 1)
}

/// Code `at` of a stream of `bits` bits each over words that are `stride` apart.
pub(super) fn code(words: &[u32], stride: usize, at: usize, bits: usize) -> u32 {
    let position = at * bits;
    let (word, shift) = (position / 32 * stride, position % 32);
    let high = if shift + bits > 32 { u64::from(words[word + stride]) << 32 } else { 0 };
    ((high | u64::from(words[word])) >> shift) as u32 & ((1 << bits) - 1)
}

/// The values of floats without infinities and NaN, by code.
fn small_floats(exponent_bits: u32, mantissa_bits: u32) -> impl Iterator<Item = f64> {
    let bias = (1 << (exponent_bits - 1)) - 1;
    (0..1u32 << (1 + exponent_bits + mantissa_bits)).map(move |code| {
        let mantissa = f64::from(code & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
        let exponent = (code >> mantissa_bits & ((1 << exponent_bits) - 1)) as i32;
        let magnitude = match exponent {
            0 => mantissa * f64::from(1 - bias).exp2(),
            _ => (1.0 + mantissa) * f64::from(exponent - bias).exp2(),
        };
        if code >> (exponent_bits + mantissa_bits) == 1 { -magnitude } else { magnitude }
    })
}

/// A product as the type of its scale has it.
fn rounded(dtype: DType, number: f32) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(number).to_f32(),
        DType::BF16 => bf16::from_f32(number).to_f32(),
        _ => number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_of_four_and_six_bits_are_those_of_the_ocp_specification() {
        let four: Vec<f64> = small_floats(2, 1).collect();
        let positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        assert_eq!(four[..8], positive);
        assert_eq!(four[8..], positive.map(|value| -value));
        assert!(four[8].is_sign_negative());
        for (dtype, floats) in [
            (DType::F6E2M3, small_floats(2, 3).collect::<Vec<_>>()),
            (DType::F6E3M2, small_floats(3, 2).collect()),
        ] {
            // All codes, four in three bytes.
            let bytes: Vec<u8> = (0..16u32)
                .flat_map(|quad| {
                    let word = (0..4).fold(0, |word, place| word | (4 * quad + place) << (6 * place));
                    word.to_le_bytes().into_iter().take(3)
                })
                .collect();
            let mut expected = Vec::new();
            to_f64::for_each(dtype, &bytes, |number| expected.push(number)).unwrap();
            assert_eq!(floats, expected);
            assert!((0..64).all(|at| element(&bytes, at, 6) == at));
        }
    }

    #[test]
    fn codes_may_straddle_words() {
        // 32 codes of three bits in three words, and the same with a column between.
        let stream = (0..32u128).fold(0u128, |stream, at| stream | (at * 5 % 8) << (3 * at));
        let words: Vec<u32> = (0..3).map(|word| (stream >> (32 * word)) as u32).collect();
        let apart: Vec<u32> = words.iter().flat_map(|&word| [word, !0]).collect();
        for at in 0..32 {
            assert_eq!(code(&words, 1, at, 3), (at as u32 * 5) % 8);
            assert_eq!(code(&apart, 2, at, 3), (at as u32 * 5) % 8);
        }
    }
}
