//! Palettes: elements as indices into one list of values that the whole frame shares.
//!
//! Payload of a chunk: the low bytes of the indices, then their high bytes if there are more than
//! 256 values.

pub(crate) mod encode;

use crate::coder::{self, Coder};
use crate::element::Kind;
use crate::error::{Error, Result};
use crate::kernel::{difference, table_lookup};
use crate::layout::ChunkScratch;
use crate::layout::split::decode_stream;
use crate::layout::streams::Streams;
use crate::wire::{Put, Reader};

/// Values in a palette, at most. (format)
pub(crate) const MAX_VALUES: usize = 1 << 16;

const LISTED: u8 = 0;
const CONSECUTIVE: u8 = 1;

/// How the values of a palette are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Values {
    /// The bytes of all values, byte planes one after the other, as one stream.
    Listed(Coder, Vec<u8>),
    /// Whole numbers from this one on.
    Consecutive(i32),
}

/// The values of a frame, ready to be looked up.
#[derive(Debug, Clone)]
pub(crate) struct Palette {
    count: usize,
    /// As many values as indices of one or two bytes can address.
    table: Vec<u8>,
}

/// Writes a palette of `count` values.
pub(crate) fn write(count: usize, values: &Values, out: &mut Vec<u8>) {
    out.put_u16((count - 1) as u16);
    match values {
        Values::Listed(coder, stored) => {
            out.put_u8(LISTED);
            coder.write(out);
            out.extend_from_slice(stored);
        }
        Values::Consecutive(first) => {
            out.put_u8(CONSECUTIVE);
            out.put_u32(*first as u32);
        }
    }
}

impl Palette {
    pub(crate) fn read(reader: &mut Reader<'_>, kind: Kind) -> Result<Self> {
        let size = kind.size();
        if size == 1 {
            return Err(Error::corrupt("a palette of bytes"));
        }
        let count = usize::from(reader.u16()?) + 1;
        let mut table = vec![0; indices(count) * size];
        let values = &mut table[..count * size];
        match reader.u8()? {
            LISTED => {
                let coder = Coder::read(reader)?;
                let len = usize::try_from(coder.stored_len(values.len()))
                    .map_err(|_| Error::corrupt("a palette beyond its frame"))?;
                let stored = reader.take(len)?;
                let mut planes = vec![0; values.len()];
                coder.decode(stored, &mut planes, &mut coder::DecodeScratch::default())?;
                for (byte, plane) in planes.chunks_exact(count).enumerate() {
                    difference::put_plane(size, plane, byte, values);
                }
            }
            CONSECUTIVE => {
                let first = reader.u32()? as i32;
                for (i, value) in values.chunks_exact_mut(size).enumerate() {
                    let number = i64::from(first) + i as i64;
                    let Some(bits) = whole_number(kind, number) else {
                        return Err(Error::corrupt(format_args!("no {} is exactly {number}", kind.name())));
                    };
                    value.copy_from_slice(&bits.to_le_bytes()[..size]);
                }
            }
            form => return Err(Error::unsupported(format_args!("palette of form {form} is not known"))),
        }
        Ok(Self { count, table })
    }
}

/// The number of values that indices can address, with `count` in use.
fn indices(count: usize) -> usize {
    if count <= 256 { 256 } else { MAX_VALUES }
}

/// The bits of the element of `kind` that is exactly this number, if there is one.
pub(crate) fn whole_number(kind: Kind, number: i64) -> Option<u64> {
    let bits = kind.bits();
    if !kind.is_float() {
        let mask = u64::MAX >> (64 - bits);
        return Some(number as u64 & mask);
    }
    let magnitude = number.unsigned_abs();
    if magnitude == 0 {
        return Some(0);
    }
    let mantissa_bits = bits - 1 - kind.exponent_bits();
    let bias = (1u64 << (kind.exponent_bits() - 1)) - 1;
    let power = magnitude.ilog2();
    let fraction = magnitude ^ 1 << power;
    let exact = power <= mantissa_bits || fraction.trailing_zeros() >= power - mantissa_bits;
    if !exact || u64::from(power) > bias {
        return None;
    }
    let fraction = match mantissa_bits.checked_sub(power) {
        Some(left) => fraction << left,
        None => fraction >> (power - mantissa_bits),
    };
    let sign = u64::from(number < 0) << (bits - 1);
    Some(sign | (bias + u64::from(power)) << mantissa_bits | fraction)
}

/// The description of a chunk of indices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Indexed {
    /// Bytes per element.
    pub(crate) size: usize,
    pub(crate) low: Coder,
    /// With more than 256 values.
    pub(crate) high: Option<Coder>,
}

impl Indexed {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.put_u8(if self.high.is_some() { 2 } else { 1 });
        self.low.write(out);
        self.high.iter().for_each(|high| high.write(out));
    }

    pub(crate) fn read(reader: &mut Reader<'_>, kind: Kind, len: usize) -> Result<Self> {
        if !len.is_multiple_of(kind.size()) {
            return Err(Error::corrupt("a chunk of indices ends inside an element"));
        }
        let wide = match reader.u8()? {
            1 => false,
            2 => true,
            width => return Err(Error::corrupt(format_args!("palette indices of {width} bytes"))),
        };
        let low = Coder::read(reader)?;
        let high = wide.then(|| Coder::read(reader)).transpose()?;
        Ok(Self { size: kind.size(), low, high })
    }

    pub(crate) fn payload_len(&self, len: usize) -> u64 {
        let count = len / self.size;
        self.low.stored_len(count) + self.high.as_ref().map_or(0, |high| high.stored_len(count))
    }

    pub(crate) fn streams(&self, len: usize, streams: &mut Streams) {
        let coders = [Some(&self.low), self.high.as_ref()];
        coders.into_iter().flatten().for_each(|coder| streams.add("indices", coder, len / self.size));
    }

    pub(crate) fn decode(
        &self,
        payload: &[u8],
        out: &mut [u8],
        palette: Option<&Palette>,
        scratch: &mut ChunkScratch,
    ) -> Result<()> {
        let Some(palette) = palette else {
            return Err(Error::corrupt("indices without a palette"));
        };
        if self.high.is_some() != (indices(palette.count) > 256) {
            return Err(Error::corrupt(format_args!("indices into {} values", palette.count)));
        }
        let count = out.len() / self.size;
        let mut payload = Reader::new(payload);
        let coders = &mut scratch.coder;
        let [low, high, ..] = &mut scratch.planes;
        let low = decode_stream(&self.low, &mut payload, count, low, coders)?;
        let high = match &self.high {
            Some(coder) => decode_stream(coder, &mut payload, count, high, coders)?,
            None => &[],
        };
        if table_lookup::highest(low, high) >= palette.count {
            return Err(Error::corrupt("an index beyond the palette"));
        }
        table_lookup::look_up(self.size, &palette.table, low, high, out);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_what_the_machine_makes_of_them() {
        for number in
            (-70_000..70_000).chain([i64::from(i32::MIN), i64::from(i32::MAX), 1 << 24, (1 << 24) + 1])
        {
            let single = number as f32;
            let exact = single as f64 == number as f64;
            assert_eq!(whole_number(Kind::F32, number), exact.then_some(u64::from(single.to_bits())));
            assert_eq!(whole_number(Kind::F64, number), Some((number as f64).to_bits()));
            let brain =
                (exact && single.to_bits() & 0xffff == 0).then_some(u64::from(single.to_bits() >> 16));
            assert_eq!(whole_number(Kind::Bf16, number), brain);
            assert_eq!(whole_number(Kind::I16, number), Some(u64::from(number as u16)));
        }
        assert_eq!(whole_number(Kind::F16, 65504), Some(0x7bff));
        assert_eq!(whole_number(Kind::F16, 65536), None);
        assert_eq!(whole_number(Kind::F16, -3), Some(0xc200));
    }
}
