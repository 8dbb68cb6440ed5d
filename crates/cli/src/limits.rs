//! `--max-bytes` and `--max-total-bytes`, which every command of both programs takes.

use clap::Args;
use ztensor::Limits;

/// How much may be decoded.
#[derive(Debug, Clone, Copy, Args)]
pub struct LimitArguments {
    /// Refuse tensors larger than this, e.g. 500000 or 8G.
    #[arg(long, global = true, value_name = "BYTES", value_parser = bytes, help_heading = "Global options")]
    pub max_bytes: Option<u64>,
    /// Refuse to decode more than this in total [default: the larger of 4 GiB and 1000 times the file's size]
    #[arg(long, global = true, value_name = "BYTES", value_parser = bytes, help_heading = "Global options")]
    pub max_total_bytes: Option<u64>,
}

impl LimitArguments {
    pub fn limits(self) -> Limits {
        let mut limits = Limits::default();
        limits.max_component = self.max_bytes.unwrap_or(limits.max_component);
        limits.max_total = self.max_total_bytes;
        limits
    }
}

/// A number of bytes, in units of 1024 if K, M, G or T follows.
fn bytes(text: &str) -> Result<u64, String> {
    let (number, factor) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&text[..at], 1 << 30),
        Some((at, 't' | 'T')) => (&text[..at], 1u64 << 40),
        _ => (text, 1),
    };
    let number: Option<u64> = number.parse().ok();
    number
        .and_then(|number| number.checked_mul(factor))
        .ok_or_else(|| "a number of bytes like 500000, 64M or 8G is expected".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes("500000"), Ok(500_000));
        assert_eq!(bytes("64k"), Ok(64 << 10));
        assert_eq!(bytes("8G"), Ok(8 << 30));
        for wrong in ["", "G", "-1", "1.5G", "8GB", "99999999999T"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
