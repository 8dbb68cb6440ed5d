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
use crate::id::{ContentId, TensorHasher};
use crate::source::{Sources, check_range, zeroed};

/// The longest way from an object to one that is stored whole. (limit)
pub(crate) const MAX_DEPTH: usize = 64;
/// The size of a pack that is believed before the store has confirmed it: ranges, and so memory, are
/// checked against it. (limit)
const BELIEVED: u64 = 2 * PACK_LEN;
/// Bytes that are decoded, hashed and passed on at a time: few enough to stay in the caches. (structural: a
/// multiple of the chunks of all frames that are written, so that none is decoded twice)
const RESTORED_PIECE: u64 = 8 * (248 << 10);
/// Bytes of an object that one thread restores, at most. (structural: a multiple of [`RESTORED_PIECE`] and of the
/// subtrees that are hashed)
pub(crate) const THREAD_SPAN: u64 = 16 * RESTORED_PIECE;

/// Objects whose places are known, and the packs that they are in.
#[derive(Debug)]
pub(crate) struct ObjectSet {
    objects: Objects,
    sources: Arc<Sources>,
    packs: HashMap<Arc<str>, u32>,
    local: bool,
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
        ObjectSet {
            objects,
            sources: Arc::new(sources),
            packs,
            local: store.is_local(),
            pool: Arc::default(),
        }
    }

    pub(crate) fn sources(&self) -> &Arc<Sources> {
        &self.sources
    }

    /// Whether packs are files of this machine.
    pub(crate) fn is_local(&self) -> bool {
        self.local
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
        Ok(match self.decoder(id, shift)? {
            Decoder::Whole(storage, _) => storage,
            Decoder::Chain(chain) => Storage::Encoded(Arc::new(chain)),
        })
    }

    fn decoder(&self, id: &ContentId, shift: u32) -> Result<Decoder> {
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
        let root_len = root.of.len()?;
        if steps.is_empty() {
            return Ok(Decoder::Whole(self.blob(root, blob, root_len, shift)?, blob.coding));
        }
        let mut links = Vec::with_capacity(steps.len());
        let mut before = &root.of;
        for stored in steps.iter().rev() {
            links.push(self.link(stored, before)?);
            before = &stored.of;
        }
        let sequential =
            chain.iter().flat_map(|stored| stored.blobs()).any(|blob| blob.coding.is_sequential());
        Ok(Decoder::Chain(Chain {
            root: self.blob(root, blob, root_len, 0)?,
            links,
            sources: self.sources.clone(),
            pool: self.pool.clone(),
            stored: chain.iter().map(|stored| stored.len()).sum(),
            sequential,
        }))
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
        check_id(id, &of.id(&buffer[..of.len()? as usize], threads)?)?;
        Ok(buffer)
    }

    /// Passes bytes `range` of an object on, with their places in it, from front to back. Pieces are
    /// decoded one after another on this thread; an object that can only be decoded as a whole is, on
    /// `threads`.
    pub(crate) fn pieces(
        &self,
        id: &ContentId,
        range: Range<u64>,
        threads: usize,
        mut each: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let len = self.get(id)?.of.len()?;
        check_range(len, range.start, range.end.saturating_sub(range.start))?;
        let whole = range == (0..len);
        match self.decoder(id, 0)? {
            Decoder::Whole(storage, coding) if self.local && !coding.is_sequential() => {
                self.each_piece(range, each, |range, out| storage.read(&self.sources, range, out, 1))
            }
            // From a store, everything is fetched at once.
            Decoder::Chain(chain) if !chain.sequential && (whole || self.local) => chain
                .with_parts(whole, |parts| {
                    self.each_piece(range, each, |range, out| chain.decode_parts(parts, range, out, 1))
                }),
            _ => {
                let buffer = self.pooled(id, threads)?;
                let done = each(range.start, &buffer[range.start as usize..range.end as usize]);
                self.pool.put(buffer);
                done
            }
        }
    }

    fn each_piece(
        &self,
        range: Range<u64>,
        mut each: impl FnMut(u64, &[u8]) -> Result<()>,
        mut decode: impl FnMut(Range<u64>, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let mut buffer =
            self.pool.take((range.end - range.start).min(RESTORED_PIECE + RESTORED_PIECE / 2))?;
        let mut start = range.start;
        while start < range.end {
            // What is left for the last piece is not too short.
            let end = match range.end - start {
                left if left <= RESTORED_PIECE + RESTORED_PIECE / 2 => range.end,
                _ => start + RESTORED_PIECE,
            };
            let piece = &mut buffer[..(end - start) as usize];
            decode(start..end, piece)?;
            each(start, piece)?;
            start = end;
        }
        self.pool.put(buffer);
        Ok(())
    }

    /// Passes all bytes of an object on, with their places in it. That they are those of its id is certain
    /// only when this returns.
    pub(crate) fn restore(
        &self,
        id: &ContentId,
        threads: usize,
        mut each: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let of = &self.get(id)?.of;
        let mut hasher = TensorHasher::new(of.dtype, &of.shape)?;
        self.pieces(id, 0..of.len()?, threads, |place, bytes| {
            hasher.update(bytes)?;
            each(place, bytes)
        })?;
        check_id(id, &hasher.finish()?)
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

/// Refuses bytes that are not those of an id.
pub(crate) fn check_id(id: &ContentId, found: &ContentId) -> Result<()> {
    match found == id {
        true => Ok(()),
        false => Err(Error::mismatch(format!(
            "the object {id} decodes to the id {found}: it is damaged or forged"
        ))),
    }
}

/// How an object is decoded.
enum Decoder {
    Whole(Storage, Coding),
    Chain(Chain),
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
    /// From the root on.
    links: Vec<Link>,
    sources: Arc<Sources>,
    pool: Arc<BufferPool>,
    stored: u64,
    /// Whether a part of it can only be decoded from its start on.
    sequential: bool,
}

/// What a chain is decoded from: its differences, parsed, and the root where that was fetched with them.
struct Parts<'a> {
    deltas: Vec<Option<ParsedDelta<'a>>>,
    root: Option<&'a [u8]>,
}

/// Stored bytes of a chain.
struct Fetched<'a> {
    /// The frames of all differences, in order.
    frames: Vec<Cow<'a, [u8]>>,
    /// What the root is stored as, where that was fetched with them.
    root: Option<Cow<'a, [u8]>>,
}

impl Chain {
    /// Fetches and parses what the object, or a part of it, is decoded from.
    fn with_parts<T>(&self, whole: bool, then: impl FnOnce(&Parts<'_>) -> Result<T>) -> Result<T> {
        let Fetched { frames, root } = self.fetch(whole)?;
        let mut frames = frames.iter();
        let mut deltas = Vec::with_capacity(self.links.len());
        for link in &self.links {
            deltas.push(match link.change() {
                Some(_) => {
                    let frame = frames.next().ok_or_else(|| Error::invalid("a frame is missing"))?;
                    Some(ParsedDelta::parse(frame).map_err(broken_frame)?)
                }
                None => None,
            });
        }
        then(&Parts { deltas, root: root.as_deref() })
    }

    fn decode_parts(
        &self,
        parts: &Parts<'_>,
        range: Range<u64>,
        out: &mut [u8],
        threads: usize,
    ) -> Result<()> {
        // What is needed of each object, from this one back to the root.
        let mut ranges = vec![range];
        for (link, delta) in self.links.iter().zip(&parts.deltas).rev() {
            let needed = link.needed(delta.as_ref(), &ranges[ranges.len() - 1])?;
            ranges.push(needed);
        }
        ranges.reverse();
        let len = |range: &Range<u64>| range.end.saturating_sub(range.start);
        let mut before = self.pool.take(len(&ranges[0]))?;
        let needed = &mut before[..len(&ranges[0]) as usize];
        if !needed.is_empty() {
            self.read_root(parts.root, ranges[0].clone(), needed, threads)?;
        }
        let last = self.links.len() - 1;
        for (index, (link, delta)) in self.links.iter().zip(&parts.deltas).enumerate() {
            let from = &before[..len(&ranges[index]) as usize];
            let range = ranges[index + 1].clone();
            if index == last {
                link.make(delta.as_ref(), from, range, out, &self.sources, threads)?;
                break;
            }
            let mut next = self.pool.take(len(&range))?;
            let place = &mut next[..len(&range) as usize];
            if !place.is_empty() {
                link.make(delta.as_ref(), from, range, place, &self.sources, threads)?;
            }
            self.pool.put(std::mem::replace(&mut before, next));
        }
        self.pool.put(before);
        Ok(())
    }

    /// The frames of all differences. Those in a store are fetched at the same time; so is the root, if
    /// all of the object is wanted.
    fn fetch(&self, whole: bool) -> Result<Fetched<'_>> {
        let mut extents: Vec<Extent> = self.links.iter().filter_map(Link::change).collect();
        let count = extents.len();
        let mut connections = None;
        for extent in &extents {
            connections = connections
                .max(self.sources.get(extent.source)?.remote().map(|remote| remote.budget().connections));
        }
        let remote = connections.is_some();
        let decodes = match &self.root {
            Storage::Encoded(decoder) => decoder.stored().is_some(),
            storage => matches!(storage, Storage::Plain(_)),
        };
        extents.extend(self.root.extent().filter(|_| remote && whole && decodes));
        let slots: Vec<_> = extents.iter().map(|_| std::sync::OnceLock::new()).collect();
        parallel::for_each(
            connections.unwrap_or(1),
            extents.iter().zip(&slots).collect(),
            |(extent, slot)| {
                let _ = slot.set(self.sources.bytes(*extent)?); // it is empty until now
                Ok(())
            },
        )?;
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

    /// Makes bytes `range`, all of `out`, from what is [needed](Link::needed) of the object before.
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
                if (start, end) == (range.start, range.end) {
                    cast.apply(before, out);
                    return Ok(());
                }
                let mut whole = zeroed(end - start)?;
                cast.apply(before, &mut whole);
                out.copy_from_slice(&whole[(range.start - start) as usize..][..out.len()]);
                Ok(())
            }
            (How::Delta { common, rest, .. }, Some(delta)) => {
                let part = range.start.min(*common)..range.end.min(*common);
                let (first, second) = out.split_at_mut((part.end - part.start) as usize);
                let options = decode_options(*common, threads);
                if !first.is_empty() {
                    // What is before was made by decoders that compare checksums, as this one does.
                    delta.restore_bytes(before, part, first, &options).map_err(broken_frame)?;
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
        self.with_parts(whole, |parts| self.decode_parts(parts, range, out, threads))
    }
}
