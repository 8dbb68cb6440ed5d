//! Quantization of a file, as `info` and `report` tell it: schemes, and bits per weight.

use std::collections::BTreeMap;

use ztensor::schemes::Scheme;
use ztensor::{DType, Format, Layout, Object, Reader};

use crate::human;

/// Weights of one scheme.
#[derive(Default)]
pub struct Total {
    /// The scheme with its parameters: `GPTQ, 4 bits in groups of 128`.
    pub scheme: String,
    weights: u64,
    elements: u64,
    bytes: u64,
    /// Moments of an optimizer, not weights.
    state: bool,
}

impl Total {
    fn bits_per_weight(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.elements.max(1) as f64
    }

    /// `GPTQ, 4 bits in groups of 128: 168 weights, 1.1 G elements, 4.16 bits per weight`.
    pub fn line(&self) -> String {
        let (counted, each) = if self.state { ("tensor", "element") } else { ("weight", "weight") };
        let weights = human::counted(self.weights, counted);
        let elements = human::counted_short(self.elements, "element");
        format!("{}: {weights}, {elements}, {:.2} bits per {each}", self.scheme, self.bits_per_weight())
    }

    #[cfg(not(target_family = "wasm"))]
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "scheme": self.scheme,
            "weights": self.weights,
            "elements": self.elements,
            "stored_bytes": self.bytes,
            "bits_per_weight": self.bits_per_weight(),
        })
    }
}

/// The schemes of several tensors that a file has, in the order of their names.
pub fn schemes(reader: &Reader) -> ztensor::Result<Vec<Total>> {
    let mut totals = BTreeMap::<String, Total>::new();
    for weight in ztensor::schemes::find(reader)? {
        let groups = match weight.group {
            0 => String::new(),
            group => format!(" in groups of {group}"),
        };
        let name = format!("{}, {} bits{groups}", weight.scheme.name(), weight.bits);
        let total = totals.entry(name).or_default();
        total.weights += 1;
        total.elements = total.elements.saturating_add(weight.elements());
        total.bytes = total.bytes.saturating_add(weight.stored_len);
        total.state = weight.scheme == Scheme::OptimizerState;
    }
    Ok(totals.into_iter().map(|(scheme, total)| Total { scheme, ..total }).collect())
}

/// Bits that a weight takes in the file, if it has quantized ones.
pub fn bits_per_weight(reader: &Reader) -> Option<f64> {
    let quantized =
        reader.format() == Format::Gguf || reader.objects().any(|(_, object)| is_quantized(object));
    let weights = reader.objects().filter(|(name, object)| is_weight(name, object));
    let (elements, bytes) = weights.fold((0u64, 0u64), |(elements, bytes), (_, object)| {
        let more = object.elements().unwrap_or(u64::MAX);
        (elements.saturating_add(more), bytes.saturating_add(object.stored_len()))
    });
    (quantized && elements > 0).then(|| bytes as f64 * 8.0 / elements as f64)
}

/// Whether a tensor is of a layout that holds quantized elements with their scales.
pub fn is_quantized(object: &Object) -> bool {
    match &object.layout {
        Layout::QuantizedGroup => true,
        Layout::Other(name) => name.starts_with("gguf.") || matches!(&**name, "zt.quant_group/1" | "zt.mx/1"),
        _ => false,
    }
}

/// Whether a tensor's elements count as parameters: floats, quantized blocks and matrices of
/// small integers. Counters, masks, indices, strings and optimizer state do not.
pub fn is_weight(name: &str, object: &Object) -> bool {
    const STATE: [&str; 6] = ["optimizer", "optim", "exp_avg", "exp_avg_sq", "momentum_buffer", "optimizers"];
    if name.split(['.', '/']).any(|part| STATE.contains(&part)) {
        return false;
    }
    match &object.layout {
        Layout::QuantizedGroup | Layout::Other(_) => is_quantized(object),
        _ => match object.dtype() {
            Some(DType::I64 | DType::I32 | DType::I16 | DType::U64 | DType::U32 | DType::U16) => false,
            Some(DType::Bool) | None => false,
            Some(DType::I8 | DType::U8 | DType::I4 | DType::U4 | DType::I2 | DType::U2) => {
                object.shape.len() > 1
            }
            Some(_) => true,
        },
    }
}
