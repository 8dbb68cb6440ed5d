//! Tensors in memory as the target of a stream.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use z4ai::delta::ParsedDelta;

use super::checksum::{ChecksumFormat, Hasher};
use super::deltas::{Deltas, check_base, check_target};
use super::index::{Encoding, Index, Kind, PayloadCompression};
use super::patch::{self, Patcher, WindowPatch};
use super::payload;
use super::plan::{self, Way};
use super::state::{Known, Ledger};
use super::stream::{BASE_VERSION, Payload, Stream, Version, version_number};
use crate::base::parallel;
use crate::catalog::{Shape, Storage};
use crate::decode::{broken_frame, decode_options};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::id::tensor_id;

/// A tensor in memory that a stream changes.
#[derive(Debug)]
pub struct LiveTensor<'a> {
    /// Its name in the stream.
    pub name: &'a str,
    /// Its element type.
    pub dtype: DType,
    /// Its shape.
    pub shape: Shape,
    /// Its bytes, little-endian and in row-major order.
    pub bytes: &'a mut [u8],
}

/// Elements of a tensor that a version changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SparseChange {
    /// The tensor's name.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// Its shape.
    pub shape: Shape,
    /// Positions of the changed elements in row-major order.
    pub positions: Vec<u64>,
    /// Their new values, little-endian.
    pub values: Vec<u8>,
}

/// What tensors in memory hold: which version of which stream.
#[derive(Debug, Clone)]
pub struct MemoryTarget {
    ledger: Ledger,
}

/// What an apply to memory did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The version now.
    pub version: String,
    /// The names of the tensors that changed.
    pub changed: BTreeSet<String>,
    /// Bytes of the stream that were read.
    pub read: u64,
}

/// A window of a tensor that changes: where it begins, its length, and its patch.
struct Part {
    start: usize,
    len: usize,
    patch: Vec<u8>,
}

impl Part {
    fn new(window: WindowPatch<'_>) -> Part {
        Part { start: window.start as usize, len: window.len as usize, patch: window.patch.concat() }
    }
}

impl Default for MemoryTarget {
    fn default() -> Self {
        MemoryTarget::new(BASE_VERSION)
    }
}

impl MemoryTarget {
    /// Tensors that hold `version`.
    pub fn new(version: &str) -> MemoryTarget {
        MemoryTarget { ledger: Ledger { version: version.to_owned(), ..Ledger::default() } }
    }

    /// The version that the tensors hold.
    pub fn version(&self) -> &str {
        &self.ledger.version
    }

    fn way(&self, stream: &Stream, version: Option<&str>) -> Result<(String, Way)> {
        let listing = stream.list_for(version)?;
        let want = match version {
            Some(version) => match version_number(version) {
                Some(number) if stream.layout() != super::stream::Layout::Named => {
                    super::stream::version_name(number)
                }
                _ => version.to_owned(),
            },
            None => stream.versions_in(&listing).pop().unwrap_or_else(|| self.ledger.version.clone()),
        };
        let newer = version_number(&self.ledger.version) > version_number(&want);
        if newer && stream.layout() != super::stream::Layout::Named {
            let held = &self.ledger.version;
            return Err(Error::mismatch(format!("the tensors are at version {held}, newer than {want}")));
        }
        let headless = |folder: &str| -> Result<Index> {
            let message = "the version has no index";
            Err(Error::corrupt("sync.no-index", message)
                .in_file(stream.path(folder, super::index::INDEX_NAME)))
        };
        let have = [self.ledger.version.clone()];
        let way = plan::way(stream, &listing, &have, &want, headless)?;
        let theirs = way.versions.last().and_then(|version| version.index.extras.as_ref());
        if let (Some(_), Some(ours), Some(theirs)) = (&way.from, &self.ledger.stream_id, theirs)
            && *ours != theirs.stream_id
        {
            return Err(Error::mismatch("the tensors hold a version of another run"));
        }
        Ok((want, way))
    }

    /// Brings the tensors to a version, the newest if `None`.
    ///
    /// With `atomic` all tensors change or none: deltas that can be inverted are undone on an error, the results of
    /// the others are verified for all tensors first. Without it each tensor changes whole or not at all, and an
    /// error may leave some changed: they are then to be loaded anew.
    pub fn pull(
        &mut self,
        stream: &Stream,
        tensors: &mut [LiveTensor<'_>],
        version: Option<&str>,
        atomic: bool,
        threads: usize,
    ) -> Result<Applied> {
        let (want, way) = self.way(stream, version)?;
        let mut applied = Applied { version: want, changed: BTreeSet::new(), read: 0 };
        let split = usize::from(way.from.is_none());
        for full in &way.versions[..split] {
            self.apply_full(stream, full, tensors, threads, &mut applied)?;
        }
        if way.versions.len() > split {
            self.apply_deltas(stream, &way.versions[split..], tensors, atomic, threads, &mut applied)?;
        }
        Ok(applied)
    }

    /// Checks the base of deltas; what they lead to.
    fn next(&self, deltas: &Deltas<'_>, tensors: &[LiveTensor<'_>], version: &str) -> Result<Ledger> {
        let by_name: BTreeMap<&str, &LiveTensor<'_>> =
            tensors.iter().map(|tensor| (tensor.name, tensor)).collect();
        check_base(deltas, Some(&self.ledger))?;
        for name in deltas.by_tensor.keys() {
            let tensor = by_name.get(name).ok_or_else(|| {
                Error::mismatch("no tensor of this name was given, which the delta changes").in_tensor(*name)
            })?;
            if let Some((dtype, shape)) = deltas.type_of(name)
                && (dtype, shape) != (tensor.dtype, &tensor.shape)
            {
                let message = "the version changes its type or shape: load the checkpoint again";
                return Err(Error::mismatch(message).in_tensor(*name));
            }
        }
        if let Some(name) = deltas.removed().into_iter().find(|name| by_name.contains_key(name)) {
            let message = "the version does not have this tensor any more: load the checkpoint again";
            return Err(Error::mismatch(message).in_tensor(name));
        }
        let mut next = self.ledger.clone();
        for name in by_name.keys() {
            next.tensors.entry((*name).to_owned()).or_default();
        }
        for name in deltas.by_tensor.keys() {
            next.tensors.insert((*name).to_owned(), deltas.known(name)?);
        }
        check_target(deltas, &next)?;
        next.version = version.to_owned();
        next.stream_id = deltas.stream_id().map(str::to_owned).or(next.stream_id);
        Ok(next)
    }

    fn apply_deltas(
        &mut self,
        stream: &Stream,
        versions: &[std::sync::Arc<Version>],
        tensors: &mut [LiveTensor<'_>],
        atomic: bool,
        threads: usize,
        applied: &mut Applied,
    ) -> Result<()> {
        let deltas = Deltas::open(stream, versions, threads)?;
        let next = self.next(&deltas, tensors, &applied.version)?;
        let names: BTreeSet<&str> = deltas.by_tensor.keys().copied().collect();
        let mut live: Vec<&mut LiveTensor<'_>> =
            tensors.iter_mut().filter(|tensor| names.contains(tensor.name)).collect();
        live.sort_by_key(|tensor| std::cmp::Reverse(tensor.bytes.len()));
        if atomic {
            apply_all(&deltas, live, threads)?;
        } else {
            parallel::for_each(threads, live, |tensor| {
                deltas.change(tensor.name)?.apply(&deltas, tensor.name, tensor.bytes)
            })?;
        }
        applied.changed.extend(names.into_iter().map(str::to_owned));
        applied.read += deltas.len();
        self.ledger = next;
        Ok(())
    }

    fn apply_full(
        &mut self,
        stream: &Stream,
        version: &Version,
        tensors: &mut [LiveTensor<'_>],
        threads: usize,
        applied: &mut Applied,
    ) -> Result<()> {
        let map = &version.index.weight_map;
        if map.len() != tensors.len() || !tensors.iter().all(|tensor| map.contains_key(tensor.name)) {
            let message = "the full version has other tensors than were given: load the checkpoint again";
            return Err(Error::mismatch(message));
        }
        let mut shards = BTreeMap::new();
        for file in map.values().collect::<BTreeSet<_>>() {
            shards.insert(file, stream.shard(version, file)?);
        }
        let extras = version.index.extras.as_ref();
        let made = Mutex::new(BTreeMap::new());
        parallel::for_each(threads, tensors.iter().collect(), |tensor| {
            let at = |error: Error| error.in_tensor(tensor.name);
            let shard = &shards[&map[tensor.name]];
            let object = shard
                .catalog()
                .objects
                .get(tensor.name)
                .ok_or_else(|| at(Error::corrupt("sync.tensor", "the shard does not have it")))?;
            let component = object.require("data").map_err(at)?;
            if (component.dtype, &object.shape) != (tensor.dtype, &tensor.shape) {
                return Err(at(Error::mismatch("the full version has it with another type or shape")));
            }
            let Storage::Plain(extent) = component.storage else {
                return Err(at(Error::unsupported("it is not stored as it is")));
            };
            let new = shard.catalog().sources.bytes(extent)?;
            let id = tensor_id(tensor.dtype, &tensor.shape, &new)?;
            let target = extras.and_then(|extras| extras.tensors.get(tensor.name));
            if target.is_some_and(|entry| entry.target != id) {
                return Err(at(Error::mismatch("it does not have the content id that the index names")));
            }
            if let Kind::Full { checksum: Some(format) } = version.index.kind
                && format.of(&new) != shard.digest(tensor.name, format)?
            {
                return Err(at(Error::mismatch(format!("its {format} checksum differs"))));
            }
            let mut parts = Vec::new();
            let mut patcher = Patcher::new(payload::element_size(tensor.dtype), 0, tensor.bytes.len() as u64);
            patcher.add(0, [&*tensor.bytes, &new], None, &mut |window| {
                parts.push(Part::new(window));
                Ok(())
            })?;
            if let Ok(mut made) = made.lock() {
                made.insert(tensor.name, (id, parts));
            }
            Ok(())
        })?;
        let made = made.into_inner().unwrap_or_default();
        for tensor in tensors.iter_mut() {
            let (id, parts) = &made[tensor.name];
            if !parts.is_empty() {
                applied.changed.insert(tensor.name.to_owned());
            }
            write(parts, tensor.bytes)?;
            let known = Known { id: Some(*id), checksum: None };
            self.ledger.tensors.insert(tensor.name.to_owned(), known);
        }
        applied.read += version.len;
        self.ledger.version.clone_from(&version.name);
        self.ledger.stream_id = extras.map(|extras| extras.stream_id.clone());
        Ok(())
    }

    /// The elements that a version changes, tensor by tensor, without changing anything. The
    /// result stands for the tensors once the caller has taken over all of it.
    pub fn sparse_changes(
        &self,
        stream: &Stream,
        tensors: &[LiveTensor<'_>],
        version: Option<&str>,
        mut each: impl FnMut(SparseChange) -> Result<()>,
    ) -> Result<MemoryTarget> {
        let (want, way) = self.way(stream, version)?;
        if way.from.is_none() {
            let message = "only a full version leads there: load the checkpoint again";
            return Err(Error::mismatch(message));
        }
        if way.versions.is_empty() {
            return Ok(self.clone());
        }
        let deltas = Deltas::open(stream, &way.versions, 0)?;
        let next = self.next(&deltas, tensors, &want)?;
        for tensor in tensors.iter().filter(|tensor| deltas.by_tensor.contains_key(tensor.name)) {
            let size = tensor.dtype.size().unwrap_or(1);
            let (mut positions, mut values) = (Vec::new(), Vec::new());
            deltas.restore(tensor.name, Some(tensor.bytes), tensor.bytes.len() as u64, |at, old, new| {
                let pairs = old.unwrap_or_default().chunks(size).zip(new.chunks(size));
                for (index, (_, now)) in pairs.enumerate().filter(|(_, (before, now))| before != now) {
                    positions.push(at / size as u64 + index as u64);
                    values.extend_from_slice(now);
                }
                Ok(())
            })?;
            let (name, shape) = (tensor.name.to_owned(), tensor.shape.clone());
            each(SparseChange { name, dtype: tensor.dtype, shape, positions, values })?;
        }
        Ok(MemoryTarget { ledger: next })
    }
}

/// Changes all tensors or none.
fn apply_all(deltas: &Deltas<'_>, live: Vec<&mut LiveTensor<'_>>, threads: usize) -> Result<()> {
    let prepared = Mutex::new((Vec::new(), Vec::new()));
    parallel::for_each(threads, live, |tensor| {
        let change = deltas.change(tensor.name)?.prepared(deltas, tensor.name, tensor.bytes)?;
        if let Ok(mut prepared) = prepared.lock() {
            let undoable = matches!(change, Change::Xor { .. } | Change::Invertible { .. });
            let list = if undoable { &mut prepared.0 } else { &mut prepared.1 };
            list.push((change, tensor));
        }
        Ok(())
    })?;
    let (undoable, mut checked) = prepared.into_inner().unwrap_or_default();
    // In reverse order: what was checked last is still in the caches.
    checked.reverse();
    let applied = Mutex::new(Vec::new());
    let result = parallel::for_each(threads, undoable, |(change, tensor)| {
        change.apply(deltas, tensor.name, tensor.bytes)?;
        if let Ok(mut applied) = applied.lock() {
            applied.push((change, tensor));
        }
        Ok(())
    });
    if result.is_err() {
        let applied = applied.into_inner().unwrap_or_default();
        parallel::for_each(threads, applied, |(change, tensor)| change.undo(tensor.bytes))?;
        return result;
    }
    parallel::for_each(threads, checked, |(change, tensor)| change.apply(deltas, tensor.name, tensor.bytes))
}

/// How one tensor is changed.
enum Change {
    /// One z4ai delta, which is applied in place: its result is verified before the first byte changes.
    Delta { frame: Vec<u8>, verified: bool },
    /// One z4ai delta that is applied in place in one pass, and can be undone.
    Invertible { frame: Vec<u8> },
    /// One XOR, which is applied in place and undoes itself.
    Xor { payload: Vec<u8>, checksum: ChecksumFormat, digest: String },
    /// Anything else: parts that differ are found first, and written then.
    Parts(Option<Vec<Part>>),
}

impl Deltas<'_> {
    fn change(&self, name: &str) -> Result<Change> {
        let [only] = self.by_tensor.get(name).map_or(&[][..], Vec::as_slice) else {
            return Ok(Change::Parts(None));
        };
        let Kind::Delta { compression, encoding, .. } = *self.kind(*only) else {
            return Ok(Change::Parts(None));
        };
        let xor = (compression, encoding) == (PayloadCompression::Zstd, Encoding::Xor);
        if !xor && compression != PayloadCompression::Z4ai {
            return Ok(Change::Parts(None));
        }
        let Payload { bytes, checksum, digest } = self.payload(*only, name)?;
        Ok(match xor {
            true => Change::Xor { payload: bytes, checksum, digest },
            false if !z4ai::delta::is_delta(&bytes) => Change::Parts(None),
            false => match ParsedDelta::parse(&bytes).is_ok_and(|delta| delta.is_invertible()) {
                true => Change::Invertible { frame: bytes },
                false => Change::Delta { frame: bytes, verified: false },
            },
        })
    }
}

impl Change {
    /// Checks, before any tensor changes, what cannot be undone.
    fn prepared(self, deltas: &Deltas<'_>, name: &str, old: &[u8]) -> Result<Change> {
        match self {
            Change::Delta { frame, .. } => {
                verify(&frame, old).map_err(|error| error.in_tensor(name))?;
                Ok(Change::Delta { frame, verified: true })
            }
            Change::Xor { .. } | Change::Invertible { .. } => Ok(self),
            Change::Parts(_) => Ok(Change::Parts(Some(changes(deltas, name, old)?))),
        }
    }

    /// Changes a tensor; on an error it is as it was.
    fn apply(&self, deltas: &Deltas<'_>, name: &str, bytes: &mut [u8]) -> Result<()> {
        let at = |error: Error| error.in_tensor(name);
        match self {
            Change::Delta { frame, verified } => {
                if !verified {
                    verify(frame, bytes).map_err(at)?;
                }
                let options = decode_options(bytes.len() as u64, 1);
                let applied =
                    ParsedDelta::parse(frame).and_then(|delta| delta.apply_verified(bytes, &options));
                applied.map_err(|error| at(broken_frame(error)))
            }
            Change::Invertible { frame } => {
                let options = decode_options(bytes.len() as u64, 1);
                let applied = ParsedDelta::parse(frame).and_then(|delta| delta.apply(bytes, &options));
                applied.map_err(|error| at(broken_frame(error)))
            }
            Change::Xor { payload, checksum, digest } => {
                let mut hasher = Some(checksum.hasher());
                payload::xor_in_place(payload, bytes, &mut hasher).map_err(at)?;
                let found = hasher.map(Hasher::finish).unwrap_or_default();
                if found == *digest {
                    return Ok(());
                }
                self.undo(bytes)?;
                Err(at(Error::mismatch(format!(
                    "its {checksum} checksum would be {found}, {digest} is published: another base, or a \
                     damaged delta"
                ))))
            }
            Change::Parts(Some(parts)) => write(parts, bytes),
            Change::Parts(None) => write(&changes(deltas, name, bytes)?, bytes),
        }
    }

    /// Takes a change back that was applied, if it can be undone.
    fn undo(&self, bytes: &mut [u8]) -> Result<()> {
        match self {
            Change::Invertible { frame } => {
                let options = decode_options(bytes.len() as u64, 1);
                let reverted = ParsedDelta::parse(frame).and_then(|delta| delta.revert(bytes, &options));
                reverted.map_err(broken_frame)
            }
            Change::Xor { payload, .. } => payload::xor_in_place(payload, bytes, &mut None),
            Change::Delta { .. } | Change::Parts(_) => Ok(()),
        }
    }
}

/// Compares the checksums of what a z4ai delta makes of a tensor.
fn verify(frame: &[u8], old: &[u8]) -> Result<()> {
    let options = decode_options(old.len() as u64, 1);
    ParsedDelta::parse(frame).and_then(|delta| delta.verify(old, &options)).map_err(broken_frame)
}

/// The parts of a tensor that deltas change.
fn changes(deltas: &Deltas<'_>, name: &str, old: &[u8]) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    let size = deltas.type_of(name).map_or(1, |(dtype, _)| payload::element_size(dtype));
    let size = if old.len().is_multiple_of(size) { size } else { 1 };
    let mut patcher = Patcher::new(size, 0, old.len() as u64);
    deltas.restore(name, Some(old), old.len() as u64, |at, old, new| {
        patcher.add(at, [old.unwrap_or_default(), new], None, &mut |window| {
            parts.push(Part::new(window));
            Ok(())
        })
    })?;
    Ok(parts)
}

fn write(parts: &[Part], tensor: &mut [u8]) -> Result<()> {
    parts
        .iter()
        .try_for_each(|part| patch::apply(&part.patch, &mut tensor[part.start..part.start + part.len]))
}
