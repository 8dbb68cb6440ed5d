//! The `.zt` container, version 2: blobs at multiples of 4096, a manifest in strict CBOR, a footer of
//! 40 bytes. It shares nothing with version 1.2 but the extension.
//!
//! Rules have the names that the format's own text gives them, behind `zt2.`; `docs/spec/zt2.md`
//! lists them.

pub mod canonical;
mod cbor;
mod content_digest;
pub(crate) mod layout;
mod manifest;
mod shards;
mod types;
mod verify;
mod write;

use std::sync::Arc;

use twox_hash::XxHash3_64;

pub use content_digest::content_digest;
pub(crate) use verify::{verify_component, verify_shards};
pub(crate) use write::{CheckedContent, check_description, check_tensor, holds, tail_of};

use crate::catalog::{Catalog, Component, Extent};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::format::{Capabilities, Context, Driver, Format, Input, Metadata, Probe, Verdict};
use crate::source::{Source, Sources};
use crate::write::export::ExportFormat;

/// First and last eight bytes of every file.
pub(crate) const MAGIC: &[u8; 8] = b"\x89ZT2\r\n\x1a\n";
/// The version that the footer states.
const VERSION: u32 = 2;
const FOOTER_LEN: u64 = 40;
/// A magic and a footer.
const SMALLEST: u64 = MAGIC.len() as u64 + FOOTER_LEN;
/// Blobs start at multiples of this, at least.
pub(crate) const MIN_ALIGNMENT: u64 = 4096;
/// Blobs of files that are written here start at multiples of this, as canonical form asks.
const ALIGNMENT: u64 = 65536;
/// A longer manifest is refused before it is read.
const MAX_MANIFEST: u64 = 1 << 30;

pub(crate) static DRIVER: Driver = Driver {
    format: Format::Zt2,
    // `.zt` is the extension of version 1.2; contents tell the versions apart.
    extensions: &[],
    merges_files: true,
    detect,
    tail: None,
    parse,
    capabilities: Capabilities {
        writes: true,
        sparse: true,
        quantized: true,
        ties: true,
        metadata: Metadata::Typed,
        encodings: &["zt.zstd-seekable/1"],
        checksums: &["xxh3", "sha256"],
        ..Capabilities::READ_ONLY
    },
    exporters: &[(ExportFormat::Zt2, write::export)],
};

fn detect(probe: &Probe<'_>) -> Verdict {
    if probe.head.starts_with(MAGIC) {
        return Verdict::Yes;
    }
    // A `.zt` file whose first bytes are damaged is known by its last.
    let named = matches!(probe.extension, Some("zt" | "zt2"));
    match named && ends_with_magic(probe.source) {
        true => Verdict::Yes,
        false => Verdict::No,
    }
}

/// Whether a `.zt` file has some bytes, but not those that both ends of a file take.
pub(crate) fn is_too_small(probe: &Probe<'_>) -> bool {
    probe.extension == Some("zt") && (1..SMALLEST).contains(&probe.source.len())
}

fn ends_with_magic(source: &dyn Source) -> bool {
    let Some(start) = source.len().checked_sub(SMALLEST).map(|before| before + FOOTER_LEN) else {
        return false;
    };
    source.bytes(start, MAGIC.len() as u64).is_ok_and(|end| *end == *MAGIC)
}

fn parse(Input { source, .. }: Input, context: &Context) -> Result<Catalog> {
    let mut catalog = Catalog::new(Format::Zt2, Sources::default());
    let footer = Footer::read(&*source)?;
    let mut shards = Vec::new();
    if let Some(place) = footer.manifest {
        let bytes = source.bytes(place.offset, place.len)?;
        footer.check_hash(&bytes)?;
        shards = manifest::decode(&bytes, source.len(), place, context.structural, &mut catalog)?;
    }
    catalog.sources.push(Arc::clone(&source));
    shards::push_onto(&mut catalog.sources, shards, context);
    Ok(catalog)
}

/// What the last 40 bytes of a file say.
#[derive(Debug, Clone, Copy)]
struct Footer {
    /// Where the manifest lies; `None` for a data shard, which has none.
    manifest: Option<Extent>,
    hash: u64,
    reserved: u32,
}

impl Footer {
    /// Reads and checks both ends of a file.
    fn read(source: &dyn Source) -> Result<Footer> {
        let total = source.len();
        if total < SMALLEST {
            let message =
                format!("{total} bytes are fewer than the {SMALLEST} that a magic and a footer take");
            return Err(Error::corrupt("zt2.FileTooSmall", message));
        }
        let magic = |rule, at: u64, found: &[u8]| match found == MAGIC {
            true => Ok(()),
            false => Err(Error::corrupt(
                rule,
                format!(
                    "byte {at}: {found:02x?} instead of {MAGIC:02x?}: the file is damaged or was cut off"
                ),
            )),
        };
        magic("zt2.HeaderMagic", 0, &source.bytes(0, MAGIC.len() as u64)?)?;
        let footer = source.bytes(total - FOOTER_LEN, FOOTER_LEN)?;
        magic("zt2.FooterMagic", total - MAGIC.len() as u64, &footer[32..])?;
        let u64_at = |at: usize| footer[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let u32_at = |at: usize| footer[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let (offset, len, hash) = (u64_at(0), u64_at(8), u64_at(16));
        let version = u32_at(24);
        if version != VERSION {
            return Err(Error::corrupt(
                "zt2.Version",
                format!("the container version is {version}, not {VERSION}"),
            ));
        }
        let manifest = match len {
            0 if offset == 0 && hash == 0 => None,
            0 => {
                let message = "a data shard, which has no manifest, gives the place or the hash of one";
                return Err(Error::corrupt("zt2.ManifestBounds", message));
            }
            len => Some(check_manifest(offset, len, total)?),
        };
        Ok(Footer { manifest, hash, reserved: u32_at(28) })
    }

    fn check_hash(&self, manifest: &[u8]) -> Result<()> {
        let found = XxHash3_64::oneshot(manifest);
        match found == self.hash {
            true => Ok(()),
            false => Err(Error::corrupt(
                "zt2.ManifestHash",
                format!("the manifest has the hash {found:016x}, the footer says {:016x}", self.hash),
            )),
        }
    }
}

fn check_manifest(offset: u64, len: u64, total: u64) -> Result<Extent> {
    if len > MAX_MANIFEST {
        let message = format!("a manifest of {len} bytes is larger than 1 GiB");
        return Err(Error::corrupt("zt2.ManifestTooLarge", message));
    }
    check_aligned(offset)?;
    match offset.checked_add(len) {
        Some(end) if end <= total - FOOTER_LEN => Ok(Extent::new(offset, len)),
        _ => Err(Error::corrupt(
            "zt2.ManifestBounds",
            format!("a manifest of {len} bytes at {offset} does not fit in a file of {total}"),
        )),
    }
}

/// Blobs start at multiples of 4096 behind the magic.
fn check_aligned(offset: u64) -> Result<()> {
    match offset.is_multiple_of(MIN_ALIGNMENT) && offset >= MIN_ALIGNMENT {
        true => Ok(()),
        false => Err(Error::corrupt(
            "zt2.BlobAlignment",
            format!("offset {offset} is not a multiple of {MIN_ALIGNMENT} from {MIN_ALIGNMENT} on"),
        )),
    }
}

/// A digest string: `<algorithm>:<hex>` in lower case. One that no bytes can have is kept as it is.
fn digest(text: &str) -> Result<Digest> {
    let malformed = || {
        let shown = crate::error::quoted(text);
        Error::corrupt("zt2.Schema", format!("the digest {shown} is not <algorithm>:<hex> in lower case"))
    };
    let (algorithm, hex) = text.split_once(':').ok_or_else(malformed)?;
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if algorithm.is_empty() || hex.is_empty() || !algorithm.bytes().all(is_name) || !hex.bytes().all(is_hex) {
        return Err(malformed());
    }
    Ok(match (algorithm, hex.len()) {
        ("xxh3", 16) => u64::from_str_radix(hex, 16).map_or(Digest::Other(text.into()), Digest::Xxh3),
        ("sha256", 64) => Digest::parse(text)?,
        _ => Digest::Other(text.into()),
    })
}

/// Whether a digest is of an algorithm that is known, but of a length that none of its values has.
fn never_matches(digest: &Digest) -> bool {
    matches!(digest, Digest::Other(text) if text.starts_with("xxh3:") || text.starts_with("sha256:"))
}

/// Refuses a component whose digest no bytes have.
pub(crate) fn check_digest(component: &Component) -> Result<()> {
    match component.digest.as_ref().filter(|digest| never_matches(digest)) {
        Some(digest) => {
            Err(Error::mismatch(format!("no bytes have the digest {digest}")).under("zt2.Digest"))
        }
        None => Ok(()),
    }
}

/// The digest that files written here have.
pub(crate) fn hasher() -> crate::digest::Hasher {
    crate::digest::Hasher::Xxh3(Box::default())
}

/// Refuses an edit of a file by its first bytes: version 2 files are written anew.
pub(crate) fn refuse_edit(head: &[u8]) -> Result<()> {
    match head.starts_with(MAGIC) {
        false => Ok(()),
        true => Err(Error::unsupported(
            "this is a .zt file of version 2, which is not edited in place: write a new file with `ztensor \
             convert` (--format zt2, or without it a version 1.2 file, which can be edited)",
        )),
    }
}
