//! Looking after streams: what is in them, folding, pruning, and verifying checkpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::chain::{self, Link};
use super::checkpoint::Checkpoint;
use super::deltas::Deltas;
use super::index::{Encoding, Extras, Index, Kind, PayloadCompression, TensorEntry};
use super::journal;
use super::payload::{self, Overwrite};
use super::publish::PublishOptions;
use super::state::{self, Locked};
use super::stream::{BASE_VERSION, Layout, Stream, version_number};
use super::target::Target;
use crate::base::parallel;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::read::Reader;
use crate::remote::store;
use crate::tensor::Tensor;
use crate::write::export::TensorList;

/// A version as `log` shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct LogEntry {
    /// Its name.
    pub version: String,
    /// The version that it starts from; `None` for a full one.
    pub base: Option<String>,
    /// What its payloads are: `xor zstd`, `overwrite zstd`, `z4ai` or `full`.
    pub form: String,
    /// Tensors in it.
    pub tensors: usize,
    /// Elements that changed, and elements of the tensors that did, where the index says it.
    pub changed: Option<(u64, u64)>,
    /// Euclidean norm of the whole change, where the index says it.
    pub norm: Option<f64>,
    /// Bytes that are read for it.
    pub bytes: u64,
}

/// The versions of a stream, oldest first.
pub fn log(stream: &Stream) -> Result<Vec<LogEntry>> {
    let listing = stream.list()?;
    let mut entries = Vec::new();
    let mut folders: Vec<(String, String)> =
        stream.versions_in(&listing).into_iter().map(|name| (stream.folder(&name), name)).collect();
    folders.extend(stream.folds_in(&listing).into_iter().map(|(_, to, folder)| (folder, to)));
    for (folder, name) in folders {
        let Some(version) = stream.version_in(&folder, &name, Some(&listing))? else { continue };
        let form = match &version.index.kind {
            Kind::Full { .. } => "full".to_owned(),
            Kind::Delta { compression: PayloadCompression::Z4ai, .. } => "z4ai".to_owned(),
            Kind::Delta { encoding, .. } => format!("{} zstd", encoding.name()),
        };
        let tensors = version.index.extras.iter().flat_map(|extras| extras.tensors.values());
        let changed = tensors.clone().try_fold((0u64, 0u64), |(changed, all), entry| {
            Some((changed + entry.changed?, all + crate::catalog::elements(&entry.shape)?))
        });
        let norms = tensors.map(|entry| entry.norm.as_ref()?.parse::<f64>().ok());
        let squares = norms.flatten().map(|norm| norm * norm).reduce(|sum, square| sum + square);
        let is_delta = version.base().is_some();
        entries.push(LogEntry {
            base: stream.base_name(&version),
            form,
            tensors: version.index.weight_map.len(),
            changed: changed.filter(|_| is_delta && version.index.extras.is_some()),
            norm: squares.map(f64::sqrt),
            bytes: version.len,
            version: name,
        });
    }
    Ok(entries)
}

/// Where a stream and a checkpoint are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The newest version of the stream.
    pub newest: Option<String>,
    /// The newest full version.
    pub newest_full: Option<String>,
    /// How many versions there are.
    pub versions: usize,
    /// The version that the checkpoint holds.
    pub applied: Option<String>,
    /// Whether an apply was interrupted, which the next pull finishes.
    pub interrupted: bool,
}

/// What a stream has, and what a checkpoint holds of it.
pub fn status(stream: &Stream, local: Option<&Path>) -> Result<Status> {
    let listing = stream.list()?;
    let versions = stream.versions_in(&listing);
    let mut newest_full = None;
    for name in versions.iter().rev() {
        let version = stream.version_in(&stream.folder(name), name, Some(&listing))?;
        if version.is_some_and(|version| version.base().is_none()) {
            newest_full = Some(name.clone());
            break;
        }
    }
    let applied = local.map(state::read_state).transpose()?.and_then(|(version, _)| version);
    let interrupted = local.is_some_and(journal::is_pending);
    Ok(Status {
        newest: versions.last().cloned(),
        newest_full,
        versions: versions.len(),
        applied,
        interrupted,
    })
}

/// What a fold made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folded {
    /// The version that it starts from.
    pub from: String,
    /// The version that it leads to.
    pub to: String,
    /// Bytes of the deltas.
    pub deltas: u64,
    /// Bytes of the fold.
    pub bytes: u64,
}

/// Folds the deltas after version `from` up to `to` into one, which is published beside them in a
/// folder that other receivers do not look at. Deltas of one encoding are folded as they are; others
/// need `base`, the model of version `from`.
pub fn fold(
    stream: &Stream,
    from: &str,
    to: &str,
    base: Option<&Reader>,
    options: &PublishOptions,
) -> Result<Folded> {
    if stream.layout() != Layout::Numbered {
        return Err(Error::unsupported("only numbered streams can be folded"));
    }
    let mut versions = Vec::new();
    let mut at = to.to_owned();
    while at != from {
        let version = stream
            .version(&at)?
            .ok_or_else(|| Error::not_found(format!("there is no version {at}")).in_file(stream.root()))?;
        let Some(before) = stream.base_name(&version) else {
            let message = format!("version {at} is a full version: fold from {at} on");
            return Err(Error::invalid(message).in_file(stream.root()));
        };
        if version_number(&before) < version_number(from) {
            let message = format!("version {at} starts from {before}, before {from}");
            return Err(Error::invalid(message).in_file(stream.root()));
        }
        at = before;
        versions.insert(0, version);
    }
    let (Some(first), Some(last)) = (versions.first(), versions.last()) else {
        return Err(Error::invalid("a fold needs two versions or more"));
    };
    let deltas = Deltas::open(stream, &versions, options.threads)?;
    let kind = Form::of(&versions, base.is_some(), options)?;
    let type_of = |name: &str| {
        let described = deltas.type_of(name).map(|(dtype, shape)| (dtype, shape.clone()));
        described.or_else(|| {
            let object = base?.find(name)?;
            Some((object.dtype()?, object.shape.clone()))
        })
    };
    let removed = deltas.removed();
    let tensors = std::sync::Mutex::new(BTreeMap::new());
    let names: Vec<&str> = deltas.by_tensor.keys().copied().filter(|name| !removed.contains(name)).collect();
    parallel::for_each(options.threads, names, |name| {
        let made = fold_tensor(&deltas, name, base, &kind, type_of(name));
        let made = made.map_err(|error| error.in_tensor(name))?;
        if let (Some(made), Ok(mut tensors)) = (made, tensors.lock()) {
            tensors.insert(name.to_owned(), made);
        }
        Ok(())
    })?;
    let tensors = tensors.into_inner().unwrap_or_default();
    let extras = |version: &super::stream::Version| version.index.extras.clone();
    let described = tensors.values().all(|made: &FoldedTensor| made.entry.is_some());
    let mut index = Index {
        version: Some(last.name.clone()),
        kind: Kind::Delta {
            base: from.to_owned(),
            encoding: kind.encoding,
            compression: kind.compression,
            checksum: kind.checksum,
        },
        weight_map: Default::default(),
        extras: match (described, extras(first), extras(last)) {
            (true, Some(first), Some(last)) => Some(Extras {
                stream_id: last.stream_id,
                base_id: first.base_id,
                target_id: last.target_id,
                tensors: BTreeMap::new(),
                removed: removed.iter().map(|name| (*name).to_owned()).collect(),
                shards: BTreeMap::new(),
            }),
            _ => None,
        },
    };
    let file = "model-00000-of-00001.safetensors";
    let mut list = TensorList::default();
    for (name, made) in &tensors {
        index.weight_map.insert(name.clone(), file.to_owned());
        if let (Some(extras), Some(entry)) = (&mut index.extras, &made.entry) {
            extras.tensors.insert(name.clone(), entry.clone());
        }
        list.attributes.insert(name.clone(), made.digest.as_str().into());
        let payload = &made.payload[..];
        list.tensors
            .push((name.clone(), Tensor::from_bytes(&[payload.len() as u64][..], DType::U8, payload)?));
    }
    let target = Target::begin(stream.new_folder(Stream::fold_folder(from, &last.name), options))?;
    let mut bytes = 0;
    if !list.tensors.is_empty() {
        bytes = target.shard(file, &list)?;
        if let Some(extras) = &mut index.extras {
            extras.shards.insert(file.to_owned(), bytes);
        }
    }
    let text = index.to_json();
    target.finish(&text)?;
    bytes += text.len() as u64;
    Ok(Folded { from: from.to_owned(), to: last.name.clone(), deltas: deltas.len(), bytes })
}

/// The form of a fold.
struct Form {
    encoding: Encoding,
    compression: PayloadCompression,
    checksum: super::checksum::ChecksumFormat,
    /// Whether payloads are folded without the base.
    as_they_are: bool,
}

impl Form {
    fn of(
        versions: &[std::sync::Arc<super::stream::Version>],
        has_base: bool,
        options: &PublishOptions,
    ) -> Result<Form> {
        let mut forms = BTreeSet::new();
        let mut checksums = Vec::new();
        for version in versions {
            if let Kind::Delta { encoding, compression, checksum, .. } = version.index.kind {
                forms.insert((encoding.name(), compression.name()));
                checksums.push((encoding, compression, checksum));
            }
        }
        let checksum_is_one = checksums.windows(2).all(|pair| pair[0].2 == pair[1].2);
        match checksums.last() {
            Some(&(encoding, PayloadCompression::Zstd, checksum)) if forms.len() == 1 && checksum_is_one => {
                Ok(Form { encoding, compression: PayloadCompression::Zstd, checksum, as_they_are: true })
            }
            Some(&(encoding, compression, _)) if has_base => {
                Ok(Form { encoding, compression, checksum: options.checksum(), as_they_are: false })
            }
            _ => Err(Error::invalid(
                "only zstd deltas of one encoding and one checksum are folded without the base: give the model \
                 of the first version",
            )),
        }
    }
}

struct FoldedTensor {
    payload: Vec<u8>,
    digest: String,
    entry: Option<TensorEntry>,
}

fn fold_tensor(
    deltas: &Deltas<'_>,
    name: &str,
    base: Option<&Reader>,
    form: &Form,
    type_of: Option<(DType, crate::catalog::Shape)>,
) -> Result<Option<FoldedTensor>> {
    let steps = &deltas.by_tensor[name];
    let described = deltas.entry(name);
    if form.as_they_are {
        let mut folded: Option<Vec<u8>> = None;
        let mut digest = String::new();
        for &step in steps {
            let next = deltas.payload(step, name)?;
            digest = next.digest;
            folded = Some(match (folded, form.encoding) {
                (None, _) => next.bytes,
                (Some(before), Encoding::Xor) => {
                    let known = type_of.as_ref().and_then(|(dtype, shape)| {
                        Some(crate::catalog::elements(shape)?.checked_mul(dtype.bits().into())? / 8)
                    });
                    // Without the base the first payload says how long the tensor is.
                    let len = match known {
                        Some(len) => len,
                        None => payload::xor_len(&before)?,
                    };
                    payload::xor_payloads(&before, &next.bytes, len)?
                }
                (Some(before), Encoding::Overwrite) => {
                    let most = payload::MAX_OVERWRITE;
                    Overwrite::decode(&before, most)?.then(&Overwrite::decode(&next.bytes, most)?)?
                }
            });
        }
        let Some(payload) = folded else { return Ok(None) };
        let entry = described.map(|(first, last)| TensorEntry {
            base: first.base,
            payload: super::checksum::xxh3(&payload),
            changed: None,
            norm: None,
            ..last.clone()
        });
        return Ok(Some(FoldedTensor { payload, digest, entry }));
    }
    let (dtype, shape) = type_of.ok_or_else(|| Error::not_found("its type is not known"))?;
    let of = payload::TensorType { dtype, shape };
    let bits =
        crate::catalog::elements(&of.shape).and_then(|count| count.checked_mul(of.dtype.bits().into()));
    let len = bits.ok_or_else(|| Error::limit("its size overflows"))? / 8;
    let old = match base {
        Some(base) if base.contains(name) => Some(base.read(name)?),
        _ => None,
    };
    let mut new = crate::base::huge_pages::zeroed_vec::<u8>(len)?;
    deltas.restore(name, old.as_deref(), len, |at, _, block| {
        new[at as usize..][..block.len()].copy_from_slice(block);
        Ok(())
    })?;
    let old = old.filter(|old| old.len() as u64 == len);
    let payload = match (&old, form.compression) {
        (Some(old), compression) => payload::encode(compression, form.encoding, &of, [old, &new])?,
        (None, PayloadCompression::Z4ai) => payload::encode_whole(&of, &new, 1)?,
        (None, PayloadCompression::Zstd) => return Err(Error::not_found("the base does not have it")),
    };
    let digest = form.checksum.of(&new);
    let entry = described.map(|(first, last)| TensorEntry {
        base: first.base.filter(|_| old.is_some()),
        payload: super::checksum::xxh3(&payload),
        changed: None,
        norm: None,
        ..last.clone()
    });
    Ok(Some(FoldedTensor { payload, digest, entry }))
}

/// Removes versions that no reader needs any more; returns their folders.
///
/// Kept are the `keep` newest versions, those from `in_use` on (versions that hosts hold), and
/// everything that leads to them from the newest full version before them. Without a full version
/// nothing can go: a new host would find no way. A folder is moved away before it is deleted, so
/// that a version is there whole or not at all.
pub fn prune(stream: &Stream, keep: u64, in_use: &[String], dry_run: bool) -> Result<Vec<String>> {
    if stream.layout() != Layout::Numbered {
        return Err(Error::unsupported("only numbered streams are pruned"));
    }
    let listing = stream.list()?;
    let versions = stream.versions_in(&listing);
    let mut links = Vec::new();
    for name in &versions {
        let folder = stream.folder(name);
        if let Some(version) = stream.version_in(&folder, name, Some(&listing))? {
            let from = stream.base_name(&version);
            links.push(Link { from, to: name.clone(), cost: version.len, what: folder });
        }
    }
    for (from, to, folder) in stream.folds_in(&listing) {
        let cost = listing.files(&folder).map_or(0, |files| files.values().sum());
        links.push(Link { from: Some(from), to, cost, what: folder });
    }
    let kept = versions.len().saturating_sub(usize::try_from(keep.max(1)).unwrap_or(usize::MAX));
    let targets = &versions[kept..];
    // A host within the chain goes on from where it is, as does one at any version that is kept.
    let mut states: Vec<String> = in_use.iter().filter(|version| *version != BASE_VERSION).cloned().collect();
    states.extend(targets.iter().cloned());
    let reachable = |target: &String| -> Result<bool> {
        let way = chain::shortest(&[], target, |state: &String| {
            Ok::<_, Error>(links.iter().filter(|link| link.to == *state).cloned().collect())
        })?;
        Ok(way.is_some())
    };
    // Without a full version hosts start from the base: all of the chain is needed.
    for target in targets {
        if !reachable(target)? || in_use.iter().any(|version| version == BASE_VERSION) {
            states.push(BASE_VERSION.to_owned());
            break;
        }
    }
    let removable = chain::removable(&links, &states, targets);
    let mut removed = Vec::new();
    for link in removable.into_iter().map(|index| &links[index]) {
        if targets.contains(&link.to) && !link.what.starts_with("fold") {
            continue;
        }
        if !dry_run {
            remove(stream, &link.what, listing.files(&link.what))?;
        }
        removed.push(link.what.clone());
    }
    stream.forget();
    Ok(removed)
}

/// Makes a folder of a stream disappear at once, then deletes it.
fn remove(stream: &Stream, folder: &str, files: Option<&BTreeMap<String, u64>>) -> Result<()> {
    match stream.local()? {
        Some(root) => {
            let from = root.join(folder);
            let hidden = root.join(format!(".{folder}.removed.tmp"));
            let _ = std::fs::remove_dir_all(&hidden); // left by a prune that was killed
            crate::write::atomic::rename_folder_new(&from, &hidden)?;
            std::fs::remove_dir_all(&hidden)
                .map_err(|error| Error::io("cannot remove", error).in_file(&hidden))
        }
        None => {
            // The index first: without it the rest is no version.
            store::delete(stream.path(folder, super::index::INDEX_NAME), stream.remote())?;
            for file in files.into_iter().flat_map(|files| files.keys()) {
                store::delete(stream.path(folder, file), stream.remote())?;
            }
            Ok(())
        }
    }
}

/// What verifying a checkpoint found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// The version that it should hold.
    pub version: Option<String>,
    /// Tensors that were compared.
    pub checked: usize,
    /// Tensors of which nothing is known to compare with.
    pub unknown: Vec<String>,
    /// Tensors that are not what they should be.
    pub differ: Vec<String>,
}

/// Hashes the tensors of a checkpoint and compares them with what was applied.
pub fn verify(local: &Path, threads: usize) -> Result<Verified> {
    // Taking the lock would make the folder.
    std::fs::metadata(local).map_err(|error| Error::io("cannot open", error).in_file(local))?;
    let locked = Locked::take(local, std::time::Duration::from_secs(600))?;
    journal::recover(&locked, threads, true)?;
    let (version, ledger) = locked.read()?;
    let checkpoint = Checkpoint::open(local)?;
    let ledger = ledger.unwrap_or_default();
    let (unknown, differ) = (std::sync::Mutex::new(Vec::new()), std::sync::Mutex::new(Vec::new()));
    parallel::for_each(threads, checkpoint.tensors.keys().collect(), |name| {
        let known = ledger.tensors.get(name);
        let good = match known.map(|known| (known.id, &known.checksum)) {
            Some((Some(id), _)) => Some(checkpoint.id(name)? == id),
            Some((None, Some((format, digest)))) => Some(format.of(checkpoint.bytes(name)?) == *digest),
            _ => None,
        };
        let list = match good {
            Some(true) => return Ok(()),
            Some(false) => &differ,
            None => &unknown,
        };
        if let Ok(mut list) = list.lock() {
            list.push(name.clone());
        }
        Ok(())
    })?;
    let sorted = |list: std::sync::Mutex<Vec<String>>| {
        let mut list = list.into_inner().unwrap_or_default();
        list.sort();
        list
    };
    let (unknown, mut differ) = (sorted(unknown), sorted(differ));
    differ.extend(ledger.tensors.keys().filter(|name| !checkpoint.tensors.contains_key(*name)).cloned());
    Ok(Verified { version, checked: checkpoint.tensors.len() - unknown.len(), unknown, differ })
}
