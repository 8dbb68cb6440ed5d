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
//! | packed integers (compressed-tensors) | `weight_packed`, `weight_scale`, `weight_shape`, perhaps `weight_zero_point` | (q - zero) × scale, where zero is 2^(bits - 1) unless stored |
//! | fp8, int8 | `weight`, `weight_scale` or `weight_scale_inv` | value × scale |
//! | MXFP4 (gpt-oss) | `…_blocks`, `…_scales` | value × 2^(scale - 127) |
//! | MXFP4, MXFP6 (compressed-tensors) | `weight_packed`, `weight_scale` of E8M0 | the same |
//! | MXFP4, MXFP6, MXFP8 | `weight` of such a type, `weight_scale` of E8M0 | the same |
//! | NVFP4 (compressed-tensors) | `weight_packed`, `weight_scale`, `weight_global_scale` | value × (scale / global scale) |
//! | NVFP4 (ModelOpt) | `weight`, `weight_scale`, `weight_scale_2` | value × (scale × second scale) |
//! | fp8, MXFP4, MXFP6, MXFP8, NVFP4 (torchao) | `_weight_qdata`, `_weight_scale`, perhaps `_weight_per_tensor_scale`, and metadata | as above |
//! | NF4, FP4 (bitsandbytes) | `weight`, `weight.absmax`, `weight.quant_map`, `weight.quant_state.…`, perhaps `weight.nested_absmax` and `weight.nested_quant_map` | `table[q]` × absmax |
//! | optimizer state (bitsandbytes) | `state1`, `absmax1`, `qmap1`; `state2`, … | `table[q]` × absmax |
//! | optimizer state (torchao) | `….codes`, `….scale`, `….qmap` | `table[q]` × scale |
//!
//! Products are rounded to the type of the scales, as these libraries compute them, those of
//! bitsandbytes to the type that the weight had before.

mod dequantize;
mod find;
mod objects;
mod state;

use crate::catalog::elements;

pub(crate) use dequantize::element;
pub use find::find;
pub use objects::Regrouped;

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
    /// Integers of eight bits, with scales per tensor or row.
    Int8,
    /// Floats of four bits (E2M1), 32 to an exponent.
    Mxfp4,
    /// Floats of six bits with three of mantissa (E2M3), 32 to an exponent.
    Mxfp6E2m3,
    /// Floats of six bits with two of mantissa (E3M2), 32 to an exponent.
    Mxfp6E3m2,
    /// Floats of eight bits (E4M3 or E5M2), 32 to an exponent.
    Mxfp8,
    /// Floats of four bits, 16 to a scale of eight bits.
    Nvfp4,
    /// Indices of four bits into a table, with a scale per run of elements.
    Bitsandbytes,
    /// Moments of an optimizer as indices into a table, with a scale per run of elements.
    OptimizerState,
}

impl Scheme {
    /// What the scheme is called.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Gptq => "GPTQ",
            Scheme::Awq => "AWQ",
            Scheme::PackedIntegers => "packed integers",
            Scheme::Fp8 => "FP8",
            Scheme::Int8 => "INT8",
            Scheme::Mxfp4 => "MXFP4",
            Scheme::Mxfp6E2m3 => "MXFP6 E2M3",
            Scheme::Mxfp6E3m2 => "MXFP6 E3M2",
            Scheme::Mxfp8 => "MXFP8",
            Scheme::Nvfp4 => "NVFP4",
            Scheme::Bitsandbytes => "bitsandbytes",
            Scheme::OptimizerState => "optimizer state",
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
