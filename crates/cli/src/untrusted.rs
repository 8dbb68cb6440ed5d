//! Text from files, in forms that can be shown.

use std::borrow::Cow;

use crate::human;

/// Text that comes from a file. It has no `Display`: it is printed in one of these forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Untrusted<'a>(&'a str);

impl<'a> From<&'a str> for Untrusted<'a> {
    fn from(text: &'a str) -> Untrusted<'a> {
        Untrusted(text)
    }
}

impl<'a> Untrusted<'a> {
    /// On one line of a table or a message.
    pub fn line(self) -> Cow<'a, str> {
        human::escaped(self.0)
    }
}

#[cfg(not(target_family = "wasm"))]
impl<'a> Untrusted<'a> {
    /// As a string or a key of a JSON document, which is printed through `output::stdout`.
    pub fn json(self) -> &'a str {
        self.0
    }

    /// As a field of a CSV file (RFC 4180). Spreadsheets take a field that begins with `=`, `+`, `-`
    /// or `@` for a formula, so an apostrophe is put before it, as they do to mark text.
    pub fn csv(self) -> String {
        let mut field = self.line();
        if field.starts_with(['=', '+', '-', '@']) {
            field = Cow::Owned(format!("'{field}"));
        }
        match field.contains([',', '"', '\'']) {
            true => format!("\"{}\"", field.replace('"', "\"\"")),
            false => field.into_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_spreadsheets_are_text() {
        let csv = |text: &'static str| Untrusted::from(text).csv();
        assert_eq!(csv("layers.0.w"), "layers.0.w");
        assert_eq!(csv("a,b"), "\"a,b\"");
        assert_eq!(csv("=HYPERLINK(\"http://x\")"), "\"'=HYPERLINK(\"\"http://x\"\")\"");
        for text in ["=1", "+1", "-1", "@x"] {
            assert!(csv(text).starts_with("\"'"), "{text}");
        }
        assert_eq!(csv("a\n=1\u{1b}"), "a\\n=1\\u{1b}");
    }
}
