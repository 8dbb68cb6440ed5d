//! Quantization schemes that libraries keep as several plain tensors of a file: packed integers or
//! floats of few bits in one, their scales and zero points in others.
//!
//! [`find`] recognises them by names, types and shapes; [`Quantized::dequantize`] makes numbers of them,
//! bit for bit as the library does whose scheme it is.
//!
//! | scheme | tensors | values |
//! |---|---|---|
//! | GPTQ | `qweight`, `qzeros`, `scales`, perhaps `g_idx` | (q - (zero + 1)) × scale |
//! | AWQ | `qweight`, `qzeros`, `scales` | (q - zero) × scale |
//! | packed integers (compressed-tensors) | `weight_packed`, `weight_scale`, `weight_shape` | (q - 2^(bits - 1)) × scale |
//! | fp8 | `weight`, `weight_scale` or `weight_scale_inv` | value × scale |
//! | MXFP4 | `…_blocks`, `…_scales` | value × 2^(scale - 127) |
//! | NVFP4 (compressed-tensors) | `weight_packed`, `weight_scale`, `weight_global_scale` | value × (scale / global scale) |
//! | NF4, FP4 (bitsandbytes) | `weight`, `weight.absmax`, `weight.quant_map` | `table[q]` × absmax |
//!
//! Products are rounded to the type of the scales, as these libraries compute them.

mod dequantize;

use crate::catalog::{Object, elements};
use crate::dtype::DType;
use crate::error::Result;
use crate::read::Reader;

/// A quantization scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Scheme {
    /// Words of eight inputs of one output each.
    Gptq,
    /// Words of eight outputs of one input each, in an order of their own.
    Awq,
    /// Words of inputs, as compressed-tensors packs integers.
    PackedIntegers,
    /// Floats of eight bits, with scales per tensor, row or block.
    Fp8,
    /// Floats of four bits, 32 to an exponent.
    Mxfp4,
    /// Floats of four bits, 16 to a scale of eight bits.
    Nvfp4,
    /// Indices of four bits into a table, with a scale per run of elements.
    Bitsandbytes,
}

impl Scheme {
    /// What the scheme is called.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Gptq => "GPTQ",
            Scheme::Awq => "AWQ",
            Scheme::PackedIntegers => "packed integers",
            Scheme::Fp8 => "FP8",
            Scheme::Mxfp4 => "MXFP4",
            Scheme::Nvfp4 => "NVFP4",
            Scheme::Bitsandbytes => "bitsandbytes",
        }
    }
}

/// A weight that is kept as several tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quantized {
    /// The name of the weight, which no tensor needs to have.
    pub name: String,
    /// How it is quantized.
    pub scheme: Scheme,
    /// The shape of the weight, as [`dequantize`](Quantized::dequantize) returns it: for GPTQ and AWQ
    /// inputs by outputs.
    pub shape: Vec<u64>,
    /// Bits of a quantized element.
    pub bits: u32,
    /// Elements that share a scale along the inputs; 0 where that is all of them.
    pub group: u64,
    /// The tensors that it is made of, by role.
    pub tensors: Vec<(&'static str, String)>,
    /// Bytes of these tensors in the file.
    pub stored_len: u64,
}

impl Quantized {
    /// Elements of the weight.
    pub fn elements(&self) -> u64 {
        elements(&self.shape).unwrap_or(u64::MAX)
    }

    /// Bits per weight in the file, scales and zero points included.
    pub fn bits_per_weight(&self) -> f64 {
        self.stored_len as f64 * 8.0 / self.elements().max(1) as f64
    }

    /// The tensor of a role.
    fn tensor(&self, role: &str) -> Option<&str> {
        self.tensors.iter().find(|(known, _)| *known == role).map(|(_, name)| name.as_str())
    }
}

/// The weights of a file that are quantized by a scheme of several tensors, in the order of the file.
pub fn find(reader: &Reader) -> Result<Vec<Quantized>> {
    let mut found = Vec::new();
    for (name, object) in reader.objects() {
        let file = File { reader };
        let one = match object.dtype() {
            Some(DType::I32 | DType::U32) => match name.strip_suffix("qweight") {
                Some(stem) => file.words(stem, object),
                None => name.strip_suffix("_packed").and_then(|weight| file.packed(weight, object)),
            },
            Some(DType::U8) => (name.strip_suffix("_packed"))
                .and_then(|weight| file.nvfp4(weight, object))
                .or_else(|| name.strip_suffix("_blocks").and_then(|weight| file.mxfp4(weight, object)))
                .or_else(|| file.bitsandbytes(name, object)),
            Some(DType::F8E4M3FN | DType::F8E5M2) => file.fp8(name, object),
            _ => None,
        };
        found.extend(one);
    }
    Ok(found)
}

/// What recognising needs of a file.
struct File<'a> {
    reader: &'a Reader,
}

/// A shape of two dimensions.
fn matrix(object: &Object) -> Option<(u64, u64)> {
    match object.shape[..] {
        [rows, columns] if rows > 0 && columns > 0 => Some((rows, columns)),
        _ => None,
    }
}

fn is_float(object: &Object) -> bool {
    matches!(object.dtype(), Some(DType::F16 | DType::BF16 | DType::F32))
}

impl File<'_> {
    fn get(&self, name: &str) -> Option<&Object> {
        self.reader.find(name)
    }

    fn made(
        &self,
        name: &str,
        scheme: Scheme,
        shape: &[u64],
        (bits, group): (u32, u64),
        tensors: Vec<(&'static str, String)>,
    ) -> Option<Quantized> {
        elements(shape).filter(|&count| count > 0)?;
        let stored = tensors.iter().filter_map(|(_, name)| self.get(name)).map(Object::stored_len);
        let stored_len = stored.fold(0, u64::saturating_add);
        let (name, shape) = (name.to_owned(), shape.to_vec());
        Some(Quantized { name, scheme, shape, bits, group, tensors, stored_len })
    }

    /// GPTQ and AWQ.
    fn words(&self, stem: &str, words: &Object) -> Option<Quantized> {
        let named = |suffix: &str| format!("{stem}{suffix}");
        let (scales, zeros) = (self.get(&named("scales"))?, self.get(&named("qzeros"))?);
        let ((rows, columns), (groups, outputs)) = (matrix(words)?, matrix(scales)?);
        let (zero_groups, zero_columns) = matrix(zeros)?;
        if !is_float(scales) || zeros.dtype() != Some(DType::I32) || zero_groups != groups {
            return None;
        }
        // Zero points are packed along the outputs by both.
        let bits = zero_columns.checked_mul(32)? / outputs;
        if !matches!(bits, 2 | 4 | 8) || zero_columns.checked_mul(32)? != outputs.checked_mul(bits)? {
            return None;
        }
        let mut tensors =
            vec![("words", named("qweight")), ("scales", named("scales")), ("zeros", named("qzeros"))];
        let (scheme, inputs) = if columns == outputs {
            if self.get(&named("g_idx")).is_some_and(|groups| groups.dtype() == Some(DType::I32)) {
                tensors.push(("groups", named("g_idx")));
            }
            (Scheme::Gptq, rows.checked_mul(32 / bits)?)
        } else if columns == zero_columns && bits == 4 {
            (Scheme::Awq, rows)
        } else {
            return None;
        };
        let weight = named("weight");
        self.made(&weight, scheme, &[inputs, outputs], (bits as u32, inputs.div_ceil(groups)), tensors)
    }

    /// Integers that compressed-tensors packs.
    fn packed(&self, weight: &str, words: &Object) -> Option<Quantized> {
        let (scale, shape) = (format!("{weight}_scale"), format!("{weight}_shape"));
        let scales = self.get(&scale)?;
        let stated = self.get(&shape)?;
        // Two numbers: anything else is not worth reading.
        if stated.elements() != Some(2) || !is_float(scales) {
            return None;
        }
        let (rows, columns) = matrix(words)?;
        let mut numbers = Vec::new();
        let bytes = self.reader.read(&shape).ok()?;
        crate::tensor::to_f64::for_each(stated.dtype()?, &bytes, |number| numbers.push(number)).ok()?;
        let [outputs, inputs] = numbers[..] else { return None };
        let inputs = (1.0..1e15).contains(&inputs).then_some(inputs as u64)?;
        let bits = columns.checked_mul(32)? / inputs;
        let bits = if bits >= 8 { 8 } else { 4 };
        if outputs != rows as f64 || inputs.checked_mul(bits)?.div_ceil(32) != columns {
            return None;
        }
        let groups = match scales.shape[..] {
            [first, groups] if first == rows && groups > 0 => groups,
            [1] | [] => 1,
            [first] if first == rows => 1,
            _ => return None,
        };
        let group = if groups == 1 { 0 } else { inputs.div_ceil(groups) };
        let mut tensors = vec![("words", format!("{weight}_packed")), ("scales", scale), ("shape", shape)];
        for (role, suffix) in [("zeros", "_zero_point"), ("groups", "_g_idx")] {
            let name = format!("{weight}{suffix}");
            if self.get(&name).is_some() {
                tensors.push((role, name));
            }
        }
        self.made(weight, Scheme::PackedIntegers, &[rows, inputs], (bits as u32, group), tensors)
    }

    fn nvfp4(&self, weight: &str, packed: &Object) -> Option<Quantized> {
        let (scale, global) = (format!("{weight}_scale"), format!("{weight}_global_scale"));
        let scales = self.get(&scale)?;
        let ((rows, bytes), (scale_rows, groups)) = (matrix(packed)?, matrix(scales)?);
        let inputs = bytes.checked_mul(2)?;
        let whole = scale_rows == rows && inputs.is_multiple_of(groups);
        let global_object = self.get(&global)?;
        if scales.dtype() != Some(DType::F8E4M3FN) || !whole || global_object.elements() != Some(1) {
            return None;
        }
        let tensors =
            vec![("words", format!("{weight}_packed")), ("scales", scale), ("global scale", global)];
        self.made(weight, Scheme::Nvfp4, &[rows, inputs], (4, inputs / groups), tensors)
    }

    fn mxfp4(&self, weight: &str, blocks: &Object) -> Option<Quantized> {
        let scale = format!("{weight}_scales");
        let scales = self.get(&scale)?;
        let (&bytes, outer) = blocks.shape.split_last()?;
        if scales.dtype() != Some(DType::U8) || &scales.shape[..] != outer || bytes == 0 {
            return None;
        }
        let (&groups, outer) = outer.split_last()?;
        let mut shape = outer.to_vec();
        let group = bytes.checked_mul(2)?;
        shape.push(groups.checked_mul(group)?);
        let tensors = vec![("words", format!("{weight}_blocks")), ("scales", scale)];
        self.made(weight, Scheme::Mxfp4, &shape, (4, group), tensors)
    }

    fn fp8(&self, weight: &str, values: &Object) -> Option<Quantized> {
        let scale = ["_scale_inv", "_scale"].map(|suffix| format!("{weight}{suffix}"));
        let (scale, scales) =
            scale.into_iter().find_map(|name| self.get(&name).map(|found| (name, found)))?;
        if !is_float(scales) {
            return None;
        }
        let group = match (&values.shape[..], &scales.shape[..]) {
            (_, [] | [1]) => 0,
            (&[rows, _], &[outer] | &[outer, 1]) if outer == rows => 0,
            (&[rows, columns], &[outer, inner]) => block(rows, columns, outer, inner)?,
            _ => return None,
        };
        let tensors = vec![("values", weight.to_owned()), ("scales", scale)];
        self.made(weight, Scheme::Fp8, &values.shape, (8, group), tensors)
    }

    fn bitsandbytes(&self, weight: &str, packed: &Object) -> Option<Quantized> {
        let (scale, table) = (format!("{weight}.absmax"), format!("{weight}.quant_map"));
        let (scales, map) = (self.get(&scale)?, self.get(&table)?);
        let (count, groups) = (packed.elements()?.checked_mul(2)?, scales.elements().filter(|&n| n > 0)?);
        if map.elements() != Some(16) || map.dtype() != Some(DType::F32) || count == 0 {
            return None;
        }
        // Runs have a power of two elements, so that the number of scales says how many.
        let group = count.div_ceil(groups).checked_next_power_of_two()?;
        if count.div_ceil(group) != groups {
            return None;
        }
        let mut tensors = vec![("words", weight.to_owned()), ("scales", scale), ("table", table)];
        for (role, suffix) in [("nested scales", ".nested_absmax"), ("nested table", ".nested_quant_map")] {
            let name = format!("{weight}{suffix}");
            if self.get(&name).is_some() {
                tensors.push((role, name));
            }
        }
        self.made(weight, Scheme::Bitsandbytes, &[count], (4, group), tensors)
    }
}

/// The side of the square blocks that `outer` by `inner` scales cut a matrix into.
fn block(rows: u64, columns: u64, outer: u64, inner: u64) -> Option<u64> {
    (outer > 0 && inner > 0).then_some(())?;
    let sides = [128, 64, 32, 256, 512, 16];
    let fits = |side: &u64| rows.div_ceil(*side) == outer && columns.div_ceil(*side) == inner;
    sides.into_iter().find(fits)
}
