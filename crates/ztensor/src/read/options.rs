//! How a file is opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Limits, Reader};
use crate::catalog::Catalog;
use crate::error::{Error, Result};
use crate::format::{self, Context};
use crate::remote::{self, Place};
use crate::source::{MapMode, Source};

/// How to open a file.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Whether the file may be mapped.
    pub map: MapMode,
    /// How much a call may decode.
    pub limits: Limits,
    /// Threads for reading and decoding; 0 is one per core.
    pub threads: usize,
    /// Whether owned reads compare stored digests.
    pub verify: bool,
    /// What to do with a pickle that is dangerous in tools that unpickle it.
    pub pickle: PicklePolicy,
    /// How remote files are reached.
    pub remote: remote::Options,
    /// Whether objects of a `.zt` file of version 2 that break rules of their layout are passed
    /// through, part by part, instead of being refused.
    pub structural: bool,
}

/// What to do with a pickle that names functions which run code, start programs or open files in
/// tools that unpickle it. This library calls nothing in either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PicklePolicy {
    /// Opens it; [`Reader::unsafe_globals`] has the names.
    #[default]
    Report,
    /// Refuses it with an error that names them.
    Strict,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            map: MapMode::Auto,
            limits: Limits::default(),
            threads: 0,
            verify: true,
            pickle: PicklePolicy::default(),
            remote: remote::Options::default(),
            structural: false,
        }
    }
}

impl OpenOptions {
    /// Whether the file may be mapped.
    pub fn map(mut self, mode: MapMode) -> Self {
        self.map = mode;
        self
    }

    /// How much a call may decode, for untrusted files or for those that decode to very much more
    /// than they store.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Refuses to read components larger than this many bytes: [`Limits::max_component`].
    pub fn max_component(mut self, bytes: u64) -> Self {
        self.limits.max_component = bytes;
        self
    }

    /// Refuses to decode more than this many bytes in one call: [`Limits::max_total`].
    pub fn max_total(mut self, bytes: u64) -> Self {
        self.limits.max_total = Some(bytes);
        self
    }

    /// Threads for reading and decoding; 0 is one per core.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Whether owned reads compare stored digests (they do by default).
    pub fn verify(mut self, verify: bool) -> Self {
        self.verify = verify;
        self
    }

    /// What to do with a pickle that is dangerous in tools that unpickle it.
    pub fn pickle(mut self, policy: PicklePolicy) -> Self {
        self.pickle = policy;
        self
    }

    /// How remote files are reached.
    pub fn remote(mut self, options: remote::Options) -> Self {
        self.remote = options;
        self
    }

    /// Passes objects of a `.zt` file of version 2 that break rules of their sparse or quantized layout
    /// through, part by part, instead of refusing the file.
    pub fn structural(mut self, structural: bool) -> Self {
        self.structural = structural;
        self
    }

    fn context(&self, path: Option<PathBuf>) -> Context {
        let (map_mode, remote) = (self.map, self.remote.clone());
        Context { path, map_mode, remote, structural: self.structural, files: None }
    }

    /// Opens a file, by its path or its URL.
    pub fn open(self, path: impl AsRef<Path>) -> Result<Reader> {
        let place = remote::place(path.as_ref())?;
        let (path, name) = match &place {
            Place::Local(path) => (path.clone(), path.clone()),
            // What follows a `?` is no part of the name, and may be a secret.
            Place::Remote(location) => (path.as_ref().to_owned(), location.url().into()),
        };
        let context = self.context(Some(name.clone()));
        let catalog = format::open(&path, place, &context).and_then(|catalog| self.admit(catalog));
        let catalog = catalog.map_err(|error| error.in_file(name))?;
        Ok(Reader::of(catalog, self))
    }

    /// Opens any source, such as bytes in memory.
    pub fn open_source(self, source: Arc<dyn Source>) -> Result<Reader> {
        let context = self.context(None);
        let catalog = self.admit(format::parse(source, &context)?)?;
        Ok(Reader::of(catalog, self))
    }

    /// Refuses what the pickle policy does not allow.
    fn admit(&self, catalog: Catalog) -> Result<Catalog> {
        if self.pickle == PicklePolicy::Report || catalog.unsafe_globals.is_empty() {
            return Ok(catalog);
        }
        Err(Error::corrupt(
            "pickle.unsafe",
            format!(
                "refused by the strict pickle policy: in tools that unpickle it, it reaches {}; \
                 `ztensor scan` says more",
                catalog.unsafe_globals.join(", ")
            ),
        ))
    }
}
