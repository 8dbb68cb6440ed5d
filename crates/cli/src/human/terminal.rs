//! Forms that only commands print.

use super::escaped;

/// A shape: `[1024, 768]`.
pub fn shape(shape: &[u64]) -> String {
    format!("[{}]", shape.iter().map(u64::to_string).collect::<Vec<_>>().join(", "))
}

/// What the operating system says of an error, without its number.
pub fn cause(error: &std::io::Error) -> String {
    let text = error.to_string();
    match (error.raw_os_error(), text.rfind(" (os error ")) {
        (Some(_), Some(end)) => text[..end].to_owned(),
        _ => text,
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::human::{counted, short};

    #[test]
    fn numbers_are_short() {
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
