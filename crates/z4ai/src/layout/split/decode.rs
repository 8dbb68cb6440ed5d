//! Decodes the split layout.

use crate::coder::huffman::decode::DecodePrefetch;
use crate::coder::{self, Coder};
use crate::error::{Error, Result};
use crate::kernel::bit_fields::{self, FieldStreams, Fields, MAX_PLANES, MergeSource, OutlierPatcher};
use crate::kernel::scale_classes::{self, MAX_CLASSES, SLACK};
use crate::kernel::{bit_packing, sign_changes};
use crate::layout::hashed_output::HashedOutput;
use crate::layout::split::Split;
use crate::memory::grow;
use crate::wire::Reader;
use std::ops::Range;

/// Buffers that decoding reuses.
#[derive(Default)]
pub(crate) struct SplitScratch {
    codes: Vec<u8>,
    runs: [Vec<u8>; MAX_CLASSES],
    mid: Vec<u8>,
    planes: [Vec<u8>; MAX_PLANES],
    signs: Vec<u8>,
    /// Of codes in context, one per context.
    tables: Vec<u32>,
    /// The codes of one part.
    part: Vec<u8>,
}

impl Split {
    /// Decodes `payload` to fill `out`; returns the hash of it.
    pub(crate) fn decode(
        &self,
        payload: &[u8],
        mut out: HashedOutput<'_>,
        scratch: &mut SplitScratch,
        coders: &mut coder::DecodeScratch,
    ) -> Result<u64> {
        let count = out.len() / self.fields.size;
        let whole = payload;
        let mut payload = Reader::new(whole);
        let mid = match &self.mid {
            Some(coder) => {
                let len = self.fields.mid_len(count);
                let mid = decode_stream(coder, &mut payload, len, &mut scratch.mid, coders)?;
                coder::check_packed_padding(self.fields.mid_bits(), mid, count)?;
                mid
            }
            None => &[],
        };
        let mut planes: [&[u8]; MAX_PLANES] = [&[]; MAX_PLANES];
        for ((coder, buffer), plane) in self.planes.iter().zip(&mut scratch.planes).zip(&mut planes) {
            *plane = decode_stream(coder, &mut payload, count, buffer, coders)?;
        }
        let signs = self.decode_signs(&mut payload, count, &mut scratch.signs, coders)?;
        // The streams before the codes are mostly raw, and are read right after the codes.
        let before = &whole[..whole.len() - payload.remaining()];
        coders.ahead = DecodePrefetch::new(count, before).with_target(count, out.touched());
        let codes = match &self.contexts {
            Some(contexts) => {
                let stored = take(&mut payload, contexts.stored_len())?;
                grow(&mut scratch.codes, count);
                contexts.decode(stored, &mut scratch.codes[..count], &mut scratch.tables)?;
                Codes::Ready(&scratch.codes[..count])
            }
            None => self.decode_codes(&mut payload, count, &mut scratch.codes, &mut scratch.runs, coders)?,
        };
        let patches =
            Patches::read(&mut payload, self.patches as usize, self.fields, self.code_of_patched())?;
        let from = FieldStreams { codes: &[], mid, planes };
        grow(&mut scratch.part, HashedOutput::LEN / self.fields.size);
        self.merge(codes, &from, signs, patches, &mut scratch.part, out)
    }

    /// The code that patched elements must have. It is meaningless; a fixed one makes damage
    /// noticeable.
    fn code_of_patched(&self) -> u8 {
        match &self.codes[..] {
            [Coder::Packed { palette, .. }] if self.classes.is_none() => palette[0],
            _ => 0,
        }
    }

    /// The signs, if they are separate.
    fn decode_signs<'a>(
        &self,
        payload: &mut Reader<'_>,
        count: usize,
        buffer: &'a mut Vec<u8>,
        coders: &mut coder::DecodeScratch,
    ) -> Result<Option<&'a [u8]>> {
        let Some(coder) = &self.signs else { return Ok(None) };
        let len = count.div_ceil(8);
        let stored = take(payload, coder.stored_len(len))?;
        grow(buffer, len);
        coder.decode(stored, &mut buffer[..len], coders)?;
        coder::check_packed_padding(1, &buffer[..len], count)?;
        sign_changes::restore(&mut buffer[..len]);
        Ok(Some(&buffer[..len]))
    }

    /// Merges fields part by part; `buffer` has room for the codes of one.
    fn merge(
        &self,
        codes: Codes<'_>,
        from: &FieldStreams<'_>,
        signs: Option<&[u8]>,
        mut patches: Patches<'_>,
        buffer: &mut [u8],
        mut out: HashedOutput<'_>,
    ) -> Result<u64> {
        let size = self.fields.size;
        let count = out.len() / size;
        let mut at = 0;
        while !out.is_done() {
            let mut len = HashedOutput::LEN;
            if let Some((palette, codes)) = codes.from(at) {
                let fields = from.part(self.fields, codes, at);
                let signs = signs.map_or(&[][..], |signs| &signs[at / 8..]);
                let from = MergeSource { fields, palette, signs };
                let mut patching = patches.from(at);
                let merged = out.merge((count - at) * size, self.fields, &from, &mut patching);
                patching.result?;
                // The first elements may be needed to reach a cache line boundary.
                if at == 0 || merged > 0 {
                    len = HashedOutput::LEAST;
                }
                at += merged / size;
            }
            out.next_of(len, |out| {
                let range = at..at + out.len() / size;
                at = range.end;
                let codes = match codes {
                    Codes::Ready(codes) => &codes[range.clone()],
                    Codes::Packed(width, palette, stored) => {
                        let stored = &stored[range.start * width as usize / 8..];
                        let stored = &stored[..(range.len() * width as usize).div_ceil(8)];
                        bit_packing::expand(width, palette, stored, &mut buffer[..range.len()]);
                        &buffer[..range.len()]
                    }
                };
                bit_fields::merge(self.fields, &from.part(self.fields, codes, range.start), out);
                if let Some(signs) = signs {
                    sign_changes::put(size, &signs[range.start / 8..], out);
                }
                patches.apply(&range, out)
            })?;
        }
        if patches.left() > 0 {
            return Err(Error::corrupt("a patch outside its chunk"));
        }
        Ok(out.finish())
    }

    /// The codes in element order, in `buffer` unless that would be a needless copy.
    fn decode_codes<'a>(
        &'a self,
        payload: &mut Reader<'a>,
        count: usize,
        buffer: &'a mut Vec<u8>,
        runs: &mut [Vec<u8>; MAX_CLASSES],
        coders: &mut coder::DecodeScratch,
    ) -> Result<Codes<'a>> {
        if let Some(map) = &self.classes {
            let sizes = map.sizes(count);
            for ((coder, run), size) in self.codes.iter().zip(&mut *runs).zip(sizes) {
                grow(run, size + SLACK);
                let stored = take(payload, coder.stored_len(size))?;
                coder.decode(stored, &mut run[..size], coders)?;
            }
            grow(buffer, count + SLACK);
            let runs: [&[u8]; MAX_CLASSES] = std::array::from_fn(|i| runs[i].as_slice());
            scale_classes::gather(map, &runs[..self.codes.len()], count, buffer);
            return Ok(Codes::Ready(&buffer[..count]));
        }
        let coder = &self.codes[0];
        let stored = take(payload, coder.stored_len(count))?;
        match coder {
            Coder::Raw => Ok(Codes::Ready(stored)),
            Coder::Packed { width, palette } => {
                coder::check_packed_padding(*width, stored, count)?;
                Ok(Codes::Packed(*width, palette, stored))
            }
            _ => {
                grow(buffer, count);
                coder.decode(stored, &mut buffer[..count], coders)?;
                Ok(Codes::Ready(&buffer[..count]))
            }
        }
    }
}

/// The patches of a chunk that have not been applied yet.
struct Patches<'a> {
    indices: Reader<'a>,
    symbols: Reader<'a>,
    fields: Fields,
    /// The symbol that elements have before they are patched.
    unpatched: u16,
    /// The index of the first of them.
    next: Option<u32>,
}

impl<'a> Patches<'a> {
    fn read(payload: &mut Reader<'a>, count: usize, fields: Fields, code: u8) -> Result<Self> {
        let indices = Reader::new(payload.take(count * 4)?);
        let symbols = Reader::new(payload.take(count * 2)?);
        let unpatched = fields.base + u16::from(code);
        let mut patches = Self { indices, symbols, fields, unpatched, next: None };
        patches.advance()?;
        Ok(patches)
    }

    fn advance(&mut self) -> Result<()> {
        self.next = match self.indices.remaining() {
            0 => None,
            _ => Some(self.indices.u32()?),
        };
        Ok(())
    }

    /// Applies all patches in `range`, which must not be visited again.
    fn apply(&mut self, range: &Range<usize>, elements: &mut [u8]) -> Result<()> {
        let size = self.fields.size;
        while let Some(index) = self.next.filter(|&index| (index as usize) < range.end) {
            let Some(at) = (index as usize).checked_sub(range.start) else {
                return Err(Error::corrupt("patches out of order"));
            };
            self.advance()?;
            if self.next.is_some_and(|next| next <= index) {
                return Err(Error::corrupt("patches out of order"));
            }
            let symbol = self.symbols.u16()?;
            if u32::from(symbol) >> self.fields.symbol_bits != 0 {
                return Err(Error::corrupt("a patch wider than its symbol"));
            }
            if self.fields.patch(&mut elements[at * size..][..size], symbol) != self.unpatched {
                return Err(Error::corrupt("a patched element with a code"));
            }
        }
        Ok(())
    }

    fn left(&self) -> usize {
        self.symbols.remaining()
    }

    /// The patches of the elements from `start` on.
    fn from(&mut self, start: usize) -> PatchesFrom<'_, 'a> {
        PatchesFrom { patches: self, start, result: Ok(()) }
    }
}

/// [`Patches`] of the elements from `start` on.
struct PatchesFrom<'a, 'b> {
    patches: &'a mut Patches<'b>,
    start: usize,
    /// The error of the first patch that could not be applied; no others are applied then.
    result: Result<()>,
}

impl OutlierPatcher for PatchesFrom<'_, '_> {
    fn next(&self) -> usize {
        match self.patches.next {
            // A patch that is out of order is noticed when it is applied.
            Some(index) if self.result.is_ok() => (index as usize).saturating_sub(self.start),
            _ => usize::MAX,
        }
    }

    fn patch(&mut self, first: usize, elements: &mut [u8]) {
        let first = self.start + first;
        let range = first..first + elements.len() / self.patches.fields.size;
        self.result = self.patches.apply(&range, elements);
    }
}

/// The codes of a chunk.
#[derive(Clone, Copy)]
enum Codes<'a> {
    /// Decoded, one byte each.
    Ready(&'a [u8]),
    /// In the payload as palette indices.
    Packed(u32, &'a [u8; 16], &'a [u8]),
}

impl<'a> Codes<'a> {
    /// The codes from element `at` on, a multiple of eight: bytes, or 4-bit indices into a palette.
    fn from(self, at: usize) -> Option<(Option<&'a [u8; 16]>, &'a [u8])> {
        match self {
            Codes::Ready(codes) => Some((None, &codes[at..])),
            Codes::Packed(4, palette, stored) => Some((Some(palette), &stored[at / 2..])),
            Codes::Packed(..) => None,
        }
    }
}

/// The bytes of a stream; those of the payload itself if it is raw.
pub(crate) fn decode_stream<'a>(
    coder: &Coder,
    payload: &mut Reader<'a>,
    len: usize,
    buffer: &'a mut Vec<u8>,
    coders: &mut coder::DecodeScratch,
) -> Result<&'a [u8]> {
    let stored = take(payload, coder.stored_len(len))?;
    if *coder == Coder::Raw {
        return Ok(stored);
    }
    grow(buffer, len);
    coder.decode(stored, &mut buffer[..len], coders)?;
    Ok(&buffer[..len])
}

fn take<'a>(payload: &mut Reader<'a>, len: u64) -> Result<&'a [u8]> {
    let len = usize::try_from(len).map_err(|_| Error::corrupt("a stream beyond its chunk"))?;
    payload.take(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::Kind;
    use crate::layout::hashed_output::StagingBuffer;
    use crate::wire::Put;

    /// Decodes many elements with these patches, whose elements have code `code`, by the fused
    /// merge where there is one.
    fn decode(patches: &[(u32, u16)], code: u8, large: bool) -> Result<Vec<u16>> {
        const COUNT: usize = 5000;
        let Some(fields) = Fields::new(Kind::Bf16, 8, 0) else { unreachable!("bf16 has such symbols") };
        let split = Split {
            fields,
            patches: patches.len() as u32,
            classes: None,
            contexts: None,
            mid: None,
            planes: vec![Coder::Raw],
            signs: None,
            codes: vec![Coder::Raw],
        };
        let mut payload = [vec![0x81; COUNT], vec![0x7f; COUNT]].concat();
        let inside = patches.iter().map(|patch| patch.0 as usize).filter(|&index| index < COUNT);
        inside.for_each(|index| payload[COUNT + index] = code);
        patches.iter().for_each(|patch| payload.put_u32(patch.0));
        patches.iter().for_each(|patch| payload.put_u16(patch.1));
        let mut part = StagingBuffer::default();
        let mut out = vec![0; COUNT * 2];
        let parts = HashedOutput::new(&mut out, large, &mut part);
        split.decode(&payload, parts, &mut SplitScratch::default(), &mut coder::DecodeScratch::default())?;
        Ok(out.as_chunks().0.iter().map(|&element| u16::from_le_bytes(element)).collect())
    }

    #[test]
    fn patches_are_applied_in_order_or_refused() {
        for large in [false, true] {
            let good = [(0, 1), (1, 2), (700, 0xff), (701, 3), (3000, 0), (4999, 4)];
            for (index, element) in decode(&good, 0, large).unwrap().into_iter().enumerate() {
                let patch = good.iter().find(|patch| patch.0 as usize == index);
                let symbol = patch.map_or(0x7f, |patch| patch.1);
                assert_eq!(element, 0x8001 | symbol << 7, "element {index}");
            }
            for bad in [
                &[(700, 1), (5, 1)][..],
                &[(3000, 1), (700, 1)],
                &[(700, 1), (700, 1)],
                &[(5, 1), (5000, 1)],
                &[(700, 0x100)],
                &[(5000, 1), (700, 1)],
            ] {
                assert!(decode(bad, 0, large).is_err(), "{bad:?}");
            }
            for one in good {
                assert!(decode(&[one], 1, large).is_err(), "{one:?} has a code");
            }
        }
    }
}
