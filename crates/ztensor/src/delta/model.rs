//! A file as a set of tensors that can be recognised.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use twox_hash::XxHash3_128;

use super::ModelDigest;
use crate::base::parallel;
use crate::catalog::{Component, Extent, Object, Storage};
use crate::error::{Error, ErrorKind, Result, quoted};
use crate::format::safetensors;
use crate::progress::{Observer, advance};
use crate::read::Limits;
use crate::read::{OpenOptions, Reader};
use crate::remote::Options;
use crate::source::{self, MapMode, Source};

/// Content of one length and hash.
pub(crate) type Fingerprint = (u64, u128);

/// Bytes of content that are hashed at a time.
const HASHED_PIECE: usize = 4 << 20;

/// A model: the components of all its tensors, by name and role.
pub(crate) struct Model {
    pub(crate) reader: Reader,
    /// Names and roles in the order of the file.
    pub(crate) parts: Vec<ModelPart>,
    by_name: HashMap<(String, String), usize>,
}

/// One component of a tensor.
#[derive(Debug, Clone)]
pub(crate) struct ModelPart {
    pub(crate) name: String,
    pub(crate) role: String,
}

impl Model {
    /// Opens a file of any format. A `.safetensors` file that breaks a rule of the format is
    /// one, too: with the tensors that it describes without contradiction.
    pub(crate) fn open(path: &Path, threads: usize, limits: Limits) -> Result<Model> {
        let options = OpenOptions::default().threads(threads).limits(limits);
        match options.clone().open(path) {
            Ok(reader) => Ok(Self::of(reader)),
            Err(error) if matches!(error.kind(), ErrorKind::Io | ErrorKind::InvalidArgument) => Err(error),
            Err(error) => {
                let source = source::open(path, MapMode::Auto, &Options::default())?;
                Self::lenient(source, options)?.ok_or(error.into_unsupported())
            }
        }
    }

    /// Opens a file that lies in memory or elsewhere.
    pub(crate) fn open_source(source: Arc<dyn Source>, threads: usize, limits: Limits) -> Result<Model> {
        let options = OpenOptions::default().threads(threads).limits(limits);
        match options.clone().open_source(source.clone()) {
            Ok(reader) => Ok(Self::of(reader)),
            Err(error) if error.kind() == ErrorKind::Io => Err(error),
            Err(error) => Self::lenient(source, options)?.ok_or(error.into_unsupported()),
        }
    }

    fn lenient(source: Arc<dyn Source>, options: OpenOptions) -> Result<Option<Model>> {
        let catalog = safetensors::parse_leniently(source)?;
        Ok(catalog.map(|catalog| Self::of(Reader::of(catalog, options))))
    }

    fn of(reader: Reader) -> Model {
        let parts: Vec<ModelPart> = reader
            .objects()
            .flat_map(|(name, object)| object.components.iter().map(move |(role, _)| (name, role)))
            .map(|(name, role)| ModelPart { name: name.to_owned(), role: role.to_string() })
            .collect();
        let key = |(index, part): (usize, &ModelPart)| ((part.name.clone(), part.role.clone()), index);
        let by_name = parts.iter().enumerate().map(key).collect();
        Model { reader, parts, by_name }
    }

    pub(crate) fn find(&self, name: &str, role: &str) -> Option<usize> {
        self.by_name.get(&(name.to_owned(), role.to_owned())).copied()
    }

    /// The component of that name and role, or an error that says what the base lacks.
    pub(crate) fn require(&self, name: &str, role: &str) -> Result<usize> {
        self.find(name, role).ok_or_else(|| {
            let error = Error::mismatch(format!("the base has no tensor {} with {role:?}", quoted(name)));
            error.in_file(self.label())
        })
    }

    pub(crate) fn label(&self) -> &str {
        self.reader.catalog().sources.label(0)
    }

    /// Object and component of a part.
    pub(crate) fn part(&self, index: usize) -> Result<(&Object, &Component)> {
        let ModelPart { name, role } = &self.parts[index];
        let object = self.reader.get(name)?;
        Ok((object, object.require(role)?))
    }

    /// The bytes of a part: borrowed where they can be viewed, decoded where not.
    pub(crate) fn content(&self, index: usize, threads: usize) -> Result<Cow<'_, [u8]>> {
        let (_, component) = self.part(index)?;
        let sources = &self.reader.catalog().sources;
        let named = |error: Error| error.in_tensor(&*self.parts[index].name).in_file(self.label());
        match &component.storage {
            Storage::Plain(extent) => sources.bytes(*extent).map_err(named),
            storage => {
                let mut bytes = crate::source::zeroed(component.len)?;
                storage.read(sources, 0..component.len, &mut bytes, threads).map_err(named)?;
                Ok(Cow::Owned(bytes))
            }
        }
    }

    /// Length and hash of every part's content.
    pub(crate) fn fingerprints(
        &self,
        threads: usize,
        observer: Option<&dyn Observer>,
    ) -> Result<Vec<Fingerprint>> {
        self.reader.check_limits(self.reader.keys())?;
        let found = Mutex::new(vec![(0, 0); self.parts.len()]);
        parallel::for_each(threads, (0..self.parts.len()).collect(), |index| {
            let mut hasher = XxHash3_128::new();
            let content = self.content(index, 1)?;
            let len = content.len() as u64;
            let place = match (&content, &self.part(index)?.1.storage) {
                (Cow::Borrowed(_), Storage::Plain(extent)) => Some(*extent),
                _ => None,
            };
            for (piece, skip) in content.chunks(HASHED_PIECE).zip((0..).step_by(HASHED_PIECE)) {
                if let Some(Extent { source, offset, .. }) = place {
                    // Faulting it in page by page would take longer than hashing it.
                    let source = self.reader.catalog().sources.get(source)?;
                    source.prefetch(offset + skip, piece.len() as u64);
                }
                hasher.write(piece);
            }
            found.lock().unwrap_or_else(PoisonError::into_inner)[index] = (len, hasher.finish_128());
            advance(observer, len)
        })?;
        Ok(found.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// What the model is known by, whatever the order and the format of its file.
    pub(crate) fn digest(&self, fingerprints: &[Fingerprint]) -> Result<ModelDigest> {
        let mut order: Vec<usize> = (0..self.parts.len()).collect();
        order.sort_by_key(|&index| (&self.parts[index].name, &self.parts[index].role));
        let mut hasher = XxHash3_128::new();
        let text = |hasher: &mut XxHash3_128, text: &str| {
            hasher.write(&(text.len() as u64).to_le_bytes());
            hasher.write(text.as_bytes());
        };
        for index in order {
            let ModelPart { name, role } = &self.parts[index];
            let (object, component) = self.part(index)?;
            text(&mut hasher, name);
            text(&mut hasher, role);
            text(&mut hasher, object.layout.name());
            text(&mut hasher, component.dtype.storage_name());
            text(&mut hasher, component.type_name().unwrap_or(""));
            hasher.write(&(object.shape.len() as u64).to_le_bytes());
            object.shape.iter().for_each(|size| hasher.write(&size.to_le_bytes()));
            let (len, hash) = fingerprints[index];
            hasher.write(&len.to_le_bytes());
            hasher.write(&hash.to_le_bytes());
        }
        Ok(ModelDigest(hasher.finish_128().to_le_bytes()))
    }
}
