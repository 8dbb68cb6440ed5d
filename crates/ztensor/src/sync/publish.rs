//! Publishing versions: what changed since the last one, written so that it appears whole.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{BuildHasher, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::chain::Anchors;
use super::checksum::{ChecksumFormat, xxh3};
use super::index::{Encoding, Extras, INDEX_NAME, Index, Kind, PayloadCompression, TensorEntry};
use super::patch;
use super::payload::{self, MAX_OVERWRITE, TensorType};
use super::stream::{BASE_VERSION, Layout, Stream, version_name, version_number};
use crate::base::parallel;
use crate::catalog::Shape;
use crate::dtype::DType;
use crate::error::{Error, Result, quoted};
use crate::format::shards::is_plain_name;
use crate::id::{ContentId, model_id, tensor_id};
use crate::read::Reader;
use crate::remote::store;
use crate::tensor::Tensor;
use crate::trusted;
use crate::write::atomic::{rename_folder_new, scratch_folder, sync_folder};
use crate::write::destination::Destination;
use crate::write::export::{ExportFormat, ExportOptions, TensorList, export, export_to};

/// Bytes of payloads or tensors per shard.
const SHARD_LEN: u64 = 4 << 30;
/// The lock of a stream's folder, which a publisher holds while it writes a version.
const LOCK: &str = ".publish.lock";

/// How versions are published.
#[derive(Debug, Clone)]
pub struct PublishOptions {
    /// What payloads of zstd deltas are.
    pub encoding: Encoding,
    /// How payloads are compressed.
    pub compression: PayloadCompression,
    /// The checksum of each tensor's new state.
    pub checksum: ChecksumFormat,
    /// When a full version is published instead of a delta.
    pub anchors: Anchors,
    /// A folder whose configuration and tokenizer files full versions get.
    pub files_from: Option<PathBuf>,
    /// Threads to use; 0 is one per core. The bytes written do not depend on it.
    pub threads: usize,
    /// Wait until the disk has a version before it appears.
    pub durable: bool,
    /// Replace shards in a store that belong to no version: what a publisher left that was killed.
    pub replace_unfinished: bool,
}

impl Default for PublishOptions {
    fn default() -> Self {
        PublishOptions {
            encoding: Encoding::Xor,
            compression: PayloadCompression::Zstd,
            checksum: ChecksumFormat::Xxh3,
            anchors: Anchors::default(),
            files_from: None,
            threads: 0,
            durable: true,
            replace_unfinished: false,
        }
    }
}

/// What was published.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Published {
    /// The version.
    pub version: String,
    /// Whether it is a full one, and why.
    pub full: Option<&'static str>,
    /// Tensors that changed.
    pub changed: usize,
    /// Bytes of all files of the version.
    pub bytes: u64,
    /// Bytes of all tensors.
    pub total: u64,
    /// The encoding of its payloads: `xor` where `overwrite` cannot address a tensor.
    pub encoding: Encoding,
    /// Content id of the model.
    pub target_id: ContentId,
}

/// A tensor to publish.
#[derive(Debug, Clone)]
pub struct TensorInput<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its element type.
    pub dtype: DType,
    /// Its shape.
    pub shape: Shape,
    /// Its bytes, little-endian and in row-major order. They are read once.
    pub bytes: &'a [u8],
}

/// The state of a tensor that was published last.
struct Kept {
    of: TensorType,
    bytes: Vec<u8>,
    id: ContentId,
}

/// A changed tensor, encoded.
struct Encoded {
    rank: usize,
    payload: Vec<u8>,
    digest: String,
    entry: TensorEntry,
}

/// A version that is being made.
#[derive(Default)]
struct Draft {
    tensors: BTreeMap<String, Encoded>,
    seen: BTreeSet<String>,
    /// Tensors that came, or changed their type or shape.
    structural: bool,
}

/// A delta that is encoded, and perhaps not written yet.
struct Ready {
    version: String,
    index: Index,
    shards: Vec<(String, Vec<(String, Encoded)>)>,
    removed: Vec<String>,
}

/// Publishes versions of a model, one after another.
///
/// It keeps the state that was published last, and compares each new state with it. One publisher
/// writes a stream at a time.
pub struct Publisher {
    stream: Arc<Stream>,
    options: PublishOptions,
    version: String,
    stream_id: String,
    kept: BTreeMap<String, Mutex<Kept>>,
    draft: Option<Draft>,
    /// Encoded, but not written because of an error: it is written before the next one.
    ready: Option<Ready>,
    /// Why the next version has to be a full one.
    full_next: Option<&'static str>,
    /// Number and bytes of the deltas since the last full version.
    since_full: (u64, u64),
    /// Buffers of replaced states, for those of the next tensors.
    pool: Mutex<Vec<Vec<u8>>>,
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Publisher({}, version {})", self.stream.root().display(), self.version)
    }
}

impl Publisher {
    /// A publisher for a stream whose newest version is the model in `base`; version 0, if there is
    /// none yet.
    pub fn new(stream: impl Into<Arc<Stream>>, base: &Reader, options: PublishOptions) -> Result<Publisher> {
        let kept = Mutex::new(BTreeMap::new());
        parallel::for_each(options.threads, base.keys().collect(), |name| {
            let object = base.get(name)?;
            let dtype = checked_type(name, object.dtype(), &object.layout)?;
            let of = TensorType { dtype, shape: object.shape.clone() };
            let bytes = base.read(name)?;
            let id = tensor_id(of.dtype, &of.shape, &bytes).map_err(|error| error.in_tensor(name))?;
            if let Ok(mut kept) = kept.lock() {
                kept.insert(name.to_owned(), Mutex::new(Kept { of, bytes, id }));
            }
            Ok(())
        })?;
        Self::with_state(stream.into(), kept.into_inner().unwrap_or_default(), options)
    }

    /// The same from tensors in memory.
    pub fn from_tensors(
        stream: impl Into<Arc<Stream>>,
        base: &[TensorInput<'_>],
        options: PublishOptions,
    ) -> Result<Publisher> {
        let mut kept = BTreeMap::new();
        for tensor in base {
            let of = TensorType { dtype: tensor.dtype, shape: tensor.shape.clone() };
            let bytes = tensor.bytes.to_vec();
            let id = tensor_id(of.dtype, &of.shape, &bytes).map_err(|error| error.in_tensor(tensor.name))?;
            if kept.insert(tensor.name.to_owned(), Mutex::new(Kept { of, bytes, id })).is_some() {
                return Err(Error::invalid("two tensors have this name").in_tensor(tensor.name));
            }
        }
        Self::with_state(stream.into(), kept, options)
    }

    fn with_state(
        stream: Arc<Stream>,
        kept: BTreeMap<String, Mutex<Kept>>,
        options: PublishOptions,
    ) -> Result<Publisher> {
        if stream.layout() == Layout::SkyRl {
            return Err(Error::unsupported("streams of SkyRL are read, not written"));
        }
        if options.checksum == ChecksumFormat::Sha256 {
            return Err(Error::unsupported("sha256 is no checksum of this format"));
        }
        let mut publisher = Publisher {
            version: BASE_VERSION.to_owned(),
            stream_id: random_id(),
            kept,
            draft: None,
            ready: None,
            full_next: None,
            since_full: (0, 0),
            pool: Mutex::default(),
            stream,
            options,
        };
        publisher.resume()?;
        Ok(publisher)
    }

    /// Continues a stream that has versions already.
    fn resume(&mut self) -> Result<()> {
        let versions = self.stream.versions()?;
        let Some(newest) = versions.last() else { return Ok(()) };
        if self.stream.layout() == Layout::Named {
            return Ok(()); // their order is known to the caller: see `start_from`
        }
        self.start_from(newest)
    }

    /// Says which version of the stream the state is: for streams whose versions have no order.
    pub fn start_from(&mut self, version: &str) -> Result<()> {
        version.clone_into(&mut self.version);
        let Some(newest) = self.stream.version(version)? else { return Ok(()) };
        match &newest.index.extras {
            Some(extras) => {
                let ours = self.target_id();
                if let Some(target) = extras.target_id
                    && target != ours
                {
                    return Err(Error::mismatch(format!(
                        "the stream's version {version} is the model {target}, the state given is {ours}: \
                         give the state of its newest version"
                    ))
                    .in_file(self.stream.root()));
                }
                self.stream_id.clone_from(&extras.stream_id);
            }
            // Nothing says that the state is that version: a full one needs no predecessor.
            None => self.full_next = Some("the version before does not say what it is"),
        }
        let mut at = Some(newest);
        while let Some(version) = at {
            let Some(base) = self.stream.base_name(&version) else { break };
            self.since_full.0 += 1;
            self.since_full.1 += version.len;
            at = match base == BASE_VERSION {
                true => None,
                false => self.stream.version(&base)?,
            };
        }
        Ok(())
    }

    /// The version that was published last.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The stream that it publishes to.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// The random name of this run's versions.
    pub fn stream_id(&self) -> &str {
        &self.stream_id
    }

    /// Content id of the model that was published last.
    pub fn target_id(&self) -> ContentId {
        model_id(self.kept.iter().filter_map(|(name, kept)| Some((name.as_str(), kept.lock().ok()?.id))))
    }

    /// Publishes a state that lies in memory.
    pub fn publish(&mut self, tensors: &[TensorInput<'_>]) -> Result<Published> {
        self.begin()?;
        self.add(tensors, 0)?;
        self.finish(None, false)
    }

    /// Publishes the model in a file or folder.
    pub fn publish_reader(&mut self, model: &Reader) -> Result<Published> {
        self.publish_reader_as(model, None, false)
    }

    /// The same, under a name and as a full version if asked for.
    pub fn publish_reader_as(&mut self, model: &Reader, name: Option<&str>, full: bool) -> Result<Published> {
        const TOGETHER: u64 = 256 << 20;
        self.begin()?;
        let mut rest: Vec<&str> = model.keys().collect();
        while !rest.is_empty() {
            let mut bytes = 0u64;
            let fits = |name: &&&str| {
                let first = bytes == 0;
                bytes += model.get(name).map_or(0, |object| object.byte_len()).max(1);
                first || bytes <= TOGETHER
            };
            let after = rest.split_off(rest.iter().take_while(fits).count().max(1));
            let mut batch = Vec::new();
            for name in &rest {
                let object = model.get(name)?;
                let dtype = checked_type(name, object.dtype(), &object.layout)?;
                let bytes = match model.view(name) {
                    Ok(bytes) => Cow::Borrowed(bytes),
                    Err(_) => Cow::Owned(model.read(name)?), // not stored as it is
                };
                batch.push((*name, dtype, object.shape.clone(), bytes));
            }
            let inputs: Vec<_> = batch
                .iter()
                .map(|(name, dtype, shape, bytes)| TensorInput {
                    name,
                    dtype: *dtype,
                    shape: shape.clone(),
                    bytes,
                })
                .collect();
            self.add(&inputs, 0)?;
            rest = after;
        }
        self.finish(name, full)
    }

    /// Begins a version; [`add`](Publisher::add) gives its tensors.
    pub fn begin(&mut self) -> Result<()> {
        self.adopt()?;
        if let Some(ready) = self.ready.take() {
            self.write_delta(ready)?;
        }
        if self.draft.is_some() {
            self.full_next = Some("the version before was not finished");
        }
        self.draft = Some(Draft::default());
        Ok(())
    }

    /// After an error: the version may have become visible all the same, if only the last sync of
    /// the folder or the answer of the store failed.
    fn adopt(&mut self) -> Result<()> {
        if self.stream.layout() == Layout::Named || (self.ready.is_none() && self.full_next.is_none()) {
            return Ok(());
        }
        let Some(newest) = self.stream.newest()?.filter(|newest| *newest != self.version) else {
            return Ok(());
        };
        let Some(version) = self.stream.version(&newest)? else { return Ok(()) };
        let ours = version.index.extras.as_ref().is_some_and(|extras| {
            extras.stream_id == self.stream_id && extras.target_id == Some(self.target_id())
        });
        if ours {
            self.since_full = match version.base() {
                Some(_) => (self.since_full.0 + 1, self.since_full.1 + version.len),
                None => (0, 0),
            };
            (self.version, self.ready, self.full_next) = (newest, None, None);
        }
        Ok(())
    }

    /// Whether `overwrite` can address all tensors.
    fn encoding(&self) -> Encoding {
        let large =
            |kept: &Mutex<Kept>| kept.lock().is_ok_and(|kept| kept.bytes.len() as u64 > MAX_OVERWRITE);
        match self.options.encoding {
            Encoding::Overwrite if self.kept.values().any(large) => Encoding::Xor,
            encoding => encoding,
        }
    }

    /// Adds tensors of the version that was begun. Those of one `rank` go into one shard. A tensor
    /// may come again, from another rank, with the same bytes.
    pub fn add(&mut self, tensors: &[TensorInput<'_>], rank: usize) -> Result<()> {
        let Some(mut draft) = self.draft.take() else {
            return Err(Error::invalid("begin a version before adding tensors to it"));
        };
        let added = self.add_to(&mut draft, tensors, rank);
        if added.is_err() {
            // Some tensors were taken over: the next version must not build on the last one.
            self.full_next = Some("the version before was not finished");
        } else {
            self.draft = Some(draft);
        }
        added
    }

    fn add_to(&mut self, draft: &mut Draft, tensors: &[TensorInput<'_>], rank: usize) -> Result<()> {
        let encoding = self.encoding();
        let (mut known, mut new, mut names) = (Vec::new(), Vec::new(), HashSet::new());
        for tensor in tensors {
            let at = |error: Error| error.in_tensor(tensor.name);
            let of = TensorType { dtype: tensor.dtype, shape: tensor.shape.clone() };
            check_input(tensor).map_err(at)?;
            if draft.seen.contains(tensor.name) || !names.insert(tensor.name) {
                let same = self
                    .kept
                    .get(tensor.name)
                    .and_then(|kept| kept.lock().ok())
                    .is_some_and(|kept| kept.of == of && kept.bytes == tensor.bytes);
                if !same || !draft.seen.contains(tensor.name) {
                    return Err(at(Error::invalid("it comes twice, with different bytes or in one batch")));
                }
                continue;
            }
            let same_type =
                self.kept.get(tensor.name).is_some_and(|kept| kept.lock().is_ok_and(|kept| kept.of == of));
            if same_type { known.push(tensor) } else { new.push((tensor, of)) }
        }
        for (tensor, of) in new {
            draft.structural = true;
            draft.seen.insert(tensor.name.to_owned());
            let bytes = tensor.bytes.to_vec();
            let id = tensor_id(of.dtype, &of.shape, &bytes).map_err(|error| error.in_tensor(tensor.name))?;
            if self.options.compression == PayloadCompression::Z4ai {
                let payload = payload::encode_whole(&of, &bytes, self.options.threads)?;
                let elements = crate::catalog::elements(&of.shape);
                let entry = TensorEntry {
                    dtype: of.dtype,
                    shape: of.shape.clone(),
                    base: None,
                    target: id,
                    payload: xxh3(&payload),
                    changed: elements,
                    norm: None,
                };
                let digest = self.options.checksum.of(&bytes);
                draft.tensors.insert(tensor.name.to_owned(), Encoded { rank, payload, digest, entry });
            }
            self.kept.insert(tensor.name.to_owned(), Mutex::new(Kept { of, bytes, id }));
        }
        known.sort_by_key(|tensor| std::cmp::Reverse(tensor.bytes.len()));
        draft.seen.extend(known.iter().map(|tensor| tensor.name.to_owned()));
        let made = Mutex::new(Vec::new());
        // A single large tensor is encoded by several threads, many tensors by one each.
        let inner = if known.len() > 1 { 1 } else { self.options.threads };
        parallel::for_each(self.options.threads, known, |tensor| {
            let encoded =
                self.encode(tensor, rank, encoding, inner).map_err(|error| error.in_tensor(tensor.name))?;
            if let (Some(encoded), Ok(mut made)) = (encoded, made.lock()) {
                made.push((tensor.name.to_owned(), encoded));
            }
            Ok(())
        })?;
        draft.tensors.extend(made.into_inner().unwrap_or_default());
        Ok(())
    }

    /// Encodes what changed of a tensor and keeps its new state; `None` if nothing did.
    fn encode(
        &self,
        tensor: &TensorInput<'_>,
        rank: usize,
        encoding: Encoding,
        threads: usize,
    ) -> Result<Option<Encoded>> {
        let poisoned = || Error::invalid("a thread that published this tensor panicked");
        let kept = self.kept.get(tensor.name).ok_or_else(poisoned)?;
        let mut kept = kept.lock().map_err(|_| poisoned())?;
        if kept.bytes == tensor.bytes {
            return Ok(None);
        }
        // The caller's memory may be changing: everything below is of one copy of it.
        let mut new = self.buffer(tensor.bytes.len());
        new.extend_from_slice(tensor.bytes);
        let (old, of) = (&kept.bytes[..], &kept.of);
        let change = patch::change(of.dtype, old, &new);
        if change.elements == 0 {
            return Ok(None); // it was changing, and is the same again
        }
        let payload = payload::encode(self.options.compression, encoding, of, old, &new, threads)?;
        let target = tensor_id(of.dtype, &of.shape, &new)?;
        let entry = TensorEntry {
            dtype: of.dtype,
            shape: of.shape.clone(),
            base: Some(kept.id),
            target,
            payload: xxh3(&payload),
            changed: Some(change.elements),
            norm: change
                .squares
                .filter(|squares| squares.is_finite())
                .map(|squares| format!("{:e}", squares.sqrt())),
        };
        let digest = self.options.checksum.of(&new);
        let old = std::mem::replace(&mut kept.bytes, new);
        kept.id = target;
        self.give_back(old);
        Ok(Some(Encoded { rank, payload, digest, entry }))
    }

    /// A buffer of an earlier state, if one is about as large as needed: fresh memory costs more
    /// than a copy.
    fn buffer(&self, len: usize) -> Vec<u8> {
        let fits = |buffer: &Vec<u8>| buffer.capacity() >= len && buffer.capacity() / 2 <= len;
        let found = self.pool.lock().ok().and_then(|mut pool| {
            let at = pool.iter().position(fits)?;
            Some(pool.swap_remove(at))
        });
        let mut buffer = found.unwrap_or_else(|| Vec::with_capacity(len));
        buffer.clear();
        buffer
    }

    fn give_back(&self, buffer: Vec<u8>) {
        let most = 2 * parallel::resolve(self.options.threads);
        if let Ok(mut pool) = self.pool.lock() {
            if pool.len() >= most {
                pool.remove(0);
            }
            pool.push(buffer);
        }
    }

    /// Publishes the tensors that were added, under the next number, or under `name`.
    pub fn finish(&mut self, name: Option<&str>, full: bool) -> Result<Published> {
        let Some(draft) = self.draft.take() else {
            return Err(Error::invalid("begin a version before finishing it"));
        };
        let version = match (self.stream.layout(), name) {
            (Layout::Named, Some(name)) if is_plain_name(name) && !name.starts_with('.') => name.to_owned(),
            (Layout::Named, Some(name)) => {
                return Err(Error::invalid(format!("{} cannot be the name of a version", quoted(name))));
            }
            (Layout::Named, None) => return Err(Error::invalid("versions of this stream need names")),
            (_, Some(_)) => return Err(Error::invalid("versions of this stream are numbered")),
            (_, None) => {
                let number = version_number(&self.version).and_then(|number| number.checked_add(1));
                version_name(number.ok_or_else(|| Error::invalid("there are no more version numbers"))?)
            }
        };
        let removed: Vec<String> =
            self.kept.keys().filter(|name| !draft.seen.contains(*name)).cloned().collect();
        let z4ai = self.options.compression == PayloadCompression::Z4ai;
        let payloads: u64 = draft.tensors.values().map(|encoded| encoded.payload.len() as u64).sum();
        let total: u64 =
            self.kept.values().filter_map(|kept| Some(kept.lock().ok()?.bytes.len() as u64)).sum();
        let reason = if full {
            Some("asked for")
        } else if let Some(reason) = self.full_next {
            Some(reason)
        } else if (draft.structural || !removed.is_empty()) && !z4ai {
            Some("tensors were added, removed or resized")
        } else if self.options.anchors.due(self.since_full.0, self.since_full.1 + payloads, total) {
            Some("an anchor is due")
        } else {
            None
        };
        // Until it is written, the next one has to be a full one.
        let pending = self.full_next.replace("the version before could not be written");
        let published = match reason {
            Some(reason) => self.write_full(&version, &removed, draft.tensors.len(), reason)?,
            None => {
                self.full_next = pending;
                let ready = self.delta(version, draft, removed);
                self.write_delta(ready)?
            }
        };
        Ok(published)
    }

    /// The files of a delta.
    fn delta(&mut self, version: String, draft: Draft, removed: Vec<String>) -> Ready {
        let mut groups: BTreeMap<(usize, u64), Vec<(String, Encoded)>> = BTreeMap::new();
        let mut filled: BTreeMap<usize, u64> = BTreeMap::new();
        let (mut tensors, mut base_ids) = (BTreeMap::new(), BTreeMap::new());
        for (name, encoded) in draft.tensors {
            let len = filled.entry(encoded.rank).or_default();
            *len += encoded.payload.len() as u64;
            tensors.insert(name.clone(), encoded.entry.clone());
            base_ids.insert(name.clone(), encoded.entry.base);
            groups.entry((encoded.rank, *len / SHARD_LEN)).or_default().push((name, encoded));
        }
        let count = groups.len();
        let shards: Vec<_> = groups
            .into_values()
            .enumerate()
            .map(|(at, tensors)| (format!("model-{at:05}-of-{count:05}.safetensors"), tensors))
            .collect();
        let weight_map = shards
            .iter()
            .flat_map(|(file, tensors)| tensors.iter().map(move |(name, _)| (name.clone(), file.clone())))
            .collect();
        let old = self.kept.iter().filter_map(|(name, kept)| {
            let id = match base_ids.get(name) {
                Some(base) => (*base)?, // added: not in the base
                None => kept.lock().ok()?.id,
            };
            Some((name.as_str(), id))
        });
        let base_id = model_id(old);
        for name in &removed {
            self.kept.remove(name);
        }
        let index = Index {
            version: Some(version.clone()),
            kind: Kind::Delta {
                base: self.version.clone(),
                encoding: self.encoding(),
                compression: self.options.compression,
                checksum: self.options.checksum,
            },
            weight_map,
            extras: Some(Extras {
                stream_id: self.stream_id.clone(),
                // A resized tensor has another state in the base than any that is kept.
                base_id: (!draft.structural).then_some(base_id),
                target_id: Some(self.target_id()),
                tensors,
                removed: removed.iter().cloned().collect(),
                shards: BTreeMap::new(),
            }),
        };
        Ready { version, index, shards, removed }
    }

    /// Writes a delta; one that could not be written is kept for the next attempt.
    fn write_delta(&mut self, mut ready: Ready) -> Result<Published> {
        let written = self.try_write_delta(&mut ready);
        if let Err(error) = written {
            self.ready = Some(ready);
            return Err(error);
        }
        let bytes = written?;
        let Ready { version, index, .. } = ready;
        let encoding = match index.kind {
            Kind::Delta { encoding, .. } => encoding,
            Kind::Full { .. } => self.options.encoding,
        };
        self.since_full = (self.since_full.0 + 1, self.since_full.1 + bytes);
        self.version.clone_from(&version);
        Ok(Published {
            version,
            full: None,
            changed: index.weight_map.len(),
            bytes,
            total: self.total(),
            encoding,
            target_id: self.target_id(),
        })
    }

    fn try_write_delta(&self, ready: &mut Ready) -> Result<u64> {
        let target = Target::create(&self.stream, &ready.version, &self.version, &self.options)?;
        let mut bytes = 0;
        let mut lens = BTreeMap::new();
        for (file, tensors) in &ready.shards {
            let mut list = TensorList::default();
            for (name, encoded) in tensors {
                list.attributes.insert(name.clone(), encoded.digest.as_str().into());
                let payload = &encoded.payload[..];
                let tensor = Tensor::from_bytes(&[payload.len() as u64][..], DType::U8, payload)?;
                list.tensors.push((name.clone(), tensor));
            }
            let len = target.shard(file, &list)?;
            lens.insert(file.clone(), len);
            bytes += len;
        }
        if let Some(extras) = &mut ready.index.extras {
            extras.shards = lens;
        }
        let text = ready.index.to_json();
        target.finish(&text)?;
        debug_assert!(ready.removed.iter().all(|name| !self.kept.contains_key(name)));
        Ok(bytes + text.len() as u64)
    }

    fn total(&self) -> u64 {
        self.kept.values().filter_map(|kept| Some(kept.lock().ok()?.bytes.len() as u64)).sum()
    }

    fn write_full(
        &mut self,
        version: &str,
        removed: &[String],
        changed: usize,
        reason: &'static str,
    ) -> Result<Published> {
        for name in removed {
            self.kept.remove(name);
        }
        let target = Target::create(&self.stream, version, &self.version, &self.options)?;
        let (total, target_id) = (self.total(), self.target_id());
        let named = self.stream.layout() == Layout::Named;
        let mut groups: Vec<Vec<(&String, &Kept)>> = vec![Vec::new()];
        let mut filled = 0;
        for (name, kept) in &mut self.kept {
            let kept = &*kept.get_mut().map_err(|_| Error::invalid("a publishing thread panicked"))?;
            let len = kept.bytes.len() as u64;
            if filled > 0 && filled + len > SHARD_LEN {
                groups.push(Vec::new());
                filled = 0;
            }
            filled += len;
            if let Some(group) = groups.last_mut() {
                group.push((name, kept));
            }
        }
        let count = groups.len();
        let (mut weight_map, mut tensors, mut shards) =
            (indexmap::IndexMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut bytes = 0;
        for (at, group) in groups.into_iter().enumerate() {
            let file = format!("model-{:05}-of-{count:05}.safetensors", at + 1);
            let mut list = TensorList::default();
            if !named {
                list.attributes.insert("format".to_owned(), "pt".into());
            }
            for (name, kept) in group {
                if named {
                    let digest = self.options.checksum.of(&kept.bytes);
                    list.attributes.insert(name.clone(), digest.into());
                }
                let entry = TensorEntry {
                    dtype: kept.of.dtype,
                    shape: kept.of.shape.clone(),
                    base: None,
                    target: kept.id,
                    payload: xxh3(&kept.bytes),
                    changed: None,
                    norm: None,
                };
                tensors.insert(name.clone(), entry);
                weight_map.insert(name.clone(), file.clone());
                let TensorType { dtype, shape } = kept.of.clone();
                list.tensors.push((name.clone(), Tensor::from_bytes(shape, dtype, &kept.bytes[..])?));
            }
            let len = target.shard(&file, &list)?;
            shards.insert(file, len);
            bytes += len;
        }
        if let Some(from) = &self.options.files_from {
            bytes += target.copy_files(from)?;
        }
        let index = Index {
            version: Some(version.to_owned()),
            kind: Kind::Full { checksum: named.then_some(self.options.checksum) },
            weight_map,
            extras: Some(Extras {
                stream_id: self.stream_id.clone(),
                base_id: None,
                target_id: Some(target_id),
                tensors,
                removed: BTreeSet::new(),
                shards,
            }),
        };
        let text = index.to_json();
        target.finish(&text)?;
        self.full_next = None;
        self.since_full = (0, 0);
        version.clone_into(&mut self.version);
        let bytes = bytes + text.len() as u64;
        let encoding = self.options.encoding;
        let version = version.to_owned();
        Ok(Published { version, full: Some(reason), changed, bytes, total, encoding, target_id })
    }
}

/// A type that safetensors files can hold, of a dense tensor.
fn checked_type(name: &str, dtype: Option<DType>, layout: &crate::catalog::Layout) -> Result<DType> {
    match dtype {
        Some(dtype) if *layout == crate::catalog::Layout::Dense && dtype.safetensors_name().is_some() => {
            Ok(dtype)
        }
        _ => {
            let message = "streams hold dense tensors of the types that safetensors files have";
            Err(Error::unsupported(message).in_tensor(name))
        }
    }
}

fn check_input(tensor: &TensorInput<'_>) -> Result<()> {
    checked_type(tensor.name, Some(tensor.dtype), &crate::catalog::Layout::Dense)?;
    let bits = crate::catalog::elements(&tensor.shape)
        .and_then(|count| count.checked_mul(tensor.dtype.bits().into()));
    match bits == Some(tensor.bytes.len() as u64 * 8) {
        true => Ok(()),
        false => {
            let (shape, len) = (&tensor.shape, tensor.bytes.len());
            Err(Error::invalid(format!(
                "{len} bytes are not a tensor of {} and shape {shape:?}",
                tensor.dtype
            )))
        }
    }
}

/// 128 random bits as text.
fn random_id() -> String {
    let bits = || std::collections::hash_map::RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", bits(), bits())
}

/// Where a version is written: a folder that gets its name when it is complete, or a prefix of a
/// store whose index comes last.
pub(crate) struct Target<'a> {
    stream: &'a Stream,
    folder: String,
    options: &'a PublishOptions,
    local: Option<Local>,
}

struct Local {
    root: PathBuf,
    /// The folder until it is complete; removed when it is dropped.
    scratch: PathBuf,
    _lock: std::fs::File,
}

impl Drop for Local {
    fn drop(&mut self) {
        // Nothing is there once it has its name.
        let _ = std::fs::remove_dir_all(&self.scratch);
    }
}

impl<'a> Target<'a> {
    /// A version that follows `last`, which must be the newest.
    fn create(
        stream: &'a Stream,
        version: &str,
        last: &str,
        options: &'a PublishOptions,
    ) -> Result<Target<'a>> {
        let target = Self::begin(stream, stream.folder(version), options)?;
        if stream.layout() != Layout::Named {
            let newest = stream.newest()?.unwrap_or_else(|| BASE_VERSION.to_owned());
            if newest != last {
                return Err(Error::mismatch(format!(
                    "the newest version of the stream is {newest}, this publisher's is {last}: \
                     another publisher writes to it"
                ))
                .in_file(stream.root()));
            }
        }
        Ok(target)
    }

    /// Any new folder of a stream.
    pub(crate) fn begin(
        stream: &'a Stream,
        folder: String,
        options: &'a PublishOptions,
    ) -> Result<Target<'a>> {
        let local = match stream.local()? {
            None => None,
            Some(root) => Some(Local::create(root, &folder)?),
        };
        Ok(Target { stream, folder, options, local })
    }

    /// Writes a shard; how many bytes it has.
    pub(crate) fn shard(&self, file: &str, list: &TensorList<'_>) -> Result<u64> {
        let options =
            ExportOptions::default().durable(self.options.durable).remote(self.stream.remote().clone());
        if let Some(local) = &self.local {
            let path = local.scratch.join(file);
            export(list, Destination::derived(&local.scratch, file)?, ExportFormat::Safetensors, &options)?;
            let metadata = std::fs::metadata(&path)
                .map_err(|error| Error::io("cannot examine", error).in_file(&path))?;
            return Ok(metadata.len());
        }
        let path = self.stream.path(&self.folder, file);
        const IN_MEMORY: u64 = 256 << 20;
        let total: u64 = list
            .tensors
            .iter()
            .filter_map(|(_, tensor)| Some(tensor.component("data")?.bytes.len() as u64))
            .sum();
        if total > IN_MEMORY {
            export(list, &path, ExportFormat::Safetensors, &options)?;
            let len = store::len(&path, self.stream.remote())?;
            return len.ok_or_else(|| Error::not_found("the shard is gone").in_file(&path));
        }
        let mut bytes = Vec::new();
        export_to(list, &mut bytes, ExportFormat::Safetensors, &options)?;
        self.put(file, &bytes)?;
        Ok(bytes.len() as u64)
    }

    /// Writes an object that must not be there, or be the same.
    fn put(&self, file: &str, bytes: &[u8]) -> Result<()> {
        let path = self.stream.path(&self.folder, file);
        let remote = self.stream.remote();
        if store::write_new(&path, bytes, remote)? {
            return Ok(());
        }
        if store::len(&path, remote)? == Some(bytes.len() as u64)
            && store::read(&path, bytes.len() as u64, remote)? == bytes
        {
            return Ok(()); // written by an attempt that failed later
        }
        if self.options.replace_unfinished
            && file != INDEX_NAME
            && !store::exists(self.stream.path(&self.folder, INDEX_NAME), remote)?
        {
            return store::write(&path, bytes, remote);
        }
        let cause = std::io::Error::new(
            std::io::ErrorKind::AlreadyExists,
            "another publisher wrote it, or one was killed: replace_unfinished replaces what has no index",
        );
        Err(Error::io("this is there already, with other bytes", cause).in_file(&path))
    }

    /// Copies the plain files of a model's folder that hold no tensors.
    fn copy_files(&self, from: &Path) -> Result<u64> {
        const LARGEST: u64 = 256 << 20;
        let mut total = 0;
        for entry in store::list(from, &Default::default())? {
            let tensors = [".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".zt", ".index.json"];
            let plain = is_plain_name(&entry.name) && !entry.name.starts_with('.');
            if !plain || tensors.iter().any(|end| entry.name.ends_with(end)) || entry.len > LARGEST {
                continue;
            }
            let bytes = store::read(store::join(from, &entry.name), LARGEST, &Default::default())?;
            match &self.local {
                Some(local) => self.write_local(local, &entry.name, &bytes)?,
                None => self.put(&entry.name, &bytes)?,
            }
            total += bytes.len() as u64;
        }
        Ok(total)
    }

    fn write_local(&self, local: &Local, file: &str, bytes: &[u8]) -> Result<()> {
        let mut new =
            store::NewFile::create(Destination::derived(&local.scratch, file)?, &Default::default())?;
        new.write(bytes)?;
        new.finish(self.options.durable)
    }

    /// Writes the index and makes the version visible.
    pub(crate) fn finish(self, index: &str) -> Result<()> {
        let Some(local) = &self.local else { return self.put(INDEX_NAME, index.as_bytes()) };
        self.write_local(local, INDEX_NAME, index.as_bytes())?;
        if self.options.durable {
            sync_folder(&local.scratch.join(INDEX_NAME))?;
        }
        let to = local.root.join(&self.folder);
        rename_folder_new(&local.scratch, &to)?;
        if self.options.durable {
            sync_folder(&to)?;
        }
        Ok(())
    }
}

impl Local {
    fn create(root: PathBuf, folder: &str) -> Result<Local> {
        let failed = |error| Error::io("cannot create", error).in_file(&root);
        std::fs::create_dir_all(&root).map_err(failed)?;
        let lock = lock(&root)?;
        let prefix = format!(".{folder}.");
        // Left by publishers that were killed: with the lock held, none is at work.
        for entry in std::fs::read_dir(&root).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let ours =
                name.starts_with(".weight_v") || name.starts_with(".fold_v") || name.starts_with(&prefix);
            if ours && name.ends_with(".tmp") {
                let _ = std::fs::remove_dir_all(entry.path()); // it is not in the way
            }
        }
        let scratch = scratch_folder(&root, &prefix)?;
        use std::os::unix::fs::PermissionsExt;
        // As readable as other new folders: the random one is private.
        let readable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&scratch, readable).map_err(failed)?;
        Ok(Local { root, scratch, _lock: lock })
    }
}

/// Takes the lock of a stream's folder.
fn lock(root: &Path) -> Result<std::fs::File> {
    use rustix::fs::{FlockOperation, flock};
    let path = root.join(LOCK);
    let failed = |error| Error::io("cannot lock", error).in_file(&path);
    let file = trusted::append(&path).map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let cause = std::io::Error::new(std::io::ErrorKind::WouldBlock, "another publisher is at work");
            Err(failed(cause))
        }
        Err(error) => Err(failed(error.into())),
    }
}
