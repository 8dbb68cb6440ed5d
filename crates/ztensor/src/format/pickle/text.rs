//! The literals of protocol 0, which writes values as lines of text.

use crate::error::{Error, Result, quoted};

fn malformed(what: &str, line: &[u8]) -> Error {
    Error::corrupt(
        "pickle.literal",
        format!("{} is no {what}", quoted(&String::from_utf8_lossy(&line[..line.len().min(200)]))),
    )
}

/// A decimal integer, with or without the `L` of Python 2, as the shortest
/// two's complement in little-endian order.
pub(crate) fn integer(line: &[u8]) -> Result<[u8; 16]> {
    let digits = line.strip_suffix(b"L").unwrap_or(line);
    // `i128` holds every number that files are known to write as text.
    let number = std::str::from_utf8(digits).ok().and_then(|text| text.trim().parse::<i128>().ok());
    number.map(i128::to_le_bytes).ok_or_else(|| malformed("integer of at most 128 bits", line))
}

pub(crate) fn float(line: &[u8]) -> Result<f64> {
    let number = std::str::from_utf8(line).ok().and_then(|text| text.trim().parse::<f64>().ok());
    number.ok_or_else(|| malformed("floating-point number", line))
}

/// The number of a memo entry.
pub(crate) fn index(line: &[u8]) -> Result<u32> {
    let number = std::str::from_utf8(line).ok().and_then(|text| text.trim().parse::<u32>().ok());
    number.ok_or_else(|| malformed("number of a memo entry", line))
}

/// A quoted string with Python's escapes, as bytes.
pub(crate) fn string(line: &[u8]) -> Result<Vec<u8>> {
    let trimmed = line.trim_ascii();
    let inside = match trimmed {
        [first @ (b'\'' | b'"'), inside @ .., last] if first == last => inside,
        _ => return Err(malformed("quoted string", line)),
    };
    let mut out = Vec::with_capacity(inside.len());
    let mut rest = inside;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let Some((&escape, after)) = rest.split_first() else {
            return Err(malformed("string: it ends with a backslash", line));
        };
        rest = after;
        let plain = match escape {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'a' => 7,
            b'b' => 8,
            b'f' => 12,
            b'v' => 11,
            b'\\' | b'\'' | b'"' => escape,
            b'x' => {
                let value = hex(rest, 2).ok_or_else(|| malformed("string: \\x needs two digits", line))?;
                rest = &rest[2..];
                value as u8
            }
            b'0'..=b'7' => {
                let mut value = u32::from(escape - b'0');
                for _ in 0..2 {
                    match rest.split_first() {
                        Some((digit @ b'0'..=b'7', after)) => {
                            value = value * 8 + u32::from(digit - b'0');
                            rest = after;
                        }
                        _ => break,
                    }
                }
                value as u8
            }
            other => {
                out.push(b'\\');
                other
            }
        };
        out.push(plain);
    }
    Ok(out)
}

/// Text in the `raw-unicode-escape` encoding: Latin-1 with `\u` and `\U` escapes.
pub(crate) fn unicode(line: &[u8]) -> Result<String> {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let digits = match (byte, rest.first()) {
            (b'\\', Some(b'u')) => 4,
            (b'\\', Some(b'U')) => 8,
            _ => {
                out.push(char::from(byte));
                continue;
            }
        };
        let character = hex(&rest[1..], digits).and_then(char::from_u32);
        out.push(character.ok_or_else(|| malformed("text: an escape names no character", line))?);
        rest = &rest[1 + digits..];
    }
    Ok(out)
}

fn hex(digits: &[u8], count: usize) -> Option<u32> {
    digits
        .get(..count)?
        .iter()
        .try_fold(0u32, |value, &digit| Some(value * 16 + char::from(digit).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_read_as_python_reads_them() {
        assert_eq!(integer(b"-12").unwrap(), (-12i128).to_le_bytes());
        assert_eq!(integer(b"170141183460469231731687303715884105727L").unwrap(), i128::MAX.to_le_bytes());
        assert_eq!(float(b"1e400").unwrap(), f64::INFINITY);
        assert_eq!(string(br"'a\x41\n\'\101\q\0'").unwrap(), b"aA\n'A\\q\0");
        assert_eq!(unicode(b"a\\u0416\xe9\\n").unwrap(), "aЖé\\n");
        assert_eq!(unicode(b"\\U0001F600").unwrap(), "😀");
    }

    #[test]
    fn malformed_literals_are_refused() {
        for bad in [&b"'a"[..], b"a'", b"'", b"''x", b"'\\", b"'\\x4'", b"'\\'"] {
            assert!(string(bad).is_err(), "{bad:?}");
        }
        for bad in [&b"\\u12"[..], b"\\uD800", b"\\U00110000", b"\\UFFFFFFFF"] {
            assert!(unicode(bad).is_err(), "{bad:?}");
        }
        assert!(integer(b"").is_err());
        assert!(integer(b"12x").is_err());
        assert!(index(b"-1").is_err());
    }
}
