//! The sparse layout: a bitmask of the elements that differ from the fill value, and those elements
//! in an inner layout. Multiplying weights by a mask leaves zeros of either sign, so the signs of
//! the fill elements may be a stream.
//!
//! Payload: the mask, the signs, then the payload of the inner layout.

use crate::coder::{Coder, check_packed_padding};
use crate::element::Kind;
use crate::error::{Error, Result};
use crate::kernel::sparse::{self, load};
use crate::layout::split::decode_stream;
use crate::layout::streams::Streams;
use crate::layout::{ChunkLayout, ChunkScratch, Context};
use crate::wire::{Put, Reader};

/// The description of a sparse chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sparse {
    /// Bytes per element.
    pub(crate) size: usize,
    /// The element that most are.
    pub(crate) fill: u64,
    /// The number of elements that differ from the fill value.
    pub(crate) present: u32,
    /// One bit per element, set where it differs from the fill value.
    pub(crate) mask: Coder,
    /// A bit per element that is not present, set where its sign is not that of `fill`.
    pub(crate) signs: Option<Coder>,
    /// The elements that differ, if any; in a layout that is not nested itself.
    pub(crate) values: Option<Box<ChunkLayout>>,
}

impl Sparse {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.fill.to_le_bytes()[..self.size]);
        out.put_u32(self.present);
        out.put_u8(u8::from(self.signs.is_some()));
        if let Some(values) = &self.values {
            self.mask.write(out);
            values.write(out);
        }
        self.signs.iter().for_each(|signs| signs.write(out));
    }

    pub(crate) fn read(reader: &mut Reader<'_>, kind: Kind, len: usize) -> Result<Self> {
        let size = kind.size();
        if !len.is_multiple_of(size) {
            return Err(Error::corrupt("a sparse chunk ends inside an element"));
        }
        let fill = load(reader.take(size)?);
        let present = reader.u32()?;
        if present as usize > len / size {
            return Err(Error::corrupt(format_args!(
                "{present} elements present in a sparse chunk of {}",
                len / size
            )));
        }
        let signed = match reader.u8()? {
            0 => false,
            1 if kind.is_float() => true,
            code => return Err(Error::corrupt(format_args!("signs {code} of a sparse chunk"))),
        };
        let (mut mask, mut values) = (Coder::Constant(0), None);
        if present > 0 {
            mask = Coder::read(reader)?;
            values = Some(Box::new(ChunkLayout::read_inner(reader, kind, present as usize * size)?));
        }
        let signs = signed.then(|| Coder::read(reader)).transpose()?;
        Ok(Self { size, fill, present, mask, signs, values })
    }

    /// Bytes of the signs of a chunk of `count` elements.
    fn signs_len(&self, count: usize) -> usize {
        (count - self.present as usize).div_ceil(8)
    }

    pub(crate) fn payload_len(&self, len: usize) -> u64 {
        let count = len / self.size;
        let signs = self.signs.as_ref().map_or(0, |signs| signs.stored_len(self.signs_len(count)));
        let rest = self.values.as_ref().map_or(0, |values| {
            let mask = self.mask.stored_len(count.div_ceil(8));
            mask.saturating_add(values.payload_len(self.present as usize * self.size))
        });
        signs.saturating_add(rest)
    }

    pub(crate) fn streams(&self, len: usize, streams: &mut Streams) {
        let count = len / self.size;
        if let Some(values) = &self.values {
            streams.add("mask", &self.mask, count.div_ceil(8));
            values.streams(self.present as usize * self.size, streams);
        }
        self.signs.iter().for_each(|coder| streams.add("signs", coder, self.signs_len(count)));
    }

    pub(crate) fn decode(
        &self,
        payload: &[u8],
        out: &mut [u8],
        context: Context<'_>,
        scratch: &mut ChunkScratch,
    ) -> Result<()> {
        let (size, count) = (self.size, out.len() / self.size);
        let mut payload = Reader::new(payload);
        let Buffers { mut mask, mut signs, mut values } = std::mem::take(&mut scratch.sparse);
        let present = self.present as usize;
        values.resize(present * size + size, 0);
        {
            let coders = &mut scratch.coder;
            let mask = decode_stream(&self.mask, &mut payload, count.div_ceil(8), &mut mask, coders)?;
            if mask.iter().map(|byte| byte.count_ones() as usize).sum::<usize>() != present {
                return Err(Error::corrupt("a mask of another number of elements than are present"));
            }
            check_packed_padding(1, mask, count)?;
            let signs = match &self.signs {
                Some(coder) => {
                    let len = self.signs_len(count);
                    let signs = decode_stream(coder, &mut payload, len, &mut signs, coders)?;
                    check_packed_padding(1, signs, count - present)?;
                    signs
                }
                None => &[],
            };
            if let Some(layout) = &self.values {
                let stored = payload.take(payload.remaining())?;
                layout.decode(stored, &mut values[..present * size], context, scratch)?;
            }
            sparse::expand(size, mask, &values, self.fill, out);
            if !signs.is_empty() {
                sparse::put_signs(size, mask, signs, out);
            }
        }
        scratch.sparse = Buffers { mask, signs, values };
        Ok(())
    }
}

/// Buffers that decoding reuses.
#[derive(Default)]
pub(crate) struct Buffers {
    mask: Vec<u8>,
    signs: Vec<u8>,
    values: Vec<u8>,
}
