//! Writing: everything in front of the data, from what the objects are.

use super::header::{self, MAGIC, VERSION};
use super::types::{GgmlType, UNKNOWN_LAYOUT};
use super::value::{self, TYPES, Type};
use crate::error::{Error, Result, quoted};
use crate::object::{Layout, Object};
use crate::value::{Attributes, Value};

/// Limits that the format sets and its runtimes enforce.
const MAX_NAME: usize = 64;
const MAX_RANK: usize = 4;

/// Everything in front of the data of a file that holds `objects`, and the
/// padding that each one's data needs behind it.
pub(crate) fn head<'a>(
    attributes: &Attributes,
    objects: impl ExactSizeIterator<Item = (&'a str, &'a Object)>,
) -> Result<Head> {
    let alignment = header::alignment(attributes).map_err(|error| Error::invalid(error.to_string()))?;
    let types = recorded_types(attributes)?;
    let pairs = attributes.len() - usize::from(attributes.contains_key(TYPES));
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(objects.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&(pairs as u64).to_le_bytes());
    for (key, value) in attributes.iter().filter(|(key, _)| *key != TYPES) {
        write_pair(key, value, &types, &mut bytes)
            .map_err(|error| error.within(format_args!("the attribute {}", quoted(key))))?;
    }
    let (mut offset, mut paddings) = (0, Vec::with_capacity(objects.len()));
    for (name, object) in objects {
        let len = write_entry(name, object, offset, &mut bytes).map_err(|error| error.in_tensor(name))?;
        let padded = header::align_up(len, alignment).map_err(|error| error.in_tensor(name))?;
        paddings.push((padded - len) as usize);
        offset = offset.checked_add(padded).ok_or_else(|| {
            Error::invalid("the tensors together have more bytes than 2^64").in_tensor(name)
        })?;
    }
    let padded = header::align_up(bytes.len() as u64, alignment)?;
    bytes.resize(padded as usize, 0);
    Ok(Head { bytes, paddings })
}

/// The head of a file, and what follows each tensor's bytes.
pub(crate) struct Head {
    /// From the magic to where the first tensor starts.
    pub(crate) bytes: Vec<u8>,
    /// Zeros behind each tensor, so that the next one is aligned.
    pub(crate) paddings: Vec<usize>,
}

/// The types that a reader wrote down because nobody would guess them.
fn recorded_types(attributes: &Attributes) -> Result<std::collections::HashMap<&str, Type>> {
    let pairs = match attributes.get(TYPES) {
        None => &[],
        Some(Value::Map(pairs)) => &pairs[..],
        Some(_) => return Err(Error::invalid(format!("the attribute {TYPES:?} is not a map"))),
    };
    let types =
        pairs.iter().map(|(key, name)| match (key.as_text(), name.as_text().and_then(Type::from_name)) {
            (Some(key), Some(kind)) => Ok((key, kind)),
            _ => Err(Error::invalid(format!("the attribute {TYPES:?} says {name:?} about {key:?}"))),
        });
    types.collect()
}

fn write_pair(
    key: &str,
    value: &Value,
    types: &std::collections::HashMap<&str, Type>,
    out: &mut Vec<u8>,
) -> Result<()> {
    let guess = || {
        Type::default_for(value)
            .ok_or_else(|| Error::invalid("GGUF holds numbers, text, truth values and lists of one of these"))
    };
    let kind = types.get(key).copied().map_or_else(guess, Ok)?;
    value::write_name(key, out);
    value::write(kind, value, out)
}

/// Appends an entry of the tensor table; returns how many bytes the data has.
fn write_entry(name: &str, object: &Object, offset: u64, out: &mut Vec<u8>) -> Result<u64> {
    if name.len() > MAX_NAME {
        return Err(Error::invalid(format!(
            "the name has {} bytes, GGUF allows {MAX_NAME}: rename the tensor",
            name.len()
        )));
    }
    if object.shape.len() > MAX_RANK {
        return Err(Error::invalid(format!(
            "the tensor has {} dimensions, GGUF allows {MAX_RANK}: reshape it",
            object.shape.len()
        )));
    }
    let (type_id, len) = stored_as(object)?;
    value::write_name(name, out);
    out.extend_from_slice(&(object.shape.len() as u32).to_le_bytes());
    for size in object.shape.iter().rev() {
        out.extend_from_slice(&size.to_le_bytes());
    }
    out.extend_from_slice(&type_id.to_le_bytes());
    out.extend_from_slice(&offset.to_le_bytes());
    Ok(len)
}

/// The number of the type that an object is stored as, and its bytes there.
fn stored_as(object: &Object) -> Result<(u32, u64)> {
    if object.attribute("byte_order").is_some() {
        return Err(Error::unsupported("its blocks are from a big-endian file and cannot be turned round"));
    }
    match &object.layout {
        Layout::Dense => {
            let data = object.require("data")?;
            let id = data.dtype.gguf_id().filter(|_| data.unknown_type.is_none()).ok_or_else(|| {
                Error::unsupported(format!("GGUF has no type for elements of {}", data.dtype))
            })?;
            Ok((id, data.len))
        }
        layout if layout.name() == UNKNOWN_LAYOUT => {
            let id =
                object.attribute("ggml_type").and_then(Value::as_int).and_then(|id| u32::try_from(id).ok());
            let id = id.ok_or_else(|| {
                Error::invalid("a gguf.unknown tensor needs its type's number as attribute ggml_type")
            })?;
            Ok((id, object.require("blocks")?.len))
        }
        layout => {
            let ggml_type = GgmlType::from_layout_name(layout.name()).ok_or_else(|| {
                Error::unsupported(format!("GGUF holds dense and block tensors, not {layout} ones"))
            })?;
            let len = object.require("blocks")?.len;
            match super::byte_len(ggml_type, &object.shape) {
                Ok(expected) if expected == len => Ok((ggml_type.id(), len)),
                _ => Err(Error::invalid(format!(
                    "{len} bytes are not {ggml_type} blocks of a tensor of shape {:?}",
                    object.shape
                ))),
            }
        }
    }
}

/// Writes all objects of a reader, one at a time.
pub fn write(reader: &crate::Reader, out: &mut dyn std::io::Write) -> Result<()> {
    let failed = |error| Error::io("cannot write", error);
    let head = head(reader.attributes(), reader.objects())?;
    out.write_all(&head.bytes).map_err(failed)?;
    for (name, padding) in reader.keys().zip(head.paddings) {
        let tensor = reader.read_object(name)?;
        for (_, array) in &tensor.components {
            out.write_all(&array.bytes).map_err(failed)?;
        }
        out.write_all(&vec![0; padding]).map_err(failed)?;
    }
    out.flush().map_err(failed)
}
