//! A local checkpoint in the form of a Hugging Face folder: which tensors it has and where.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use indexmap::IndexMap;

use super::state::{Known, Ledger};
use crate::base::parallel;
use crate::catalog::{Shape, Storage};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::format::Format;
use crate::id::{ContentId, tensor_id};
use crate::progress::{Observer, advance};
use crate::read::{OpenOptions, Reader};

/// A tensor that an apply changed, and where it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedTensor {
    /// Its name.
    pub name: String,
    /// The file of the checkpoint that holds it.
    pub file: String,
    /// Where its bytes start in the file.
    pub offset: u64,
    /// How many there are.
    pub len: u64,
    /// Its element type.
    pub dtype: DType,
    /// Its shape.
    pub shape: Shape,
}

/// How an apply is done.
pub(crate) struct Apply<'a> {
    pub(crate) threads: usize,
    pub(crate) durable: bool,
    pub(crate) observer: Option<&'a dyn Observer>,
}

/// A checkpoint's tensors by name, with where they lie.
pub(crate) struct Checkpoint {
    pub(crate) reader: Reader,
    pub(crate) files: Vec<(String, u64)>,
    pub(crate) tensors: IndexMap<String, Place>,
}

/// Where a tensor lies.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) file: u32,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
}

impl Checkpoint {
    /// Opens a folder of safetensors files.
    pub(crate) fn open(folder: &Path) -> Result<Checkpoint> {
        let reader = OpenOptions::default().open(folder)?;
        if reader.format() != Format::Safetensors {
            let message = "a checkpoint that is changed in place is a folder of .safetensors files";
            return Err(Error::unsupported(message).in_file(folder));
        }
        let sources = &reader.catalog().sources;
        let mut files = Vec::new();
        for index in 0..sources.len() as u32 {
            let name = Path::new(sources.label(index)).file_name().unwrap_or_default();
            files.push((name.to_string_lossy().into_owned(), sources.get(index)?.len()));
        }
        let mut tensors = IndexMap::new();
        for (name, object) in reader.objects() {
            let component = object.require("data").map_err(|error| error.in_tensor(name))?;
            let Storage::Plain(extent) = component.storage else {
                return Err(Error::unsupported("it is not stored as it is").in_tensor(name));
            };
            let place = Place {
                file: extent.source,
                offset: extent.offset,
                len: extent.len,
                dtype: component.dtype,
                shape: object.shape.clone(),
            };
            tensors.insert(name.to_owned(), place);
        }
        Ok(Checkpoint { reader, files, tensors })
    }

    /// The bytes of a tensor.
    pub(crate) fn bytes(&self, name: &str) -> Result<&[u8]> {
        self.reader.view(name)
    }

    pub(crate) fn id(&self, name: &str) -> Result<ContentId> {
        let place = &self.tensors[name];
        tensor_id(place.dtype, &place.shape, self.bytes(name)?).map_err(|error| error.in_tensor(name))
    }

    /// A ledger of the tensors as they are, each hashed.
    pub(crate) fn ledger(&self, version: &str, apply: &Apply<'_>) -> Result<Ledger> {
        let ids = std::sync::Mutex::new(BTreeMap::new());
        parallel::for_each(apply.threads, self.tensors.keys().collect(), |name| {
            let id = self.id(name)?;
            if let Ok(mut ids) = ids.lock() {
                ids.insert(name.clone(), Known { id: Some(id), checksum: None });
            }
            advance(apply.observer, 0)
        })?;
        let tensors = ids.into_inner().unwrap_or_default();
        Ok(Ledger { version: version.to_owned(), stream_id: None, tensors, files: self.stamps() })
    }

    /// The files, for a ledger; their times are filled in when it is written.
    pub(crate) fn stamps(&self) -> BTreeMap<String, (u64, u64)> {
        self.files.iter().map(|(name, len)| (name.clone(), (*len, 0))).collect()
    }

    pub(crate) fn changed(&self, names: &BTreeSet<String>) -> Vec<ChangedTensor> {
        let places = self.tensors.iter().filter(|(name, _)| names.contains(*name));
        places
            .map(|(name, place)| ChangedTensor {
                name: name.clone(),
                file: self.files[place.file as usize].0.clone(),
                offset: place.offset,
                len: place.len,
                dtype: place.dtype,
                shape: place.shape.clone(),
            })
            .collect()
    }
}
