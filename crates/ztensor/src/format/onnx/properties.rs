//! Text and key-value metadata.

use std::ops::Range;

use indexmap::IndexMap;
use indexmap::map::Entry;

use crate::error::Result;
use crate::format::onnx::tensor::once;
use crate::format::onnx::wire::{bytes, fields, text};
use crate::source::Cursor;
use crate::tensor::value::{Attributes, Value};

/// Text, or bytes where a writer put something else.
pub(super) fn text_value(cursor: &mut Cursor<'_>, range: Range<u64>) -> Result<Value> {
    let bytes = bytes(cursor, range)?;
    Ok(match std::str::from_utf8(bytes) {
        Ok(text) => Value::Text(text.to_owned()),
        Err(_) => Value::Bytes(bytes.to_vec()),
    })
}

/// The key and the value of a `StringStringEntryProto`.
pub(super) fn entry(cursor: &mut Cursor<'_>, range: Range<u64>) -> Result<(Range<u64>, Range<u64>)> {
    let (mut key, mut value) = (None, None);
    let end = range.end;
    fields(cursor, range, |_, field| match field.number {
        1 => once(&mut key, field.bytes()?, "key"),
        2 => once(&mut value, field.bytes()?, "value"),
        _ => Ok(()),
    })?;
    Ok((key.unwrap_or(end..end), value.unwrap_or(end..end)))
}

/// The domain and the version of an `OperatorSetIdProto`.
pub(super) fn opset(cursor: &mut Cursor<'_>, range: Range<u64>) -> Result<(Value, Value)> {
    let (mut domain, mut version) = (Value::Text(String::new()), Value::Null);
    fields(cursor, range, |cursor, field| {
        match field.number {
            1 => domain = text_value(cursor, field.bytes()?)?,
            2 => version = Value::Int(i128::from(field.varint()? as i64)),
            _ => {}
        }
        Ok(())
    })?;
    Ok((domain, version))
}

/// `metadata_props`. A key that comes twice keeps all its values, as a list.
#[derive(Debug, Default)]
pub(super) struct Properties(IndexMap<String, Value>);

impl Properties {
    /// Reads one entry.
    pub(super) fn read(&mut self, cursor: &mut Cursor<'_>, range: Range<u64>) -> Result<()> {
        let (key, value) = entry(cursor, range)?;
        let key = text(cursor, key)?.to_owned();
        let value = text_value(cursor, value)?;
        match self.0.entry(key) {
            Entry::Vacant(slot) => drop(slot.insert(value)),
            Entry::Occupied(mut slot) => match slot.get_mut() {
                Value::Array(values) => values.push(value),
                first => {
                    let first_value = std::mem::replace(first, Value::Null);
                    *first = Value::Array(vec![first_value, value]);
                }
            },
        }
        Ok(())
    }

    /// Puts them, if there are any, among `attributes` as one map.
    pub(super) fn insert_into(self, attributes: &mut Attributes) {
        if !self.0.is_empty() {
            let pairs = self.0.into_iter().map(|(key, value)| (Value::Text(key), value)).collect();
            attributes.insert("metadata_props".to_owned(), Value::Map(pairs));
        }
    }
}
