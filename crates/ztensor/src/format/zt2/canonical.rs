//! Canonical form: the same tensors and attributes are the same bytes.
//!
//! 1. One manifest and nothing that it does not refer to, with zeros between.
//! 2. Blobs at multiples of 65536.
//! 3. Blobs in the order of the names of objects and parts, as bytes; equal contents share one.
//! 4. Every part raw, with an `xxh3` digest.
//! 5. All names in Unicode normalization form C.
//! 6. No shards.

use std::collections::HashMap;

use unicode_normalization::is_nfc;

use super::layout::from_catalog;
use super::{ALIGNMENT, FOOTER_LEN, Footer, MAGIC};
use crate::catalog::{Component, Extent, Storage};
use crate::digest::Digest;
use crate::error::{Error, Result, quoted};
use crate::format::Format;
use crate::read::Reader;
use crate::source::Source;

/// A broken rule of canonical form, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// The number of the rule, 1 to 6.
    pub rule: u8,
    /// The first byte of the file that shows it.
    pub byte: u64,
    /// What was found there.
    pub message: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self.rule {
            1 => "nothing unreferenced",
            2 => "alignment",
            3 => "order and sharing",
            4 => "raw parts with digests",
            5 => "normalized names",
            _ => "no shards",
        };
        write!(f, "byte {}: {} [canonical rule {}: {name}]", self.byte, self.message, self.rule)
    }
}

/// What of canonical form a file breaks, by where it shows. Not canonical is not invalid: digests are
/// compared by [`Reader::verify_all`].
pub fn check(reader: &Reader) -> Result<Vec<Violation>> {
    if reader.format() != Format::Zt2 {
        return Err(Error::unsupported(format!(
            "canonical form is defined for .zt files of version 2, and this one is {}: `ztensor convert \
             --format zt2 --canonical` writes one",
            reader.format()
        )));
    }
    let source = reader.catalog().sources.get(0)?;
    let footer = Footer::read(&**source)?;
    let mut found = Vec::new();
    let mut report = |rule, byte, message: String| found.push(Violation { rule, byte, message });
    let Some(manifest) = footer.manifest else {
        report(1, source.len() - FOOTER_LEN, "there is no manifest".to_owned());
        return Ok(found);
    };
    let mut places = Places::default();
    for (name, part, component) in parts(reader) {
        let at = component.extent().map_or(manifest.offset, |extent| extent.offset);
        let what = format!("part {} of {}", quoted(&part), quoted(name));
        if !matches!(component.storage, Storage::Plain(_)) {
            report(4, at, format!("{what} is encoded as {}", quoted(component.encoding())));
        }
        if !matches!(component.digest, Some(Digest::Xxh3(_))) {
            report(4, at, format!("{what} has no xxh3 digest"));
        }
        if !is_nfc(name) || !is_nfc(&part) {
            report(5, manifest.offset, format!("{what} is not named in normalization form C"));
        }
        match component.extent().filter(|extent| extent.source == 0) {
            Some(extent) => places.part(reader, component, extent, &what, &mut report)?,
            None => continue,
        }
    }
    let keys = reader.objects().filter_map(|(_, object)| object.attributes.as_deref());
    for key in keys.chain([reader.attributes()]).flat_map(|attributes| attributes.keys()) {
        if !is_nfc(key) {
            report(
                5,
                manifest.offset,
                format!("the attribute {} is not in normalization form C", quoted(key)),
            );
        }
    }
    if manifest.offset != align(places.end) {
        let byte = align(places.end).min(manifest.offset);
        report(1, byte, format!("the manifest is at {} and not at {}", manifest.offset, align(places.end)));
    }
    if manifest.offset + manifest.len + FOOTER_LEN != source.len() {
        report(3, manifest.offset + manifest.len, "something lies between manifest and footer".to_owned());
    }
    places.blobs.push(manifest);
    if let Some((byte, value)) = places.first_in_padding(&**source)? {
        report(1, byte, format!("the filling between blobs has a byte {value:#04x}"));
    }
    if footer.reserved != 0 {
        report(1, source.len() - 12, "the reserved field of the footer is not 0".to_owned());
    }
    if reader.catalog().sources.len() > 1 {
        report(6, manifest.offset, "the manifest has a table of shards".to_owned());
    }
    found.sort_by_key(|violation| violation.byte);
    Ok(found)
}

fn align(offset: u64) -> u64 {
    offset.next_multiple_of(ALIGNMENT)
}

/// All parts in the order of the names of objects and parts, as bytes.
fn parts(reader: &Reader) -> Vec<(&str, String, &Component)> {
    let mut parts = Vec::new();
    for (name, object) in reader.objects() {
        let roles = object.components.iter().map(|(role, _)| &**role);
        let written = from_catalog(&object.layout, None, roles);
        let named = object.components.iter().map(|(role, part)| (name, written.role(role).to_owned(), part));
        parts.extend(named);
    }
    parts.sort_unstable_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
    parts
}

/// Blobs in the order in which they should lie.
struct Places {
    /// Where the last one ends.
    end: u64,
    /// Lengths by offset.
    placed: HashMap<u64, u64>,
    /// First blobs of each content.
    seen: HashMap<(Digest, u64), Extent>,
    /// Where the first part without bytes lies.
    empty: Option<u64>,
    blobs: Vec<Extent>,
}

impl Default for Places {
    fn default() -> Places {
        Places {
            end: MAGIC.len() as u64,
            placed: HashMap::new(),
            seen: HashMap::new(),
            empty: None,
            blobs: Vec::new(),
        }
    }
}

impl Places {
    fn part(
        &mut self,
        reader: &Reader,
        component: &Component,
        extent: Extent,
        what: &str,
        report: &mut impl FnMut(u8, u64, String),
    ) -> Result<()> {
        let Extent { offset, len, .. } = extent;
        let expected = align(self.end);
        let aligned = offset.is_multiple_of(ALIGNMENT);
        if len == 0 {
            if offset != expected && self.empty != Some(offset) {
                let rule = if aligned { 3 } else { 2 };
                report(rule, offset, format!("{what} is empty and lies at {offset}, not at {expected}"));
            }
            self.empty.get_or_insert(offset);
            return Ok(());
        }
        if let Some(before) = self.placed.get(&offset) {
            if *before != len {
                report(3, offset, format!("{what} has {len} bytes where another part has {before}"));
            }
            return Ok(());
        }
        if let Some(digest) = &component.digest
            && let Some(first) = self.seen.insert((digest.clone(), len), extent)
            && same_bytes(reader, first, extent)?
        {
            report(
                3,
                offset,
                format!("{what} repeats the bytes from {} on, which it should share", first.offset),
            );
        }
        if !aligned {
            report(2, offset, format!("{what} does not start at a multiple of {ALIGNMENT}"));
        } else if offset > expected {
            report(1, expected, format!("nothing refers to the bytes before {offset}, where {what} starts"));
        } else if offset < expected {
            report(3, offset, format!("{what} lies before a part whose name comes first"));
        }
        self.placed.insert(offset, len);
        self.blobs.push(extent);
        self.end = offset + len;
        Ok(())
    }

    /// The first byte between blobs that is not 0.
    fn first_in_padding(&mut self, source: &dyn Source) -> Result<Option<(u64, u8)>> {
        /// Fillings are shorter than this in canonical files.
        const LOOKED_AT: u64 = ALIGNMENT;
        self.blobs.sort_unstable();
        let mut end = MAGIC.len() as u64;
        for blob in &self.blobs {
            let len = blob.offset.saturating_sub(end).min(LOOKED_AT);
            let filling = source.bytes(end, len)?;
            if let Some(at) = filling.iter().position(|byte| *byte != 0) {
                return Ok(Some((end + at as u64, filling[at])));
            }
            end = end.max(blob.offset + blob.len);
        }
        Ok(None)
    }
}

/// Whether two ranges of the file hold the same bytes.
fn same_bytes(reader: &Reader, a: Extent, b: Extent) -> Result<bool> {
    const COMPARED_PIECE: u64 = 1 << 20;
    let sources = &reader.catalog().sources;
    let mut at = 0;
    while at < a.len {
        let len = COMPARED_PIECE.min(a.len - at);
        let part = |extent: Extent| sources.bytes(Extent { offset: extent.offset + at, len, ..extent });
        if part(a)? != part(b)? {
            return Ok(false);
        }
        at += len;
    }
    Ok(true)
}
