//! The numbers of quantized weights, as the libraries whose schemes they are compute them.

use half::{bf16, f16};

use super::{Quantized, Scheme};
use crate::base::huge_pages::zeroed_vec;
use crate::base::parallel;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::read::Reader;
use crate::tensor::to_f64;

/// Where column `8 j + i` of AWQ's outputs is in word `j`. (format)
const AWQ_ORDER: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// The values of floats of four bits (E2M1). (format)
const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

impl Quantized {
    /// The numbers of the weight, on all cores.
    pub fn dequantize(&self, reader: &Reader) -> Result<Vec<f32>> {
        let at = |error: Error| error.in_tensor(&*self.name);
        match self.scheme {
            Scheme::Gptq | Scheme::Awq => self.words(reader),
            Scheme::PackedIntegers => self.packed(reader),
            Scheme::Fp8 => self.fp8(reader),
            Scheme::Mxfp4 => self.mxfp4(reader),
            Scheme::Nvfp4 => self.nvfp4(reader),
            Scheme::Bitsandbytes => self.bitsandbytes(reader),
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
        let (per_word, mask) = (32 / bits, (1u32 << bits) - 1);
        let groups = inputs.div_ceil(self.group);
        self.expect("scales", scales.len(), groups * outputs)?;
        self.expect("words of zero points", zeros.len(), groups * outputs / per_word as u64)?;
        self.expect("words", words.len(), inputs * outputs / per_word as u64)?;
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
        self.rows(|input, out| {
            let group = order[input] as usize;
            for (column, out) in out.iter_mut().enumerate() {
                let place = if awq { AWQ_ORDER[column % 8] } else { column % per_word };
                let zero = zeros[group * (columns / per_word) + column / per_word] >> (place * bits) & mask;
                let code = match awq {
                    true => words[input * (columns / 8) + column / 8] >> (place * 4) & 15,
                    false => words[input / per_word * columns + column] >> (input % per_word * bits) & mask,
                };
                let number = code as f32 - (zero as f32 + bias);
                *out = rounded(dtype, number * scales[group * columns + column]);
            }
        })
    }

    /// Integers that compressed-tensors packs: outputs by inputs, the first in the lowest bits.
    fn packed(&self, reader: &Reader) -> Result<Vec<f32>> {
        if self.tensor("zeros").is_some() || self.tensor("groups").is_some() {
            return Err(Error::unsupported("packed integers with zero points or an order of their own"));
        }
        let [outputs, inputs] = self.shape[..] else { return Err(Error::invalid("not a matrix")) };
        let (dtype, scales) = self.floats(reader, "scales")?;
        let words = self.integers(reader, "words")?;
        let bits = self.bits as usize;
        let (per_word, mask, middle) = (32 / bits, (1u32 << bits) - 1, (1i32 << (bits - 1)) as f32);
        let per_row = inputs.div_ceil(per_word as u64);
        self.expect("words", words.len(), outputs * per_row)?;
        let groups = if self.group == 0 { 1 } else { inputs.div_ceil(self.group) };
        let one = scales.len() == 1;
        self.expect("scales", scales.len(), if one { 1 } else { outputs * groups })?;
        let group = if self.group == 0 { inputs.max(1) } else { self.group } as usize;
        self.rows(|row, out| {
            for (column, out) in out.iter_mut().enumerate() {
                let word = words[row * per_row as usize + column / per_word];
                let number = (word >> (column % per_word * bits) & mask) as f32 - middle;
                let scale = if one { scales[0] } else { scales[row * groups as usize + column / group] };
                *out = rounded(dtype, number * scale);
            }
        })
    }

    fn fp8(&self, reader: &Reader) -> Result<Vec<f32>> {
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

    fn mxfp4(&self, reader: &Reader) -> Result<Vec<f32>> {
        let ((_, words), (_, scales)) = (self.part(reader, "words")?, self.part(reader, "scales")?);
        self.expect("bytes", words.len(), self.elements() / 2)?;
        self.expect("scales", scales.len(), self.elements() / self.group)?;
        let (row_len, group) = (self.row(), self.group as usize);
        self.rows(|row, out| {
            for (column, out) in out.iter_mut().enumerate() {
                let at = row * row_len + column;
                let exponent = i32::from(scales[at / group]) - 127;
                // In double precision, so that no product is out of range before it is rounded.
                *out = (f64::from(E2M1[nibble(&words, at)]) * f64::from(exponent).exp2()) as f32;
            }
        })
    }

    fn nvfp4(&self, reader: &Reader) -> Result<Vec<f32>> {
        let (_, words) = self.part(reader, "words")?;
        let (_, scales) = self.floats(reader, "scales")?;
        let (_, global) = self.floats(reader, "global scale")?;
        self.expect("bytes", words.len(), self.elements() / 2)?;
        self.expect("scales", scales.len(), self.elements() / self.group)?;
        self.expect("global scales", global.len(), 1)?;
        let scales: Vec<f32> = scales.iter().map(|scale| scale / global[0]).collect();
        let (row_len, group) = (self.row(), self.group as usize);
        self.rows(|row, out| {
            for (column, out) in out.iter_mut().enumerate() {
                let at = row * row_len + column;
                *out = E2M1[nibble(&words, at)] * scales[at / group];
            }
        })
    }

    fn bitsandbytes(&self, reader: &Reader) -> Result<Vec<f32>> {
        if self.tensor("nested scales").is_some() {
            return Err(Error::unsupported("scales that are quantized themselves"));
        }
        let (_, words) = self.part(reader, "words")?;
        let (dtype, scales) = self.floats(reader, "scales")?;
        if dtype != DType::F32 {
            return Err(Error::unsupported(format!("scales of {dtype}")));
        }
        let (_, table) = self.floats(reader, "table")?;
        self.expect("bytes", words.len(), self.elements() / 2)?;
        self.expect("scales", scales.len(), self.elements().div_ceil(self.group))?;
        self.expect("entries of the table", table.len(), 16)?;
        let mut out = zeroed_vec::<f32>(self.elements())?;
        for (at, out) in out.iter_mut().enumerate() {
            // The first of two is in the high bits.
            *out = table[nibble(&words, at ^ 1)] * scales[at / self.group as usize];
        }
        Ok(out)
    }
}

/// Number `at` of four bits, the first in the low bits of the first byte.
fn nibble(bytes: &[u8], at: usize) -> usize {
    usize::from(bytes[at / 2] >> (at % 2 * 4) & 15)
}

/// A product as the type of its scale has it.
fn rounded(dtype: DType, number: f32) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(number).to_f32(),
        DType::BF16 => bf16::from_f32(number).to_f32(),
        _ => number,
    }
}
