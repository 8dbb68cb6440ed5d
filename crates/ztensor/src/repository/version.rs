//! A version of a repository as it is read: its files by name, and its tensors.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::history::Commit;
use super::manifest::{FileEntry, Manifest, Segment};
use super::names::RecordId;
use super::restore::ObjectSet;
use crate::catalog::{Catalog, DigestOf, Storage};
use crate::digest::Digest;
use crate::error::{Error, Result, quoted};
use crate::format::{Context, Files, parse, shards};
use crate::id::ContentId;
use crate::read::{OpenOptions, Reader};
use crate::repository::pack::Form;
use crate::source::{Source, check_range, zeroed};

/// Objects of at most this many bytes are decoded once and kept while others of the same file are
/// read: parsers and strided tensors read a few bytes at a time. (limit)
const KEPT_OBJECT: u64 = 32 << 20;

/// A version: what was committed.
///
/// It keeps reading what it named when it was opened, whatever is committed since.
#[derive(Debug, Clone)]
pub struct Version {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    id: RecordId,
    commit: Commit,
    manifest: Manifest,
    objects: ObjectSet,
    /// What files are called in messages: before their paths.
    label: String,
}

/// A file of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VersionFile {
    /// Its path, with `/` between folders.
    pub path: String,
    /// Its size in bytes.
    pub len: u64,
    /// Whether it may be run.
    pub executable: bool,
}

/// A tensor of a version: an array that lies in a file as it does in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VersionTensor {
    /// Its name.
    pub name: String,
    /// The file that it is in.
    pub file: String,
    /// The id of its content.
    pub id: ContentId,
    /// Its element type.
    pub dtype: crate::DType,
    /// Its shape.
    pub shape: crate::Shape,
    /// Its size in bytes.
    pub len: u64,
    /// How it is stored: `whole`, `delta` or `cast`.
    pub form: &'static str,
    /// Bytes that it takes, without what it depends on.
    pub stored: u64,
    /// How many objects it depends on.
    pub depth: usize,
}

impl Version {
    pub(crate) fn new(
        id: RecordId,
        commit: Commit,
        manifest: Manifest,
        objects: ObjectSet,
        label: String,
    ) -> Version {
        Version { inner: Arc::new(Inner { id, commit, manifest, objects, label }) }
    }

    /// The commit's id.
    pub fn id(&self) -> RecordId {
        self.inner.id
    }

    /// The commit.
    pub fn commit(&self) -> &Commit {
        &self.inner.commit
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        &self.inner.manifest
    }

    pub(crate) fn objects(&self) -> &ObjectSet {
        &self.inner.objects
    }

    /// Its files, sorted by path.
    pub fn files(&self) -> Vec<VersionFile> {
        let manifest = &self.inner.manifest;
        let file = |file: &FileEntry| VersionFile {
            path: file.path.clone(),
            len: manifest.file_len(file),
            executable: file.executable,
        };
        manifest.files.iter().map(file).collect()
    }

    /// Its tensors, in the order of its files.
    pub fn tensors(&self) -> Result<Vec<VersionTensor>> {
        let mut tensors = Vec::new();
        for (file, name, index) in self.inner.manifest.tensors() {
            let object = self.inner.manifest.object(index)?;
            let chain = self.inner.objects.chain(&object.id)?;
            tensors.push(VersionTensor {
                name: name.to_owned(),
                file: file.path.clone(),
                id: object.id,
                dtype: object.of.dtype,
                shape: object.of.shape.clone(),
                len: object.len,
                form: match chain[0].form {
                    Form::Whole(_) => "whole",
                    Form::Delta { .. } => "delta",
                    Form::Cast { .. } => "cast",
                },
                stored: chain[0].len(),
                depth: chain.len() - 1,
            });
        }
        Ok(tensors)
    }

    /// A file, restored as it is read.
    pub fn file(&self, path: &str) -> Result<Arc<dyn Source>> {
        let file = self.inner.manifest.files.iter().position(|file| file.path == path);
        let file = file.ok_or_else(|| {
            Error::not_found(format!("this version has no file {}", quoted(path))).in_file(&self.inner.label)
        })?;
        Ok(Arc::new(RestoredFile::new(self.inner.clone(), file)?))
    }

    /// Its model: what opening its folder would show, without restoring it.
    pub fn reader(&self) -> Result<Reader> {
        self.reader_at("", OpenOptions::default())
    }

    /// A model in a folder of the version, or a file of it.
    pub fn reader_at(&self, path: &str, options: OpenOptions) -> Result<Reader> {
        let path = path.trim_end_matches('/');
        let is_file = self.inner.manifest.files.iter().any(|file| file.path == path);
        let folder = match is_file {
            true => path.rsplit_once('/').map_or("", |(folder, _)| folder),
            false => path,
        };
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let files = Arc::new(Folder { inner: self.inner.clone(), prefix: prefix.clone() });
        let name = Path::new(&path[prefix.len().min(path.len())..]);
        let context = Context {
            path: Some(PathBuf::from(name)),
            map_mode: options.map,
            files: Some(files.clone()),
            ..Context::default()
        };
        let catalog = match is_file {
            false => shards::open_folder(Path::new(""), &context),
            true if shards::is_index(name) => shards::open_index(name, name, &context),
            true => files.open(name).and_then(|source| parse(source, &context)),
        };
        let catalog = catalog.map_err(|error| match path {
            "" => error.in_file(&self.inner.label),
            path => error.in_file(format!("{}/{path}", self.inner.label)),
        })?;
        Ok(Reader::of(self.direct(catalog)?, options))
    }

    /// Lets what is an object of its own be decoded from its pack, and not by way of its file.
    fn direct(&self, mut catalog: Catalog) -> Result<Catalog> {
        let Inner { manifest, objects, .. } = &*self.inner;
        let shift = catalog.sources.len() as u32;
        for index in 0..objects.sources().len() as u32 {
            let packs = objects.sources().clone();
            let label = packs.label(index).to_owned();
            catalog.sources.push_lazy(label, move || packs.get(index).cloned());
        }
        let files: HashMap<String, &FileEntry> =
            manifest.files.iter().map(|file| (self.inner.label_of(file), file)).collect();
        let mut places: HashMap<u32, HashMap<(u64, u64), u32>> = HashMap::new();
        for source in 0..shift {
            if let Some(file) = files.get(catalog.sources.label(source)) {
                places.insert(source, places_of(manifest, file));
            }
        }
        for object in catalog.objects.values_mut() {
            for (_, component) in &mut object.components {
                let Storage::Plain(extent) = component.storage else { continue };
                let place =
                    places.get(&extent.source).and_then(|places| places.get(&(extent.offset, extent.len)));
                let Some(index) = place else { continue };
                let entry = manifest.object(*index)?;
                component.storage = objects.storage(&entry.id, shift)?;
                // The checksum of the file is one of decoded bytes now; that of the pack is not.
                (component.digest, component.digest_of) = (None, DigestOf::Stored);
                if let (Storage::Plain(_), Form::Whole(blob)) =
                    (&component.storage, objects.get(&entry.id)?.form)
                {
                    component.digest = blob.crc.map(Digest::Crc32c);
                }
            }
        }
        Ok(catalog)
    }
}

/// Objects of a file by where they lie in it.
fn places_of(manifest: &Manifest, file: &FileEntry) -> HashMap<(u64, u64), u32> {
    let mut places = HashMap::new();
    let mut at = 0;
    for segment in &file.segments {
        let len = manifest.segment_len(segment);
        if let Segment::Object(index, _) = segment {
            places.insert((at, len), *index);
        }
        at += len;
    }
    places
}

impl Inner {
    fn label_of(&self, file: &FileEntry) -> String {
        format!("{}/{}", self.label, file.path)
    }
}

/// The files of a folder of a version.
#[derive(Debug)]
struct Folder {
    inner: Arc<Inner>,
    prefix: String,
}

impl Files for Folder {
    fn names(&self) -> Vec<String> {
        let files = self.inner.manifest.files.iter();
        let direct = files.filter_map(|file| file.path.strip_prefix(&self.prefix));
        direct.filter(|name| !name.contains('/')).map(str::to_owned).collect()
    }

    fn open(&self, name: &Path) -> Result<Arc<dyn Source>> {
        let path = format!("{}{}", self.prefix, name.display());
        let file = self.inner.manifest.files.iter().position(|file| file.path == path);
        let file = file.ok_or_else(|| {
            let cause = std::io::Error::from(std::io::ErrorKind::NotFound);
            Error::io("cannot open", cause).in_file(format!("{}/{path}", self.inner.label))
        })?;
        Ok(Arc::new(RestoredFile::new(self.inner.clone(), file)?))
    }
}

/// A file of a version as a source: literals, and objects that are decoded when they are read.
#[derive(Debug)]
struct RestoredFile {
    inner: Arc<Inner>,
    file: usize,
    label: String,
    /// Where each segment starts, and the end.
    starts: Vec<u64>,
    /// The object that was decoded last, if it is not too large.
    last: Mutex<Option<(u32, Arc<Vec<u8>>)>>,
}

impl RestoredFile {
    fn new(inner: Arc<Inner>, file: usize) -> Result<RestoredFile> {
        let entry = &inner.manifest.files[file];
        let mut starts = Vec::with_capacity(entry.segments.len() + 1);
        let mut end = 0u64;
        starts.push(0);
        for segment in &entry.segments {
            end = end.saturating_add(inner.manifest.segment_len(segment));
            starts.push(end);
        }
        let label = inner.label_of(entry);
        Ok(RestoredFile { inner, file, label, starts, last: Mutex::default() })
    }

    fn object(&self, index: u32, skip: u64, out: &mut [u8]) -> Result<()> {
        let Inner { manifest, objects, .. } = &*self.inner;
        let entry = manifest.object(index)?;
        if objects.get(&entry.id)?.of != entry.of {
            return Err(Error::corrupt(
                "repository.pack",
                format!("{} is stored with another type or shape than the manifest says", entry.id),
            ));
        }
        if entry.len > KEPT_OBJECT {
            let range = skip..skip + out.len() as u64;
            return objects.storage(&entry.id, 0)?.read(objects.sources(), range, out, 0);
        }
        let last = || self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = last().as_ref().filter(|(kept, _)| *kept == index).map(|(_, bytes)| bytes.clone());
        let bytes = match kept {
            Some(bytes) => bytes,
            None => {
                let mut bytes = zeroed(entry.len)?;
                let storage = objects.storage(&entry.id, 0)?;
                storage.read(objects.sources(), 0..entry.len, &mut bytes, 0)?;
                let bytes = Arc::new(bytes);
                *last() = Some((index, bytes.clone()));
                bytes
            }
        };
        out.copy_from_slice(&bytes[skip as usize..][..out.len()]);
        Ok(())
    }
}

impl Source for RestoredFile {
    fn len(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    fn label(&self) -> &str {
        &self.label
    }

    fn read_at(&self, offset: u64, mut out: &mut [u8]) -> Result<()> {
        check_range(self.len(), offset, out.len() as u64)?;
        let segments = &self.inner.manifest.files[self.file].segments;
        let mut at = offset;
        let mut index = self.starts.partition_point(|start| *start <= offset).saturating_sub(1);
        while !out.is_empty() {
            let skip = at - self.starts[index];
            let take = (self.starts[index + 1] - at).min(out.len() as u64) as usize;
            let (part, rest) = out.split_at_mut(take);
            match &segments[index] {
                _ if part.is_empty() => {}
                Segment::Literal(bytes) => part.copy_from_slice(&bytes[skip as usize..][..take]),
                Segment::Object(object, _) => {
                    self.object(*object, skip, part).map_err(|error| error.in_file(&self.label))?;
                }
            }
            (out, at, index) = (rest, at + take as u64, index + 1);
        }
        Ok(())
    }

    /// Literals are in memory; objects have to be fetched and decoded.
    fn readahead(&self, offset: u64, len: u64) -> u64 {
        let segments = &self.inner.manifest.files[self.file].segments;
        let first = self.starts.partition_point(|start| *start <= offset).saturating_sub(1);
        let literals = segments[first.min(segments.len())..].iter();
        let count = literals.take_while(|segment| matches!(segment, Segment::Literal(_))).count();
        match self.starts.get(first + count).filter(|_| count > 0) {
            Some(end) => len.min(end.saturating_sub(offset)),
            None => len,
        }
    }

    fn mapped(&self) -> Result<&[u8]> {
        Err(Error::unsupported("a file of a repository is restored when it is read: it cannot be mapped"))
    }
}
