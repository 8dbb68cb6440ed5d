//! What Z4AI, ZARA and ZRT1 frames have in common: a few streams, a way to
//! put elements back together from them, and a tail of odd bytes.

use crate::bits::{Fields, FloatSpec, Mantissa, join};
use crate::bytes::{Bytes, size};
use crate::planes::interleave;
use crate::stream::{Methods, Stream};
use crate::zstd_frame::Zstd;
use crate::{Result, corrupt};

/// How streams become elements.
pub(super) enum Layout {
    /// One stream is the data itself.
    Opaque,
    /// One stream for each byte of an element.
    Planes { width: usize },
    /// Sign, exponent and mantissa of `count` floats.
    Fields {
        spec: FloatSpec,
        mantissa: Mantissa,
        /// The number of floats, where the frame states it.
        count: Option<u64>,
    },
}

/// Streams whose lengths agree with each other.
pub(super) struct Body<'a> {
    layout: Layout,
    streams: Vec<Stream<'a>>,
    tail: &'a [u8],
    len: usize,
}

impl<'a> Body<'a> {
    /// Reads `count` stream records, which end the frame.
    pub(super) fn parse(
        bytes: &mut Bytes<'a>,
        layout: Layout,
        count: u8,
        methods: Methods,
        tail: &'a [u8],
    ) -> Result<Self> {
        let (expected, element) = match layout {
            Layout::Opaque => (1, 1),
            Layout::Planes { width } => (width, width),
            Layout::Fields { spec, .. } => (3, spec.width),
        };
        if usize::from(count) != expected || expected == 0 {
            return Err(corrupt(format!("{count} streams where {expected} are expected")));
        }
        if tail.len() >= element {
            return Err(corrupt(format!("a tail of {} bytes after elements of {element}", tail.len())));
        }
        let streams = (0..count).map(|_| Stream::parse_record(bytes, methods)).collect::<Result<Vec<_>>>()?;
        bytes.finish("the last stream")?;
        let elements = elements_of(&layout, &streams)?;
        let len = elements
            .checked_mul(element)
            .and_then(|len| len.checked_add(tail.len()))
            .ok_or_else(|| corrupt("decoded length overflows"))?;
        Ok(Self { layout, streams, tail, len })
    }

    /// How many bytes the body decodes to, the tail included.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Decodes into `out`, which has the body's length.
    pub(super) fn decode_into(&self, out: &mut [u8], zstd: &mut Zstd) -> Result<()> {
        let (out, tail) = out.split_at_mut(self.len - self.tail.len());
        tail.copy_from_slice(self.tail);
        // One stream that is the data itself needs no memory of its own.
        if let [only] = self.streams.as_slice() {
            return only.decode_into(out, zstd);
        }
        let streams = self.streams.iter().map(|stream| stream.decode(zstd)).collect::<Result<Vec<_>>>()?;
        match (&self.layout, streams.as_slice()) {
            (Layout::Fields { spec, mantissa, .. }, [sign, exponent, fraction]) => {
                let fields = Fields { sign, exponent, mantissa: fraction };
                join(*spec, *mantissa, &fields, out)
            }
            (_, planes) => interleave(planes, out),
        }
    }
}

/// How many elements the streams hold, if they agree on it.
fn elements_of(layout: &Layout, streams: &[Stream<'_>]) -> Result<usize> {
    let disagree = || corrupt("streams disagree in length");
    match *layout {
        Layout::Opaque | Layout::Planes { .. } => {
            let len = streams.first().map_or(0, Stream::len);
            if streams.iter().any(|stream| stream.len() != len) {
                return Err(disagree());
            }
            Ok(len)
        }
        Layout::Fields { spec, mantissa, count } => {
            let [sign, exponent, fraction] = streams else {
                return Err(disagree());
            };
            let elements = count.map_or(Ok(exponent.len()), size)?;
            let lens = [sign.len(), exponent.len(), fraction.len()];
            if spec.stream_lens(elements, mantissa) != Some(lens) {
                return Err(disagree());
            }
            Ok(elements)
        }
    }
}
