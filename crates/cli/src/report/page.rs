//! The page: one file with everything in it, and a policy that lets it load nothing.

use std::borrow::Cow;
use std::io::{self, Write};

use sha2::{Digest, Sha256};

const TEMPLATE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Writes the page; `data` writes the JSON that it shows.
pub fn write(
    out: &mut dyn Write,
    title: &str,
    mut data: impl FnMut(&mut Embedded<'_>) -> ztensor::Result<()>,
) -> ztensor::Result<()> {
    for part in TEMPLATE.split("{{") {
        let (slot, text) = part.split_once("}}").unwrap_or(("", part));
        let filled = match slot {
            "policy" => policy().into(),
            "title" => escaped(title).into(),
            "style" => Cow::Borrowed(STYLE),
            "script" => SCRIPT.into(),
            "version" => env!("CARGO_PKG_VERSION").into(),
            _ => "".into(),
        };
        if slot == "data" {
            data(&mut Embedded(out))?;
        }
        out.write_all(filled.as_bytes()).map_err(failed)?;
        out.write_all(text.as_bytes()).map_err(failed)?;
    }
    Ok(())
}

/// The page cannot be written.
pub fn failed(error: io::Error) -> ztensor::Error {
    ztensor::Error::io("cannot write", error)
}

/// Only the page's own style and script, told by their digests: what a file's
/// names might smuggle in would not run, and nothing is loaded from anywhere.
fn policy() -> String {
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri 'none'; form-action 'none'",
        digest(STYLE),
        digest(SCRIPT)
    )
}

/// SHA-256 in base64.
pub fn digest(text: &str) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digest = Sha256::digest(text.as_bytes());
    let mut out = String::new();
    for group in digest.chunks(3) {
        let bits =
            group.iter().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - group.len()));
        for place in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * place) & 63) as usize];
            out.push(if place > group.len() { '=' } else { char::from(letter) });
        }
    }
    out
}

/// Text as it stands in HTML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// JSON inside a script element: without `<` no text in it can end the element or
/// begin a comment. JSON has `<` in strings only, where an escape means the same.
pub struct Embedded<'a>(&'a mut dyn Write);

impl Write for Embedded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for (index, piece) in bytes.split(|byte| *byte == b'<').enumerate() {
            if index > 0 {
                self.0.write_all(b"\\u003c")?;
            }
            self.0.write_all(piece)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_standard() {
        assert_eq!(digest("abc"), "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");
        assert!(!SCRIPT.contains("</script") && !STYLE.contains("</style"));
        // Browsers read newlines in one way, whatever the file has.
        assert!(!SCRIPT.contains('\r') && !STYLE.contains('\r'));
    }

    #[test]
    fn text_stays_text() {
        let mut page = Vec::new();
        write(&mut page, "</title><b>&", |out| {
            let text = serde_json::json!("</script><script>alert(1)</script><!--");
            write!(out, "{text}").map_err(failed)
        })
        .unwrap();
        let page = String::from_utf8(page).unwrap();
        assert!(page.contains("<title>&lt;/title&gt;&lt;b&gt;&amp;</title>"));
        assert!(page.contains(r#""\u003c/script>\u003cscript>alert(1)\u003c/script>\u003c!--""#));
        assert!(!page.contains("{{") && page.ends_with("</html>\n"));
        assert_eq!(page.matches("<script").count(), 2);
    }
}
