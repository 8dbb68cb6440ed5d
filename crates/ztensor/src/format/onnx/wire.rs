//! The protobuf wire format, walked in place: fields are found and passed over
//! by their lengths, so that what is not needed is never read.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::source::Cursor;

/// What a field holds, by its wire type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Payload {
    /// A number of variable length.
    Varint(u64),
    /// Four or eight bytes, a little-endian number.
    Fixed(Range<u64>),
    /// A length and that many bytes: text, bytes, a message or packed numbers.
    Bytes(Range<u64>),
}

/// One field of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) number: u64,
    pub(crate) payload: Payload,
    /// Where its tag stands and where its payload ends.
    pub(crate) span: Range<u64>,
    /// Bytes that the tag takes.
    pub(crate) tag_len: u64,
}

impl Field {
    fn read(cursor: &mut Cursor<'_>, end: u64) -> Result<Field> {
        let start = cursor.position();
        let tag = varint(cursor)?;
        let tag_len = cursor.position() - start;
        let number = tag >> 3;
        if number == 0 || number > MAX_FIELD {
            return Err(Error::corrupt(
                "onnx.wire",
                format!("the field number {number} at byte {start} is not one of 1 to {MAX_FIELD}"),
            ));
        }
        let payload = match tag & 7 {
            0 => Payload::Varint(varint(cursor)?),
            1 => Payload::Fixed(pass(cursor, 8, end)?),
            2 => {
                let len = varint(cursor)?;
                Payload::Bytes(pass(cursor, len, end)?)
            }
            5 => Payload::Fixed(pass(cursor, 4, end)?),
            other => {
                return Err(Error::corrupt(
                    "onnx.wire",
                    format!("field {number} at byte {start} has the wire type {other}, which is not used"),
                ));
            }
        };
        if cursor.position() > end {
            return Err(outside(start, end));
        }
        Ok(Field { number, payload, span: start..cursor.position(), tag_len })
    }

    fn wrong_type(&self, wanted: &str) -> Error {
        Error::corrupt(
            "onnx.wire",
            format!("field {} at byte {} is not {wanted}", self.number, self.span.start),
        )
    }

    /// The field's number, if that is what it holds.
    pub(crate) fn varint(&self) -> Result<u64> {
        match self.payload {
            Payload::Varint(value) => Ok(value),
            _ => Err(self.wrong_type("a number")),
        }
    }

    /// The field's bytes, if that is what it holds.
    pub(crate) fn bytes(&self) -> Result<Range<u64>> {
        match &self.payload {
            Payload::Bytes(range) => Ok(range.clone()),
            _ => Err(self.wrong_type("a message or text")),
        }
    }
}

/// The largest field number that protobuf allows.
const MAX_FIELD: u64 = (1 << 29) - 1;

fn outside(start: u64, end: u64) -> Error {
    Error::corrupt("onnx.wire", format!("the field at byte {start} passes the end of its message at {end}"))
}

/// The range of the next `len` bytes, which are passed over.
fn pass(cursor: &mut Cursor<'_>, len: u64, end: u64) -> Result<Range<u64>> {
    let start = cursor.position();
    match start.checked_add(len) {
        Some(stop) if stop <= end => {
            cursor.skip(len)?;
            Ok(start..stop)
        }
        _ => Err(outside(start, end)),
    }
}

/// A number of at most ten bytes, seven bits each, lowest first.
pub(crate) fn varint(cursor: &mut Cursor<'_>) -> Result<u64> {
    let mut value = 0;
    for shift in (0..70).step_by(7) {
        let byte = cursor.u8()?;
        if shift == 63 && byte > 1 {
            break;
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(Error::corrupt(
        "onnx.varint",
        format!("the number that ends at byte {} takes more than 64 bits", cursor.position()),
    ))
}

/// Calls `each` for every field of the message in `range`.
pub(crate) fn fields(
    cursor: &mut Cursor<'_>,
    range: Range<u64>,
    mut each: impl FnMut(&mut Cursor<'_>, Field) -> Result<()>,
) -> Result<()> {
    cursor.seek(range.start)?;
    while cursor.position() < range.end {
        let field = Field::read(cursor, range.end)?;
        let next = field.span.end;
        each(cursor, field)?;
        cursor.seek(next)?;
    }
    Ok(())
}

/// The bytes in `range`.
pub(crate) fn bytes<'c>(cursor: &'c mut Cursor<'_>, range: Range<u64>) -> Result<&'c [u8]> {
    cursor.seek(range.start)?;
    cursor.take(range.end - range.start)
}

/// The text in `range`.
pub(crate) fn text<'c>(cursor: &'c mut Cursor<'_>, range: Range<u64>) -> Result<&'c str> {
    let start = range.start;
    std::str::from_utf8(bytes(cursor, range)?)
        .map_err(|_| Error::corrupt("onnx.utf8", format!("the text at byte {start} is not UTF-8")))
}
