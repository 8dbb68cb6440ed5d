//! Boxes that are cut out of dense tensors, reading no more than they need.
//!
//! A box is contiguous in the file only as far as its innermost dimensions are whole: it is a
//! sequence of *runs*. Runs that lie close together are read as one span and picked apart in
//! memory; runs that are long, or far apart, are read straight to where they belong.

use std::ops::Range;

use crate::base::huge_pages::zeroed_vec;
use crate::base::parallel;
use crate::catalog::{Component, Storage};
use crate::error::{Error, Result};
use crate::progress::{Observer, advance};
use crate::read::Charge;
use crate::read::Reader;

/// A box of a dense tensor, and the memory that it goes to in row-major order.
#[derive(Debug)]
pub struct Subarray<'a> {
    /// The tensor.
    pub name: &'a str,
    /// Bytes of one item. Sub-byte elements are counted in whole bytes by the caller.
    pub item: u64,
    /// Sizes of the tensor's dimensions, in items.
    pub sizes: &'a [u64],
    /// Where the box starts in each dimension.
    pub offsets: &'a [u64],
    /// How far it reaches in each dimension.
    pub lengths: &'a [u64],
    /// As many bytes as the box has.
    pub out: &'a mut [u8],
}

/// Runs with at most this many other bytes between them are read as one span. (flat: `constants.py`,
/// `columns_near` and `columns_apart`, from 2 kB to 2 MB)
const MAX_GAP: u64 = 64 << 10;

/// Spans are at most this long, so that threads share the work; a longer run is cut.
/// (structural: as pieces of whole reads)
const MAX_SPAN: u64 = 4 << 20;

impl Reader {
    /// Fills many buffers with boxes of dense tensors, in parallel. All are checked before the
    /// first byte is written. Boxes that are whole tensors are compared with their digests;
    /// parts of tensors cannot be, unless the encoding has checksums of its own.
    pub fn read_parts(&self, parts: Vec<Subarray<'_>>, observer: Option<&dyn Observer>) -> Result<()> {
        let (mut whole, mut spans) = (Vec::new(), Vec::new());
        for part in parts {
            let component = self.dense(part.name)?;
            let runs = Runs::of(&part, component.len).map_err(|error| self.at(part.name, error))?;
            if part.out.is_empty() {
                continue;
            }
            if runs.is_whole(component.len) {
                whole.push((part.name, "data", part.out));
            } else {
                self.check_limit(part.name, part.out.len() as u64)?;
                spans.extend(runs.spans(part.name, component, part.out));
            }
        }
        let mut charge = Charge::default();
        for (name, role, _) in &whole {
            let component = self.get(name)?.require(role)?;
            charge.add(component, &(0..component.len));
        }
        for span in &spans {
            self.touch(span.component);
            charge.add(span.component, &(span.start..span.end));
        }
        charge.check(self)?;
        self.read_many(whole, observer)?;
        spans.sort_by_key(|span| {
            (span.component.extent().map(|extent| (extent.source, extent.offset)), span.start)
        });
        let total = spans.iter().map(|span| span.out.len() as u64).sum();
        // Requests are waited for, not worked on: more of them at a time than there are cores.
        let requests = spans.iter().map(|span| self.requests_at_a_time(span.component)).max();
        let threads = parallel::resolve(self.options().threads).max(requests.unwrap_or(1));
        parallel::for_each(threads, spans, |span| {
            let (name, bytes) = (span.name, span.out.len() as u64);
            let inner = parallel::share(threads, bytes, total);
            self.read_span(span, inner).map_err(|error| self.at(name, error))?;
            advance(observer, bytes)
        })
    }

    fn read_span(&self, span: Span<'_>, threads: usize) -> Result<()> {
        let Span { component, start, end, first, runs, out, .. } = span;
        let read = |range: Range<u64>, out: &mut [u8]| {
            component.storage.read(&self.catalog().sources, range, out, threads)
        };
        if end - start == out.len() as u64 {
            return read(start..end, out);
        }
        let mut scratch = zeroed_vec::<u8>(end - start)?;
        read(start..end, &mut scratch)?;
        let len = runs.len as usize;
        for (index, out) in out.chunks_mut(len).enumerate() {
            // A span of several runs holds all of each of them.
            let from = (runs.start(first + index as u64) - start) as usize;
            out.copy_from_slice(&scratch[from..from + len]);
        }
        Ok(())
    }
}

/// The contiguous pieces of a box, all of one length.
#[derive(Debug, Clone)]
pub(crate) struct Runs {
    /// Bytes of each.
    len: u64,
    /// How many there are.
    count: u64,
    /// Where the first one starts.
    origin: u64,
    /// Lengths of the dimensions that are stepped through, and bytes of one step; outermost first.
    steps: Vec<(u64, u64)>,
    /// Bytes of the tensor.
    total: u64,
}

impl Runs {
    fn of(part: &Subarray<'_>, total: u64) -> Result<Runs> {
        let runs = Runs::new(part.item, part.sizes, part.offsets, part.lengths)?;
        if runs.total != total {
            return Err(Error::invalid(format!("the tensor has {total} bytes, not {}", runs.total)));
        }
        if runs.count * runs.len != part.out.len() as u64 {
            let bytes = runs.count * runs.len;
            let message = format!("a subarray of {bytes} bytes does not fill a buffer of {}", part.out.len());
            return Err(Error::invalid(message));
        }
        Ok(runs)
    }

    /// The runs of a box with these offsets and lengths, in a tensor with these sizes and items.
    pub(crate) fn new(item: u64, sizes: &[u64], offsets: &[u64], lengths: &[u64]) -> Result<Runs> {
        let dimensions = sizes.len();
        if offsets.len() != dimensions || lengths.len() != dimensions {
            return Err(Error::invalid("a subarray needs one offset and one length for each dimension"));
        }
        let mut steps = Vec::with_capacity(dimensions);
        let (mut stride, mut bytes, mut origin) = (item, item, 0u64);
        let (mut len, mut contiguous) = (item, true);
        let too_large = || Error::invalid("the sizes of the tensor overflow");
        for index in (0..dimensions).rev() {
            let (size, offset, length) = (sizes[index], offsets[index], lengths[index]);
            if offset.checked_add(length).is_none_or(|end| end > size) {
                let message = format!(
                    "a subarray of {length} at offset {offset} is outside a dimension of size {size}"
                );
                return Err(Error::invalid(message));
            }
            bytes = bytes.checked_mul(length).ok_or_else(too_large)?;
            // Dimensions of size 0 and what they make of the others are harmless: nothing is read.
            origin =
                offset.checked_mul(stride).and_then(|step| origin.checked_add(step)).ok_or_else(too_large)?;
            if contiguous {
                len = len.checked_mul(length).ok_or_else(too_large)?;
                contiguous = length == size;
            } else {
                steps.push((length, stride));
            }
            stride = stride.checked_mul(size).ok_or_else(too_large)?;
        }
        steps.reverse();
        let count = bytes.checked_div(len).unwrap_or(0);
        Ok(Runs { len, count, origin, steps, total: stride })
    }

    /// Copies all runs, which lie one after another in `from`, to where they belong in the tensor.
    pub(crate) fn scatter(&self, from: &[u8], tensor: &mut [u8]) {
        let len = self.len as usize;
        for (index, run) in from.chunks_exact(len.max(1)).take(self.count as usize).enumerate() {
            let at = self.start(index as u64) as usize;
            tensor[at..at + len].copy_from_slice(run);
        }
    }

    fn is_whole(&self, total: u64) -> bool {
        self.count == 1 && self.len == total
    }

    /// Bytes of each run.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// How many runs there are.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Where a run starts in the tensor.
    pub(crate) fn start(&self, mut index: u64) -> u64 {
        let mut start = self.origin;
        for (length, stride) in self.steps.iter().rev() {
            start += index % length * stride;
            index /= length;
        }
        start
    }

    /// Cuts the box into spans to be read at once.
    fn spans<'a>(self, name: &'a str, component: &'a Component, mut out: &'a mut [u8]) -> Vec<Span<'a>> {
        // Decoding may have to begin at the start each time: what is encoded is read once.
        let (gap, longest) = match component.storage {
            Storage::Encoded(_) => (u64::MAX, u64::MAX),
            _ => (MAX_GAP, MAX_SPAN),
        };
        let mut spans = Vec::new();
        let mut first = 0;
        while first < self.count {
            let start = self.start(first);
            let (mut end, mut next) = (start + self.len, first + 1);
            while next < self.count {
                let following = self.start(next);
                if following - end > gap || following + self.len - start > longest {
                    break;
                }
                (end, next) = (following + self.len, next + 1);
            }
            let (mut taken, rest) = out.split_at_mut(((next - first) * self.len) as usize);
            out = rest;
            let runs = self.clone();
            if next - first > 1 || end - start <= longest {
                spans.push(Span { name, component, start, end, first, runs, out: taken });
            } else {
                // One long run: pieces of it.
                let mut at = start;
                while at < end {
                    let until = end.min(at.saturating_add(longest));
                    let (piece, rest) = taken.split_at_mut((until - at) as usize);
                    taken = rest;
                    let runs = self.clone();
                    spans.push(Span { name, component, start: at, end: until, first, runs, out: piece });
                    at = until;
                }
            }
            first = next;
        }
        spans
    }
}

/// Bytes that are read at once, and the runs in them.
struct Span<'a> {
    name: &'a str,
    component: &'a Component,
    start: u64,
    end: u64,
    /// The number of its first run.
    first: u64,
    runs: Runs,
    out: &'a mut [u8],
}

#[cfg(test)]
mod tests {
    use crate::{Compression, Effort, Writer};

    use super::*;

    const SHAPE: [u64; 3] = [37, 19, 23];

    fn file(compression: Compression) -> Reader {
        let data: Vec<u16> = (0..37 * 19 * 23).map(|value| value as u16).collect();
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes).unwrap();
        writer.add_with("x", &SHAPE, &data).compress(compression).write().unwrap();
        writer.finish().unwrap();
        Reader::from_bytes(bytes).unwrap()
    }

    fn read(reader: &Reader, offsets: [u64; 3], lengths: [u64; 3]) -> Result<Vec<u16>> {
        let mut out = vec![0u16; lengths.iter().product::<u64>() as usize];
        let bytes = bytemuck::cast_slice_mut(&mut out);
        let part =
            Subarray { name: "x", item: 2, sizes: &SHAPE, offsets: &offsets, lengths: &lengths, out: bytes };
        reader.read_parts(vec![part], None)?;
        Ok(out)
    }

    #[test]
    fn every_box_of_every_encoding() {
        let boxes = [
            ([0, 0, 0], [37, 19, 23]),
            ([5, 0, 0], [7, 19, 23]),
            ([0, 3, 0], [37, 4, 23]),
            ([0, 0, 22], [37, 19, 1]),
            ([36, 18, 22], [1, 1, 1]),
            ([3, 5, 7], [11, 2, 13]),
            ([37, 0, 0], [0, 19, 23]),
            ([0, 19, 23], [37, 0, 0]),
        ];
        for compression in [Compression::None, Compression::Zstd(3), Compression::Z4ai(Effort::Fast)] {
            let reader = file(compression);
            for (offsets, lengths) in boxes {
                let expected: Vec<u16> = (0..lengths[0] * lengths[1] * lengths[2])
                    .map(|index| {
                        let [_, b, c] = lengths;
                        let at = [index / (b * c), index / c % b, index % c];
                        let [x, y, z] = [0, 1, 2].map(|d| offsets[d] + at[d]);
                        ((x * SHAPE[1] + y) * SHAPE[2] + z) as u16
                    })
                    .collect();
                assert_eq!(read(&reader, offsets, lengths).unwrap(), expected, "{offsets:?} {lengths:?}");
            }
        }
    }

    #[test]
    fn boxes_that_are_not_there() {
        let reader = file(Compression::None);
        for (offsets, lengths) in
            [([0, 0, 1], [1, 1, 23]), ([38, 0, 0], [0, 1, 1]), ([u64::MAX, 0, 0], [1, 1, 1])]
        {
            assert!(read(&reader, offsets, lengths).is_err(), "{offsets:?} {lengths:?}");
        }
        let mut out = [0; 2];
        let mut part = |sizes: &[u64], lengths: &[u64], item| {
            let offsets = vec![0; lengths.len()];
            let part = Subarray { name: "x", item, sizes, offsets: &offsets, lengths, out: &mut out };
            reader.read_parts(vec![part], None)
        };
        assert!(part(&[37, 19, 23], &[1, 1], 2).is_err());
        assert!(part(&[37, 19, 24], &[1, 1, 1], 2).is_err());
        assert!(part(&[37, 19, 23], &[1, 1, 2], 2).is_err());
        assert!(part(&[u64::MAX, u64::MAX, 2], &[1, 1, 1], 2).is_err());
        assert!(part(&[37, 19, 23], &[1, 1, 1], 2).is_ok());
    }

    #[test]
    fn far_runs_are_read_alone_and_long_ones_in_pieces() {
        let rows = 3u64;
        let data: Vec<u8> = (0..rows * (5 << 20)).map(|value| (value % 251) as u8).collect();
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes).unwrap();
        writer.add("x", &[rows, 5 << 20], &data).unwrap();
        writer.finish().unwrap();
        let reader = Reader::from_bytes(bytes).unwrap();
        for (offset, length) in [(1 << 20, 100), (17, (5 << 20) - 18)] {
            let (sizes, offsets, lengths) = ([rows, 5 << 20], [0, offset], [rows, length]);
            let mut out = vec![0; (rows * length) as usize];
            let part = Subarray {
                name: "x",
                item: 1,
                sizes: &sizes,
                offsets: &offsets,
                lengths: &lengths,
                out: &mut out,
            };
            let component = reader.dense("x").unwrap();
            let runs = Runs::of(&part, component.len).unwrap();
            let spans = runs.spans("x", component, part.out);
            assert!(spans.iter().all(|span| span.end - span.start == span.out.len() as u64));
            assert!(spans.iter().all(|span| span.out.len() as u64 <= MAX_SPAN));
            let part = Subarray {
                name: "x",
                item: 1,
                sizes: &sizes,
                offsets: &offsets,
                lengths: &lengths,
                out: &mut out,
            };
            reader.read_parts(vec![part], None).unwrap();
            for row in 0..rows {
                let from = (row * (5 << 20) + offset) as usize;
                let found = &out[(row * length) as usize..][..length as usize];
                assert!(found == &data[from..from + length as usize]);
            }
        }
    }
}
