//! All objects of a repository: the indexes of all packs.
//!
//! Indexes of several packs are merged into one file, so that a commit does not read one for each version
//! before it. Such a file says nothing that the packs do not say.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::locations::{self, Entries, Objects};
use super::manifest::decompress;
use super::names::{INDEXES, PACKS, is_pack_name, random_name};
use super::object::{ObjectType, SKETCHED, Sketch};
use super::pack::{self, PackSizes, Stored};
use super::store::Store;
use crate::base::parallel;
use crate::error::Result;
use crate::id::ContentId;

/// Indexes that are merged into one. (structural: as many as a store is asked for at a time by default, so that
/// reading them takes one round)
const MERGED: usize = 16;

/// The names of all packs, with their sizes.
pub(crate) fn packs(store: &Store) -> Result<Vec<(Arc<str>, u64)>> {
    let listed = store.list(PACKS)?.into_iter();
    let named = listed.filter_map(|entry| {
        let name = entry.name.strip_suffix(".zt").filter(|name| is_pack_name(name))?;
        Some((Arc::from(name), entry.len))
    });
    Ok(named.collect())
}

/// The sizes of all packs.
pub(crate) fn sizes(store: &Store) -> Result<PackSizes> {
    Ok(packs(store)?.into_iter().collect())
}

/// Objects of one pack.
type Indexed = (Arc<str>, Vec<(ContentId, Stored)>);

/// The objects of these packs.
pub(crate) fn load(store: &Store, packs: &[Arc<str>]) -> Result<Objects> {
    Ok(load_sized(store, packs)?.0)
}

/// The objects of these packs, and how many bytes of objects each pack has.
pub(crate) fn load_sized(store: &Store, packs: &[Arc<str>]) -> Result<(Objects, HashMap<Arc<str>, u64>)> {
    let found = read(store, packs.to_vec())?;
    let size = |entries: &[(ContentId, Stored)]| entries.iter().map(|(_, stored)| stored.len()).sum();
    let sizes = found.iter().map(|(name, entries)| (name.clone(), size(entries))).collect();
    Ok((sorted(found), sizes))
}

/// Reads the indexes of packs.
fn read(store: &Store, packs: Vec<Arc<str>>) -> Result<Vec<Indexed>> {
    let found = Mutex::new(Vec::with_capacity(packs.len()));
    parallel::for_each(threads(store), packs, |name| {
        let entries = match pack::read_index(store, &name) {
            // Collected as garbage since it was listed.
            Err(error) if super::store::is_absent(&error) => return Ok(()),
            entries => entries?,
        };
        found.lock().unwrap_or_else(PoisonError::into_inner).push((name, entries));
        Ok(())
    })?;
    Ok(found.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn threads(store: &Store) -> usize {
    if store.is_local() { 0 } else { store.connections() }
}

fn sorted(mut found: Vec<Indexed>) -> Objects {
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    choose(found.into_iter().flat_map(|(_, entries)| entries))
}

/// The objects of these packs, by merged indexes as far as there are any. With `merge`, indexes that were
/// read one by one are merged into one where they are many.
pub(crate) fn load_merged(store: &Store, packs: &[Arc<str>], merge: bool) -> Result<Objects> {
    let merged = read_merged(store)?;
    let mut left: HashSet<Arc<str>> = packs.iter().cloned().collect();
    let mut found: Vec<Indexed> = Vec::new();
    let mut tiers: BTreeMap<u32, Vec<(&str, Range<usize>)>> = BTreeMap::new();
    for Merged { name, packs, entries } in &merged {
        let start = found.len();
        let mut by_pack: HashMap<&Arc<str>, Vec<(ContentId, Stored)>> =
            packs.iter().filter(|pack| left.remove(*pack)).map(|pack| (pack, Vec::new())).collect();
        for (id, stored) in entries {
            if let Some(list) = by_pack.get_mut(&stored.pack) {
                list.push((*id, stored.clone()));
            }
        }
        found.extend(by_pack.into_iter().map(|(pack, entries)| (pack.clone(), entries)));
        let count = found.len() - start;
        // One that has nothing of its own is as good as gone.
        tiers.entry(count.max(1).ilog(MERGED)).or_default().push((name.as_str(), start..found.len()));
    }
    let start = found.len();
    found.extend(read(store, left.into_iter().collect())?);
    if merge {
        if found.len() - start >= MERGED {
            write_merged(store, &found[start..])?;
        }
        for files in tiers.values().filter(|files| files.len() >= MERGED) {
            let all: Vec<Indexed> =
                files.iter().flat_map(|(_, range)| found[range.clone()].iter().cloned()).collect();
            write_merged(store, &all)?;
            files.iter().try_for_each(|(name, _)| store.delete(name))?;
        }
    }
    Ok(sorted(found))
}

/// A file with the indexes of several packs.
pub(crate) struct Merged {
    pub(crate) name: String,
    pub(crate) packs: Vec<Arc<str>>,
    pub(crate) entries: Vec<(ContentId, Stored)>,
}

/// All merged indexes, sorted by name.
pub(crate) fn read_merged(store: &Store) -> Result<Vec<Merged>> {
    let found = Mutex::new(Vec::new());
    parallel::for_each(threads(store), store.list(INDEXES)?, |entry| {
        let name = format!("{INDEXES}/{}", entry.name);
        // Another process may have merged it with others meanwhile.
        let Some(stored) = store.read(&name, locations::MAX_STORED)? else { return Ok(()) };
        let list = decompress(&stored).and_then(|plain| locations::parse_entries(&plain));
        let Entries { packs, entries, .. } = list.map_err(|error| error.in_file(store.path(&name)))?;
        let merged = Merged { name, packs, entries };
        found.lock().unwrap_or_else(PoisonError::into_inner).push(merged);
        Ok(())
    })?;
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn write_merged(store: &Store, found: &[Indexed]) -> Result<()> {
    let packs = found.iter().map(|(pack, _)| pack.clone()).collect();
    let mut entries: Vec<(ContentId, &Stored)> =
        found.iter().flat_map(|(_, entries)| entries).map(|(id, stored)| (*id, stored)).collect();
    entries.sort_by(|(a, x), (b, y)| (a, &x.pack).cmp(&(b, &y.pack)));
    let plain = locations::encode_entries(&entries, packs, &PackSizes::new(), true);
    let name = format!("{INDEXES}/{}", random_name());
    store.write_new(&name, &locations::compress(&plain)?).map(drop)
}

/// Removes merged indexes that have packs which are gone.
pub(crate) fn remove_stale(store: &Store) -> Result<()> {
    let there: HashSet<Arc<str>> = packs(store)?.into_iter().map(|(name, _)| name).collect();
    for list in read_merged(store)? {
        if list.packs.iter().any(|pack| !there.contains(pack)) {
            store.delete(&list.name)?;
        }
    }
    Ok(())
}

/// One form of each object: the one that depends on fewest others, so that no choice of forms leads
/// in a circle where there is one that does not.
fn choose(entries: impl Iterator<Item = (ContentId, Stored)>) -> Objects {
    let mut objects = Objects::new();
    let mut waiting: HashMap<ContentId, Vec<(ContentId, Arc<Stored>)>> = HashMap::new();
    let mut ready = std::collections::VecDeque::new();
    for (id, stored) in entries {
        match stored.base() {
            None => ready.push_back((id, Arc::new(stored))),
            Some(base) => waiting.entry(base).or_default().push((id, Arc::new(stored))),
        }
    }
    while let Some((id, stored)) = ready.pop_front() {
        if let std::collections::hash_map::Entry::Vacant(place) = objects.entry(id) {
            place.insert(stored);
            ready.extend(waiting.remove(&id).unwrap_or_default());
        }
    }
    // What is left depends on objects that are not there, as those who read it will find.
    for (id, stored) in waiting.into_values().flatten() {
        objects.entry(id).or_insert(stored);
    }
    objects
}

/// Sketches of all objects by their type.
#[derive(Debug, Default)]
pub(crate) struct Sketches(HashMap<ObjectType, Vec<(ContentId, Sketch)>>);

impl Sketches {
    pub(crate) fn new(objects: &Objects) -> Sketches {
        let mut sketches: HashMap<ObjectType, Vec<(ContentId, Sketch)>> = HashMap::new();
        for (id, stored) in objects {
            if let Some(sketch) = &stored.sketch {
                sketches.entry(stored.of.clone()).or_default().push((*id, sketch.clone()));
            }
        }
        // The order of a hash map is random.
        sketches.values_mut().for_each(|list| list.sort_by_key(|(id, _)| *id));
        Sketches(sketches)
    }

    /// The object of a type that has most in common with a sketch, and how much; `None` if that is
    /// no more than unrelated weights have.
    pub(crate) fn nearest(&self, of: &ObjectType, sketch: &Sketch) -> Option<(ContentId, usize)> {
        let scored = self.0.get(of)?.iter().map(|(id, other)| (*id, sketch.common(other)));
        scored.max_by_key(|(id, common)| (*common, *id)).filter(|(_, common)| *common * 2 > SKETCHED)
    }
}

/// The objects that `roots` depend on, themselves included.
pub(crate) fn closure(objects: &Objects, roots: impl IntoIterator<Item = ContentId>) -> HashSet<ContentId> {
    let mut found = HashSet::new();
    for root in roots {
        let mut at = Some(root);
        while let Some(id) = at.filter(|id| !found.contains(id)) {
            found.insert(id);
            at = objects.get(&id).and_then(|stored| stored.base());
        }
    }
    found
}
