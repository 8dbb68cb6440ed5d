//! Checks of contents, on request: digests, truth values, the unused half of a last byte, whole shards.

use super::layout::{check_elements, check_last};
use super::{Footer, check_digest, shards};
use crate::catalog::{Catalog, Component, Layout, Object};
use crate::error::Result;
use crate::read::Verification;
use crate::source::Sources;

/// Decoded bytes that are checked at a time.
const VERIFIED_PIECE: u64 = 1 << 20;

/// Decodes a component piece by piece, compares its digest and checks its elements.
pub(crate) fn verify_component(
    sources: &Sources,
    object: &Object,
    component: &Component,
) -> Result<Verification> {
    check_digest(component)?;
    let mut hasher = component.digest.as_ref().and_then(|digest| digest.hasher());
    let known = component.unknown_type.is_none();
    let mut buffer = Vec::new();
    let mut last = None;
    let mut at = 0;
    // An empty part has content too: that of no bytes.
    loop {
        let end = component.len.min(at + VERIFIED_PIECE);
        buffer.resize((end - at) as usize, 0);
        component.storage.read(sources, at..end, &mut buffer, 1)?;
        if let Some(hasher) = &mut hasher {
            hasher.update(&buffer);
        }
        if known {
            check_elements(component.dtype, &buffer)?;
        }
        last = buffer.last().copied().or(last);
        at = end;
        if at >= component.len {
            break;
        }
    }
    if known && object.layout == Layout::Dense {
        check_last(component.dtype, object.elements().unwrap_or(0), last.as_ref())?;
    }
    match (hasher, &component.digest) {
        (Some(hasher), Some(digest)) => {
            crate::read::compare(hasher, digest).map_err(|error| error.under("zt2.Digest"))?;
            Ok(Verification::Checked)
        }
        _ => Ok(Verification::NoDigest),
    }
}

/// Compares all shards with the digests that the table of shards gives.
pub(crate) fn verify_shards(catalog: &Catalog) -> Result<()> {
    let root = catalog.sources.get(0)?;
    let footer = Footer::read(&**root)?;
    let Some(place) = footer.manifest else { return Ok(()) };
    let bytes = root.bytes(place.offset, place.len)?;
    footer.check_hash(&bytes)?;
    let mut copy = Catalog::new(catalog.format, Sources::default());
    let shards = super::manifest::decode(&bytes, root.len(), place, true, &mut copy)?;
    for (shard, index) in shards.iter().zip(1..) {
        let source = catalog.sources.get(index)?;
        shards::compare(&**source, &shard.digest).map_err(|error| error.in_file(source.label()))?;
    }
    Ok(())
}
