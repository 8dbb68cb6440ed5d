//! A pull scanner for the JSON that tensor files carry.
//!
//! It borrows strings from the text, allocates nothing for what the caller does not ask
//! for, and accepts exactly what JSON allows (no trailing commas, no control
//! characters in strings, no lone surrogates, no leading zeros).

use std::borrow::Cow;

use crate::error::{Error, Result};

/// The deepest nesting of a value that is passed over.
const MAX_DEPTH: u32 = 100;

/// A position in a JSON text.
#[derive(Clone)]
pub(crate) struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(text: &'a str) -> Scanner<'a> {
        Scanner { text, at: 0 }
    }

    /// How many bytes were taken.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// The next byte that is not white space, left where it is.
    #[inline]
    pub(crate) fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while let Some(&byte) = bytes.get(self.at) {
            match byte {
                b' ' | b'\n' | b'\r' | b'\t' => self.at += 1,
                other => return Some(other),
            }
        }
        None
    }

    /// Takes `byte` if it comes next.
    #[inline]
    pub(crate) fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    /// Takes `byte`, which must come next.
    #[inline]
    pub(crate) fn expect(&mut self, byte: u8) -> Result<()> {
        match self.take(byte) {
            true => Ok(()),
            false => Err(self.wrong(&format!("{:?}", char::from(byte)))),
        }
    }

    /// The text is over: only white space follows.
    pub(crate) fn end(&mut self) -> Result<()> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.wrong("the end of the text")),
        }
    }

    /// Walks an object: `each` gets every key and takes its value.
    pub(crate) fn object(
        &mut self,
        mut each: impl FnMut(&mut Self, Cow<'a, str>) -> Result<()>,
    ) -> Result<()> {
        self.expect(b'{')?;
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            let key = self.string()?;
            self.expect(b':')?;
            each(self, key)?;
            if self.take(b'}') {
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    /// Walks an array: `each` takes every value.
    pub(crate) fn array(&mut self, mut each: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.expect(b'[')?;
        if self.take(b']') {
            return Ok(());
        }
        loop {
            each(self)?;
            if self.take(b']') {
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    /// A number without sign, fraction or exponent.
    #[inline]
    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.peek();
        let digits = &self.text.as_bytes()[self.at..];
        let mut value = 0u64;
        let mut count = 0;
        while let Some(digit) =
            digits.get(count).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit <= 9)
        {
            // Nineteen digits always fit.
            value = match count < 19 {
                true => value * 10 + u64::from(digit),
                false => value
                    .checked_mul(10)
                    .and_then(|value| value.checked_add(u64::from(digit)))
                    .ok_or_else(|| self.wrong("a number below 2^64"))?,
            };
            count += 1;
        }
        let goes_on = matches!(digits.get(count), Some(b'.' | b'e' | b'E'));
        if count == 0 || goes_on || (count > 1 && digits[0] == b'0') {
            return Err(self.wrong("a non-negative integer"));
        }
        self.at += count;
        Ok(value)
    }

    /// A string, borrowed from the text unless it has escapes.
    #[inline]
    pub(crate) fn string(&mut self) -> Result<Cow<'a, str>> {
        if !self.take(b'"') {
            return Err(self.wrong("a string"));
        }
        let start = self.at;
        let rest = &self.text.as_bytes()[start..];
        match special(rest) {
            Some(len) if rest[len] == b'"' => {
                self.at = start + len + 1;
                Ok(Cow::Borrowed(&self.text[start..start + len]))
            }
            Some(len) if rest[len] == b'\\' => {
                self.at = start + len;
                self.escaped(self.text[start..start + len].to_owned()).map(Cow::Owned)
            }
            Some(len) => {
                self.at = start + len;
                Err(self.wrong("a string without raw control characters"))
            }
            None => {
                self.at = self.text.len();
                Err(self.wrong("a closing quote"))
            }
        }
    }

    /// The rest of a string from its first escape on.
    #[cold]
    fn escaped(&mut self, mut out: String) -> Result<String> {
        loop {
            let rest = &self.text[self.at..];
            let Some(len) = special(rest.as_bytes()) else {
                return Err(self.wrong("a closing quote"));
            };
            out.push_str(&rest[..len]);
            self.at += len;
            match rest.as_bytes()[len] {
                b'"' => {
                    self.at += 1;
                    return Ok(out);
                }
                b'\\' => out.push(self.escape()?),
                _ => return Err(self.wrong("a string without raw control characters")),
            }
        }
    }

    /// One escape, from its backslash on.
    fn escape(&mut self) -> Result<char> {
        let kind = self.text.as_bytes().get(self.at + 1).copied();
        self.at += 2;
        Ok(match kind {
            Some(same @ (b'"' | b'\\' | b'/')) => char::from(same),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                let unit = self.unit()?;
                let mut units = vec![unit];
                if (0xd800..0xdc00).contains(&unit) && self.text[self.at..].starts_with("\\u") {
                    self.at += 2;
                    units.push(self.unit()?);
                }
                match (char::decode_utf16(units.iter().copied()).next(), units.len()) {
                    (Some(Ok(char)), len) if char.len_utf16() == len => char,
                    _ => return Err(self.wrong("a complete surrogate pair")),
                }
            }
            _ => {
                self.at = self.at.min(self.text.len());
                return Err(self.wrong("a valid escape sequence"));
            }
        })
    }

    /// Four hexadecimal digits.
    fn unit(&mut self) -> Result<u16> {
        let digits =
            self.text.get(self.at..self.at + 4).filter(|text| text.bytes().all(|b| b.is_ascii_hexdigit()));
        match digits.and_then(|digits| u16::from_str_radix(digits, 16).ok()) {
            Some(unit) => {
                self.at += 4;
                Ok(unit)
            }
            None => Err(self.wrong("four hexadecimal digits")),
        }
    }

    /// Passes over any value.
    pub(crate) fn skip(&mut self) -> Result<()> {
        self.skip_below(MAX_DEPTH)
    }

    fn skip_below(&mut self, depth: u32) -> Result<()> {
        let below = || {
            depth.checked_sub(1).ok_or_else(|| {
                Error::corrupt(
                    "json.depth",
                    format!("a JSON value is nested more than {MAX_DEPTH} levels deep"),
                )
            })
        };
        match self.peek() {
            Some(b'"') => self.string().map(drop),
            Some(b'{') => {
                let below = below()?;
                self.object(|scanner, _| scanner.skip_below(below))
            }
            Some(b'[') => {
                let below = below()?;
                self.array(|scanner| scanner.skip_below(below))
            }
            Some(b'-' | b'0'..=b'9') => self.skip_number(),
            _ => match ["true", "false", "null"].iter().any(|word| self.word(word)) {
                true => Ok(()),
                false => Err(self.wrong("a value")),
            },
        }
    }

    /// Takes a bare word if it comes next.
    pub(crate) fn word(&mut self, word: &str) -> bool {
        self.peek();
        let found = self.text.as_bytes()[self.at..].starts_with(word.as_bytes());
        if found {
            self.at += word.len();
        }
        found
    }

    fn skip_number(&mut self) -> Result<()> {
        let rest = &self.text.as_bytes()[self.at..];
        let digits =
            |from: usize| rest[from.min(rest.len())..].iter().take_while(|b| b.is_ascii_digit()).count();
        let mut len = usize::from(rest[0] == b'-');
        let whole = digits(len);
        let leading_zero = whole > 1 && rest[len] == b'0';
        len += whole;
        let mut good = whole > 0 && !leading_zero;
        if rest.get(len) == Some(&b'.') {
            let fraction = digits(len + 1);
            good &= fraction > 0;
            len += 1 + fraction;
        }
        if matches!(rest.get(len), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(rest.get(len + 1), Some(b'+' | b'-')));
            let exponent = digits(len + 1 + sign);
            good &= exponent > 0;
            len += 1 + sign + exponent;
        }
        if !good {
            return Err(self.wrong("a number"));
        }
        self.at += len;
        Ok(())
    }

    #[cold]
    fn wrong(&self, expected: &str) -> Error {
        let found = match self.text.get(self.at..).and_then(|rest| rest.chars().next()) {
            Some(char) => format!("{char:?}"),
            None => "the end of the text".to_owned(),
        };
        Error::corrupt(
            "json.syntax",
            format!("invalid JSON at byte {}: expected {expected}, found {found}", self.at),
        )
    }
}

/// Where the first byte is that ends or interrupts a string: a quote, a
/// backslash or a control character. Looks at eight bytes at a time.
#[inline]
fn special(bytes: &[u8]) -> Option<usize> {
    const EACH: u64 = u64::MAX / 255;
    const HIGH: u64 = EACH << 7;
    // A byte's high bit is set if the byte is below `limit` (at most 128). A borrow
    // can only reach bytes above a true hit, so the lowest hit is always true.
    let below = |word: u64, limit: u64| word.wrapping_sub(EACH * limit) & !word;
    let (words, rest) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let quote = word ^ (EACH * u64::from(b'"'));
        let backslash = word ^ (EACH * u64::from(b'\\'));
        let hits = (below(word, 0x20) | below(quote, 1) | below(backslash, 1)) & HIGH;
        if hits != 0 {
            return Some(index * 8 + hits.trailing_zeros() as usize / 8);
        }
    }
    let found = rest.iter().position(|&byte| byte == b'"' || byte == b'\\' || byte < 0x20);
    found.map(|at| words.len() * 8 + at)
}

/// Appends a JSON string: quotes, and the escapes that JSON requires.
pub(crate) fn push_string(out: &mut String, text: &str) {
    out.push('"');
    for char in text.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            control if control < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(control))),
            other => out.push(other),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn skips(text: &str) -> bool {
        let mut scanner = Scanner::new(text);
        scanner.skip().and_then(|()| scanner.end()).is_ok()
    }

    fn text_of(json: &str) -> Option<String> {
        let mut scanner = Scanner::new(json);
        let text = scanner.string().ok()?.into_owned();
        scanner.end().ok().map(|()| text)
    }

    #[test]
    fn accepts_what_a_full_parser_accepts() {
        let pieces = [
            "{", "}", "[", "]", ",", ":", "\"a\"", "\"", "\\", "0", "-", "1", ".5", "e9", "E+1", "true",
            "nul", "null", " ", "\n", "\\u00e9", "\\ud83d", "\\ude00", "é", "01", "-0", "1e400", "\"\\x\"",
            "\u{1}",
        ];
        let mut state = 1u32;
        let mut next = |below: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as usize % below
        };
        let mut accepted = 0;
        for _ in 0..200_000 {
            let text: String = (0..next(9)).map(|_| pieces[next(pieces.len())]).collect();
            // The other parser also refuses numbers too large for a double.
            let expected = serde_json::from_str::<serde_json::Value>(&text);
            if expected.as_ref().is_err_and(|error| error.to_string().contains("number out of range")) {
                continue;
            }
            assert_eq!(skips(&text), expected.is_ok(), "{text:?}");
            accepted += usize::from(expected.is_ok());
            let string = expected.ok().and_then(|value| value.as_str().map(str::to_owned));
            assert_eq!(text_of(&text), string, "{text:?}");
        }
        assert!(accepted > 1000);
    }

    #[test]
    fn numbers_are_exact_or_refused() {
        let number = |text: &str| {
            let mut scanner = Scanner::new(text);
            let value = scanner.u64().ok()?;
            scanner.end().ok().map(|()| value)
        };
        assert_eq!(number(" 0 "), Some(0));
        assert_eq!(number("18446744073709551615"), Some(u64::MAX));
        for bad in
            ["18446744073709551616", "-1", "-0", "01", "1.0", "1e3", "1.", "", "+1", "\"1\"", "0x1", "1 2"]
        {
            assert_eq!(number(bad), None, "{bad}");
        }
    }

    #[test]
    fn nesting_is_limited() {
        assert!(skips(&("[".repeat(100) + &"]".repeat(100))));
        for open in ["[", "{\"a\":"] {
            let mut scanner = Scanner { text: &open.repeat(100_000), at: 0 };
            assert_eq!(scanner.skip().unwrap_err().rule(), Some("json.depth"));
        }
    }

    proptest! {
        #[test]
        fn the_first_special_byte_is_found(bytes in prop::collection::vec(prop_oneof![Just(b'"'), Just(b'\\'), any::<u8>(), 30..36u8, 90..94u8, 160..164u8], 0..40)) {
            let naive = bytes.iter().position(|&byte| byte == b'"' || byte == b'\\' || byte < 0x20);
            prop_assert_eq!(special(&bytes), naive);
        }

        #[test]
        fn strings_survive(text in any::<String>()) {
            let mut json = String::new();
            push_string(&mut json, &text);
            prop_assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text.clone());
            prop_assert_eq!(text_of(&json), Some(text));
        }
    }
}
