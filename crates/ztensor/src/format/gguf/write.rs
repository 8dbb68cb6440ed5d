//! Writing `.gguf`, byte for byte as the format's own library does.

use std::collections::HashMap;
use std::io::Write as _;

use super::header::{self, MAGIC, VERSION};
use super::types::{GgmlType, is_block_layout};
use super::value::{self, TYPES, Type};
use super::{ORDER_ATTRIBUTE, TYPE_ATTRIBUTE};
use crate::catalog::{Layout, Object};
use crate::error::{Error, Result, quoted};
use crate::tensor::value::{Attributes, Value};
use crate::write::export::{Output, Placed, Plan, WriteStep, write_failed};

/// Limits that the format sets and its runtimes enforce.
const MAX_NAME: usize = 64;
const MAX_RANK: usize = 4;

/// Making the head finds everything that cannot be written.
pub(crate) fn export(plan: &Plan<'_>) -> Result<WriteStep> {
    let head = Head::new(plan)?;
    Ok(Box::new(|plan, out| write(head, plan, out)))
}

fn write(head: Head, plan: &Plan<'_>, out: &mut Output<'_>) -> Result<()> {
    out.write_all(&head.bytes).map_err(write_failed)?;
    let placed = head.paddings.into_iter().enumerate().map(|(index, padding)| {
        let role = if plan.objects[index].1.layout == Layout::Dense { "data" } else { "blocks" };
        Placed { index, role, padding }
    });
    plan.write_data(&placed.collect::<Vec<_>>(), out)
}

/// The head of a file, and what follows each tensor's bytes.
struct Head {
    /// From the magic to where the first tensor starts.
    bytes: Vec<u8>,
    /// Zeros behind each tensor, so that the next one is aligned.
    paddings: Vec<u64>,
}

impl Head {
    fn new(plan: &Plan<'_>) -> Result<Head> {
        let is_block = |object: &Object| is_block_layout(object.layout.name());
        plan.require_dense(|dtype| dtype.gguf_id().is_some(), is_block)?;
        let alignment = header::alignment(plan.attributes).map_err(|e| Error::invalid(e.to_string()))?;
        let (pair_count, pairs) = pairs(plan)?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(plan.objects.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&pair_count.to_le_bytes());
        bytes.extend_from_slice(&pairs);
        let (mut offset, mut paddings) = (0u64, Vec::with_capacity(plan.objects.len()));
        for (name, object) in &plan.objects {
            let entry = write_entry(plan, name, object, offset, &mut bytes);
            let len = entry.map_err(|error| error.in_tensor(*name))?;
            let end = offset.checked_add(len).and_then(|end| end.checked_next_multiple_of(alignment));
            let end = end.ok_or_else(|| plan.cannot(name, "tensors of more than 2^64 bytes together"))?;
            paddings.push(end - offset - len);
            offset = end;
        }
        bytes.resize(header::align_up(bytes.len() as u64, alignment)? as usize, 0);
        Ok(Head { bytes, paddings })
    }
}

/// The key-values that the attributes become, and how many they are.
fn pairs(plan: &Plan<'_>) -> Result<(u64, Vec<u8>)> {
    let types = recorded_types(plan.attributes)?;
    plan.check_attributes()?;
    let (mut count, mut bytes) = (0, Vec::new());
    for (key, value) in plan.attributes.iter().filter(|(key, _)| *key != TYPES) {
        let Some(kind) = types.get(key.as_str()).copied().or_else(|| Type::default_for(value)) else {
            continue; // left out, as was asked for
        };
        value::write_name(key, &mut bytes);
        value::write(kind, value, &mut bytes)
            .map_err(|error| error.within(format_args!("the attribute {}", quoted(key))))?;
        count += 1;
    }
    Ok((count, bytes))
}

/// Whether an attribute can be written: the types of a file's own are recorded, others are guessed.
pub(crate) fn holds(attributes: &Attributes, key: &str, value: &Value) -> bool {
    let recorded = || recorded_types(attributes).is_ok_and(|types| types.contains_key(key));
    key == TYPES || Type::default_for(value).is_some() || recorded()
}

/// The types that a reader recorded because they cannot be guessed.
fn recorded_types(attributes: &Attributes) -> Result<HashMap<&str, Type>> {
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

/// Appends an entry of the tensor table; returns how many bytes the data has.
fn write_entry(plan: &Plan<'_>, name: &str, object: &Object, offset: u64, out: &mut Vec<u8>) -> Result<u64> {
    if name.len() > MAX_NAME {
        return Err(plan.cannot(name, &format!("names of more than {MAX_NAME} bytes")));
    }
    if object.shape.len() > MAX_RANK {
        return Err(plan.cannot(name, &format!("tensors of more than {MAX_RANK} dimensions")));
    }
    let (type_id, len) = match object.component("data") {
        Some(data) if object.layout == Layout::Dense => (data.dtype.gguf_id().unwrap_or_default(), data.len),
        _ => blocks(plan, name, object)?,
    };
    value::write_name(name, out);
    out.extend_from_slice(&(object.shape.len() as u32).to_le_bytes());
    for size in object.shape.iter().rev() {
        out.extend_from_slice(&size.to_le_bytes());
    }
    out.extend_from_slice(&type_id.to_le_bytes());
    out.extend_from_slice(&offset.to_le_bytes());
    Ok(len)
}

/// The number of a block tensor's type, and the length of its data.
fn blocks(plan: &Plan<'_>, name: &str, object: &Object) -> Result<(u32, u64)> {
    let attributes = object.attributes.iter().flat_map(|attributes| attributes.keys());
    for attribute in attributes.filter(|key| *key != TYPE_ATTRIBUTE) {
        if attribute == ORDER_ATTRIBUTE {
            return Err(plan.cannot(name, "blocks of a big-endian file, which cannot be byte-swapped"));
        }
        if !plan.options.drop_attributes {
            return Err(plan.cannot(name, "a tensor's own attributes (they can be left out on request)"));
        }
    }
    let len = object.require("blocks")?.len;
    let Some(ggml_type) = GgmlType::from_layout_name(object.layout.name()) else {
        let id = object.attribute(TYPE_ATTRIBUTE).and_then(Value::as_int);
        let id = id.and_then(|id| u32::try_from(id).ok());
        let missing =
            || Error::invalid(format!("it needs its type's number as attribute {TYPE_ATTRIBUTE:?}"));
        return Ok((id.ok_or_else(missing)?, len));
    };
    match super::byte_len(ggml_type, &object.shape) {
        Ok(expected) if expected == len => Ok((ggml_type.id(), len)),
        _ => Err(Error::invalid(format!(
            "{len} bytes are not {ggml_type} blocks of a tensor of shape {:?}",
            object.shape
        ))),
    }
}
