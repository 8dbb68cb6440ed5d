//! Version 0.1 files, read only: an array of maps, and no magic at the end.

use std::sync::Arc;

use minicbor::Decoder;

use super::cbor::{decode_text, malformed, sequence};
use super::{ALIGNMENT, MAX_MANIFEST};
use crate::catalog::validate;
use crate::catalog::{Catalog, Component, Extent, Layout, MAX_RANK, Object, Shape, Storage};
use crate::decode::{Swapped, Zstd};
use crate::digest::Digest;
use crate::dtype::DType;
use crate::error::{Error, Result, quoted};
use crate::format::Format;
use crate::source::{Source, Sources};

pub(crate) const MAGIC: &[u8; 8] = b"ZTEN0001";

pub(super) fn parse(source: Arc<dyn Source>) -> Result<Catalog> {
    let total = source.len();
    if total < 16 {
        return Err(Error::corrupt(
            "zt.short",
            format!("{total} bytes are fewer than a magic and a length take"),
        ));
    }
    let mut len = [0; 8];
    source.read_at(total - 8, &mut len)?;
    let len = u64::from_le_bytes(len);
    if len > MAX_MANIFEST || len > total - 16 {
        return Err(Error::corrupt(
            "zt.manifest-length",
            format!("a manifest of {len} bytes does not fit in a file of {total}"),
        ));
    }
    let data_end = total - 8 - len;
    let mut catalog = Catalog::new(Format::Zt, Sources::default());
    {
        let bytes = source.bytes(data_end, len)?;
        let mut d = Decoder::new(&bytes);
        let entries = d.array().map_err(malformed)?;
        sequence(&mut d, entries, |d| {
            let (name, object) = entry(d, data_end)?;
            catalog.insert(name, object)
        })?;
        if d.position() != bytes.len() {
            return Err(Error::corrupt("zt.manifest-trailing", "bytes follow the manifest's array"));
        }
    }
    catalog.sources.push(source);
    validate::overlaps(&catalog)?;
    Ok(catalog)
}

fn entry(d: &mut Decoder<'_>, data_end: u64) -> Result<(String, Object)> {
    let (mut name, mut offset, mut size, mut dtype, mut shape) = (None, None, None, None, None);
    let (mut encoding, mut layout, mut big, mut digest) = (None, None, false, None);
    let len = d.map().map_err(malformed)?;
    sequence(d, len, |d| {
        let key = decode_text(d)?;
        match key.as_str() {
            "name" => name = Some(decode_text(d)?),
            "offset" => offset = Some(d.u64().map_err(malformed)?),
            "size" => size = Some(d.u64().map_err(malformed)?),
            "dtype" => dtype = Some(decode_text(d)?),
            "encoding" => encoding = Some(decode_text(d)?),
            "layout" => layout = Some(decode_text(d)?),
            "shape" => {
                let mut sizes = Shape::new();
                let len = d.array().map_err(malformed)?;
                sequence(d, len, |d| {
                    if sizes.len() == MAX_RANK {
                        return Err(Error::corrupt(
                            "object.rank",
                            format!("a shape has more than {MAX_RANK} dimensions"),
                        ));
                    }
                    sizes.push(d.u64().map_err(malformed)?);
                    Ok(())
                })?;
                shape = Some(sizes);
            }
            "data_endianness" => match d.datatype().map_err(malformed)? {
                minicbor::data::Type::Null => d.skip().map_err(malformed)?,
                _ => match decode_text(d)?.as_str() {
                    "little" => big = false,
                    "big" => big = true,
                    other => return Err(Error::unsupported(format!("unknown byte order {}", quoted(other)))),
                },
            },
            "checksum" => match d.datatype().map_err(malformed)? {
                minicbor::data::Type::String => digest = Some(Digest::parse(&decode_text(d)?)?),
                _ => d.skip().map_err(malformed)?,
            },
            _ => d.skip().map_err(malformed)?,
        }
        Ok(())
    })?;
    let missing = |key: &str| Error::corrupt("zt.v01-entry", format!("a tensor has no {key:?}"));
    let name = name.ok_or_else(|| missing("name"))?;
    let object = (|| {
        let dtype_name = dtype.ok_or_else(|| missing("dtype"))?;
        let dtype = DType::from_name(&dtype_name).filter(|dtype| dtype.is_storage()).ok_or_else(|| {
            Error::corrupt("component.dtype", format!("unknown storage type {}", quoted(&dtype_name)))
        })?;
        let layout = layout.as_deref().unwrap_or("dense");
        if layout != "dense" {
            return Err(Error::unsupported(format!(
                "layout {} of version 0.1 files is not supported",
                quoted(layout)
            )));
        }
        let extent =
            Extent::new(offset.ok_or_else(|| missing("offset"))?, size.ok_or_else(|| missing("size"))?);
        if !extent.offset.is_multiple_of(ALIGNMENT) {
            return Err(Error::corrupt(
                "component.alignment",
                format!("offset {} is not a multiple of 64", extent.offset),
            ));
        }
        if extent.len > 0
            && extent.offset.checked_add(extent.len).is_none_or(|end| end > data_end || extent.offset < 8)
        {
            return Err(Error::corrupt("component.range", format!("{extent:?} lies outside the data")));
        }
        let shape = shape.ok_or_else(|| missing("shape"))?;
        let len = crate::catalog::elements(&shape)
            .and_then(|elements| dtype.byte_len(elements))
            .ok_or_else(|| Error::corrupt("object.overflow", "the shape describes more bytes than 2^64"))?;
        let mut storage = match encoding.as_deref().unwrap_or("raw") {
            "raw" => Storage::Plain(extent),
            "zstd" => Storage::Encoded(Arc::new(Zstd::new(extent, len)?)),
            other => Storage::Encoded(Arc::new(crate::decode::UnknownEncoding::new(other, extent))),
        };
        let width = dtype.alignment();
        let len = if matches!(storage, Storage::Plain(_)) { extent.len } else { len };
        if big && width > 1 {
            storage = Storage::Encoded(Arc::new(Swapped::new(storage, width, len)));
        }
        let mut component = Component::new(dtype, len, storage);
        component.digest = digest;
        Ok(Object::new(shape, Layout::Dense, [(std::borrow::Cow::Borrowed("data"), component)]))
    })()
    .map_err(|error: Error| error.in_tensor(name.clone()))?;
    Ok((name, object))
}
