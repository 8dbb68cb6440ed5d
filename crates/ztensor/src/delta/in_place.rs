//! Applying a delta to the file itself.

use std::path::Path;
use std::sync::Arc;

use super::apply::{Applier, ApplyOptions, open};
use super::model::Model;
use super::restored::Restored;
use super::segments::{BaseCheck, How};
use crate::catalog::{Component, Object, Storage};
use crate::digest::Checksum;
use crate::error::{Error, Result};
use crate::progress::{advance, finish};
use crate::read::{OpenOptions, Reader};
use crate::write::{WriteOptions, Writer};

/// What [`apply_in_place`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct InPlaceStats {
    /// Tensors that stayed where they are, under the same name or another.
    pub kept: u64,
    /// Tensors that were written.
    pub written: u64,
    /// Tensors that are gone.
    pub removed: u64,
    /// Size of the file now; [`compact`](crate::compact) drops what is no longer used.
    pub len: u64,
}

/// Turns a `.zt` file, the base of a delta, into the delta's target: the same tensors and
/// attributes, though not the same bytes.
///
/// Only what changed is written, behind what is there, and the file is what it was until all of it is
/// on the disk: it survives a kill or a power cut at any instant, and readers that have it open see
/// what they saw.
pub fn apply_in_place(
    path: impl AsRef<Path>,
    delta: impl AsRef<Path>,
    options: &ApplyOptions<'_>,
) -> Result<InPlaceStats> {
    let path = path.as_ref();
    let delta = open(delta.as_ref())?;
    if !matches!(delta.base, BaseCheck::Model(_)) {
        return Err(Error::unsupported("deltas of version 1 are for .safetensors files").in_file(path));
    }
    // From here on no other process changes the file.
    let mut writer = Writer::append(path)?;
    writer.set_threads(options.threads);
    let applier =
        Applier::new(Model::open(path, options.threads, options.limits)?, Arc::new(delta), options)?;
    let restored = Arc::new(Restored::new(applier, options.threads));
    let target = OpenOptions::default()
        .threads(options.threads)
        .limits(options.limits)
        .open_source(restored.clone())?;
    let mut before = std::mem::take(&mut writer.catalog.objects);
    let mut stats = InPlaceStats::default();
    let mut changed = Vec::new();
    for (name, object) in target.objects() {
        match kept(object, &restored) {
            Some(object) => {
                writer.insert(name, object)?;
                stats.kept += 1;
            }
            None => changed.push(name),
        }
    }
    stats.written = changed.len() as u64;
    for run in changed.chunk_by(|a, b| checksum(&target, &before, a) == checksum(&target, &before, b)) {
        let options_of_run =
            WriteOptions { checksum: checksum(&target, &before, run[0]), ..WriteOptions::default() };
        writer.write_from(&target, run, options_of_run, options.observer)?;
    }
    before.retain(|name, _| !target.contains(name));
    stats.removed = before.len() as u64;
    writer.catalog.attributes = target.attributes().clone();
    writer.reorder(target.keys());
    // What stayed is done, too.
    let written: u64 = changed.iter().filter_map(|name| target.find(name)).map(Object::byte_len).sum();
    advance(options.observer, target.catalog().sources.get(0)?.len().saturating_sub(written))?;
    finish(options.observer)?;
    // The mapping of the file: Windows shortens no file that is mapped, by which an edit that fails is undone.
    drop((target, restored));
    stats.len = writer.finish()?;
    Ok(stats)
}

/// The object with the components that the base has for it, if it has all of them.
fn kept(object: &Object, restored: &Restored) -> Option<Object> {
    let base = &restored.applier.base;
    let mut kept = object.clone();
    for (_, component) in &mut kept.components {
        // A component without bytes is written anew: that costs nothing.
        let Storage::Plain(extent) = component.storage else { return None };
        if extent.len == 0 {
            return None;
        }
        let How::Copy(place) = restored.how(extent.offset, extent.len)? else { return None };
        let (_, there) = base.part(base.find(&place.name, &place.role)?).ok()?;
        if place.offset != 0 || there.len != component.len {
            return None;
        }
        let Component { storage, digest, .. } = there.clone();
        component.storage = storage;
        component.digest = digest;
    }
    Some(kept)
}

/// The kind of digest that the tensor of that name had.
fn checksum(target: &Reader, before: &crate::catalog::Objects, name: &str) -> Checksum {
    let had = before.get(name).or_else(|| target.find(name));
    let digest = had.and_then(|object| object.components.first()?.1.digest.as_ref());
    digest.and_then(|digest| digest.checksum()).unwrap_or_default()
}
