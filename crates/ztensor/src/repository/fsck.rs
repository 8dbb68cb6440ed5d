//! Checking a repository: that everything that branches and tags lead to is there and is what it says.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use super::locations::{self, Objects};
use super::manifest::Manifest;
use super::names::RecordId;
use super::restore::ObjectSet;
use super::{Repository, index, pack, refs};
use crate::base::parallel;
use crate::error::{Error, Result};
use crate::id::ContentId;
use crate::progress::{Observer, advance};

/// The objects of each pack.
type ByPack = HashMap<Arc<str>, HashSet<ContentId>>;

/// How to check.
#[derive(Clone, Copy, Default)]
pub struct FsckOptions<'a> {
    /// Decode every object and compare it with its id, instead of lists of contents only.
    pub full: bool,
    /// Write lists of places again that are missing or wrong.
    pub repair: bool,
    /// Threads to use; 0 is one per core.
    pub threads: usize,
    /// Is told how many bytes were decoded, and may cancel.
    pub observer: Option<&'a dyn Observer>,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Checked {
    /// What is wrong; empty if nothing is.
    pub errors: Vec<String>,
    /// What costs time, but no data.
    pub warnings: Vec<String>,
    /// Branches and tags.
    pub refs: u64,
    /// Commits.
    pub commits: u64,
    /// Versions whose files are there.
    pub versions: u64,
    /// Packs.
    pub packs: u64,
    /// Objects that are needed.
    pub objects: u64,
    /// Objects that nothing needs: garbage collection removes them.
    pub unneeded: u64,
    /// Bytes that were decoded and compared with their ids.
    pub decoded: u64,
}

impl Repository {
    /// Checks the repository. Damage is reported, and is no error of the call.
    pub fn fsck(&self, options: &FsckOptions<'_>) -> Result<Checked> {
        let mut found = Checked::default();
        let (objects, by_pack) = self.check_packs(&mut found)?;
        self.check_indexes(options, &mut found)?;
        let versions = self.check_history(&mut found)?;
        found.versions = versions.len() as u64;
        let set = ObjectSet::new(&self.store, objects);
        let mut needed: HashSet<ContentId> = HashSet::new();
        for (id, manifest) in &versions {
            for object in &manifest.objects {
                if let Err(error) = check_object(&set, object) {
                    found.errors.push(format!("manifest {}: {error}", id.short()));
                }
                needed.insert(object.id);
            }
            self.check_locations(id, manifest, &set, &by_pack, options, &mut found)?;
        }
        let needed = index::closure(set.objects(), needed);
        found.objects = needed.len() as u64;
        found.unneeded = set.objects().keys().filter(|id| !needed.contains(id)).count() as u64;
        if options.full {
            let mut needed: Vec<ContentId> = needed.into_iter().filter(|id| set.chain(id).is_ok()).collect();
            needed.sort();
            let results = Mutex::new((0u64, Vec::new()));
            parallel::for_each(options.threads, needed, |id| {
                let read = set.read_verified(&id, 1);
                let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
                match read {
                    Ok(bytes) => {
                        results.0 += bytes.len() as u64;
                        drop(results);
                        advance(options.observer, bytes.len() as u64)
                    }
                    Err(error) => {
                        results.1.push(format!("object {id}: {error}"));
                        Ok(())
                    }
                }
            })?;
            let (decoded, mut errors) = results.into_inner().unwrap_or_else(PoisonError::into_inner);
            errors.sort();
            found.errors.extend(errors);
            found.decoded = decoded;
        }
        Ok(found)
    }

    /// Reads the indexes of all packs.
    fn check_packs(&self, found: &mut Checked) -> Result<(Objects, ByPack)> {
        let mut good = Vec::new();
        let mut by_pack = HashMap::new();
        for (name, _) in index::packs(&self.store)? {
            found.packs += 1;
            match pack::read_index(&self.store, &name) {
                Ok(entries) => {
                    by_pack.insert(name.clone(), entries.into_iter().map(|(id, _)| id).collect());
                    good.push(name);
                }
                Err(error) => found.errors.push(error.to_string()),
            }
        }
        Ok((index::load(&self.store, &good)?, by_pack))
    }

    /// Compares merged indexes with those of the packs.
    fn check_indexes(&self, options: &FsckOptions<'_>, found: &mut Checked) -> Result<()> {
        let merged = match index::read_merged(&self.store) {
            Ok(merged) => merged,
            Err(error) => {
                found.errors.push(error.to_string());
                return Ok(());
            }
        };
        for list in merged {
            let mut wrong = false;
            for pack in &list.packs {
                // Packs that are gone, or damaged, are another matter.
                let Ok(mut expected) = pack::read_index(&self.store, pack) else { continue };
                let here = list.entries.iter().filter(|(_, stored)| stored.pack == *pack);
                let mut here: Vec<_> = here.cloned().collect();
                expected.sort_by_key(|(id, _)| *id);
                here.sort_by_key(|(id, _)| *id);
                wrong |= here != expected;
            }
            if wrong {
                found.errors.push(format!("{}: it does not say what the packs say", list.name));
                if options.repair {
                    self.store.delete(&list.name)?;
                }
            }
        }
        Ok(())
    }

    /// Follows all branches and tags, and returns the manifests of versions whose files are there.
    fn check_history(&self, found: &mut Checked) -> Result<Vec<(RecordId, Manifest)>> {
        let mut queue = Vec::new();
        for (kind, name, number) in refs::all(&self.store)? {
            match refs::read(&self.store, kind, &name, number) {
                Ok(Some(entry)) => {
                    let Some(commit) = entry.commit else { continue };
                    found.refs += 1;
                    match self.read_commit(&commit) {
                        Ok(read) if Some(read.manifest) != entry.manifest => {
                            found
                                .errors
                                .push(format!("{name}: its entry names another manifest than its commit"));
                        }
                        _ => {}
                    }
                    queue.push(commit);
                }
                Ok(None) => found.errors.push(format!("{name}: entry {number} is gone")),
                Err(error) => found.errors.push(error.to_string()),
            }
        }
        let forgotten = self.forgotten()?;
        let (mut seen, mut manifests) = (HashSet::new(), HashMap::new());
        while let Some(id) = queue.pop() {
            if !seen.insert(id) {
                continue;
            }
            let commit = match self.read_commit(&id) {
                Ok(commit) => commit,
                Err(error) => {
                    found.errors.push(error.to_string());
                    continue;
                }
            };
            found.commits += 1;
            queue.extend(&commit.parents);
            if forgotten.contains(&id) || manifests.contains_key(&commit.manifest) {
                continue;
            }
            match self.read_manifest(&commit.manifest) {
                Ok(manifest) => drop(manifests.insert(commit.manifest, manifest)),
                Err(error) => found.errors.push(format!("commit {}: {error}", id.short())),
            }
        }
        let mut manifests: Vec<_> = manifests.into_iter().collect();
        manifests.sort_by_key(|(id, _)| *id);
        Ok(manifests)
    }

    /// Compares the list of places of a version with the packs.
    fn check_locations(
        &self,
        id: &RecordId,
        manifest: &Manifest,
        set: &ObjectSet,
        by_pack: &ByPack,
        options: &FsckOptions<'_>,
        found: &mut Checked,
    ) -> Result<()> {
        let wrong = match locations::read(&self.store, id) {
            Ok(None) => Some("its location file is missing".to_owned()),
            Ok(Some((known, _))) => {
                let complete = manifest.objects.iter().all(|object| known.contains_key(&object.id));
                let bases = known.values().filter_map(|stored| stored.base());
                let closed = bases.into_iter().all(|base| known.contains_key(&base));
                let there = known.iter().all(|(id, stored)| {
                    by_pack.get(&stored.pack).is_some_and(|objects| objects.contains(id))
                });
                (!(complete && closed && there)).then(|| "its location file is out of date".to_owned())
            }
            Err(error) => Some(error.to_string()),
        };
        let Some(wrong) = wrong else { return Ok(()) };
        found.warnings.push(format!("manifest {}: {wrong}", id.short()));
        if options.repair {
            let needed = index::closure(set.objects(), manifest.objects.iter().map(|object| object.id));
            let places = set.objects().iter().filter(|(id, _)| needed.contains(id));
            let places: Objects = places.map(|(id, stored)| (*id, stored.clone())).collect();
            locations::write(&self.store, id, &places, &index::sizes(&self.store)?)?;
        }
        Ok(())
    }
}

fn check_object(set: &ObjectSet, object: &super::manifest::ObjectEntry) -> Result<()> {
    if set.get(&object.id)?.of != object.of {
        let message = format!("{} is stored as another type or shape", object.id);
        return Err(Error::corrupt("repository.pack", message));
    }
    // Builds every decoder, and reads nothing.
    set.storage(&object.id, 0).map(drop)
}
