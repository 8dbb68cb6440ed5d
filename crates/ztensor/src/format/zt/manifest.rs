//! The manifest: one CBOR map that names every object.

use std::borrow::Cow;

use minicbor::{Decoder, Encoder};
use smallvec::SmallVec;

use super::cbor::{decode_text, decode_value, encode_value, infallible, malformed, sequence};
use super::{ALIGNMENT, MAGIC, MAX_MANIFEST};
use crate::catalog::validate;
use crate::catalog::{Catalog, Component, Extent, Layout, MAX_RANK, Object, Role, Shape, Storage, Unknown};
use crate::decode::{Generation, UnknownEncoding, Z4ai, Zstd};
use crate::digest::Digest;
use crate::dtype::DType;
use crate::error::{Error, Result, quoted};
use crate::tensor::is_narrow;
use crate::tensor::value::{Attributes, Value};

/// The version that this library writes.
pub(crate) const VERSION: &str = "1.2.0";

/// The last entry of a manifest: see [`Checksum`].
const CHECKSUM: &str = "manifest_checksum";

/// The value of the last entry of a manifest, which makes damage to manifest and footer noticed.
///
/// It says where the manifest lies, with a checksum of its own for that, so that a value which an
/// editor that does not know it copied to another manifest is told from damage.
struct Checksum;

impl Checksum {
    const LEN: usize = 16;

    /// The value without the checksum of the manifest, which covers it.
    fn head(offset: u64) -> [u8; 12] {
        let mut head = [0; 12];
        head[..8].copy_from_slice(&offset.to_le_bytes());
        let crc = crc32c::crc32c(&head[..8]);
        head[8..].copy_from_slice(&crc.to_le_bytes());
        head
    }

    /// Over all of the manifest but these four bytes, which end it, and the footer.
    fn of(manifest: &[u8]) -> [u8; 4] {
        let len = manifest.len() as u64 + 4;
        let crc = crc32c::crc32c(manifest);
        let crc = crc32c::crc32c_append(crc, &len.to_le_bytes());
        crc32c::crc32c_append(crc, MAGIC).to_le_bytes()
    }

    /// Compares a manifest that lies at `offset` with the value that ends it.
    fn check(manifest: &[u8], offset: u64, value: Option<&[u8]>) -> Result<()> {
        let wrong = |what: &str| {
            let message = format!("{what}: the manifest or the footer is damaged");
            Err(Error::corrupt("zt.manifest-checksum", message))
        };
        let Some((head, _)) = value.filter(|value| value.len() == Self::LEN).map(|value| value.split_at(12))
        else {
            return wrong("the manifest's checksum is not 16 bytes");
        };
        if crc32c::crc32c(&head[..8]).to_le_bytes() != head[8..] {
            return wrong("the place of the manifest's checksum does not match its own checksum");
        }
        if head[..8] != offset.to_le_bytes() {
            return Ok(()); // copied from another manifest by an editor that does not know what it is
        }
        let (covered, found) = manifest.split_at(manifest.len() - 4);
        match Self::of(covered) == *found {
            true => Ok(()),
            false => wrong("the manifest does not match its checksum"),
        }
    }
}

/// Decodes a manifest that starts at `data_end` into `catalog`.
pub(crate) fn decode(bytes: &[u8], data_end: u64, catalog: &mut Catalog) -> Result<()> {
    let mut d = Decoder::new(bytes);
    let (mut version, mut objects_seen) = (None, false);
    let (mut checksum, mut checksum_end) = (None, 0);
    const KEYS: &[&str] = &["version", "attributes", "objects", CHECKSUM];
    catalog.unknown = map(&mut d, "the manifest", KEYS, |d, key| {
        match key {
            "version" => version = Some(decode_text(d)?),
            "attributes" => catalog.attributes = decode_attributes(d)?,
            CHECKSUM => {
                checksum = d.probe().bytes().ok();
                d.skip().map_err(malformed)?;
                checksum_end = d.position();
            }
            _ => {
                objects_seen = true;
                decode_objects(d, data_end, catalog)?;
            }
        }
        Ok(())
    })?;
    if d.position() != bytes.len() {
        return Err(Error::corrupt(
            "zt.manifest-trailing",
            format!("{} bytes follow the manifest's map", bytes.len() - d.position()),
        ));
    }
    // Anywhere else it was put by an editor that keeps what it does not know.
    if checksum_end == bytes.len() {
        Checksum::check(bytes, data_end, checksum)?;
    }
    check_version(version.as_deref())?;
    catalog.version = later(Some(VERSION.into()), &version.map(String::into_boxed_str));
    if !objects_seen {
        return Err(Error::corrupt("zt.objects", "the manifest has no \"objects\""));
    }
    validate::overlaps(catalog)
}

fn decode_objects(d: &mut Decoder<'_>, data_end: u64, catalog: &mut Catalog) -> Result<()> {
    let len = d.map().map_err(malformed)?;
    // Each object takes at least fifty bytes of manifest.
    let earned = (d.input().len() / 50) as u64;
    catalog.objects.reserve(len.unwrap_or(0).min(earned) as usize);
    sequence(d, len, |d| {
        let name = text(d)?;
        let object = decode_object(d, data_end)
            .and_then(|object| wide_indices(&object).map(|()| object))
            .map_err(|error| error.in_tensor(&*name))?;
        catalog.insert(name, object)
    })
}

/// Indices of sparse tensors are `u64` in these files.
fn wide_indices(object: &Object) -> Result<()> {
    let rule = match object.layout {
        Layout::SparseCsr => "layout.csr",
        Layout::SparseCoo => "layout.coo",
        _ => return Ok(()),
    };
    match object.components.iter().find(|(role, component)| is_narrow(role, component.dtype)) {
        None => Ok(()),
        Some((role, component)) => {
            Err(Error::corrupt(rule, format!("{role:?} is {} instead of u64", component.dtype)))
        }
    }
}

fn check_version(version: Option<&str>) -> Result<()> {
    let Some(version) = version else {
        return Err(Error::corrupt("zt.version", "the manifest has no \"version\""));
    };
    let mut parts = version.split('.');
    let numeric =
        version.split('.').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    if numeric && parts.next() == Some("1") {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "container version {} is not one of 1.x: a newer version of this library may read it",
        quoted(version)
    )))
}

/// The later of two versions: what a file that has parts of both is.
pub(crate) fn later(a: Option<Box<str>>, b: &Option<Box<str>>) -> Option<Box<str>> {
    let numbers = |version: &str| -> Vec<u64> {
        version.split('.').map(|part| part.parse().unwrap_or(u64::MAX)).collect()
    };
    match b {
        Some(b) if a.as_deref().is_none_or(|a| numbers(a) < numbers(b)) => Some(b.clone()),
        _ => a,
    }
}

/// Text, borrowed when it is in one piece.
fn text<'b>(d: &mut Decoder<'b>) -> Result<Cow<'b, str>> {
    const IN_PIECES: u8 = 0x7f;
    match d.input().get(d.position()) {
        Some(&IN_PIECES) => decode_text(d).map(Cow::Owned),
        _ => d.str().map(Cow::Borrowed).map_err(malformed),
    }
}

impl Unknown {
    fn len(&self) -> u64 {
        self.pairs().len() as u64
    }

    fn encode(&self, e: &mut Encoder<&mut Vec<u8>>) {
        for (key, value) in self.pairs() {
            infallible(e.str(key));
            e.writer_mut().extend_from_slice(value);
        }
    }
}

/// Walks a map with text keys, refusing a key that comes twice. `known` are the
/// keys that `entry` takes, by their index; the others are kept as they stand.
fn map<'b>(
    d: &mut Decoder<'b>,
    what: &str,
    known: &[&'static str],
    mut entry: impl FnMut(&mut Decoder<'b>, &'static str) -> Result<()>,
) -> Result<Unknown> {
    /// Maps that legitimately hold many keys (objects, attributes) do not come here.
    const MAX_UNKNOWN: usize = 256;
    let twice =
        |key: &str| Error::corrupt("zt.key-duplicate", format!("{what} has the key {} twice", quoted(key)));
    let mut unknown = Unknown::default();
    let mut seen = 0u32;
    let len = d.map().map_err(malformed)?;
    sequence(d, len, |d| {
        let mut other = None;
        let index = match known_key(d, known) {
            Some(index) => Some(index),
            None => {
                let key = &*other.insert(text(d)?);
                known.iter().position(|known| known == key)
            }
        };
        if let Some(index) = index {
            if seen & (1 << index) != 0 {
                return Err(twice(known[index]));
            }
            seen |= 1 << index;
            return entry(d, known[index]);
        }
        let key = other.unwrap_or_default();
        if unknown.pairs().iter().any(|(other, _)| *other == key) {
            return Err(twice(&key));
        }
        if unknown.pairs().len() == MAX_UNKNOWN {
            return Err(Error::corrupt(
                "zt.key-count",
                format!("{what} has more than {MAX_UNKNOWN} unknown keys"),
            ));
        }
        let start = d.position();
        d.skip().map_err(malformed)?;
        unknown.push(key.into_owned(), d.input()[start..d.position()].to_vec());
        Ok(())
    })?;
    Ok(unknown)
}

/// Passes over one of the `known` keys and returns its index. Opening a file is
/// mostly reading these, so they are compared as bytes, without decoding them.
/// A key in any other spelling than the shortest is left to [`text`].
fn known_key(d: &mut Decoder<'_>, known: &[&str]) -> Option<usize> {
    const SHORT_TEXT: u8 = 0x60;
    let at = d.position();
    let len = d.input().get(at)?.checked_sub(SHORT_TEXT).filter(|&len| len < 24)?;
    let end = at + 1 + usize::from(len);
    let key = d.input().get(at + 1..end)?;
    let index = known.iter().position(|known| known.as_bytes() == key)?;
    d.set_position(end);
    Some(index)
}

fn decode_attributes(d: &mut Decoder<'_>) -> Result<Attributes> {
    let mut attributes = Attributes::new();
    let len = d.map().map_err(malformed)?;
    sequence(d, len, |d| {
        let key = decode_text(d)?;
        let value = decode_value(d)?;
        match attributes.insert(key, value) {
            None => Ok(()),
            Some(_) => Err(Error::corrupt("zt.key-duplicate", "an attribute comes twice")),
        }
    })?;
    Ok(attributes)
}

fn missing(rule: &'static str, what: &str, key: &str) -> Error {
    Error::corrupt(rule, format!("{what} has no {key:?}"))
}

fn decode_object(d: &mut Decoder<'_>, data_end: u64) -> Result<Object> {
    let (mut shape, mut layout, mut attributes) = (None, None, None);
    let mut components: Option<SmallVec<[(Role, Component); 1]>> = None;
    let unknown = map(d, "the object", &["shape", "format", "attributes", "components"], |d, key| {
        match key {
            "shape" => shape = Some(decode_shape(d)?),
            "format" => layout = Some(Layout::from_name(&text(d)?)),
            "attributes" => attributes = Some(Box::new(decode_attributes(d)?)),
            _ => components = Some(decode_components(d, data_end)?),
        }
        Ok(())
    })?;
    Ok(Object {
        shape: shape.ok_or_else(|| missing("object.shape", "the object", "shape"))?,
        layout: layout.ok_or_else(|| missing("object.format", "the object", "format"))?,
        components: components.ok_or_else(|| missing("object.components", "the object", "components"))?,
        attributes,
        unknown,
    })
}

fn decode_shape(d: &mut Decoder<'_>) -> Result<Shape> {
    let mut shape = Shape::new();
    let len = d.array().map_err(malformed)?;
    sequence(d, len, |d| {
        if shape.len() == MAX_RANK {
            return Err(Error::corrupt(
                "object.rank",
                format!("a shape has more than {MAX_RANK} dimensions"),
            ));
        }
        let size = d
            .u64()
            .map_err(|_| Error::corrupt("object.shape", "a dimension is not a number from 0 to 2^64 - 1"))?;
        shape.push(size);
        Ok(())
    })?;
    Ok(shape)
}

fn decode_components(d: &mut Decoder<'_>, data_end: u64) -> Result<SmallVec<[(Role, Component); 1]>> {
    let mut components: SmallVec<[(Role, Component); 1]> = SmallVec::new();
    let len = d.map().map_err(malformed)?;
    sequence(d, len, |d| {
        let role = role(&text(d)?);
        if components.iter().any(|(other, _)| *other == role) {
            return Err(Error::corrupt(
                "zt.key-duplicate",
                format!("the component {} comes twice", quoted(&role)),
            ));
        }
        if components.len() >= 256 {
            return Err(Error::corrupt("zt.key-count", "an object has more than 256 components"));
        }
        components.push((role, decode_component(d, data_end)?));
        Ok(())
    })?;
    Ok(components)
}

/// The roles that known layouts use need no allocation.
pub(crate) fn role(name: &str) -> Role {
    const KNOWN: [&str; 9] =
        ["data", "values", "indices", "indptr", "coords", "packed_weight", "scales", "zeros", "blocks"];
    match KNOWN.iter().find(|known| **known == name) {
        Some(known) => Cow::Borrowed(known),
        None => Cow::Owned(name.to_owned()),
    }
}

fn decode_component(d: &mut Decoder<'_>, data_end: u64) -> Result<Component> {
    let (mut dtype, mut logical, mut offset, mut length) = (None, None, None, None);
    let (mut uncompressed, mut encoding, mut digest) = (None, None, None);
    const KEYS: &[&str] = &["dtype", "type", "offset", "length", "uncompressed_length", "encoding", "digest"];
    let unknown = map(d, "the component", KEYS, |d, key| {
        let number = |d: &mut Decoder<'_>, rule| {
            d.u64().map_err(|_| Error::corrupt(rule, format!("{key:?} is not a number from 0 to 2^64 - 1")))
        };
        match key {
            "dtype" => {
                let name = text(d)?;
                dtype = Some(DType::from_storage_name(&name).ok_or_else(|| {
                    Error::corrupt("component.dtype", format!("unknown storage type {}", quoted(&name)))
                })?);
            }
            "type" => logical = Some(text(d)?),
            "offset" => offset = Some(number(d, "component.offset")?),
            "length" => length = Some(number(d, "component.length")?),
            "uncompressed_length" => uncompressed = Some(number(d, "component.uncompressed-length")?),
            "encoding" => encoding = Some(text(d)?),
            _ => digest = Some(Digest::parse(&text(d)?)?),
        }
        Ok(())
    })?;
    let storage = dtype.ok_or_else(|| missing("component.dtype", "a component", "dtype"))?;
    let offset = offset.ok_or_else(|| missing("component.offset", "a component", "offset"))?;
    let length = length.ok_or_else(|| missing("component.length", "a component", "length"))?;
    let extent = Extent::new(offset, length);
    check_extent(extent, data_end)?;
    let (dtype, unknown_type) = match logical {
        None => (storage, None),
        Some(name) => match DType::from_logical_name(&name, storage) {
            Some(dtype) => (dtype, None),
            None => (storage, Some(name.into())),
        },
    };
    let (len, storage) = match encoding.as_deref() {
        None | Some("raw") => match uncompressed {
            Some(len) if len != length => {
                return Err(Error::corrupt(
                    "component.uncompressed-length",
                    format!("a raw component of {length} bytes declares {len} decoded bytes"),
                ));
            }
            _ => (length, Storage::Plain(extent)),
        },
        Some(encoding) => {
            let len = uncompressed.ok_or_else(|| {
                missing("component.uncompressed-length", "an encoded component", "uncompressed_length")
            })?;
            (len, encoded(encoding, extent, len)?)
        }
    };
    let mut component = Component::new(dtype, len, storage);
    (component.unknown_type, component.digest, component.unknown) = (unknown_type, digest, unknown);
    Ok(component)
}

/// The decoder of an encoding; one that is not known fails when it is read.
pub(crate) fn encoded(encoding: &str, extent: Extent, len: u64) -> Result<Storage> {
    Ok(Storage::Encoded(match encoding {
        "zstd" => std::sync::Arc::new(Zstd::new(extent, len)?),
        "z4ai" => std::sync::Arc::new(Z4ai::new(extent, len, Generation::Present)?),
        other => std::sync::Arc::new(UnknownEncoding::new(other, extent)),
    }))
}

/// Blobs lie between the magic and the manifest, at multiples of 64.
fn check_extent(extent: Extent, data_end: u64) -> Result<()> {
    let Extent { offset, len, .. } = extent;
    if !offset.is_multiple_of(ALIGNMENT) {
        return Err(Error::corrupt(
            "component.alignment",
            format!("offset {offset} is not a multiple of {ALIGNMENT}"),
        ));
    }
    let Some(end) = offset.checked_add(len) else {
        return Err(Error::corrupt("component.range", format!("offset {offset} + length {len} overflows")));
    };
    if len > 0 && (offset < MAGIC.len() as u64 || end > data_end) {
        return Err(Error::corrupt(
            "component.range",
            format!(
                "bytes {offset} to {end} lie outside the data, which spans {} to {data_end}",
                MAGIC.len()
            ),
        ));
    }
    Ok(())
}

/// What ends a file: the manifest at `offset`, and the footer.
pub(crate) fn tail(catalog: &Catalog, offset: u64) -> Result<Vec<u8>> {
    let mut tail = encode(catalog)?;
    let mut e = Encoder::new(&mut tail);
    infallible(e.str(CHECKSUM));
    infallible(e.bytes(&[0; Checksum::LEN]));
    tail.truncate(tail.len() - Checksum::LEN);
    tail.extend_from_slice(&Checksum::head(offset));
    let crc = Checksum::of(&tail);
    tail.extend_from_slice(&crc);
    let len = tail.len() as u64;
    if len > MAX_MANIFEST {
        // No reader would open it.
        return Err(Error::invalid("the names and attributes of all tensors take more than 1 GiB"));
    }
    tail.extend_from_slice(&len.to_le_bytes());
    tail.extend_from_slice(MAGIC);
    Ok(tail)
}

/// Encodes the manifest of a catalog whose components all lie in the one source, but for its last
/// entry.
fn encode(catalog: &Catalog) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(64 + catalog.objects.len() * 128);
    let mut e = Encoder::new(&mut out);
    let entries = 3 + u64::from(!catalog.attributes.is_empty()) + catalog.unknown.len();
    infallible(e.map(entries));
    infallible(e.str("version"));
    infallible(e.str(catalog.version.as_deref().unwrap_or(VERSION)));
    if !catalog.attributes.is_empty() {
        encode_attributes(&mut e, &catalog.attributes)?;
    }
    catalog.unknown.encode(&mut e);
    infallible(e.str("objects"));
    infallible(e.map(catalog.objects.len() as u64));
    for (name, object) in &catalog.objects {
        infallible(e.str(name));
        encode_object(&mut e, object).map_err(|error| error.in_tensor(&**name))?;
    }
    Ok(out)
}

fn encode_attributes(e: &mut Encoder<&mut Vec<u8>>, attributes: &Attributes) -> Result<()> {
    infallible(e.str("attributes"));
    infallible(e.map(attributes.len() as u64));
    attributes.iter().try_for_each(|(key, value): (&String, &Value)| {
        infallible(e.str(key));
        encode_value(e, value)
    })
}

fn encode_object(e: &mut Encoder<&mut Vec<u8>>, object: &Object) -> Result<()> {
    infallible(e.map(3 + u64::from(object.attributes.is_some()) + object.unknown.len()));
    infallible(e.str("shape"));
    infallible(e.array(object.shape.len() as u64));
    for &size in &object.shape {
        infallible(e.u64(size));
    }
    infallible(e.str("format"));
    if let Layout::Other(name) = &object.layout
        && Layout::from_name(name) != object.layout
    {
        let message = format!("its layout {} has another meaning in .zt files of version 1.2", quoted(name));
        return Err(Error::unsupported(message));
    }
    infallible(e.str(object.layout.name()));
    if let Some(attributes) = &object.attributes {
        encode_attributes(e, attributes)?;
    }
    object.unknown.encode(e);
    infallible(e.str("components"));
    infallible(e.map(object.components.len() as u64));
    for (role, component) in &object.components {
        infallible(e.str(role));
        encode_component(e, component)?;
    }
    Ok(())
}

fn encode_component(e: &mut Encoder<&mut Vec<u8>>, component: &Component) -> Result<()> {
    let extent = component.extent().ok_or_else(|| Error::invalid("a component has no place in the file"))?;
    let encoding = component.encoding();
    let entries = 3
        + u64::from(component.type_name().is_some())
        + 2 * u64::from(encoding != "raw")
        + u64::from(component.digest.is_some())
        + component.unknown.len();
    infallible(e.map(entries));
    infallible(e.str("dtype"));
    infallible(e.str(component.dtype.storage_name()));
    if let Some(name) = component.type_name() {
        infallible(e.str("type"));
        infallible(e.str(name));
    }
    infallible(e.str("offset"));
    infallible(e.u64(extent.offset));
    infallible(e.str("length"));
    infallible(e.u64(extent.len));
    if encoding != "raw" {
        infallible(e.str("uncompressed_length"));
        infallible(e.u64(component.len));
        infallible(e.str("encoding"));
        infallible(e.str(encoding));
    }
    if let Some(digest) = &component.digest {
        infallible(e.str("digest"));
        infallible(e.str(&digest.to_string()));
    }
    component.unknown.encode(e);
    Ok(())
}
