//! Numbers and names, the way people read them.

use std::borrow::Cow;

/// Bytes with a unit: `1.5 GB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    match unit {
        0 => format!("{count} B"),
        _ if value < 9.995 => format!("{value:.2} {}", UNITS[unit]),
        _ if value < 99.95 => format!("{value:.1} {}", UNITS[unit]),
        _ => format!("{value:.0} {}", UNITS[unit]),
    }
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

/// A shape: `[1024, 768]`.
pub fn shape(shape: &[u64]) -> String {
    format!("[{}]", shape.iter().map(u64::to_string).collect::<Vec<_>>().join(", "))
}

/// A large count in three digits: `22.7 M`.
pub fn short(count: u64) -> String {
    const UNITS: [&str; 5] = ["", " k", " M", " B", " T"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    match unit {
        0 => count.to_string(),
        _ if value < 9.995 => format!("{value:.2}{}", UNITS[unit]),
        _ if value < 99.95 => format!("{value:.1}{}", UNITS[unit]),
        _ => format!("{value:.0}{}", UNITS[unit]),
    }
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

/// A number in about six significant digits, as people write it: `1.0494`, `-0.25`, `3.1e-07`.
pub fn number(value: f64) -> String {
    let magnitude = value.abs();
    if value == 0.0 {
        return "0".to_owned();
    }
    if !value.is_finite() {
        return if value.is_nan() {
            "NaN"
        } else if value > 0.0 {
            "inf"
        } else {
            "-inf"
        }
        .to_owned();
    }
    let trimmed = |text: String| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    };
    if (1e-4..1e7).contains(&magnitude) {
        let decimals = (5 - magnitude.log10().floor() as i32).clamp(0, 9) as usize;
        return trimmed(format!("{value:.decimals$}"));
    }
    let text = format!("{value:.4e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(digits.to_owned()), exponent.abs())
}

/// A path as messages name it.
pub fn path(path: &std::path::Path) -> String {
    escaped(&path.display().to_string()).into_owned()
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
        assert_eq!(shape(&[]), "[]");
        assert_eq!(shape(&[3, 4]), "[3, 4]");
        assert_eq!(
            (short(999), short(22_713_216), short(1_500)),
            ("999".into(), "22.7 M".into(), "1.50 k".into())
        );
        assert_eq!(short(7_000_000_000), "7.00 B");
        assert_eq!((counted(1, "tensor"), counted(2, "tensor")), ("1 tensor".into(), "2 tensors".into()));
        for (value, text) in [
            (1.0494, "1.0494"),
            (0.0, "0"),
            (-0.25, "-0.25"),
            (14.5, "14.5"),
            (3.041_381_265, "3.04138"),
            (123_456.789, "123457"),
            (3.1e-7, "3.1e-07"),
            (-2.5e12, "-2.5e+12"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-inf"),
            (0.000_123_456, "0.000123456"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
