//! The messages that describe a dataset: its space, its layout, its filters and
//! the value of what was never written.

use std::sync::Arc;

use crate::catalog::{MAX_RANK, Shape};
use crate::error::{Error, Result};
use crate::format::hdf5::fields::{Fields, Widths};

/// A dataset's extent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Dataspace {
    /// Empty for a scalar.
    pub(super) shape: Shape,
    /// How far it may grow, if that is more.
    pub(super) max: Option<Vec<u64>>,
    /// It has no elements at all, not even one.
    pub(super) is_null: bool,
}

impl Dataspace {
    pub(super) fn parse(bytes: &[u8], widths: Widths) -> Result<Dataspace> {
        let mut fields = Fields::new(bytes);
        let version = fields.u8()?;
        let (rank, flags) = (usize::from(fields.u8()?), fields.u8()?);
        let is_null = match version {
            1 => {
                fields.skip(5)?;
                false
            }
            2 => fields.u8()? == 2,
            other => return Err(Error::unsupported(format!("dataspace version {other}"))),
        };
        if rank > MAX_RANK {
            return Err(Error::corrupt("object.rank", format!("a dataspace has {rank} dimensions")));
        }
        let sizes = |fields: &mut Fields<'_>| -> Result<Vec<u64>> {
            (0..rank).map(|_| fields.length(widths)).collect()
        };
        let shape = sizes(&mut fields)?;
        let max = if flags & 1 != 0 { Some(sizes(&mut fields)?) } else { None };
        Ok(Dataspace { shape: Shape::from_vec(shape), max, is_null })
    }
}

/// Where a dataset's elements are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DataLayout {
    /// In the message itself.
    Compact(Arc<[u8]>),
    /// In one piece.
    Contiguous { address: u64, size: Option<u64> },
    /// In pieces of one shape, which an index finds.
    Chunked(Chunking),
    /// In other datasets, perhaps of other files.
    Virtual,
}

/// How a dataset is cut into chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chunking {
    pub(super) index: Index,
    pub(super) address: u64,
    /// The chunk's shape, in elements.
    pub(super) shape: Vec<u32>,
    /// Chunks that reach over the dataset's edge are not filtered.
    pub(super) edges_unfiltered: bool,
}

/// How the chunks are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Index {
    BTree1,
    Single { filtered: Option<(u64, u32)> },
    Implicit,
    FixedArray,
    ExtensibleArray,
    BTree2,
}

impl DataLayout {
    pub(super) fn parse(bytes: &[u8], widths: Widths) -> Result<DataLayout> {
        let mut fields = Fields::new(bytes);
        match fields.u8()? {
            version @ (1 | 2) => first_versions(&mut fields, version, widths),
            version @ 3..=5 => match fields.u8()? {
                0 => {
                    let len = usize::from(fields.u16()?);
                    Ok(DataLayout::Compact(fields.take(len)?.into()))
                }
                1 => {
                    let address = fields.offset(widths)?;
                    Ok(DataLayout::Contiguous { address, size: Some(fields.length(widths)?) })
                }
                2 if version == 3 => {
                    let rank = usize::from(fields.u8()?);
                    let address = fields.offset(widths)?;
                    let shape = sizes(&mut fields, rank, 4)?;
                    Ok(chunked(Index::BTree1, address, shape, false))
                }
                2 => indexed(&mut fields, widths),
                3 => Ok(DataLayout::Virtual),
                other => Err(Error::unsupported(format!("the data layout class {other} is not known"))),
            },
            other => Err(Error::unsupported(format!("data layout version {other}"))),
        }
    }
}

fn sizes(fields: &mut Fields<'_>, rank: usize, width: usize) -> Result<Vec<u32>> {
    if rank > MAX_RANK + 1 {
        return Err(Error::corrupt("object.rank", format!("a chunk has {rank} dimensions")));
    }
    (0..rank)
        .map(|_| {
            let size = fields.number(width)?;
            u32::try_from(size).map_err(|_| Error::corrupt("hdf5.chunk", format!("a chunk is {size} long")))
        })
        .collect()
}

/// The last of the sizes is that of an element.
fn chunked(index: Index, address: u64, mut shape: Vec<u32>, edges_unfiltered: bool) -> DataLayout {
    shape.pop();
    DataLayout::Chunked(Chunking { index, address, shape, edges_unfiltered })
}

fn first_versions(fields: &mut Fields<'_>, version: u8, widths: Widths) -> Result<DataLayout> {
    let (rank, class) = (usize::from(fields.u8()?), fields.u8()?);
    fields.skip(5)?;
    let address = match class {
        0 if version == 2 => 0,
        _ => fields.offset(widths)?,
    };
    let shape = sizes(fields, rank, 4)?;
    match class {
        0 => {
            let len = fields.u32()? as usize;
            Ok(DataLayout::Compact(fields.take(len)?.into()))
        }
        1 => Ok(DataLayout::Contiguous { address, size: None }),
        2 => Ok(chunked(Index::BTree1, address, shape, false)),
        other => Err(Error::unsupported(format!("the data layout class {other} is not known"))),
    }
}

fn indexed(fields: &mut Fields<'_>, widths: Widths) -> Result<DataLayout> {
    let (flags, rank, width) = (fields.u8()?, usize::from(fields.u8()?), usize::from(fields.u8()?));
    let shape = sizes(fields, rank, width)?;
    let index = match fields.u8()? {
        1 if flags & 2 != 0 => Index::Single { filtered: Some((fields.length(widths)?, fields.u32()?)) },
        1 => Index::Single { filtered: None },
        2 => Index::Implicit,
        3 => {
            fields.skip(1)?;
            Index::FixedArray
        }
        4 => {
            fields.skip(5)?;
            Index::ExtensibleArray
        }
        5 => {
            fields.skip(6)?;
            Index::BTree2
        }
        other => return Err(Error::unsupported(format!("the chunk index {other} is not known"))),
    };
    Ok(chunked(index, fields.offset(widths)?, shape, flags & 1 != 0))
}

/// One step of how chunks were encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Filter {
    pub(super) id: u16,
    pub(super) name: String,
    pub(super) parameters: Vec<u32>,
}

impl Filter {
    /// Parses a filter pipeline message: the steps, in the order of encoding.
    pub(super) fn parse_all(bytes: &[u8]) -> Result<Vec<Filter>> {
        let mut fields = Fields::new(bytes);
        let (version, count) = (fields.u8()?, fields.u8()?);
        match version {
            1 => fields.skip(6)?,
            2 => {}
            other => return Err(Error::unsupported(format!("filter pipeline version {other}"))),
        }
        // The library allows 32; its mask of skipped filters has 32 bits.
        if count > 32 {
            return Err(Error::corrupt("hdf5.filters", format!("a pipeline has {count} filters")));
        }
        (0..count).map(|_| Filter::parse(&mut fields, version)).collect()
    }

    fn parse(fields: &mut Fields<'_>, version: u8) -> Result<Filter> {
        let id = fields.u16()?;
        let name_len = if version == 1 || id >= 256 { usize::from(fields.u16()?) } else { 0 };
        fields.skip(2)?;
        let count = usize::from(fields.u16()?);
        let padded = if version == 1 { name_len.next_multiple_of(8) } else { name_len };
        let name = String::from_utf8_lossy(fields.take(padded)?).trim_end_matches('\0').to_owned();
        let parameters = fields
            .take(4 * count)?
            .chunks_exact(4)
            .map(|n| u32::from_le_bytes([n[0], n[1], n[2], n[3]]))
            .collect();
        if version == 1 && count % 2 == 1 {
            fields.skip(4)?;
        }
        Ok(Filter { id, name, parameters })
    }
}

/// The value of elements that were never written; `None` is zero.
pub(super) fn fill_value(bytes: &[u8], is_old: bool) -> Result<Option<Arc<[u8]>>> {
    let mut fields = Fields::new(bytes);
    let defined = match is_old {
        true => true,
        false => match fields.u8()? {
            version @ (1 | 2) => {
                fields.skip(2)?;
                let defined = fields.u8()? != 0;
                version == 1 || defined
            }
            3 => fields.u8()? & 0x20 != 0,
            other => return Err(Error::unsupported(format!("fill value version {other}"))),
        },
    };
    if !defined {
        return Ok(None);
    }
    let len = fields.u32()? as usize;
    let value = fields.take(len)?;
    Ok((!value.is_empty()).then(|| value.into()))
}
