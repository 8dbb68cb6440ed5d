//! What the weight codec is told about tensors, and what its errors mean here.

use z4ai::ErrorKind;

use crate::catalog::elements;
use crate::dtype::DType;
use crate::error::{Error, Result};

/// No frame decodes to more than this many times its own length.
pub(crate) const MAX_EXPANSION: u64 = 1 << 24;

/// The shape of `len` bytes as elements of [`DType::codec_kind`], or nothing where `shape` does not describe them.
pub(crate) fn shape_hint(dtype: DType, shape: &[u64], len: u64) -> Vec<u64> {
    let size = dtype.codec_kind().size() as u64;
    let mut shape = shape.to_vec();
    if u64::from(dtype.bits()) == 16 * size {
        shape.push(2); // complex: real and imaginary part
    }
    match elements(&shape).and_then(|count| count.checked_mul(size)) {
        Some(bytes) if bytes == len && len > 0 => shape,
        _ => Vec::new(),
    }
}

/// How to encode `len` bytes of a tensor.
pub(crate) fn options(
    dtype: DType,
    shape: &[u64],
    len: u64,
    effort: z4ai::Effort,
    threads: usize,
) -> z4ai::Options {
    z4ai::Options {
        kind: dtype.codec_kind(),
        effort,
        threads,
        shape: shape_hint(dtype, shape, len),
        ..z4ai::Options::default()
    }
}

/// How to decode at most `len` bytes.
pub(crate) fn decode_options(len: u64, threads: usize) -> z4ai::DecodeOptions {
    z4ai::DecodeOptions { threads, max_output: len }
}

/// Refuses a length that no frame of `stored` bytes decodes to, before anything is allocated.
pub(crate) fn check_expansion(rule: &'static str, stored: u64, len: u64) -> Result<()> {
    if len.div_ceil(MAX_EXPANSION) > stored {
        return Err(Error::corrupt(
            rule,
            format!("{stored} bytes of z4ai cannot decode to the {len} bytes declared"),
        ));
    }
    Ok(())
}

/// What a failure to decode a frame says about the file that holds it.
pub(crate) fn broken_frame(error: z4ai::Error) -> Error {
    match error.kind() {
        ErrorKind::Unsupported => Error::unsupported(error.message()),
        ErrorKind::LimitExceeded => Error::limit(error.message()),
        ErrorKind::Mismatch => Error::mismatch(error.message()),
        ErrorKind::Cancelled => Error::cancelled(),
        // Lengths that contradict each other: all of them are the file's.
        _ => Error::corrupt("z4ai.frame", format!("the z4ai frame does not decode: {error}")),
    }
}

/// A failure to encode.
pub(crate) fn not_encoded(error: z4ai::Error) -> Error {
    match error.kind() {
        ErrorKind::LimitExceeded => Error::limit(error.message()),
        ErrorKind::Cancelled => Error::cancelled(),
        _ => Error::invalid(error.message()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_describe_the_bytes_or_are_empty() {
        assert_eq!(shape_hint(DType::F32, &[2, 3], 24), [2, 3]);
        assert_eq!(shape_hint(DType::C64, &[2, 3], 48), [2, 3, 2]);
        assert!(shape_hint(DType::I4, &[2, 3], 3).is_empty());
        assert!(shape_hint(DType::F32, &[2, 0], 0).is_empty());
        assert!(shape_hint(DType::F32, &[u64::MAX, 2], 8).is_empty());
    }
}
