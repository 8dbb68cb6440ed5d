//! Key-values: their types, how they are read, and how they are written.
//!
//! Attributes are [`Value`]s, which have one kind of integer and one of float. So
//! that a file can be written again exactly, the types that
//! [`Type::default_for`] would not choose are kept beside them, in an attribute
//! named [`TYPES`]: a map from key to the name of its type, such as `i32` or `[u16]`.

use crate::error::{Error, Result, quoted};
use crate::source::{Cursor, Source};
use crate::tensor::value::Value;

/// The attribute that maps keys to the types that writing would not guess.
pub(crate) const TYPES: &str = "gguf.types";

/// The byte order of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Little,
    Big,
}

/// A cursor that reads numbers in the file's byte order.
pub(crate) struct Numbers<'a> {
    pub(crate) cursor: Cursor<'a>,
    order: Order,
    /// Bytes of memory that array elements may still take: a small number in a
    /// file is a large [`Value`], and a file must not cost far more than its size.
    budget: u64,
}

impl<'a> Numbers<'a> {
    /// A cursor over a source, from `start` on.
    pub(crate) fn new(source: &'a dyn Source, order: Order, start: u64) -> Numbers<'a> {
        let budget = (16 << 20) + source.len().saturating_mul(8);
        Numbers { cursor: Cursor::over(source, start..source.len()), order, budget }
    }

    /// The next `N` bytes, the least significant one first.
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = self.cursor.array()?;
        if self.order == Order::Big {
            bytes.reverse();
        }
        Ok(bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    /// A count of things that take at least `least` bytes each.
    pub(crate) fn count(&mut self, what: &str, least: u64) -> Result<u64> {
        let count = self.u64()?;
        match self.cursor.remaining() / least {
            most if count <= most => Ok(count),
            most => Err(Error::corrupt(
                "gguf.count",
                format!("the file declares {count} {what} where at most {most} can follow"),
            )),
        }
    }

    /// A string's bytes, which should be UTF-8.
    fn string_bytes(&mut self) -> Result<&[u8]> {
        let len = self.count("bytes of a string", 1)?;
        self.cursor.take(len)
    }

    /// A key or a name: it must be UTF-8.
    pub(crate) fn name(&mut self, what: &str) -> Result<Box<str>> {
        let bytes = self.string_bytes()?;
        match std::str::from_utf8(bytes) {
            Ok(name) => Ok(name.into()),
            Err(_) => Err(Error::corrupt(
                "gguf.utf8",
                format!("{what} is not UTF-8: {}", quoted(&String::from_utf8_lossy(bytes))),
            )),
        }
    }
}

/// The type of one number, truth value or string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scalar {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Str,
    U64,
    I64,
    F64,
}

/// Types by their number in the file; [`ARRAY`] takes the missing one.
const SCALARS: [(u32, Scalar, &str); 12] = [
    (0, Scalar::U8, "u8"),
    (1, Scalar::I8, "i8"),
    (2, Scalar::U16, "u16"),
    (3, Scalar::I16, "i16"),
    (4, Scalar::U32, "u32"),
    (5, Scalar::I32, "i32"),
    (6, Scalar::F32, "f32"),
    (7, Scalar::Bool, "bool"),
    (8, Scalar::Str, "str"),
    (10, Scalar::U64, "u64"),
    (11, Scalar::I64, "i64"),
    (12, Scalar::F64, "f64"),
];
const ARRAY: u32 = 9;

impl Scalar {
    fn from_id(id: u32) -> Result<Scalar> {
        match SCALARS.iter().find(|row| row.0 == id) {
            Some(row) => Ok(row.1),
            None if id == ARRAY => Err(Error::unsupported(
                "the value is an array of arrays, which no reader of the format agrees on",
            )),
            None => Err(Error::corrupt("gguf.value-type", format!("there is no value type {id}"))),
        }
    }

    fn row(self) -> &'static (u32, Scalar, &'static str) {
        SCALARS.iter().find(|row| row.1 == self).unwrap_or(&SCALARS[0])
    }

    /// The fewest bytes that one takes in a file.
    fn least(self) -> u64 {
        match self {
            Scalar::U8 | Scalar::I8 | Scalar::Bool => 1,
            Scalar::U16 | Scalar::I16 => 2,
            Scalar::U32 | Scalar::I32 | Scalar::F32 => 4,
            Scalar::U64 | Scalar::I64 | Scalar::F64 | Scalar::Str => 8,
        }
    }

    fn read(self, numbers: &mut Numbers<'_>) -> Result<Value> {
        Ok(match self {
            Scalar::U8 => u8::from_le_bytes(numbers.bytes()?).into(),
            Scalar::I8 => i8::from_le_bytes(numbers.bytes()?).into(),
            Scalar::U16 => u16::from_le_bytes(numbers.bytes()?).into(),
            Scalar::I16 => i16::from_le_bytes(numbers.bytes()?).into(),
            Scalar::U32 => u32::from_le_bytes(numbers.bytes()?).into(),
            Scalar::I32 => i32::from_le_bytes(numbers.bytes()?).into(),
            Scalar::U64 => u64::from_le_bytes(numbers.bytes()?).into(),
            Scalar::I64 => i64::from_le_bytes(numbers.bytes()?).into(),
            Scalar::F32 => f64::from(f32::from_le_bytes(numbers.bytes()?)).into(),
            Scalar::F64 => f64::from_le_bytes(numbers.bytes()?).into(),
            Scalar::Bool => match numbers.cursor.u8()? {
                0 => false.into(),
                1 => true.into(),
                other => {
                    return Err(Error::corrupt(
                        "gguf.bool",
                        format!("a boolean is {other} instead of 0 or 1"),
                    ));
                }
            },
            // Some tokenizers have tokens that are not text: they stay bytes.
            Scalar::Str => {
                let bytes = numbers.string_bytes()?;
                match std::str::from_utf8(bytes) {
                    Ok(text) => text.into(),
                    Err(_) => Value::Bytes(bytes.to_vec()),
                }
            }
        })
    }

    /// Appends a value in little-endian form, if it is one of this type.
    fn write(self, value: &Value, out: &mut Vec<u8>) -> Option<()> {
        macro_rules! int {
            ($int:ty) => {
                out.extend_from_slice(&<$int>::try_from(value.as_int()?).ok()?.to_le_bytes())
            };
        }
        match (self, value) {
            (Scalar::U8, _) => int!(u8),
            (Scalar::I8, _) => int!(i8),
            (Scalar::U16, _) => int!(u16),
            (Scalar::I16, _) => int!(i16),
            (Scalar::U32, _) => int!(u32),
            (Scalar::I32, _) => int!(i32),
            (Scalar::U64, _) => int!(u64),
            (Scalar::I64, _) => int!(i64),
            (Scalar::F32, Value::Float(float)) if is_single(*float) => {
                out.extend_from_slice(&(*float as f32).to_le_bytes());
            }
            (Scalar::F64, Value::Float(float)) => out.extend_from_slice(&float.to_le_bytes()),
            (Scalar::Bool, Value::Bool(truth)) => out.push(u8::from(*truth)),
            (Scalar::Str, Value::Text(text)) => write_string(text.as_bytes(), out),
            (Scalar::Str, Value::Bytes(bytes)) => write_string(bytes, out),
            _ => return None,
        }
        Some(())
    }
}

/// Whether a number is a single-precision one, so that writing it as one loses nothing.
fn is_single(float: f64) -> bool {
    float.is_nan() || f64::from(float as f32) == float
}

fn write_string(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// The type of a value: a scalar, or an array of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    One(Scalar),
    Array(Scalar),
}

impl std::fmt::Display for Type {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Type::One(scalar) => f.write_str(scalar.row().2),
            Type::Array(scalar) => write!(f, "[{}]", scalar.row().2),
        }
    }
}

impl Type {
    /// The type of that name, as [`Display`](std::fmt::Display) writes it.
    pub(crate) fn from_name(name: &str) -> Option<Type> {
        let scalar = |name: &str| SCALARS.iter().find(|row| row.2 == name).map(|row| row.1);
        match name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(element) => scalar(element).map(Type::Array),
            None => scalar(name).map(Type::One),
        }
    }

    /// The type that a value is written as when nothing says otherwise: the
    /// first that holds it of those that files mostly use. `None` if none does.
    pub(crate) fn default_for(value: &Value) -> Option<Type> {
        use Scalar::{Bool, F32, F64, I32, I64, Str, U32, U64};
        let holds = |scalar: &Scalar, values: &[Value]| {
            values.iter().all(|value| match (scalar, value) {
                (I32, Value::Int(int)) => i32::try_from(*int).is_ok(),
                (U32, Value::Int(int)) => u32::try_from(*int).is_ok(),
                (I64, Value::Int(int)) => i64::try_from(*int).is_ok(),
                (U64, Value::Int(int)) => u64::try_from(*int).is_ok(),
                (F32, Value::Float(float)) => is_single(*float),
                (F64, Value::Float(_)) => true,
                (Bool, Value::Bool(_)) => true,
                (Str, Value::Text(_) | Value::Bytes(_)) => true,
                _ => false,
            })
        };
        match value {
            Value::Bytes(_) => Some(Type::Array(Scalar::U8)),
            Value::Array(values) => {
                let candidates = [I32, U32, I64, U64, F32, F64, Bool, Str];
                candidates.into_iter().find(|scalar| holds(scalar, values)).map(Type::Array)
            }
            one => {
                let candidates = [U32, I32, U64, I64, F32, F64, Bool, Str];
                let one = std::slice::from_ref(one);
                candidates.into_iter().find(|scalar| holds(scalar, one)).map(Type::One)
            }
        }
    }
}

/// Reads a value and the type in front of it.
pub(crate) fn read(numbers: &mut Numbers<'_>) -> Result<(Type, Value)> {
    let id = numbers.u32()?;
    if id != ARRAY {
        let scalar = Scalar::from_id(id)?;
        return Ok((Type::One(scalar), scalar.read(numbers)?));
    }
    let element = Scalar::from_id(numbers.u32()?)?;
    let count = numbers.count("array elements", element.least())?;
    if element == Scalar::U8 {
        return Ok((Type::Array(element), Value::Bytes(numbers.cursor.take(count)?.to_vec())));
    }
    numbers.budget = (numbers.budget)
        .checked_sub(count.saturating_mul(size_of::<Value>() as u64))
        .ok_or_else(|| Error::limit("the arrays among the key-values take far more memory than the file"))?;
    let mut values = Vec::new();
    (values.try_reserve_exact(count as usize))
        .map_err(|_| Error::limit(format!("not enough memory for an array of {count} values")))?;
    for _ in 0..count {
        values.push(element.read(numbers)?);
    }
    Ok((Type::Array(element), Value::Array(values)))
}

/// Appends a value and its type in little-endian form; an error if it is not of
/// that type.
pub(crate) fn write(kind: Type, value: &Value, out: &mut Vec<u8>) -> Result<()> {
    let misfit = || Error::invalid(format!("the value cannot be written as {kind}"));
    match (kind, value) {
        (Type::One(scalar), _) => {
            out.extend_from_slice(&scalar.row().0.to_le_bytes());
            scalar.write(value, out).ok_or_else(misfit)
        }
        (Type::Array(scalar), Value::Bytes(bytes)) if scalar == Scalar::U8 => {
            write_array_head(scalar, bytes.len(), out);
            out.extend_from_slice(bytes);
            Ok(())
        }
        (Type::Array(scalar), Value::Array(values)) => {
            write_array_head(scalar, values.len(), out);
            values.iter().try_for_each(|value| scalar.write(value, out)).ok_or_else(misfit)
        }
        _ => Err(misfit()),
    }
}

fn write_array_head(element: Scalar, len: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&ARRAY.to_le_bytes());
    out.extend_from_slice(&element.row().0.to_le_bytes());
    out.extend_from_slice(&(len as u64).to_le_bytes());
}

/// Appends a key or a name.
pub(crate) fn write_name(name: &str, out: &mut Vec<u8>) {
    write_string(name.as_bytes(), out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::MemorySource;

    fn round_trip(kind: Type, value: &Value) -> (Type, Value) {
        let mut bytes = Vec::new();
        write(kind, value, &mut bytes).unwrap();
        let source = MemorySource::new(bytes);
        let mut numbers = Numbers::new(&source, Order::Little, 0);
        let back = read(&mut numbers).unwrap();
        assert_eq!(numbers.cursor.remaining(), 0);
        back
    }

    #[test]
    fn every_type_round_trips_at_its_limits() {
        let cases: [(&str, Vec<Value>); 12] = [
            ("u8", vec![0.into(), u8::MAX.into()]),
            ("i8", vec![i8::MIN.into(), i8::MAX.into()]),
            ("u16", vec![0.into(), u16::MAX.into()]),
            ("i16", vec![i16::MIN.into(), i16::MAX.into()]),
            ("u32", vec![0.into(), u32::MAX.into()]),
            ("i32", vec![i32::MIN.into(), i32::MAX.into()]),
            ("u64", vec![0.into(), u64::MAX.into()]),
            ("i64", vec![i64::MIN.into(), i64::MAX.into()]),
            ("f32", vec![f64::from(f32::MIN_POSITIVE).into(), f64::NEG_INFINITY.into()]),
            ("f64", vec![0.1.into(), f64::MAX.into()]),
            ("bool", vec![true.into(), false.into()]),
            ("str", vec!["".into(), "ünïcode".into(), Value::Bytes(vec![0xff, 0])]),
        ];
        for (name, values) in cases {
            let kind = Type::from_name(name).unwrap();
            assert_eq!(kind.to_string(), name);
            for value in &values {
                assert_eq!(round_trip(kind, value), (kind, value.clone()));
            }
            if name != "u8" {
                let array = Type::from_name(&format!("[{name}]")).unwrap();
                let values = Value::Array(values);
                assert_eq!(round_trip(array, &values), (array, values));
            }
        }
        let bytes = Value::Bytes(vec![1, 2, 255]);
        let array = Type::from_name("[u8]").unwrap();
        assert_eq!(round_trip(array, &bytes), (array, bytes));
    }

    #[test]
    fn values_that_do_not_fit_are_refused() {
        let misfits: [(&str, Value); 7] = [
            ("u8", 256.into()),
            ("u32", (-1).into()),
            ("i32", (1i64 << 31).into()),
            ("f32", 0.1.into()),
            ("f64", 1.into()),
            ("[i32]", vec![Value::Int(1), Value::Bool(true)].into()),
            ("str", Value::Null),
        ];
        for (name, value) in misfits {
            assert!(write(Type::from_name(name).unwrap(), &value, &mut Vec::new()).is_err(), "{name}");
        }
    }

    #[test]
    fn guesses_are_the_common_types() {
        let guesses: [(&str, Value); 11] = [
            ("u32", 7.into()),
            ("i32", (-7).into()),
            ("u64", (1i64 << 40).into()),
            ("i64", i64::MIN.into()),
            ("f32", 0.5.into()),
            ("f64", 0.1.into()),
            ("bool", true.into()),
            ("str", "x".into()),
            ("[i32]", vec![1, -1].into()),
            ("[u32]", vec![u32::MAX].into()),
            ("[str]", vec!["a", "b"].into()),
        ];
        for (name, value) in guesses {
            assert_eq!(Type::default_for(&value).unwrap().to_string(), name);
        }
        assert_eq!(Type::default_for(&Value::Null), None);
        assert_eq!(Type::default_for(&vec![Value::Int(1), "a".into()].into()), None);
    }
}
