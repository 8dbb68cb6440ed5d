//! Ids of what a file holds: streamed, on several threads, in bounded memory.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;

use super::description::{Description, HashedPart, parameters, type_name};
use super::tensor::{masked, unused_bits};
use super::tree::{SUBTREE, Tree};
use super::{ContentId, model_id, object_id};
use crate::base::parallel;
use crate::catalog::{Component, ContentKey, Extent, Layout, Object, Storage};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::progress::{Observer, advance};
use crate::read::Reader;
use crate::source::zeroed;

/// Bytes of raw content that are hashed at a time: few enough to stay in the processor's cache
/// where they have to be read. (case: benchmark/identity.py, raw)
const RAW_PIECE: u64 = SUBTREE as u64;

/// Bytes that are decoded and hashed at a time. A chunk of the codec that lies across the border of
/// two pieces is decoded twice. (case: benchmark/identity.py, packed)
const DECODED_PIECE: u64 = 16 << 20;

/// Components that are fetched together from a remote file, at most.
const STAGED: usize = 256;

/// The ids of all tensors of a file, and of the whole.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContentIds {
    /// The id of the model.
    pub model: ContentId,
    /// Names and ids, in the order of the file.
    pub tensors: Vec<(String, ContentId)>,
}

/// Where ids come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Evidence {
    /// All bytes are read and hashed: the id is that of what is there.
    #[default]
    Bytes,
    /// BLAKE3 digests that a file stores for raw components are taken as they are, and their bytes
    /// not read: the id is that of what the file says it holds.
    StoredDigests,
}

impl Reader {
    /// The id of the model in this file: [`model_id`] of the ids of all its tensors.
    ///
    /// Every byte is read, a piece at a time on all threads. Digests that the file stores are not
    /// compared: an id of damaged bytes is another id. (Encodings that check themselves do.)
    pub fn content_id(&self) -> Result<ContentId> {
        Ok(self.content_ids(Evidence::Bytes, None)?.model)
    }

    /// The ids of all tensors and of the model. The observer hears of bytes as they are in memory.
    pub fn content_ids(&self, evidence: Evidence, observer: Option<&dyn Observer>) -> Result<ContentIds> {
        let names: Vec<&str> = self.keys().collect();
        let ids = self.ids_of(&names, evidence, observer)?;
        Ok(ContentIds {
            model: model_id(names.iter().copied().zip(ids.iter().copied())),
            tensors: names.into_iter().map(str::to_owned).zip(ids).collect(),
        })
    }

    /// The id of one tensor.
    pub fn tensor_content_id(&self, name: &str) -> Result<ContentId> {
        let ids = self.ids_of(&[name], Evidence::Bytes, None)?;
        ids.into_iter().next().ok_or_else(|| Error::not_found("no tensor, no id"))
    }

    fn ids_of(
        &self,
        names: &[&str],
        evidence: Evidence,
        observer: Option<&dyn Observer>,
    ) -> Result<Vec<ContentId>> {
        self.check_limits(names.iter().copied())?;
        let mut hashes = Hashes::new(self, evidence);
        for &name in names {
            let object = self.get(name)?;
            if !is_sparse(object) {
                hashes.add(name, object)?;
            }
        }
        hashes.run(observer)?;
        let sparse = names.iter().filter(|name| self.get(name).is_ok_and(is_sparse)).copied().collect();
        let sparse = self.sparse_ids(sparse, observer)?;
        names
            .iter()
            .map(|&name| match sparse.get(name) {
                Some(id) => Ok(*id),
                None => hashes.id(self.get(name)?).map_err(|error| self.at(name, error)),
            })
            .collect()
    }

    /// Sparse tensors are put in order, which takes all of one in memory.
    fn sparse_ids<'a>(
        &self,
        names: Vec<&'a str>,
        observer: Option<&dyn Observer>,
    ) -> Result<HashMap<&'a str, ContentId>> {
        let mut ids = HashMap::new();
        for name in names {
            let tensor = self.read_object(name)?;
            ids.insert(name, object_id(&tensor).map_err(|error| self.at(name, error))?);
            advance(observer, self.get(name)?.byte_len())?;
        }
        Ok(ids)
    }
}

fn is_sparse(object: &Object) -> bool {
    matches!(object.layout, Layout::SparseCsr | Layout::SparseCoo)
}

/// BLAKE3 hashes of components, each content hashed once.
struct Hashes<'r> {
    reader: &'r Reader,
    evidence: Evidence,
    /// What is hashed, in the order of the files.
    contents: Vec<Content<'r>>,
    /// Which of them a component is: by its address, as it is borrowed from the catalog.
    places: HashMap<*const Component, usize>,
    by_key: HashMap<ContentKey<'r>, usize>,
}

/// The bytes of a component.
struct Content<'r> {
    name: &'r str,
    component: &'r Component,
    /// Bits of the last byte that are taken as 0.
    unused: u32,
    hash: OnceLock<[u8; 32]>,
    /// Where pieces are gathered, if there are several.
    tree: Option<Tree>,
}

impl<'r> Hashes<'r> {
    fn new(reader: &'r Reader, evidence: Evidence) -> Hashes<'r> {
        Hashes { reader, evidence, contents: Vec::new(), places: HashMap::new(), by_key: HashMap::new() }
    }

    fn add(&mut self, name: &str, object: &'r Object) -> Result<()> {
        // The name as the catalog has it, which lives as long as the reader.
        let (_, name, _) = self
            .reader
            .catalog()
            .objects
            .get_full(name)
            .ok_or_else(|| Error::not_found("the catalog has no such tensor"))?;
        for (_, component) in &object.components {
            let unused = match object.layout {
                Layout::Dense if component.unknown_type.is_none() => {
                    unused_bits(component.dtype, &object.shape)
                }
                _ => 0,
            };
            let key = component.content_key().filter(|_| unused == 0);
            let place = match key.and_then(|key| self.by_key.get(&key)) {
                Some(place) => *place,
                None => {
                    let place = self.contents.len();
                    key.map(|key| self.by_key.insert(key, place));
                    let hash = OnceLock::new();
                    if let Some(stored) = self.stored(component).filter(|_| unused == 0) {
                        let _ = hash.set(stored);
                    }
                    self.contents.push(Content { name, component, unused, hash, tree: None });
                    place
                }
            };
            self.places.insert(std::ptr::from_ref(component), place);
        }
        Ok(())
    }

    /// The hash that the file stores for raw bytes, if that is to be believed.
    fn stored(&self, component: &Component) -> Option<[u8; 32]> {
        match (&component.digest, &component.storage, self.evidence) {
            (Some(Digest::Blake3(hash)), Storage::Plain(_), Evidence::StoredDigests) => Some(**hash),
            _ => None,
        }
    }

    /// Hashes all of them.
    fn run(&mut self, observer: Option<&dyn Observer>) -> Result<()> {
        let (reader, threads) = (self.reader, parallel::resolve(self.reader.options().threads));
        let mut order: Vec<usize> = (0..self.contents.len()).collect();
        order.sort_by_key(|&index| self.contents[index].component.extent());
        order.retain(|&index| self.contents[index].hash.get().is_none());
        let far = |content: &Content<'_>| reader.is_remote(content.component);
        let mut jobs: Vec<(usize, Range<u64>)> = Vec::new();
        for &index in &order {
            let content = &mut self.contents[index];
            let len = content.component.len;
            let piece = piece_len(content.component, far(content));
            if len > piece && threads > 1 {
                content.tree = Some(Tree::new(len)?);
                jobs.extend((0..len).step_by(piece as usize).map(|at| (index, at..len.min(at + piece))));
            } else {
                jobs.push((index, 0..len));
            }
        }
        let contents = &self.contents;
        let work = |(index, range): (usize, Range<u64>)| {
            let content: &Content<'_> = &contents[index];
            let bytes = range.end - range.start;
            content.hash_range(reader, range).map_err(|error| reader.at(content.name, error))?;
            advance(observer, bytes)
        };
        // What is remote comes in batches, so that small tensors are not a request each.
        let (remote, local): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|(index, _)| far(&contents[*index]));
        parallel::for_each(threads, local, work)?;
        for batch in remote.chunks(STAGED) {
            let mut names: Vec<&str> = batch.iter().map(|(index, _)| contents[*index].name).collect();
            names.dedup();
            let staged = reader.stage(&names)?;
            parallel::for_each(threads, batch.to_vec(), work)?;
            drop(staged);
        }
        for content in &mut self.contents {
            if let Some(tree) = content.tree.take() {
                let hash = tree.hash().map_err(|error| reader.at(content.name, error))?;
                let _ = content.hash.set(hash);
            }
        }
        Ok(())
    }

    /// The id of an object whose components were hashed.
    fn id(&self, object: &Object) -> Result<ContentId> {
        let components = object.components.iter().map(|(role, component)| {
            let place = self.places.get(&std::ptr::from_ref(component));
            let hash = place.and_then(|place| self.contents[*place].hash.get());
            Ok(HashedPart {
                role: role.clone(),
                type_name: type_name(component.dtype, component.unknown_type.as_deref()),
                len: component.len,
                hash: *hash.ok_or_else(|| Error::invalid("a component was not hashed"))?,
            })
        });
        let description = Description {
            layout: Cow::Owned(object.layout.name().to_owned()),
            shape: object.shape.clone(),
            parameters: parameters(&object.layout, object.attributes.as_deref())?,
            components: components.collect::<Result<_>>()?,
        };
        Ok(description.id())
    }
}

/// The bytes of a component that one thread hashes at a time; all of them where there is no way to
/// start in the middle.
fn piece_len(component: &Component, far: bool) -> u64 {
    match &component.storage {
        Storage::Plain(_) if far => DECODED_PIECE,
        Storage::Plain(_) | Storage::Inline(_) => RAW_PIECE,
        Storage::Encoded(decoder) => {
            let middle = DECODED_PIECE.min(component.len)..(2 * DECODED_PIECE).min(component.len);
            let cheap = decoder.work(&middle) <= (middle.end - middle.start).saturating_mul(3) / 2;
            if cheap { DECODED_PIECE } else { u64::MAX }
        }
    }
}

impl Content<'_> {
    /// Hashes a piece, or all of it.
    fn hash_range(&self, reader: &Reader, range: Range<u64>) -> Result<()> {
        let whole = range == (0..self.component.len);
        let sources = &reader.catalog().sources;
        match (&self.component.storage, whole) {
            (Storage::Inline(bytes), true) => self.finish(&[bytes]),
            (Storage::Plain(extent), false) => {
                let offset = extent.offset.saturating_add(range.start);
                let piece = Extent { offset, len: range.end - range.start, ..*extent };
                sources.with_whole(piece, |bytes| self.add(range, bytes))
            }
            // Short content is decoded at once, which is faster.
            (Storage::Encoded(decoder), true) if self.component.len > DECODED_PIECE => {
                let mut hasher = Sequential::new(self);
                match decoder.decode_in_order(sources, &mut |bytes| hasher.update(bytes)) {
                    Some(decoded) => decoded.and_then(|()| hasher.finish()),
                    None => self.hash_pieces(reader),
                }
            }
            (_, true) => self.hash_pieces(reader),
            (storage, false) => {
                let mut bytes = zeroed(range.end - range.start)?;
                storage.read(sources, range.clone(), &mut bytes, 1)?;
                self.add(range, &bytes)
            }
        }
    }

    /// Hashes all of it in one thread, a piece at a time where there is a way into the middle.
    fn hash_pieces(&self, reader: &Reader) -> Result<()> {
        let len = self.component.len;
        let step = piece_len(self.component, false).min(len).max(1);
        let mut hasher = Sequential::new(self);
        let sources = &reader.catalog().sources;
        if let Storage::Plain(extent) = self.component.storage {
            if reader.is_remote(self.component) {
                sources.for_pieces(extent, reader.options().threads, |piece| hasher.update(piece))?;
                return hasher.finish();
            }
            for skip in (0..len).step_by(RAW_PIECE as usize) {
                let offset = extent.offset.saturating_add(skip);
                let piece = Extent { offset, len: RAW_PIECE.min(len - skip), ..extent };
                sources.with_whole(piece, |bytes| hasher.update(bytes))?;
            }
            return hasher.finish();
        }
        let mut buffer = zeroed(step)?;
        for start in (0..len).step_by(step as usize) {
            let piece = &mut buffer[..step.min(len - start) as usize];
            let range = start..start + piece.len() as u64;
            self.component.storage.read(sources, range, piece, 1)?;
            hasher.update(piece)?;
        }
        hasher.finish()
    }

    /// Takes a piece in memory.
    fn add(&self, range: Range<u64>, bytes: &[u8]) -> Result<()> {
        let Some(tree) = &self.tree else { return self.finish(&[bytes]) };
        self.component.dtype.check_values(bytes)?;
        match bytes.split_last() {
            Some((last, before)) if self.unused > 0 && range.end == self.component.len => {
                let mut copy = before.to_vec();
                copy.push(masked(*last, self.unused));
                tree.add(range.start, &copy)
            }
            _ => tree.add(range.start, bytes),
        }
    }

    /// Takes all of it in memory.
    fn finish(&self, pieces: &[&[u8]]) -> Result<()> {
        let mut hasher = Sequential::new(self);
        pieces.iter().try_for_each(|piece| hasher.update(piece))?;
        hasher.finish()
    }
}

/// All bytes of a component, in order.
struct Sequential<'c, 'r> {
    content: &'c Content<'r>,
    hasher: blake3::Hasher,
    seen: u64,
}

impl<'c, 'r> Sequential<'c, 'r> {
    fn new(content: &'c Content<'r>) -> Sequential<'c, 'r> {
        Sequential { content, hasher: blake3::Hasher::new(), seen: 0 }
    }

    fn update(&mut self, bytes: &[u8]) -> Result<()> {
        let Content { component, unused, .. } = self.content;
        component.dtype.check_values(bytes)?;
        self.seen = self.seen.saturating_add(bytes.len() as u64);
        match bytes.split_last() {
            Some((last, before)) if *unused > 0 && self.seen == component.len => {
                self.hasher.update(before).update(&[masked(*last, *unused)]);
            }
            _ => {
                self.hasher.update(bytes);
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<()> {
        let len = self.content.component.len;
        if self.seen != len {
            let message = format!("{} bytes were decoded where {len} are declared", self.seen);
            return Err(Error::corrupt("component.uncompressed-length", message));
        }
        let _ = self.content.hash.set(*self.hasher.finalize().as_bytes());
        Ok(())
    }
}
