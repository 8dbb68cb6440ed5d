//! Writing version 2 from front to back: parts, manifest, footer. One thread copies and hashes bytes, another
//! writes the copies.

use std::collections::HashMap;

use sha2::Digest as _;
use twox_hash::XxHash3_64;
use unicode_normalization::is_nfc;

use super::layout::{self, Described, PartSize, Written, from_catalog};
use super::manifest::check_name;
use super::types::Element;
use super::{ALIGNMENT, MAGIC, MAX_MANIFEST, MIN_ALIGNMENT, VERSION, cbor, hasher};
use crate::base::CACHE_BLOCK;
use crate::catalog::{Catalog, Component, Extent, Layout, MAX_RANK, Object, Storage};
use crate::decode::{SeekableEncoder, SeekableZstd};
use crate::digest::Digest;
use crate::dtype::DType;
use crate::error::{Error, Result, quoted};
use crate::progress::advance;
use crate::tensor::Tensor;
use crate::tensor::value::{Attributes, Value};
use crate::write::behind::{Blocks, write_behind};
use crate::write::export::{Fetched, Output, Plan, Whole, WriteStep};

/// The start of a part that is looked at to find out whether it may repeat another.
const SAMPLE: usize = 64 << 10;

/// Whether a file can hold an attribute.
pub(crate) fn holds(key: &str, value: &Value) -> bool {
    check_name("the attribute", key).is_ok() && cbor::encode(&mut Vec::new(), value, 4).is_ok()
}

pub(crate) fn export(plan: &Plan<'_>) -> Result<WriteStep> {
    check(plan)?;
    Ok(Box::new(write))
}

fn check(plan: &Plan<'_>) -> Result<()> {
    let options = plan.options;
    if options.canonical && options.zstd.is_some() {
        return Err(Error::invalid("canonical form holds raw parts only: leave out the compression"));
    }
    if let Some(level) = options.zstd.filter(|level| !(1..=22).contains(level)) {
        return Err(Error::invalid(format!("zstd level {level} is not one of 1 to 22")));
    }
    plan.check_attributes()?;
    for (name, object) in &plan.objects {
        let refused = |error: Error| match error.rule() {
            Some(_) => plan.cannot(name, &format!("it: {error}")),
            None => error.in_tensor(*name),
        };
        check_object(name, object).map_err(refused)?;
    }
    let denormalized = |name: &str| options.canonical && !is_nfc(name);
    let parts = plan.objects.iter().flat_map(|(name, object)| {
        let roles = object.components.iter().map(|(role, _)| &**role);
        let keys = object.attributes.iter().flat_map(|attributes| attributes.keys().map(String::as_str));
        [*name].into_iter().chain(roles).chain(keys)
    });
    let mut names = parts.chain(plan.attributes.keys().map(String::as_str));
    match names.find(|name| denormalized(name)) {
        None => Ok(()),
        Some(name) => Err(Error::unsupported(format!(
            "the name {} is not in Unicode normalization form C, which canonical form asks for",
            quoted(name)
        ))),
    }
}

/// What a reader would refuse is not written.
fn check_object(name: &str, object: &Object) -> Result<()> {
    check_name("the object", name)?;
    if object.shape.len() > MAX_RANK {
        return Err(Error::corrupt("zt2.Shape", format!("more than {MAX_RANK} dimensions")));
    }
    layout::product(&object.shape)?;
    let written = written(object);
    let mut parts = Vec::with_capacity(object.components.len());
    for (role, component) in &object.components {
        let element = Element::of(component.dtype, component.unknown_type.as_deref());
        if Element::new(
            super::types::storage(element.storage_name()).unwrap_or(DType::U8),
            element.type_name(),
        )? != element
        {
            let shown = element.shown();
            return Err(Error::unsupported(format!("the type {shown} has another meaning in version 2")));
        }
        check_name("the part", role)?;
        parts.push(PartSize { role: written.role(role), element, len: component.len });
    }
    if parts.is_empty() {
        return Err(Error::corrupt("zt2.Schema", "there are no parts"));
    }
    for (key, value) in object.attributes.iter().flat_map(|attributes| attributes.iter()) {
        check_name("the attribute", key)?;
        cbor::encode(&mut Vec::new(), value, 4)?;
    }
    layout::check(&Described {
        shape: &object.shape,
        layout: &written.layout,
        parts: &parts,
        attributes: written.attributes.as_deref(),
    })
}

fn written(object: &Object) -> Written<'_> {
    let roles = object.components.iter().map(|(role, _)| &**role);
    from_catalog(&object.layout, object.attributes.as_deref(), roles)
}

fn write(plan: &Plan<'_>, out: &mut Output<'_>) -> Result<()> {
    let options = plan.options;
    write_behind(options.threads, out, |blocks| fill(plan, blocks), || advance(options.observer, 0))
}

fn fill(plan: &Plan<'_>, blocks: &mut Blocks<'_>) -> Result<()> {
    let canonical = plan.options.canonical;
    let mut order: Vec<usize> = (0..plan.objects.len()).collect();
    if canonical {
        order.sort_unstable_by_key(|&index| plan.objects[index].0);
    }
    let mut file = File {
        plan,
        blocks,
        position: 0,
        alignment: if canonical { ALIGNMENT } else { MIN_ALIGNMENT },
        lengths: lengths(plan),
        known: HashMap::new(),
        empty: None,
        block: Vec::new(),
    };
    file.put(MAGIC)?;
    let mut objects: Vec<Option<Vec<Placed>>> = plan.objects.iter().map(|_| None).collect();
    let threads = plan.fetch_threads();
    let checked = |index: usize, tensor| check_data(plan, index, tensor);
    plan.pipeline(threads, &order, Whole::IfSmall, checked, |fetched| {
        let mut place = |index: usize, tensor: Content<'_>| -> Result<()> {
            let (name, _) = &plan.objects[index];
            objects[index] = Some(file.object(index, tensor).map_err(|error| error.in_tensor(*name))?);
            Ok(())
        };
        match fetched {
            Fetched::Group(tensors) => {
                tensors.iter().try_for_each(|(index, tensor)| place(*index, Content::Fetched(tensor)))
            }
            Fetched::Large(index) => place(index, Content::InPieces),
        }
    })?;
    file.finish(objects.into_iter().map(Option::unwrap_or_default).collect())
}

/// Refuses sparse tensors whose parts a reader would refuse to assemble.
fn check_data<'a>(plan: &Plan<'_>, index: usize, tensor: Tensor<'a>) -> Result<Tensor<'a>> {
    let (name, object) = &plan.objects[index];
    if matches!(object.layout, Layout::SparseCsr | Layout::SparseCoo) {
        layout::check_data(&tensor).map_err(|error| plan.cannot(name, &format!("it: {error}")))?;
    }
    Ok(tensor)
}

/// How many parts there are of each length: one of its own length repeats no other.
fn lengths(plan: &Plan<'_>) -> HashMap<u64, u32> {
    let mut lengths = HashMap::new();
    for (_, object) in &plan.objects {
        for (_, component) in &object.components {
            *lengths.entry(component.len).or_default() += 1;
        }
    }
    lengths
}

/// A part that lies in the file.
#[derive(Debug, Clone)]
struct Placed {
    role: String,
    blob: Extent,
    /// Decoded bytes, if it is encoded.
    decoded: Option<u64>,
    digest: Digest,
}

/// A blob that others may share.
#[derive(Debug, Clone)]
struct Blob {
    place: Extent,
    digest: Digest,
    /// Which component it was written for.
    index: usize,
    component: String,
}

/// An object that is about to be written: in memory, or to be read from its file.
#[derive(Clone, Copy)]
enum Content<'a> {
    Fetched(&'a Tensor<'a>),
    InPieces,
}

/// A part of it: in memory, or to be read in pieces.
#[derive(Clone, Copy)]
enum PartContent<'a> {
    Whole(&'a [u8]),
    Pieces { index: usize, component: &'a str },
}

struct File<'p, 'o> {
    plan: &'p Plan<'p>,
    blocks: &'p mut Blocks<'o>,
    position: u64,
    alignment: u64,
    lengths: HashMap<u64, u32>,
    /// Blobs by length and hash of their first bytes.
    known: HashMap<(u64, u64), Vec<Blob>>,
    /// Where the first part without bytes lies.
    empty: Option<u64>,
    /// A copy of content for the encoder.
    block: Vec<u8>,
}

impl File<'_, '_> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.blocks.copy(bytes, |_| Ok(()))?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    fn align(&mut self) -> Result<()> {
        let next = self.position.next_multiple_of(self.alignment);
        self.blocks.zeros(next - self.position)?;
        self.position = next;
        Ok(())
    }

    /// Writes the parts of an object in the order of their names.
    fn object(&mut self, index: usize, content: Content<'_>) -> Result<Vec<Placed>> {
        let plan = self.plan;
        let object = &plan.objects[index].1;
        let written = written(object);
        let mut roles: Vec<&str> = object.components.iter().map(|(role, _)| written.role(role)).collect();
        roles.sort_unstable();
        let mut placed = Vec::with_capacity(roles.len());
        for role in roles {
            let component = &*written.component(role);
            let described = object.require(component)?;
            let content = match content {
                Content::Fetched(tensor) => PartContent::Whole(&tensor.require(component)?.bytes),
                Content::InPieces => PartContent::Pieces { index, component },
            };
            let part = PartToWrite { content, index, len: described.len, object, component: described };
            let (blob, digest) = self.part(&part, component)?;
            let decoded = plan.options.zstd.map(|_| described.len);
            placed.push(Placed { role: role.to_owned(), blob, decoded, digest });
        }
        Ok(placed)
    }

    /// Calls `each` with the bytes of a part.
    fn for_pieces(&self, content: PartContent<'_>, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        match content {
            PartContent::Whole(bytes) => bytes.chunks(CACHE_BLOCK).try_for_each(each),
            PartContent::Pieces { index, component } => self.plan.pieces(index, component, each),
        }
    }

    fn part(&mut self, part: &PartToWrite<'_>, component: &str) -> Result<(Extent, Digest)> {
        let sample = match self.plan.options.zstd {
            Some(_) => None, // encoded parts are not shared
            None if part.len == 0 || self.lengths.get(&part.len).copied().unwrap_or(0) < 2 => None,
            None => Some((part.len, self.sample(part.content)?)),
        };
        if let Some(found) = sample.and_then(|sample| self.known.get(&sample)).cloned() {
            let digest = self.hash(part)?;
            for blob in found.iter().filter(|blob| blob.digest == digest) {
                if self.same(part.content, blob)? {
                    advance(self.plan.options.observer, part.len)?;
                    return Ok((blob.place, digest));
                }
            }
        }
        let (place, digest) = self.blob(part)?;
        if let Some(sample) = sample {
            let (index, component) = (part.index, component.to_owned());
            self.known.entry(sample).or_default().push(Blob {
                place,
                digest: digest.clone(),
                index,
                component,
            });
        }
        Ok((place, digest))
    }

    /// The hash of the first bytes.
    fn sample(&self, content: PartContent<'_>) -> Result<u64> {
        match content {
            PartContent::Whole(bytes) => Ok(XxHash3_64::oneshot(&bytes[..bytes.len().min(SAMPLE)])),
            PartContent::Pieces { index, component } => {
                Ok(XxHash3_64::oneshot(&self.plan.start(index, component, SAMPLE)?))
            }
        }
    }

    fn hash(&self, part: &PartToWrite<'_>) -> Result<Digest> {
        let mut hash = hasher();
        self.for_pieces(part.content, &mut |piece| {
            hash.update(piece);
            Ok(())
        })?;
        Ok(hash.finish())
    }

    /// Whether the content is that of a blob: by its bytes, or by SHA-256 where one of the two is not in
    /// memory as a whole.
    fn same(&self, content: PartContent<'_>, blob: &Blob) -> Result<bool> {
        if self.plan.is_large(blob.index) {
            let other = PartContent::Pieces { index: blob.index, component: &blob.component };
            return Ok(self.strong_hash(content)? == self.strong_hash(other)?);
        }
        let other = self.plan.fetch(blob.index)?;
        let other = &*other.require(&blob.component)?.bytes;
        match content {
            PartContent::Whole(bytes) => Ok(bytes == other),
            pieces => Ok(self.strong_hash(pieces)? == self.strong_hash(PartContent::Whole(other))?),
        }
    }

    fn strong_hash(&self, content: PartContent<'_>) -> Result<[u8; 32]> {
        let mut hash = sha2::Sha256::new();
        self.for_pieces(content, &mut |piece| {
            hash.update(piece);
            Ok(())
        })?;
        Ok(hash.finalize().into())
    }

    /// Writes a part to the next aligned place.
    fn blob(&mut self, part: &PartToWrite<'_>) -> Result<(Extent, Digest)> {
        if part.len == 0 && self.plan.options.zstd.is_none() {
            // It takes no space, but has a place: that of the first empty part.
            let next = self.position.next_multiple_of(self.alignment);
            let place = *self.empty.get_or_insert(next);
            return Ok((Extent::new(place, 0), hasher().finish()));
        }
        self.align()?;
        let start = self.position;
        let mut encoder =
            self.plan.options.zstd.map(|level| SeekableEncoder::new(level, self.plan.options.threads));
        let mut checked = CheckedContent::of(part.object, part.component, hasher());
        // Memory of callers is read once: what is hashed and written is a copy of it.
        let mut block = std::mem::take(&mut self.block);
        let plan = self.plan;
        let mut each = |piece: &[u8]| {
            for some in piece.chunks(CACHE_BLOCK) {
                match &mut encoder {
                    Some(encoder) => {
                        block.clear();
                        block.extend_from_slice(some);
                        checked.take(&block)?;
                        encoder.push(&block, |bytes| self.put(bytes))?;
                    }
                    None => {
                        self.blocks.copy(some, |copied| checked.take(copied))?;
                        self.position += some.len() as u64;
                    }
                }
                advance(plan.options.observer, some.len() as u64)?;
            }
            Ok(())
        };
        match part.content {
            PartContent::Whole(bytes) => each(bytes)?,
            PartContent::Pieces { index, component } => plan.pieces(index, component, &mut each)?,
        }
        self.block = block;
        if let Some(encoder) = encoder {
            encoder.finish(|bytes| self.put(bytes))?;
        }
        let digest = checked.finish()?;
        Ok((Extent::new(start, self.position - start), digest))
    }

    /// Writes the manifest and the footer.
    fn finish(mut self, parts: Vec<Vec<Placed>>) -> Result<()> {
        self.align()?;
        let objects = self.plan.objects.iter().zip(parts);
        let objects = objects.map(|((name, object), parts)| (*name, &**object, parts)).collect();
        let end = tail(objects, self.plan.attributes, self.position)?;
        self.put(&end)
    }
}

/// A part about to be written.
struct PartToWrite<'a> {
    content: PartContent<'a>,
    index: usize,
    len: u64,
    object: &'a Object,
    component: &'a Component,
}

/// The content of a part, hashed and checked while it passes.
pub(crate) struct CheckedContent {
    hash: crate::digest::Hasher,
    len: u64,
    /// What the elements are, if that is known.
    dtype: Option<DType>,
    /// How many there are, if the layout says so.
    elements: Option<u64>,
    seen: u64,
    last: Option<u8>,
}

impl CheckedContent {
    /// A component of an object that is about to be written.
    pub(crate) fn of(object: &Object, component: &Component, hash: crate::digest::Hasher) -> CheckedContent {
        CheckedContent {
            hash,
            len: component.len,
            dtype: component.unknown_type.is_none().then_some(component.dtype),
            elements: (object.layout == Layout::Dense).then(|| object.elements()).flatten(),
            seen: 0,
            last: None,
        }
    }

    /// More of it.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<()> {
        if let Some(dtype) = self.dtype {
            layout::check_elements(dtype, bytes).map_err(unfit)?;
        }
        self.hash.update(bytes);
        self.seen += bytes.len() as u64;
        self.last = bytes.last().copied().or(self.last);
        Ok(())
    }

    /// Its digest, if it is complete and a reader takes it.
    pub(crate) fn finish(self) -> Result<Digest> {
        if self.seen != self.len {
            let (found, planned) = (self.seen, self.len);
            return Err(Error::mismatch(format!("it has {found} bytes where {planned} were announced")));
        }
        if let (Some(dtype), Some(elements)) = (self.dtype, self.elements) {
            layout::check_last(dtype, elements, self.last.as_ref()).map_err(unfit)?;
        }
        Ok(self.hash.finish())
    }
}

/// Contents that no reader would take.
fn unfit(error: Error) -> Error {
    Error::unsupported(format!("a .zt file of version 2 cannot hold it: {error}"))
}

/// Refuses an object that no reader would take: by its description, and by what sparse indices say.
pub(crate) fn check_tensor(name: &str, tensor: &Tensor<'_>) -> Result<()> {
    check_description(name, &tensor.describe())?;
    match tensor.layout {
        Layout::SparseCsr | Layout::SparseCoo => layout::check_data(tensor).map_err(unfit),
        _ => Ok(()),
    }
    .map_err(|error| error.in_tensor(name))
}

/// Refuses an object that no reader would take, by its description.
pub(crate) fn check_description(name: &str, object: &Object) -> Result<()> {
    let refused = |error: Error| if error.rule().is_some() { unfit(error) } else { error };
    check_object(name, object).map_err(|error| refused(error).in_tensor(name))
}

/// The end of a file whose objects lie where their components say, at `position`.
pub(crate) fn tail_of(catalog: &Catalog, position: u64) -> Result<Vec<u8>> {
    if let Some(key) = catalog.attributes.iter().find(|(key, value)| !holds(key, value)).map(|(key, _)| key) {
        let message = format!("a .zt file of version 2 cannot hold the attribute {}", quoted(key));
        return Err(Error::unsupported(message));
    }
    let placed = |name: &str, object: &Object| {
        check_description(name, object)?; // names may have been tied
        let written = written(object);
        let parts = object.components.iter().map(|(role, component)| {
            let lost = || Error::invalid("it was not written to this file").in_tensor(name);
            Ok(Placed {
                role: written.role(role).to_owned(),
                blob: component.storage.extent().ok_or_else(lost)?,
                decoded: matches!(component.storage, Storage::Encoded(_)).then_some(component.len),
                digest: component.digest.clone().ok_or_else(lost)?,
            })
        });
        parts.collect::<Result<Vec<_>>>()
    };
    let objects = catalog.objects.iter().map(|(name, object)| Ok((&**name, object, placed(name, object)?)));
    tail(objects.collect::<Result<_>>()?, &catalog.attributes, position)
}

/// The manifest, which lies at `position`, and the footer.
fn tail(
    objects: Vec<(&str, &Object, Vec<Placed>)>,
    attributes: &Attributes,
    position: u64,
) -> Result<Vec<u8>> {
    let mut tail = manifest(objects, attributes)?;
    let len = tail.len() as u64;
    if len > MAX_MANIFEST {
        return Err(Error::invalid("the names and attributes of all tensors take more than 1 GiB"));
    }
    let hash = XxHash3_64::oneshot(&tail);
    tail.extend_from_slice(&position.to_le_bytes());
    tail.extend_from_slice(&len.to_le_bytes());
    tail.extend_from_slice(&hash.to_le_bytes());
    tail.extend_from_slice(&VERSION.to_le_bytes());
    tail.extend_from_slice(&0u32.to_le_bytes());
    tail.extend_from_slice(MAGIC);
    Ok(tail)
}

/// The manifest of all objects, and of those attributes that a file can hold.
fn manifest(mut objects: Vec<(&str, &Object, Vec<Placed>)>, attributes: &Attributes) -> Result<Vec<u8>> {
    objects.sort_unstable_by(|(a, ..), (b, ..)| cbor::key_order(a, b));
    let mut out = Vec::with_capacity(64 + objects.len() * 160);
    let held = attributes.iter().filter(|(key, value)| holds(key, value));
    let attributes: Attributes = held.map(|(key, value)| (key.clone(), value.clone())).collect();
    cbor::map(&mut out, 1 + usize::from(!attributes.is_empty()));
    cbor::text(&mut out, "objects");
    cbor::map(&mut out, objects.len());
    for (name, object, parts) in objects {
        cbor::text(&mut out, name);
        object_entry(&mut out, object, &parts).map_err(|error| error.in_tensor(name))?;
    }
    if !attributes.is_empty() {
        cbor::text(&mut out, "attributes");
        cbor::attributes(&mut out, &attributes, 1)?;
    }
    Ok(out)
}

fn object_entry(out: &mut Vec<u8>, object: &Object, parts: &[Placed]) -> Result<()> {
    let written = written(object);
    let own = written.attributes.as_deref().filter(|attributes| !attributes.is_empty());
    cbor::map(out, 3 + usize::from(own.is_some()));
    cbor::text(out, "parts");
    let mut sorted: Vec<&Placed> = parts.iter().collect();
    sorted.sort_unstable_by(|a, b| cbor::key_order(&a.role, &b.role));
    cbor::map(out, sorted.len());
    for part in sorted {
        let component = object.require(&written.component(&part.role))?;
        let element = Element::of(component.dtype, component.unknown_type.as_deref());
        cbor::text(out, &part.role);
        cbor::map(
            out,
            3 + usize::from(element.type_name().is_some()) + 2 * usize::from(part.decoded.is_some()),
        );
        cbor::text(out, "blob");
        cbor::array(out, 2);
        cbor::uint(out, part.blob.offset);
        cbor::uint(out, part.blob.len);
        if let Some(name) = element.type_name() {
            cbor::text(out, "type");
            cbor::text(out, name);
        }
        cbor::text(out, "dtype");
        cbor::text(out, element.storage_name());
        cbor::text(out, "digest");
        cbor::text(out, &part.digest.to_string());
        if let Some(decoded) = part.decoded {
            cbor::text(out, "encoding");
            cbor::text(out, SeekableZstd::NAME);
            cbor::text(out, "decoded_length");
            cbor::uint(out, decoded);
        }
    }
    cbor::text(out, "shape");
    cbor::array(out, object.shape.len());
    object.shape.iter().for_each(|&size| cbor::uint(out, size));
    cbor::text(out, "layout");
    cbor::text(out, &written.layout);
    if let Some(attributes) = own {
        cbor::text(out, "attributes");
        cbor::attributes(out, attributes, 3)?;
    }
    Ok(())
}
