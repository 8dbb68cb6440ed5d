//! The header of an `.npy` array: a magic, a version, and a Python dictionary.
//!
//! The dictionary is a literal such as
//! `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }`. It is parsed,
//! never evaluated, and only in the forms that NumPy writes.

use crate::catalog::Shape;
use crate::dtype::DType;
use crate::error::{Error, Result, quoted};

pub(crate) const MAGIC: &[u8] = b"\x93NUMPY";
/// NumPy refuses longer headers too.
const MAX_HEADER: u64 = 10_000;
/// Enough for most headers: NumPy pads them to a multiple of 64.
pub(crate) const USUAL: u64 = 128;

/// What an array is.
#[derive(Debug, PartialEq)]
pub(crate) struct Header {
    /// Bytes up to the first element.
    pub(crate) len: u64,
    pub(crate) kind: ArrayKind,
    /// Whether numbers are stored most significant byte first.
    pub(crate) big_endian: bool,
    pub(crate) fortran_order: bool,
    pub(crate) shape: Shape,
}

/// What an array's elements are.
#[derive(Debug, PartialEq)]
pub(crate) enum ArrayKind {
    Known(DType),
    /// A type of fixed size that tensors do not have (text, dates, raw bytes).
    Opaque {
        /// NumPy's name for it.
        descr: String,
        /// Bytes per element.
        size: u64,
        /// Bytes per number, for the byte order.
        width: usize,
    },
}

impl ArrayKind {
    /// Bytes per element.
    pub(crate) fn size(&self) -> u64 {
        match self {
            ArrayKind::Known(dtype) => u64::from(dtype.bits()) / 8,
            ArrayKind::Opaque { size, .. } => *size,
        }
    }

    /// Bytes per number: half an element for complex ones.
    pub(crate) fn width(&self) -> usize {
        match self {
            ArrayKind::Known(dtype) => dtype.alignment(),
            ArrayKind::Opaque { width, .. } => *width,
        }
    }
}

/// How long a header that starts with `bytes` is, all of it.
pub(crate) fn header_len(bytes: &[u8]) -> Result<u64> {
    let short = || Error::corrupt("npy.short", "the array ends within its header");
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| match MAGIC.starts_with(bytes) {
        true => short(),
        false => Error::corrupt("npy.magic", "an array must start with \\x93NUMPY"),
    })?;
    let (version, rest) = rest.split_first_chunk::<2>().ok_or_else(short)?;
    let (prefix, len) = match version {
        [1, 0] => (10, rest.first_chunk().map(|len| u64::from(u16::from_le_bytes(*len)))),
        [2 | 3, 0] => (12, rest.first_chunk().map(|len| u64::from(u32::from_le_bytes(*len)))),
        [major, minor] => {
            return Err(Error::unsupported(format!(
                "version {major}.{minor} of the array format; 1.0, 2.0 and 3.0 are known"
            )));
        }
    };
    let len = len.ok_or_else(short)?;
    if len > MAX_HEADER {
        return Err(Error::corrupt(
            "npy.header-length",
            format!("a header of {len} bytes; at most {MAX_HEADER} are read"),
        ));
    }
    Ok(prefix + len)
}

/// Parses a whole header.
pub(crate) fn parse(bytes: &[u8]) -> Result<Parsed> {
    let len = header_len(bytes)?;
    let text = bytes.get(..len as usize).ok_or_else(|| {
        Error::corrupt("npy.short", format!("the array ends within its header of {len} bytes"))
    })?;
    let text = &text[if text[MAGIC.len()] == 1 { 10 } else { 12 }..];
    // Versions 1 and 2 are Latin-1, but whatever we accept is ASCII in all of them.
    let text = std::str::from_utf8(text).map_err(|_| literal("it is not text"))?;
    let dict = Literal { rest: text }.dict()?;
    let Some(descr) = dict.descr else {
        return Ok(Parsed::Refused {
            shape: dict.shape,
            why: "it is a structured array (several named fields per element), not a tensor".to_owned(),
        });
    };
    match element(descr) {
        Ok((kind, big_endian)) => {
            let (fortran_order, shape) = (dict.fortran_order, dict.shape);
            Ok(Parsed::Array(Header { len, kind, big_endian, fortran_order, shape }))
        }
        Err(why) => Ok(Parsed::Refused { shape: dict.shape, why }),
    }
}

/// A well-formed header: of an array that can be read, or of one whose elements cannot.
#[derive(Debug)]
pub(crate) enum Parsed {
    Array(Header),
    Refused {
        shape: Shape,
        /// Completes the sentence "this cannot be read: …".
        why: String,
    },
}

/// The three entries of the dictionary.
struct Dict<'a> {
    /// `None` for a list of fields.
    descr: Option<&'a str>,
    fortran_order: bool,
    shape: Shape,
}

fn literal(why: impl std::fmt::Display) -> Error {
    Error::corrupt("npy.header", format!("the array's header is not the dictionary it should be: {why}"))
}

/// A position in a Python literal.
struct Literal<'a> {
    rest: &'a str,
}

impl<'a> Literal<'a> {
    /// Takes `token` if it comes next, after white space.
    fn take(&mut self, token: &str) -> bool {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, token: &str) -> Result<()> {
        match self.take(token) {
            true => Ok(()),
            false => {
                let found: String = self.rest.chars().take(20).collect();
                Err(literal(format!("{token:?} expected, found {found:?}")))
            }
        }
    }

    fn string(&mut self) -> Result<&'a str> {
        let quote = if self.take("'") { '\'' } else { self.expect("\"").map(|()| '"')? };
        let end = self.rest.find([quote, '\\', '\n']).filter(|end| self.rest[*end..].starts_with(quote));
        let (text, rest) = end
            .map(|end| self.rest.split_at(end))
            .ok_or_else(|| literal("a string without end or with escapes"))?;
        self.rest = &rest[1..];
        Ok(text)
    }

    fn dict(mut self) -> Result<Dict<'a>> {
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        self.expect("{")?;
        while !self.take("}") {
            let key = self.string()?;
            self.expect(":")?;
            let again = match key {
                "descr" if self.take("[") => {
                    self.skip_list()?;
                    descr.replace(None).is_some()
                }
                "descr" => descr.replace(Some(self.string()?)).is_some(),
                "fortran_order" => fortran_order.replace(self.bool()?).is_some(),
                "shape" => shape.replace(self.shape()?).is_some(),
                other => return Err(literal(format!("unknown key {}", quoted(other)))),
            };
            if again {
                return Err(literal(format!("the key {key:?} appears twice")));
            }
            if !self.take(",") {
                self.expect("}")?;
                break;
            }
        }
        if !self.rest.trim_matches([' ', '\t', '\n', '\r']).is_empty() {
            return Err(literal("something follows it"));
        }
        match (descr, fortran_order, shape) {
            (Some(descr), Some(fortran_order), Some(shape)) => Ok(Dict { descr, fortran_order, shape }),
            _ => Err(literal("it needs 'descr', 'fortran_order' and 'shape'")),
        }
    }

    /// Passes over the rest of a list of fields: strings, numbers, lists and tuples.
    fn skip_list(&mut self) -> Result<()> {
        let mut open = 1u32;
        while open > 0 {
            if self.take("[") || self.take("(") {
                open += 1;
            } else if self.take("]") || self.take(")") {
                open -= 1;
            } else if matches!(self.rest.as_bytes().first(), Some(b'\'' | b'"')) {
                self.string()?;
            } else {
                let mut rest = self.rest.chars();
                rest.next().filter(|c| c.is_ascii_digit() || *c == ',').ok_or_else(|| {
                    literal("a list of fields has strings, numbers, lists and tuples in it")
                })?;
                self.rest = rest.as_str();
            }
        }
        Ok(())
    }

    fn bool(&mut self) -> Result<bool> {
        let value = self.take("True");
        if !value {
            self.expect("False")?;
        }
        Ok(value)
    }

    fn shape(&mut self) -> Result<Shape> {
        let mut shape = Shape::new();
        self.expect("(")?;
        while !self.take(")") {
            shape.push(self.size()?);
            if !self.take(",") {
                self.expect(")")?;
                if shape.len() == 1 {
                    return Err(literal("a shape of one size is written (n,)"));
                }
                break;
            }
        }
        Ok(shape)
    }

    fn size(&mut self) -> Result<u64> {
        self.take(""); // white space
        let digits = self.rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = self.rest.split_at(digits);
        let number = match number.strip_prefix('0') {
            Some(more) if !more.is_empty() => None,
            _ => number.parse().ok(),
        };
        // Python 2 wrote large sizes with an L.
        self.rest = rest.strip_prefix('L').unwrap_or(rest);
        number.ok_or_else(|| literal("a size is not a whole number below 2^64"))
    }
}

/// An element type from NumPy's name of it, and whether it is big-endian; or why it cannot be read.
pub(crate) fn element(descr: &str) -> Result<(ArrayKind, bool), String> {
    let unsupported = |why: &str| Err(format!("the element type {} {why}", quoted(descr)));
    let (order, name) = match descr.as_bytes().first() {
        Some(b'<' | b'>' | b'=' | b'|') => descr.split_at(1),
        _ => ("", descr),
    };
    let known = DType::ALL
        .into_iter()
        .find(|dtype| dtype.numpy_name().and_then(|known| known.strip_prefix(['<', '|'])) == Some(name));
    if let Some(dtype) = known {
        return Ok((ArrayKind::Known(dtype), order == ">"));
    }
    let Some(code) = name.chars().next() else {
        return unsupported("is empty");
    };
    if code == 'O' {
        return unsupported("means Python objects, which only unpickling could read");
    }
    let number = &name[code.len_utf8()..];
    let size = match number.bytes().all(|byte| byte.is_ascii_digit()) {
        true if number.is_empty() => None,
        true => number.parse::<u64>().ok(),
        // Dates have a unit behind their size, as in M8[ns].
        false if matches!(code, 'M' | 'm') && number.starts_with("8[") && number.ends_with(']') => Some(8),
        false => None,
    };
    let (size, width) = match (code, size) {
        ('S' | 'V', Some(size)) => (size, 1),
        ('U', Some(chars)) => match chars.checked_mul(4) {
            Some(size) => (size, 4),
            None => return unsupported("is too large"),
        },
        ('M' | 'm', Some(8)) => (8, 8),
        ('f', Some(size @ (12 | 16))) => (size, size as usize),
        ('c', Some(size @ (24 | 32))) => (size, size as usize / 2),
        _ => return unsupported("is not one this version knows"),
    };
    let big_endian = order == ">" && width > 1;
    // The bytes are handed out little-endian, whatever they are in the file.
    let descr = if big_endian { format!("<{name}") } else { descr.to_owned() };
    Ok((ArrayKind::Opaque { descr, size, width }, big_endian))
}

/// Writes a header the way NumPy does, for elements in row-major order.
pub(crate) fn write(descr: &str, shape: &[u64]) -> Result<Vec<u8>> {
    /// NumPy leaves room for the first size to grow to this many digits.
    const DIGITS: usize = 21;
    const ALIGNMENT: usize = 64;
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (");
    for (index, size) in shape.iter().enumerate() {
        text.push_str(if index > 0 { ", " } else { "" });
        text.push_str(&size.to_string());
    }
    text.push_str(if shape.len() == 1 { ",), }" } else { "), }" });
    let room = shape.first().map_or(0, |size| DIGITS.saturating_sub(size.to_string().len()));
    let prefix = MAGIC.len() + 4;
    // At least the line end, and up to a multiple of the alignment.
    let len = (prefix + text.len() + room + 1) / ALIGNMENT * ALIGNMENT + ALIGNMENT - prefix;
    let declared = u16::try_from(len).ok().filter(|len| u64::from(*len) <= MAX_HEADER);
    let declared = declared.ok_or_else(|| Error::unsupported("its header is too long for an .npy file"))?;
    let mut bytes = Vec::with_capacity(prefix + len);
    bytes.extend(MAGIC);
    bytes.extend([1, 0]);
    bytes.extend(declared.to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.resize(prefix + len - 1, b' ');
    bytes.push(b'\n');
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(version: u8, text: &str) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([version, 0]);
        match version {
            1 => bytes.extend((text.len() as u16).to_le_bytes()),
            _ => bytes.extend((text.len() as u32).to_le_bytes()),
        }
        bytes.extend(text.as_bytes());
        bytes
    }

    fn array(bytes: &[u8]) -> Result<Header> {
        match parse(bytes)? {
            Parsed::Array(header) => Ok(header),
            Parsed::Refused { why, .. } => Err(Error::unsupported(why)),
        }
    }

    #[test]
    fn arrays_of_other_elements_have_a_shape_and_a_reason() {
        for (descr, word) in [("'|O'", "unpickling"), ("[('a', '<f4', (2,)), ('b', '<i2')]", "structured")] {
            let text = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (3,), }}");
            match parse(&header(1, &text)).unwrap() {
                Parsed::Refused { shape, why } => assert!(shape[..] == [3] && why.contains(word), "{why}"),
                Parsed::Array(_) => panic!("{descr} is no tensor"),
            }
        }
    }

    fn dict(descr: &str) -> Vec<u8> {
        header(1, &format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (), }}\n"))
    }

    #[test]
    fn the_forms_that_are_written_are_read() {
        for (text, shape, fortran) in [
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }   \n", vec![2, 3], false),
            ("{'descr': '<f4', 'fortran_order': True, 'shape': (7,), }", vec![7], true),
            ("{\"shape\":(),\"fortran_order\":False,\"descr\":\"<f4\"}", vec![], false),
            ("{'shape': (2L, 0L), 'fortran_order': False, 'descr': '<f4'}", vec![2, 0], false),
        ] {
            for version in [1, 2, 3] {
                let parsed = array(&header(version, text)).unwrap();
                assert_eq!(parsed.kind, ArrayKind::Known(DType::F32));
                assert_eq!((&parsed.shape[..], parsed.fortran_order), (&shape[..], fortran), "{text}");
            }
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "{}",
            "[]",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (2)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': [2]}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1e3,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (02,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (18446744073709551616,)}",
            "{'descr': '<f4', 'fortran_order': 0, 'shape': ()}",
            "{'descr': '<f4', 'shape': ()}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (), 'x': 1}",
            "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': ()}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': ()} + x",
            "{'descr': __import__('os'), 'fortran_order': False, 'shape': ()}",
            "{'descr': '\\x3cf4', 'fortran_order': False, 'shape': ()}",
            "{'descr': [('a', __import__('os'))], 'fortran_order': False, 'shape': ()}",
            "{'descr': [('a', '<f4'), 'fortran_order': False, 'shape': ()}",
        ] {
            assert!(parse(&header(1, text)).is_err(), "{text}");
        }
        assert!(parse(&header(4, "{}")).is_err());
        assert!(header_len(&header(2, "")[..9]).is_err());
        assert_eq!(header_len(b"\x93NUMPY\x01\x00\xff\xff").unwrap_err().rule(), Some("npy.header-length"));
    }

    #[test]
    fn element_types_are_known_opaque_or_refused() {
        let kind = |descr: &str| {
            array(&dict(descr)).map(|header| (header.kind.size(), header.kind.width(), header.big_endian))
        };
        assert_eq!(kind("|b1").unwrap(), (1, 1, false));
        assert_eq!(kind(">f8").unwrap(), (8, 8, true));
        assert_eq!(kind(">c16").unwrap(), (16, 8, true));
        assert_eq!(kind("<c8").unwrap(), (8, 4, false));
        assert_eq!(kind("|S5").unwrap(), (5, 1, false));
        assert_eq!(kind(">U2").unwrap(), (8, 4, true));
        assert_eq!(kind("<M8[ns]").unwrap(), (8, 8, false));
        assert_eq!(kind("|V2").unwrap(), (2, 1, false));
        assert_eq!(kind("<f16").unwrap(), (16, 16, false));
        for bad in
            ["|O", "O8", "O", "", "<", "<f3", "<x4", "<U99999999999999999999", "<M8[", "<f", "bfloat16"]
        {
            assert!(kind(bad).is_err(), "{bad}");
        }
    }
}
