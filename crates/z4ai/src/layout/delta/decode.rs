//! Decodes the delta layout.

use crate::coder;
use crate::coder::huffman::decode::DecodePrefetch;
use crate::error::{Error, Result};
use crate::kernel::class_masks::ListedClasses;
use crate::kernel::difference::{self, GapScatter, Rule};
use crate::kernel::magnitude_classes;
use crate::kernel::{mask_compact, xxh3};
use crate::layout::delta::binned::{Binned, BinnedScratch};
use crate::layout::delta::{Body, Class, Delta, Difference, Places};
use crate::layout::hashed_output::{DiscardedPart, HashedOutput};
use crate::layout::split::decode_stream;
use crate::layout::{ChunkScratch, Context};
use crate::memory::grow;
use crate::simd;
use crate::simd::prefetch::{CACHE_LINE, Prefetcher};
use crate::wire::Reader;

/// Where fewer cache lines than one in this many hold a listed element, they are not read ahead.
/// (case: `sync.py`, apply)
const LINES_PER_LISTED: usize = 4;

/// Bytes of a part that is restored in place, where only listed elements change and where all are computed. The lines of
/// a part are touched first: with a page at a time, apply takes 0.91 of the time at up to 2 % changed; with half of one,
/// 0.83 at 20 %. (case: `sync.py`, apply)
const LISTED_PART: usize = 4 << 10;
const COMPUTED_PART: usize = 2 << 10;

/// Up to one element in this many, those of classes are restored one by one. (case: `delta.py`, apply)
const FEW: u64 = 16;

impl Delta {
    /// Decodes a checked payload to fill `out`, which is as long as `reference`, or where there is
    /// none has it in place; returns the hash of it.
    pub(crate) fn decode(
        &self,
        payload: &[u8],
        reference: Option<&[u8]>,
        out: Output<'_>,
        scratch: &mut DeltaScratch,
    ) -> Result<u64> {
        match &self.body {
            Body::Literal(layout) => {
                let DeltaScratch { literal, whole, .. } = scratch;
                match out {
                    Output::Memory(out) | Output::Verified(out) => {
                        layout.decode_hashed(payload, out, Context::default(), literal)
                    }
                    Output::Parts(len, each) => {
                        grow(whole, len);
                        let whole = &mut whole[..len];
                        let hash = layout.decode_hashed(payload, whole, Context::default(), literal)?;
                        each(0, reference.unwrap_or_default(), whole, None);
                        Ok(hash)
                    }
                }
            }
            Body::Difference(difference) => difference.decode(payload, reference, out, scratch),
            Body::Binned(binned) => decode_binned(binned, payload, reference, out, scratch),
        }
    }

    /// Whether [`revert`](Self::revert) can undo it: differences of one class depend on nothing else in the
    /// reference. Decoding such a chunk in place either fails before the first byte changes or succeeds.
    pub(crate) fn is_invertible(&self) -> bool {
        matches!(&self.body, Body::Difference(difference) if difference.thresholds.is_empty())
    }

    /// Turns `content`, which an [invertible](Self::is_invertible) chunk was decoded to in place, back into the
    /// reference.
    pub(crate) fn revert(
        &self,
        payload: &[u8],
        content: &mut [u8],
        scratch: &mut DeltaScratch,
    ) -> Result<()> {
        let not_invertible = || Error::invalid("a difference that cannot be reverted");
        let Body::Difference(Difference { elements, xor, classes, .. }) = &self.body else {
            return Err(not_invertible());
        };
        let [class] = &classes[..] else { return Err(not_invertible()) };
        let (rule, size) = (elements.rule(*xor), elements.size);
        grow(&mut scratch.part, HashedOutput::LEN);
        let mut opened = class.open(payload, size, false, &mut scratch.class, &mut scratch.literal.coder)?;
        for part in content.chunks_mut(HashedOutput::LEN) {
            let differences = &mut scratch.part[..part.len()];
            opened.next(differences)?;
            difference::negate(rule, size, differences);
            difference::restore_in_place(rule, size, differences, part);
        }
        opened.finish()
    }
}

/// Where a chunk is decoded to.
pub(crate) enum Output<'a> {
    Memory(&'a mut [u8]),
    /// Memory for bytes that were verified before: they are not hashed.
    Verified(&'a mut [u8]),
    /// A number of bytes that are hashed and not kept, but handed on in parts, mostly in the first-level cache.
    Parts(usize, EachPart<'a>),
}

/// Gets the place of a part, the reference there, the part, and which of its elements differ where they are listed.
pub(crate) type EachPart<'a> = &'a mut dyn FnMut(usize, &[u8], &[u8], Option<ChangedPlaces<'_>>);

/// Elements of a part that may differ from the reference: the others do not.
#[derive(Debug, Clone, Copy)]
pub struct ChangedPlaces<'a> {
    /// Bytes of an element.
    pub size: usize,
    /// Their positions from the start of the part, rising.
    pub elements: &'a [u32],
}

impl Output<'_> {
    fn len(&self) -> usize {
        match self {
            Output::Memory(out) | Output::Verified(out) => out.len(),
            Output::Parts(len, _) => *len,
        }
    }
}

/// Buffers that decoding deltas reuses: one set per thread.
#[derive(Default)]
pub(crate) struct DeltaScratch {
    pub(crate) literal: ChunkScratch,
    /// The payload of the next chunk, to prefetch.
    pub(crate) next: Prefetcher,
    /// Merged differences, class after class.
    elements: Vec<u8>,
    /// The differences of one part.
    part: Vec<u8>,
    /// Differences of all classes that are not zero.
    listed: ListedClasses,
    class: ClassScratch,
    binned: BinnedScratch,
    /// Listed elements of one part.
    places: Vec<u32>,
    /// One part, and one chunk, of what is not kept.
    discarded: DiscardedPart,
    whole: Vec<u8>,
}

#[derive(Default)]
struct ClassScratch {
    places: Vec<u8>,
    /// The planes, then the values of the list: together as many as an element has bytes.
    streams: [Vec<u8>; 8],
    /// Listed elements.
    listed: Vec<u8>,
}

fn decode_binned(
    binned: &Binned,
    payload: &[u8],
    reference: Option<&[u8]>,
    out: Output<'_>,
    scratch: &mut DeltaScratch,
) -> Result<u64> {
    let large = scratch.literal.large_output && reference.is_some();
    let mut opened = binned.open(payload, &mut scratch.binned, &mut scratch.literal.coder)?;
    let mut each: Option<EachPart<'_>> = None;
    let mut out = match out {
        Output::Memory(out) => HashedOutput::new(out, large, &mut scratch.literal.part).made_from(reference),
        Output::Verified(out) => HashedOutput::verified(out),
        Output::Parts(len, parts) => {
            each = Some(parts);
            HashedOutput::discarded(len, &mut scratch.discarded).made_from(reference)
        }
    };
    let DeltaScratch { next, places, .. } = scratch;
    let part_len = HashedOutput::LEN;
    let restore = Restore { reference, part_len, touch: false, each, part: &mut [], next, places };
    restore.fill(&mut out, |to, _, _| {
        match to {
            To::Other(reference, out) => opened.restore(Some(reference), out)?,
            To::Reference(elements, _) => opened.restore(None, elements)?,
        }
        Ok(None)
    })?;
    opened.finish()?;
    Ok(out.finish())
}

impl Difference {
    /// Elements in lists.
    fn listed(&self) -> usize {
        self.classes.iter().filter_map(|class| class.list.as_ref()).map(|list| list.count as usize).sum()
    }

    /// Whether so few elements may differ that those of classes are restored one by one. With AVX-512 all are
    /// expanded to their places faster than that.
    fn differs_little(&self) -> bool {
        if simd::has_expand() {
            return false;
        }
        let all: u64 = self.classes.iter().map(|class| u64::from(class.count)).sum();
        let dense = self.classes.iter().filter(|class| !class.planes.is_empty());
        let lists = self.classes.iter().filter(|class| class.planes.is_empty());
        let listed = lists.filter_map(|class| class.list.as_ref()).map(|list| u64::from(list.count));
        FEW * (dense.map(|class| u64::from(class.count)).sum::<u64>() + listed.sum::<u64>()) <= all
    }

    fn decode(
        &self,
        payload: &[u8],
        reference: Option<&[u8]>,
        out: Output<'_>,
        scratch: &mut DeltaScratch,
    ) -> Result<u64> {
        if self.is_empty() {
            return Ok(match (out, reference) {
                (Output::Memory(out), Some(reference)) => {
                    out.copy_from_slice(reference);
                    xxh3::hash(out)
                }
                (Output::Memory(out), None) => xxh3::hash(out),
                (Output::Verified(_), _) => 0,
                (Output::Parts(_, each), reference) => {
                    let reference = reference.unwrap_or_default();
                    each(
                        0,
                        reference,
                        reference,
                        Some(ChangedPlaces { size: self.elements.size, elements: &[] }),
                    );
                    xxh3::hash(reference)
                }
            });
        }
        let size = self.elements.size;
        let rule = self.elements.rule(self.xor);
        // Memory that is updated in place is in the caches already.
        let large = scratch.literal.large_output && reference.is_some();
        let coders = &mut scratch.literal.coder;
        // The reference is needed right after the streams.
        let ahead = match (&out, reference) {
            (_, Some(reference)) => reference,
            (Output::Memory(out), None) => out,
            // Verified: few of its lines may be needed.
            (Output::Verified(_) | Output::Parts(..), None) => &[],
        };
        coders.ahead = DecodePrefetch::new(out.len() / size, ahead);
        let touch = matches!(&out, Output::Verified(out) if self.listed() * LINES_PER_LISTED >= out.len() / CACHE_LINE);
        let mut each: Option<EachPart<'_>> = None;
        let mut out = match out {
            Output::Memory(out) => {
                HashedOutput::new(out, large, &mut scratch.literal.part).made_from(reference)
            }
            Output::Verified(out) => HashedOutput::verified(out),
            Output::Parts(len, parts) => {
                each = Some(parts);
                HashedOutput::discarded(len, &mut scratch.discarded).made_from(reference)
            }
        };
        grow(&mut scratch.part, HashedOutput::LEN);
        let DeltaScratch { part, next, places, .. } = scratch;
        let part_len = HashedOutput::LEN;
        let mut restore = Restore { reference, part_len, touch, each, part, next, places };
        if let ([class], []) = (&self.classes[..], &self.thresholds[..]) {
            let mut class = class.open(payload, size, true, &mut scratch.class, coders)?;
            // Before anything changes: what follows cannot fail.
            class.check_fits(out.len() / size)?;
            match class.in_planes {
                true => restore.fill_by_planes(&mut out, rule, &mut class)?,
                false => {
                    if reference.is_none() {
                        restore.part_len = if class.lists_elements() { LISTED_PART } else { COMPUTED_PART };
                    }
                    restore.fill(&mut out, |to, part, places| class.restore(rule, to, part, places))?;
                }
            }
            class.finish()?;
            return Ok(out.finish());
        }
        let mut payload = Reader::new(payload);
        let elements = &mut scratch.elements;
        if self.differs_little() {
            let listed = &mut scratch.listed;
            listed.clear();
            for class in &self.classes {
                let stored = payload.take(class.payload_len() as usize)?;
                let opened = class.open(stored, size, false, &mut scratch.class, coders)?;
                opened.list(class.count as usize, elements, listed)?;
            }
            let mut classes = listed.restoring(size, &self.thresholds);
            restore.fill(&mut out, |mut to, _, _| {
                classes.next_part(to.reference());
                classes.restore(rule, to.unchanged());
                Ok(None)
            })?;
            return match classes.is_done() {
                true => Ok(out.finish()),
                false => Err(other_classes()),
            };
        }
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
        restore.fill(&mut out, |to, part, _| {
            let part = &mut part[..to.reference().len()];
            classes.merge(to.reference(), elements, part).ok_or_else(other_classes)?;
            to.restore(rule, size, part);
            Ok(None)
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
    /// Bytes of every part but the last: at most [`HashedOutput::LEN`], whole blocks of the hash.
    part_len: usize,
    /// Whether most cache lines of the reference are needed, and not prefetched otherwise.
    touch: bool,
    /// Gets each part where they are not kept.
    each: Option<EachPart<'a>>,
    /// Room for the differences of one part.
    part: &'a mut [u8],
    next: &'a mut Prefetcher,
    /// Room for the places of one part's listed elements.
    places: &'a mut Vec<u32>,
}

impl Restore<'_> {
    /// Produces all of `out`; `restore` produces one part, given room for its differences. Where it lists the places of
    /// all elements that differ, it returns their size.
    fn fill(
        self,
        out: &mut HashedOutput<'_>,
        mut restore: impl FnMut(To<'_>, &mut [u8], &mut Vec<u32>) -> Result<Option<usize>>,
    ) -> Result<()> {
        let Restore { part_len, touch, mut each, part, next, places, .. } = self;
        let mut references = self.reference.map(|reference| reference.chunks(part_len));
        let mut at = 0;
        while !out.is_done() {
            out.next_of(part_len, |out| {
                next.advance(1);
                let reference = references.as_mut().map(|references| references.next().unwrap_or_default());
                let to = match reference {
                    Some(reference) => To::Other(reference, &mut *out),
                    None => To::Reference(&mut *out, touch),
                };
                places.clear();
                let listed = restore(to, &mut *part, places)?;
                if let (Some(each), Some(reference)) = (&mut each, reference) {
                    each(at, reference, out, listed.map(|size| ChangedPlaces { size, elements: places }));
                }
                at += out.len();
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Produces all of `out` from the planes of the only class.
    fn fill_by_planes(self, out: &mut HashedOutput<'_>, rule: Rule, class: &mut Opened<'_>) -> Result<()> {
        let size = class.size;
        let mut references = self.reference.map(|reference| reference.chunks(HashedOutput::LEN));
        let (mut each, mut at) = (self.each, 0);
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
                if let (Some(each), Some(reference)) = (&mut each, reference) {
                    each(at, reference, out, None);
                }
                Ok(())
            })?;
            at += len;
        }
        Ok(())
    }
}

/// The destination of a part.
enum To<'a> {
    /// Memory other than the reference.
    Other(&'a [u8], &'a mut [u8]),
    /// The memory of the reference, and whether to read all of its cache lines first.
    Reference(&'a mut [u8], bool),
}

impl To<'_> {
    fn reference(&self) -> &[u8] {
        match self {
            To::Other(reference, _) => reference,
            To::Reference(reference, _) => reference,
        }
    }

    /// The output, with the reference in it.
    fn unchanged(&mut self) -> &mut [u8] {
        match self {
            To::Other(reference, out) => {
                out.copy_from_slice(reference);
                out
            }
            To::Reference(elements, touch) => {
                // Scattered accesses are misses that hardware prefetchers do not foresee; one byte of
                // every line, in order, is a stream to them.
                if *touch {
                    let lines = elements.chunks(CACHE_LINE).map(|line| line[0]);
                    std::hint::black_box(lines.fold(0, |all, byte| all | byte));
                }
                elements
            }
        }
    }

    fn restore(self, rule: Rule, size: usize, differences: &[u8]) {
        match self {
            To::Other(reference, out) => difference::restore(rule, size, reference, differences, out),
            To::Reference(elements, _) => difference::restore_in_place(rule, size, differences, elements),
        }
    }
}

fn other_classes() -> Error {
    Error::corrupt("classes that the reference does not have")
}

impl Class {
    /// Decodes the streams. Differences are merged part by part, unless the class is the only one
    /// (`alone`) and can be restored from its planes.
    fn open<'a>(
        &self,
        payload: &'a [u8],
        size: usize,
        alone: bool,
        scratch: &'a mut ClassScratch,
        coders: &mut coder::DecodeScratch,
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

    /// Whether only listed elements differ, and are listed whole.
    fn lists_elements(&self) -> bool {
        matches!(&self.list, Listed::Gaps(list) if list.lists_elements(self.size))
    }

    /// Restores the next elements: a multiple of eight, unless they are the last. `part` has room
    /// for their differences. Returns the size of elements if `places` has all that differ.
    fn restore(
        &mut self,
        rule: Rule,
        mut to: To<'_>,
        part: &mut [u8],
        places: &mut Vec<u32>,
    ) -> Result<Option<usize>> {
        // Few elements changed: only those are computed.
        if self.lists_elements()
            && let Listed::Gaps(list) = &mut self.list
        {
            list.restore(rule, self.size, to.unchanged(), places).ok_or_else(damaged_list)?;
            return Ok(Some(self.size));
        }
        let part = &mut part[..to.reference().len()];
        self.next(part)?;
        to.restore(rule, self.size, part);
        Ok(None)
    }

    /// Appends all differences that are not zero, of the class's `count` elements. `elements` is scratch.
    fn list(mut self, count: usize, elements: &mut Vec<u8>, listed: &mut ListedClasses) -> Result<()> {
        let size = self.size;
        match &self.list {
            _ if self.planes > 0 => {
                grow(elements, count * size + mask_compact::SLACK);
                let elements = &mut elements[..count * size];
                elements.chunks_mut(HashedOutput::LEN).try_for_each(|part| self.next(part))?;
                listed.push_nonzero(size, elements);
                self.finish()?;
            }
            Listed::None => {}
            Listed::Gaps(list) => list.list_all(size, listed).ok_or_else(damaged_list)?,
            Listed::Marks { marks, words } => {
                let start = listed.places.len();
                mask_compact::each_position(marks, |place| listed.places.push(place as u32));
                let len = (listed.places.len() - start) * size;
                listed.differences.extend_from_slice(words.get(..len).ok_or_else(damaged_list)?);
            }
        }
        listed.end_class(size, count).ok_or_else(damaged_list)
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

    /// Refuses a list that does not fit the `count` elements of its class.
    fn check_fits(&self, count: usize) -> Result<()> {
        match &self.list {
            Listed::Gaps(list) if !list.fits(count) => Err(damaged_list()),
            _ => Ok(()),
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
