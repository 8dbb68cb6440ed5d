//! The delta layout: a chunk as its difference from a reference.
//!
//! Differences are split by significance. The low bytes of all elements are byte planes; the high
//! bytes of the elements that are not zero above those are a list with their positions. Where few
//! elements changed there are no planes, only the list.
//!
//! The size of a change depends on the magnitude of the value, which the reference tells: where
//! that pays, differences are partitioned into magnitude classes, and each class is split
//! separately.
//!
//! Payload, for each class: the planes from the lowest on, the positions of the list, its values
//! from the lowest byte on.

pub(crate) mod differences;
pub(crate) mod magnitudes;

use crate::coder::huffman::decode::DecodePrefetch;
use crate::coder::{self, Coder};
use crate::element::Kind;
use crate::error::{Error, Result};
use crate::kernel::difference::{self, GapScatter, Rule};
use crate::kernel::magnitude_classes::{self, MAX_CLASSES};
use crate::kernel::{mask_compact, xxh3};
use crate::layout::hashed_output::HashedOutput;
use crate::layout::split::decode_stream;
use crate::layout::streams::Streams;
use crate::layout::{ChunkDescription, ChunkLayout, Context, Scratch};
use crate::simd::prefetch::Prefetcher;
use crate::wire::{Put, Reader};

const LITERAL: u8 = 0;
const XOR: u8 = 1;
const ZIGZAG: u8 = 2;
/// Added to the relation where there are magnitude classes.
const CLASSED: u8 = 2;
const GAPS: u8 = 0;
const MARKS: u8 = 1;

/// The description of a chunk of a delta frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delta {
    pub(crate) hashes: Hashes,
    pub(crate) body: Body,
}

/// Checksums of a chunk's inputs. Descriptions start with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hashes {
    /// Of the chunk's range of the reference.
    pub(crate) reference: u64,
    /// Of the chunk's payload.
    pub(crate) stored: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Body {
    /// Without the reference.
    Literal(ChunkLayout),
    Difference(Difference),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) elements: Elements,
    /// Whether differences are bits instead of distances.
    pub(crate) xor: bool,
    /// The magnitudes of the reference that classes begin with, but for the first.
    pub(crate) thresholds: Vec<u16>,
    /// One, and another for each threshold.
    pub(crate) classes: Vec<Class>,
}

/// The differences of one class.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Class {
    /// How many they are.
    pub(crate) count: u32,
    /// Lowest plane first.
    pub(crate) planes: Vec<Coder>,
    /// The elements that are not zero above the planes, if any.
    pub(crate) list: Option<List>,
}

/// Listed elements: how many, and the streams of their places and bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct List {
    pub(crate) count: u32,
    pub(crate) places: Places,
    /// Lowest byte first.
    pub(crate) values: Vec<Coder>,
}

/// Where listed elements are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Places {
    /// Run lengths of unlisted elements, in a stream of this many bytes.
    Gaps(u32, Coder),
    /// A bitmask.
    Marks(Coder),
}

/// The elements that differences are taken of.
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

    /// Whether they can be sorted into classes by magnitude.
    pub(crate) fn has_magnitudes(self) -> bool {
        self.float && self.size > 1
    }

    pub(crate) fn rule(self, xor: bool) -> Rule {
        match (xor, self.float) {
            (true, _) => Rule::Xor,
            (false, true) => Rule::Ulp,
            (false, false) => Rule::ZigZag,
        }
    }
}

impl ChunkDescription for Delta {
    fn read(reader: &mut Reader<'_>, kind: Kind, len: usize) -> Result<Self> {
        Ok(Self {
            hashes: Hashes::read(reader)?,
            body: match reader.u8()? {
                LITERAL => Body::Literal(ChunkLayout::read(reader, kind, len)?),
                code @ (XOR | ZIGZAG) => Body::Difference(Difference::read(reader, code == XOR, kind, len)?),
                code if code == XOR + CLASSED || code == ZIGZAG + CLASSED => {
                    let xor = code == XOR + CLASSED;
                    Body::Difference(Difference::read_classed(reader, xor, kind, len)?)
                }
                code => {
                    return Err(Error::unsupported(format_args!("relation {code} to a reference")));
                }
            },
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u64(self.hashes.reference);
        out.put_u64(self.hashes.stored);
        match &self.body {
            Body::Literal(layout) => {
                out.put_u8(LITERAL);
                layout.write(out);
            }
            Body::Difference(difference) => {
                let classed = if difference.thresholds.is_empty() { 0 } else { CLASSED };
                out.put_u8(classed + if difference.xor { XOR } else { ZIGZAG });
                difference.write(out);
            }
        }
    }

    fn payload_len(&self, len: usize) -> u64 {
        match &self.body {
            Body::Literal(layout) => layout.payload_len(len),
            Body::Difference(difference) => difference.payload_len(),
        }
    }

    fn streams(&self, len: usize, streams: &mut Streams) {
        match &self.body {
            Body::Literal(layout) => layout.streams(len, streams),
            Body::Difference(difference) => difference.streams(len, streams),
        }
    }
}

impl Difference {
    fn streams(&self, len: usize, streams: &mut Streams) {
        if self.is_empty() {
            streams.add_stored("unchanged", "none", len, 0);
        }
        for class in &self.classes {
            for coder in &class.planes {
                streams.add("difference planes", coder, class.count as usize);
            }
            if let Some(list) = &class.list {
                let (coder, len) = list.places.stream(class.count as usize);
                streams.add("difference places", coder, len);
                for coder in &list.values {
                    streams.add("difference values", coder, list.count as usize);
                }
            }
        }
    }

    /// Whether nothing differs.
    fn is_empty(&self) -> bool {
        self.classes.iter().all(|class| class.planes.is_empty() && class.list.is_none())
    }
}

impl Places {
    /// The coder and the length of the stream of places among `count` elements.
    fn stream(&self, count: usize) -> (&Coder, usize) {
        match self {
            Places::Gaps(len, coder) => (coder, *len as usize),
            Places::Marks(coder) => (coder, mask_compact::marks_len(count)),
        }
    }
}

impl Hashes {
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self { reference: reader.u64()?, stored: reader.u64()? })
    }

    /// Refuses a part of a reference, of this hash, that is not the one the chunk was made from.
    pub(crate) fn check_reference(&self, hash: u64) -> Result<()> {
        if hash != self.reference {
            return Err(Error::mismatch("the reference is not the one the delta was made from"));
        }
        Ok(())
    }

    /// Refuses a damaged payload, of this hash.
    pub(crate) fn check_payload(&self, hash: u64) -> Result<()> {
        if hash != self.stored {
            return Err(Error::corrupt("a chunk's payload does not match its checksum"));
        }
        Ok(())
    }
}

impl Delta {
    /// Decodes a checked payload to fill `out`, which is as long as `reference`, or where there is none
    /// has it in place; returns the hash of it.
    pub(crate) fn decode(
        &self,
        payload: &[u8],
        reference: Option<&[u8]>,
        out: &mut [u8],
        scratch: &mut DeltaScratch,
    ) -> Result<u64> {
        match &self.body {
            Body::Literal(layout) => {
                layout.decode_hashed(payload, out, Context::default(), &mut scratch.literal)
            }
            Body::Difference(difference) => difference.decode(payload, reference, out, scratch),
        }
    }
}

/// Buffers that decoding deltas reuses: one set per thread.
#[derive(Default)]
pub(crate) struct DeltaScratch {
    pub(crate) literal: Scratch,
    /// The payload of the next chunk, to prefetch.
    pub(crate) next: Prefetcher,
    /// Merged differences, class after class.
    elements: Vec<u8>,
    /// The differences of one part.
    part: Vec<u8>,
    class: ClassScratch,
}

#[derive(Default)]
struct ClassScratch {
    places: Vec<u8>,
    /// The planes, then the values of the list: together as many as an element has bytes.
    streams: [Vec<u8>; 8],
    /// Listed elements.
    listed: Vec<u8>,
}

impl Difference {
    fn write(&self, out: &mut Vec<u8>) {
        if !self.thresholds.is_empty() {
            out.put_u8(self.classes.len() as u8);
            self.thresholds.iter().for_each(|&threshold| out.put_u16(threshold));
            self.classes.iter().for_each(|class| out.put_u32(class.count));
        }
        self.classes.iter().for_each(|class| class.write(self.elements.size, out));
    }

    fn read(reader: &mut Reader<'_>, xor: bool, kind: Kind, len: usize) -> Result<Self> {
        let elements = Elements::of(kind, len);
        let class = Class::read(reader, elements.size, (len / elements.size) as u32)?;
        Ok(Self { elements, xor, thresholds: Vec::new(), classes: vec![class] })
    }

    fn read_classed(reader: &mut Reader<'_>, xor: bool, kind: Kind, len: usize) -> Result<Self> {
        let elements = Elements::of(kind, len);
        if !elements.has_magnitudes() {
            return Err(Error::corrupt("classes by the magnitude of what is no float"));
        }
        let count = usize::from(reader.u8()?);
        if !(2..=MAX_CLASSES).contains(&count) {
            return Err(Error::corrupt(format_args!("differences in {count} classes")));
        }
        let thresholds = (1..count).map(|_| reader.u16()).collect::<Result<Vec<_>>>()?;
        if !thresholds.is_sorted_by(|a, b| a < b) || thresholds[0] == 0 || thresholds[count - 2] > 0x7fff {
            return Err(Error::corrupt("classes that do not follow one another"));
        }
        let counts = (0..count).map(|_| reader.u32()).collect::<Result<Vec<_>>>()?;
        if counts.iter().map(|&count| u64::from(count)).sum::<u64>() != (len / elements.size) as u64 {
            return Err(Error::corrupt("classes that are not all of their chunk"));
        }
        let classes = counts.into_iter().map(|count| Class::read(reader, elements.size, count));
        Ok(Self { elements, xor, thresholds, classes: classes.collect::<Result<_>>()? })
    }

    fn payload_len(&self) -> u64 {
        self.classes.iter().map(Class::payload_len).sum()
    }

    fn decode(
        &self,
        payload: &[u8],
        reference: Option<&[u8]>,
        out: &mut [u8],
        scratch: &mut DeltaScratch,
    ) -> Result<u64> {
        if self.is_empty() {
            if let Some(reference) = reference {
                out.copy_from_slice(reference);
            }
            return Ok(xxh3::hash(out));
        }
        let size = self.elements.size;
        let rule = self.elements.rule(self.xor);
        // Memory that is updated in place is in the caches already.
        let large = scratch.literal.large_output && reference.is_some();
        let coders = &mut scratch.literal.coder;
        // The reference is needed right after the streams.
        coders.ahead = DecodePrefetch::new(out.len() / size, reference.unwrap_or(out));
        let mut out = HashedOutput::new(out, large, &mut scratch.literal.part);
        grow(&mut scratch.part, HashedOutput::LEN);
        let restore = Restore { reference, part: &mut scratch.part, next: &mut scratch.next };
        if let ([class], []) = (&self.classes[..], &self.thresholds[..]) {
            let mut class = class.open(payload, size, true, &mut scratch.class, coders)?;
            match class.in_planes {
                true => restore.fill_by_planes(&mut out, rule, &mut class)?,
                false => restore.fill(&mut out, |to, part| class.restore(rule, to, part))?,
            }
            class.finish()?;
            return Ok(out.finish());
        }
        let mut payload = Reader::new(payload);
        let elements = &mut scratch.elements;
        grow(elements, out.len() + mask_compact::SLACK);
        let mut at = 0;
        for class in &self.classes {
            let stored = payload.take(class.payload_len() as usize)?;
            let mut opened = class.open(stored, size, false, &mut scratch.class, coders)?;
            let end = at + class.count as usize * size;
            elements[at..end].chunks_mut(HashedOutput::LEN).try_for_each(|part| opened.next(part))?;
            opened.finish()?;
            at = end;
        }
        let lens: Vec<_> = self.classes.iter().map(|class| class.count as usize).collect();
        let mut classes = magnitude_classes::Classes::merging(size, &self.thresholds, &lens);
        restore.fill(&mut out, |to, part| {
            let part = &mut part[..to.reference().len()];
            classes.merge(to.reference(), elements, part).ok_or_else(other_classes)?;
            to.restore(rule, size, part);
            Ok(())
        })?;
        if !classes.is_done() {
            return Err(other_classes());
        }
        Ok(out.finish())
    }
}

/// Restores a chunk from its differences, part by part.
struct Restore<'a> {
    /// `None`: in place.
    reference: Option<&'a [u8]>,
    /// Room for the differences of one part.
    part: &'a mut [u8],
    next: &'a mut Prefetcher,
}

impl Restore<'_> {
    /// Produces all of `out`; `restore` produces one part, given room for its differences.
    fn fill(
        self,
        out: &mut HashedOutput<'_>,
        mut restore: impl FnMut(To<'_>, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let mut references = self.reference.map(|reference| reference.chunks(HashedOutput::LEN));
        while !out.is_done() {
            out.next(|out| {
                self.next.advance(1);
                let to = match &mut references {
                    Some(references) => To::Other(references.next().unwrap_or_default(), out),
                    None => To::Reference(out),
                };
                restore(to, self.part)
            })?;
        }
        Ok(())
    }

    /// Produces all of `out` from the planes of the only class.
    fn fill_by_planes(self, out: &mut HashedOutput<'_>, rule: Rule, class: &mut Opened<'_>) -> Result<()> {
        let size = class.size;
        let mut references = self.reference.map(|reference| reference.chunks(HashedOutput::LEN));
        while !out.is_done() {
            self.next.advance(1);
            let len = out.left().min(HashedOutput::LEN);
            let reference = references.as_mut().map(|references| references.next().unwrap_or_default());
            let (planes, count) = class.all_planes(len / size, self.part)?;
            let made = out.write_fused(len, |sums, out, pending| {
                difference::restore_hashed((rule, size), reference, &planes[..count], sums, out, pending)
            });
            if made == len {
                continue;
            }
            let planes = planes.map(|plane| plane.get(made / size..).unwrap_or_default());
            out.next_of(HashedOutput::LEN - made, |out| {
                let planes = &planes[..count];
                match reference {
                    Some(reference) => {
                        difference::restore_planes(rule, size, &reference[made..], planes, out);
                    }
                    None => difference::restore_planes_in_place(rule, size, planes, out),
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// The destination of a part.
enum To<'a> {
    /// Memory other than the reference.
    Other(&'a [u8], &'a mut [u8]),
    /// The memory of the reference.
    Reference(&'a mut [u8]),
}

impl To<'_> {
    fn reference(&self) -> &[u8] {
        match self {
            To::Other(reference, _) => reference,
            To::Reference(reference) => reference,
        }
    }

    fn restore(self, rule: Rule, size: usize, differences: &[u8]) {
        match self {
            To::Other(reference, out) => difference::restore(rule, size, reference, differences, out),
            To::Reference(elements) => difference::restore_in_place(rule, size, differences, elements),
        }
    }
}

fn other_classes() -> Error {
    Error::corrupt("classes that the reference does not have")
}

impl Class {
    fn write(&self, size: usize, out: &mut Vec<u8>) {
        out.put_u8(self.planes.len() as u8);
        self.planes.iter().for_each(|plane| plane.write(out));
        if self.planes.len() == size {
            return;
        }
        out.put_u32(self.list.as_ref().map_or(0, |list| list.count));
        if let Some(list) = &self.list {
            match &list.places {
                Places::Gaps(len, coder) => {
                    out.put_u8(GAPS);
                    out.put_u32(*len);
                    coder.write(out);
                }
                Places::Marks(coder) => {
                    out.put_u8(MARKS);
                    coder.write(out);
                }
            }
            list.values.iter().for_each(|plane| plane.write(out));
        }
    }

    /// Reads the description of `count` differences of `size` bytes.
    fn read(reader: &mut Reader<'_>, size: usize, count: u32) -> Result<Self> {
        let planes = usize::from(reader.u8()?);
        if planes > size {
            return Err(Error::corrupt(format_args!("{planes} planes of elements of {size} bytes")));
        }
        let coders =
            |reader: &mut Reader<'_>, n| (0..n).map(|_| Coder::read(reader)).collect::<Result<Vec<_>>>();
        let high = size - planes;
        let planes = coders(reader, planes)?;
        let listed = if high > 0 { reader.u32()? } else { 0 };
        if listed == 0 {
            return Ok(Self { count, planes, list: None });
        }
        if listed > count {
            return Err(Error::corrupt(format_args!("a list of {listed} among {count} elements")));
        }
        let places = match reader.u8()? {
            GAPS => {
                let gaps = reader.u32()?;
                // Every gap is before a listed element or skips 255.
                let most = u64::from(listed) + u64::from(count) / u64::from(mask_compact::SKIP);
                if gaps < listed || u64::from(gaps) > most {
                    return Err(Error::corrupt(format_args!(
                        "a list of {listed} among {count} elements with {gaps} gaps"
                    )));
                }
                Places::Gaps(gaps, Coder::read(reader)?)
            }
            MARKS => Places::Marks(Coder::read(reader)?),
            code => return Err(Error::unsupported(format_args!("places of kind {code}"))),
        };
        let list = Some(List { count: listed, places, values: coders(reader, high)? });
        Ok(Self { count, planes, list })
    }

    fn payload_len(&self) -> u64 {
        let count = self.count as usize;
        let planes = self.planes.iter().map(|plane| plane.stored_len(count)).sum::<u64>();
        let list = self.list.iter().map(|list| {
            let values = list.values.iter().map(|plane| plane.stored_len(list.count as usize));
            let (places, len) = list.places.stream(count);
            places.stored_len(len) + values.sum::<u64>()
        });
        planes + list.sum::<u64>()
    }

    /// Decodes the streams. Differences are merged part by part, unless the class is the only one
    /// (`alone`) and can be restored from its planes.
    fn open<'a>(
        &self,
        payload: &'a [u8],
        size: usize,
        alone: bool,
        scratch: &'a mut ClassScratch,
        coders: &mut coder::Scratch,
    ) -> Result<Opened<'a>> {
        let mut payload = Reader::new(payload);
        let count = self.count as usize;
        let planes = self.planes.len();
        let mut low: [&[u8]; 8] = [&[]; 8];
        let (low_buffers, high_buffers) = scratch.streams.split_at_mut(planes);
        for ((coder, buffer), plane) in self.planes.iter().zip(low_buffers).zip(&mut low) {
            *plane = decode_stream(coder, &mut payload, count, buffer, coders)?;
        }
        let above = self.list.as_ref().map_or(0, |list| list.values.len());
        let in_planes = alone && above <= 1 && difference::restores_planes(size, planes + above);
        let mut opened = Opened { size, planes, low, in_planes, list: Listed::None };
        let Some(list) = &self.list else { return Ok(opened) };
        let listed = list.count as usize;
        let (coder, len) = list.places.stream(count);
        let places = decode_stream(coder, &mut payload, len, &mut scratch.places, coders)?;
        let mut high: [&[u8]; 8] = [&[]; 8];
        for ((coder, buffer), values) in list.values.iter().zip(high_buffers).zip(&mut high) {
            *values = decode_stream(coder, &mut payload, listed, buffer, coders)?;
        }
        let high = &high[..list.values.len()];
        opened.list = match list.places {
            Places::Gaps(..) => Listed::Gaps(GapScatter::new(places, high)),
            Places::Marks(_) => {
                coder::check_packed_padding(1, places, count)?;
                if mask_compact::count_ones(places) != listed {
                    return Err(damaged_list());
                }
                let (width, first) = opened.listed();
                let len = listed * width;
                grow(&mut scratch.listed, len + mask_compact::SLACK);
                for (byte, values) in high.iter().enumerate() {
                    let words = &mut scratch.listed[..len];
                    match byte {
                        0 => difference::set_plane(width, values, first, words),
                        _ => difference::put_plane(width, values, first + byte, words),
                    }
                }
                Listed::Marks { marks: places, words: &scratch.listed }
            }
        };
        Ok(opened)
    }
}

/// The decoded streams of a class, as far as they are not consumed.
struct Opened<'a> {
    size: usize,
    /// The number of planes, and the planes.
    planes: usize,
    low: [&'a [u8]; 8],
    /// Whether the list, of at most one byte per element, is expanded to another plane.
    in_planes: bool,
    list: Listed<'a>,
}

enum Listed<'a> {
    None,
    Gaps(GapScatter<'a>),
    /// A bitmask and the selected elements, with [`mask_compact::SLACK`] bytes behind them.
    Marks {
        marks: &'a [u8],
        words: &'a [u8],
    },
}

impl<'a> Opened<'a> {
    /// The size of the elements that listed bytes are scattered to, and the byte that they start
    /// at.
    fn listed(&self) -> (usize, usize) {
        if self.in_planes { (1, 0) } else { (self.size, self.planes) }
    }

    /// Restores the next elements: a multiple of eight, unless they are the last. `part` has room for
    /// their differences.
    fn restore(&mut self, rule: Rule, to: To<'_>, part: &mut [u8]) -> Result<()> {
        let part = &mut part[..to.reference().len()];
        self.next(part)?;
        to.restore(rule, self.size, part);
        Ok(())
    }

    /// All nonzero planes of the next elements, where the list is [a plane](Self::in_planes), and
    /// their number. `part` has room for one plane.
    fn all_planes<'b>(&mut self, elements: usize, part: &'b mut [u8]) -> Result<([&'b [u8]; 8], usize)>
    where
        'a: 'b,
    {
        let mut planes = self.next_planes(elements);
        if matches!(self.list, Listed::None) {
            return Ok((planes, self.planes));
        }
        let plane = &mut part[..elements];
        plane.fill(0);
        self.put_listed(plane)?;
        planes[self.planes] = plane;
        Ok((planes, self.planes + 1))
    }

    /// Merges the next differences: a multiple of eight, unless they are the last.
    fn next(&mut self, elements: &mut [u8]) -> Result<()> {
        let low = self.next_planes(elements.len() / self.size);
        difference::join_planes(self.size, &low[..self.planes], elements);
        self.put_listed(elements)
    }

    /// The low bytes of the next elements.
    fn next_planes<'b>(&mut self, count: usize) -> [&'b [u8]; 8]
    where
        'a: 'b,
    {
        let mut low: [&[u8]; 8] = [&[]; 8];
        for (plane, part) in self.low[..self.planes].iter_mut().zip(&mut low) {
            (*part, *plane) = plane.split_at(count);
        }
        low
    }

    /// Scatters the listed bytes of the next elements.
    fn put_listed(&mut self, elements: &mut [u8]) -> Result<()> {
        let (size, first) = self.listed();
        match &mut self.list {
            Listed::None => Ok(()),
            Listed::Gaps(list) => list.part(size, first, elements).ok_or_else(damaged_list),
            Listed::Marks { marks, words } => {
                let part;
                (part, *marks) = marks.split_at(mask_compact::marks_len(elements.len() / size));
                mask_compact::place(size, words, part, elements);
                *words = &words[mask_compact::count_ones(part) * size..];
                Ok(())
            }
        }
    }

    /// Refuses a list that is longer than its class.
    fn finish(self) -> Result<()> {
        match self.list {
            Listed::Gaps(list) if !list.is_done() => Err(damaged_list()),
            _ => Ok(()),
        }
    }
}

fn damaged_list() -> Error {
    Error::corrupt("listed differences do not fit their chunk")
}

fn grow(buffer: &mut Vec<u8>, len: usize) {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
}
