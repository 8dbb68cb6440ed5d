//! Tensors and attributes in a few words.

use ztensor::{Object, Value};

use crate::output::Untrusted;
use crate::{human, json};

/// What the elements of an object are called: the layout says more than the
/// storage type where blocks are packed.
pub fn dtype(object: &Object) -> Untrusted<'_> {
    match object.layout.name().split_once('.') {
        Some((_, block)) => block.into(),
        None => object.dtype().map_or("none", |dtype| dtype.name()).into(),
    }
}

/// How an object's bytes are stored.
pub fn encoding(object: &Object) -> Untrusted<'_> {
    object.components.first().map_or("", |(_, component)| component.encoding()).into()
}

/// A value on one short line; control characters of strangers stay out of terminals.
pub fn preview(value: &Value) -> String {
    const SHOWN: usize = 100;
    let text = match value {
        Value::Text(text) => text.clone(),
        Value::Array(items) if items.len() > 8 => format!("[{} values]", human::count(items.len() as u64)),
        Value::Bytes(bytes) => format!("{} of data", human::bytes(bytes.len() as u64)),
        other => json::value(other).to_string(),
    };
    match text.char_indices().nth(SHOWN) {
        Some((cut, _)) => format!("{}…", human::escaped(&text[..cut])),
        None => human::escaped(&text).into_owned(),
    }
}
