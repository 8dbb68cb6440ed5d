//! The `ZPL1` palette frame: few distinct values, and an index for each element.

use crate::array::ArrayField;
use crate::bytes::{Bytes, size, zeroed};
use crate::zstd_frame::{Zstd, ZstdFrame};
use crate::{IS_ARRAY, Result, check_version, corrupt};

pub(super) const MAGIC: &[u8; 4] = b"ZPL1";
const VERSION: u8 = 1;

pub(super) struct Palette<'a> {
    width: usize,
    index_width: usize,
    /// Codebook and indices; absent when there are no elements.
    coded: Option<(ZstdFrame<'a>, ZstdFrame<'a>)>,
    tail: &'a [u8],
    len: usize,
}

impl<'a> Palette<'a> {
    pub(super) fn parse(frame: &'a [u8]) -> Result<(Self, Option<ArrayField<'a>>)> {
        let mut bytes = Bytes::new(frame);
        bytes.take(MAGIC.len(), "magic")?;
        check_version(bytes.u8("version")?, VERSION, "ZPL1")?;
        let width = bytes.u8("width")?;
        let flags = bytes.u8("flags")?;
        let index_width = bytes.u8("index width")?;
        let count = size(bytes.u64("element count")?)?;
        let distinct = bytes.u32("distinct values")? as usize;
        let tail_len = bytes.u32("tail length")?;
        let dtype_len = bytes.u8("array dtype length")?;
        let dims = bytes.u8("dimensions")?;
        let array = ArrayField::parse(&mut bytes, dtype_len, dims)?;
        let tail = bytes.take(tail_len as usize, "tail")?;
        let codebook_len = bytes.u32("codebook length")?;
        let codebook = bytes.take(codebook_len as usize, "codebook")?;
        let indices = bytes.take_rest();

        if !matches!(width, 2 | 4 | 8) || !matches!(index_width, 1 | 2 | 4) {
            return Err(corrupt(format!("palette of width {width} with indices of {index_width} bytes")));
        }
        let (width, index_width) = (usize::from(width), usize::from(index_width));
        let len = count
            .checked_mul(width)
            .and_then(|len| len.checked_add(tail.len()))
            .filter(|_| tail.len() < width)
            .ok_or_else(|| corrupt(format!("{count} elements and a tail of {}", tail.len())))?;
        // Every value of a palette occurs, or it would not be in it.
        if count > 0 && !(1..=count).contains(&distinct) {
            return Err(corrupt(format!("palette of {distinct} values for {count} elements")));
        }
        let coded = if count > 0 {
            // Neither product is above `len` or twice that.
            let indices_len = count.checked_mul(index_width);
            let indices_len = indices_len.ok_or_else(|| corrupt("index length overflows"))?;
            Some((ZstdFrame::parse(codebook, distinct * width)?, ZstdFrame::parse(indices, indices_len)?))
        } else if codebook.is_empty() && indices.is_empty() {
            None
        } else {
            return Err(corrupt("a palette for no elements"));
        };
        let palette = Self { width, index_width, coded, tail, len };
        Ok((palette, (flags & IS_ARRAY != 0).then_some(array)))
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn decode_into(&self, out: &mut [u8], zstd: &mut Zstd) -> Result<()> {
        let (out, tail) = out.split_at_mut(self.len - self.tail.len());
        tail.copy_from_slice(self.tail);
        let Some((codebook_frame, index_frame)) = &self.coded else {
            return Ok(());
        };
        let mut codebook = zeroed(codebook_frame.content())?;
        codebook_frame.decode_into(&mut codebook, zstd)?;
        let mut indices = zeroed(index_frame.content())?;
        index_frame.decode_into(&mut indices, zstd)?;
        match self.width {
            2 => look_up::<2>(&codebook, &indices, self.index_width, out),
            4 => look_up::<4>(&codebook, &indices, self.index_width, out),
            _ => look_up::<8>(&codebook, &indices, self.index_width, out),
        }
    }
}

fn look_up<const W: usize>(
    codebook: &[u8],
    indices: &[u8],
    index_width: usize,
    out: &mut [u8],
) -> Result<()> {
    let (values, _) = codebook.as_chunks::<W>();
    let (out, _) = out.as_chunks_mut::<W>();
    for (element, raw) in out.iter_mut().zip(indices.chunks_exact(index_width)) {
        let index = raw.iter().rev().fold(0, |index, &byte| index << 8 | usize::from(byte));
        *element = *values
            .get(index)
            .ok_or_else(|| corrupt(format!("palette index {index} among {} values", values.len())))?;
    }
    Ok(())
}
