//! CBOR values: attributes in, attributes out, bounded in depth and size by the bytes there are.

use minicbor::data::Type;
use minicbor::{Decoder, Encoder};

use crate::error::{Error, Result};
use crate::tensor::value::Value;

/// Attributes nested deeper than this are refused.
const MAX_DEPTH: usize = 64;

/// Any CBOR error, as a broken rule.
pub(crate) fn malformed(error: minicbor::decode::Error) -> Error {
    Error::corrupt("zt.manifest-cbor", format!("the manifest is not well-formed CBOR: {error}"))
}

/// Decodes one value of any type.
pub(crate) fn decode_value(d: &mut Decoder<'_>) -> Result<Value> {
    decode_nested(d, MAX_DEPTH)
}

fn decode_nested(d: &mut Decoder<'_>, depth: usize) -> Result<Value> {
    if depth == 0 {
        return Err(Error::corrupt(
            "zt.attribute-depth",
            format!("attributes are nested deeper than {MAX_DEPTH}"),
        ));
    }
    Ok(match d.datatype().map_err(malformed)? {
        Type::Null | Type::Undefined => {
            d.skip().map_err(malformed)?;
            Value::Null
        }
        Type::Bool => Value::Bool(d.bool().map_err(malformed)?),
        Type::F16 | Type::F32 | Type::F64 => Value::Float(decode_float(d)?),
        Type::String | Type::StringIndef => Value::Text(decode_text(d)?),
        Type::Bytes => Value::Bytes(d.bytes().map_err(malformed)?.to_vec()),
        Type::BytesIndef => {
            let mut bytes = Vec::new();
            for part in d.bytes_iter().map_err(malformed)? {
                bytes.extend_from_slice(part.map_err(malformed)?);
            }
            Value::Bytes(bytes)
        }
        Type::Array | Type::ArrayIndef => {
            let mut values = Vec::new();
            let len = d.array().map_err(malformed)?;
            sequence(d, len, |d| {
                values.push(decode_nested(d, depth - 1)?);
                Ok(())
            })?;
            Value::Array(values)
        }
        Type::Map | Type::MapIndef => {
            let mut pairs = Vec::new();
            let len = d.map().map_err(malformed)?;
            sequence(d, len, |d| {
                let key = decode_nested(d, depth - 1)?;
                pairs.push((key, decode_nested(d, depth - 1)?));
                Ok(())
            })?;
            Value::Map(pairs)
        }
        Type::Tag => {
            let tag = d.tag().map_err(malformed)?;
            Value::Tag(tag.as_u64(), Box::new(decode_nested(d, depth - 1)?))
        }
        Type::U8
        | Type::U16
        | Type::U32
        | Type::U64
        | Type::I8
        | Type::I16
        | Type::I32
        | Type::I64
        | Type::Int => Value::Int(i128::from(d.int().map_err(malformed)?)),
        other => {
            return Err(Error::corrupt(
                "zt.manifest-cbor",
                format!("the manifest holds a CBOR item of type {other}"),
            ));
        }
    })
}

/// Half floats need a feature of the decoder; take them by hand instead.
fn decode_float(d: &mut Decoder<'_>) -> Result<f64> {
    match d.datatype().map_err(malformed)? {
        Type::F16 => {
            let at = d.position();
            let bytes = d.input().get(at + 1..at + 3).map(|b| [b[0], b[1]]);
            let bits = bytes.ok_or_else(|| malformed(minicbor::decode::Error::end_of_input()))?;
            d.set_position(at + 3);
            Ok(half::f16::from_bits(u16::from_be_bytes(bits)).to_f64())
        }
        Type::F32 => Ok(f64::from(d.f32().map_err(malformed)?)),
        _ => d.f64().map_err(malformed),
    }
}

/// Text, in one piece or several.
pub(crate) fn decode_text(d: &mut Decoder<'_>) -> Result<String> {
    match d.datatype().map_err(malformed)? {
        Type::StringIndef => {
            let mut text = String::new();
            for part in d.str_iter().map_err(malformed)? {
                text.push_str(part.map_err(malformed)?);
            }
            Ok(text)
        }
        _ => Ok(d.str().map_err(malformed)?.to_owned()),
    }
}

/// Runs `item` for each entry of an array or map of `len` entries, or until the
/// break that ends one of indefinite length. Nothing is reserved from `len`.
pub(crate) fn sequence<'b>(
    d: &mut Decoder<'b>,
    len: Option<u64>,
    mut item: impl FnMut(&mut Decoder<'b>) -> Result<()>,
) -> Result<()> {
    match len {
        Some(len) => (0..len).try_for_each(|_| item(d)),
        None => {
            while d.datatype().map_err(malformed)? != Type::Break {
                item(d)?;
            }
            d.skip().map_err(malformed)
        }
    }
}

/// Encodes one value. Writing to a vector cannot fail.
pub(crate) fn encode_value(e: &mut Encoder<&mut Vec<u8>>, value: &Value) -> Result<()> {
    let outside = |_| Error::invalid("an attribute holds an integer outside -2^64 .. 2^64 - 1");
    match value {
        Value::Null => infallible(e.null()),
        Value::Bool(value) => infallible(e.bool(*value)),
        Value::Int(value) => infallible(e.int(minicbor::data::Int::try_from(*value).map_err(outside)?)),
        Value::Float(value) => infallible(e.f64(*value)),
        Value::Text(value) => infallible(e.str(value)),
        Value::Bytes(value) => infallible(e.bytes(value)),
        Value::Array(values) => {
            infallible(e.array(values.len() as u64));
            values.iter().try_for_each(|value| encode_value(e, value))?;
        }
        Value::Map(pairs) => {
            infallible(e.map(pairs.len() as u64));
            for (key, value) in pairs {
                encode_value(e, key)?;
                encode_value(e, value)?;
            }
        }
        Value::Tag(tag, value) => {
            infallible(e.tag(minicbor::data::Tag::new(*tag)));
            encode_value(e, value)?;
        }
    }
    Ok(())
}

/// Encoding into a vector has no way to fail.
pub(crate) fn infallible<T>(
    result: std::result::Result<T, minicbor::encode::Error<std::convert::Infallible>>,
) {
    if let Err(error) = result {
        unreachable!("encoding into memory failed: {error}");
    }
}
