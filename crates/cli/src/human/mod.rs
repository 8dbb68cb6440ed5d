//! Numbers and names, the way people read them.

#[cfg(not(target_family = "wasm"))]
mod terminal;

use std::borrow::Cow;

#[cfg(not(target_family = "wasm"))]
pub use terminal::{cause, number, path, shape};

/// Bytes with a unit: `1.5 GB`.
pub fn bytes(count: u64) -> String {
    scaled(count, &[" B", " kB", " MB", " GB", " TB", " PB"])
}

/// Three digits and the unit that fits, of those that are a thousand times the one before.
fn scaled(count: u64, units: &[&str]) -> String {
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = match value {
        _ if unit == 0 => 0,
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{}", units[unit])
}

/// A count with thousands separated: `1,234,567`.
pub fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A large count in three digits: `22.7 M`.
pub fn short(count: u64) -> String {
    scaled(count, &["", " k", " M", " B", " T"])
}

/// `1 tensor`, `1,234 tensors`.
pub fn counted(count: u64, what: &str) -> String {
    format!("{} {what}{}", self::count(count), plural(count))
}

/// `1 element`, `22.7 M elements`.
pub fn counted_short(count: u64, what: &str) -> String {
    format!("{} {what}{}", short(count), plural(count))
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// A name or text from a file, with its control characters escaped: untrusted
/// text does not get to steer terminals.
pub fn escaped(text: &str) -> Cow<'_, str> {
    // Characters that turn the direction of text deceive as well as control characters do.
    let odd = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    match text.contains(odd) {
        false => Cow::Borrowed(text),
        true => {
            text.chars().flat_map(|c| if odd(c) { c.escape_default().collect() } else { vec![c] }).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1000), "1.00 kB");
        assert_eq!(bytes(999_999), "1.00 MB");
        assert_eq!(bytes(12_345_678), "12.3 MB");
        assert_eq!(count(0), "0");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(escaped("layers.0"), "layers.0");
        assert_eq!(escaped("a\u{1b}[31m\u{202e}b"), "a\\u{1b}[31m\\u{202e}b");
    }
}
