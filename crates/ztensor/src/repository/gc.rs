//! Garbage: versions that retention forgets, and files that nothing needs any more.
//!
//! What nothing needs is condemned first and removed later, when a grace period is over and it is
//! still not needed. Writers that began before it was condemned have that time to finish; those that
//! begin later do not build on it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use z4ai::Effort;

use super::locations::{self, Objects};
use super::manifest::{Manifest, check_format};
use super::names::{
    COMMITS, CONDEMNED, FORGOTTEN, LOCATIONS, MANIFESTS, PACKS, RecordId, is_pack_name, pack_file,
    random_name,
};
use super::pack::{Coding, Encoded, EncodedForm, PackWriter, Stored};
use super::refs::{RefKind, now};
use super::restore::ObjectSet;
use super::store::Store;
use super::{Repository, index};
use crate::error::{Error, Result, quoted};
use crate::format::json::{Scanner, push_string};
use crate::id::ContentId;
use crate::write::Compression;
use crate::write::compress::{Blob, Compressors, codec_options, not_encoded};

/// The version of the format. (format)
const FORMAT: u64 = 1;
/// The longest list. (limit)
const MAX_LIST: u64 = 256 << 20;
/// Time between condemning and removing. (limit: writers may take that long)
pub const GRACE: Duration = Duration::from_secs(14 * 24 * 3600);
/// A pack of which less than this share is needed, in per cent, is rewritten. (limit: what
/// is kept takes at most twice its room)
const WORTH_KEEPING: u64 = 50;

/// Which versions are kept, beside those that branches and tags are at. Without any rule, all are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retention {
    /// The last ones of each branch.
    pub keep_last: Option<u64>,
    /// Every N-th one of each branch, counted from its first.
    pub keep_every: Option<u64>,
    /// Those that are younger.
    pub keep_within: Option<Duration>,
}

impl Retention {
    /// Whether it forgets anything.
    pub fn is_some(&self) -> bool {
        *self != Retention::default()
    }
}

/// How to collect garbage.
#[derive(Debug, Clone, Copy)]
pub struct GcOptions {
    /// Which versions are kept.
    pub retention: Retention,
    /// Time between condemning and removing. With none, no other process may write meanwhile.
    pub grace: Duration,
    /// Only say what would be done.
    pub dry_run: bool,
    /// Threads to use; 0 is one per core.
    pub threads: usize,
}

impl Default for GcOptions {
    fn default() -> Self {
        GcOptions { retention: Retention::default(), grace: GRACE, dry_run: false, threads: 0 }
    }
}

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Collected {
    /// Versions whose files were forgotten by this call.
    pub forgotten: Vec<RecordId>,
    /// Files that nothing needs and that will be removed after the grace period.
    pub condemned: Vec<String>,
    /// Files that were removed.
    pub removed: Vec<String>,
    /// Bytes of the packs that were removed.
    pub removed_bytes: u64,
    /// Objects that were written again because what they depended on, or most of their pack, goes.
    pub rewritten: u64,
    /// Bytes that were written for them.
    pub rewritten_bytes: u64,
}

/// Files that were condemned together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Condemned {
    pub(crate) created: u64,
    pub(crate) remove_after: u64,
    pub(crate) files: BTreeSet<String>,
}

impl Condemned {
    fn encode(&self) -> String {
        let mut json = format!("{{\"format\":{FORMAT},\"created\":{}", self.created);
        let _ = write!(json, ",\"remove_after\":{},\"files\":[", self.remove_after);
        for (at, file) in self.files.iter().enumerate() {
            json.push_str(if at > 0 { ",\n" } else { "\n" });
            push_string(&mut json, file);
        }
        json.push_str("]}\n");
        json
    }
}

/// Whether a file is one that garbage collection may remove.
fn is_collectable(file: &str) -> bool {
    let Some((folder, name)) = file.split_once('/') else { return false };
    match folder {
        PACKS => name.strip_suffix(".zt").is_some_and(is_pack_name),
        MANIFESTS | COMMITS | LOCATIONS | FORGOTTEN => name.parse::<RecordId>().is_ok(),
        _ => false,
    }
}

/// Parses a list of condemned files.
pub(crate) fn parse(bytes: &[u8]) -> Result<Condemned> {
    let broken = |message: String| Error::corrupt("repository.condemned", message);
    let text = std::str::from_utf8(bytes).map_err(|_| broken("it is not UTF-8".into()))?;
    let mut list = Condemned::default();
    let mut scanner = Scanner::new(text);
    scanner.object(|scanner, key| match &*key {
        "format" => check_format(scanner, FORMAT),
        "created" => {
            list.created = scanner.u64()?;
            Ok(())
        }
        "remove_after" => {
            list.remove_after = scanner.u64()?;
            Ok(())
        }
        "files" => scanner.array(|scanner| {
            let file = scanner.string()?.into_owned();
            if !is_collectable(&file) {
                return Err(broken(format!("{} is not a file that may be collected", quoted(&file))));
            }
            list.files.insert(file);
            Ok(())
        }),
        _ => scanner.skip(),
    })?;
    scanner.end()?;
    Ok(list)
}

/// All lists, by the names of their files.
fn lists(store: &Store) -> Result<Vec<(String, Condemned)>> {
    let mut lists = Vec::new();
    for entry in store.list(CONDEMNED)? {
        let name = format!("{CONDEMNED}/{}", entry.name);
        if let Some(bytes) = store.read(&name, MAX_LIST)? {
            lists.push((name.clone(), parse(&bytes).map_err(|error| error.in_file(store.path(&name)))?));
        }
    }
    Ok(lists)
}

/// Packs that will go: new versions do not build on them.
pub(crate) fn condemned_packs(store: &Store) -> Result<HashSet<String>> {
    let files = lists(store)?.into_iter().flat_map(|(_, list)| list.files);
    Ok(files.filter_map(|file| Some(file.strip_prefix("packs/")?.strip_suffix(".zt")?.to_owned())).collect())
}

/// The error of a commit that builds on what is collected as garbage.
pub(crate) const COLLECTED: &str = "repository.collected";

/// Refuses a version of which a part may be removed before it becomes visible: half of the grace
/// period has to be left, and nothing may be gone.
pub(crate) fn check_kept(store: &Store, manifest: &RecordId, objects: &Objects) -> Result<()> {
    let mut needed: BTreeSet<String> = objects.values().map(|stored| pack_file(&stored.pack)).collect();
    needed.insert(format!("{MANIFESTS}/{manifest}"));
    let gone = |file: &str| {
        let message = format!("{file}, which the new version needs, was collected as garbage: commit again");
        Error::corrupt(COLLECTED, message).in_file(store.root())
    };
    let now = now();
    let mut condemned = false;
    for (_, list) in lists(store)? {
        let late = list.created + list.remove_after.saturating_sub(list.created) / 2;
        for file in list.files.iter().filter(|file| needed.contains(*file)) {
            condemned = true;
            if now >= late {
                return Err(gone(file));
            }
        }
    }
    if store.is_local() || condemned {
        for file in &needed {
            if crate::remote::store::len(store.path(file), store.remote())?.is_none() {
                return Err(gone(file));
            }
        }
    }
    Ok(())
}

/// What is needed.
struct Marked {
    /// Commits that branches or tags lead to.
    commits: HashSet<RecordId>,
    /// Of those, the ones whose files are kept.
    kept: HashSet<RecordId>,
    /// Their manifests.
    manifests: BTreeMap<RecordId, Manifest>,
    /// Their objects, without those that these depend on.
    objects: HashSet<ContentId>,
}

impl Repository {
    /// Forgets versions, and removes what nothing needs.
    pub fn gc(&self, options: &GcOptions) -> Result<Collected> {
        let _lock = self.store.lock(true)?;
        let mut done = Collected::default();
        let marked = self.mark(options, &mut done)?;
        let packs = index::packs(&self.store)?;
        let sizes: HashMap<Arc<str>, u64> = packs.iter().cloned().collect();
        let names: Vec<Arc<str>> = packs.into_iter().map(|(name, _)| name).collect();
        let (objects, held) = index::load_sized(&self.store, &names)?;
        if let Some(id) = marked.objects.iter().find(|id| !objects.contains_key(id)) {
            let message =
                format!("the object {id} of a version is missing: run `ztensor repo fsck` before gc");
            return Err(Error::corrupt("repository.missing", message).in_file(self.root()));
        }
        let located = self.rewrite(&marked, objects, &held, options, &mut done)?;
        let mut needed: HashSet<String> = located.values().map(|stored| pack_file(&stored.pack)).collect();
        for manifest in marked.manifests.keys() {
            needed.insert(format!("{MANIFESTS}/{manifest}"));
            needed.insert(locations::file(manifest));
        }
        needed.extend(marked.commits.iter().map(|id| format!("{COMMITS}/{id}")));
        needed.extend(marked.commits.difference(&marked.kept).map(|id| format!("{FORGOTTEN}/{id}")));
        self.sweep(&needed, &sizes, options, &mut done)?;
        Ok(done)
    }

    /// Finds what branches and tags lead to, and forgets what retention does not keep.
    fn mark(&self, options: &GcOptions, done: &mut Collected) -> Result<Marked> {
        let refs = self.refs()?;
        let forgotten = self.forgotten()?;
        let mut commits: HashSet<RecordId> = HashSet::new();
        let mut queue: Vec<RecordId> = refs.iter().map(|there| there.commit).collect();
        while let Some(id) = queue.pop() {
            if commits.insert(id) {
                queue.extend(self.read_commit(&id)?.parents);
            }
        }
        let mut kept: HashSet<RecordId> = commits.clone();
        if options.retention.is_some() {
            kept = refs.iter().map(|there| there.commit).collect();
            for branch in refs.iter().filter(|there| there.kind == RefKind::Branch) {
                let mut line = vec![branch.commit];
                while let Some(parent) = line
                    .last()
                    .map(|id| self.read_commit(id))
                    .transpose()?
                    .and_then(|c| c.parents.first().copied())
                {
                    line.push(parent);
                }
                for (place, id) in line.iter().enumerate() {
                    let (place, number) = (place as u64, (line.len() - place) as u64);
                    let Retention { keep_last, keep_every, keep_within } = options.retention;
                    let age = now().saturating_sub(self.read_commit(id)?.time);
                    if keep_last.is_some_and(|last| place < last)
                        || keep_every.is_some_and(|every| every > 0 && (number - 1).is_multiple_of(every))
                        || keep_within.is_some_and(|within| age < within.as_secs())
                    {
                        kept.insert(*id);
                    }
                }
            }
        }
        kept.retain(|id| !forgotten.contains(id));
        let mut manifests = BTreeMap::new();
        for id in &kept {
            let manifest = self.read_commit(id)?.manifest;
            if let std::collections::btree_map::Entry::Vacant(place) = manifests.entry(manifest) {
                place.insert(self.read_manifest(&manifest)?);
            }
        }
        let new: BTreeSet<RecordId> =
            commits.iter().filter(|id| !kept.contains(id) && !forgotten.contains(id)).copied().collect();
        for id in new {
            if !options.dry_run {
                self.store.write_new(&format!("{FORGOTTEN}/{id}"), b"{\"format\":1}\n")?;
            }
            done.forgotten.push(id);
        }
        let objects = manifests.values().flat_map(|manifest| manifest.objects.iter().map(|object| object.id));
        let objects = objects.collect();
        Ok(Marked { commits, kept, manifests, objects })
    }

    /// Writes again what depends on objects that go, and what is left of packs that are mostly
    /// garbage; says where everything is that is needed.
    fn rewrite(
        &self,
        marked: &Marked,
        objects: Objects,
        held: &HashMap<Arc<str>, u64>,
        options: &GcOptions,
        done: &mut Collected,
    ) -> Result<Objects> {
        let set = ObjectSet::new(&self.store, objects);
        let mut packs = PackWriter::new(&self.store);
        let mut moved: Objects = Objects::new();
        for group in orphans(&set, &marked.objects) {
            let Some(new) = rebased(&set, &group, options.threads)? else { continue };
            for (id, encoded) in new {
                done.rewritten += 1;
                done.rewritten_bytes += encoded.len();
                if !options.dry_run {
                    moved.insert(id, Arc::new(packs.add(&id, &encoded)?));
                } else {
                    moved.insert(id, set.get(&id)?.clone());
                }
            }
        }
        let mut located = set.objects().clone();
        located.extend(moved.iter().map(|(id, stored)| (*id, stored.clone())));
        let mut needed = match options.dry_run {
            // As if those that would be written again depended on nothing.
            true => marked.objects.clone(),
            false => index::closure(&located, marked.objects.iter().copied()),
        };
        if options.dry_run {
            let rest = marked.objects.iter().filter(|id| !moved.contains_key(id)).copied();
            needed.extend(index::closure(&located, rest));
        }
        let mut live: HashMap<Arc<str>, u64> = HashMap::new();
        for id in &needed {
            let stored = &located[id];
            *live.entry(stored.pack.clone()).or_default() += stored.len();
        }
        let sparse = |pack: &Arc<str>, used: u64| {
            held.get(pack).is_some_and(|held| used.saturating_mul(100) < held.saturating_mul(WORTH_KEEPING))
        };
        let sparse: HashSet<Arc<str>> =
            live.iter().filter(|(pack, used)| sparse(pack, **used)).map(|(pack, _)| pack.clone()).collect();
        let mut copied: Vec<ContentId> =
            needed.iter().filter(|id| sparse.contains(&located[*id].pack)).copied().collect();
        // In the order in which they lie, so that they are read in one go.
        copied.sort_by_key(|id| {
            let stored = &located[id];
            (stored.pack.clone(), stored.blobs().next().map_or(0, |blob| blob.offset), *id)
        });
        for id in copied {
            let stored = located[&id].clone();
            done.rewritten += 1;
            done.rewritten_bytes += stored.len();
            if !options.dry_run {
                let encoded = copy(&self.store, &set, &stored)?;
                moved.insert(id, Arc::new(packs.add(&id, &encoded)?));
            }
        }
        if options.dry_run {
            located.retain(|id, stored| needed.contains(id) && !sparse.contains(&stored.pack));
            return Ok(located);
        }
        packs.finish()?;
        located.extend(moved.iter().map(|(id, stored)| (*id, stored.clone())));
        located.retain(|id, _| needed.contains(id));
        // Lists of places that name packs which go; an earlier collection may have been interrupted
        // between writing objects again and writing these.
        let kept: HashSet<&Arc<str>> = located.values().map(|stored| &stored.pack).collect();
        if held.keys().any(|pack| !kept.contains(pack)) {
            let sizes = index::sizes(&self.store)?;
            for (id, manifest) in &marked.manifests {
                let (known, _) = locations::read(&self.store, id)?.unwrap_or_default();
                let current = |stored: &Arc<Stored>| kept.contains(&stored.pack);
                if known.is_empty() || !known.values().all(current) {
                    let needed = index::closure(&located, manifest.objects.iter().map(|object| object.id));
                    let places = needed.iter().map(|id| (*id, located[id].clone())).collect();
                    locations::write(&self.store, id, &places, &sizes)?;
                }
            }
        }
        Ok(located)
    }

    /// Condemns what is not needed, and removes what was condemned long enough ago.
    fn sweep(
        &self,
        needed: &HashSet<String>,
        sizes: &HashMap<Arc<str>, u64>,
        options: &GcOptions,
        done: &mut Collected,
    ) -> Result<()> {
        let mut garbage: BTreeSet<String> =
            sizes.keys().map(|pack| pack_file(pack)).filter(|file| !needed.contains(file)).collect();
        for folder in [LOCATIONS, MANIFESTS, COMMITS, FORGOTTEN] {
            let listed = self.store.list(folder)?.into_iter().map(|entry| format!("{folder}/{}", entry.name));
            garbage.extend(listed.filter(|file| is_collectable(file) && !needed.contains(file)));
        }
        let now = now();
        let lists = lists(&self.store)?;
        let due: BTreeSet<String> = match options.grace.is_zero() {
            true => garbage.clone(),
            false => {
                let over = lists.iter().filter(|(_, list)| list.remove_after <= now);
                over.flat_map(|(_, list)| list.files.iter())
                    .filter(|file| garbage.contains(*file))
                    .cloned()
                    .collect()
            }
        };
        let waiting: BTreeSet<&String> = lists.iter().flat_map(|(_, list)| &list.files).collect();
        let new: BTreeSet<String> =
            garbage.iter().filter(|file| !due.contains(*file) && !waiting.contains(file)).cloned().collect();
        if !new.is_empty() {
            let list =
                Condemned { created: now, remove_after: now + options.grace.as_secs(), files: new.clone() };
            if !options.dry_run {
                let name = format!("{CONDEMNED}/{now:012}-{}", random_name());
                self.store.write_new(&name, list.encode().as_bytes())?;
            }
            done.condemned.extend(new);
        }
        for file in due {
            let pack = file.strip_prefix("packs/").and_then(|name| name.strip_suffix(".zt"));
            done.removed_bytes += pack.and_then(|name| sizes.get(name)).copied().unwrap_or(0);
            if !options.dry_run {
                self.store.delete(&file)?;
            }
            done.removed.push(file);
        }
        if !options.dry_run {
            if done.removed.iter().any(|file| file.starts_with(PACKS)) {
                index::remove_stale(&self.store)?;
            }
            for (name, list) in lists {
                // Done with, or needed again.
                if list.files.iter().all(|file| !garbage.contains(file) || done.removed.contains(file)) {
                    self.store.delete(&name)?;
                }
            }
        }
        Ok(())
    }
}

/// Needed objects that depend on objects which are needed for nothing else.
struct Orphans {
    /// What depends on them directly.
    needed: Vec<ContentId>,
    /// The objects that would go.
    bases: HashSet<ContentId>,
}

/// Groups needed objects whose bases are not needed by the object that these end in.
fn orphans(set: &ObjectSet, needed: &HashSet<ContentId>) -> Vec<Orphans> {
    let mut groups: BTreeMap<ContentId, Orphans> = BTreeMap::new();
    let mut sorted: Vec<&ContentId> = needed.iter().collect();
    sorted.sort();
    for id in sorted {
        let mut bases = Vec::new();
        let mut at = set.get(id).ok().and_then(|stored| stored.base());
        while let Some(base) =
            at.filter(|base| !needed.contains(base) && bases.len() <= super::restore::MAX_DEPTH)
        {
            bases.push(base);
            at = set.get(&base).ok().and_then(|stored| stored.base());
        }
        // Ends that are needed keep what leads to them short.
        if let Some(root) = bases.last().copied() {
            let group =
                groups.entry(root).or_insert_with(|| Orphans { needed: Vec::new(), bases: HashSet::new() });
            group.needed.push(*id);
            group.bases.extend(bases);
        }
    }
    groups.into_values().collect()
}

/// The objects of a group without their bases: the first one whole and the others as differences from
/// it, or all whole; `None` if that takes more than what is there.
fn rebased(set: &ObjectSet, group: &Orphans, threads: usize) -> Result<Option<Vec<(ContentId, Encoded)>>> {
    let mut budget: u64 = 0;
    for id in group.needed.iter().chain(&group.bases) {
        budget += set.get(id)?.len();
    }
    let Some((first, others)) = group.needed.split_first() else { return Ok(None) };
    let compressors = Compressors::default();
    let of = &set.get(first)?.of;
    let reference = set.read_verified(first, threads)?;
    let mut total = 0u64;
    let mut new = Vec::new();
    let whole = |stored: &Stored, bytes: &[u8]| -> Result<Encoded> {
        let blob = Blob { bytes, dtype: stored.of.dtype, shape: &stored.of.shape, blocks: None };
        let frame = compressors.encode(&blob, Compression::Z4ai(Effort::default()), threads)?;
        let form = match frame {
            Some(frame) => EncodedForm::Whole(Coding::Z4ai, frame),
            None => EncodedForm::Whole(Coding::Raw, bytes.to_vec()),
        };
        Ok(Encoded { of: stored.of.clone(), bytes: form, sketch: stored.sketch.clone() })
    };
    let encoded = whole(set.get(first)?, &reference)?;
    total += encoded.len();
    new.push((*first, encoded));
    for id in others {
        let stored = set.get(id)?;
        let bytes = set.read_verified(id, threads)?;
        let mut encoded = whole(stored, &bytes)?;
        if stored.of == *of {
            let options = codec_options(of.dtype, &of.shape, bytes.len() as u64, Effort::default(), threads);
            let change = z4ai::delta::compress(&bytes, &reference, &options).map_err(not_encoded)?;
            if (change.len() as u64) < encoded.len() {
                let common = bytes.len() as u64;
                encoded.bytes = EncodedForm::Delta { base: *first, common, change, rest: None };
            }
        }
        total += encoded.len();
        if total > budget {
            return Ok(None);
        }
        new.push((*id, encoded));
    }
    Ok((total <= budget).then_some(new))
}

/// An object as it is stored, for another pack. Its bytes are compared with their checksums.
pub(crate) fn copy(store: &Store, set: &ObjectSet, stored: &Stored) -> Result<Encoded> {
    use super::pack::Form;
    let read = |blob: super::pack::Blob| -> Result<(Coding, Vec<u8>)> {
        let bytes = set.blob_bytes(stored, blob)?;
        if blob.crc.is_some_and(|crc| crc32c::crc32c(&bytes) != crc) {
            let message = "the stored bytes do not match their checksum in the pack";
            return Err(Error::mismatch(message).in_file(store.path(&pack_file(&stored.pack))));
        }
        Ok((blob.coding, bytes))
    };
    let bytes = match stored.form {
        Form::Whole(blob) => {
            let (coding, bytes) = read(blob)?;
            EncodedForm::Whole(coding, bytes)
        }
        Form::Delta { base, common, change, rest } => {
            EncodedForm::Delta { base, common, change: read(change)?.1, rest: rest.map(read).transpose()? }
        }
        Form::Cast { base } => EncodedForm::Cast { base },
    };
    Ok(Encoded { of: stored.of.clone(), bytes, sketch: stored.sketch.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_name_only_what_can_be_collected() {
        let pack = pack_file(&random_name());
        let files = [pack, format!("commits/{}", RecordId([1; 32]))].into();
        let list = Condemned { created: 5, remove_after: 9, files };
        assert_eq!(parse(list.encode().as_bytes()).unwrap(), list);
        for bad in ["ztensor-repository.json", "refs/heads/main/000000000001", "packs/../x", "/etc/passwd"] {
            let forged = format!("{{\"format\":1,\"files\":[\"{bad}\"]}}");
            assert!(parse(forged.as_bytes()).is_err(), "{bad}");
        }
    }
}
