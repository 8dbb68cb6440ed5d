//! New data for a tensor that is there.
//!
//! The new data is first appended, like any new tensor, with a manifest that
//! names it there: that is the new state, and the old place is now free. While
//! no reader has the file open, the data and the manifest are then written to
//! the old places, and the file is cut behind them: at every instant the file's
//! end leads to a state that is whole.

use std::path::Path;

use crate::catalog::{Catalog, Component, Extent, Layout, Storage};
use crate::digest::Digest;
use crate::dtype::Element;
use crate::edit::session::Session;
use crate::error::{Error, Result, quoted};
use crate::format::zt::{ALIGNMENT, MAGIC, manifest};
use crate::tensor::check_type;

/// Where [`replace_tensor`] put the new data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Where the old data was: the file did not grow.
    InPlace,
    /// At the end, because a reader has the file open or another tensor shares the
    /// old data. [`compact`](crate::compact) drops what is no longer used.
    ///
    /// A reader counts as open until every copy of its descriptor is closed; a process
    /// that another thread is just starting has one until it runs its program.
    Appended,
}

/// Replaces the bytes of a dense, uncompressed tensor by as many others.
///
/// Shape, type and attributes stay; a stored digest is computed anew. Views and
/// readers that are open keep seeing the old data, and so do tensors that share it.
pub fn replace_tensor(path: impl AsRef<Path>, name: &str, data: &[u8]) -> Result<Placement> {
    replace(path.as_ref(), name, data, |_| Ok(()))
}

/// Replaces the elements of a dense, uncompressed tensor of type `T`: see [`replace_tensor`].
pub fn replace_tensor_as<T: Element>(path: impl AsRef<Path>, name: &str, data: &[T]) -> Result<Placement> {
    replace(path.as_ref(), name, bytemuck::cast_slice(data), |old| check_type::<T>(old.dtype))
}

fn replace(
    path: &Path,
    name: &str,
    data: &[u8],
    check: impl FnOnce(&Component) -> Result<()>,
) -> Result<Placement> {
    let (session, mut catalog) = Session::open(path)?;
    let at = |error: Error| error.in_tensor(name).in_file(path);
    let component = replaceable(&mut catalog, name).map_err(at)?;
    check(component).map_err(at)?;
    let old = match component.storage {
        Storage::Plain(old) if old.len == data.len() as u64 => old,
        _ => {
            let message = format!("the tensor has {} bytes, the new data {}", component.len, data.len());
            return Err(at(Error::invalid(message)));
        }
    };
    if data.is_empty() {
        return Ok(Placement::InPlace);
    }
    // The data is hashed and written, and it may change meanwhile: all of that is done to a copy.
    let copy;
    let data = match &component.digest {
        None => data,
        Some(digest) => {
            copy = data.to_vec();
            component.digest = Some(renew(digest, &copy).map_err(at)?);
            &copy
        }
    };
    write(session, catalog, name, old, data).map_err(|error| error.in_file(path))
}

/// The one component that can be replaced, or why it cannot.
fn replaceable<'a>(catalog: &'a mut Catalog, name: &str) -> Result<&'a mut Component> {
    let object = catalog
        .objects
        .get_mut(name)
        .ok_or_else(|| Error::not_found(format!("no tensor is named {}", quoted(name))))?;
    if object.layout != Layout::Dense {
        return Err(Error::unsupported(format!("only dense tensors can be replaced, not {}", object.layout)));
    }
    let (_, component) = object
        .components
        .iter_mut()
        .find(|(role, _)| role == "data")
        .ok_or_else(|| Error::not_found("the tensor has no data"))?;
    match &component.storage {
        Storage::Plain(_) => Ok(component),
        _ => Err(Error::unsupported(format!(
            "only uncompressed tensors can be replaced; this one is stored as {}",
            component.encoding()
        ))),
    }
}

/// The digest of new bytes, of the same kind as the old one.
fn renew(digest: &Digest, data: &[u8]) -> Result<Digest> {
    let mut hasher = digest.hasher().ok_or_else(|| {
        Error::unsupported(format!(
            "its checksum {} is of a kind that this version cannot compute",
            quoted(&digest.to_string())
        ))
    })?;
    hasher.update(data);
    Ok(hasher.finish())
}

fn write(
    mut session: Session,
    mut catalog: Catalog,
    name: &str,
    old: Extent,
    data: &[u8],
) -> Result<Placement> {
    let tied = is_tied(&catalog, old);
    // The manifest of the file with the new data in the old place. It goes where
    // the present one is, and may be longer, so the space that it takes is left free.
    let manifest_at = catalog.index.map_or(session.good_len(), |place| place.offset);
    let settled = manifest::tail(&catalog, manifest_at)?;
    let settled_len = manifest_at + settled.len() as u64;
    // The same with the new data at the end.
    let new = Extent::new(session.good_len().max(settled_len).next_multiple_of(ALIGNMENT), old.len);
    replaceable(&mut catalog, name)?.storage = Storage::Plain(new);
    let appended = manifest::tail(&catalog, new.offset + new.len)?;
    let (body, magic) = appended.split_at(appended.len() - MAGIC.len());
    let magic_at = new.offset + new.len + body.len() as u64;

    session.begin()?;
    session.write_at(new.offset, data)?;
    session.write_at(new.offset + new.len, body)?;
    session.sync()?;
    session.write_at(magic_at, magic)?;
    session.sync()?;
    session.check_name()?;
    if tied || !session.claim_alone() {
        session.commit()?;
        return Ok(Placement::Appended);
    }
    session.advance(magic_at + magic.len() as u64)?;
    // From here on nothing names the old data, nor the manifest that named it.
    session.write_at(old.offset, data)?;
    session.write_at(manifest_at, &settled)?;
    session.sync()?;
    session.set_len(settled_len)?;
    session.sync()?;
    session.commit()?;
    Ok(Placement::InPlace)
}

/// Whether more than one component names that range.
fn is_tied(catalog: &Catalog, extent: Extent) -> bool {
    let components = catalog.objects.values().flat_map(|object| &object.components);
    components.filter(|(_, component)| component.extent() == Some(extent)).count() > 1
}
