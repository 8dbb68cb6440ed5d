//! What of a tensor enters its id, beside the bytes: layout, shape, parameters and element types.

use std::borrow::Cow;

use minicbor::Encoder;

use super::{ContentId, TENSOR_CONTEXT};
use crate::catalog::{Layout, Shape};
use crate::dtype::DType;
use crate::error::Result;
use crate::format::gguf::{GgmlType, ORDER_ATTRIBUTE};
use crate::format::zt::cbor::encode_value;
use crate::tensor::value::{Attributes, Value};

/// The parameters of a `quantized_group` tensor: its other attributes are metadata.
const GROUP_PARAMETERS: [&str; 3] = ["bits", "group_size", "packing"];

/// A tensor without its bytes, as its id sees it.
pub(super) struct Description {
    pub(super) layout: Cow<'static, str>,
    pub(super) shape: Shape,
    /// Parameters of the layout, encoded; empty without any.
    pub(super) parameters: Vec<u8>,
    pub(super) components: Vec<HashedPart>,
}

/// One component.
pub(super) struct HashedPart {
    pub(super) role: Cow<'static, str>,
    pub(super) type_name: Cow<'static, str>,
    pub(super) len: u64,
    pub(super) hash: [u8; 32],
}

impl Description {
    /// A dense tensor whose bytes hash to that.
    pub(super) fn dense(shape: &[u64], type_name: Cow<'static, str>, len: u64, hash: [u8; 32]) -> Self {
        Description {
            layout: "dense".into(),
            shape: shape.into(),
            parameters: Vec::new(),
            components: vec![HashedPart { role: "data".into(), type_name, len, hash }],
        }
    }

    /// The id.
    pub(super) fn id(mut self) -> ContentId {
        self.components.sort_by(|a, b| a.role.as_bytes().cmp(b.role.as_bytes()));
        let mut hasher = blake3::Hasher::new_derive_key(TENSOR_CONTEXT);
        let number = |hasher: &mut blake3::Hasher, number: u64| {
            hasher.update(&number.to_le_bytes());
        };
        let text = |hasher: &mut blake3::Hasher, text: &[u8]| {
            number(hasher, text.len() as u64);
            hasher.update(text);
        };
        text(&mut hasher, self.layout.as_bytes());
        number(&mut hasher, self.shape.len() as u64);
        self.shape.iter().for_each(|&size| number(&mut hasher, size));
        text(&mut hasher, &self.parameters);
        number(&mut hasher, self.components.len() as u64);
        for part in &self.components {
            text(&mut hasher, part.role.as_bytes());
            text(&mut hasher, part.type_name.as_bytes());
            number(&mut hasher, part.len);
            hasher.update(&part.hash);
        }
        ContentId(*hasher.finalize().as_bytes())
    }
}

/// An element type as it enters ids: its `.zt` name, and for a logical type that is not known the
/// storage type and the name.
pub(super) fn type_name(dtype: DType, unknown: Option<&str>) -> Cow<'static, str> {
    match unknown {
        Some(name) => format!("{}/{name}", dtype.storage_name()).into(),
        None => dtype.name().into(),
    }
}

/// The attributes that decide what a layout's components mean, encoded as a map in the
/// deterministic form of CBOR; empty if there are none.
pub(super) fn parameters(layout: &Layout, attributes: Option<&Attributes>) -> Result<Vec<u8>> {
    let enters = |name: &str| match layout {
        Layout::Dense | Layout::SparseCsr | Layout::SparseCoo => false,
        Layout::QuantizedGroup => GROUP_PARAMETERS.contains(&name),
        // The type is the layout; only a foreign byte order changes what blocks mean.
        Layout::Other(layout) if GgmlType::from_layout_name(layout).is_some() => name == ORDER_ATTRIBUTE,
        Layout::Other(_) => true,
    };
    let pairs: Vec<(Value, Value)> = attributes
        .into_iter()
        .flatten()
        .filter(|(name, _)| enters(name))
        .map(|(name, value)| (Value::Text(name.clone()), value.clone()))
        .collect();
    match pairs.is_empty() {
        true => Ok(Vec::new()),
        false => encoded(&sorted(Value::Map(pairs))?),
    }
}

/// The value with the keys of its maps in the order of their encodings.
fn sorted(value: Value) -> Result<Value> {
    Ok(match value {
        Value::Array(values) => Value::Array(values.into_iter().map(sorted).collect::<Result<_>>()?),
        Value::Tag(tag, value) => Value::Tag(tag, Box::new(sorted(*value)?)),
        Value::Map(pairs) => {
            let pairs = pairs.into_iter().map(|(key, value)| {
                let key = sorted(key)?;
                Ok((encoded(&key)?, (key, sorted(value)?)))
            });
            let mut pairs = pairs.collect::<Result<Vec<_>>>()?;
            pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
            Value::Map(pairs.into_iter().map(|(_, pair)| pair).collect())
        }
        other => other,
    })
}

fn encoded(value: &Value) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    encode_value(&mut Encoder::new(&mut bytes), value)?;
    Ok(bytes)
}
