//! Models in several files, `name-00001-of-00003.gguf` and so on.
//!
//! Opening the first part by its path opens all of them as one. Any other part,
//! or a part that was not opened by a path, is a file of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::header::{self, Header};
use super::value::TYPES;
use crate::error::{Error, Result, quoted};
use crate::format::Context;
use crate::remote::store::join;
use crate::source::Source;
use crate::tensor::value::{Attributes, Value};

/// Which part this is, counted from 0; how many there are; how many tensors they hold.
const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// A part that is not the first: its file and its header.
pub(crate) type SplitFile = (Arc<dyn Source>, Header);

/// The number under a key, if the file has one.
fn number(attributes: &Attributes, key: &str) -> Option<i128> {
    attributes.get(key).and_then(Value::as_int)
}

/// Opens the other parts of a model whose first part has the header `first`,
/// and makes its attributes those of the whole. Empty if it is not the first of
/// several parts, or has no path.
pub(crate) fn open_rest(first: &mut Header, context: &Context) -> Result<Vec<SplitFile>> {
    let (Some(path), Some(count)) = (&context.path, number(&first.attributes, COUNT)) else {
        return Ok(Vec::new());
    };
    if count <= 1 || number(&first.attributes, NUMBER) != Some(0) {
        return Ok(Vec::new());
    }
    let mut parts = Vec::new();
    let mut tensors = first.tensors.len() as i128;
    for index in 1..count {
        let path = sibling(path, index, count)?;
        let source = context.open(&path)?;
        let header = header::read(&*source)
            .and_then(|header| check(&header, index, count, first).map(|()| header))
            .map_err(|error| error.in_file(&path))?;
        tensors += header.tensors.len() as i128;
        merge(&mut first.attributes, &header.attributes).map_err(|error| error.in_file(&path))?;
        parts.push((source, header));
    }
    if let Some(expected) = number(&first.attributes, TENSORS)
        && expected != tensors
    {
        return Err(Error::corrupt(
            "gguf.split",
            format!("the {count} parts hold {tensors} tensors where {TENSORS} says {expected}"),
        ));
    }
    // What describes one part is not true of the whole.
    for key in [NUMBER, COUNT, TENSORS] {
        first.attributes.shift_remove(key);
    }
    if let Some(Value::Map(types)) = first.attributes.get_mut(TYPES) {
        types.retain(|(key, _)| !key.as_text().is_some_and(|key| [NUMBER, COUNT, TENSORS].contains(&key)));
        if types.is_empty() {
            first.attributes.shift_remove(TYPES);
        }
    }
    Ok(parts)
}

/// Checks that a part says about itself what the first one says about it.
fn check(part: &Header, index: i128, count: i128, first: &Header) -> Result<()> {
    let says = |key, expected| match number(&part.attributes, key) {
        found if found == Some(expected) => Ok(()),
        found => Err(Error::corrupt(
            "gguf.split",
            format!("{key} is {found:?} in part {} of {count} instead of {expected}", index + 1),
        )),
    };
    says(NUMBER, index)?;
    says(COUNT, count)?;
    match number(&first.attributes, TENSORS) {
        Some(tensors) => says(TENSORS, tensors),
        None => Ok(()),
    }
}

/// Adds a part's attributes; those that the whole has already must be equal.
fn merge(whole: &mut Attributes, part: &Attributes) -> Result<()> {
    let types = match part.get(TYPES) {
        Some(Value::Map(types)) => &types[..],
        _ => &[],
    };
    let is_new = |key: &Value| key.as_text().is_some_and(|key| !whole.contains_key(key));
    let types: Vec<_> = types.iter().filter(|(key, _)| is_new(key)).cloned().collect();
    for (key, value) in part.iter().filter(|(key, _)| ![NUMBER, TYPES].contains(&key.as_str())) {
        match whole.get(key) {
            Some(known) if known == value => {}
            Some(_) => {
                return Err(Error::corrupt(
                    "gguf.split",
                    format!("the key {} has another value than in the first part", quoted(key)),
                ));
            }
            None => {
                whole.insert(key.clone(), value.clone());
            }
        }
    }
    if !types.is_empty()
        && let Value::Map(all) = whole.entry(TYPES.into()).or_insert(Value::Map(Vec::new()))
    {
        all.extend(types);
    }
    Ok(())
}

/// The path of part `index` (from 0) of `count`, next to the first part's.
fn sibling(first: &Path, index: i128, count: i128) -> Result<PathBuf> {
    let suffix = |index: i128| format!("-{:05}-of-{count:05}.gguf", index + 1);
    let name = first.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match name.strip_suffix(&suffix(0)) {
        Some(stem) => Ok(join(first.parent().unwrap_or(Path::new("")), &format!("{stem}{}", suffix(index)))),
        None => Err(Error::corrupt(
            "gguf.split",
            format!(
                "this is the first of {count} parts, so its name must end with {:?} for the others to be found",
                suffix(0)
            ),
        )),
    }
}
