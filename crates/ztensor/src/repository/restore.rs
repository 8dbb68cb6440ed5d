//! Objects as they are read: whole ones by the decoders of their format, differences by way of the
//! objects that they depend on.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use z4ai::delta::ParsedDelta;

use super::locations::Objects;
use super::names::pack_file;
use super::object::ObjectType;
use super::pack::{Blob, Coding, Form, Stored};
use super::store::Store;
use crate::base::parallel;
use crate::catalog::{Decode, Extent, Storage};
use crate::decode::{Generation, Z4ai, Zstd, broken_frame, decode_options};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::id::ContentId;
use crate::source::{Sources, zeroed};

/// The longest way from an object to one that is stored whole. (limit)
pub(crate) const MAX_DEPTH: usize = 64;
/// Frames of one object that are fetched at a time from a store. (unmeasured)
const FETCHED: usize = 16;

/// Objects whose places are known, and the packs that they are in.
#[derive(Debug)]
pub(crate) struct ObjectSet {
    objects: Objects,
    sources: Arc<Sources>,
    packs: HashMap<Arc<str>, u32>,
}

impl ObjectSet {
    /// Packs are opened when they are first read.
    pub(crate) fn new(store: &Store, objects: Objects) -> ObjectSet {
        let mut sources = Sources::default();
        let mut packs: HashMap<Arc<str>, u32> = HashMap::new();
        let mut names: Vec<&Arc<str>> = objects.values().map(|stored| &stored.pack).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let (store, file) = (store.clone(), pack_file(name));
            let label = store.path(&file).display().to_string();
            packs.insert(name.clone(), sources.push_lazy(label, move || store.source(&file)));
        }
        ObjectSet { objects, sources: Arc::new(sources), packs }
    }

    pub(crate) fn sources(&self) -> &Arc<Sources> {
        &self.sources
    }

    pub(crate) fn objects(&self) -> &Objects {
        &self.objects
    }

    pub(crate) fn get(&self, id: &ContentId) -> Result<&Arc<Stored>> {
        self.objects
            .get(id)
            .ok_or_else(|| Error::corrupt("repository.missing", format!("no pack has the object {id}")))
    }

    /// The way from an object to one that is stored whole, from it on.
    pub(crate) fn chain(&self, id: &ContentId) -> Result<Vec<&Arc<Stored>>> {
        let mut chain = vec![self.get(id)?];
        while let Some(base) = chain.last().and_then(|stored| stored.base()) {
            if chain.len() > MAX_DEPTH {
                let message = format!("{id} depends on more than {MAX_DEPTH} objects, or on itself");
                return Err(Error::corrupt("repository.chain", message));
            }
            chain.push(self.get(&base)?);
        }
        Ok(chain)
    }

    /// How an object is read. Extents name the sources of this set from number `shift` on; decoders
    /// of differences have sources of their own.
    pub(crate) fn storage(&self, id: &ContentId, shift: u32) -> Result<Storage> {
        let chain = self.chain(id)?;
        let (root, steps) = match chain.split_last() {
            Some((root, steps)) => (*root, steps),
            None => return Err(Error::invalid("a chain of differences is empty")),
        };
        let Form::Whole(blob) = root.form else {
            return Err(Error::corrupt(
                "repository.chain",
                "a chain of differences does not end in a whole object",
            ));
        };
        if steps.is_empty() {
            return self.blob(root, blob, root.of.len()?, shift);
        }
        let mut links = Vec::with_capacity(steps.len());
        let mut before = &root.of;
        for stored in steps.iter().rev() {
            links.push(self.link(stored, before)?);
            before = &stored.of;
        }
        let root_len = root.of.len()?;
        let decoder = Chain {
            root: self.blob(root, blob, root_len, 0)?,
            root_len,
            links,
            sources: self.sources.clone(),
            stored: chain.iter().map(|stored| stored.len()).sum(),
        };
        Ok(Storage::Encoded(Arc::new(decoder)))
    }

    /// All bytes of an object.
    pub(crate) fn read(&self, id: &ContentId, threads: usize) -> Result<Vec<u8>> {
        let len = self.get(id)?.of.len()?;
        let storage = self.storage(id, 0)?;
        let mut bytes = zeroed(len)?;
        storage.read(&self.sources, 0..len, &mut bytes, threads)?;
        Ok(bytes)
    }

    /// All bytes of an object, which are those of its id.
    pub(crate) fn read_verified(&self, id: &ContentId, threads: usize) -> Result<Vec<u8>> {
        let bytes = self.read(id, threads)?;
        let found = self.get(id)?.of.id(&bytes)?;
        match found == *id {
            true => Ok(bytes),
            false => Err(Error::mismatch(format!(
                "the object {id} decodes to the id {found}: it is damaged or forged"
            ))),
        }
    }

    /// Stored bytes of an object.
    pub(crate) fn blob_bytes(&self, stored: &Stored, blob: Blob) -> Result<Vec<u8>> {
        Ok(self.sources.bytes(self.extent(stored, blob, 0)?)?.into_owned())
    }

    fn extent(&self, stored: &Stored, blob: Blob, shift: u32) -> Result<Extent> {
        let pack = self.packs.get(&stored.pack).copied();
        let pack = pack.ok_or_else(|| Error::invalid("an object refers to a pack that is not listed"))?;
        Ok(Extent { source: pack + shift, offset: blob.offset, len: blob.len })
    }

    fn blob(&self, stored: &Stored, blob: Blob, len: u64, shift: u32) -> Result<Storage> {
        let extent = self.extent(stored, blob, shift)?;
        Ok(match blob.coding {
            Coding::Raw if blob.len != len => {
                let message = format!("{} bytes are stored for an object of {len}", blob.len);
                return Err(Error::corrupt("repository.pack", message));
            }
            Coding::Raw => Storage::Plain(extent),
            Coding::Z4ai => Storage::Encoded(Arc::new(Z4ai::new(extent, len, Generation::Present)?)),
            Coding::Zstd => Storage::Encoded(Arc::new(Zstd::new(extent, len)?)),
        })
    }

    fn link(&self, stored: &Stored, before: &ObjectType) -> Result<Link> {
        let (len, base_len) = (stored.of.len()?, before.len()?);
        match stored.form {
            Form::Whole(_) => Err(Error::invalid("a whole object depends on nothing")),
            Form::Cast { .. } => {
                let cast = Cast::between(before, &stored.of);
                let cast = cast.ok_or_else(|| {
                    let message = format!("there is no cast from {} to {}", before.dtype, stored.of.dtype);
                    Error::corrupt("repository.cast", message)
                })?;
                Ok(Link { len, how: How::Cast(cast) })
            }
            Form::Delta { common, change, rest, .. } => {
                if common > base_len || common > len {
                    let message = format!("a difference shares {common} bytes with an object of {base_len}");
                    return Err(Error::corrupt("repository.chain", message));
                }
                let change = self.extent(stored, change, 0)?;
                let rest = rest.map(|rest| self.blob(stored, rest, len - common, 0)).transpose()?;
                Ok(Link { len, how: How::Delta { common, change, rest } })
            }
        }
    }
}

/// A conversion of elements that loses what the narrower type cannot hold, rounding to nearest even.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cast {
    F32ToBf16,
    F32ToF16,
}

impl Cast {
    pub(crate) fn between(from: &ObjectType, to: &ObjectType) -> Option<Cast> {
        match (from.dtype, to.dtype) {
            _ if from.shape != to.shape => None,
            (DType::F32, DType::BF16) => Some(Cast::F32ToBf16),
            (DType::F32, DType::F16) => Some(Cast::F32ToF16),
            _ => None,
        }
    }

    /// Bytes of the result by bytes of what it is made from.
    const NARROWER: u64 = 2;

    /// Casts all elements of `from` into `to`, which is half as long.
    pub(crate) fn apply(self, from: &[u8], to: &mut [u8]) {
        let wide = from.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        for (value, out) in wide.zip(to.as_chunks_mut::<2>().0) {
            *out = match self {
                Cast::F32ToBf16 => bf16::from_f32(value).to_le_bytes(),
                Cast::F32ToF16 => f16::from_f32(value).to_le_bytes(),
            };
        }
    }
}

/// An object that is made from another one.
#[derive(Debug)]
struct Link {
    len: u64,
    how: How,
}

#[derive(Debug)]
enum How {
    Delta { common: u64, change: Extent, rest: Option<Storage> },
    Cast(Cast),
}

/// An object that is decoded by way of others.
#[derive(Debug)]
struct Chain {
    root: Storage,
    root_len: u64,
    /// From the root on.
    links: Vec<Link>,
    sources: Arc<Sources>,
    stored: u64,
}

impl Chain {
    /// The frames of all differences; those in a store are fetched at the same time.
    fn frames(&self) -> Result<Vec<std::borrow::Cow<'_, [u8]>>> {
        let extents: Vec<Extent> = self.links.iter().filter_map(Link::change).collect();
        let mut remote = false;
        for extent in &extents {
            remote |= self.sources.get(extent.source)?.remote().is_some();
        }
        let slots: Vec<_> = extents.iter().map(|_| std::sync::OnceLock::new()).collect();
        let threads = if remote { FETCHED } else { 1 };
        parallel::for_each(threads, extents.iter().zip(&slots).collect(), |(extent, slot)| {
            let _ = slot.set(self.sources.bytes(*extent)?); // it is empty until now
            Ok(())
        })?;
        Ok(slots.into_iter().filter_map(std::sync::OnceLock::into_inner).collect())
    }
}

impl Link {
    fn change(&self) -> Option<Extent> {
        match &self.how {
            How::Delta { change, .. } => Some(*change),
            How::Cast(_) => None,
        }
    }

    /// The bytes of the object before that bytes `range` of this one are made from.
    fn needed(&self, delta: Option<&ParsedDelta<'_>>, range: &Range<u64>) -> Result<Range<u64>> {
        match (&self.how, delta) {
            (How::Cast(_), _) => {
                // Whole elements.
                let (start, end) = (range.start / 2 * 2, range.end.next_multiple_of(2));
                Ok(start * Cast::NARROWER..end * Cast::NARROWER)
            }
            (How::Delta { common, .. }, Some(delta)) => {
                if delta.content_len().map_err(broken_frame)? != *common {
                    return Err(Error::corrupt(
                        "repository.chain",
                        "a difference has another length than its object",
                    ));
                }
                delta.reference_range(range.start.min(*common)..range.end.min(*common)).map_err(broken_frame)
            }
            (How::Delta { .. }, None) => Err(Error::invalid("a difference has no frame")),
        }
    }

    /// Makes bytes `range`, all of `out`, from the object before, of which `before` has what is needed.
    fn make(
        &self,
        delta: Option<&ParsedDelta<'_>>,
        before: &[u8],
        range: Range<u64>,
        out: &mut [u8],
        sources: &Sources,
        threads: usize,
    ) -> Result<()> {
        match (&self.how, delta) {
            (How::Cast(cast), _) => {
                let (start, end) = (range.start / 2 * 2, range.end.next_multiple_of(2));
                let from = &before[(start * Cast::NARROWER) as usize..(end * Cast::NARROWER) as usize];
                if (start, end) == (range.start, range.end) {
                    cast.apply(from, out);
                    return Ok(());
                }
                let mut whole = zeroed(end - start)?;
                cast.apply(from, &mut whole);
                out.copy_from_slice(&whole[(range.start - start) as usize..][..out.len()]);
                Ok(())
            }
            (How::Delta { common, rest, .. }, Some(delta)) => {
                let part = range.start.min(*common)..range.end.min(*common);
                let (first, second) = out.split_at_mut((part.end - part.start) as usize);
                let options = decode_options(*common, threads);
                let reference = &before[..*common as usize];
                if part == (0..*common) {
                    // Made by a decoder that compares checksums, as this one does.
                    delta.restore_into(reference, first, &options).map_err(broken_frame)?;
                } else if !first.is_empty() {
                    delta.decompress_bytes(reference, part, first, &options).map_err(broken_frame)?;
                }
                match rest {
                    Some(rest) if !second.is_empty() => {
                        let start = range.start.max(*common) - common;
                        rest.read(sources, start..start + second.len() as u64, second, threads)
                    }
                    _ if second.is_empty() => Ok(()),
                    _ => Err(Error::corrupt("repository.chain", "the rest of an object is missing")),
                }
            }
            (How::Delta { .. }, None) => Err(Error::invalid("a difference has no frame")),
        }
    }
}

impl Decode for Chain {
    fn encoding(&self) -> &str {
        "delta"
    }

    fn stored_len(&self) -> u64 {
        self.stored
    }

    fn extent(&self) -> Option<Extent> {
        None
    }

    fn work(&self, range: &Range<u64>) -> u64 {
        let len = range.end.saturating_sub(range.start);
        self.root.work(range).saturating_add(len.saturating_mul(self.links.len() as u64))
    }

    fn decode(&self, _: &Sources, range: Range<u64>, out: &mut [u8], threads: usize) -> Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        let frames = self.frames()?;
        let mut parsed = frames.iter();
        let mut deltas = Vec::with_capacity(self.links.len());
        for link in &self.links {
            deltas.push(match link.change() {
                Some(_) => {
                    let frame = parsed.next().ok_or_else(|| Error::invalid("a frame is missing"))?;
                    Some(ParsedDelta::parse(frame).map_err(broken_frame)?)
                }
                None => None,
            });
        }
        // What is needed of each object, from this one back to the root.
        let mut ranges = vec![range];
        for (link, delta) in self.links.iter().zip(&deltas).rev() {
            let needed = link.needed(delta.as_ref(), &ranges[ranges.len() - 1])?;
            ranges.push(needed);
        }
        ranges.reverse();
        // Memory that is not touched takes no room, so that places need not be shifted.
        let mut before = zeroed(self.root_len)?;
        let needed = ranges[0].start as usize..ranges[0].end as usize;
        if !needed.is_empty() {
            self.root.read(&self.sources, ranges[0].clone(), &mut before[needed], threads)?;
        }
        let mut spare: Vec<u8> = Vec::new();
        let last = self.links.len() - 1;
        for (index, (link, delta)) in self.links.iter().zip(&deltas).enumerate() {
            let range = ranges[index + 1].clone();
            if index == last {
                return link.make(delta.as_ref(), &before, range, out, &self.sources, threads);
            }
            if spare.len() as u64 != link.len {
                spare = zeroed(link.len)?;
            }
            let place = range.start as usize..range.end as usize;
            if !place.is_empty() {
                link.make(delta.as_ref(), &before, range, &mut spare[place], &self.sources, threads)?;
            }
            std::mem::swap(&mut before, &mut spare);
        }
        Ok(())
    }
}
