//! `.h5`, `.hdf5` and `.keras` files.
//!
//! Headers, messages, groups, attributes and chunks are read here; the B-trees,
//! heaps and arrays that index names and chunks are walked by the `hdf5-reader`
//! crate, through a [`Store`](store::Store) that bounds what it may read.

mod attribute;
mod chunks;
mod dataset;
mod datatype;
mod fields;
mod filter;
mod group;
mod header;
mod keras;
mod message;
mod store;
mod walk;

use std::ops::Range;
use std::sync::Arc;

use hdf5_reader::superblock::{HDF5_MAGIC, Superblock};

use crate::catalog::Catalog;
use crate::error::{Error, Result};
use crate::format::{Capabilities, Context, Driver, Extension, Format, Input, Metadata, Probe, Verdict, zip};
use crate::source::{Source, Sources};
use fields::Widths;
use store::{Store, structure};
use walk::{File, Walk};

pub(crate) static DRIVER: Driver = Driver {
    format: Format::Hdf5,
    extensions: &[
        Extension::new("h5").rank(8),
        Extension::new("hdf5").rank(9),
        Extension::new("hdf"),
        Extension::new("keras").rank(10).tail(),
    ],
    merges_files: false,
    detect,
    tail: None,
    parse,
    capabilities: Capabilities {
        ties: true,
        metadata: Metadata::Typed,
        encodings: &["deflate", "shuffle", "lzf", "zstd", "scaleoffset"],
        checksums: &["fletcher32"],
        ..Capabilities::READ_ONLY
    },
    exporters: &[],
};

fn detect(probe: &Probe<'_>) -> Verdict {
    if probe.head.starts_with(&HDF5_MAGIC) {
        return Verdict::Yes;
    }
    if probe.head.starts_with(zip::MAGIC) {
        return keras::detect(probe);
    }
    // A user block, of 512 bytes or more, may hold anything, so the name decides.
    match user_block(probe.source) {
        Ok(Some(_)) if DRIVER.owns(probe.extension) => Verdict::Yes,
        _ => Verdict::No,
    }
}

/// Where the superblock is, behind a user block.
fn user_block(source: &dyn Source) -> Result<Option<u64>> {
    let mut at = 512u64;
    while at.checked_add(8).is_some_and(|end| end <= source.len()) {
        if *source.bytes(at, 8)? == HDF5_MAGIC {
            return Ok(Some(at));
        }
        at *= 2;
    }
    Ok(None)
}

fn parse(input: Input, _context: &Context) -> Result<Catalog> {
    if input.source.bytes(0, input.source.len().min(4))?.starts_with(zip::MAGIC) {
        return keras::parse(&input);
    }
    let source = input.source;
    let mut catalog = Catalog::new(Format::Hdf5, Sources::one(source.clone()));
    let len = source.len();
    read(source, 0, 0..len, &mut catalog)?;
    Ok(catalog)
}

/// Reads the HDF5 file in `range` of a source, which is the catalog's `index`th.
fn read(source: Arc<dyn Source>, index: u32, range: Range<u64>, catalog: &mut Catalog) -> Result<()> {
    let whole = Store::new(source.clone(), range.clone());
    let superblock = Superblock::parse_from_storage(&whole).map_err(structure)?;
    let widths = Widths { offset: superblock.offset_size, length: superblock.length_size };
    for width in [widths.offset, widths.length] {
        if !matches!(width, 2 | 4 | 8) {
            return Err(Error::corrupt("hdf5.width", format!("addresses or lengths have {width} bytes")));
        }
    }
    // Addresses count from the superblock, behind any user block.
    let base = range.start.saturating_add(superblock.base_address);
    // This one counts from the user block's start.
    let (end, found) = (superblock.eof_address, range.end - range.start);
    if end > found && !widths.is_undefined(end) {
        return Err(Error::corrupt(
            "hdf5.truncated",
            format!("the file is truncated: it ends at byte {found} instead of {end} (incomplete download?)"),
        ));
    }
    let root = superblock.root_object_header_address().map_err(structure)?;
    let mut file = File::new(Store::new(source, base..range.end), index, widths);
    Walk::new(&mut file, root).run(catalog)
}
