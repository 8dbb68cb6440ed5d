//! Attribute values of a pickle, and the memory budget that they are charged to.
//!
//! [`Builder`] is the only place where a pickle's values become [`Value`]s, and it charges each of
//! them before it allocates. Within a pickle a reference to a text, an integer or a list costs a few
//! bytes; an attribute holds a copy. Without the charge a small file could ask for any amount of
//! memory by referring to one large value again and again.

use std::cell::Cell;

use super::arena::{Arena, Item, Node};
use super::storage::{self, Blobs};
use crate::catalog::Storage;
use crate::error::{Error, Result};
use crate::tensor::value::Value;

/// Memory that names and attribute values may take per byte of the file.
const MEMORY_PER_BYTE: u64 = 24;
/// Memory that even the smallest file may take.
const MEMORY_AT_LEAST: u64 = 256 << 10;

/// Memory that is left for names and attribute values.
#[derive(Debug)]
pub(super) struct Builder {
    left: Cell<u64>,
}

/// A value that was paid for: only a [`Builder`] makes one.
#[derive(Debug)]
pub(super) struct Built(Value);

impl Built {
    pub(super) fn into_value(self) -> Value {
        self.0
    }
}

/// A number of NumPy's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Number {
    Bool(bool),
    Int(i128),
    Float(f64),
}

/// Whether an item is a plain value: no container, no name, no object.
pub(super) fn is_scalar(arena: &Arena, item: Item) -> bool {
    match item {
        Item::Node(_) => matches!(arena.node(item), Some(Node::Long(_))),
        _ => true,
    }
}

impl Builder {
    /// For a file of `len` bytes.
    pub(super) fn new(len: u64) -> Builder {
        Builder { left: Cell::new(len.saturating_mul(MEMORY_PER_BYTE).saturating_add(MEMORY_AT_LEAST)) }
    }

    /// Accounts for `bytes` of memory, or of work in proportion to them.
    pub(super) fn charge(&self, bytes: usize) -> Result<()> {
        match self.left.get().checked_sub(bytes as u64) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => Err(Error::corrupt(
                "pickle.expansion",
                format!(
                    "values that are used again and again come to more than {MEMORY_PER_BYTE} times the file"
                ),
            )),
        }
    }

    fn of_len(&self, len: usize, make: impl FnOnce() -> Value) -> Result<Built> {
        self.charge(len.saturating_add(size_of::<Value>()))?;
        Ok(Built(make()))
    }

    /// Text.
    pub(super) fn text(&self, text: &str) -> Result<Built> {
        self.of_len(text.len(), || Value::from(text))
    }

    /// A number.
    pub(super) fn number(&self, number: Number) -> Result<Built> {
        self.of_len(0, || match number {
            Number::Bool(flag) => Value::Bool(flag),
            Number::Int(number) => Value::Int(number),
            Number::Float(number) => Value::Float(number),
        })
    }

    /// `module.name`.
    pub(super) fn global_name(&self, (module, name): (&str, &str)) -> Result<Built> {
        self.of_len(module.len() + name.len() + 1, || Value::Text(format!("{module}.{name}")))
    }

    /// What stands for an object that is only known by the name of its class.
    pub(super) fn opaque(&self, name: (&str, &str)) -> Result<Built> {
        let name = self.global_name(name)?;
        self.map("global", name)
    }

    /// What stands for long bytes.
    pub(super) fn blob(&self, len: u64) -> Result<Built> {
        let len = self.number(Number::Int(len.into()))?;
        self.map("bytes", len)
    }

    fn map(&self, key: &'static str, value: Built) -> Result<Built> {
        self.of_len(key.len() + size_of::<Value>(), || Value::Map(vec![(Value::from(key), value.0)]))
    }

    /// The steps to a value.
    pub(super) fn steps<'a>(&self, steps: impl Iterator<Item = &'a str>) -> Result<Built> {
        let values = steps.map(|step| Ok(self.text(step)?.0)).collect::<Result<Vec<_>>>()?;
        Ok(Built(Value::Array(values)))
    }

    /// The plain value that an item is, if it is one.
    pub(super) fn scalar(&self, arena: &Arena, item: Item) -> Result<Option<Built>> {
        Ok(Some(match item {
            Item::None => self.of_len(0, || Value::Null)?,
            Item::Bool(flag) => self.number(Number::Bool(flag))?,
            Item::Int(number) => self.number(Number::Int(number.into()))?,
            Item::Float(number) => self.number(Number::Float(number))?,
            Item::Text { .. } => self.text(arena.as_text(item).unwrap_or_default())?,
            Item::Bytes { .. } => {
                let bytes = arena.as_bytes(item).unwrap_or_default();
                self.of_len(bytes.len(), || Value::Bytes(bytes.to_vec()))?
            }
            Item::Node(_) => match arena.node(item) {
                Some(Node::Long(bytes)) => self.of_len(bytes.len() + size_of::<Value>(), || long(bytes))?,
                _ => return Ok(None),
            },
        }))
    }

    /// A list of plain values; `None` if another value is among them.
    pub(super) fn list(&self, arena: &Arena, items: &[Item]) -> Result<Option<Built>> {
        if !items.iter().all(|item| is_scalar(arena, *item)) {
            return Ok(None);
        }
        self.charge(size_of::<Value>())?;
        let mut values = Vec::new();
        for &item in items {
            if let Some(value) = self.scalar(arena, item)? {
                values.push(value.0);
            }
        }
        Ok(Some(Built(Value::Array(values))))
    }

    /// Bytes that a call of `bytes` or of an encoder would make; `None` if they stay in the file.
    pub(super) fn encoded(&self, arena: &Arena, blobs: Blobs<'_>, item: Item) -> Result<Option<Built>> {
        // Decoding charges for them once; the value is a second copy.
        self.charge(storage::bytes_held(arena, blobs, item))?;
        Ok(match storage::bytes_of(self, arena, blobs, item)? {
            Some((Storage::Inline(bytes), _)) => Some(Built(Value::Bytes(bytes.to_vec()))),
            _ => None,
        })
    }
}

/// A large integer: a number up to 64 bits and a sign, a CBOR bignum beyond.
fn long(bytes: &[u8]) -> Value {
    let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    if bytes.len() <= 9 {
        let mut number = [if negative { 0xff } else { 0 }; 16];
        number[..bytes.len()].copy_from_slice(bytes);
        let number = i128::from_le_bytes(number);
        if number.unsigned_abs() < 1 << 64 {
            return Value::Int(number);
        }
    }
    let (tag, flip) = if negative { (3, 0xff) } else { (2, 0) };
    let magnitude = bytes.iter().rev().map(|byte| byte ^ flip).skip_while(|byte| *byte == 0);
    Value::Tag(tag, Box::new(Value::Bytes(magnitude.collect())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::pickle::arena::Arena;

    /// Values of `make`, until the budget of a 1,000-byte file is spent.
    fn made(make: impl Fn(&Builder) -> Result<()>) -> usize {
        let builder = Builder::new(1_000);
        let budget = builder.left.get();
        let mut count = 0;
        while make(&builder).is_ok() {
            count += 1;
            assert!(count < 1_000_000, "values are free of charge");
        }
        assert!(builder.left.get() < budget);
        count
    }

    #[test]
    fn every_kind_of_value_is_charged_by_its_size() {
        let mut arena = Arena::new(1 << 20);
        let long = arena.integer(&[0x55; 10_000]).unwrap();
        let text = arena.text(&[b'x'; 10_000]).unwrap();
        let bytes = arena.bytes(&[0xff; 10_000]).unwrap();
        let all = (MEMORY_AT_LEAST + 1_000 * MEMORY_PER_BYTE) as usize;
        for item in [long, text, bytes] {
            let count = made(|builder| builder.scalar(&arena, item).map(drop));
            assert!(count * 10_000 <= all, "{item:?}: {count}");
            let count = made(|builder| builder.list(&arena, &[item, item]).map(drop));
            assert!(count * 20_000 <= all, "{item:?}: {count}");
        }
        let name = "n".repeat(10_000);
        assert!(made(|builder| builder.opaque((&name, &name)).map(drop)) * 20_000 <= all);
        assert!(made(|builder| builder.text(&name).map(drop)) * 10_000 <= all);
        assert!(made(|builder| builder.steps([&*name].into_iter()).map(drop)) * 10_000 <= all);
        assert!(made(|builder| builder.blob(1).map(drop)) < all);
        assert!(made(|builder| builder.list(&arena, &[]).map(drop)) < all);
    }
}
