//! All objects of a repository: the indexes of all packs.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use super::locations::Objects;
use super::names::{PACKS, is_pack_name};
use super::object::{ObjectType, SKETCHED, Sketch};
use super::pack::{self, PackSizes, Stored};
use super::store::Store;
use crate::base::parallel;
use crate::error::Result;
use crate::id::ContentId;

/// Indexes that are read at a time from a store. (unmeasured)
const FETCHED: usize = 16;

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

/// The objects of these packs.
pub(crate) fn load(store: &Store, packs: &[Arc<str>]) -> Result<Objects> {
    Ok(load_sized(store, packs)?.0)
}

/// The objects of these packs, and how many bytes of objects each pack has.
pub(crate) fn load_sized(store: &Store, packs: &[Arc<str>]) -> Result<(Objects, HashMap<Arc<str>, u64>)> {
    let found = Mutex::new(Vec::with_capacity(packs.len()));
    let threads = if store.is_local() { 0 } else { FETCHED };
    parallel::for_each(threads, packs.iter().collect(), |name| {
        let entries = match pack::read_index(store, name) {
            // Collected as garbage since it was listed.
            Err(error) if super::store::is_absent(&error) => return Ok(()),
            entries => entries?,
        };
        found.lock().unwrap_or_else(PoisonError::into_inner).push((name.clone(), entries));
        Ok(())
    })?;
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    let size = |entries: &[(ContentId, Stored)]| entries.iter().map(|(_, stored)| stored.len()).sum();
    let sizes = found.iter().map(|(name, entries)| (name.clone(), size(entries))).collect();
    Ok((choose(found.into_iter().flat_map(|(_, entries)| entries)), sizes))
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
