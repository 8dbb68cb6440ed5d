//! Datatypes: which of ours a dataset's elements are.

use crate::catalog::{MAX_RANK, Shape};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::format::hdf5::fields::Fields;
use crate::tensor::value::Value;

/// How deep types are nested in types; more is refused.
const MAX_DEPTH: usize = 16;

/// What the elements of a dataset are.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Type {
    /// Numbers.
    Number(Number),
    /// Arrays of a fixed shape.
    Array { shape: Shape, base: Box<Type> },
    /// Text of a fixed length.
    Text { len: u64 },
    /// Text of any length, in a heap.
    LongText,
    /// Anything else: a layout's name, and what it is.
    Other { size: u64, layout: &'static str, what: String },
}

/// A number's type, and how it is stored.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Number {
    pub(super) dtype: DType,
    /// Whether each number (each part of a complex one) is stored highest byte first.
    pub(super) big_endian: bool,
    /// The names of values, if it is an enumeration.
    pub(super) names: Vec<(Value, Value)>,
}

impl Number {
    /// Bytes per number, or per part of a complex one.
    pub(super) fn width(&self) -> usize {
        self.dtype.alignment()
    }
}

impl Type {
    /// Bytes of one element in the file.
    pub(super) fn size(&self) -> Option<u64> {
        match self {
            Type::Number(number) => number.dtype.size().map(|size| size as u64),
            Type::Array { shape, base } => {
                crate::catalog::elements(shape).and_then(|count| count.checked_mul(base.size()?))
            }
            Type::Text { len } => Some(*len),
            Type::LongText => None,
            Type::Other { size, .. } => Some(*size),
        }
    }

    /// Parses a datatype message.
    pub(super) fn parse(bytes: &[u8]) -> Result<Type> {
        parse(&mut Fields::new(bytes), 0)
    }
}

fn other(size: u64, layout: &'static str, what: impl Into<String>) -> Type {
    Type::Other { size, layout, what: what.into() }
}

fn number(dtype: DType, big_endian: bool) -> Type {
    Type::Number(Number { dtype, big_endian, names: Vec::new() })
}

fn parse(fields: &mut Fields<'_>, depth: usize) -> Result<Type> {
    if depth > MAX_DEPTH {
        return Err(Error::corrupt(
            "hdf5.datatype",
            format!("types are nested over {MAX_DEPTH} levels deep"),
        ));
    }
    let head = fields.u32()?;
    let (class, version, flags) = (head & 0x0f, head >> 4 & 0x0f, head >> 8);
    let size = u64::from(fields.u32()?);
    if size == 0 && class != 3 {
        return Err(Error::corrupt("hdf5.datatype", "a type has a size of 0"));
    }
    Ok(match class {
        0 | 4 => integer(fields, flags, size, class == 0)?,
        1 => float(fields, flags, size)?,
        2 => {
            fields.skip(2)?;
            other(size, "hdf5.time", "times")
        }
        3 => Type::Text { len: size },
        5 => {
            let tag = fields.take((flags as usize & 0xff).next_multiple_of(8))?;
            let tag = String::from_utf8_lossy(tag);
            let tag = crate::error::quoted(tag.trim_end_matches('\0'));
            other(size, "hdf5.opaque", format!("opaque bytes tagged {tag}"))
        }
        6 => compound(fields, flags, size, version, depth)?,
        7 => other(size, "hdf5.reference", "references to other objects"),
        8 => enumeration(fields, flags, version, depth)?,
        9 => {
            let base = parse(fields, depth + 1)?;
            match (flags & 0x0f, base) {
                (1, _) => Type::LongText,
                (_, _) => other(size, "hdf5.vlen", "lists of various lengths"),
            }
        }
        10 => array(fields, size, version, depth)?,
        11 => match parse(fields, depth + 1)? {
            Type::Number(part) => complex(&part, &part, size)
                .unwrap_or_else(|| other(size, "hdf5.complex", format!("complex numbers of {size} bytes"))),
            _ => other(size, "hdf5.complex", "complex numbers of an unusual kind"),
        },
        class => return Err(Error::unsupported(format!("the datatype class {class} is not known"))),
    })
}

fn integer(fields: &mut Fields<'_>, flags: u32, size: u64, is_number: bool) -> Result<Type> {
    let (offset, precision) = (fields.u16()?, fields.u16()?);
    let signed = is_number && flags & 0x08 != 0;
    let dtype = match (size, signed) {
        (1, true) => DType::I8,
        (2, true) => DType::I16,
        (4, true) => DType::I32,
        (8, true) => DType::I64,
        (1, false) => DType::U8,
        (2, false) => DType::U16,
        (4, false) => DType::U32,
        (8, false) => DType::U64,
        _ => return Ok(other(size, "hdf5.integer", format!("integers of {size} bytes"))),
    };
    if offset != 0 || u64::from(precision) != size * 8 {
        let what = format!("integers of {precision} bits at bit {offset} of {size} bytes");
        return Ok(other(size, "hdf5.integer", what));
    }
    Ok(number(dtype, flags & 1 != 0))
}

/// Floats are told by their bits: where sign, exponent and mantissa are.
fn float(fields: &mut Fields<'_>, flags: u32, size: u64) -> Result<Type> {
    let (offset, precision) = (fields.u16()?, fields.u16()?);
    let (exponent_at, exponent, mantissa_at, mantissa) =
        (fields.u8()?, fields.u8()?, fields.u8()?, fields.u8()?);
    let bias = fields.u32()?;
    let (sign_at, implied_one) = (flags >> 8 & 0xff, flags >> 4 & 3 == 2);
    let bits = (size, exponent, mantissa, bias);
    let dtype = match bits {
        (8, 11, 52, 1023) => Some(DType::F64),
        (4, 8, 23, 127) => Some(DType::F32),
        (2, 5, 10, 15) => Some(DType::F16),
        (2, 8, 7, 127) => Some(DType::BF16),
        (1, 5, 2, 15) => Some(DType::F8E5M2),
        _ => None,
    };
    let usual = offset == 0
        && u64::from(precision) == size * 8
        && mantissa_at == 0
        && exponent_at == mantissa
        && u64::from(sign_at) == size * 8 - 1
        && implied_one
        && flags & 0x40 == 0;
    match dtype.filter(|_| usual) {
        Some(dtype) => Ok(number(dtype, flags & 1 != 0)),
        None => {
            let what = format!(
                "floats of {size} bytes with {exponent} bits of exponent (bias {bias}) and {mantissa} of mantissa"
            );
            Ok(other(size, "hdf5.float", what))
        }
    }
}

fn compound(fields: &mut Fields<'_>, flags: u32, size: u64, version: u32, depth: usize) -> Result<Type> {
    let count = flags & 0xffff;
    let offset_width = match size {
        0..=0xff => 1,
        0x100..=0xffff => 2,
        0x1_0000..=0xff_ffff => 3,
        _ => 4,
    };
    let mut members: Vec<(Vec<u8>, u64, Type)> = Vec::new();
    for _ in 0..count {
        let name = fields.terminated()?.to_vec();
        if version < 3 {
            // The name and its zero byte are padded to a multiple of eight.
            fields.skip((name.len() + 1).next_multiple_of(8) - (name.len() + 1))?;
        }
        let offset = fields.number(if version < 3 { 4 } else { offset_width })?;
        if version == 1 {
            fields.skip(28)?;
        }
        let member = parse(fields, depth + 1)?;
        // Only pairs of numbers are of interest; the rest is walked past.
        if members.len() < 3 {
            members.push((name, offset, member));
        }
    }
    if let [(real, 0, Type::Number(first)), (imaginary, offset, Type::Number(second))] = &members[..]
        && matches!((&real[..], &imaginary[..]), (b"r", b"i") | (b"real", b"imag"))
        && offset * 2 == size
        && let Some(complex) = complex(first, second, size)
    {
        return Ok(complex);
    }
    Ok(other(size, "hdf5.compound", format!("records of {count} fields")))
}

fn complex(real: &Number, imaginary: &Number, size: u64) -> Option<Type> {
    let dtype = match (real.dtype, size) {
        (DType::F16, 4) => DType::C32,
        (DType::F32, 8) => DType::C64,
        (DType::F64, 16) => DType::C128,
        _ => return None,
    };
    (real == imaginary).then(|| number(dtype, real.big_endian))
}

fn enumeration(fields: &mut Fields<'_>, flags: u32, version: u32, depth: usize) -> Result<Type> {
    let base = parse(fields, depth + 1)?;
    let Type::Number(base) = base else {
        return Ok(other(base.size().unwrap_or(0), "hdf5.enum", "an enumeration of something unusual"));
    };
    let count = flags & 0xffff;
    let mut names = Vec::new();
    for _ in 0..count {
        let name = fields.terminated()?;
        if version < 3 {
            fields.skip((name.len() + 1).next_multiple_of(8) - (name.len() + 1))?;
        }
        names.push(String::from_utf8_lossy(name).into_owned());
    }
    let width = base.dtype.size().unwrap_or(1);
    let mut values = Vec::new();
    for _ in 0..count {
        values.push(scalar(&base, fields.take(width)?));
    }
    let is_bool = base.dtype.size() == Some(1)
        && names == ["FALSE", "TRUE"]
        && values == [Value::Int(0), Value::Int(1)];
    if is_bool {
        return Ok(number(DType::Bool, false));
    }
    let names = names.into_iter().map(Value::Text).zip(values).collect();
    Ok(Type::Number(Number { names, ..base }))
}

fn array(fields: &mut Fields<'_>, size: u64, version: u32, depth: usize) -> Result<Type> {
    let rank = usize::from(fields.u8()?);
    if rank > MAX_RANK {
        return Err(Error::corrupt("object.rank", format!("an array type has {rank} dimensions")));
    }
    if version < 3 {
        fields.skip(3)?;
    }
    let mut shape = Shape::new();
    for _ in 0..rank {
        shape.push(u64::from(fields.u32()?));
    }
    if version < 3 {
        fields.skip(4 * rank)?;
    }
    let array = Type::Array { shape, base: Box::new(parse(fields, depth + 1)?) };
    // Text of any length has no size of its own here.
    match array.size() {
        Some(found) if found != size => {
            Err(Error::corrupt("hdf5.datatype", format!("an array type of {found} bytes says it has {size}")))
        }
        _ => Ok(array),
    }
}

/// One number as an attribute's value; `bytes` has the number's size.
pub(super) fn scalar(number: &Number, bytes: &[u8]) -> Value {
    let mut bytes = bytes.to_vec();
    if number.big_endian {
        bytes.chunks_exact_mut(number.width().max(1)).for_each(<[u8]>::reverse);
    }
    let bits = bytes.iter().rev().fold(0u128, |value, &byte| value << 8 | u128::from(byte));
    match number.dtype {
        DType::F64 => Value::Float(f64::from_bits(bits as u64)),
        DType::F32 => Value::Float(f64::from(f32::from_bits(bits as u32))),
        DType::F16 => Value::Float(half::f16::from_bits(bits as u16).to_f64()),
        DType::BF16 => Value::Float(half::bf16::from_bits(bits as u16).to_f64()),
        DType::I64 => Value::from(bits as i64),
        DType::I32 => Value::from(bits as i32),
        DType::I16 => Value::from(bits as i16),
        DType::I8 => Value::from(bits as i8),
        DType::U64 | DType::U32 | DType::U16 | DType::U8 => Value::Int(bits as i128),
        DType::Bool => Value::Bool(bits != 0),
        _ => Value::Bytes(bytes),
    }
}
