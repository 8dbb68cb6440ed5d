//! What a repository stores for what: each version, what is new in it and what it shares.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::names::RecordId;
use super::{Repository, index};
use crate::error::Result;
use crate::id::ContentId;

/// What a repository stores.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Usage {
    /// Bytes of all packs.
    pub packs: u64,
    /// Bytes of all objects that versions need.
    pub stored: u64,
    /// Bytes of objects that no version needs.
    pub unneeded: u64,
    /// Bytes that the files of all versions have together.
    pub bytes: u64,
    /// Versions, newest first.
    pub versions: Vec<VersionUsage>,
}

/// What is stored for a version.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct VersionUsage {
    /// The commit.
    pub id: RecordId,
    /// What was said about it.
    pub message: String,
    /// Bytes of its files.
    pub bytes: u64,
    /// Stored bytes that reading all of it needs.
    pub needed: u64,
    /// Of those, the ones that no older version needs.
    pub new: u64,
    /// Of those, the ones that no other version needs: what removing it would free.
    pub own: u64,
    /// Decoded and new stored bytes by layer: the first parts of tensors' names.
    pub layers: BTreeMap<String, (u64, u64)>,
}

/// The layer of a tensor: its name up to the last number, or without its last part.
pub(crate) fn layer(name: &str) -> &str {
    let mut end = None;
    let mut at = 0;
    for part in name.split('.') {
        at += part.len();
        if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            end = Some(at);
            break;
        }
        at += 1;
    }
    match end {
        Some(end) => &name[..end],
        None => name.rsplit_once('.').map_or(name, |(before, _)| before),
    }
}

impl Repository {
    /// What is stored for the versions that a name leads to, or for all of them.
    pub fn usage(&self, name: Option<&str>) -> Result<Usage> {
        let packs = index::packs(&self.store)?;
        let mut usage = Usage { packs: packs.iter().map(|(_, len)| len).sum(), ..Usage::default() };
        let names: Vec<_> = packs.into_iter().map(|(name, _)| name).collect();
        let objects = index::load(&self.store, &names)?;
        let mut ids: Vec<(u64, RecordId)> = Vec::new();
        let mut seen = HashSet::new();
        let starts = match name {
            Some(name) => vec![self.resolve(name)?],
            None => self.refs()?.into_iter().map(|there| there.commit).collect(),
        };
        for start in starts {
            for (place, entry) in self.log(&start.to_string(), None)?.into_iter().enumerate() {
                if !entry.forgotten && seen.insert(entry.id) {
                    // Within a second, parents are older than their children.
                    ids.push((
                        entry.commit.time.saturating_mul(1 << 20).saturating_sub(place as u64),
                        entry.id,
                    ));
                }
            }
        }
        ids.sort_unstable();
        let mut users: HashMap<ContentId, u32> = HashMap::new();
        let mut needs = Vec::new();
        for (_, id) in &ids {
            let commit = self.read_commit(id)?;
            let manifest = self.read_manifest(&commit.manifest)?;
            let needed = index::closure(&objects, manifest.objects.iter().map(|object| object.id));
            let len = |id: &ContentId| objects.get(id).map_or(0, |stored| stored.len());
            let mut version = VersionUsage {
                id: *id,
                message: commit.message.clone(),
                bytes: manifest.len(),
                needed: needed.iter().map(len).sum(),
                new: needed.iter().filter(|id| !users.contains_key(*id)).map(len).sum(),
                ..VersionUsage::default()
            };
            let mut counted = HashSet::new();
            for (_, name, index) in manifest.tensors() {
                let object = manifest.object(index)?;
                let slot = version.layers.entry(layer(name).to_owned()).or_default();
                slot.0 += object.len;
                if !users.contains_key(&object.id) && counted.insert(object.id) {
                    slot.1 += len(&object.id);
                }
            }
            needed.iter().for_each(|id| *users.entry(*id).or_default() += 1);
            usage.bytes += version.bytes;
            usage.versions.push(version);
            needs.push(needed);
        }
        for (version, needed) in usage.versions.iter_mut().zip(&needs) {
            let own = needed.iter().filter(|id| users.get(*id) == Some(&1));
            version.own = own.map(|id| objects.get(id).map_or(0, |stored| stored.len())).sum();
        }
        for (id, stored) in &objects {
            match users.contains_key(id) {
                true => usage.stored += stored.len(),
                false => usage.unneeded += stored.len(),
            }
        }
        usage.versions.reverse();
        Ok(usage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_end_at_their_number() {
        assert_eq!(layer("model.layers.12.mlp.up.weight"), "model.layers.12");
        assert_eq!(layer("model.embed_tokens.weight"), "model.embed_tokens");
        assert_eq!(layer("lm_head"), "lm_head");
        assert_eq!(layer(""), "");
    }
}
