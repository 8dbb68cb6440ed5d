//! Edits that write a new file: stored bytes are copied as they are.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use crate::catalog::{Catalog, Component, Extent, Storage};
use crate::edit::lock::Lock;
use crate::edit::session::check_magic;
use crate::error::{Error, Result, quoted};
use crate::format::{self, Context, zt};
use crate::progress::{Observer, advance};
use crate::remote::{self, Place};
use crate::source::MapMode;
use crate::write::Writer;
use crate::write::destination::Destination;

/// Writes a file without some of its tensors, and returns the size of the new file.
///
/// Everything else is kept: compression, digests, attributes, ties, and manifest
/// keys that this version does not know. An unknown name is refused before
/// anything is written. `output` may be `input`.
pub fn remove_tensors<S: AsRef<str>>(
    input: impl AsRef<Path>,
    output: impl Into<Destination>,
    names: &[S],
) -> Result<u64> {
    CopyOptions::default().remove_tensors(input, output, names)
}

/// Writes one file with the tensors of several, and returns its size.
///
/// A name that two of them have is refused, and so is a file attribute for which
/// they have different values: [`merge_with`] can keep one.
pub fn merge<P: AsRef<Path>>(inputs: &[P], output: impl Into<Destination>) -> Result<u64> {
    CopyOptions::default().merge(inputs, output)
}

/// Like [`merge`]; `clash` says which value an attribute gets that the files disagree on.
pub fn merge_with<P: AsRef<Path>>(inputs: &[P], output: impl Into<Destination>, clash: Clash) -> Result<u64> {
    CopyOptions::default().clash(clash).merge(inputs, output)
}

/// Writes a file anew without the bytes that edits left behind. Readers that have
/// it open keep the old file.
pub fn compact(path: impl AsRef<Path>) -> Result<Compacted> {
    compact_to(&path, path.as_ref())
}

/// Like [`compact`], but leaves `input` as it is.
pub fn compact_to(input: impl AsRef<Path>, output: impl Into<Destination>) -> Result<Compacted> {
    CopyOptions::default().compact_to(input, output)
}

/// What a merge does when files have different values for an attribute of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Clash {
    /// Refuse to merge them.
    #[default]
    Refuse,
    /// Keep the value of the file that comes first.
    KeepFirst,
    /// Keep the value of the file that comes last.
    KeepLast,
}

/// What [`compact`] saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compacted {
    /// Size of the file before.
    pub before: u64,
    /// Size of the file now.
    pub after: u64,
}

/// How to write the new file, for edits that take a while.
#[derive(Clone, Copy, Default)]
pub struct CopyOptions<'a> {
    clash: Clash,
    observer: Option<&'a dyn Observer>,
}

impl<'a> CopyOptions<'a> {
    /// Which value a file attribute gets that merged files disagree on.
    pub fn clash(mut self, clash: Clash) -> Self {
        self.clash = clash;
        self
    }

    /// Is told how many bytes were copied, and may cancel: no output appears then.
    pub fn observer(mut self, observer: &'a dyn Observer) -> Self {
        self.observer = Some(observer);
        self
    }

    /// See [`remove_tensors`].
    pub fn remove_tensors<S: AsRef<str>>(
        self,
        input: impl AsRef<Path>,
        output: impl Into<Destination>,
        names: &[S],
    ) -> Result<u64> {
        let (input, output) = (input.as_ref(), output.into());
        let claim = Claim::over(&output)?;
        let mut catalog = open(input)?;
        for name in names {
            if !catalog.objects.contains_key(name.as_ref()) {
                let message = format!("no tensor is named {}", quoted(name.as_ref()));
                return Err(Error::not_found(message).in_file(input));
            }
        }
        let removed: HashSet<&str> = names.iter().map(AsRef::as_ref).collect();
        catalog.objects.retain(|name, _| !removed.contains(&**name));
        self.write(claim, &output, vec![catalog])
    }

    /// See [`merge`].
    pub fn merge<P: AsRef<Path>>(self, inputs: &[P], output: impl Into<Destination>) -> Result<u64> {
        let output = output.into();
        let claim = Claim::over(&output)?;
        let catalogs = inputs.iter().map(|input| open(input.as_ref())).collect::<Result<Vec<_>>>()?;
        check_names(&catalogs)?;
        self.write(claim, &output, catalogs)
    }

    /// See [`compact`] and [`compact_to`]: `output` may be `input`.
    pub fn compact_to(self, input: impl AsRef<Path>, output: impl Into<Destination>) -> Result<Compacted> {
        let (input, output) = (input.as_ref(), output.into());
        let claim = Claim::over(&output)?;
        let catalog = open(input)?;
        let before = catalog.sources.get(0)?.len();
        let after = self.write(claim, &output, vec![catalog])?;
        Ok(Compacted { before, after })
    }

    /// Writes a file with the objects of all catalogs.
    fn write(self, claim: Claim, output: &Destination, catalogs: Vec<Catalog>) -> Result<u64> {
        let root = root(&catalogs, self.clash)?;
        let mut writer = Writer::create_durable(output.clone())?;
        writer.catalog = root;
        for catalog in catalogs {
            copy_objects(&mut writer, catalog, self.observer)?;
        }
        let size = writer.finish().map_err(|error| error.in_file(output.path()))?;
        claim.fulfil()?;
        Ok(size)
    }
}

/// Reads the catalog of a `.zt` file of the present version.
fn open(path: &Path) -> Result<Catalog> {
    let place = remote::place(path)?;
    let (opened, name) = match &place {
        Place::Local(path) => (path.clone(), path.clone()),
        Place::Remote(location) => (path.to_owned(), location.url().into()),
    };
    let context = Context { path: Some(name), map_mode: MapMode::Never, ..Context::default() };
    let catalog = format::open(&opened, place, &context).and_then(|catalog| {
        check_magic(&catalog.sources.get(0)?.bytes(0, 8)?)?;
        match catalog.index {
            Some(_) => Ok(catalog),
            None => Err(Error::unsupported("a model of several files cannot be edited: edit its files")),
        }
    });
    catalog.map_err(|error| error.in_file(path))
}

/// The right to put a new file under a name: no editor may hold the old one.
struct Claim(Option<Lock>);

impl Claim {
    fn over(output: &Destination) -> Result<Claim> {
        output.check()?;
        let Place::Local(path) = output.place()? else { return Ok(Claim(None)) };
        match std::fs::canonicalize(path) {
            Ok(target) if target.is_file() => {
                let failed = |error| Error::io("cannot examine", error).in_file(&target);
                let metadata = std::fs::metadata(&target).map_err(failed)?;
                Ok(Claim(Some(Lock::take(&target, &metadata)?)))
            }
            // Nothing there, or nothing that could be edited: the writer will say.
            _ => Ok(Claim(None)),
        }
    }

    /// The new file is there: whatever the journal describes, it is not that file.
    fn fulfil(self) -> Result<()> {
        match &self.0 {
            Some(lock) => lock.remove().and_then(|()| lock.sync_folder()),
            None => Ok(()),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(lock) = &self.0 {
            // After a failure; an empty journal that stays is harmless.
            let _ = lock.release();
        }
    }
}

/// Copies every object of a catalog, its blobs in the order of the file, each once.
fn copy_objects(writer: &mut Writer<'_>, catalog: Catalog, observer: Option<&dyn Observer>) -> Result<()> {
    let Catalog { sources, mut objects, .. } = catalog;
    let components = objects.values().flat_map(|object| &object.components);
    let mut extents: Vec<Extent> = components.filter_map(|(_, component)| component.extent()).collect();
    extents.sort_unstable();
    extents.dedup();
    let mut moved = HashMap::with_capacity(extents.len());
    for extent in extents {
        moved.insert(
            extent,
            writer.copy_blob(&sources, extent, |piece| advance(observer, piece.len() as u64))?,
        );
    }
    for (name, object) in &mut objects {
        for (_, component) in &mut object.components {
            if let Some(extent) = component.extent() {
                move_to(component, moved[&extent]).map_err(|error| error.in_tensor(&**name))?;
            }
        }
    }
    writer.catalog.objects.append(&mut objects);
    Ok(())
}

/// The same stored bytes in another place.
fn move_to(component: &mut Component, extent: Extent) -> Result<()> {
    component.storage = match &component.storage {
        Storage::Encoded(decoder) => zt::manifest::encoded(decoder.encoding(), extent, component.len)?,
        _ => Storage::Plain(extent),
    };
    Ok(())
}

fn check_names(catalogs: &[Catalog]) -> Result<()> {
    let mut owners: HashMap<&str, &Catalog> = HashMap::new();
    for catalog in catalogs {
        for name in catalog.objects.keys() {
            if let Some(owner) = owners.insert(name, catalog) {
                return Err(Error::invalid(format!(
                    "{} and {} both have a tensor named {}",
                    owner.sources.label(0),
                    catalog.sources.label(0),
                    quoted(name)
                )));
            }
        }
    }
    Ok(())
}

/// A catalog without objects that has what the given ones say of the whole file.
fn root(catalogs: &[Catalog], clash: Clash) -> Result<Catalog> {
    let mut root = Catalog::new(format::Format::Zt, Default::default());
    for catalog in catalogs {
        let refused = |key: &str| {
            Error::invalid(format!(
                "{} has another value for the file attribute {} than the files before it: choose \
                 whether the first or the last is kept",
                catalog.sources.label(0),
                quoted(key)
            ))
        };
        for (key, value) in &catalog.attributes {
            match root.attributes.get_mut(key) {
                None => drop(root.attributes.insert(key.clone(), value.clone())),
                Some(kept) => settle(kept, value, clash).ok_or_else(|| refused(key))?,
            }
        }
        for (key, value) in catalog.unknown.pairs() {
            match root.unknown.get_mut(key) {
                None => root.unknown.push(key.clone(), value.clone()),
                Some(kept) => settle(kept, value, clash).ok_or_else(|| refused(key))?,
            }
        }
        root.version = zt::manifest::later(root.version, &catalog.version);
    }
    Ok(root)
}

/// Gives `kept` the value that the rule chooses; `None` if there is no choice.
fn settle<T: PartialEq + Clone>(kept: &mut T, other: &T, clash: Clash) -> Option<()> {
    match clash {
        _ if kept == other => {}
        Clash::Refuse => return None,
        Clash::KeepFirst => {}
        Clash::KeepLast => *kept = other.clone(),
    }
    Some(())
}
