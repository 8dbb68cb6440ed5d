//! Conversion of floating-point tensors to another type.

use std::sync::atomic::{AtomicU64, Ordering};

use clap::ValueEnum;
use half::{bf16, f16};
use ztensor::{DType, Layout, Object, Tensor, numbers};

use crate::quantization::is_quantized;

/// A type that tensors are converted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Float {
    #[value(alias = "float32", alias = "fp32")]
    F32,
    #[value(alias = "float16", alias = "fp16")]
    F16,
    #[value(alias = "bfloat16")]
    Bf16,
    #[value(alias = "float64", alias = "fp64")]
    F64,
}

impl Float {
    pub fn dtype(self) -> DType {
        match self {
            Float::F32 => DType::F32,
            Float::F16 => DType::F16,
            Float::Bf16 => DType::BF16,
            Float::F64 => DType::F64,
        }
    }
}

/// What happens to the elements of tensors on their way to the new file.
#[derive(Debug, Default)]
pub struct Cast {
    /// Quantized tensors become floats.
    pub dequantize: bool,
    /// Floats become this type.
    pub float: Option<Float>,
    /// Finite values that became infinite.
    pub overflowed: AtomicU64,
}

impl Cast {
    /// The type that a tensor has in the new file, where that is another one.
    pub fn target(&self, object: &Object) -> Option<DType> {
        // Kinds that cannot be dequantized count too: they are refused by name, not passed on.
        if is_quantized(object) {
            let float = self.float.map_or(DType::F32, Float::dtype);
            return self.dequantize.then_some(float);
        }
        let dtype = object.dtype().filter(|_| object.layout == Layout::Dense)?;
        let known = matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::F64);
        self.float.map(Float::dtype).filter(|float| known && *float != dtype)
    }

    /// The tensor with elements of type `to`.
    pub fn apply(&self, tensor: &Tensor<'_>, to: DType) -> ztensor::Result<Tensor<'static>> {
        let bytes = match tensor.layout {
            Layout::Dense => {
                let data = tensor.component("data").map(|data| (data.dtype, &*data.bytes));
                let (dtype, bytes) = data.unwrap_or((DType::F32, &[]));
                self.converted(dtype, bytes, to)?
            }
            _ => {
                let dense = tensor.dequantize()?;
                let array = ztensor::Array::from_slice(&dense.data);
                match to {
                    DType::F32 => array.bytes.to_vec(),
                    _ => self.converted(DType::F32, &array.bytes, to)?,
                }
            }
        };
        Ok(Tensor::from_bytes(tensor.shape.clone(), to, &bytes)?.into_owned())
    }

    fn converted(&self, from: DType, bytes: &[u8], to: DType) -> ztensor::Result<Vec<u8>> {
        let count = bytes.len() * 8 / from.bits() as usize;
        let mut out = Vec::with_capacity(count * to.bits() as usize / 8);
        let mut overflowed = 0;
        numbers::for_each(from, bytes, |number| {
            let infinite = match to {
                DType::F16 => {
                    let value = f16::from_f64(number);
                    out.extend(value.to_le_bytes());
                    value.is_infinite()
                }
                DType::BF16 => {
                    let value = bf16::from_f64(number);
                    out.extend(value.to_le_bytes());
                    value.is_infinite()
                }
                DType::F64 => {
                    out.extend(number.to_le_bytes());
                    number.is_infinite()
                }
                _ => {
                    let value = number as f32;
                    out.extend(value.to_le_bytes());
                    value.is_infinite()
                }
            };
            overflowed += u64::from(infinite && number.is_finite());
        })?;
        self.overflowed.fetch_add(overflowed, Ordering::Relaxed);
        Ok(out)
    }
}
