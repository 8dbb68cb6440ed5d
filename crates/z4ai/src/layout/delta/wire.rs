//! The description of a chunk in the delta layout.

use crate::coder::Coder;
use crate::element::Kind;
use crate::error::{Error, Result};
use crate::kernel::difference::Rule;
use crate::kernel::magnitude_classes::MAX_CLASSES;
use crate::kernel::mask_compact;
use crate::layout::delta::binned::Binned;
use crate::layout::streams::Streams;
use crate::layout::{ChunkDescription, ChunkLayout};
use crate::wire::{Put, Reader};

const LITERAL: u8 = 0;
const XOR: u8 = 1;
const ZIGZAG: u8 = 2;
const BINNED: u8 = 5;

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
    Binned(Binned),
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
                BINNED => Body::Binned(Binned::read(reader, kind, len)?),
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
            Body::Binned(binned) => {
                out.put_u8(BINNED);
                binned.write(out);
            }
        }
    }

    fn payload_len(&self, len: usize) -> u64 {
        match &self.body {
            Body::Literal(layout) => layout.payload_len(len),
            Body::Difference(difference) => difference.payload_len(),
            Body::Binned(binned) => binned.payload_len(),
        }
    }

    fn streams(&self, len: usize, streams: &mut Streams) {
        match &self.body {
            Body::Literal(layout) => layout.streams(len, streams),
            Body::Difference(difference) => difference.streams(len, streams),
            Body::Binned(binned) => binned.streams(streams),
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
    pub(super) fn is_empty(&self) -> bool {
        self.classes.iter().all(|class| class.planes.is_empty() && class.list.is_none())
    }
}

impl Places {
    /// The coder and the length of the stream of places among `count` elements.
    pub(super) fn stream(&self, count: usize) -> (&Coder, usize) {
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
            return Err(Error::corrupt("magnitude classes of elements that are not floats"));
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

    pub(super) fn payload_len(&self) -> u64 {
        let count = self.count as usize;
        let planes = self.planes.iter().map(|plane| plane.stored_len(count)).sum::<u64>();
        let list = self.list.iter().map(|list| {
            let values = list.values.iter().map(|plane| plane.stored_len(list.count as usize));
            let (places, len) = list.places.stream(count);
            places.stored_len(len) + values.sum::<u64>()
        });
        planes + list.sum::<u64>()
    }
}
