//! `zt.quant_group/1` and `zt.mx/1` tensors as numbers: elements that share a scale with the others of
//! their group along one axis.
//!
//! Elements and scales are in row-major order; the scales have the tensor's shape, with the number of
//! groups in place of the size of the axis.

use std::ops::Range;

use crate::base::huge_pages::zeroed_vec;
use crate::base::parallel;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::format::zt2::layout::{Mx, QuantGroup, ZeroPoint};
use crate::schemes;
use crate::tensor::to_f64;
use crate::tensor::{Array, Tensor};

/// Elements that one thread decodes at a time, at least.
const MIN_JOB: usize = 1 << 16;

/// Which scale an element has.
struct Groups {
    along: usize,
    /// Elements between two neighbours along the axis.
    inner: usize,
    group: usize,
    per_channel: bool,
}

impl Groups {
    fn new(shape: &[u64], axis: usize, group: u64, per_channel: bool) -> Result<Groups> {
        let size = |number: u64| usize::try_from(number).map_err(|_| Error::limit("the tensor is too large"));
        let inner = shape[axis + 1..].iter().try_fold(1u64, |product, &size| product.checked_mul(size));
        let inner = inner.ok_or_else(|| Error::limit("the tensor is too large"))?;
        Ok(Groups { along: size(shape[axis])?, inner: size(inner)?, group: size(group)?, per_channel })
    }

    /// The number of an element's scale.
    fn scale(&self, element: usize) -> usize {
        let row = element / self.inner;
        let (outer, at) = (row / self.along, row % self.along);
        if self.per_channel {
            return at;
        }
        let groups = self.along / self.group;
        (outer * groups + at / self.group) * self.inner + element % self.inner
    }
}

/// Fills the elements of a tensor, on all cores.
fn fill(count: u64, each: impl Fn(Range<usize>, &mut [f32]) -> Result<()> + Sync) -> Result<Vec<f32>> {
    let mut out = zeroed_vec::<f32>(count)?;
    let parts: Vec<(usize, &mut [f32])> = out.chunks_mut(MIN_JOB).enumerate().collect();
    parallel::for_each(0, parts, |(index, part)| each(index * MIN_JOB..index * MIN_JOB + part.len(), part))?;
    Ok(out)
}

fn floats(array: &Array<'_>) -> Result<Vec<f32>> {
    let mut floats = Vec::with_capacity(array.bytes.len() / array.dtype.size().unwrap_or(1));
    match array.dtype {
        DType::F8E8M0 => floats.extend(array.bytes.iter().map(|&byte| exponent(byte) as f32)),
        dtype => to_f64::for_each(dtype, &array.bytes, |number| floats.push(number as f32))?,
    }
    Ok(floats)
}

/// 2^(byte - 127); 255 is NaN.
pub(crate) fn exponent(byte: u8) -> f64 {
    match byte {
        0xff => f64::NAN,
        byte => f64::from(i32::from(byte) - 127).exp2(),
    }
}

/// Packed codes.
struct Codes<'a> {
    words: &'a [u8],
    parameters: QuantGroup,
}

impl Codes<'_> {
    fn get(&self, index: usize) -> f32 {
        let QuantGroup { bits, width, per_word, lowest_first, signed, .. } = self.parameters;
        let (width, per_word) = (width as usize, per_word as usize);
        let mut word = [0; 8];
        word[..width].copy_from_slice(&self.words[index / per_word * width..][..width]);
        let place = index % per_word;
        let place = if lowest_first { place } else { per_word - 1 - place } as u32;
        let code = u64::from_le_bytes(word) >> (place * bits) & ((1 << bits) - 1);
        match signed {
            // Only codes as wide as their word have a sign, and they have eight bits.
            true => f32::from(code as u8 as i8),
            false => code as f32,
        }
    }
}

/// The numbers of a `zt.quant_group/1` tensor.
pub(crate) fn dequantize_group(tensor: &Tensor<'_>) -> Result<Vec<f32>> {
    let parameters = QuantGroup::of(tensor)?;
    let groups = Groups::new(&tensor.shape, parameters.axis, parameters.group, parameters.per_channel)?;
    let scales = floats(tensor.require("scales")?)?;
    let codes = Codes { words: &tensor.require("data")?.bytes, parameters };
    let zeros: Vec<f32> = match parameters.zero {
        ZeroPoint::None => vec![0.0],
        ZeroPoint::Implied(value) => vec![value as f32],
        ZeroPoint::Plain => floats(tensor.require("zeros")?)?,
        ZeroPoint::Packed => {
            let unsigned = QuantGroup { signed: false, ..parameters };
            let packed = Codes { words: &tensor.require("zeros")?.bytes, parameters: unsigned };
            (0..scales.len()).map(|index| packed.get(index)).collect()
        }
    };
    let one_zero = matches!(parameters.zero, ZeroPoint::None | ZeroPoint::Implied(_));
    fill(crate::catalog::elements(&tensor.shape).unwrap_or(0), |range, out| {
        for (element, out) in range.zip(out) {
            let scale = groups.scale(element);
            let zero = zeros[if one_zero { 0 } else { scale }];
            *out = (codes.get(element) - zero) * scales[scale];
        }
        Ok(())
    })
}

/// The numbers of a `zt.mx/1` tensor.
pub(crate) fn dequantize_mx(tensor: &Tensor<'_>) -> Result<Vec<f32>> {
    let parameters = Mx::of(tensor)?;
    let groups = Groups::new(&tensor.shape, parameters.axis, parameters.block, false)?;
    let scales: Vec<f64> = tensor.require("scales")?.bytes.iter().map(|&byte| exponent(byte)).collect();
    let data = tensor.require("data")?;
    // An element of four, six or eight bits, all of which are few.
    let bits = data.dtype.bits() as usize;
    let mut values = Vec::with_capacity(256);
    for code in 0..1usize << bits {
        // Several are decoded where one is wanted.
        let mut first = None;
        to_f64::for_each(data.dtype, &[code as u8, 0, 0], |number| first = first.or(Some(number)))?;
        let factor = if data.dtype == DType::I8 { 1.0 / 64.0 } else { 1.0 };
        let value = first.unwrap_or(f64::NAN) * factor;
        // The zero of four bits has no sign.
        values.push(if value == 0.0 && data.dtype == DType::F4E2M1 { 0.0 } else { value });
    }
    fill(crate::catalog::elements(&tensor.shape).unwrap_or(0), |range, out| {
        for (element, out) in range.zip(out) {
            let code = schemes::element(&data.bytes, element, bits);
            *out = (scales[groups.scale(element)] * values[code]) as f32;
        }
        Ok(())
    })
}
