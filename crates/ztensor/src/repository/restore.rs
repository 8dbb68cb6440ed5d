//! Objects as they are read: whole ones by the decoders of their format, differences by way of the
//! objects that they depend on.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use z4ai::delta::ParsedDelta;

use super::locations::Objects;
use super::names::pack_file;
use super::object::ObjectType;
use super::pack::{Blob, Coding, Form, PACK_LEN, PackSizes, Stored};
use super::store::Store;
use crate::base::parallel;
use crate::base::pool::BufferPool;
use crate::catalog::{Decode, Extent, Storage};
use crate::decode::{Generation, Z4ai, Zstd, broken_frame, decode_options};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::id::ContentId;
use crate::source::{Sources, check_range, zeroed};

/// The longest way from an object to one that is stored whole. (limit)
pub(crate) const MAX_DEPTH: usize = 64;
/// The size of a pack that is believed before the store has confirmed it: ranges, and so memory, are
/// checked against it. (limit)
const BELIEVED: u64 = 2 * PACK_LEN;
/// Frames of one object that are fetched at a time from a store. (unmeasured)
const FETCHED: usize = 16;

/// Objects whose places are known, and the packs that they are in.
#[derive(Debug)]
pub(crate) struct ObjectSet {
    objects: Objects,
    sources: Arc<Sources>,
    packs: HashMap<Arc<str>, u32>,
    /// Memory of objects: fresh memory takes about as long to touch as they take to decode.
    pool: Arc<BufferPool>,
}

impl ObjectSet {
    /// Packs are opened when they are first read.
    pub(crate) fn new(store: &Store, objects: Objects) -> ObjectSet {
        ObjectSet::with_sizes(store, objects, &PackSizes::new())
    }

    /// The same where the sizes of packs are known: those in a store are then asked only for what is read.
    pub(crate) fn with_sizes(store: &Store, objects: Objects, sizes: &PackSizes) -> ObjectSet {
        let mut sources = Sources::default();
        let mut packs: HashMap<Arc<str>, u32> = HashMap::new();
        let mut names: Vec<&Arc<str>> = objects.values().map(|stored| &stored.pack).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let (store, file) = (store.clone(), pack_file(name));
            let label = store.path(&file).display().to_string();
            let size = sizes.get(name).copied().filter(|size| *size <= BELIEVED);
            let open = move || match size {
                Some(size) => store.sized_source(&file, size),
                None => store.source(&file),
            };
            packs.insert(name.clone(), sources.push_lazy(label, open));
        }
        ObjectSet { objects, sources: Arc::new(sources), packs, pool: Arc::default() }
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
            pool: self.pool.clone(),
            stored: chain.iter().map(|stored| stored.len()).sum(),
        };
        Ok(Storage::Encoded(Arc::new(decoder)))
    }

    /// Calls `with` with all bytes of an object, in memory that is used again.
    pub(crate) fn with_object<T>(
        &self,
        id: &ContentId,
        threads: usize,
        with: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<T> {
        let buffer = self.pooled(id, threads)?;
        let result = with(&buffer[..self.get(id)?.of.len()? as usize]);
        self.pool.put(buffer);
        result
    }

    /// A buffer of the pool that begins with all bytes of an object.
    fn pooled(&self, id: &ContentId, threads: usize) -> Result<Vec<u8>> {
        let len = self.get(id)?.of.len()?;
        let storage = self.storage(id, 0)?;
        let mut buffer = self.pool.take(len)?;
        storage.read(&self.sources, 0..len, &mut buffer[..len as usize], threads)?;
        Ok(buffer)
    }

    /// All bytes of an object, which are those of its id.
    pub(crate) fn read_verified(&self, id: &ContentId, threads: usize) -> Result<Vec<u8>> {
        let mut bytes = self.pooled_verified(id, threads)?;
        bytes.truncate(self.get(id)?.of.len()? as usize);
        Ok(bytes)
    }

    /// A buffer of the pool that begins with all bytes of an object, which are those of its id.
    pub(crate) fn pooled_verified(&self, id: &ContentId, threads: usize) -> Result<Vec<u8>> {
        let buffer = self.pooled(id, threads)?;
        let of = &self.get(id)?.of;
        let found = of.id(&buffer[..of.len()? as usize])?;
        match found == *id {
            true => Ok(buffer),
            false => Err(Error::mismatch(format!(
                "the object {id} decodes to the id {found}: it is damaged or forged"
            ))),
        }
    }

    /// Takes a buffer back.
    pub(crate) fn recycle(&self, buffer: Vec<u8>) {
        self.pool.put(buffer);
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

    /// Whether all elements of `from` cast to those of `to`.
    pub(crate) fn makes(self, from: &[u8], to: &[u8]) -> bool {
        /// Bytes that are cast at a time. (structural: they stay in the first-level cache)
        const STEP: usize = 8 << 10;
        let mut narrow = [0; STEP];
        from.len() as u64 == to.len() as u64 * Self::NARROWER
            && to.chunks(STEP).zip(from.chunks(STEP * Self::NARROWER as usize)).all(|(to, from)| {
                let narrow = &mut narrow[..to.len()];
                self.apply(from, narrow);
                narrow == to
            })
    }

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
    pool: Arc<BufferPool>,
    stored: u64,
}

/// Stored bytes of a chain.
struct Fetched<'a> {
    /// The frames of all differences, in order.
    frames: Vec<Cow<'a, [u8]>>,
    /// What the root is stored as, where that was fetched with them.
    root: Option<Cow<'a, [u8]>>,
}

impl Chain {
    /// The frames of all differences. Those in a store are fetched at the same time; so is the root, if
    /// all of the object is wanted.
    fn fetch(&self, whole: bool) -> Result<Fetched<'_>> {
        let mut extents: Vec<Extent> = self.links.iter().filter_map(Link::change).collect();
        let count = extents.len();
        let mut remote = false;
        for extent in &extents {
            remote |= self.sources.get(extent.source)?.remote().is_some();
        }
        let decodes = match &self.root {
            Storage::Encoded(decoder) => decoder.stored().is_some(),
            storage => matches!(storage, Storage::Plain(_)),
        };
        extents.extend(self.root.extent().filter(|_| remote && whole && decodes));
        let slots: Vec<_> = extents.iter().map(|_| std::sync::OnceLock::new()).collect();
        let threads = if remote { FETCHED } else { 1 };
        parallel::for_each(threads, extents.iter().zip(&slots).collect(), |(extent, slot)| {
            let _ = slot.set(self.sources.bytes(*extent)?); // it is empty until now
            Ok(())
        })?;
        let mut frames: Vec<_> = slots.into_iter().filter_map(std::sync::OnceLock::into_inner).collect();
        let root = if frames.len() > count { frames.pop() } else { None };
        Ok(Fetched { frames, root })
    }

    /// Reads a range of the root, from what was fetched of it or from its pack.
    fn read_root(
        &self,
        fetched: Option<&[u8]>,
        range: Range<u64>,
        out: &mut [u8],
        threads: usize,
    ) -> Result<()> {
        match (&self.root, fetched) {
            (Storage::Plain(_), Some(bytes)) => {
                check_range(bytes.len() as u64, range.start, out.len() as u64)?;
                out.copy_from_slice(&bytes[range.start as usize..][..out.len()]);
                Ok(())
            }
            (Storage::Encoded(decoder), Some(bytes)) => match decoder.stored() {
                Some(stored) => stored.decode_stored(bytes, range, out, threads),
                None => self.root.read(&self.sources, range, out, threads),
            },
            (root, _) => root.read(&self.sources, range, out, threads),
        }
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
        let whole = range.start == 0 && self.links.last().is_some_and(|last| range.end == last.len);
        let Fetched { frames, root } = self.fetch(whole)?;
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
        // Memory that is not touched takes no room, so that places need not be shifted. What is in it
        // beside what is needed is never read.
        let mut before = self.pool.take(self.root_len)?;
        let needed = ranges[0].start as usize..ranges[0].end as usize;
        if !needed.is_empty() {
            self.read_root(root.as_deref(), ranges[0].clone(), &mut before[needed], threads)?;
        }
        let last = self.links.len() - 1;
        for (index, (link, delta)) in self.links.iter().zip(&deltas).enumerate() {
            let range = ranges[index + 1].clone();
            if index == last {
                link.make(delta.as_ref(), &before, range, out, &self.sources, threads)?;
                break;
            }
            let mut next = self.pool.take(link.len)?;
            let place = range.start as usize..range.end as usize;
            if !place.is_empty() {
                link.make(delta.as_ref(), &before, range, &mut next[place], &self.sources, threads)?;
            }
            self.pool.put(std::mem::replace(&mut before, next));
        }
        self.pool.put(before);
        Ok(())
    }
}
