//! Tensors from a file of any format into a `.zt` writer, a few at a time.

use std::collections::HashMap;

use crate::catalog::{Component, ContentKey, DigestOf, Extent, Layout, Object, Role, Storage};
use crate::digest::{Checksum, Hasher};
use crate::error::{Error, Result};
use crate::format::zt2::{self, CheckedContent};
use crate::progress::{Observer, advance};
use crate::read::Reader;
use crate::tensor::{Tensor, is_narrow};
use crate::write::{Compression, WriteOptions, Writer, ZtVersion, duplicate, version2};

/// Tensors are held in memory up to this many bytes, or one of them. (limit)
const BATCH: u64 = 64 << 20;

/// Small tensors of a remote file that are fetched in one batch, at most. (flat: `constants.py`, `far_convert`)
const STAGED: usize = 256;

impl Writer<'_> {
    /// Writes the tensors `names` of an open file, decoding what is encoded.
    ///
    /// Raw tensors that stay raw are copied in pieces; peak memory is otherwise
    /// about one tensor. Tensors that share their bytes there are tied here.
    /// Digests of the source are compared on the way. The observer hears of bytes as
    /// they are in memory, when they are written.
    pub fn write_from(
        &mut self,
        reader: &Reader,
        names: &[&str],
        options: WriteOptions,
        observer: Option<&dyn Observer>,
    ) -> Result<()> {
        reader.check_limits(names.iter().copied())?;
        let mut first_names = HashMap::new();
        let mut batch: Vec<(&str, Tensor<'_>)> = Vec::new();
        let mut held = 0;
        let mut staged = Vec::new();
        for (index, &name) in names.iter().enumerate() {
            let object = reader.get(name)?;
            if index % STAGED == 0 {
                drop(std::mem::take(&mut staged));
                staged = reader.stage(&names[index..names.len().min(index + STAGED)])?;
            }
            if self.contains(name) {
                return Err(duplicate(name));
            }
            if let Some(first) = tied_to(object, name, &mut first_names) {
                self.flush_batch(&mut batch, options, observer)?;
                held = 0;
                self.tie_like(name, first, object)?;
                advance(observer, object.byte_len())?;
            } else if options.compression == Compression::None && self.copies(object) {
                let copy = self.copy_raw(reader, name, object, options, observer)?;
                self.insert(name, copy)?;
            } else {
                if held + object.byte_len() > BATCH {
                    self.flush_batch(&mut batch, options, observer)?;
                    held = 0;
                }
                held += object.byte_len();
                batch.push((name, reader.read_owned(name)?));
                advance(observer, 0)?;
            }
        }
        self.flush_batch(&mut batch, options, observer)?;
        // Raw tensors were written at once, those that had to be decoded in batches.
        self.reorder(names.iter().copied());
        Ok(())
    }

    fn flush_batch(
        &mut self,
        batch: &mut Vec<(&str, Tensor<'_>)>,
        options: WriteOptions,
        observer: Option<&dyn Observer>,
    ) -> Result<()> {
        let tensors: Vec<_> = batch.iter().map(|(name, tensor)| (*name, tensor)).collect();
        self.write_many_observed(&tensors, options, observer)?;
        batch.clear();
        Ok(())
    }

    /// Ties a name to one written before, with a shape and attributes of its own.
    fn tie_like(&mut self, name: &str, first: &str, object: &Object) -> Result<()> {
        self.tie_shaped(name, first, &object.shape)?;
        if let Some(tied) = self.catalog.objects.get_mut(name) {
            tied.attributes = object.attributes.clone();
        }
        Ok(())
    }

    /// Copies the components of a raw object piece by piece.
    fn copy_raw(
        &mut self,
        reader: &Reader,
        name: &str,
        object: &Object,
        options: WriteOptions,
        observer: Option<&dyn Observer>,
    ) -> Result<Object> {
        let mut copy = Object::new(object.shape.clone(), object.layout.clone(), Vec::new());
        copy.attributes = object.attributes.clone();
        match self.version() {
            ZtVersion::V1 => copy.unknown = object.unknown.clone(),
            ZtVersion::V2 => zt2::check_description(name, object)?,
        }
        for (role, component) in &object.components {
            let Storage::Plain(extent) = component.storage else {
                return Err(Error::invalid("only raw components can be copied raw").in_tensor(name));
            };
            let mut source_hash = reader.digest(component).and_then(|digest| digest.hasher());
            let mut content = CopiedContent::new(self.version(), object, component, options.checksum)?;
            let place = self.copy_blob(&reader.catalog().sources, extent, |piece| {
                content.take(piece)?;
                source_hash.iter_mut().for_each(|hash| hash.update(piece));
                advance(observer, piece.len() as u64)
            });
            let place = place.map_err(|error| error.in_tensor(name))?;
            compare(reader, name, component, source_hash)?;
            let copied = content.finish(component, place).map_err(|error| error.in_tensor(name))?;
            copy.components.push((role.clone(), copied));
        }
        Ok(copy)
    }

    /// Whether the components can be copied as they lie.
    fn copies(&self, object: &Object) -> bool {
        let sparse = matches!(object.layout, Layout::SparseCsr | Layout::SparseCoo);
        if sparse && self.version() == ZtVersion::V2 {
            return false; // their indices are checked as a whole
        }
        object.components.iter().all(|(role, component)| {
            // Narrow indices of other formats are widened.
            let narrow = sparse && is_narrow(role, component.dtype);
            matches!(component.storage, Storage::Plain(_)) && !narrow
        })
    }
}

/// What a version of the format wants to know of the bytes of a component.
enum CopiedContent {
    /// A digest of what is stored, if one is asked for.
    Stored(Option<Hasher>),
    /// A digest of the content, which is checked.
    Checked(CheckedContent),
}

impl CopiedContent {
    fn new(
        version: ZtVersion,
        object: &Object,
        component: &Component,
        checksum: Checksum,
    ) -> Result<CopiedContent> {
        Ok(match version {
            ZtVersion::V2 => {
                CopiedContent::Checked(CheckedContent::of(object, component, version2::hasher(checksum)?))
            }
            ZtVersion::V1 => CopiedContent::Stored(checksum.hasher()),
        })
    }

    fn take(&mut self, piece: &[u8]) -> Result<()> {
        match self {
            CopiedContent::Stored(hash) => hash.iter_mut().for_each(|hash| hash.update(piece)),
            CopiedContent::Checked(content) => content.take(piece)?,
        }
        Ok(())
    }

    /// The component as it lies at `place`.
    fn finish(self, of: &Component, place: Extent) -> Result<Component> {
        match self {
            CopiedContent::Stored(hash) => {
                let mut component = of.clone();
                component.storage = Storage::Plain(place);
                (component.digest, component.digest_of) = (hash.map(Hasher::finish), DigestOf::Stored);
                Ok(component)
            }
            CopiedContent::Checked(content) => Ok(version2::component(of, false, place, content.finish()?)),
        }
    }
}

/// Refuses a copy of bytes that do not match the digest that their file has of them.
fn compare(reader: &Reader, name: &str, component: &Component, found: Option<Hasher>) -> Result<()> {
    match (found.map(Hasher::finish), &component.digest) {
        (Some(found), Some(expected)) if found != *expected => {
            let message = format!("the stored bytes have the checksum {found}, the file says {expected}");
            Err(Error::mismatch(message).in_tensor(name).in_file(reader.catalog().sources.label(0)))
        }
        _ => Ok(()),
    }
}

/// Names by the content, the layout and the role of their only component.
type FirstNames<'a> = HashMap<(ContentKey<'a>, &'a Layout, &'a Role), &'a str>;

/// The name under which the same content was seen before.
fn tied_to<'a>(object: &'a Object, name: &'a str, first_names: &mut FirstNames<'a>) -> Option<&'a str> {
    let [(role, component)] = &object.components[..] else {
        return None; // ties of several components are rare, and stored apart they are still right
    };
    match first_names.entry((component.content_key()?, &object.layout, role)) {
        std::collections::hash_map::Entry::Occupied(entry) => Some(*entry.get()),
        std::collections::hash_map::Entry::Vacant(entry) => {
            entry.insert(name);
            None
        }
    }
}
