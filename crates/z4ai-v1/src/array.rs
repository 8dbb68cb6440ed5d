//! The array a frame was made from: NumPy's type string and a shape.

use crate::Array;
use crate::bytes::Bytes;
use crate::{Result, corrupt};

/// NumPy's own limit on dimensions.
const MAX_DIMS: usize = 64;

/// The description as it stands in the frame.
#[derive(Clone, Copy)]
pub(super) struct ArrayField<'a> {
    dtype: &'a [u8],
    shape: &'a [u8],
}

impl<'a> ArrayField<'a> {
    /// Reads `dtype_len` bytes of type string and `dims` dimensions.
    pub(super) fn parse(bytes: &mut Bytes<'a>, dtype_len: u8, dims: u8) -> Result<Self> {
        let dtype = bytes.take(dtype_len.into(), "array dtype")?;
        Ok(Self { dtype, shape: take_shape(bytes, dims)? })
    }

    /// As [`ArrayField::parse`], for frames that put other fields in between.
    pub(super) fn new(bytes: &mut Bytes<'a>, dtype: &'a [u8], dims: u8) -> Result<Self> {
        let shape = take_shape(bytes, dims)?;
        Ok(Self { dtype, shape })
    }

    /// The array, if its size is `len` bytes.
    pub(super) fn check(self, len: usize) -> Result<Array> {
        let dtype = std::str::from_utf8(self.dtype)
            .ok()
            .filter(|dtype| dtype.is_ascii())
            .ok_or_else(|| corrupt("array dtype is not ASCII"))?;
        let (shape, _) = self.shape.as_chunks::<8>();
        if shape.len() > MAX_DIMS {
            return Err(corrupt(format!("array of {} dimensions, more than {MAX_DIMS}", shape.len())));
        }
        let shape: Vec<u64> = shape.iter().map(|&dim| u64::from_le_bytes(dim)).collect();
        let bytes = item_size(dtype)
            .ok_or_else(|| corrupt(format!("array dtype \"{dtype}\" has no plain bytes")))
            .map(|item| byte_count(&shape, item))?;
        if bytes != Some(len as u64) {
            return Err(corrupt(format!("array {dtype} of shape {shape:?} does not have {len} bytes")));
        }
        Ok(Array { dtype: dtype.to_owned(), shape })
    }
}

fn take_shape<'a>(bytes: &mut Bytes<'a>, dims: u8) -> Result<&'a [u8]> {
    bytes.take(usize::from(dims) * 8, "array shape")
}

/// Bytes of an array, zero if any dimension is; `None` on overflow.
fn byte_count(shape: &[u64], item: u64) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(item, |bytes, &dim| bytes.checked_mul(dim))
}

/// Bytes of one item of a NumPy type string such as `<f4`, `|S5`, `<U3` or
/// `<M8[ns]`; `None` for what is no such string or holds pointers.
fn item_size(dtype: &str) -> Option<u64> {
    let mut rest = dtype.strip_prefix(['<', '>', '|', '='])?.chars();
    let kind = rest.next()?;
    let digits = rest.as_str();
    let (digits, unit) = match digits.find('[') {
        Some(at) => digits.split_at(at),
        None => (digits, ""),
    };
    let plain_digits = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    let known_unit = unit.is_empty() || (matches!(kind, 'M' | 'm') && unit.ends_with(']'));
    if !plain_digits || !known_unit {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match kind {
        'b' | 'i' | 'u' | 'f' | 'c' | 'm' | 'M' | 'S' | 'V' => Some(count),
        // Counted in code points of four bytes.
        'U' => count.checked_mul(4),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn item_sizes_of_type_strings() {
        let sizes = [
            ("<f4", 4),
            ("|u1", 1),
            (">i8", 8),
            ("|b1", 1),
            ("<c16", 16),
            ("<V2", 2),
            ("|S5", 5),
            ("<U3", 12),
            ("<M8[ns]", 8),
            ("<m8[25s]", 8),
        ];
        for (dtype, size) in sizes {
            assert_eq!(item_size(dtype), Some(size), "{dtype}");
        }
        for dtype in ["", "f4", "<", "<f", "|O", "|O8", "<f-4", "<f4[ns]", "<M8[ns", "<é4"] {
            assert_eq!(item_size(dtype), None, "{dtype}");
        }
    }

    #[test]
    fn byte_counts_do_not_wrap() {
        assert_eq!(byte_count(&[], 4), Some(4));
        assert_eq!(byte_count(&[3, 5], 4), Some(60));
        assert_eq!(byte_count(&[u64::MAX, 0], 4), Some(0));
        assert_eq!(byte_count(&[1 << 32, 1 << 32], 1), None);
    }
}
