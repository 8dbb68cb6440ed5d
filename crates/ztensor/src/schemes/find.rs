//! Quantized weights, recognised by names, types and shapes of their tensors.

use super::state::{BitsandbytesState, MAX_TEXT, TorchaoState};
use super::{Quantized, Scheme};
use crate::catalog::{Object, elements};
use crate::dtype::DType;
use crate::error::Result;
use crate::read::Reader;
use crate::tensor::to_f64;

/// Elements to a scale of the microscaling (MX) formats. (format)
const MX_BLOCK: u64 = 32;

/// Bits of packed integers, likely ones first: few columns fit several.
const PACKED_BITS: [u64; 8] = [4, 8, 2, 3, 5, 6, 7, 1];

/// The weights of a file that are quantized by a scheme of several tensors, in the order of the file.
pub fn find(reader: &Reader) -> Result<Vec<Quantized>> {
    let file = File { reader };
    Ok(reader.objects().filter_map(|(name, object)| file.weight(name, object)).collect())
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

/// Exponents: as bytes, or of their own type.
fn is_exponent(object: &Object) -> bool {
    matches!(object.dtype(), Some(DType::U8 | DType::F8E8M0))
}

impl File<'_> {
    /// The weight whose elements a tensor holds.
    fn weight(&self, name: &str, object: &Object) -> Option<Quantized> {
        let dtype = object.dtype()?;
        if let Some(found) = name.strip_suffix("_qdata").and_then(|stem| self.torchao(stem, object)) {
            return Some(found);
        }
        match dtype {
            DType::I32 | DType::U32 => match name.strip_suffix("qweight") {
                Some(stem) => self.words(stem, object),
                None => self.packed(name.strip_suffix("_packed")?, object),
            },
            DType::U8 => (name.strip_suffix("_packed"))
                .and_then(|weight| self.nvfp4(weight, object).or_else(|| self.mx_packed(weight, object)))
                .or_else(|| self.mx_blocks(name.strip_suffix("_blocks")?, object))
                .or_else(|| self.modelopt(name, object))
                .or_else(|| self.bitsandbytes(name, object))
                .or_else(|| self.optimizer(name, object)),
            DType::F8E4M3FN | DType::F8E5M2 => {
                self.mx_typed(name, object, dtype).or_else(|| self.scaled(name, object, Scheme::Fp8))
            }
            DType::F4E2M1 | DType::F6E2M3 | DType::F6E3M2 => self.mx_typed(name, object, dtype),
            DType::I8 => self.scaled(name, object, Scheme::Int8),
            _ => None,
        }
    }

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
        if !matches!(bits, 2 | 3 | 4 | 8) || zero_columns.checked_mul(32)? != outputs.checked_mul(bits)? {
            return None;
        }
        let mut tensors =
            vec![("words", named("qweight")), ("scales", named("scales")), ("zeros", named("qzeros"))];
        let (scheme, inputs) = if columns == outputs {
            if self.get(&named("g_idx")).is_some_and(|groups| groups.dtype() == Some(DType::I32)) {
                tensors.push(("groups", named("g_idx")));
            }
            let stored_bits = rows.checked_mul(32).filter(|stored| stored.is_multiple_of(bits))?;
            (Scheme::Gptq, stored_bits / bits)
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
        to_f64::for_each(stated.dtype()?, &bytes, |number| numbers.push(number)).ok()?;
        let [outputs, inputs] = numbers[..] else { return None };
        let inputs = (1.0..1e15).contains(&inputs).then_some(inputs as u64)?;
        let fits = |bits: &u64| inputs.checked_mul(*bits).is_some_and(|bits| bits.div_ceil(32) == columns);
        let bits = PACKED_BITS.into_iter().find(fits)?;
        if outputs != rows as f64 {
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

    /// NVFP4 of compressed-tensors.
    fn nvfp4(&self, weight: &str, packed: &Object) -> Option<Quantized> {
        let (scale, global) = (format!("{weight}_scale"), format!("{weight}_global_scale"));
        let (shape, group) = self.sixteenths(packed, self.get(&scale)?)?;
        self.get(&global).filter(|global| global.elements() == Some(1))?;
        let tensors =
            vec![("words", format!("{weight}_packed")), ("scales", scale), ("global scale", global)];
        self.made(weight, Scheme::Nvfp4, &shape, (4, group), tensors)
    }

    /// NVFP4 of ModelOpt, whose second scale is a factor.
    fn modelopt(&self, weight: &str, packed: &Object) -> Option<Quantized> {
        let (scale, second) = (format!("{weight}_scale"), format!("{weight}_scale_2"));
        let (shape, group) = self.sixteenths(packed, self.get(&scale)?)?;
        self.get(&second).filter(|second| second.elements() == Some(1))?;
        let tensors = vec![("words", weight.to_owned()), ("scales", scale), ("factor", second)];
        self.made(weight, Scheme::Nvfp4, &shape, (4, group), tensors)
    }

    /// Shape and group of floats of four bits with scales of E4M3.
    fn sixteenths(&self, packed: &Object, scales: &Object) -> Option<([u64; 2], u64)> {
        let ((rows, bytes), (scale_rows, groups)) = (matrix(packed)?, matrix(scales)?);
        let inputs = bytes.checked_mul(2)?;
        let whole = scale_rows == rows && inputs.is_multiple_of(groups);
        (scales.dtype() == Some(DType::F8E4M3FN) && whole).then_some(([rows, inputs], inputs / groups))
    }

    /// MXFP4 of gpt-oss.
    fn mx_blocks(&self, weight: &str, blocks: &Object) -> Option<Quantized> {
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

    /// MXFP4 and MXFP6 of compressed-tensors, whose six bits are E2M3.
    fn mx_packed(&self, weight: &str, packed: &Object) -> Option<Quantized> {
        let scale = format!("{weight}_scale");
        let scales = self.get(&scale).filter(|scales| is_exponent(scales))?;
        let ((rows, bytes), (scale_rows, groups)) = (matrix(packed)?, matrix(scales)?);
        let (scheme, bits) = match (bytes.is_multiple_of(groups), bytes / groups) {
            (true, 16) => (Scheme::Mxfp4, 4),
            (true, 24) => (Scheme::Mxfp6E2m3, 6),
            _ => return None,
        };
        let tensors = vec![("words", format!("{weight}_packed")), ("scales", scale)];
        let shape = [rows, groups.checked_mul(MX_BLOCK)?];
        (scale_rows == rows).then_some(())?;
        self.made(weight, scheme, &shape, (bits, MX_BLOCK), tensors)
    }

    /// Floats of few bits that have a type, with exponents.
    fn mx_typed(&self, weight: &str, values: &Object, dtype: DType) -> Option<Quantized> {
        let scale = ["_scale", "_scales"].map(|suffix| format!("{weight}{suffix}"));
        let found =
            |name: String| self.get(&name).filter(|found| is_exponent(found)).map(|found| (name, found));
        let (scale, scales) = scale.into_iter().find_map(found)?;
        let ((&inputs, outer), (&groups, scale_outer)) =
            (values.shape.split_last()?, scales.shape.split_last()?);
        if outer != scale_outer || Some(inputs) != groups.checked_mul(MX_BLOCK) {
            return None;
        }
        let scheme = match dtype {
            DType::F4E2M1 => Scheme::Mxfp4,
            DType::F6E2M3 => Scheme::Mxfp6E2m3,
            DType::F6E3M2 => Scheme::Mxfp6E3m2,
            _ => Scheme::Mxfp8,
        };
        let tensors = vec![("words", weight.to_owned()), ("scales", scale)];
        self.made(weight, scheme, &values.shape, (dtype.bits(), MX_BLOCK), tensors)
    }

    /// Elements of eight bits, with scales per tensor, row or, for floats, block.
    fn scaled(&self, weight: &str, values: &Object, scheme: Scheme) -> Option<Quantized> {
        let scale = ["_scale_inv", "_scale"].map(|suffix| format!("{weight}{suffix}"));
        let scale = scale.into_iter().find(|name| self.get(name).is_some())?;
        // Integers with zero points are not of this scheme.
        if scheme == Scheme::Int8 && self.get(&format!("{weight}_zero_point")).is_some() {
            return None;
        }
        self.scaled_by(weight, (weight.to_owned(), values), scale, scheme)
    }

    fn scaled_by(
        &self,
        weight: &str,
        (name, values): (String, &Object),
        scale: String,
        scheme: Scheme,
    ) -> Option<Quantized> {
        let scales = self.get(&scale).filter(|scales| is_float(scales))?;
        let group = match (&values.shape[..], &scales.shape[..]) {
            (_, [] | [1]) => 0,
            (&[rows, _], &[outer] | &[outer, 1]) if outer == rows => 0,
            (_, [1, 1]) => 0,
            (&[rows, columns], &[outer, inner]) if scheme == Scheme::Fp8 => {
                block(rows, columns, outer, inner)?
            }
            _ => return None,
        };
        let tensors = vec![("values", name), ("scales", scale)];
        self.made(weight, scheme, &values.shape, (8, group), tensors)
    }

    /// Tensors that torchao takes apart: `LAYER._weight_qdata`, `LAYER._weight_scale`, and a
    /// description in the metadata of the file.
    fn torchao(&self, stem: &str, values: &Object) -> Option<Quantized> {
        let weight = match stem.rsplit_once("._") {
            Some((layer, parameter)) => format!("{layer}.{parameter}"),
            None => stem.strip_prefix('_')?.to_owned(),
        };
        let text = self.reader.attributes().get(&weight)?.as_text()?;
        let state = (text.len() as u64 <= MAX_TEXT).then(|| TorchaoState::parse(text).ok()).flatten()?;
        let (name, scale) = (format!("{stem}_qdata"), format!("{stem}_scale"));
        let scales = self.get(&scale)?;
        // Scales of another order are listed, and not used.
        let role = if state.swizzled { "swizzled scales" } else { "scales" };
        let mut tensors = vec![("words", name.clone()), (role, scale.clone())];
        let dtype = values.dtype()?;
        let (scheme, bits) = match (&*state.class, &*state.elements, dtype) {
            ("Float8Tensor", _, DType::F8E4M3FN | DType::F8E5M2) => {
                return self.scaled_by(&weight, (name, values), scale, Scheme::Fp8);
            }
            ("MXTensor", _, DType::F8E4M3FN | DType::F8E5M2) => (Scheme::Mxfp8, 8),
            ("MXTensor", "float4_e2m1fn_x2", DType::U8) => (Scheme::Mxfp4, 4),
            // One to a byte.
            ("MXTensor", "fp6_e2m3", DType::U8) => (Scheme::Mxfp6E2m3, 8),
            ("MXTensor", "fp6_e3m2", DType::U8) => (Scheme::Mxfp6E3m2, 8),
            ("NVFP4Tensor", _, DType::U8) => (Scheme::Nvfp4, 4),
            _ => return None,
        };
        let (&bytes, outer) = values.shape.split_last()?;
        let mut shape = outer.to_vec();
        shape.push(bytes.checked_mul(8)? / u64::from(bits));
        if scheme == Scheme::Nvfp4 {
            (scales.dtype() == Some(DType::F8E4M3FN)).then_some(())?;
            let factor = format!("{stem}_per_tensor_scale");
            if self.get(&factor).is_some_and(|factor| factor.elements() == Some(1)) {
                tensors.push(("factor", factor));
            }
        } else if !is_exponent(scales) {
            return None;
        }
        (state.block > 0 && shape.last()?.is_multiple_of(state.block)).then_some(())?;
        let mut found = self.made(&weight, scheme, &shape, (bits, state.block), tensors)?;
        if matches!(scheme, Scheme::Mxfp6E2m3 | Scheme::Mxfp6E3m2) {
            found.bits = 6;
        }
        Some(found)
    }

    fn bitsandbytes(&self, weight: &str, packed: &Object) -> Option<Quantized> {
        let (scale, table) = (format!("{weight}.absmax"), format!("{weight}.quant_map"));
        let (scales, map) = (self.get(&scale)?, self.get(&table)?);
        let (count, groups) = (packed.elements()?.checked_mul(2)?, scales.elements().filter(|&n| n > 0)?);
        if map.elements() != Some(16) || map.dtype() != Some(DType::F32) || count == 0 {
            return None;
        }
        let group = run(count, groups)?;
        let mut tensors = vec![("words", weight.to_owned()), ("scales", scale), ("table", table)];
        for (role, suffix) in [("nested scales", ".nested_absmax"), ("nested table", ".nested_quant_map")] {
            let name = format!("{weight}{suffix}");
            if self.get(&name).is_some() {
                tensors.push((role, name));
            }
        }
        let state = ["nf4", "fp4"].map(|kind| format!("{weight}.quant_state.bitsandbytes__{kind}"));
        let state = state.into_iter().find(|name| self.get(name).is_some());
        let mut shape = vec![count];
        if let Some(name) = state
            && let Some(stated) = self.stated(&name)
        {
            // An odd number of elements leaves half a byte.
            if elements(&stated.shape).is_some_and(|stated| stated.div_ceil(2) == count / 2)
                && stated.block == group
            {
                shape = stated.shape;
                tensors.push(("state", name));
            }
        }
        self.made(weight, Scheme::Bitsandbytes, &shape, (4, group), tensors)
    }

    /// The JSON in a tensor of bytes.
    fn stated(&self, name: &str) -> Option<BitsandbytesState> {
        let object = self.get(name).filter(|object| object.dtype() == Some(DType::U8))?;
        object.elements().filter(|&len| len <= MAX_TEXT)?;
        BitsandbytesState::parse(&self.reader.read(name).ok()?).ok()
    }

    /// Moments of bitsandbytes (`state1`, `absmax1`, `qmap1`) and torchao (`codes`, `scale`, `qmap`).
    fn optimizer(&self, name: &str, codes: &Object) -> Option<Quantized> {
        let own = |moment: char| {
            let stem = name.strip_suffix(moment)?.strip_suffix("state")?;
            Some((name, format!("{stem}absmax{moment}"), format!("{stem}qmap{moment}")))
        };
        let other = || {
            let stem = name.strip_suffix(".codes")?;
            Some((stem, format!("{stem}.scale"), format!("{stem}.qmap")))
        };
        let (weight, scale, table) = own('1').or_else(|| own('2')).or_else(other)?;
        let (scales, map) = (self.get(&scale)?, self.get(&table)?);
        if scales.dtype() != Some(DType::F32) || map.dtype() != Some(DType::F32) {
            return None;
        }
        let (shape, bits) = match map.elements()? {
            256 => (codes.shape.to_vec(), 8),
            16 => (vec![codes.elements()?.checked_mul(2)?], 4),
            _ => return None,
        };
        let group = run(elements(&shape)?, scales.elements().filter(|&n| n > 0)?)?;
        let tensors = vec![("words", name.to_owned()), ("scales", scale), ("table", table)];
        self.made(weight, Scheme::OptimizerState, &shape, (bits, group), tensors)
    }
}

/// Elements to a scale. Runs have a power of two of them, so that the number of scales says how many.
fn run(count: u64, scales: u64) -> Option<u64> {
    let group = count.div_ceil(scales).checked_next_power_of_two()?;
    (count.div_ceil(group) == scales).then_some(group)
}

/// The side of the square blocks that `outer` by `inner` scales cut a matrix into.
fn block(rows: u64, columns: u64, outer: u64, inner: u64) -> Option<u64> {
    (outer > 0 && inner > 0).then_some(())?;
    let sides = [128, 64, 32, 256, 512, 16];
    let fits = |side: &u64| rows.div_ceil(*side) == outer && columns.div_ceil(*side) == inner;
    sides.into_iter().find(fits)
}
