//! The manifest: names, shapes, layouts and parts of all objects, as one CBOR map.

use std::sync::Arc;

use indexmap::IndexMap;
use smallvec::SmallVec;

use super::cbor::{self, Items};
use super::layout::{self, Described, PartSize};
use super::types::{self, Element};
use super::{FOOTER_LEN, SMALLEST, check_aligned, digest};
use crate::catalog::{Catalog, Component, DigestOf, Extent, MAX_RANK, Object, Role, Shape, Storage};
use crate::decode::{SeekableZstd, UnknownEncoding};
use crate::digest::Digest;
use crate::dtype::DType;
use crate::error::{Error, Result, quoted};
use crate::format::zt::manifest::role;
use crate::tensor::value::Attributes;

const MAX_NAME: usize = 1024;
const MAX_SHARD_NAME: usize = 64;

/// An entry of the table of shards.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shard {
    pub(super) name: Box<str>,
    pub(super) size: u64,
    pub(super) digest: Digest,
}

#[cold]
fn schema(what: impl Into<String>) -> Error {
    Error::corrupt("zt2.Schema", what)
}

/// Checks a name of an object, a part or an attribute.
pub(super) fn check_name(what: &str, name: &str) -> Result<()> {
    match !name.is_empty() && name.len() <= MAX_NAME && !name.contains('\0') {
        true => Ok(()),
        false => Err(Error::corrupt(
            "zt2.Name",
            format!("{what} {} must have 1 to {MAX_NAME} bytes without a zero byte", quoted(name)),
        )),
    }
}

/// Checks a shard's name: one that can be one component of a path.
fn check_shard_name(name: &str) -> Result<()> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let fits = (1..=MAX_SHARD_NAME).contains(&name.len()) && name.bytes().all(allowed);
    match fits && !name.starts_with('.') {
        true => Ok(()),
        false => Err(Error::corrupt(
            "zt2.ShardName",
            format!(
                "the shard name {} must have 1 to {MAX_SHARD_NAME} characters of A-Z a-z 0-9 . _ - and no leading dot",
                quoted(name)
            ),
        )),
    }
}

/// Decodes the manifest at `place` of a file of `total` bytes into `catalog`, and returns the shards.
/// With `structural`, objects that break the rules of a sparse or quantized layout are passed through
/// without being interpreted.
pub(super) fn decode(
    bytes: &[u8],
    total: u64,
    place: Extent,
    structural: bool,
    catalog: &mut Catalog,
) -> Result<Vec<Shard>> {
    cbor::check(bytes)?;
    let mut decoder =
        Manifest { total, place, structural, shards: IndexMap::new(), later: None, extents: Vec::new() };
    let mut items = Items::new(bytes);
    let mut objects = false;
    let entries = items.map().ok_or_else(|| schema("the manifest is not a map"))?;
    for _ in 0..entries {
        match items.key() {
            // Keys ascend, so that shards come before the objects that refer to them.
            Some("shards") => decoder.shard_table(&mut items)?,
            Some("objects") => {
                objects = true;
                decoder.objects(&mut items, bytes.len(), catalog)?;
            }
            Some("attributes") => catalog.attributes = attributes(&mut items)?,
            _ => items.skip(),
        }
    }
    if !objects {
        return Err(schema("the manifest has no \"objects\""));
    }
    if let Some(error) = decoder.later {
        return Err(error);
    }
    decoder.check_overlaps()?;
    let shards = decoder.shards.into_iter();
    Ok(shards.map(|(name, (size, digest))| Shard { name: name.into(), size, digest }).collect())
}

impl<'a> Items<'a> {
    /// A key, if it is text; any other is passed over.
    fn key(&mut self) -> Option<&'a str> {
        let key = self.text();
        if key.is_none() {
            self.skip();
        }
        key
    }

    /// Text that the schema asks for.
    fn need_text(&mut self, what: &str) -> Result<&'a str> {
        self.text().ok_or_else(|| schema(format!("{what} is not text")))
    }

    /// A number that the schema asks for.
    fn need_uint(&mut self, what: &str) -> Result<u64> {
        self.uint().ok_or_else(|| schema(format!("{what} is not a number from 0 to 2^64 - 1")))
    }

    fn need_map(&mut self, what: &str) -> Result<u64> {
        self.map().ok_or_else(|| schema(format!("{what} is not a map")))
    }
}

fn attributes(items: &mut Items<'_>) -> Result<Attributes> {
    let mut attributes = Attributes::new();
    for _ in 0..items.need_map("\"attributes\"")? {
        let key = items.need_text("the key of an attribute")?;
        check_name("the attribute", key)?;
        attributes.insert(key.to_owned(), items.value());
    }
    Ok(attributes)
}

/// A part as the manifest has it.
struct ListedPart<'a> {
    role: &'a str,
    dtype: DType,
    logical: Option<&'a str>,
    blob: (u64, u64),
    shard: Option<&'a str>,
    encoding: Option<&'a str>,
    /// Decoded bytes.
    len: u64,
    digest: Option<Digest>,
}

type Parts<'a> = SmallVec<[ListedPart<'a>; 1]>;

struct Manifest<'a> {
    total: u64,
    place: Extent,
    structural: bool,
    /// Sizes and digests of shards.
    shards: IndexMap<&'a str, (u64, Digest)>,
    /// The first error that counts only if the whole manifest fits the schema.
    later: Option<Error>,
    /// Non-empty references, for the check of overlaps.
    extents: Vec<Extent>,
}

impl<'a> Manifest<'a> {
    fn shard_table(&mut self, items: &mut Items<'a>) -> Result<()> {
        for _ in 0..items.need_map("\"shards\"")? {
            let name = items.need_text("the name of a shard")?;
            check_shard_name(name)?;
            let (mut size, mut identity) = (None, None);
            for _ in 0..items.need_map("the entry of a shard")? {
                match items.key() {
                    Some("size") => size = Some(items.need_uint("the size of a shard")?),
                    Some("digest") => identity = Some(digest(items.need_text("the digest of a shard")?)?),
                    _ => items.skip(),
                }
            }
            let missing = |what| schema(format!("the shard {} has no {what:?}", quoted(name)));
            let size = size.ok_or_else(|| missing("size"))?;
            if size < SMALLEST {
                return Err(schema(format!(
                    "the shard {} has {size} bytes, fewer than an empty file",
                    quoted(name)
                )));
            }
            self.shards.insert(name, (size, identity.ok_or_else(|| missing("digest"))?));
        }
        Ok(())
    }

    fn objects(&mut self, items: &mut Items<'a>, len: usize, catalog: &mut Catalog) -> Result<()> {
        let count = items.need_map("\"objects\"")?;
        // An object takes at least fifty bytes of manifest.
        let earned = count.min(len as u64 / 50) as usize;
        catalog.objects.reserve(earned);
        self.extents.reserve(earned);
        for _ in 0..count {
            let name = items.need_text("the name of an object")?;
            let object = self.object(items, name).map_err(|error| error.in_tensor(name))?;
            if let Some(object) = object {
                let inserted = catalog.insert(name, object).map_err(|error| match error.rule() {
                    // Legal where nothing says how its elements are to be read, but not in the catalog.
                    Some("component.elements") => Error::unsupported(error.to_string()),
                    _ => error,
                });
                self.defer(inserted);
            }
        }
        Ok(())
    }

    /// Keeps the first error of the rules behind the schema.
    fn defer<T>(&mut self, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.later.get_or_insert(error);
                None
            }
        }
    }

    fn object(&mut self, items: &mut Items<'a>, name: &str) -> Result<Option<Object>> {
        check_name("the object", name)?;
        let (mut shape, mut id, mut own) = (None, None, None);
        let mut found: Option<Parts<'a>> = None;
        for _ in 0..items.need_map("an object")? {
            match items.key() {
                Some("parts") => found = Some(parts(items)?),
                Some("shape") => shape = Some(dimensions(items)?),
                Some("layout") => id = Some(items.need_text("\"layout\"")?),
                Some("attributes") => own = Some(Box::new(attributes(items)?)),
                _ => items.skip(),
            }
        }
        let missing = |what| schema(format!("the object has no {what:?}"));
        let shape = shape.ok_or_else(|| missing("shape"))?;
        let id = id.ok_or_else(|| missing("layout"))?;
        let found = found.ok_or_else(|| missing("parts"))?;
        if found.is_empty() {
            return Err(schema("the object has no parts"));
        }
        if self.later.is_some() {
            return Ok(None);
        }
        let built = self.build(shape, id, found, own).map_err(|error| error.in_tensor(name));
        Ok(self.defer(built))
    }

    /// The object of the catalog: the rules behind the schema, then those of the layout.
    fn build(
        &mut self,
        shape: Shape,
        id: &str,
        parts: Parts<'a>,
        attributes: Option<Box<Attributes>>,
    ) -> Result<Object> {
        if shape.len() > MAX_RANK {
            let message = format!("a shape has more than {MAX_RANK} dimensions");
            return Err(Error::corrupt("zt2.Shape", message));
        }
        layout::product(&shape)?;
        let mut sizes: SmallVec<[PartSize<'a>; 1]> = SmallVec::with_capacity(parts.len());
        let mut components: SmallVec<[(Role, Component); 1]> = SmallVec::with_capacity(parts.len());
        for part in parts {
            let place = |error: Error| error.within(format_args!("part {}", quoted(part.role)));
            let extent = self.extent(&part).map_err(place)?;
            let element = Element::new(part.dtype, part.logical).map_err(place)?;
            sizes.push(PartSize { role: part.role, element, len: part.len });
            components.push((role(part.role), component(&part, element, extent)));
            if extent.len > 0 {
                self.extents.push(extent);
            }
        }
        let mut described =
            Described { shape: &shape, layout: id, parts: &sizes, attributes: attributes.as_deref() };
        let mapped = match layout::check(&described) {
            Ok(()) => layout::into_catalog(&described, attributes.clone()),
            Err(error)
                if self.structural && error.rule() == Some("zt2.LayoutRule") && id != layout::DENSE =>
            {
                described.layout = "";
                let mapped = layout::into_catalog(&described, attributes.clone());
                layout::Mapped { layout: crate::catalog::Layout::Other(id.into()), ..mapped }
            }
            Err(error) => return Err(error),
        };
        if mapped.data != "data" {
            for (role, _) in components.iter_mut().filter(|(role, _)| role == "data") {
                *role = Role::Borrowed(mapped.data);
            }
        }
        let mut object = Object::new(shape, mapped.layout, []);
        object.components = components;
        object.attributes = mapped.attributes;
        Ok(object)
    }

    /// Where a part lies: in this file, or in a shard.
    fn extent(&self, part: &ListedPart<'_>) -> Result<Extent> {
        let (offset, len) = part.blob;
        check_aligned(offset)?;
        let (source, size) = match part.shard {
            None => (0, self.total),
            Some(name) => match self.shards.get_full(name) {
                Some((index, _, (size, _))) => (index as u32 + 1, *size),
                None => {
                    let message = format!("the shard {} is not in the table of shards", quoted(name));
                    return Err(Error::corrupt("zt2.ShardRef", message));
                }
            },
        };
        match offset.checked_add(len) {
            Some(end) if end <= size - FOOTER_LEN => Ok(Extent { source, offset, len }),
            _ => Err(Error::corrupt(
                "zt2.BlobBounds",
                format!("bytes {offset} + {len} lie outside the {size} bytes of the file, or on its footer"),
            )),
        }
    }

    /// Any two references into one file are equal or disjoint; the manifest is one of them.
    fn check_overlaps(&mut self) -> Result<()> {
        self.extents.push(self.place);
        if !self.extents.is_sorted() {
            self.extents.sort_unstable();
        }
        for pair in self.extents.windows(2) {
            let (a, b) = (pair[0], pair[1]);
            if a != b && a.source == b.source && b.offset < a.offset + a.len {
                return Err(Error::corrupt(
                    "zt2.BlobOverlap",
                    format!(
                        "bytes {}..{} and {}..{} of one file overlap in part",
                        a.offset,
                        a.offset + a.len,
                        b.offset,
                        b.offset + b.len
                    ),
                ));
            }
        }
        Ok(())
    }
}

/// The sizes of dimensions; of too many, one more than there may be.
fn dimensions(items: &mut Items<'_>) -> Result<Shape> {
    let count = items.array().ok_or_else(|| schema("\"shape\" is not an array"))?;
    let mut shape = Shape::new();
    for _ in 0..count {
        let size = items.need_uint("a dimension")?;
        if shape.len() <= MAX_RANK {
            shape.push(size);
        }
    }
    Ok(shape)
}

fn parts<'a>(items: &mut Items<'a>) -> Result<Parts<'a>> {
    let mut parts = Parts::new();
    for _ in 0..items.need_map("\"parts\"")? {
        let role = items.need_text("the name of a part")?;
        check_name("the part", role)?;
        parts.push(part(items, role).map_err(|error| error.within(format_args!("part {}", quoted(role))))?);
    }
    Ok(parts)
}

fn part<'a>(items: &mut Items<'a>, role: &'a str) -> Result<ListedPart<'a>> {
    let (mut dtype, mut logical, mut blob, mut shard) = (None, None, None, None);
    let (mut encoding, mut decoded, mut hash) = (None, None, None);
    for _ in 0..items.need_map("a part")? {
        match items.key() {
            Some("blob") => {
                if items.array() != Some(2) {
                    return Err(schema("\"blob\" is not an array of two numbers"));
                }
                blob = Some((items.need_uint("an offset")?, items.need_uint("a length")?));
            }
            Some("type") => logical = Some(items.need_text("\"type\"")?),
            Some("dtype") => {
                let name = items.need_text("\"dtype\"")?;
                let known = types::storage(name);
                dtype = Some(known.ok_or_else(|| schema(format!("unknown storage type {}", quoted(name))))?);
            }
            Some("shard") => {
                let name = items.need_text("\"shard\"")?;
                check_shard_name(name)?;
                shard = Some(name);
            }
            Some("digest") => hash = Some(digest(items.need_text("\"digest\"")?)?),
            Some("encoding") => encoding = Some(items.need_text("\"encoding\"")?),
            Some("decoded_length") => decoded = Some(items.need_uint("\"decoded_length\"")?),
            _ => items.skip(),
        }
    }
    let missing = |what| schema(format!("there is no {what:?}"));
    let blob = blob.ok_or_else(|| missing("blob"))?;
    let len = match (encoding, decoded) {
        (None, None) => blob.1,
        (Some(_), Some(len)) => len,
        _ => return Err(schema("\"encoding\" and \"decoded_length\" come together or not at all")),
    };
    let dtype = dtype.ok_or_else(|| missing("dtype"))?;
    Ok(ListedPart { role, dtype, logical, blob, shard, encoding, len, digest: hash })
}

fn component(part: &ListedPart<'_>, element: Element<'_>, extent: Extent) -> Component {
    let storage = match part.encoding {
        None => Storage::Plain(extent),
        Some(SeekableZstd::NAME) => Storage::Encoded(Arc::new(SeekableZstd::new(extent, part.len))),
        Some(other) => Storage::Encoded(Arc::new(UnknownEncoding::new(other, extent))),
    };
    let mut component = Component::new(element.dtype(), part.len, storage);
    if let Element::Unknown(_, name) = element {
        component.unknown_type = Some(name.into());
    }
    component.digest = part.digest.clone();
    component.digest_of = DigestOf::Decoded;
    component
}
