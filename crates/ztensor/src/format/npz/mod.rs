//! `.npy` arrays, and `.npz` archives of them.
//!
//! A stored array in row-major, little-endian order is viewed where it lies;
//! deflated, Fortran-ordered and big-endian ones are decoded when they are read.

mod archive;
mod header;
pub(crate) mod write;

use std::borrow::Cow;
use std::sync::Arc;

use header::{ArrayKind, Header, Parsed};

use crate::catalog::{Catalog, Component, Extent, Layout, Object, Storage};
use crate::decode::{Deflate, Refused, Swapped, fortran_strides, strided};
use crate::digest::Digest;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::format::zip::{self, Entry, Method};
use crate::format::{Capabilities, Context, Driver, Extension, Format, Input, Probe, Verdict};
use crate::source::{Source, Sources};
use crate::write::export::ExportFormat;

/// The layout of arrays whose elements no tensor has (text, dates, raw bytes):
/// the bytes as they are, with NumPy's name of the type in the attribute `descr`.
const OPAQUE: &str = "npy.opaque";
/// The layout of arrays that are listed and refused when they are read: Python objects and
/// structured arrays.
const REFUSED: &str = "npy.object";
/// The layout of archive members that are not arrays.
const FILE: &str = "npz.file";

pub(crate) static DRIVER: Driver = Driver {
    format: Format::Npz,
    extensions: &[Extension::new("npz").rank(7).tail(), Extension::new("npy").rank(12)],
    merges_files: false,
    detect,
    tail: None,
    parse,
    capabilities: Capabilities {
        writes: true,
        encodings: &["deflate"],
        sequential: &["deflate"],
        checksums: &["crc32"],
        ..Capabilities::READ_ONLY
    },
    exporters: &[(ExportFormat::Npz, write::export_archive), (ExportFormat::Npy, write::export_array)],
};

fn detect(probe: &Probe<'_>) -> Verdict {
    if probe.head.starts_with(header::MAGIC) {
        return Verdict::Yes;
    }
    if probe.head.starts_with(zip::MAGIC) {
        // Almost always the first member tells, which saves looking at the directory.
        let array = zip::first_name(probe.head).is_some_and(|name| name.ends_with(b".npy"));
        return match array || has_arrays(probe) {
            true => Verdict::Yes,
            false => Verdict::Maybe,
        };
    }
    match probe.head.starts_with(zip::EMPTY_MAGIC) {
        true => Verdict::Maybe,
        false => Verdict::No,
    }
}

/// Whether an archive has an array that does not lie in a folder of it: other formats that are zip
/// archives keep theirs in folders.
fn has_arrays(probe: &Probe<'_>) -> bool {
    let array = |name: &str| name.ends_with(".npy") && !name.contains('/');
    let entries = probe.directory.entries(probe.source);
    entries.is_ok_and(|entries| entries.iter().any(|entry| array(&entry.name)))
}

fn parse(Input { source, directory }: Input, _context: &Context) -> Result<Catalog> {
    let single = source.bytes(0, source.len().min(header::MAGIC.len() as u64))?.as_ref() == header::MAGIC;
    let whole = single.then(|| [whole_file(&*source)]);
    let entries = match &whole {
        Some(whole) => &whole[..],
        None => directory.entries(&*source)?,
    };
    let mut catalog = Catalog::new(Format::Npz, Sources::one(Arc::clone(&source)));
    for entry in entries {
        let object =
            member(entry, &catalog.sources, single).map_err(|error| error.in_tensor(&*entry.name))?;
        // What is no array keeps its whole name, so that it is written under the same again.
        let array = object.layout != Layout::Other(FILE.into());
        let stem = entry.name.strip_suffix(".npy").filter(|_| array);
        catalog.insert(stem.unwrap_or(&entry.name), object)?;
    }
    Ok(catalog)
}

/// A bare `.npy` file, as if it were an archive's only member. NumPy gives its
/// array no name; it is called `data` here.
fn whole_file(source: &dyn Source) -> Entry {
    let data = Extent::new(0, source.len());
    Entry { name: "data".to_owned(), method: Method::Stored, data, len: data.len, crc: 0 }
}

fn member(entry: &Entry, sources: &Sources, single: bool) -> Result<Object> {
    let deflate = match entry.method {
        Method::Stored => None,
        Method::Deflated => Some(Deflate::new(entry.data, entry.len, Some(entry.crc))?),
    };
    let head = |len: u64| -> Result<Cow<'_, [u8]>> {
        match &deflate {
            None => sources.bytes(Extent { len: len.min(entry.data.len), ..entry.data }),
            Some(deflate) => deflate.head(sources, len).map(Cow::Owned),
        }
    };
    let mut start = head(header::USUAL)?;
    if !start.starts_with(header::MAGIC) {
        let storage = match deflate {
            None => Storage::Plain(entry.data),
            Some(deflate) => Storage::Encoded(Arc::new(deflate)),
        };
        let bytes = Component::new(DType::U8, entry.len, storage);
        let layout = Layout::Other(FILE.into());
        return Ok(Object::new(&[entry.len][..], layout, [(Cow::Borrowed("data"), bytes)]));
    }
    let needed = header::header_len(&start)?;
    if needed > start.len() as u64 {
        start = head(needed)?;
    }
    let header = match header::parse(&start)? {
        Parsed::Array(header) => header,
        // A bare array is all there is; other members of an archive can still be read.
        Parsed::Refused { why, .. } if single => {
            return Err(Error::unsupported(format!("this array cannot be read: {why}")));
        }
        Parsed::Refused { shape, why } => {
            let storage = Storage::Encoded(Arc::new(Refused::new(REFUSED, why, entry.data.len)));
            let mut component = Component::new(DType::U8, entry.len, storage);
            component.unknown_type = Some(REFUSED.into());
            return Ok(Object::new(
                shape,
                Layout::Other(REFUSED.into()),
                [(Cow::Borrowed("data"), component)],
            ));
        }
    };
    let rest = entry.len.saturating_sub(header.len);
    // Deflated members check themselves; a bare array has no checksum.
    let digest = (deflate.is_none() && entry.crc != 0)
        .then(|| Digest::Crc32(zip::crc_after(&start[..header.len as usize], entry.crc, rest)));
    drop(start);
    let data = Extent {
        offset: entry.data.offset + header.len,
        len: entry.data.len.saturating_sub(header.len),
        ..entry.data
    };
    let inner = match deflate {
        None => Storage::Plain(data),
        Some(deflate) => Storage::Encoded(Arc::new(deflate.after(header.len))),
    };
    let mut object = array(header, inner, entry.len)?;
    for (_, component) in &mut object.components {
        component.digest = digest.clone();
    }
    Ok(object)
}

/// The object for an array whose elements, as stored, are `inner`; `total` is
/// the array's size with its header.
fn array(header: Header, inner: Storage, total: u64) -> Result<Object> {
    let size = header.kind.size();
    let len = crate::catalog::elements(&header.shape).and_then(|count| count.checked_mul(size));
    let Some(len) = len else {
        return Err(Error::corrupt(
            "npy.overflow",
            format!("the shape {:?} of {size}-byte elements has more than 2^64 bytes", header.shape),
        ));
    };
    let there = total.saturating_sub(header.len);
    if len != there {
        return Err(Error::corrupt(
            "npy.size",
            format!(
                "the shape {:?} of {size}-byte elements takes {len} bytes, there are {there}",
                header.shape
            ),
        ));
    }
    let mut storage = inner;
    if header.fortran_order && size > 0 {
        let strides = fortran_strides(&header.shape);
        storage = strided(storage, len, size as usize, 0, &header.shape, &strides)?;
    }
    if header.big_endian && header.kind.width() > 1 {
        storage = Storage::Encoded(Arc::new(Swapped::new(storage, header.kind.width(), len)));
    }
    Ok(match header.kind {
        ArrayKind::Known(dtype) => Object::dense(header.shape, Component::new(dtype, len, storage)),
        ArrayKind::Opaque { descr, .. } => {
            let bytes = Component::new(DType::U8, len, storage);
            let layout = Layout::Other(OPAQUE.into());
            let mut object = Object::new(header.shape, layout, [(Cow::Borrowed("data"), bytes)]);
            object.set_attribute("descr", descr);
            object
        }
    })
}
