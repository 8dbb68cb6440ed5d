//! Objects and attributes as JSON.

use serde_json::{Value as Json, json};
use ztensor::Value;
#[cfg(not(target_family = "wasm"))]
use ztensor::{Attributes, Object};

/// One tensor: what it is and how it is stored.
#[cfg(not(target_family = "wasm"))]
pub fn object(name: &str, object: &Object) -> Json {
    let components: serde_json::Map<String, Json> = object
        .components
        .iter()
        .map(|(role, component)| {
            let described = json!({
                "dtype": component.dtype.storage_name(),
                "type": component.type_name(),
                "bytes": component.len,
                "stored_bytes": component.stored_len(),
                "encoding": component.encoding(),
                "digest": component.digest.as_ref().map(|digest| digest.to_string()),
            });
            (role.to_string(), described)
        })
        .collect();
    json!({
        "name": name,
        "shape": object.shape.as_slice(),
        "dtype": object.dtype().map(|dtype| dtype.name()),
        "layout": object.layout.name(),
        "bytes": object.byte_len(),
        "stored_bytes": object.stored_len(),
        "components": components,
        "attributes": object.attributes.as_ref().map_or(json!({}), |attributes| self::attributes(attributes)),
    })
}

/// Attributes as an object.
#[cfg(not(target_family = "wasm"))]
pub fn attributes(attributes: &Attributes) -> Json {
    Json::Object(attributes.iter().map(|(name, value)| (name.clone(), self::value(value))).collect())
}

/// One value. What JSON has no form for becomes text: large integers, numbers
/// that are not finite, bytes (in hexadecimal), keys that are not text.
pub fn value(value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(value) => json!(value),
        Value::Int(value) => match (i64::try_from(*value), u64::try_from(*value)) {
            (Ok(value), _) => json!(value),
            (_, Ok(value)) => json!(value),
            _ => json!(value.to_string()),
        },
        Value::Float(value) if value.is_finite() => json!(value),
        Value::Float(value) => json!(value.to_string()),
        Value::Text(value) => json!(value),
        Value::Bytes(bytes) => json!(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
        Value::Array(values) => values.iter().map(self::value).collect(),
        Value::Map(pairs) => {
            let key = |key: &Value| key.as_text().map_or_else(|| self::value(key).to_string(), str::to_owned);
            Json::Object(pairs.iter().map(|(name, value)| (key(name), self::value(value))).collect())
        }
        Value::Tag(_, inner) => self::value(inner),
    }
}
