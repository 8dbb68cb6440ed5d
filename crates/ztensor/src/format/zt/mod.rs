//! The `.zt` container: magic, blobs at multiples of 64, a CBOR manifest, a footer.

pub(crate) mod cbor;
pub(crate) mod manifest;
pub(crate) mod v01;

use std::sync::Arc;

use crate::catalog::{Catalog, Extent};
use crate::edit::journal;
use crate::error::{Error, Result};
use crate::format::{
    Capabilities, Context, Driver, Extension, Format, Input, Metadata, Probe, Tail, Verdict,
};
use crate::source::{Source, Sources};

/// First and last eight bytes of every file.
pub(crate) const MAGIC: &[u8; 8] = b"ZTEN1000";
/// Manifest length and magic.
pub(crate) const FOOTER_LEN: u64 = 16;
/// Blobs start at multiples of this.
pub(crate) const ALIGNMENT: u64 = 64;
/// A longer manifest is refused before it is read.
pub(crate) const MAX_MANIFEST: u64 = 1 << 30;

pub(crate) static DRIVER: Driver = Driver {
    format: Format::Zt,
    extensions: &[Extension::new("zt").rank(1).tail()],
    merges_files: true,
    detect,
    tail: Some(Tail { detect: detect_tail, parse: parse_committed }),
    parse,
    capabilities: Capabilities {
        writes: true,
        edits: true,
        sparse: true,
        quantized: true,
        ties: true,
        metadata: Metadata::Typed,
        encodings: &["zstd", "z4ai"],
        sequential: &["zstd"],
        checksums: &["crc32c", "sha256", "blake3"],
        ..Capabilities::READ_ONLY
    },
    exporters: &[],
};

fn detect(probe: &Probe<'_>) -> Verdict {
    if probe.head.starts_with(MAGIC) || probe.head.starts_with(v01::MAGIC) {
        Verdict::Yes
    } else {
        Verdict::No
    }
}

/// Whether a remote source, whose end is already here, ends as only these files do: looking
/// at its start would cost a request.
pub(crate) fn detect_tail(source: &dyn Source) -> bool {
    let Some(remote) = source.remote() else { return false };
    let Some(start) = source.len().checked_sub(FOOTER_LEN) else { return false };
    if !remote.holds(start..source.len()) {
        return false;
    }
    let ends = source.bytes(start, FOOTER_LEN).is_ok_and(|footer| &footer[8..] == MAGIC);
    // A start that is here too must agree.
    let starts = !remote.holds(0..8) || source.bytes(0, 8).is_ok_and(|head| head.as_ref() == MAGIC);
    ends && starts
}

fn parse(Input { source, .. }: Input, context: &Context) -> Result<Catalog> {
    let head = source.bytes(0, source.len().min(8))?;
    if head.as_ref() == v01::MAGIC {
        drop(head);
        return v01::parse(source);
    }
    drop(head);
    match &context.path {
        // What an editor has not finished, or never will, is not part of the file.
        Some(path) if source.remote().is_none() && context.files.is_none() => {
            let settled = journal::committed(path, source, context.map_mode)?;
            let mut catalog = parse_committed(settled.source)?;
            catalog.by_journal = settled.by_journal;
            Ok(catalog)
        }
        _ => parse_committed(source),
    }
}

/// Reads the catalog of a source that ends with a footer.
pub(crate) fn parse_committed(source: Arc<dyn Source>) -> Result<Catalog> {
    let place = find_manifest(&*source, source.len())?;
    let mut catalog = Catalog::new(Format::Zt, Sources::default());
    {
        let bytes = source.bytes(place.offset, place.len)?;
        manifest::decode(&bytes, place.offset, &mut catalog)?;
    }
    catalog.index = Some(place);
    catalog.sources.push(source);
    Ok(catalog)
}

impl Catalog {
    /// Bytes of a `.zt` file that no component names: what edits left behind and
    /// [`compact`](crate::compact) drops. Fillings between blobs that start at
    /// multiples of 64 are not counted. `None` for other formats.
    pub fn dead_bytes(&self) -> Option<u64> {
        let manifest = self.index?;
        let mut extents: Vec<Extent> = self
            .objects
            .values()
            .flat_map(|object| object.components.iter().filter_map(|(_, component)| component.extent()))
            .filter(|extent| extent.len > 0)
            .collect();
        extents.sort_unstable();
        let (mut end, mut dead) = (MAGIC.len() as u64, 0);
        for extent in extents {
            // A tied range comes again, and ends before it starts.
            dead += extent.offset.saturating_sub(end.next_multiple_of(ALIGNMENT));
            end = end.max(extent.offset + extent.len);
        }
        Some(dead + manifest.offset.saturating_sub(end.next_multiple_of(ALIGNMENT)))
    }
}

/// Reads the footer that ends the first `total` bytes, which the source has:
/// the magic, and a manifest length that fits. Says where the manifest lies.
pub(crate) fn find_manifest(source: &dyn Source, total: u64) -> Result<Extent> {
    let smallest = MAGIC.len() as u64 + FOOTER_LEN;
    if total < smallest {
        return Err(Error::corrupt(
            "zt.short",
            format!("{total} bytes are fewer than the {smallest} that a magic and a footer take"),
        ));
    }
    let footer = source.bytes(total - FOOTER_LEN, FOOTER_LEN)?;
    if &footer[8..] != MAGIC {
        return Err(Error::corrupt(
            "zt.footer-magic",
            format!(
                "the file ends with {:02x?} instead of {:?}: it is cut off or was never finished",
                &footer[8..],
                "ZTEN1000"
            ),
        ));
    }
    let mut len = [0; 8];
    len.copy_from_slice(&footer[..8]);
    let len = u64::from_le_bytes(len);
    if len > MAX_MANIFEST {
        return Err(Error::corrupt(
            "zt.manifest-limit",
            format!("a manifest of {len} bytes is larger than 1 GiB"),
        ));
    }
    match (total - FOOTER_LEN).checked_sub(len) {
        Some(offset) if offset >= MAGIC.len() as u64 => Ok(Extent::new(offset, len)),
        _ => Err(Error::corrupt(
            "zt.manifest-length",
            format!("a manifest of {len} bytes does not fit in a file of {total}"),
        )),
    }
}
