//! The deltas on the way to a version, read together.

use std::collections::{BTreeMap, BTreeSet};

use z4ai::delta::{ChangedPlaces, ParsedDelta, is_delta};

use super::checksum::{ChecksumFormat, Hasher};
use super::index::{Kind, PayloadCompression, TensorEntry};
use super::payload::{self, Step};
use super::state::{Known, Ledger};
use super::stream::{Shard, Stream, Version};
use crate::base::parallel;
use crate::catalog::Shape;
use crate::decode::{broken_frame, decode_options};
use crate::dtype::DType;
use crate::error::{Error, Result, quoted};
use crate::id::{ContentId, TensorHasher};

/// Deltas that are applied together: each tensor is changed once, whatever their number.
pub(crate) struct Deltas<'a> {
    versions: &'a [std::sync::Arc<Version>],
    /// The shards of each version, by name.
    shards: Vec<BTreeMap<String, Shard>>,
    /// The versions that change each tensor.
    pub(crate) by_tensor: BTreeMap<&'a str, Vec<usize>>,
}

impl<'a> Deltas<'a> {
    /// Opens the shards of all versions and checks that they hold what the indexes say.
    pub(crate) fn open(
        stream: &Stream,
        versions: &'a [std::sync::Arc<Version>],
        threads: usize,
    ) -> Result<Deltas<'a>> {
        let mut wanted = Vec::new();
        let mut by_tensor: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (at, version) in versions.iter().enumerate() {
            let files: BTreeSet<&String> = version.index.weight_map.values().collect();
            wanted.extend(files.into_iter().map(|file| (at, file)));
            for name in version.index.weight_map.keys() {
                by_tensor.entry(name).or_default().push(at);
            }
        }
        let shards = std::sync::Mutex::new(versions.iter().map(|_| BTreeMap::new()).collect::<Vec<_>>());
        parallel::for_each(threads, wanted, |(at, file)| {
            let version = &versions[at];
            let shard = stream.shard(version, file)?;
            let mapped = version.index.weight_map.iter().filter(|(_, mapped)| *mapped == file);
            mapped.map(|(name, _)| name).try_for_each(|name| shard.check(version, name))?;
            if let Ok(mut shards) = shards.lock() {
                shards[at].insert(file.clone(), shard);
            }
            Ok(())
        })?;
        Ok(Deltas { versions, shards: shards.into_inner().unwrap_or_default(), by_tensor })
    }

    /// Bytes that are read for them.
    pub(crate) fn len(&self) -> u64 {
        self.versions.iter().map(|version| version.len).sum()
    }

    /// Tensors that are not there after the last version.
    pub(crate) fn removed(&self) -> BTreeSet<&'a str> {
        let mut removed: BTreeSet<&str> = BTreeSet::new();
        for version in self.versions {
            removed.retain(|name| !version.index.weight_map.contains_key(*name));
            let gone = version.index.extras.iter().flat_map(|extras| &extras.removed);
            removed.extend(gone.map(String::as_str));
        }
        removed
    }

    /// The type and shape of a tensor after the last version, if the versions say it.
    pub(crate) fn type_of(&self, name: &str) -> Option<(DType, &Shape)> {
        let last = *self.by_tensor.get(name)?.last()?;
        let entry = self.versions[last].index.extras.as_ref()?.tensors.get(name)?;
        Some((entry.dtype, &entry.shape))
    }

    /// The id that the old state of a tensor must have, if the first version says it.
    pub(crate) fn base_id(&self, name: &str) -> Option<ContentId> {
        let first = *self.by_tensor.get(name)?.first()?;
        self.versions[first].index.extras.as_ref()?.tensors.get(name)?.base
    }

    /// What the first and the last version that change a tensor say of it.
    pub(crate) fn entry(&self, name: &str) -> Option<(&TensorEntry, &TensorEntry)> {
        let steps = self.by_tensor.get(name)?;
        let entry = |at: usize| self.versions[at].index.extras.as_ref()?.tensors.get(name);
        Some((entry(*steps.first()?)?, entry(*steps.last()?)?))
    }

    /// Id and checksum of a tensor after the last version. Where the checksum is BLAKE3, which the id is made from, they
    /// are compared.
    pub(crate) fn known(&self, name: &str) -> Result<Known> {
        let Some(&last) = self.by_tensor.get(name).and_then(|steps| steps.last()) else {
            return Ok(Known::default());
        };
        let version = &self.versions[last];
        let id = version.index.extras.as_ref().and_then(|extras| Some(extras.tensors.get(name)?.target));
        let checksum = match (&version.index.kind, version.digests.get(name)) {
            (_, Some(digest)) => digest.clone(),
            (Kind::Delta { checksum, .. }, None) => {
                (*checksum, self.shard(last, name)?.digest(name, *checksum)?)
            }
            (Kind::Full { .. }, None) => return Ok(Known { id, checksum: None }),
        };
        if let (ChecksumFormat::Blake3, digest) = &checksum
            && let Some((_, entry)) = self.entry(name)
        {
            let hash = blake3::Hash::from_hex(digest).map(|hash| *hash.as_bytes());
            let made = hash.map(|hash| TensorHasher::id_of_hash(entry.dtype, &entry.shape, hash));
            if !matches!(made, Ok(Ok(made)) if made == entry.target) {
                let message = "its checksum in the shard does not belong to the content id in the index";
                return Err(Error::corrupt("sync.digest", message).in_tensor(name));
            }
        }
        Ok(Known { id, checksum: Some(checksum) })
    }

    pub(crate) fn kind(&self, version: usize) -> &Kind {
        &self.versions[version].index.kind
    }

    pub(crate) fn payload(&self, version: usize, name: &str) -> Result<super::stream::Payload> {
        self.shard(version, name)?.payload(&self.versions[version], name)
    }

    fn shard(&self, version: usize, name: &str) -> Result<&Shard> {
        let file = self.versions[version].index.weight_map.get(name);
        file.and_then(|file| self.shards[version].get(file))
            .ok_or_else(|| Error::corrupt("sync.tensor", "no shard holds it").in_tensor(name))
    }

    /// The content id of the model after the last version that says it, and of the one before the
    /// first.
    pub(crate) fn model_ids(&self) -> (Option<ContentId>, Option<ContentId>) {
        let extras = |version: &'a Version| version.index.extras.as_ref();
        let first = self.versions.first().and_then(|version| extras(version)?.base_id);
        let last = self.versions.last().and_then(|version| extras(version)?.target_id);
        (first, last)
    }

    pub(crate) fn stream_id(&self) -> Option<&'a str> {
        let extras = self.versions.iter().rev().find_map(|version| version.index.extras.as_ref());
        extras.map(|extras| extras.stream_id.as_str())
    }

    /// The deltas of a tensor, and the checksum after the last one with that version's name.
    fn steps(&self, name: &str) -> Result<(Vec<Step<'static>>, Expected<'_>)> {
        let mut steps = Vec::new();
        let mut expected = None;
        for &index in self.by_tensor.get(name).into_iter().flatten() {
            let version = &self.versions[index];
            let Kind::Delta { encoding, compression, .. } = version.index.kind else {
                return Err(Error::invalid("a full version is not a delta"));
            };
            let payload = self.payload(index, name)?;
            expected =
                Some(Expected { format: payload.checksum, digest: payload.digest, version: &version.name });
            steps.push(Step { compression, encoding, payload: payload.bytes.into() });
        }
        let expected = expected.ok_or_else(|| Error::invalid("no version changes it").in_tensor(name))?;
        Ok((steps, expected))
    }

    /// Restores the new state of a tensor of `len` bytes from its old one, block by block, and
    /// compares its checksum. `each` may have seen all of it before an error.
    pub(crate) fn restore(
        &self,
        name: &str,
        old: Option<&[u8]>,
        len: u64,
        each: impl FnMut(u64, Option<&[u8]>, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let at = |error: Error| error.in_tensor(name);
        let (steps, expected) = self.steps(name)?;
        let mut hasher: Option<Hasher> = Some(expected.format.hasher());
        payload::restore(old, len, &steps, &mut hasher, each).map_err(at)?;
        expected.check(hasher.map(Hasher::finish).unwrap_or_default()).map_err(at)
    }

    /// The same for a tensor that keeps its length; `each` gets parts of any length in order: where they begin, their old
    /// and new bytes, which are in the caches, and which elements changed if the delta lists them.
    pub(crate) fn restore_parts(
        &self,
        name: &str,
        old: &[u8],
        mut each: impl FnMut(u64, [&[u8]; 2], Option<ChangedPlaces<'_>>) -> Result<()>,
    ) -> Result<()> {
        let at = |error: Error| error.in_tensor(name);
        let (steps, expected) = self.steps(name)?;
        match &steps[..] {
            [Step { compression: PayloadCompression::Z4ai, payload, .. }] if is_delta(payload) => {
                let mut taken = Ok(());
                let options = decode_options(old.len() as u64, 1);
                let delta = ParsedDelta::parse(payload).map_err(|error| at(broken_frame(error)))?;
                // Chunks have checksums of what they decode to, and BLAKE3 was compared with the id.
                let by_id = expected.format == ChecksumFormat::Blake3 && self.entry(name).is_some();
                let mut hasher = (!by_id).then(|| expected.format.hasher());
                let restored = delta.verify_parts(old, &options, |start, old, new, changed| {
                    hasher.iter_mut().for_each(|hasher| hasher.update(new));
                    if taken.is_ok() {
                        taken = each(start, [old, new], changed);
                    }
                });
                taken?;
                restored.map_err(|error| at(broken_frame(error)))?;
                hasher.map_or(Ok(()), |hasher| expected.check(hasher.finish()).map_err(at))
            }
            _ => {
                let mut hasher = Some(expected.format.hasher());
                let len = old.len() as u64;
                payload::restore(Some(old), len, &steps, &mut hasher, |start, old, new| {
                    each(start, [old.unwrap_or_default(), new], None)
                })
                .map_err(at)?;
                expected.check(hasher.map(Hasher::finish).unwrap_or_default()).map_err(at)
            }
        }
    }
}

/// The checksum that a version publishes of a tensor.
struct Expected<'a> {
    format: ChecksumFormat,
    digest: String,
    version: &'a str,
}

impl Expected<'_> {
    fn check(&self, found: String) -> Result<()> {
        let Expected { format, digest, version } = self;
        if found == *digest {
            return Ok(());
        }
        let version = quoted(version);
        Err(Error::mismatch(format!(
            "its {format} checksum in version {version} would be {found}, {digest} is published: another base, or a \
             damaged delta"
        )))
    }
}

/// Refuses a base other than the one that the deltas were made from, as far as both sides know it.
/// Tensors without a known id are not hashed for this: the checksum of what they become is compared
/// before anything changes.
pub(crate) fn check_base(deltas: &Deltas<'_>, ledger: Option<&Ledger>) -> Result<()> {
    let Some(ledger) = ledger else { return Ok(()) };
    if let (Some(base), Some(held)) = (deltas.model_ids().0, ledger.model_id())
        && base != held
    {
        return Err(Error::mismatch(format!(
            "the delta starts from the model {base}, the checkpoint holds the model {held}"
        )));
    }
    for name in deltas.by_tensor.keys() {
        let held = ledger.tensors.get(*name).and_then(|known| known.id);
        if let (Some(base), Some(held)) = (deltas.base_id(name), held)
            && base != held
        {
            let message = format!("the delta starts from {base}, the checkpoint holds {held}");
            return Err(Error::mismatch(message).in_tensor(*name));
        }
    }
    Ok(())
}

/// The ids of all tensors must make up the id of the model that the last version names.
pub(crate) fn check_target(deltas: &Deltas<'_>, ledger: &Ledger) -> Result<()> {
    match (deltas.model_ids().1, ledger.model_id()) {
        (Some(target), Some(made)) if target != made => Err(Error::mismatch(format!(
            "the deltas lead to the model {target}, but the checkpoint would become {made}: \
             tensors that they do not change are not those of the base"
        ))),
        _ => Ok(()),
    }
}
