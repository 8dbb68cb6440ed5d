//! A stream of versions in a folder or an object store: what is there, and opening one of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::checksum::ChecksumFormat;
use super::index::{INDEX_NAME, Index, Kind, MAX_INDEX};
use super::publish::PublishOptions;
use super::skyrl;
use super::target::NewFolder;
use crate::catalog::{Catalog, Extent, Storage};
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result, quoted};
use crate::format::shards::is_plain_name;
use crate::format::{Context, safetensors};
use crate::remote::{self, Options, Place, store};
use crate::source::{self, MapMode, MemorySource, Source};

/// The version that a stream starts from, which is never published.
pub const BASE_VERSION: &str = "000000";
/// Remote shards up to this size are fetched by one request; of larger ones each tensor is.
const WHOLE_SHARD: u64 = 64 << 20;
/// How folders of folded deltas start: a name that other receivers do not look at.
const FOLD_PREFIX: &str = "fold_v";
const VERSION_PREFIX: &str = "weight_v";

/// How the folders of a stream are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Layout {
    /// `weight_v000001`, `weight_v000002`, …: slime, miles and vime.
    #[default]
    Numbered,
    /// Folders named as the versions are, in no order: ModelExpress.
    Named,
    /// `delta-00000001` with a `manifest.json`: SkyRL; read only.
    SkyRl,
}

impl Layout {
    /// The layout of that name: `numbered`, `named` or `skyrl`.
    pub fn from_name(name: &str) -> Result<Layout> {
        match name {
            "numbered" => Ok(Layout::Numbered),
            "named" => Ok(Layout::Named),
            "skyrl" => Ok(Layout::SkyRl),
            other => {
                Err(Error::invalid(format!("unknown layout {other:?}: choose numbered, named or skyrl")))
            }
        }
    }

    /// The folder of a version.
    fn folder(self, version: &str) -> String {
        match self {
            Layout::Numbered => format!("{VERSION_PREFIX}{version}"),
            Layout::Named => version.to_owned(),
            Layout::SkyRl => format!("delta-{:08}", version.parse::<u64>().unwrap_or_default()),
        }
    }

    /// The version of a folder.
    fn version(self, folder: &str) -> Option<String> {
        let number = |digits: &str, least: usize| {
            let plain = digits.len() >= least && digits.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| digits.parse::<u64>().ok()).flatten().map(version_name)
        };
        match self {
            Layout::Numbered => number(folder.strip_prefix(VERSION_PREFIX)?, 6),
            Layout::Named => (!folder.starts_with('.')).then(|| folder.to_owned()),
            Layout::SkyRl => number(folder.strip_prefix("delta-")?, 8),
        }
    }

    fn index_name(self) -> &'static str {
        match self {
            Layout::SkyRl => skyrl::MANIFEST,
            _ => INDEX_NAME,
        }
    }
}

/// The name of a numbered version: six digits or more.
pub fn version_name(number: u64) -> String {
    format!("{number:06}")
}

/// The number of a version, if it has one.
pub fn version_number(version: &str) -> Option<u64> {
    version.bytes().all(|byte| byte.is_ascii_digit()).then(|| version.parse().ok()).flatten()
}

/// A stream of versions.
#[derive(Debug)]
pub struct Stream {
    root: PathBuf,
    remote: Options,
    layout: Layout,
    /// Indexes that were read: a version does not change once it is there.
    known: Mutex<BTreeMap<String, Arc<Version>>>,
}

/// Folders of a stream, with the files in them and their sizes.
#[derive(Debug, Default, Clone)]
pub(crate) struct Listing {
    folders: BTreeMap<String, BTreeMap<String, u64>>,
}

/// A folder of a stream whose index was read.
#[derive(Debug, Clone)]
pub struct Version {
    /// The state that it leads to.
    pub name: String,
    /// Its folder in the stream.
    pub folder: String,
    /// What its index says.
    pub index: Index,
    /// Bytes that are read for it, as far as known.
    pub len: u64,
    /// Keys of payloads that differ from the tensors' names.
    pub(crate) keys: BTreeMap<String, String>,
    /// Checksums that stand in the index and not in the shards.
    pub(crate) digests: BTreeMap<String, (ChecksumFormat, String)>,
}

impl Version {
    /// The version that it starts from; `None` for a full one.
    pub fn base(&self) -> Option<&str> {
        match &self.index.kind {
            Kind::Full { .. } => None,
            Kind::Delta { base, .. } => Some(base),
        }
    }

    /// Whether it is a fold of several versions.
    pub fn is_fold(&self) -> bool {
        self.folder.starts_with(FOLD_PREFIX)
    }
}

impl Listing {
    pub(crate) fn contains(&self, folder: &str) -> bool {
        self.folders.contains_key(folder)
    }

    pub(crate) fn files(&self, folder: &str) -> Option<&BTreeMap<String, u64>> {
        self.folders.get(folder)
    }

    /// From, to and folder of every fold.
    fn folds(&self) -> impl Iterator<Item = (String, String, &str)> {
        self.folders.iter().filter_map(|(folder, files)| {
            let (from, to) = folder.strip_prefix(FOLD_PREFIX)?.split_once("_v")?;
            let (from, to) = (from.parse().ok()?, to.parse().ok()?);
            files.contains_key(INDEX_NAME).then_some((version_name(from), version_name(to), folder.as_str()))
        })
    }
}

impl Stream {
    /// A stream in a folder or below a URL. Nothing is read yet.
    pub fn new(root: impl AsRef<Path>, layout: Layout, remote: Options) -> Stream {
        Stream { root: root.as_ref().to_owned(), remote, layout, known: Mutex::default() }
    }

    /// Where it is.
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    pub(crate) fn remote(&self) -> &Options {
        &self.remote
    }

    /// Its folder, if it is on this machine.
    pub(crate) fn local(&self) -> Result<Option<PathBuf>> {
        match remote::place(&self.root)? {
            Place::Local(path) => Ok(Some(path)),
            Place::Remote(_) => Ok(None),
        }
    }

    pub(crate) fn path(&self, folder: &str, file: &str) -> PathBuf {
        store::join(store::join(&self.root, folder), file)
    }

    /// A folder of the stream that is to be written.
    pub(crate) fn new_folder<'a>(&'a self, name: String, options: &PublishOptions) -> NewFolder<'a> {
        NewFolder {
            root: &self.root,
            remote: &self.remote,
            name,
            index: INDEX_NAME,
            siblings: &[VERSION_PREFIX, FOLD_PREFIX],
            durable: options.durable,
            replace_unfinished: options.replace_unfinished,
        }
    }

    /// The folder of a version.
    pub(crate) fn folder(&self, version: &str) -> String {
        self.layout.folder(version)
    }

    /// The folder of a fold of the versions after `from` up to `to`.
    pub(crate) fn fold_folder(from: &str, to: &str) -> String {
        format!("{FOLD_PREFIX}{from}_v{to}")
    }

    /// What is there. A store may answer with an older listing.
    pub(crate) fn list(&self) -> Result<Listing> {
        let mut listing = Listing::default();
        for entry in store::list(&self.root, &self.remote)? {
            let Some((folder, file)) = entry.name.split_once('/') else { continue };
            if !folder.starts_with('.') && !file.contains('/') {
                listing.folders.entry(folder.to_owned()).or_default().insert(file.to_owned(), entry.len);
            }
        }
        Ok(listing)
    }

    /// The same for a version that is known by name: a web server, which cannot be listed, will do,
    /// and so will a store whose listing does not show the version yet.
    pub(crate) fn list_for(&self, version: Option<&str>) -> Result<Listing> {
        match self.list() {
            Err(error) if error.kind() == ErrorKind::Unsupported && version.is_some() => {
                Ok(Listing::default())
            }
            listing => listing,
        }
    }

    /// The published versions, oldest first: those whose index is there.
    pub fn versions(&self) -> Result<Vec<String>> {
        Ok(self.versions_in(&self.list()?))
    }

    pub(crate) fn versions_in(&self, listing: &Listing) -> Vec<String> {
        let complete =
            listing.folders.iter().filter(|(_, files)| files.contains_key(self.layout.index_name()));
        let mut versions: Vec<String> =
            complete.filter_map(|(folder, _)| self.layout.version(folder)).collect();
        versions.sort_by_key(|version| (version_number(version), version.clone()));
        versions
    }

    /// Folders of folds, with the versions that they lead from and to.
    pub(crate) fn folds_in(&self, listing: &Listing) -> Vec<(String, String, String)> {
        match self.layout {
            Layout::Numbered => {
                listing.folds().map(|(from, to, folder)| (from, to, folder.to_owned())).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The newest version, if there is any.
    pub fn newest(&self) -> Result<Option<String>> {
        Ok(self.versions()?.pop())
    }

    /// The index of a version, read once; `None` if it has none.
    pub fn version(&self, name: &str) -> Result<Option<Arc<Version>>> {
        self.version_in(&self.folder(name), name, None)
    }

    /// The same for any folder of the stream. `listing` knows sizes that the index may not say.
    pub(crate) fn version_in(
        &self,
        folder: &str,
        name: &str,
        listing: Option<&Listing>,
    ) -> Result<Option<Arc<Version>>> {
        if let Ok(known) = self.known.lock()
            && let Some(version) = known.get(folder)
        {
            return Ok(Some(version.clone()));
        }
        if !is_plain_name(folder) {
            return Ok(None); // the name of a version comes from an index
        }
        let path = self.path(folder, self.layout.index_name());
        let bytes = match store::read(&path, MAX_INDEX, &self.remote) {
            Ok(bytes) => bytes,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let index_len = bytes.len() as u64;
        let parsed = match self.layout {
            Layout::SkyRl => skyrl::parse(&bytes),
            _ => Index::parse(&bytes).map(|index| (index, BTreeMap::new(), BTreeMap::new())),
        };
        let (index, keys, digests) = parsed.map_err(|error| error.in_file(&path))?;
        self.check_names(&index, name).map_err(|error| error.in_file(&path))?;
        let listed = || {
            let files = listing?.files(folder)?;
            Some(
                index
                    .weight_map
                    .values()
                    .collect::<std::collections::BTreeSet<_>>()
                    .into_iter()
                    .fold(0u64, |sum, file| sum.saturating_add(files.get(file).copied().unwrap_or(0))),
            )
        };
        let len = index.shards_len().or_else(listed).unwrap_or(0).saturating_add(index_len);
        let folder = folder.to_owned();
        let version =
            Arc::new(Version { name: name.to_owned(), folder: folder.clone(), index, len, keys, digests });
        if let Ok(mut known) = self.known.lock() {
            known.insert(folder, version.clone());
        }
        Ok(Some(version))
    }

    /// Forgets what was read, after versions turned out to have changed or vanished.
    pub(crate) fn forget(&self) {
        if let Ok(mut known) = self.known.lock() {
            known.clear();
        }
    }

    /// The names in an index must be those of its folder, and its base an earlier version.
    fn check_names(&self, index: &Index, name: &str) -> Result<()> {
        let same = |text: &str| match self.layout {
            Layout::Named => text == name,
            _ => version_number(text).is_some() && version_number(text) == version_number(name),
        };
        if let Some(version) = &index.version
            && !same(version)
        {
            let message = format!("the index names version {}, its folder {}", quoted(version), quoted(name));
            return Err(Error::mismatch(message));
        }
        let Kind::Delta { base, .. } = &index.kind else { return Ok(()) };
        let earlier = match self.layout {
            Layout::Named => base != name,
            _ => {
                version_number(base).is_some_and(|base| version_number(name).is_some_and(|name| base < name))
            }
        };
        match earlier {
            true => Ok(()),
            false => {
                let message = format!("version {} cannot start from version {}", quoted(name), quoted(base));
                Err(Error::mismatch(message))
            }
        }
    }

    /// The name of the version that a delta starts from, in the form of this layout.
    pub(crate) fn base_name(&self, version: &Version) -> Option<String> {
        let base = version.base()?;
        match self.layout {
            Layout::Named => Some(base.to_owned()),
            _ => version_number(base).map(version_name),
        }
    }

    /// Opens a shard and checks its header.
    pub(crate) fn shard(&self, version: &Version, file: &str) -> Result<Shard> {
        let path = self.path(&version.folder, file);
        let far = remote::is_url(&self.root) && self.local()?.is_none();
        let known_len = version.index.extras.as_ref().and_then(|extras| extras.shards.get(file)).copied();
        let open = || -> Result<Arc<dyn Source>> {
            if far && known_len.is_some_and(|len| len <= WHOLE_SHARD) {
                return Ok(Arc::new(MemorySource::new(store::read(&path, WHOLE_SHARD, &self.remote)?)));
            }
            let source = source::open(&path, MapMode::Never, &self.remote)?;
            if far && source.len() <= WHOLE_SHARD {
                return Ok(Arc::new(MemorySource::new(source.bytes(0, source.len())?.into_owned())));
            }
            Ok(source)
        };
        let source = open().map_err(|error| match is_absent(&error) {
            true => Error::not_found("this shard is missing, although the index names it").in_file(&path),
            false => error,
        })?;
        if known_len.is_some_and(|len| len != source.len()) {
            let message = format!("the shard has {} bytes, the index says {known_len:?}", source.len());
            return Err(Error::corrupt("sync.shard", message).in_file(&path));
        }
        let catalog =
            safetensors::parse(source.into(), &Context::default()).map_err(|error| error.in_file(&path))?;
        Ok(Shard { path, catalog })
    }
}

/// Whether an error says that there is no such file.
pub(crate) fn is_absent(error: &Error) -> bool {
    error.kind() == ErrorKind::NotFound
        || error.io_error().is_some_and(|cause| {
            matches!(cause.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
        })
}

/// A shard of a version.
pub(crate) struct Shard {
    path: PathBuf,
    catalog: Catalog,
}

/// The payload of one tensor of a delta.
pub(crate) struct Payload {
    pub(crate) bytes: Vec<u8>,
    pub(crate) checksum: ChecksumFormat,
    pub(crate) digest: String,
}

impl Shard {
    pub(crate) fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn extent(&self, key: &str, name: &str) -> Result<Extent> {
        let object = self.catalog.objects.get(key).ok_or_else(|| {
            let message = "the index says that it is in this shard, but it is not";
            Error::corrupt("sync.tensor", message).in_tensor(name).in_file(&self.path)
        })?;
        let component = object.require("data")?;
        match (&component.storage, component.dtype, &object.shape[..]) {
            (Storage::Plain(extent), DType::U8, [_]) => Ok(*extent),
            _ => {
                let message = "the payload of a delta is one dimension of U8";
                Err(Error::corrupt("sync.tensor", message).in_tensor(name).in_file(&self.path))
            }
        }
    }

    /// The checksum that the shard's metadata has for a tensor.
    pub(crate) fn digest(&self, name: &str, format: ChecksumFormat) -> Result<String> {
        let found = self.catalog.attributes.get(name).and_then(|value| value.as_text());
        match found {
            Some(text) if format.has_form(text) => Ok(text.to_owned()),
            found => {
                let message = match found {
                    None => "the shard has no checksum of this tensor".to_owned(),
                    Some(text) => format!("{} is not a {format} checksum", quoted(text)),
                };
                Err(Error::corrupt("sync.digest", message).in_tensor(name).in_file(&self.path))
            }
        }
    }

    /// Checks that a tensor of a delta is there with its checksum, without reading it.
    pub(crate) fn check(&self, version: &Version, name: &str) -> Result<()> {
        let key = version.keys.get(name).map_or(name, String::as_str);
        self.extent(key, name)?;
        match (&version.index.kind, version.digests.contains_key(name)) {
            (Kind::Delta { checksum, .. }, false) => self.digest(name, *checksum).map(drop),
            _ => Ok(()),
        }
    }

    /// Reads the payload of a tensor.
    pub(crate) fn payload(&self, version: &Version, name: &str) -> Result<Payload> {
        let Kind::Delta { checksum, .. } = version.index.kind else {
            return Err(Error::invalid("a full version has no payloads"));
        };
        let key = version.keys.get(name).map_or(name, String::as_str);
        let (checksum, digest) = match version.digests.get(name) {
            Some((format, digest)) => (*format, digest.clone()),
            None => (checksum, self.digest(name, checksum)?),
        };
        let bytes = self.catalog.sources.bytes(self.extent(key, name)?)?.into_owned();
        if let Some(extras) = &version.index.extras
            && let Some(entry) = extras.tensors.get(name)
            && super::checksum::xxh3(&bytes) != entry.payload
        {
            let message = "the payload does not have the checksum that the index names";
            return Err(Error::mismatch(message).in_tensor(name).in_file(&self.path));
        }
        Ok(Payload { bytes, checksum, digest })
    }
}
