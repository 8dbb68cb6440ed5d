//! Tensor elements kept in protobuf's typed fields: numbers of variable length,
//! or fixed ones that a writer did not put into one packed run.

use std::ops::Range;

use smallvec::SmallVec;

use crate::base::CACHE_BLOCK;
use crate::catalog::{Decode, Extent};
use crate::error::{Error, Result};
use crate::format::onnx::wire::{Field, Payload};
use crate::source::{Source, Sources, zeroed};

/// Writers put a field's elements into one run; some older ones tag each
/// element, which makes one run of tagged ones. More pieces than this are no
/// writer's work.
const MAX_PIECES: usize = 1024;

/// How much is fetched at a time from a source that is not mapped.
const FETCHED_BLOCK: u64 = 256 << 10;

/// A run of elements in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) range: Range<u64>,
    /// Whether each element has its field's tag, of one byte, before it.
    tagged: bool,
}

/// The runs of one repeated field, as they come.
#[derive(Debug, Clone, Default)]
pub(super) struct Pieces(SmallVec<[Piece; 1]>);

impl Pieces {
    /// Adds what `field` holds: a packed run, or one tagged element.
    pub(super) fn push(&mut self, field: Field) -> Result<()> {
        let piece = match field.payload {
            Payload::Bytes(range) if range.is_empty() => return Ok(()),
            Payload::Bytes(range) => Piece { range, tagged: false },
            Payload::Varint(_) | Payload::Fixed(_) if field.tag_len == 1 => {
                if let Some(last) = self.0.last_mut()
                    && last.tagged
                    && last.range.end == field.span.start
                {
                    last.range.end = field.span.end;
                    return Ok(());
                }
                Piece { range: field.span, tagged: true }
            }
            _ => return Err(Error::corrupt("onnx.wire", "a repeated field has a tag of several bytes")),
        };
        if self.0.len() == MAX_PIECES {
            return Err(Error::corrupt(
                "onnx.pieces",
                format!("the elements of one tensor come in more than {MAX_PIECES} pieces"),
            ));
        }
        self.0.push(piece);
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The one packed run that holds all elements, if that is how they lie.
    pub(super) fn single_run(&self) -> Option<Range<u64>> {
        match &self.0[..] {
            [Piece { range, tagged: false }] => Some(range.clone()),
            _ => None,
        }
    }

    /// Bytes in the file, tags included.
    pub(super) fn stored_len(&self) -> u64 {
        self.0.iter().map(|piece| piece.range.end - piece.range.start).sum()
    }
}

/// How one element stands on the wire and in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ElementKind {
    /// That many bytes in both places.
    Fixed(u8),
    /// A varint whose lowest bytes, that many, are the element (or, for 4- and
    /// 2-bit types, one byte of packed elements).
    Varint(u8),
    /// A varint of six bits; four of them are packed into three bytes.
    Sextet,
}

impl ElementKind {
    /// Entries and bytes of the smallest group that starts on a byte.
    fn group(self) -> (u64, u64) {
        match self {
            ElementKind::Fixed(width) | ElementKind::Varint(width) => (1, u64::from(width)),
            ElementKind::Sextet => (4, 3),
        }
    }

    /// The fewest and the most bytes that an entry takes on the wire.
    fn wire_len(self) -> (u64, u64) {
        match self {
            ElementKind::Fixed(width) => (u64::from(width), u64::from(width)),
            ElementKind::Varint(_) | ElementKind::Sextet => (1, 10),
        }
    }
}

/// A tensor in one of the typed fields.
#[derive(Debug)]
pub(super) struct Elements {
    pieces: Pieces,
    kind: ElementKind,
    /// How many numbers the field must hold.
    entries: u64,
    /// Decoded size in bytes.
    len: u64,
}

impl Elements {
    /// `entries` numbers that decode to `len` bytes; the bytes in the file must
    /// be enough for them and not too many.
    pub(super) fn new(pieces: Pieces, kind: ElementKind, entries: u64, len: u64) -> Result<Elements> {
        let (mut least, mut most) = (0u64, 0u64);
        let stored = pieces.stored_len();
        let (low, high) = kind.wire_len();
        for piece in &pieces.0 {
            let bytes = piece.range.end - piece.range.start;
            let tag = u64::from(piece.tagged);
            least += bytes.div_ceil(high + tag);
            most += bytes / (low + tag);
        }
        if entries < least || entries > most {
            return Err(Error::corrupt(
                "onnx.size",
                format!(
                    "{stored} bytes of data hold {least} to {most} numbers where the shape needs {entries}"
                ),
            ));
        }
        Ok(Elements { pieces, kind, entries, len })
    }

    /// Feeds every number to `each` until that says stop.
    fn each(&self, source: &dyn Source, mut each: impl FnMut(u64) -> Result<bool>) -> Result<()> {
        let fixed_bits = match self.kind {
            ElementKind::Fixed(width) => Some(u32::from(width) * 8),
            _ => None,
        };
        for Piece { range, tagged } in &self.pieces.0 {
            let (mut value, mut shift, mut at_tag) = (0u64, 0u32, *tagged);
            let mut position = range.start;
            while position < range.end {
                // Over a mapping the whole run is one block.
                let step =
                    if source.is_mapped() { u64::MAX } else { FETCHED_BLOCK }.min(range.end - position);
                let block = source.bytes(position, step)?;
                position += step;
                for &byte in block.iter() {
                    if at_tag {
                        at_tag = false;
                        continue;
                    }
                    let done = match fixed_bits {
                        Some(bits) => {
                            value |= u64::from(byte) << shift;
                            shift += 8;
                            shift == bits
                        }
                        None => {
                            if shift == 63 && byte > 1 {
                                return Err(Error::corrupt(
                                    "onnx.varint",
                                    "a number takes more than 64 bits",
                                ));
                            }
                            value |= u64::from(byte & 0x7f) << shift;
                            shift += 7;
                            byte < 0x80
                        }
                    };
                    if done {
                        if !each(value)? {
                            return Ok(());
                        }
                        (value, shift, at_tag) = (0, 0, *tagged);
                    }
                }
            }
            if shift != 0 || (*tagged && !at_tag) {
                return Err(Error::corrupt("onnx.varint", "the last number of a run is cut off"));
            }
        }
        Ok(())
    }

    /// Decodes whole groups from entry `first` on.
    fn decode_groups(&self, source: &dyn Source, first: u64, out: &mut [u8]) -> Result<()> {
        let (per_group, group_len) = self.kind.group();
        let wanted = ((out.len() as u64).div_ceil(group_len) * per_group).min(self.entries - first);
        let mut at = 0usize;
        self.decode_entries(source, first..first + wanted, |bytes| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
            Ok(())
        })
    }

    /// Shows what entries decode to, one or some bytes at a time. There is no way to an entry but
    /// past all before it.
    fn decode_entries(
        &self,
        source: &dyn Source,
        wanted: Range<u64>,
        mut put: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let Range { start: first, end: last } = wanted;
        // A read up to the end also notices numbers that nothing asked for.
        let to_end = last == self.entries;
        let mut index = 0u64;
        let (mut bits, mut held) = (0u64, 0u32);
        self.each(source, |value| {
            let current = index;
            index += 1;
            if current < first {
                return Ok(true);
            }
            if current >= last {
                return Ok(false);
            }
            match self.kind {
                ElementKind::Fixed(width) | ElementKind::Varint(width) => {
                    put(&value.to_le_bytes()[..usize::from(width)])?;
                }
                ElementKind::Sextet => {
                    if value > 0x3f {
                        return Err(Error::corrupt(
                            "onnx.six-bits",
                            format!("an element of a 6-bit type has the value {value}"),
                        ));
                    }
                    bits |= value << held;
                    held += 6;
                    while held >= 8 || (current + 1 == self.entries && held > 0) {
                        put(&[bits as u8])?;
                        bits >>= 8;
                        held = held.saturating_sub(8);
                    }
                }
            }
            Ok(to_end || current + 1 < last)
        })?;
        if index < last || index > self.entries {
            let found = if index > self.entries { "more" } else { "fewer" };
            return Err(Error::corrupt(
                "onnx.size",
                format!("the data holds {found} than the {} numbers that the shape needs", self.entries),
            ));
        }
        Ok(())
    }
}

impl Decode for Elements {
    fn encoding(&self) -> &str {
        "protobuf"
    }

    fn stored_len(&self) -> u64 {
        self.pieces.stored_len()
    }

    fn extent(&self) -> Option<Extent> {
        self.pieces.single_run().map(|run| Extent::new(run.start, run.end - run.start))
    }

    fn work(&self, range: &Range<u64>) -> u64 {
        range.end // entries are found by decoding those before them
    }

    fn decode_in_order(
        &self,
        sources: &Sources,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Option<Result<()>> {
        let mut piece = Vec::with_capacity(CACHE_BLOCK + 8);
        let mut put = |bytes: &[u8]| {
            piece.extend_from_slice(bytes);
            if piece.len() >= CACHE_BLOCK {
                each(&piece)?;
                piece.clear();
            }
            Ok(())
        };
        let decoded =
            sources.get(0).and_then(|source| self.decode_entries(&**source, 0..self.entries, &mut put));
        Some(decoded.and_then(|()| if piece.is_empty() { Ok(()) } else { each(&piece) }))
    }

    fn decode(&self, sources: &Sources, range: Range<u64>, out: &mut [u8], _threads: usize) -> Result<()> {
        let source = sources.get(0)?;
        let (per_group, group_len) = self.kind.group();
        let whole = range.start.is_multiple_of(group_len)
            && (range.end.is_multiple_of(group_len) || range.end == self.len);
        if whole {
            return self.decode_groups(&**source, range.start / group_len * per_group, out);
        }
        // A range that cuts an element: decode the groups it touches.
        let start = range.start / group_len * group_len;
        let end = range.end.next_multiple_of(group_len).min(self.len);
        let mut groups = zeroed(end - start)?;
        self.decode_groups(&**source, start / group_len * per_group, &mut groups)?;
        out.copy_from_slice(&groups[(range.start - start) as usize..][..out.len()]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::source::MemorySource;

    fn varints(values: impl IntoIterator<Item = u64>) -> Vec<u8> {
        let mut bytes = Vec::new();
        for mut value in values {
            while value >= 0x80 {
                bytes.push(value as u8 | 0x80);
                value >>= 7;
            }
            bytes.push(value as u8);
        }
        bytes
    }

    #[test]
    fn ranges_cost_what_lies_before_them_and_all_of_it_comes_in_order() {
        let count = 3 * CACHE_BLOCK as u64 / 4 + 5;
        let numbers = |mask: u64| varints((0..count).map(|n| n.wrapping_mul(0x9E37_79B9) & mask));
        for (kind, wire, len) in [
            (ElementKind::Varint(4), numbers(0xffff_ffff), 4 * count),
            (ElementKind::Varint(1), numbers(0xff), count),
            (ElementKind::Sextet, numbers(0x3f), (6 * count).div_ceil(8)),
            (ElementKind::Fixed(8), (0..8 * count).map(|n| (n * 7) as u8).collect(), 8 * count),
        ] {
            let run = Piece { range: 0..wire.len() as u64, tagged: false };
            let sources = Sources::one(Arc::new(MemorySource::new(wire)));
            let elements = Elements::new(Pieces(SmallVec::from_iter([run])), kind, count, len).unwrap();
            assert_eq!(elements.work(&(len - 1..len)), len, "{kind:?}");
            let mut at_once = vec![0; len as usize];
            elements.decode(&sources, 0..len, &mut at_once, 1).unwrap();
            let mut in_order = Vec::new();
            let each = &mut |piece: &[u8]| {
                assert!(piece.len() < 2 * CACHE_BLOCK);
                in_order.extend_from_slice(piece);
                Ok(())
            };
            elements.decode_in_order(&sources, each).unwrap().unwrap();
            assert!(in_order == at_once, "{kind:?}");
            let mut part = vec![0; 100];
            elements.decode(&sources, len - 101..len - 1, &mut part, 1).unwrap();
            assert_eq!(part, at_once[at_once.len() - 101..at_once.len() - 1], "{kind:?}");
        }
    }
}
