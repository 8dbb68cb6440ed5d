//! Versions from one repository to another: only what is missing travels, as it is stored.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use super::locations::{self, Objects};
use super::names::{COMMITS, MANIFESTS, RecordId};
use super::pack::PackWriter;
use super::refs::{self, Ref, RefKind};
use super::restore::ObjectSet;
use super::{Repository, gc, index};
use crate::error::{Error, Result, quoted};
use crate::id::ContentId;
use crate::progress::{Observer, advance, finish};
use crate::remote::Options;

/// How to transfer.
#[derive(Clone, Default)]
pub struct TransferOptions<'a> {
    /// Branches and tags to transfer; all if there are none.
    pub refs: Vec<String>,
    /// Let branches and tags of the target go where they do not lead by themselves.
    pub force: bool,
    /// Is told how many stored bytes were copied, and may cancel.
    pub observer: Option<&'a dyn Observer>,
}

/// What was transferred.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Transferred {
    /// Branches and tags that changed in the target.
    pub refs: Vec<String>,
    /// Commits that were missing.
    pub commits: u64,
    /// Objects that were missing.
    pub objects: u64,
    /// Bytes that these take.
    pub bytes: u64,
}

impl Repository {
    /// Copies versions to another repository.
    pub fn push(&self, target: &Repository, options: &TransferOptions<'_>) -> Result<Transferred> {
        transfer(self, target, options)
    }

    /// Copies versions from another repository.
    pub fn pull(&self, source: &Repository, options: &TransferOptions<'_>) -> Result<Transferred> {
        transfer(source, self, options)
    }

    /// Makes a new repository with the versions of this one.
    pub fn clone_to(
        &self,
        root: impl AsRef<Path>,
        remote: Options,
        options: &TransferOptions<'_>,
    ) -> Result<(Repository, Transferred)> {
        let target = Repository::init(root, remote)?;
        let done = transfer(self, &target, options)?;
        Ok((target, done))
    }

    /// Whether a commit is one of those that lead to another.
    fn leads_to(&self, ancestor: &RecordId, id: &RecordId) -> Result<bool> {
        let (mut queue, mut seen) = (vec![*id], HashSet::new());
        while let Some(at) = queue.pop() {
            if at == *ancestor {
                return Ok(true);
            }
            if seen.insert(at) {
                queue.extend(self.read_commit(&at)?.parents);
            }
        }
        Ok(false)
    }
}

fn wanted(source: &Repository, options: &TransferOptions<'_>) -> Result<Vec<Ref>> {
    let all = source.refs()?;
    if options.refs.is_empty() {
        return Ok(all);
    }
    let mut wanted = Vec::new();
    for name in &options.refs {
        let found: Vec<&Ref> = all.iter().filter(|there| there.name == *name).collect();
        if found.is_empty() {
            let message = format!("there is no branch or tag {}", quoted(name));
            return Err(Error::not_found(message).in_file(source.root()));
        }
        wanted.extend(found.into_iter().cloned());
    }
    Ok(wanted)
}

fn transfer(source: &Repository, target: &Repository, options: &TransferOptions<'_>) -> Result<Transferred> {
    let refs = wanted(source, options)?;
    let there = target.refs()?;
    for wanted in &refs {
        let now = there.iter().find(|there| (there.kind, &there.name) == (wanted.kind, &wanted.name));
        let Some(now) = now.filter(|now| now.commit != wanted.commit && !options.force) else { continue };
        let follows = wanted.kind == RefKind::Branch
            && match source.read_commit(&now.commit) {
                Ok(_) => source.leads_to(&now.commit, &wanted.commit)?,
                Err(_) => false, // not known here, so it leads nowhere
            };
        if !follows {
            let message = format!(
                "{} of the target is at {}, which does not lead to {}: transfer it under another name, or \
                 replace it with force",
                quoted(&wanted.name),
                now.commit.short(),
                wanted.commit.short()
            );
            return Err(Error::mismatch(message).in_file(target.root()));
        }
    }
    let mut done = Transferred::default();
    let missing = missing_commits(source, target, &refs)?;
    let forgotten = source.forgotten()?;
    let mut manifests = Vec::new();
    for id in &missing {
        let commit = source.read_commit(id)?;
        if !forgotten.contains(id) && !manifests.iter().any(|(known, _)| *known == commit.manifest) {
            manifests.push((commit.manifest, source.read_manifest(&commit.manifest)?));
        }
    }
    let objects = copy_objects(source, target, &manifests, options, &mut done)?;
    finish(options.observer)?;
    let mut places: Vec<(RecordId, Objects)> = Vec::new();
    let sizes = index::sizes(&target.store)?;
    for (id, manifest) in &manifests {
        let (encoded, stored) = manifest.encode()?;
        if encoded != *id {
            return Err(Error::mismatch("a manifest is not written as it was read").in_file(source.root()));
        }
        target.store.write_new(&format!("{MANIFESTS}/{id}"), &stored)?;
        let needed = index::closure(&objects, manifest.objects.iter().map(|object| object.id));
        let known: Objects = needed.iter().filter_map(|id| Some((*id, objects.get(id)?.clone()))).collect();
        locations::write(&target.store, id, &known, &sizes)?;
        places.push((*id, known));
    }
    // Parents first: what is there leads only to what is there.
    for id in missing.iter().rev() {
        let (encoded, stored) = source.read_commit(id)?.encode()?;
        if encoded != *id {
            return Err(Error::mismatch("a commit is not written as it was read").in_file(source.root()));
        }
        target.store.write_new(&format!("{COMMITS}/{id}"), &stored)?;
        if forgotten.contains(id) {
            target.store.write_new(&format!("forgotten/{id}"), b"{\"format\":1}\n")?;
        }
        done.commits += 1;
    }
    {
        let _lock = target.store.lock(false)?;
        for (id, known) in &places {
            gc::check_kept(&target.store, id, known)?;
        }
        for wanted in &refs {
            let before = refs::last(&target.store, wanted.kind, &wanted.name)?;
            let now = before.as_ref().and_then(|entry| entry.commit);
            if now == Some(wanted.commit) {
                continue;
            }
            let known = there.iter().find(|there| (there.kind, &there.name) == (wanted.kind, &wanted.name));
            if now != known.map(|known| known.commit) {
                return Err(refs::conflict(wanted.kind, &wanted.name));
            }
            let to = Some((wanted.commit, source.read_commit(&wanted.commit)?.manifest));
            let number = before.map_or(0, |entry| entry.number);
            match refs::advance(&target.store, wanted.kind, &wanted.name, number, to, "transfer")? {
                Some(_) => done.refs.push(wanted.name.clone()),
                None => return Err(refs::conflict(wanted.kind, &wanted.name)),
            }
        }
    }
    Ok(done)
}

/// Commits that the target lacks, children before their parents.
fn missing_commits(source: &Repository, target: &Repository, refs: &[Ref]) -> Result<Vec<RecordId>> {
    let listed = target.store.list(COMMITS)?;
    let there: HashSet<RecordId> = listed.iter().filter_map(|entry| entry.name.parse().ok()).collect();
    // A commit whose parents are missing was left by a transfer that did not finish.
    let complete = |id: &RecordId| -> Result<bool> {
        let (mut queue, mut seen) = (vec![*id], HashSet::new());
        while let Some(at) = queue.pop() {
            if !there.contains(&at) {
                return Ok(false);
            }
            if seen.insert(at) {
                queue.extend(source.read_commit(&at)?.parents);
            }
        }
        Ok(true)
    };
    let at_target: HashSet<RecordId> = target.refs()?.into_iter().map(|there| there.commit).collect();
    let mut order = Vec::new();
    let mut seen: HashSet<RecordId> = HashSet::new();
    let mut queue: Vec<RecordId> = refs.iter().map(|wanted| wanted.commit).collect();
    while let Some(id) = queue.pop() {
        // What a ref of the target is at is there with all that it needs.
        if !seen.insert(id) || (at_target.contains(&id) && complete(&id)?) {
            continue;
        }
        order.push(id);
        queue.extend(source.read_commit(&id)?.parents);
    }
    sort_by_descent(source, &mut order)?;
    Ok(order)
}

/// Children before parents, whatever way they were found.
fn sort_by_descent(source: &Repository, order: &mut Vec<RecordId>) -> Result<()> {
    let members: HashSet<RecordId> = order.iter().copied().collect();
    let mut waiting = std::collections::HashMap::new();
    for id in order.iter() {
        for parent in source.read_commit(id)?.parents.into_iter().filter(|parent| members.contains(parent)) {
            *waiting.entry(parent).or_insert(0usize) += 1;
        }
    }
    let mut ready: Vec<RecordId> = order.iter().filter(|id| !waiting.contains_key(id)).copied().collect();
    let mut sorted = Vec::with_capacity(order.len());
    while let Some(id) = ready.pop() {
        sorted.push(id);
        for parent in source.read_commit(&id)?.parents {
            if let Some(count) = waiting.get_mut(&parent) {
                *count -= 1;
                if *count == 0 {
                    ready.push(parent);
                }
            }
        }
    }
    if sorted.len() != order.len() {
        return Err(Error::corrupt("repository.cycle", "a commit is its own ancestor").in_file(source.root()));
    }
    *order = sorted;
    Ok(())
}

/// Copies the objects of these manifests that the target lacks; says where all of them are there.
fn copy_objects(
    source: &Repository,
    target: &Repository,
    manifests: &[(RecordId, super::manifest::Manifest)],
    options: &TransferOptions<'_>,
    done: &mut Transferred,
) -> Result<Objects> {
    let (mut there, _) = target.known_objects(false)?;
    let roots: Vec<ContentId> =
        manifests.iter().flat_map(|(_, manifest)| manifest.objects.iter().map(|object| object.id)).collect();
    if roots.iter().all(|id| there.contains_key(id)) {
        return Ok(there);
    }
    let (here, _) = source.known_objects(false)?;
    // What the target has needs none of its bases from here.
    let mut missing: HashSet<ContentId> = HashSet::new();
    for root in roots {
        let mut at = Some(root);
        while let Some(id) = at.filter(|id| !there.contains_key(id) && !missing.contains(id)) {
            let stored = here.get(&id).ok_or_else(|| {
                let message = format!("no pack has the object {id}");
                Error::corrupt("repository.missing", message).in_file(source.root())
            })?;
            missing.insert(id);
            at = stored.base();
        }
    }
    let set = ObjectSet::new(&source.store, here);
    let mut order: Vec<ContentId> = missing.into_iter().collect();
    order.sort_by_key(|id| {
        let stored = set.get(id).ok();
        let place = stored.and_then(|stored| stored.blobs().next()).map_or(0, |blob| blob.offset);
        (stored.map(|stored| stored.pack.clone()), place, *id)
    });
    let mut packs = PackWriter::new(&target.store);
    for id in order {
        let encoded = gc::copy(&source.store, &set, set.get(&id)?)?;
        there.insert(id, Arc::new(packs.add(&id, &encoded)?));
        done.objects += 1;
        done.bytes += encoded.len();
        advance(options.observer, encoded.len())?;
    }
    packs.finish()?;
    Ok(there)
}
