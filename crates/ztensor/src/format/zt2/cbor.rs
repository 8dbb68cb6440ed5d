//! The CBOR subset of version 2 manifests: RFC 8949 core deterministic encoding, without tags,
//! indefinite lengths and simple values other than `false`, `true` and `null`.
//!
//! [`check`] accepts or rejects a whole item before anything is interpreted; [`Items`] then walks
//! bytes that are known to be well-formed. [`encode`] writes the one encoding that a value has.

use crate::error::{Error, Result};
use crate::tensor::value::{Attributes, Value};

/// The root has depth 0, what it holds depth 1.
pub(super) const MAX_DEPTH: usize = 32;

const UINT: u8 = 0;
const NINT: u8 = 1;
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const ARRAY: u8 = 4;
const MAP: u8 = 5;

const FALSE: u8 = 0xf4;
const TRUE: u8 = 0xf5;
const NULL: u8 = 0xf6;
const HALF: u8 = 0xf9;
const SINGLE: u8 = 0xfa;
const DOUBLE: u8 = 0xfb;
/// The one NaN there is, as a half.
const NAN: u16 = 0x7e00;

#[cold]
fn syntax(at: usize, what: &str) -> Error {
    Error::corrupt("zt2.CborSyntax", format!("byte {at} of the manifest: {what}"))
}

#[cold]
fn indeterminate(at: usize, what: &str) -> Error {
    Error::corrupt("zt2.CborDeterminism", format!("byte {at} of the manifest: {what}"))
}

/// Checks that `bytes` are exactly one item of the subset, and nothing behind it.
pub(super) fn check(bytes: &[u8]) -> Result<()> {
    let mut walk = Walk { bytes, at: 0 };
    walk.item(0)?;
    match walk.at == bytes.len() {
        true => Ok(()),
        false => Err(syntax(walk.at, "bytes follow the item")),
    }
}

struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Walk<'a> {
    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8]> {
        if len > self.left() as u64 {
            return Err(syntax(self.at, "a length exceeds the bytes that are left"));
        }
        let taken = &self.bytes[self.at..self.at + len as usize];
        self.at += len as usize;
        Ok(taken)
    }

    fn number<const N: usize>(&mut self) -> Result<u64> {
        let mut number = [0; 8];
        number[8 - N..].copy_from_slice(self.take(N as u64)?);
        Ok(u64::from_be_bytes(number))
    }

    /// The number that a head with `info` has, in its shortest form.
    fn argument(&mut self, info: u8) -> Result<u64> {
        let start = self.at - 1;
        let (number, least) = match info {
            0..=23 => return Ok(u64::from(info)),
            24 => (self.number::<1>()?, 24),
            25 => (self.number::<2>()?, 1 << 8),
            26 => (self.number::<4>()?, 1 << 16),
            27 => (self.number::<8>()?, 1 << 32),
            _ => return Err(syntax(start, "an indefinite length, or a reserved head")),
        };
        match number >= least {
            true => Ok(number),
            false => Err(indeterminate(start, "a head is longer than it needs to be")),
        }
    }

    fn item(&mut self, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            let message = format!("byte {} of the manifest: nesting deeper than {MAX_DEPTH}", self.at);
            return Err(Error::corrupt("zt2.CborDepth", message));
        }
        let start = self.at;
        let Some(&head) = self.bytes.get(start) else {
            return Err(syntax(start, "the manifest ends early"));
        };
        self.at += 1;
        let (major, info) = (head >> 5, head & 0x1f);
        match major {
            UINT | NINT => drop(self.argument(info)?),
            BYTES => {
                let len = self.argument(info)?;
                self.take(len)?;
            }
            TEXT => {
                let len = self.argument(info)?;
                if std::str::from_utf8(self.take(len)?).is_err() {
                    return Err(syntax(start, "text is not UTF-8"));
                }
            }
            ARRAY => {
                let count = self.argument(info)?;
                if count > self.left() as u64 {
                    return Err(syntax(start, "an array has more elements than bytes are left"));
                }
                (0..count).try_for_each(|_| self.item(depth + 1))?;
            }
            MAP => self.map(info, start, depth)?,
            6 => return Err(syntax(start, "tags are not allowed")),
            _ => self.simple(head, start)?,
        }
        Ok(())
    }

    /// Keys ascend by their encoded bytes.
    fn map(&mut self, info: u8, start: usize, depth: usize) -> Result<()> {
        let count = self.argument(info)?;
        if count.checked_mul(2).is_none_or(|least| least > self.left() as u64) {
            return Err(syntax(start, "a map has more entries than bytes are left"));
        }
        let mut before: &[u8] = &[];
        for _ in 0..count {
            let at = self.at;
            self.item(depth + 1)?;
            let key = &self.bytes[at..self.at];
            if key <= before {
                return Err(match key == before {
                    true => {
                        let message = format!("byte {at} of the manifest: a key comes twice in one map");
                        Error::corrupt("zt2.CborDuplicateKey", message)
                    }
                    false => indeterminate(at, "the keys of a map do not ascend"),
                });
            }
            before = key;
            self.item(depth + 1)?;
        }
        Ok(())
    }

    fn simple(&mut self, head: u8, start: usize) -> Result<()> {
        let shortest = match head {
            FALSE | TRUE | NULL => true,
            HALF => {
                let half = half::f16::from_bits(self.number::<2>()? as u16);
                !half.is_nan() || half.to_bits() == NAN
            }
            SINGLE => {
                let single = f32::from_bits(self.number::<4>()? as u32);
                !single.is_nan() && half(f64::from(single)).is_none()
            }
            DOUBLE => {
                let double = f64::from_bits(self.number::<8>()?);
                !double.is_nan() && single(double).is_none()
            }
            _ => return Err(syntax(start, "a simple value other than false, true and null")),
        };
        match shortest {
            true => Ok(()),
            false => Err(indeterminate(start, "a float is not in its shortest form")),
        }
    }
}

/// The half that has exactly this value.
fn half(value: f64) -> Option<half::f16> {
    let half = half::f16::from_f64(value);
    (half.to_f64().to_bits() == value.to_bits()).then_some(half)
}

/// The single that has exactly this value.
fn single(value: f64) -> Option<f32> {
    let single = value as f32;
    (f64::from(single).to_bits() == value.to_bits()).then_some(single)
}

/// What an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ItemKind {
    Uint,
    Text,
    Array,
    Map,
    Other,
}

/// A walk through items that [`check`] has accepted: nothing here can fail.
#[derive(Debug, Clone)]
pub(super) struct Items<'a> {
    bytes: &'a [u8],
}

impl<'a> Items<'a> {
    /// `bytes` are those that [`check`] accepted.
    pub(super) fn new(bytes: &'a [u8]) -> Items<'a> {
        Items { bytes }
    }

    /// What comes next.
    pub(super) fn kind(&self) -> ItemKind {
        match self.bytes.first().map(|head| head >> 5) {
            Some(UINT) => ItemKind::Uint,
            Some(TEXT) => ItemKind::Text,
            Some(ARRAY) => ItemKind::Array,
            Some(MAP) => ItemKind::Map,
            _ => ItemKind::Other,
        }
    }

    fn advance(&mut self, len: usize) -> &'a [u8] {
        // `check` has compared every length with the bytes there are.
        let (taken, rest) = self.bytes.split_at(len.min(self.bytes.len()));
        self.bytes = rest;
        taken
    }

    /// The number of the next head.
    fn argument(&mut self) -> u64 {
        let info = self.advance(1).first().map_or(0, |head| head & 0x1f);
        let len = match info {
            0..=23 => return u64::from(info),
            24 => 1,
            25 => 2,
            26 => 4,
            _ => 8,
        };
        self.advance(len).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// An unsigned number, if that is what comes next.
    pub(super) fn uint(&mut self) -> Option<u64> {
        (self.kind() == ItemKind::Uint).then(|| self.argument())
    }

    /// Text, if that is what comes next.
    pub(super) fn text(&mut self) -> Option<&'a str> {
        if self.kind() != ItemKind::Text {
            return None;
        }
        let len = self.argument() as usize;
        std::str::from_utf8(self.advance(len)).ok()
    }

    /// How many elements the array that comes next has.
    pub(super) fn array(&mut self) -> Option<u64> {
        (self.kind() == ItemKind::Array).then(|| self.argument())
    }

    /// How many entries the map that comes next has.
    pub(super) fn map(&mut self) -> Option<u64> {
        (self.kind() == ItemKind::Map).then(|| self.argument())
    }

    /// Passes over one item.
    pub(super) fn skip(&mut self) {
        let mut items = 1u64;
        while items > 0 && !self.bytes.is_empty() {
            items -= 1;
            let head = self.bytes[0];
            match head >> 5 {
                UINT | NINT => drop(self.argument()),
                BYTES | TEXT => {
                    let len = self.argument() as usize;
                    self.advance(len);
                }
                ARRAY => items += self.argument(),
                MAP => items += 2 * self.argument(),
                _ => {
                    let len = match head {
                        HALF => 3,
                        SINGLE => 5,
                        DOUBLE => 9,
                        _ => 1,
                    };
                    self.advance(len);
                }
            }
        }
    }

    /// The value that comes next. Recursion is bounded by the depth that was checked.
    pub(super) fn value(&mut self) -> Value {
        let head = self.bytes.first().copied().unwrap_or(NULL);
        match head >> 5 {
            UINT => Value::Int(i128::from(self.argument())),
            NINT => Value::Int(-1 - i128::from(self.argument())),
            BYTES => {
                let len = self.argument() as usize;
                Value::Bytes(self.advance(len).to_vec())
            }
            TEXT => Value::Text(self.text().unwrap_or_default().to_owned()),
            ARRAY => {
                let count = self.argument();
                Value::Array((0..count).map(|_| self.value()).collect())
            }
            MAP => {
                let count = self.argument();
                Value::Map((0..count).map(|_| (self.value(), self.value())).collect())
            }
            _ => {
                self.advance(1);
                let mut number = |len| self.advance(len).iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
                match head {
                    FALSE => Value::Bool(false),
                    TRUE => Value::Bool(true),
                    HALF => Value::Float(half::f16::from_bits(number(2) as u16).to_f64()),
                    SINGLE => Value::Float(f64::from(f32::from_bits(number(4) as u32))),
                    DOUBLE => Value::Float(f64::from_bits(number(8))),
                    _ => Value::Null,
                }
            }
        }
    }
}

/// The head of an item: a major type and a number, in the shortest form.
fn head(out: &mut Vec<u8>, major: u8, number: u64) {
    let major = major << 5;
    match number {
        0..=23 => out.push(major | number as u8),
        24..=0xff => out.extend_from_slice(&[major | 24, number as u8]),
        0x100..=0xffff => {
            out.push(major | 25);
            out.extend_from_slice(&(number as u16).to_be_bytes());
        }
        0x1_0000..=0xffff_ffff => {
            out.push(major | 26);
            out.extend_from_slice(&(number as u32).to_be_bytes());
        }
        _ => {
            out.push(major | 27);
            out.extend_from_slice(&number.to_be_bytes());
        }
    }
}

pub(super) fn uint(out: &mut Vec<u8>, number: u64) {
    head(out, UINT, number);
}

pub(super) fn text(out: &mut Vec<u8>, text: &str) {
    head(out, TEXT, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

pub(super) fn array(out: &mut Vec<u8>, len: usize) {
    head(out, ARRAY, len as u64);
}

pub(super) fn map(out: &mut Vec<u8>, len: usize) {
    head(out, MAP, len as u64);
}

/// Whether the text key `a` comes before `b`: the encoding of a shorter key is smaller.
pub(super) fn key_order(a: &str, b: &str) -> std::cmp::Ordering {
    a.len().cmp(&b.len()).then_with(|| a.as_bytes().cmp(b.as_bytes()))
}

/// Writes a value in the only way it can be written. `depth` is that of the value.
pub(super) fn encode(out: &mut Vec<u8>, value: &Value, depth: usize) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(Error::unsupported(format!("an attribute is nested deeper than {MAX_DEPTH} levels")));
    }
    match value {
        Value::Null => out.push(NULL),
        Value::Bool(value) => out.push(if *value { TRUE } else { FALSE }),
        Value::Int(value) => {
            let outside = || Error::invalid("an attribute holds an integer outside -2^64 .. 2^64 - 1");
            match *value {
                0.. => head(out, UINT, u64::try_from(*value).map_err(|_| outside())?),
                _ => head(out, NINT, u64::try_from(-1 - *value).map_err(|_| outside())?),
            }
        }
        Value::Float(value) => float(out, *value)?,
        Value::Text(value) => text(out, value),
        Value::Bytes(value) => {
            head(out, BYTES, value.len() as u64);
            out.extend_from_slice(value);
        }
        Value::Array(values) => {
            array(out, values.len());
            values.iter().try_for_each(|value| encode(out, value, depth + 1))?;
        }
        Value::Map(pairs) => {
            let mut entries = Vec::with_capacity(pairs.len());
            for (key, value) in pairs {
                let (mut encoded, mut content) = (Vec::new(), Vec::new());
                encode(&mut encoded, key, depth + 1)?;
                encode(&mut content, value, depth + 1)?;
                entries.push((encoded, content));
            }
            entries.sort_unstable();
            if entries.windows(2).any(|pair| pair[0].0 == pair[1].0) {
                return Err(Error::invalid("an attribute holds a map with the same key twice"));
            }
            map(out, entries.len());
            for (key, value) in entries {
                out.extend_from_slice(&key);
                out.extend_from_slice(&value);
            }
        }
        Value::Tag(tag, _) => {
            return Err(Error::unsupported(format!(
                "an attribute holds the CBOR tag {tag}, which .zt version 2 has no place for"
            )));
        }
    }
    Ok(())
}

fn float(out: &mut Vec<u8>, value: f64) -> Result<()> {
    const CANONICAL_NAN: u64 = 0x7ff8 << 48;
    if value.is_nan() && value.to_bits() != CANONICAL_NAN {
        return Err(Error::unsupported("an attribute holds a NaN with a sign or a payload"));
    }
    if let Some(half) = half(value) {
        out.push(HALF);
        out.extend_from_slice(&half.to_bits().to_be_bytes());
    } else if let Some(single) = single(value) {
        out.push(SINGLE);
        out.extend_from_slice(&single.to_bits().to_be_bytes());
    } else {
        out.push(DOUBLE);
        out.extend_from_slice(&value.to_bits().to_be_bytes());
    }
    Ok(())
}

/// Writes an attribute map. `depth` is that of the map.
pub(super) fn attributes(out: &mut Vec<u8>, attributes: &Attributes, depth: usize) -> Result<()> {
    let mut sorted: Vec<(&String, &Value)> = attributes.iter().collect();
    sorted.sort_unstable_by(|a, b| key_order(a.0, b.0));
    map(out, sorted.len());
    for (key, value) in sorted {
        text(out, key);
        encode(out, value, depth + 1).map_err(|error| error.within(crate::error::quoted(key)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            any::<u64>().prop_map(|n| Value::Int(i128::from(n))),
            any::<u64>().prop_map(|n| Value::Int(-1 - i128::from(n))),
            any::<u8>().prop_map(|n| Value::Int(i128::from(n))),
            any::<f64>().prop_map(|n| Value::Float(if n.is_nan() { 0.5 } else { n })),
            any::<f32>().prop_map(|n| Value::Float(if n.is_nan() { -0.0 } else { f64::from(n) })),
            any::<i8>().prop_map(|n| Value::Float(f64::from(n))),
            ".{0,40}".prop_map(Value::Text),
            proptest::collection::vec(any::<u8>(), 0..40).prop_map(Value::Bytes),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
                proptest::collection::btree_map(".{0,6}", inner, 0..6).prop_map(|map| {
                    let mut pairs: Vec<(String, Value)> = map.into_iter().collect();
                    pairs.sort_by(|a, b| key_order(&a.0, &b.0));
                    Value::Map(pairs.into_iter().map(|(key, value)| (Value::Text(key), value)).collect())
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_accepted_and_read_back(value in values()) {
            let mut bytes = Vec::new();
            encode(&mut bytes, &value, 0).unwrap();
            check(&bytes).unwrap();
            prop_assert_eq!(&Items::new(&bytes).value(), &value);
            let mut items = Items::new(&bytes);
            items.skip();
            prop_assert!(items.bytes.is_empty());
            for cut in 0..bytes.len() {
                prop_assert_eq!(check(&bytes[..cut]).unwrap_err().rule(), Some("zt2.CborSyntax"));
            }
        }

        /// Bytes that are accepted have one encoding: their own.
        #[test]
        fn what_is_accepted_is_encoded_to_the_same_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..24)) {
            if check(&bytes).is_ok() {
                let mut again = Vec::new();
                encode(&mut again, &Items::new(&bytes).value(), 0).unwrap();
                prop_assert_eq!(again, bytes);
            }
        }
    }

    #[test]
    fn broken_items_name_their_rule() {
        let nested = |levels: usize| [vec![0x81; levels], vec![0x00]].concat();
        let cases: &[(&str, Vec<u8>)] = &[
            ("zt2.CborSyntax", vec![]),
            ("zt2.CborSyntax", vec![0x00, 0x00]),
            ("zt2.CborSyntax", vec![0xc0, 0x00]),
            ("zt2.CborSyntax", vec![0x9f, 0xff]),
            ("zt2.CborSyntax", vec![0x1c]),
            ("zt2.CborSyntax", vec![0xf7]),
            ("zt2.CborSyntax", vec![0xf8, 0xff]),
            ("zt2.CborSyntax", vec![0xe0]),
            ("zt2.CborSyntax", vec![0x62, 0xc3, 0x28]),
            ("zt2.CborSyntax", vec![0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
            ("zt2.CborSyntax", vec![0xbb, 0x80, 0, 0, 0, 0, 0, 0, 0]),
            ("zt2.CborSyntax", vec![0x5b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
            ("zt2.CborDeterminism", vec![0x18, 0x05]),
            ("zt2.CborDeterminism", vec![0x19, 0x00, 0xff]),
            ("zt2.CborDeterminism", vec![0x78, 0x01, b'a']),
            ("zt2.CborDeterminism", vec![0xa2, 0x61, b'b', 0, 0x61, b'a', 0]),
            ("zt2.CborDeterminism", vec![0xa2, 0x62, b'a', b'a', 0, 0x61, b'b', 0]),
            ("zt2.CborDeterminism", vec![0xfa, 0x3f, 0x80, 0, 0]),
            ("zt2.CborDeterminism", vec![0xfb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0]),
            ("zt2.CborDeterminism", vec![0xf9, 0x7e, 0x01]),
            ("zt2.CborDeterminism", vec![0xf9, 0xfe, 0x00]),
            ("zt2.CborDeterminism", vec![0xfa, 0x7f, 0xc0, 0, 0]),
            ("zt2.CborDuplicateKey", vec![0xa2, 0x61, b'a', 0, 0x61, b'a', 0]),
            ("zt2.CborDepth", nested(33)),
        ];
        for (rule, bytes) in cases {
            assert_eq!(check(bytes).unwrap_err().rule(), Some(*rule), "{bytes:02x?}");
        }
        check(&nested(32)).unwrap();
        for (value, bytes) in
            [(1.0, &[0xf9, 0x3c, 0][..]), (-0.0, &[0xf9, 0x80, 0]), (f64::NAN, &[0xf9, 0x7e, 0])]
        {
            let mut out = Vec::new();
            encode(&mut out, &Value::Float(value), 0).unwrap();
            assert_eq!(out, bytes);
            check(&out).unwrap();
        }
    }
}
