//! Standard output and standard error, for text.
//!
//! Names, layouts, types and attributes come from untrusted files, and a terminal interprets
//! what is printed to it. So commands print through the writers here and nowhere else (`clippy.toml`
//! disallows the streams themselves): no control character but the line end gets through, whatever
//! a command passes on. Text from files is also [`Untrusted`](crate::untrusted::Untrusted) where it becomes a field of a table,
//! in which line ends and characters that turn the direction of text deceive too.

use std::io::{self, BufWriter, Write};

/// A writer that writes control characters (C0, DEL and C1) out as `\u001b`, the form that JSON has
/// for them inside of strings. Line ends stay.
pub struct Escaping<W: Write> {
    inner: W,
    /// Whether the last byte began a character of two bytes that may be a C1 control.
    after_c2: bool,
    /// Whether words are coloured.
    coloured: bool,
}

impl<W: Write> Escaping<W> {
    pub fn new(inner: W) -> Escaping<W> {
        Escaping { inner, after_c2: false, coloured: false }
    }

    /// Writes a word, in bold and colour where the stream shows colours.
    pub fn word(&mut self, colour: Colour, word: impl std::fmt::Display) -> io::Result<()> {
        if !self.coloured || colour == Colour::None {
            return write!(self, "{word}");
        }
        self.inner.write_all(colour.start().as_bytes())?;
        write!(self, "{word}")?;
        self.inner.write_all(b"\x1b[0m")
    }
}

/// The colour of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    None,
    Red,
    Yellow,
}

impl Colour {
    /// The escape sequence that turns it on.
    fn start(self) -> &'static str {
        match self {
            Colour::None => "",
            Colour::Red => "\x1b[1;31m",
            Colour::Yellow => "\x1b[1;33m",
        }
    }
}

/// What a line on standard error begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Label {
    Error,
    Warning,
}

impl<W: Write> Write for Escaping<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut plain = 0;
        for (at, &byte) in bytes.iter().enumerate() {
            let c1 = self.after_c2 && (0x80..0xA0).contains(&byte);
            let control = byte != b'\n' && (byte < 0x20 || byte == 0x7F);
            if self.after_c2 {
                if c1 {
                    write!(self.inner, "\\u{byte:04x}")?;
                    plain = at + 1;
                } else {
                    self.inner.write_all(&[0xC2])?;
                }
                self.after_c2 = false;
            }
            if control || byte == 0xC2 {
                self.inner.write_all(&bytes[plain..at])?;
                plain = at + 1;
            }
            if control {
                write!(self.inner, "\\u{byte:04x}")?;
            }
            self.after_c2 = byte == 0xC2;
        }
        self.inner.write_all(&bytes[plain..])?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Standard output for text; what is written arrives when it is flushed.
#[allow(clippy::disallowed_methods, reason = "the one place where text is printed")]
pub fn stdout() -> Escaping<BufWriter<Box<dyn Write>>> {
    if anstream::AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never {
        let terminal = anstream::AutoStream::auto(io::stdout().lock());
        return Escaping { coloured: true, ..Escaping::new(BufWriter::new(Box::new(terminal))) };
    }
    Escaping::new(BufWriter::new(Box::new(io::stdout().lock())))
}

/// Standard output for what is no text from a file: data of a pipe, manual pages, completions.
#[allow(clippy::disallowed_methods, reason = "data is not escaped")]
pub fn raw() -> io::Stdout {
    io::stdout()
}

/// A line on standard error, perhaps behind a label.
#[allow(clippy::disallowed_methods, reason = "the one place where text is printed")]
pub fn say(label: Option<Label>, line: impl std::fmt::Display) {
    let mut text = line.to_string();
    text.push('\n');
    // This stream drops colours itself where they are not shown.
    let mut out = Escaping { coloured: true, ..Escaping::new(anstream::stderr()) };
    // A closed standard error is no failure of the command.
    let _ = match label {
        Some(Label::Error) => out.word(Colour::Red, "error").and_then(|()| out.write_all(b": ")),
        Some(Label::Warning) => out.word(Colour::Yellow, "warning").and_then(|()| out.write_all(b": ")),
        None => Ok(()),
    };
    let _ = out.write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_never_get_through() {
        let text = "a\u{1b}]0;x\u{7}\u{7f}\u{9b}31m\u{85}\r\t\0é\u{a0}¿ \u{1F600}\n{\"k\": 1}";
        let expected =
            "a\\u001b]0;x\\u0007\\u007f\\u009b31m\\u0085\\u000d\\u0009\\u0000é\u{a0}¿ \u{1F600}\n{\"k\": 1}";
        // Whole, and cut at every byte.
        for cut in 0..=text.len() {
            let mut out = Vec::new();
            let mut writer = Escaping::new(&mut out);
            writer.write_all(&text.as_bytes()[..cut]).unwrap();
            writer.write_all(&text.as_bytes()[cut..]).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{cut}");
        }
    }
}
