//! Bringing a local checkpoint to a version.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indexmap::IndexMap;

use super::apply;
use super::checkpoint::{Apply, ChangedTensor, Checkpoint};
use super::index::{Index, Kind};
use super::journal;
use super::plan::{self, Way};
use super::state::{Ledger, Locked};
use super::stream::{BASE_VERSION, Layout, Listing, Stream, Version, is_absent, version_number};
use crate::error::{Error, Result, quoted};
use crate::progress::Observer;

/// Deltas of at most this many bytes are applied together: they are held in memory if they come
/// from a store.
const TOGETHER: u64 = 1 << 30;
/// How often a pull starts over when versions vanish while they are read.
const ATTEMPTS: usize = 4;

/// How to bring a checkpoint up to date.
#[derive(Clone)]
pub struct PullOptions<'a> {
    /// The version wanted; `None`: the newest.
    pub version: Option<String>,
    /// The model that version 0 is: what a new checkpoint is made from.
    pub base: Option<PathBuf>,
    /// Start over from the base or a full version where the checkpoint is newer than the version
    /// wanted, or of another run.
    pub restart: bool,
    /// Accept full versions with other tensors, types or shapes than the checkpoint has.
    pub allow_structure: bool,
    /// Threads to use; 0 is one per core.
    pub threads: usize,
    /// Wait until the disk has every step, so that a power cut does no harm. Without it a killed
    /// process does none.
    pub durable: bool,
    /// How long to wait for another process that applies a version to the same checkpoint.
    pub patience: Duration,
    /// Is told how many bytes of tensors are restored, and may cancel.
    pub observer: Option<&'a dyn Observer>,
}

impl Default for PullOptions<'_> {
    fn default() -> Self {
        PullOptions {
            version: None,
            base: None,
            restart: false,
            allow_structure: false,
            threads: 0,
            durable: true,
            patience: Duration::from_secs(600),
            observer: None,
        }
    }
}

/// What a pull did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    /// The version before; `None` if there was no checkpoint.
    pub from: Option<String>,
    /// The version now.
    pub version: String,
    /// What was applied, in order: `seed from base`, `full 4`, `delta 5`, `fold 2 to 9`.
    pub steps: Vec<String>,
    /// The tensors whose bytes may differ from before, and where they are.
    pub changed: Vec<ChangedTensor>,
    /// Bytes of the stream that were read, indexes included.
    pub read: u64,
}

/// Brings the checkpoint in `local` to a version of the stream, by the way with the fewest bytes.
///
/// Every payload is decoded and compared with its checksum before the first byte changes. A journal
/// makes the change survive a kill, and a power cut if [`durable`](PullOptions::durable): it is
/// finished by the next call. A checkpoint that is there already is success.
pub fn pull(stream: &Stream, local: impl AsRef<Path>, options: &PullOptions<'_>) -> Result<Pulled> {
    let local = local.as_ref();
    std::fs::create_dir_all(local).map_err(|error| Error::io("cannot create", error).in_file(local))?;
    let locked = Locked::take(local, options.patience)?;
    journal::recover(&locked, options.threads, options.durable)?;
    let mut attempt = 1;
    loop {
        match pull_locked(stream, &locked, options) {
            // Pruned meanwhile: another way may lead there now.
            Err(error) if is_absent(&error) && attempt < ATTEMPTS && options.version.is_none() => {
                stream.forget();
                attempt += 1;
            }
            result => return result,
        }
    }
}

/// What a checkpoint has, and the version that is wanted.
struct Wanted {
    applied: Option<String>,
    ledger: Option<Ledger>,
    version: String,
    listing: Listing,
}

fn pull_locked(stream: &Stream, locked: &Locked, options: &PullOptions<'_>) -> Result<Pulled> {
    let (applied, ledger) = locked.read()?;
    let listing = stream.list_for(options.version.as_deref())?;
    let version = match &options.version {
        Some(version) => normal(stream, version)?,
        None => match stream.versions_in(&listing).pop() {
            Some(newest) => newest,
            None => BASE_VERSION.to_owned(),
        },
    };
    let wanted = Wanted { applied, ledger, version, listing };
    let way = find(stream, locked, &wanted, options)?;
    follow(stream, locked, wanted, way, options)
}

/// A version as the stream's layout writes it.
fn normal(stream: &Stream, version: &str) -> Result<String> {
    match stream.layout() {
        Layout::Named => Ok(version.to_owned()),
        _ => version_number(version)
            .map(super::stream::version_name)
            .ok_or_else(|| Error::invalid(format!("{} is not the number of a version", quoted(version)))),
    }
}

fn find(stream: &Stream, locked: &Locked, wanted: &Wanted, options: &PullOptions<'_>) -> Result<Way> {
    let mut have = Vec::new();
    if let Some(applied) = &wanted.applied {
        let newer =
            stream.layout() != Layout::Named && version_number(applied) > version_number(&wanted.version);
        match (newer, options.restart) {
            (false, _) => have.push(applied.clone()),
            (true, true) => {}
            (true, false) => {
                return Err(Error::mismatch(format!(
                    "the checkpoint is at version {applied}, newer than {}: restart (--restart) rebuilds it",
                    wanted.version
                ))
                .in_file(locked.folder()));
            }
        }
    }
    if options.base.is_some() && !have.iter().any(|state| state == BASE_VERSION) {
        have.push(BASE_VERSION.to_owned());
    }
    let headless = |folder: &str| headless(stream, locked, folder, &wanted.listing);
    let way = plan::way(stream, &wanted.listing, &have, &wanted.version, headless)?;
    let starts_here = way.from.is_some() && way.from == wanted.applied;
    let ours = wanted.ledger.as_ref().and_then(|ledger| ledger.stream_id.as_deref());
    let theirs = match way.versions.last() {
        Some(version) => version.index.extras.as_ref().map(|extras| extras.stream_id.clone()),
        // Already there, if that version is of the same run.
        None => stream
            .version(&wanted.version)?
            .and_then(|version| Some(version.index.extras.as_ref()?.stream_id.clone())),
    };
    match (starts_here, ours, theirs) {
        (true, Some(ours), Some(theirs)) if ours != theirs => match options.restart {
            true => {
                let base: Vec<String> = options.base.iter().map(|_| BASE_VERSION.to_owned()).collect();
                plan::way(stream, &wanted.listing, &base, &wanted.version, headless)
            }
            false => Err(Error::mismatch(format!(
                "the checkpoint is at version {} of another run (stream {ours}, not {theirs}): \
                 allow a restart to rebuild it",
                wanted.applied.as_deref().unwrap_or_default()
            ))
            .in_file(locked.folder())),
        },
        _ => Ok(way),
    }
}

/// A folder without an index is a version only if its tensors are a full set with the names, types
/// and shapes of the checkpoint.
fn headless(stream: &Stream, locked: &Locked, folder: &str, listing: &Listing) -> Result<Index> {
    let refused = |message: &str| {
        Error::corrupt("sync.no-index", message.to_owned())
            .in_file(stream.path(folder, super::index::INDEX_NAME))
    };
    let checkpoint = Checkpoint::open(locked.folder())
        .map_err(|_| refused("the version has no index, and there is no checkpoint to compare it with"))?;
    let files = listing.files(folder).into_iter().flat_map(|files| files.keys());
    let mut weight_map = IndexMap::new();
    let mut version = Version {
        name: String::new(),
        folder: folder.to_owned(),
        index: Index {
            version: None,
            kind: Kind::Full { checksum: None },
            weight_map: IndexMap::new(),
            extras: None,
        },
        len: 0,
        keys: Default::default(),
        digests: Default::default(),
    };
    for file in files.filter(|file| file.ends_with(".safetensors")) {
        let shard = stream.shard(&version, file)?;
        for (name, object) in &shard.catalog().objects {
            let fits = checkpoint
                .tensors
                .get(&**name)
                .is_some_and(|place| (Some(place.dtype), &place.shape) == (object.dtype(), &object.shape));
            if !fits || weight_map.insert(name.to_string(), file.clone()).is_some() {
                return Err(refused(
                    "the version has no index, and its tensors are not those of the checkpoint",
                ));
            }
        }
    }
    if weight_map.len() != checkpoint.tensors.len() {
        return Err(refused("the version has no index, and lacks tensors of the checkpoint"));
    }
    version.index.weight_map = weight_map;
    Ok(version.index)
}

fn follow(
    stream: &Stream,
    locked: &Locked,
    wanted: Wanted,
    way: Way,
    options: &PullOptions<'_>,
) -> Result<Pulled> {
    let apply = Apply { threads: options.threads, durable: options.durable, observer: options.observer };
    let Wanted { applied, mut ledger, version, .. } = wanted;
    let mut steps = Vec::new();
    let mut changed = BTreeSet::new();
    let mut read = 0;
    if let Some(from) = &way.from
        && applied.as_ref() != Some(from)
    {
        let Some(base) = &options.base else {
            return Err(Error::invalid("a new checkpoint needs the base model to start from")
                .in_file(locked.folder()));
        };
        apply::seed(locked, base, BASE_VERSION, &apply)?;
        changed.extend(Checkpoint::open(locked.folder())?.tensors.into_keys());
        steps.push("seed from base".to_owned());
        ledger = locked.read()?.1;
    }
    let mut rest = &way.versions[..];
    while let Some(first) = rest.first() {
        let shown = |version: &str| match version_number(version) {
            Some(number) => number.to_string(),
            None => version.to_owned(),
        };
        if let Kind::Full { .. } = first.index.kind {
            let allow = options.allow_structure || applied.is_none();
            let (names, bytes) = apply::apply_full(locked, stream, first, allow, &apply)?;
            changed.extend(names);
            read += bytes;
            steps.push(format!("full {}", shown(&first.name)));
            rest = &rest[1..];
        } else {
            let mut bytes = 0u64;
            let fits = |version: &&std::sync::Arc<Version>| {
                let first = bytes == 0;
                bytes = bytes.saturating_add(version.len.max(1));
                version.base().is_some() && (first || bytes <= TOGETHER)
            };
            let (group, after) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            let (names, bytes) = apply::apply_deltas(locked, stream, group, ledger.take(), &apply)?;
            changed.extend(names);
            read += bytes;
            steps.extend(group.iter().map(|version| match version.is_fold() {
                true => {
                    format!("fold {} to {}", shown(version.base().unwrap_or_default()), shown(&version.name))
                }
                false => format!("delta {}", shown(&version.name)),
            }));
            rest = after;
        }
        ledger = locked.read()?.1;
    }
    let changed = match changed.is_empty() {
        true => Vec::new(),
        false => Checkpoint::open(locked.folder())?.changed(&changed),
    };
    Ok(Pulled { from: applied, version, steps, changed, read })
}
