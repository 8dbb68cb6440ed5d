//! Packs: immutable `.zt` files with objects, each under its id.
//!
//! An object is stored whole, as a dense tensor; as a difference from another one; or, without a
//! byte, as what a cast makes of another one. The list of contents at the end of the file is the
//! pack's index.

use std::sync::Arc;

use super::names::{pack_file, random_name};
use super::object::{ObjectType, Sketch};
use super::store::Store;
use crate::catalog::{Component, Extent, Layout, Object, Role, Storage};
use crate::digest::{Checksum, Digest};
use crate::dtype::DType;
use crate::error::{Error, Result, quoted};
use crate::format::zt::manifest;
use crate::id::ContentId;
use crate::read::{OpenOptions, Reader};
use crate::source::{MapMode, Source};
use crate::tensor::value::{Attributes, Value};
use crate::write::Writer;

/// Layouts of objects that are not stored whole. (format)
const DELTA: &str = "ztensor.delta";
const CAST: &str = "ztensor.cast";
/// Roles of their components. (format)
const CHANGE: &str = "delta";
const REST: &str = "rest";
/// Keys of their attributes. (format)
const BASE: &str = "base";
const TYPE: &str = "dtype";
const COMMON: &str = "common";
const SKETCH: &str = "sketch";

/// Bytes of a pack, unless one object has more. (limit: what an interrupted upload loses, and what
/// collecting garbage rewrites at a time)
pub(crate) const PACK_LEN: u64 = 256 << 20;

/// The sizes of packs by their names.
pub(crate) type PackSizes = std::collections::HashMap<Arc<str>, u64>;

/// How bytes of a pack are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coding {
    Raw,
    Z4ai,
    Zstd,
}

impl Coding {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Coding::Raw => "raw",
            Coding::Z4ai => "z4ai",
            Coding::Zstd => "zstd",
        }
    }

    /// Whether it is decoded from its start on, whatever is wanted of it.
    pub(crate) fn is_sequential(self) -> bool {
        self == Coding::Zstd
    }

    pub(crate) fn from_name(name: &str) -> Option<Coding> {
        [Coding::Raw, Coding::Z4ai, Coding::Zstd].into_iter().find(|coding| coding.name() == name)
    }
}

/// A range of a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Blob {
    pub(crate) coding: Coding,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// CRC-32C of the stored bytes.
    pub(crate) crc: Option<u32>,
}

/// How an object is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// All of it.
    Whole(Blob),
    /// The first `common` bytes as a difference from those of `base`, and the rest as it is.
    Delta { base: ContentId, common: u64, change: Blob, rest: Option<Blob> },
    /// What a cast to the object's type makes of `base`.
    Cast { base: ContentId },
}

/// Where an object is and how it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) pack: Arc<str>,
    pub(crate) of: ObjectType,
    pub(crate) form: Form,
    pub(crate) sketch: Option<Sketch>,
}

impl Stored {
    /// The object that it depends on.
    pub(crate) fn base(&self) -> Option<ContentId> {
        match self.form {
            Form::Whole(_) => None,
            Form::Delta { base, .. } | Form::Cast { base } => Some(base),
        }
    }

    /// Bytes that it takes, without what it depends on.
    pub(crate) fn len(&self) -> u64 {
        match self.form {
            Form::Whole(blob) => blob.len,
            Form::Delta { change, rest, .. } => change.len + rest.map_or(0, |rest| rest.len),
            Form::Cast { .. } => 0,
        }
    }

    /// The ranges of its pack.
    pub(crate) fn blobs(&self) -> impl Iterator<Item = Blob> {
        let (first, second) = match self.form {
            Form::Whole(blob) => (Some(blob), None),
            Form::Delta { change, rest, .. } => (Some(change), rest),
            Form::Cast { .. } => (None, None),
        };
        first.into_iter().chain(second)
    }
}

/// An object that is about to be written.
#[derive(Debug)]
pub(crate) struct Encoded {
    pub(crate) of: ObjectType,
    pub(crate) bytes: EncodedForm,
    pub(crate) sketch: Option<Sketch>,
}

#[derive(Debug)]
pub(crate) enum EncodedForm {
    Whole(Coding, Vec<u8>),
    Delta { base: ContentId, common: u64, change: Vec<u8>, rest: Option<(Coding, Vec<u8>)> },
    Cast { base: ContentId },
}

impl Encoded {
    /// Bytes that it will take.
    pub(crate) fn len(&self) -> u64 {
        let len = match &self.bytes {
            EncodedForm::Whole(_, bytes) => bytes.len(),
            EncodedForm::Delta { change, rest, .. } => {
                change.len() + rest.as_ref().map_or(0, |(_, bytes)| bytes.len())
            }
            EncodedForm::Cast { .. } => 0,
        };
        len as u64
    }
}

/// Writes objects into packs, a new one whenever the last is full.
pub(crate) struct PackWriter<'a> {
    store: &'a Store,
    open: Option<(Arc<str>, Writer<'static>, u64)>,
    /// Packs that are complete, and their sizes.
    pub(crate) packs: PackSizes,
    /// Bytes of objects.
    pub(crate) written: u64,
}

impl<'a> PackWriter<'a> {
    pub(crate) fn new(store: &'a Store) -> PackWriter<'a> {
        PackWriter { store, open: None, packs: PackSizes::new(), written: 0 }
    }

    /// Writes an object. It is there when the pack is finished.
    pub(crate) fn add(&mut self, id: &ContentId, encoded: &Encoded) -> Result<Stored> {
        let (pack, writer, len) = self.writer(encoded.len())?;
        let mut components: Vec<(Role, Component)> = Vec::new();
        let mut attributes = Attributes::new();
        let shape = encoded.of.shape.clone();
        let (form, layout) = match &encoded.bytes {
            EncodedForm::Whole(coding, bytes) => {
                let blob = write_blob(writer, *coding, bytes)?;
                components
                    .push((Role::Borrowed("data"), component(encoded.of.dtype, encoded.of.len()?, blob)?));
                (Form::Whole(blob), Layout::Dense)
            }
            EncodedForm::Delta { base, common, change, rest } => {
                let change = write_blob(writer, Coding::Raw, change)?;
                components.push((Role::Borrowed(CHANGE), component(DType::U8, change.len, change)?));
                let rest = match rest {
                    None => None,
                    Some((coding, bytes)) => {
                        let blob = write_blob(writer, *coding, bytes)?;
                        let len = encoded.of.len()?.saturating_sub(*common);
                        components.push((Role::Borrowed(REST), component(DType::U8, len, blob)?));
                        Some(blob)
                    }
                };
                attributes.insert(COMMON.to_owned(), Value::from(*common));
                depends(&mut attributes, base, encoded.of.dtype);
                (Form::Delta { base: *base, common: *common, change, rest }, Layout::from_name(DELTA))
            }
            EncodedForm::Cast { base } => {
                depends(&mut attributes, base, encoded.of.dtype);
                (Form::Cast { base: *base }, Layout::from_name(CAST))
            }
        };
        if let Some(sketch) = &encoded.sketch {
            attributes.insert(SKETCH.to_owned(), Value::Bytes(sketch.0.to_vec()));
        }
        let mut object = Object::new(shape, layout, components);
        object.attributes = (!attributes.is_empty()).then(|| Box::new(attributes));
        writer.insert(&id.to_string(), object)?;
        *len += encoded.len();
        self.written += encoded.len();
        Ok(Stored { pack, of: encoded.of.clone(), form, sketch: encoded.sketch.clone() })
    }

    fn writer(&mut self, more: u64) -> Result<(Arc<str>, &mut Writer<'static>, &mut u64)> {
        if self.open.as_ref().is_some_and(|(_, _, len)| *len > 0 && len.saturating_add(more) > PACK_LEN) {
            self.close()?;
        }
        if self.open.is_none() {
            let name: Arc<str> = random_name().into();
            self.open = Some((name.clone(), self.store.writer(&pack_file(&name))?, 0));
        }
        match &mut self.open {
            Some((name, writer, len)) => Ok((name.clone(), writer, len)),
            None => Err(Error::invalid("no pack is open")),
        }
    }

    fn close(&mut self) -> Result<()> {
        if let Some((name, writer, _)) = self.open.take() {
            let size = writer.finish()?;
            self.packs.insert(name, size);
        }
        Ok(())
    }

    /// Finishes the last pack and says which ones were written.
    pub(crate) fn finish(mut self) -> Result<PackSizes> {
        self.close()?;
        Ok(self.packs)
    }
}

fn depends(attributes: &mut Attributes, base: &ContentId, dtype: DType) {
    attributes.insert(BASE.to_owned(), Value::Text(base.to_string()));
    attributes.insert(TYPE.to_owned(), Value::from(dtype.name()));
}

fn write_blob(writer: &mut Writer<'_>, coding: Coding, bytes: &[u8]) -> Result<Blob> {
    let (extent, digest) = writer.write_blob(bytes, Checksum::Crc32c, None)?;
    let crc = match digest {
        Some(Digest::Crc32c(crc)) => Some(crc),
        _ => None,
    };
    Ok(Blob { coding, offset: extent.offset, len: extent.len, crc })
}

fn component(dtype: DType, len: u64, blob: Blob) -> Result<Component> {
    let extent = Extent::new(blob.offset, blob.len);
    let storage = match blob.coding {
        Coding::Raw => Storage::Plain(extent),
        coding => manifest::encoded(coding.name(), extent, len)?,
    };
    let mut component = Component::new(dtype, len, storage);
    component.digest = blob.crc.map(Digest::Crc32c);
    Ok(component)
}

/// The objects of a pack.
pub(crate) fn read_index(store: &Store, name: &Arc<str>) -> Result<Vec<(ContentId, Stored)>> {
    let file = pack_file(name);
    let source = store.source(&file)?;
    index(source, name).map_err(|error| error.in_file(store.path(&file)))
}

/// The objects of a pack that a source holds.
pub(crate) fn index(source: Arc<dyn Source>, name: &Arc<str>) -> Result<Vec<(ContentId, Stored)>> {
    let reader = OpenOptions::default().map(MapMode::Never).open_source(source)?;
    if reader.format() != crate::format::Format::Zt {
        return Err(Error::corrupt("repository.pack", "a pack is a .zt file"));
    }
    entries(&reader, name)
}

fn entries(reader: &Reader, pack: &Arc<str>) -> Result<Vec<(ContentId, Stored)>> {
    let mut found = Vec::with_capacity(reader.len());
    for (name, object) in reader.objects() {
        let id: ContentId = name.parse()?;
        let stored = entry(object, pack).map_err(|error| error.in_tensor(name))?;
        found.push((id, stored));
    }
    Ok(found)
}

fn entry(object: &Object, pack: &Arc<str>) -> Result<Stored> {
    let broken = |message: String| Error::corrupt("repository.pack", message);
    let text = |key: &str| object.attribute(key).and_then(Value::as_text);
    let dtype = match &object.layout {
        Layout::Dense => object.require("data")?.dtype,
        _ => {
            let name = text(TYPE).unwrap_or_default();
            DType::from_name(name).ok_or_else(|| broken(format!("the element type {}", quoted(name))))?
        }
    };
    let of = ObjectType { dtype, shape: object.shape.clone() };
    let len = of.len()?;
    let base = || text(BASE).ok_or_else(|| broken("it names no base".into()))?.parse::<ContentId>();
    let form = match &object.layout {
        Layout::Dense => Form::Whole(blob(object.require("data")?)?),
        Layout::Other(name) if **name == *DELTA => {
            let common = object.attribute(COMMON).and_then(Value::as_int);
            let common = common.and_then(|common| u64::try_from(common).ok()).filter(|common| *common <= len);
            let common = common.ok_or_else(|| broken("the common part is longer than the object".into()))?;
            let change = blob(object.require(CHANGE)?)?;
            let rest = object.component(REST);
            if change.coding != Coding::Raw || rest.map_or(0, |rest| rest.len) != len - common {
                return Err(broken("its parts are not as long as the object".into()));
            }
            Form::Delta { base: base()?, common, change, rest: rest.map(blob).transpose()? }
        }
        Layout::Other(name) if **name == *CAST => Form::Cast { base: base()? },
        other => return Err(broken(format!("an object of the layout {}", quoted(other.name())))),
    };
    let sketch = match object.attribute(SKETCH) {
        Some(Value::Bytes(bytes)) => Sketch::from_bytes(bytes),
        _ => None,
    };
    Ok(Stored { pack: pack.clone(), of, form, sketch })
}

fn blob(component: &Component) -> Result<Blob> {
    let coding = Coding::from_name(component.encoding());
    let (Some(coding), Some(extent)) = (coding, component.extent()) else {
        let message = format!("an object is stored as {}", quoted(component.encoding()));
        return Err(Error::corrupt("repository.pack", message));
    };
    let crc = match &component.digest {
        Some(Digest::Crc32c(crc)) => Some(*crc),
        _ => None,
    };
    Ok(Blob { coding, offset: extent.offset, len: extent.len, crc })
}
