//! Files that are no tensor files: whole ones to and from a store or a folder, new ones from
//! front to back, and what is there.
//!
//! Every function takes a path or a URL, so that what is kept beside a model, such
//! as its configuration, is found where the model is.

use std::fs::File;
use std::io::{Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::remote::{Location, Options, Place, hub, place};
use crate::source::{self, MapMode};
use crate::write::atomic::AtomicFile;
use crate::write::destination::Destination;
use crate::write::disk;

/// One file below a folder or a prefix.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Its name from there, with `/` between folders.
    pub name: String,
    /// Its size in bytes.
    pub len: u64,
}

/// All bytes of a file, which must not be longer than `limit`.
pub fn read(path: impl AsRef<Path>, limit: u64, options: &Options) -> Result<Vec<u8>> {
    let path = path.as_ref();
    match place(path)? {
        Place::Local(path) => {
            let failed = |error| Error::io("cannot read", error).in_file(&path);
            let mut file = std::fs::File::open(&path).map_err(failed)?;
            let mut bytes = Vec::new();
            (&mut file).take(limit).read_to_end(&mut bytes).map_err(failed)?;
            if bytes.len() as u64 == limit && file.read(&mut [0]).map_err(failed)? > 0 {
                let message = format!("the file is longer than the {limit} bytes that are allowed");
                return Err(Error::invalid(message).in_file(path));
            }
            Ok(bytes)
        }
        Place::Remote(location) => remote::read(&location, limit, options),
    }
}

/// A page of a listing, not longer than `limit`, and the URL of the next one.
pub(super) fn read_page(url: &str, limit: u64, options: &Options) -> Result<(Vec<u8>, Option<String>)> {
    match place(url.as_ref())? {
        Place::Local(_) => Err(Error::invalid("only servers have listings in pages").in_file(url)),
        Place::Remote(location) => remote::read_page(&location, limit, options),
    }
}

/// Bytes of a file, as far as it has them; they must not be more than `limit`.
pub fn read_range(
    path: impl AsRef<Path>,
    range: Range<u64>,
    limit: u64,
    options: &Options,
) -> Result<Vec<u8>> {
    let path = path.as_ref();
    let source = source::open(path, MapMode::Never, options)?;
    let (start, end) = (range.start.min(source.len()), range.end.min(source.len()));
    if end.saturating_sub(start) > limit {
        let message = format!("these are {} bytes: {limit} are allowed", end - start);
        return Err(Error::invalid(message).in_file(source.label()));
    }
    Ok(source.bytes(start, end.saturating_sub(start))?.into_owned())
}

/// Writes a whole file, which appears when it is complete. Folders on the way are made.
pub fn write(to: impl Into<Destination>, bytes: &[u8], options: &Options) -> Result<()> {
    let mut file = NewFile::create(to, options)?;
    file.write(bytes)?;
    file.finish(false)
}

/// Writes a whole file where none is; `false` if there is one already. Of several writers at once,
/// one succeeds.
pub fn write_new(path: impl AsRef<Path>, bytes: &[u8], options: &Options) -> Result<bool> {
    let path = path.as_ref();
    if let Place::Remote(location) = place(path)? {
        return remote::write_new(&location, bytes, options);
    }
    match write(Destination::explicit(path, false), bytes, options) {
        Ok(()) => Ok(true),
        Err(error) => match error.io_error().map(std::io::Error::kind) {
            Some(std::io::ErrorKind::AlreadyExists) => Ok(false),
            _ => Err(error),
        },
    }
}

/// A file that is written from front to back and appears when it is complete. Dropped before
/// [`finish`](NewFile::finish), it leaves nothing behind.
#[derive(Debug)]
pub struct NewFile {
    path: PathBuf,
    file: AtomicFile,
}

impl NewFile {
    /// Begins a file that will replace what is there. Folders on the way are made.
    pub fn create(to: impl Into<Destination>, options: &Options) -> Result<NewFile> {
        let to = to.into();
        if let Place::Local(path) = to.place()?
            && let Some(folder) = path.parent()
        {
            let failed = |error| Error::io("cannot create", error).in_file(folder);
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        Ok(NewFile { path: to.path().to_owned(), file: AtomicFile::create_with(&to, options)? })
    }

    /// The file and where it is until it is finished, if it is one of this machine: for callers
    /// that write to any position of it.
    pub fn temporary(&self) -> Option<(&File, &Path)> {
        self.file.temporary()
    }

    /// Adds to its end.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| Error::io("cannot write", error).in_file(&self.path))
    }

    /// Waits until the disk has what was written, if it is a file of this machine.
    pub(crate) fn sync(&self) -> Result<()> {
        let Some((file, _)) = self.temporary() else { return Ok(()) };
        disk::sync(file).map_err(|error| Error::io("cannot write", error).in_file(&self.path))
    }

    /// Puts it under its name; `durable` waits until the disk has it, as a store always does.
    pub fn finish(self, durable: bool) -> Result<()> {
        self.file.commit(durable)
    }
}

/// The files below a folder or a prefix, sorted by name; none if it does not exist.
pub fn list(path: impl AsRef<Path>, options: &Options) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    match place(path.as_ref())? {
        Place::Local(folder) => walk(&folder, "", &mut entries)?,
        Place::Remote(location) if location.scheme().is_web() => {
            if let Some(mut entries) = hub::listing(&location, options)? {
                entries.sort();
                return Ok(entries);
            }
            let message = "a web server cannot be listed: name a file or an index of shards";
            return Err(Error::unsupported(message).in_file(location.url()));
        }
        Place::Remote(location) => entries = remote::list(&location, options)?,
    }
    entries.sort();
    Ok(entries)
}

fn walk(folder: &Path, prefix: &str, entries: &mut Vec<Entry>) -> Result<()> {
    let failed = |error| Error::io("cannot list", error).in_file(folder);
    let listing = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        listing => listing.map_err(failed)?,
    };
    for entry in listing {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if kind.is_dir() {
            walk(&entry.path(), &format!("{name}/"), entries)?;
        } else if let Ok(metadata) = std::fs::metadata(entry.path())
            && metadata.is_file()
        {
            entries.push(Entry { name, len: metadata.len() });
        }
    }
    Ok(())
}

/// The size of a file, or `None` if there is none.
pub fn len(path: impl AsRef<Path>, options: &Options) -> Result<Option<u64>> {
    match place(path.as_ref())? {
        Place::Local(path) => match std::fs::metadata(&path) {
            Ok(metadata) => Ok(metadata.is_file().then_some(metadata.len())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io("cannot examine", error).in_file(path)),
        },
        Place::Remote(location) => remote::len(&location, options),
    }
}

/// Whether there is a file.
pub fn exists(path: impl AsRef<Path>, options: &Options) -> Result<bool> {
    Ok(len(path, options)?.is_some())
}

/// Removes a file; it is no error if there is none.
pub fn delete(path: impl AsRef<Path>, options: &Options) -> Result<()> {
    match place(path.as_ref())? {
        Place::Local(path) => match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io("cannot remove", error).in_file(path))
            }
            _ => Ok(()),
        },
        Place::Remote(location) => remote::delete(&location, options),
    }
}

/// Requests to a store at a time, as its options say.
pub(crate) fn connections(location: &Location, options: &Options) -> Result<usize> {
    remote::connections(location, options)
}

/// A name below a folder or a URL.
pub fn join(folder: impl AsRef<Path>, name: &str) -> PathBuf {
    let folder = folder.as_ref();
    match place(folder) {
        Ok(Place::Remote(location)) => {
            let key = match location.key().trim_end_matches('/') {
                "" => name.to_owned(),
                key => format!("{key}/{name}"),
            };
            match location.with_key(key) {
                Ok(location) => PathBuf::from(location.url()),
                // Not a URL: it is refused where it is opened.
                Err(_) => folder.join(name),
            }
        }
        _ => folder.join(name),
    }
}

#[cfg(feature = "remote")]
mod remote {
    use futures_util::{StreamExt, TryStreamExt};
    use object_store::{Error as Store, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};

    use super::{Entry, Error, Options, Result};
    use crate::remote::collect::collect;
    use crate::remote::http::NextPage;
    use crate::remote::pinned::key;
    use crate::remote::settings::Settings;
    use crate::remote::{Location, failure, runtime};

    /// Most files that a prefix is listed with: a server could go on for ever. (limit)
    const MOST_ENTRIES: usize = 1 << 22;

    fn client(location: &Location, options: &Options) -> Result<std::sync::Arc<dyn ObjectStore>> {
        let settings = Settings::resolve(location, options)?;
        let client = runtime::client(&settings).map_err(|error| error.in_file(location.url()))?;
        Ok(client.store)
    }

    pub(super) fn connections(location: &Location, options: &Options) -> Result<usize> {
        Ok(Settings::resolve(location, options)?.connections)
    }

    pub(super) fn read(location: &Location, limit: u64, options: &Options) -> Result<Vec<u8>> {
        read_page(location, limit, options).map(|(bytes, _)| bytes)
    }

    pub(super) fn read_page(
        location: &Location,
        limit: u64,
        options: &Options,
    ) -> Result<(Vec<u8>, Option<String>)> {
        let (store, key) = (client(location, options)?, key(location)?);
        let answer = runtime::wait(async {
            let answer = store.get(&key).await?;
            let next = answer.extensions.get::<NextPage>().map(|next| next.0.clone());
            Ok((collect(answer, limit).await?, next))
        })?;
        answer.map_err(|error| failure::error("cannot read", &location.url(), &error))
    }

    pub(super) fn write_new(location: &Location, bytes: &[u8], options: &Options) -> Result<bool> {
        let (store, key) = (client(location, options)?, key(location)?);
        let create = PutOptions::from(PutMode::Create);
        let payload = PutPayload::from(bytes.to_vec());
        match runtime::wait(store.put_opts(&key, payload, create))? {
            Ok(_) => Ok(true),
            Err(Store::AlreadyExists { .. } | Store::Precondition { .. }) => Ok(false),
            Err(error) => Err(failure::error("cannot write", &location.url(), &error)),
        }
    }

    pub(super) fn list(location: &Location, options: &Options) -> Result<Vec<Entry>> {
        let store = client(location, options)?;
        let prefix = key(location)?;
        let listing = store.list((!prefix.as_ref().is_empty()).then_some(&prefix));
        let listed: object_store::Result<Vec<_>> =
            runtime::wait(listing.take(MOST_ENTRIES + 1).try_collect())?;
        let listed = listed.map_err(|error| failure::error("cannot list", &location.url(), &error))?;
        if listed.len() > MOST_ENTRIES {
            let message = format!("there are more than {MOST_ENTRIES} files: name a longer prefix");
            return Err(Error::unsupported(message).in_file(location.url()));
        }
        let skip = prefix.as_ref().len() + usize::from(!prefix.as_ref().is_empty());
        let entries = listed.into_iter().filter_map(|meta| {
            let name = meta.location.as_ref().get(skip..)?.to_owned();
            (!name.is_empty()).then_some(Entry { name, len: meta.size })
        });
        Ok(entries.collect())
    }

    pub(super) fn len(location: &Location, options: &Options) -> Result<Option<u64>> {
        let (store, key) = (client(location, options)?, key(location)?);
        match runtime::wait(store.head(&key))? {
            Ok(meta) => Ok(Some(meta.size)),
            Err(Store::NotFound { .. }) => Ok(None),
            Err(error) => Err(failure::error("cannot examine", &location.url(), &error)),
        }
    }

    pub(super) fn delete(location: &Location, options: &Options) -> Result<()> {
        let (store, key) = (client(location, options)?, key(location)?);
        match runtime::wait(store.delete(&key))? {
            Ok(()) | Err(Store::NotFound { .. }) => Ok(()),
            Err(error) => Err(failure::error("cannot remove", &location.url(), &error)),
        }
    }
}

#[cfg(not(feature = "remote"))]
mod remote {
    use super::{Entry, Options, Result};
    use crate::remote::{Location, RemoteSource};

    fn absent<T>(location: &Location, options: &Options) -> Result<T> {
        RemoteSource::open(location, options).map(|source| match source {})
    }

    pub(super) fn connections(location: &Location, options: &Options) -> Result<usize> {
        absent(location, options)
    }

    pub(super) fn read(location: &Location, _: u64, options: &Options) -> Result<Vec<u8>> {
        absent(location, options)
    }

    pub(super) fn read_page(
        location: &Location,
        _: u64,
        options: &Options,
    ) -> Result<(Vec<u8>, Option<String>)> {
        absent(location, options)
    }

    pub(super) fn write_new(location: &Location, _: &[u8], options: &Options) -> Result<bool> {
        absent(location, options)
    }

    pub(super) fn list(location: &Location, options: &Options) -> Result<Vec<Entry>> {
        absent(location, options)
    }

    pub(super) fn len(location: &Location, options: &Options) -> Result<Option<u64>> {
        absent(location, options)
    }

    pub(super) fn delete(location: &Location, options: &Options) -> Result<()> {
        absent(location, options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_stores_too() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::default();
        let path = join(join(dir.path(), "a/b"), "c.json");
        assert!(!exists(&path, &options).unwrap());
        write(&path, b"{}", &options).unwrap();
        let url = crate::remote::location::file_url(dir.path());
        assert_eq!(list(&url, &options).unwrap(), [Entry { name: "a/b/c.json".into(), len: 2 }]);
        assert_eq!(read(format!("{url}/a/b/c.json"), 2, &options).unwrap(), b"{}");
        assert!(read(&path, 1, &options).is_err());
        assert_eq!(len(&path, &options).unwrap(), Some(2));
        assert!(!write_new(&path, b"other", &options).unwrap());
        assert_eq!(read(&path, 9, &options).unwrap(), b"{}");
        assert!(write_new(join(dir.path(), "new"), b"x", &options).unwrap());
        delete(join(dir.path(), "new"), &options).unwrap();
        assert_eq!(read_range(&path, 1..9, 1, &options).unwrap(), b"}");
        assert!(read_range(&path, 0..9, 1, &options).is_err());
        assert!(read_range(&path, 5..9, 1, &options).unwrap().is_empty());
        delete(&path, &options).unwrap();
        delete(&path, &options).unwrap();
        assert!(list(&url, &options).unwrap().is_empty());
        assert!(list(join(dir.path(), "none"), &options).unwrap().is_empty());
    }

    #[test]
    fn a_new_file_appears_when_it_is_finished() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::default();
        let path = dir.path().join("made/new.bin");
        for finished in [false, true] {
            let mut file = NewFile::create(&path, &options).unwrap();
            file.write(b"one ").unwrap();
            file.write(b"two").unwrap();
            assert!(!exists(&path, &options).unwrap());
            if finished {
                file.finish(true).unwrap();
            }
        }
        assert_eq!(read(&path, 100, &options).unwrap(), b"one two");
        assert_eq!(list(dir.path(), &options).unwrap().len(), 1, "what was dropped left something");
    }
}
