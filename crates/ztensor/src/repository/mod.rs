//! Repositories of checkpoints: versions of models in a folder or an object store, each stored as
//! what is new in it.
//!
//! A version is the files that were committed: weights in any format, configuration, tokenizer. Their
//! tensors become objects, named by a BLAKE3 digest of type, shape and elements, so that equal
//! tensors are stored once; others are stored as differences from the nearest that is there. There is
//! no server and no database: packs are `.zt` files, manifests and commits are small files named by
//! their digests, and branches are changed by compare-and-swap.
//!
//! ```
//! use ztensor::repository::{CheckoutOptions, CommitOptions, Repository};
//!
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = |name: &str| dir.path().join(name);
//! # let write = |name: &str, change: f32| {
//! #     let values: Vec<f32> = (0..2000).map(|n| (n as f32).sin() + change).collect();
//! #     let mut writer = ztensor::Writer::create(path(name)).unwrap();
//! #     writer.add("w", &[20, 100], &values).unwrap();
//! #     writer.finish().unwrap();
//! # };
//! # write("step1.zt", 0.0);
//! # write("step2.zt", 1e-3);
//! let repository = Repository::init(path("models"), Default::default())?;
//! repository.commit(path("step1.zt"), &CommitOptions { message: "first".into(), ..Default::default() })?;
//! repository.commit(path("step2.zt"), &CommitOptions { tag: Some("best".into()), ..Default::default() })?;
//!
//! let version = repository.version("best")?;
//! let reader = version.reader()?; // any tensor, without a checkout
//! assert_eq!(reader.get("w")?.shape[..], [20, 100]);
//! version.checkout(path("restored"), &CheckoutOptions::default())?;
//! # let bytes = |name: &str| std::fs::read(path(name)).unwrap();
//! # assert_eq!(bytes("restored/step2.zt"), bytes("step2.zt"));
//! assert_eq!(repository.log("main", None)?.len(), 2);
//! # Ok::<(), ztensor::Error>(())
//! ```
//!
//! `docs/spec/repository.md` has the layout and its rules.
#![forbid(unsafe_code)]

mod checkout;
mod choose;
mod commit;
mod cut;
mod fsck;
mod gc;
mod history;
mod index;
mod locations;
mod manifest;
mod names;
mod object;
mod pack;
mod refs;
mod restore;
mod store;
#[cfg(test)]
mod tests;
mod transfer;
mod usage;
mod version;

pub use checkout::{CheckedOut, CheckoutOptions};
pub use commit::{CommitOptions, Committed, MAIN};
pub use fsck::{Checked, FsckOptions};
pub use gc::{Collected, GcOptions, Retention};
pub use history::Commit;
pub use names::RecordId;
pub use refs::{Ref, RefKind};
pub use transfer::{TransferOptions, Transferred};
pub use usage::{Usage, VersionUsage};
pub use version::{Version, VersionFile, VersionTensor};

#[doc(hidden)]
pub mod fuzz {
    //! The parsers of a repository's records, for fuzzing.

    use std::sync::Arc;

    /// Parses bytes as each record; what is parsed must survive.
    pub fn records(bytes: &[u8]) {
        if let Ok(manifest) = super::manifest::Manifest::parse(bytes) {
            let (id, stored) = manifest.encode().expect("what was parsed can be written");
            let again =
                super::manifest::Manifest::decode(&stored, &id).expect("what was written can be read");
            assert_eq!(again, manifest);
        }
        let _ = super::manifest::decompress(bytes);
        if let Ok(commit) = super::history::Commit::parse(bytes) {
            let (id, stored) = commit.encode().expect("what was parsed can be written");
            assert_eq!(super::history::Commit::decode(&stored, &id).expect("written"), commit);
        }
        let _ = super::refs::parse(bytes, 1);
        let _ = super::locations::parse(bytes);
        let _ = super::gc::parse(bytes);
    }

    /// Reads bytes as the index of a pack.
    pub fn pack(bytes: &[u8]) {
        let source = Arc::new(crate::source::MemorySource::new(bytes.to_vec()));
        let _ = super::pack::index(source, &Arc::from("0".repeat(32)));
    }
}

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use history::MAX_COMMIT;
use manifest::{MAX_STORED, Manifest};
use names::{COMMITS, FORGOTTEN, MANIFESTS, MARKER, check_ref_name, is_id_prefix};
use pack::PackSizes;
use restore::ObjectSet;
use store::Store;

use crate::base::parallel;
use crate::error::{Error, Result, quoted};
use crate::format::json::Scanner;
use crate::remote::Options;

/// The version of the layout. (format)
const FORMAT: u64 = 1;
const MAX_MARKER: u64 = 64 << 10;

/// A repository in a folder or an object store.
#[derive(Debug)]
pub struct Repository {
    store: Store,
    /// Commits that were read: they never change.
    commits: Mutex<HashMap<RecordId, Commit>>,
}

/// A commit of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogEntry {
    /// The commit's id.
    pub id: RecordId,
    /// The commit.
    pub commit: Commit,
    /// Branches and tags that are at it.
    pub refs: Vec<Ref>,
    /// Whether retention removed its files.
    pub forgotten: bool,
}

impl Repository {
    /// Makes a repository in a folder, or below a URL, that is not one yet.
    pub fn init(root: impl AsRef<Path>, remote: Options) -> Result<Repository> {
        let store = Store::new(root.as_ref(), remote)?;
        let marker = format!("{{\"format\":{FORMAT}}}\n");
        match store.write_new(MARKER, marker.as_bytes())? {
            true => Ok(Repository { store, commits: Mutex::default() }),
            false => {
                let cause = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
                Err(Error::io("there is a repository already", cause).in_file(root))
            }
        }
    }

    /// Opens a repository.
    pub fn open(root: impl AsRef<Path>, remote: Options) -> Result<Repository> {
        let store = Store::new(root.as_ref(), remote)?;
        let Some(marker) = store.read(MARKER, MAX_MARKER)? else {
            let message =
                format!("this is not a repository (no {MARKER}): create one with `ztensor repo init`");
            return Err(Error::not_found(message).in_file(root));
        };
        check_marker(&marker).map_err(|error| error.in_file(root))?;
        Ok(Repository { store, commits: Mutex::default() })
    }

    /// Opens a repository without looking whether it is one: saves a request.
    pub fn open_unchecked(root: impl AsRef<Path>, remote: Options) -> Result<Repository> {
        Ok(Repository { store: Store::new(root.as_ref(), remote)?, commits: Mutex::default() })
    }

    /// Where it is.
    pub fn root(&self) -> &Path {
        self.store.root()
    }

    /// All branches and tags.
    pub fn refs(&self) -> Result<Vec<Ref>> {
        let found = Mutex::new(Vec::new());
        parallel::for_each(self.store.connections(), refs::all(&self.store)?, |(kind, name, number)| {
            if let Some(entry) = refs::read(&self.store, kind, &name, number)?
                && let Some(commit) = entry.commit
            {
                found.lock().unwrap_or_else(PoisonError::into_inner).push(Ref { kind, name, commit });
            }
            Ok(())
        })?;
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        found.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
        Ok(found)
    }

    /// The commit that a name stands for: a branch, a tag, an id or the beginning of one, each perhaps
    /// with `~N` behind it for the N-th first parent before it.
    pub fn resolve(&self, name: &str) -> Result<RecordId> {
        let (base, back) = match name.split_once('~') {
            Some((base, "")) => (base, 1),
            Some((base, count)) => {
                let bad = |_| Error::invalid(format!("{} is no number of commits", quoted(count)));
                (base, count.parse::<usize>().map_err(bad)?)
            }
            None => (name, 0),
        };
        let mut id = self.resolve_base(base)?;
        for _ in 0..back {
            let parents = self.read_commit(&id)?.parents;
            id = *parents
                .first()
                .ok_or_else(|| Error::not_found(format!("there is no commit {}", quoted(name))))?;
        }
        Ok(id)
    }

    /// Commit and manifest of a branch or a tag.
    fn named(&self, name: &str) -> Result<Option<(RecordId, RecordId)>> {
        if name.parse::<RecordId>().is_ok() || check_ref_name(name).is_err() {
            return Ok(None);
        }
        for kind in [RefKind::Branch, RefKind::Tag] {
            let entry = refs::last(&self.store, kind, name)?;
            if let Some(entry) = entry
                && let (Some(commit), Some(manifest)) = (entry.commit, entry.manifest)
            {
                return Ok(Some((commit, manifest)));
            }
        }
        Ok(None)
    }

    fn resolve_base(&self, name: &str) -> Result<RecordId> {
        if let Ok(id) = name.parse::<RecordId>() {
            return Ok(id);
        }
        if let Some((commit, _)) = self.named(name)? {
            return Ok(commit);
        }
        if is_id_prefix(name) {
            let listed = self.store.list(COMMITS)?;
            let mut found = listed.iter().filter(|entry| entry.name.starts_with(name));
            if let Some(entry) = found.next() {
                return match found.next() {
                    None => entry.name.parse(),
                    Some(_) => Err(Error::invalid(format!("several commits begin with {name}"))),
                };
            }
        }
        let message = format!("there is no branch, tag or commit {}", quoted(name));
        Err(Error::not_found(message).in_file(self.root()))
    }

    /// Reads a commit.
    pub fn read_commit(&self, id: &RecordId) -> Result<Commit> {
        let commits = || self.commits.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(commit) = commits().get(id) {
            return Ok(commit.clone());
        }
        let name = format!("{COMMITS}/{id}");
        let Some(stored) = self.store.read(&name, MAX_COMMIT)? else {
            return Err(Error::not_found(format!("there is no commit {id}")).in_file(self.root()));
        };
        let commit = Commit::decode(&stored, id).map_err(|error| error.in_file(self.store.path(&name)))?;
        commits().insert(*id, commit.clone());
        Ok(commit)
    }

    pub(crate) fn read_manifest(&self, id: &RecordId) -> Result<Manifest> {
        let name = format!("{MANIFESTS}/{id}");
        let Some(stored) = self.store.read(&name, MAX_STORED)? else {
            return Err(Error::not_found(format!("there is no manifest {id}")).in_file(self.root()));
        };
        Manifest::decode(&stored, id).map_err(|error| error.in_file(self.store.path(&name)))
    }

    /// Opens the version that a name stands for.
    pub fn version(&self, name: &str) -> Result<Version> {
        let (id, known) = match self.named(name)? {
            Some((id, manifest)) => (id, Some(manifest)),
            None => (self.resolve(name)?, None),
        };
        let expected = match known {
            Some(manifest) => manifest,
            None => self.read_commit(&id)?.manifest,
        };
        // At the same time: in a store each is a request.
        let (commit, manifest, objects) = std::thread::scope(|scope| {
            let commit = scope.spawn(|| self.read_commit(&id));
            let locations = scope.spawn(|| locations::read(&self.store, &expected));
            let manifest = self.read_manifest(&expected);
            let commit = commit.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let locations = locations.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (commit, manifest, locations)
        });
        let commit = commit?;
        if commit.manifest != expected {
            let message = format!("the entry of {} names another manifest than its commit", quoted(name));
            return Err(Error::corrupt("repository.ref", message).in_file(self.root()));
        }
        let manifest = match manifest {
            Err(error) if store::is_absent(&error) && self.is_forgotten(&id)? => {
                let message = format!("the files of {} were removed by retention", quoted(name));
                return Err(Error::not_found(message).in_file(self.root()));
            }
            manifest => manifest?,
        };
        let (objects, sizes) = match objects? {
            Some((objects, sizes))
                if manifest.objects.iter().all(|object| objects.contains_key(&object.id)) =>
            {
                (objects, sizes)
            }
            // Not known, or not yet: the packs say it.
            _ => (self.located(&manifest)?, PackSizes::new()),
        };
        for object in &manifest.objects {
            if objects.get(&object.id).is_some_and(|stored| stored.of != object.of) {
                let message = format!("{} is stored as another type or shape", object.id);
                return Err(Error::corrupt("repository.locations", message).in_file(self.root()));
            }
        }
        let label = format!("{}@{}", self.root().display(), id.short());
        let objects = ObjectSet::with_sizes(&self.store, objects, &sizes);
        Ok(Version::new(id, commit, manifest, objects, label))
    }

    /// Where the objects of a manifest are, by the indexes of all packs.
    pub(crate) fn located(&self, manifest: &Manifest) -> Result<locations::Objects> {
        let packs: Vec<_> = index::packs(&self.store)?.into_iter().map(|(name, _)| name).collect();
        let mut objects = index::load_merged(&self.store, &packs, false)?;
        let needed = index::closure(&objects, manifest.objects.iter().map(|object| object.id));
        objects.retain(|id, _| needed.contains(id));
        Ok(objects)
    }

    pub(crate) fn is_forgotten(&self, id: &RecordId) -> Result<bool> {
        Ok(self.store.read(&format!("{FORGOTTEN}/{id}"), MAX_MARKER)?.is_some())
    }

    pub(crate) fn forgotten(&self) -> Result<HashSet<RecordId>> {
        let listed = self.store.list(FORGOTTEN)?;
        Ok(listed.iter().filter_map(|entry| entry.name.parse().ok()).collect())
    }

    /// The commits that lead to a version, newest first: the first `limit`, or all.
    pub fn log(&self, name: &str, limit: Option<usize>) -> Result<Vec<LogEntry>> {
        let start = self.resolve(name)?;
        let limit = limit.unwrap_or(usize::MAX);
        if !self.store.is_local() && limit > self.store.connections() {
            self.prefetch_commits()?;
        }
        let refs = self.refs()?;
        let forgotten = self.forgotten()?;
        // By time, so that the parents of a merge come in their order.
        let mut queue: BTreeSet<(u64, usize, RecordId)> = BTreeSet::new();
        let mut seen = HashSet::from([start]);
        let mut log = Vec::new();
        queue.insert((self.read_commit(&start)?.time, usize::MAX, start));
        while log.len() < limit
            && let Some((_, order, id)) = queue.pop_last()
        {
            let commit = self.read_commit(&id)?;
            for parent in &commit.parents {
                if seen.insert(*parent) {
                    let time = self.read_commit(parent)?.time;
                    // Never before its child, whatever the clocks say.
                    queue.insert((time.min(commit.time), order - 1, *parent));
                }
            }
            let refs = refs.iter().filter(|there| there.commit == id).cloned().collect();
            log.push(LogEntry { id, commit, refs, forgotten: forgotten.contains(&id) });
        }
        Ok(log)
    }

    /// Reads all commits at the same time instead of one after another.
    fn prefetch_commits(&self) -> Result<()> {
        let known: HashSet<RecordId> =
            self.commits.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect();
        let listed = self.store.list(COMMITS)?;
        let missing: Vec<RecordId> = listed
            .iter()
            .filter_map(|entry| entry.name.parse().ok())
            .filter(|id| !known.contains(id))
            .collect();
        parallel::for_each(self.store.connections(), missing, |id| match self.read_commit(&id) {
            // What nothing leads to may be damaged or go meanwhile.
            Err(error) if error.kind() == crate::ErrorKind::Io => Err(error),
            _ => Ok(()),
        })
    }

    /// Makes a branch at a version; it must be new unless `force` is set.
    pub fn create_branch(&self, name: &str, at: &str, force: bool) -> Result<RecordId> {
        self.point(RefKind::Branch, name, at, force)
    }

    /// Makes a tag at a version; it must be new unless `force` is set.
    pub fn create_tag(&self, name: &str, at: &str, force: bool) -> Result<RecordId> {
        self.point(RefKind::Tag, name, at, force)
    }

    fn point(&self, kind: RefKind, name: &str, at: &str, force: bool) -> Result<RecordId> {
        check_ref_name(name)?;
        let id = self.resolve(at)?;
        let manifest = self.read_commit(&id)?.manifest;
        if self.is_forgotten(&id)? {
            let message = format!("the files of {} were removed by retention", quoted(at));
            return Err(Error::not_found(message).in_file(self.root()));
        }
        self.point_at(kind, name, (id, manifest), force)?;
        Ok(id)
    }

    pub(crate) fn create_tag_at(
        &self,
        name: &str,
        id: RecordId,
        manifest: RecordId,
        force: bool,
    ) -> Result<()> {
        self.point_at(RefKind::Tag, name, (id, manifest), force)
    }

    pub(crate) fn point_at(
        &self,
        kind: RefKind,
        name: &str,
        to: (RecordId, RecordId),
        force: bool,
    ) -> Result<()> {
        let _lock = self.store.lock(false)?;
        let before = refs::last(&self.store, kind, name)?;
        if let Some(commit) = before.as_ref().and_then(|entry| entry.commit) {
            if commit == to.0 {
                return Ok(());
            }
            if !force {
                let message = format!("{} is there already, at {}", quoted(name), commit.short());
                return Err(Error::invalid(message).in_file(self.root()));
            }
        }
        let number = before.map_or(0, |entry| entry.number);
        match refs::advance(&self.store, kind, name, number, Some(to), "set")? {
            Some(_) => Ok(()),
            None => Err(refs::conflict(kind, name)),
        }
    }

    /// Removes a branch or a tag. Its commits stay until garbage is collected.
    pub fn delete_ref(&self, kind: RefKind, name: &str) -> Result<()> {
        let before = refs::last(&self.store, kind, name)?.filter(|entry| entry.commit.is_some());
        let Some(before) = before else {
            return Err(Error::not_found(format!("there is no {}", quoted(name))).in_file(self.root()));
        };
        match refs::advance(&self.store, kind, name, before.number, None, "removed")? {
            Some(_) => Ok(()),
            None => Err(refs::conflict(kind, name)),
        }
    }
}

fn check_marker(marker: &[u8]) -> Result<()> {
    let broken = || Error::corrupt("repository.marker", "the file that marks a repository is damaged");
    let text = std::str::from_utf8(marker).map_err(|_| broken())?;
    let mut known = false;
    let mut scanner = Scanner::new(text);
    scanner.object(|scanner, key| match &*key {
        "format" => {
            known = true;
            manifest::check_format(scanner, FORMAT)
        }
        _ => scanner.skip(),
    })?;
    if known { Ok(()) } else { Err(broken()) }
}
