//! The delta layout: a chunk as its difference from a reference.
//!
//! Differences are cut by significance. The low bytes of all elements are byte planes; of the
//! elements that are not zero above those, the high bytes are listed with their places. Where few
//! elements changed there are no planes, and the list is all there is.
//!
//! Payload: the planes from the lowest on, the gaps of the list, its values from the lowest byte
//! on.

use super::parts::Parts;
use super::split::decode_stream;
use super::{Context, Layout, Scratch};
use crate::coder::Coder;
use crate::element::Kind;
use crate::error::{Error, Result};
use crate::frame::Describe;
use crate::kernel::difference::{self, Rule};
use crate::kernel::hash;
use crate::streams::Streams;
use crate::wire::{Put, Reader};

const FRESH: u8 = 0;
const XOR: u8 = 1;
const STEP: u8 = 2;

/// The description of a chunk of a delta frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delta {
    /// Hash of the chunk's place in the reference.
    pub(crate) reference: u64,
    /// Hash of the chunk's payload.
    pub(crate) stored: u64,
    pub(crate) body: Body,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Body {
    /// Without the reference.
    Fresh(Layout),
    Difference(Difference),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) elements: Elements,
    /// Whether differences are bits instead of distances.
    pub(crate) xor: bool,
    /// Lowest plane first.
    pub(crate) planes: Vec<Coder>,
    /// The elements that are not zero above the planes, if any.
    pub(crate) list: Option<List>,
}

/// Listed elements: how many, and the streams of their places and bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct List {
    pub(crate) count: u32,
    pub(crate) gaps_len: u32,
    pub(crate) gaps: Coder,
    /// Lowest byte first.
    pub(crate) values: Vec<Coder>,
}

/// What the bytes of a chunk are differences of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Elements {
    pub(crate) size: usize,
    float: bool,
}

impl Elements {
    /// Elements of `kind`, unless a chunk of `len` bytes ends inside one: then bytes.
    pub(crate) fn of(kind: Kind, len: usize) -> Self {
        match len.is_multiple_of(kind.size()) {
            true => Self { size: kind.size(), float: kind.is_float() },
            false => Self { size: 1, float: false },
        }
    }

    pub(crate) fn rule(self, xor: bool) -> Rule {
        match (xor, self.float) {
            (true, _) => Rule::Xor,
            (false, true) => Rule::Float,
            (false, false) => Rule::Integer,
        }
    }
}

impl Describe for Delta {
    const MAGICS: &'static [[u8; 4]] = &[*b"Z4DL"];
    const VERSION: u8 = 3;

    fn read(reader: &mut Reader<'_>, kind: Kind, len: usize) -> Result<Self> {
        Ok(Self {
            reference: reader.u64()?,
            stored: reader.u64()?,
            body: match reader.u8()? {
                FRESH => Body::Fresh(Layout::read(reader, kind, len)?),
                code @ (XOR | STEP) => Body::Difference(Difference::read(reader, code == XOR, kind, len)?),
                code => {
                    return Err(Error::unsupported(format_args!("relation {code} to a reference")));
                }
            },
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u64(self.reference);
        out.put_u64(self.stored);
        match &self.body {
            Body::Fresh(layout) => {
                out.put_u8(FRESH);
                layout.write(out);
            }
            Body::Difference(difference) => {
                out.put_u8(if difference.xor { XOR } else { STEP });
                difference.write(out);
            }
        }
    }

    fn payload_len(&self, len: usize) -> u64 {
        match &self.body {
            Body::Fresh(layout) => layout.payload_len(len),
            Body::Difference(difference) => difference.payload_len(len),
        }
    }

    fn streams(&self, len: usize, streams: &mut Streams) {
        match &self.body {
            Body::Fresh(layout) => layout.streams(len, streams),
            Body::Difference(difference) => difference.streams(len, streams),
        }
    }
}

impl Difference {
    fn streams(&self, len: usize, streams: &mut Streams) {
        let count = len / self.elements.size;
        if self.planes.is_empty() && self.list.is_none() {
            streams.add_stored("unchanged", "none", len, 0);
        }
        for coder in &self.planes {
            streams.add("difference planes", coder, count);
        }
        if let Some(list) = &self.list {
            streams.add("difference places", &list.gaps, list.gaps_len as usize);
            for coder in &list.values {
                streams.add("difference values", coder, list.count as usize);
            }
        }
    }
}

impl Delta {
    /// Refuses a part of a reference that is not the one the chunk was made from.
    pub(crate) fn check_reference(&self, reference: &[u8]) -> Result<()> {
        if hash::of(reference) != self.reference {
            return Err(Error::mismatch("the reference is not the one the delta was made from"));
        }
        Ok(())
    }

    /// Refuses a damaged payload.
    pub(crate) fn check_payload(&self, payload: &[u8]) -> Result<()> {
        if hash::of(payload) != self.stored {
            return Err(Error::corrupt("a chunk's payload does not match its checksum"));
        }
        Ok(())
    }

    /// Decodes a checked payload to fill `out`, which is as long as `reference`; returns the hash of it.
    pub(crate) fn decode(
        &self,
        payload: &[u8],
        reference: &[u8],
        out: &mut [u8],
        scratch: &mut DeltaScratch,
    ) -> Result<u64> {
        match &self.body {
            Body::Fresh(layout) => layout.decode_hashed(payload, out, Context::default(), &mut scratch.fresh),
            Body::Difference(difference) => difference.decode(payload, reference, out, scratch),
        }
    }
}

/// Buffers that decoding deltas reuses: one set per thread.
#[derive(Default)]
pub(crate) struct DeltaScratch {
    pub(crate) fresh: Scratch,
    /// Differences, put together.
    elements: Vec<u8>,
    gaps: Vec<u8>,
    /// The planes, then the values of the list: together as many as an element has bytes.
    streams: [Vec<u8>; 8],
}

impl Difference {
    fn write(&self, out: &mut Vec<u8>) {
        out.put_u8(self.planes.len() as u8);
        self.planes.iter().for_each(|plane| plane.write(out));
        if self.planes.len() == self.elements.size {
            return;
        }
        out.put_u32(self.list.as_ref().map_or(0, |list| list.count));
        if let Some(list) = &self.list {
            out.put_u32(list.gaps_len);
            list.gaps.write(out);
            list.values.iter().for_each(|plane| plane.write(out));
        }
    }

    fn read(reader: &mut Reader<'_>, xor: bool, kind: Kind, len: usize) -> Result<Self> {
        let elements = Elements::of(kind, len);
        let planes = usize::from(reader.u8()?);
        if planes > elements.size {
            return Err(Error::corrupt(format_args!(
                "{planes} planes of elements of {} bytes",
                elements.size
            )));
        }
        let coders =
            |reader: &mut Reader<'_>, n| (0..n).map(|_| Coder::read(reader)).collect::<Result<Vec<_>>>();
        let high = elements.size - planes;
        let planes = coders(reader, planes)?;
        let mut list = None;
        let count = if high > 0 { reader.u32()? } else { 0 };
        if count > 0 {
            let all = (len / elements.size) as u64;
            let gaps_len = reader.u32()?;
            // Every gap is before a listed element or skips 255.
            let most = u64::from(count) + all / u64::from(difference::SKIP);
            if u64::from(count) > all || gaps_len < count || u64::from(gaps_len) > most {
                return Err(Error::corrupt(format_args!(
                    "a list of {count} among {all} elements with {gaps_len} gaps"
                )));
            }
            let gaps = Coder::read(reader)?;
            list = Some(List { count, gaps_len, gaps, values: coders(reader, high)? });
        }
        Ok(Self { elements, xor, planes, list })
    }

    fn payload_len(&self, len: usize) -> u64 {
        let count = len / self.elements.size;
        let planes = self.planes.iter().map(|plane| plane.stored_len(count)).sum::<u64>();
        let list = self.list.iter().map(|list| {
            let values = list.values.iter().map(|plane| plane.stored_len(list.count as usize));
            list.gaps.stored_len(list.gaps_len as usize) + values.sum::<u64>()
        });
        planes + list.sum::<u64>()
    }

    fn decode(
        &self,
        payload: &[u8],
        reference: &[u8],
        out: &mut [u8],
        scratch: &mut DeltaScratch,
    ) -> Result<u64> {
        if self.planes.is_empty() && self.list.is_none() {
            out.copy_from_slice(reference);
            return Ok(hash::of(out));
        }
        let size = self.elements.size;
        let count = out.len() / size;
        let coders = &mut scratch.fresh.coder;
        let mut payload = Reader::new(payload);
        let elements = &mut scratch.elements;
        elements.resize(out.len(), 0);
        if self.planes.is_empty() {
            elements.fill(0);
        }
        let (low, high) = scratch.streams.split_at_mut(self.planes.len());
        for (byte, (coder, buffer)) in self.planes.iter().zip(low).enumerate() {
            let plane = decode_stream(coder, &mut payload, count, buffer, coders)?;
            match byte {
                0 => difference::set_plane(size, plane, elements),
                _ => difference::put_plane(size, plane, byte, elements),
            }
        }
        if let Some(list) = &self.list {
            let gaps_len = list.gaps_len as usize;
            let gaps = decode_stream(&list.gaps, &mut payload, gaps_len, &mut scratch.gaps, coders)?;
            let mut values: [&[u8]; 8] = [&[]; 8];
            for ((coder, buffer), values) in list.values.iter().zip(high).zip(&mut values) {
                *values = decode_stream(coder, &mut payload, list.count as usize, buffer, coders)?;
            }
            let values = &values[..list.values.len()];
            difference::scatter(size, self.planes.len(), gaps, values, elements)
                .ok_or_else(|| Error::corrupt("listed differences do not fit their chunk"))?;
        }
        let rule = self.elements.rule(self.xor);
        let parts = reference.chunks(Parts::LEN).zip(elements.chunks(Parts::LEN));
        let large = scratch.fresh.large_output;
        let mut out = Parts::new(out, large, &mut scratch.fresh.part);
        for (reference, elements) in parts {
            out.next(|out| {
                difference::restore(rule, size, reference, elements, out);
                Ok(())
            })?;
        }
        Ok(out.finish())
    }
}
