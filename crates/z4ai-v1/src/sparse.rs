//! The `ZSP1` sparse frame: a bitmap of the elements that are not zero, and
//! those elements in a turbo frame.

use crate::array::ArrayField;
use crate::bits::{bit, check_padding, packed_len};
use crate::body::Body;
use crate::bytes::{Bytes, size, zeroed};
use crate::zstd_frame::{Zstd, ZstdFrame};
use crate::{IS_ARRAY, Result, check_version, corrupt, turbo};

pub(super) const MAGIC: &[u8; 4] = b"ZSP1";
const VERSION: u8 = 1;

pub(super) struct Sparse<'a> {
    width: usize,
    count: usize,
    nonzero: usize,
    /// Absent when there are no elements.
    bitmap: Option<ZstdFrame<'a>>,
    /// Absent when all elements are zero.
    values: Option<Body<'a>>,
    tail: &'a [u8],
    len: usize,
}

impl<'a> Sparse<'a> {
    pub(super) fn parse(frame: &'a [u8]) -> Result<(Self, Option<ArrayField<'a>>)> {
        let mut bytes = Bytes::new(frame);
        bytes.take(MAGIC.len(), "magic")?;
        check_version(bytes.u8("version")?, VERSION, "ZSP1")?;
        let width = bytes.u8("width")?;
        let flags = bytes.u8("flags")?;
        let pad = bytes.u8("padding")?;
        let count = size(bytes.u64("element count")?)?;
        let nonzero = size(bytes.u64("non-zero count")?)?;
        let tail_len = bytes.u32("tail length")?;
        let dtype_len = bytes.u8("array dtype length")?;
        let dims = bytes.u8("dimensions")?;
        let array = ArrayField::parse(&mut bytes, dtype_len, dims)?;
        let tail = bytes.take(tail_len as usize, "tail")?;
        let bitmap_len = bytes.u64("bitmap length")?;
        let bitmap = bytes.take_claimed(bitmap_len, "bitmap")?;
        let values = bytes.take_rest();

        if !matches!(width, 1 | 2 | 4 | 8) || pad != 0 {
            return Err(corrupt(format!("sparse width {width} with padding {pad}")));
        }
        let width = usize::from(width);
        if tail.len() >= width || nonzero > count {
            return Err(corrupt(format!(
                "{nonzero} of {count} elements of {width} bytes, and a tail of {}",
                tail.len()
            )));
        }
        let len = count
            .checked_mul(width)
            .and_then(|len| len.checked_add(tail.len()))
            .ok_or_else(|| corrupt("decoded length overflows"))?;
        let bitmap = match count {
            0 if bitmap.is_empty() => None,
            0 => return Err(corrupt("a bitmap for no elements")),
            _ => Some(ZstdFrame::parse(bitmap, packed_len(count))?),
        };
        let values = match nonzero {
            0 if values.is_empty() => None,
            0 => return Err(corrupt("values where all elements are zero")),
            _ => turbo::parse(values)?,
        };
        // Cannot overflow: no more than `count` elements.
        if values.as_ref().map_or(0, Body::len) != nonzero * width {
            return Err(corrupt(format!(
                "sparse frame does not hold its {nonzero} elements of {width} bytes"
            )));
        }
        let sparse = Self { width, count, nonzero, bitmap, values, tail, len };
        Ok((sparse, (flags & IS_ARRAY != 0).then_some(array)))
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn decode_into(&self, out: &mut [u8], zstd: &mut Zstd) -> Result<()> {
        let (out, tail) = out.split_at_mut(self.count * self.width);
        tail.copy_from_slice(self.tail);
        let mut bitmap = Vec::new();
        if let Some(frame) = &self.bitmap {
            bitmap = zeroed(packed_len(self.count))?;
            frame.decode_into(&mut bitmap, zstd)?;
        }
        check_padding(&bitmap, self.count, "bitmap")?;
        let set: usize = bitmap.iter().map(|byte| byte.count_ones() as usize).sum();
        if set != self.nonzero {
            return Err(corrupt(format!("bitmap has {set} bits set for {} elements", self.nonzero)));
        }
        let mut values = zeroed(self.nonzero * self.width)?;
        if let Some(body) = &self.values {
            body.decode_into(&mut values, zstd)?;
        }
        match self.width {
            1 => spread::<1>(&bitmap, &values, out),
            2 => spread::<2>(&bitmap, &values, out),
            4 => spread::<4>(&bitmap, &values, out),
            _ => spread::<8>(&bitmap, &values, out),
        }
        Ok(())
    }
}

/// Writes the next value for every set bit and zero for every other.
fn spread<const W: usize>(bitmap: &[u8], values: &[u8], out: &mut [u8]) {
    let mut values = values.as_chunks::<W>().0.iter();
    for (i, element) in out.as_chunks_mut::<W>().0.iter_mut().enumerate() {
        *element = match bit(bitmap, i) {
            // As many values as set bits, so this never runs out.
            true => values.next().copied().unwrap_or([0; W]),
            false => [0; W],
        };
    }
}
