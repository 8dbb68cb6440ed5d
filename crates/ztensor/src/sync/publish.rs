//! Publishing versions: what changed since the last one, written so that it appears whole.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{BuildHasher, Hasher as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use self::snapshot::{Advanced, Kept, PayloadFormat};
use self::write::Ready;
use super::chain::Anchors;
use super::checksum::{ChecksumFormat, xxh3};
use super::index::{Encoding, PayloadCompression, TensorEntry};
use super::payload::{self, MAX_OVERWRITE, TensorType};
use super::stream::{BASE_VERSION, Layout, Stream, version_name, version_number};
use crate::base::parallel;
use crate::catalog::Shape;
use crate::dtype::DType;
use crate::error::{Error, Result, quoted};
use crate::format::shards::is_plain_name;
use crate::id::{ContentId, model_id};
use crate::read::Reader;

mod snapshot;
mod write;

/// How versions are published.
#[derive(Debug, Clone)]
pub struct PublishOptions {
    /// What payloads of zstd deltas are.
    pub encoding: Encoding,
    /// How payloads are compressed.
    pub compression: PayloadCompression,
    /// The checksum of each tensor's new state. By default XXH3-128, which other receivers know; with z4ai, which they
    /// do not, BLAKE3, which is computed for the content ids anyway.
    pub checksum: Option<ChecksumFormat>,
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
    /// A folder for the state that was published last: it is kept in mapped files without names there, and not
    /// in memory.
    pub snapshot_folder: Option<PathBuf>,
}

impl PublishOptions {
    /// The checksum of each tensor.
    pub(crate) fn checksum(&self) -> ChecksumFormat {
        self.checksum.unwrap_or(match self.compression {
            PayloadCompression::Z4ai => ChecksumFormat::Blake3,
            PayloadCompression::Zstd => ChecksumFormat::Xxh3,
        })
    }
}

impl Default for PublishOptions {
    fn default() -> Self {
        PublishOptions {
            encoding: Encoding::Xor,
            compression: PayloadCompression::Zstd,
            checksum: None,
            anchors: Anchors::default(),
            files_from: None,
            threads: 0,
            durable: true,
            replace_unfinished: false,
            snapshot_folder: None,
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
    /// Buffers for payloads, one per thread: encoders reserve as much as a tensor takes, and fresh memory would have
    /// to be cleared.
    buffers: Mutex<Vec<Vec<u8>>>,
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
            let state = Kept::new(of, base.read(name)?, options.snapshot_folder.as_deref())
                .map_err(|error| error.in_tensor(name))?;
            if let Ok(mut kept) = kept.lock() {
                kept.insert(name.to_owned(), Mutex::new(state));
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
            let state = Kept::new(of, tensor.bytes.to_vec(), options.snapshot_folder.as_deref())
                .map_err(|error| error.in_tensor(tensor.name))?;
            if kept.insert(tensor.name.to_owned(), Mutex::new(state)).is_some() {
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
        if options.checksum() == ChecksumFormat::Sha256 {
            return Err(Error::unsupported("this format has no sha256 checksums"));
        }
        let mut publisher = Publisher {
            version: BASE_VERSION.to_owned(),
            stream_id: random_id(),
            kept,
            draft: None,
            ready: None,
            full_next: None,
            since_full: (0, 0),
            buffers: Mutex::default(),
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
                    .is_some_and(|kept| kept.of == of && *kept.bytes == *tensor.bytes);
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
            let kept = Kept::new(of, tensor.bytes.to_vec(), self.options.snapshot_folder.as_deref())
                .map_err(|error| error.in_tensor(tensor.name))?;
            if self.options.compression == PayloadCompression::Z4ai {
                let payload = payload::encode_whole(&kept.of, &kept.bytes, self.options.threads)?;
                let elements = crate::catalog::elements(&kept.of.shape);
                let entry = TensorEntry {
                    dtype: kept.of.dtype,
                    shape: kept.of.shape.clone(),
                    base: None,
                    target: kept.id,
                    payload: xxh3(&payload),
                    changed: elements,
                    norm: None,
                };
                let digest = self.options.checksum().of(&kept.bytes);
                draft.tensors.insert(tensor.name.to_owned(), Encoded { rank, payload, digest, entry });
            }
            self.kept.insert(tensor.name.to_owned(), Mutex::new(kept));
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
        let compression = self.options.compression;
        let format = PayloadFormat { compression, encoding, checksum: self.options.checksum() };
        let mut buffer = self.buffers.lock().ok().and_then(|mut free| free.pop()).unwrap_or_default();
        let advanced = kept.advance(tensor.bytes, format, threads, &mut buffer)?;
        if let Ok(mut free) = self.buffers.lock() {
            free.push(buffer);
        }
        let Some(advanced) = advanced else { return Ok(None) };
        let Advanced { payload, change, base, digest } = advanced;
        let entry = TensorEntry {
            dtype: kept.of.dtype,
            shape: kept.of.shape.clone(),
            base: Some(base),
            target: kept.id,
            payload: xxh3(&payload),
            changed: Some(change.elements),
            norm: change
                .squares
                .filter(|squares| squares.is_finite())
                .map(|squares| format!("{:e}", squares.sqrt())),
        };
        Ok(Some(Encoded { rank, payload, digest, entry }))
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
        let total = self.total();
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

    /// Bytes of all tensors.
    fn total(&self) -> u64 {
        self.kept.values().filter_map(|kept| Some(kept.lock().ok()?.bytes.len() as u64)).sum()
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
