//! The reader: one door for looking at, reading and checking tensors of any format.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::base::crc32c_combine;
use crate::base::huge_pages::zeroed_vec;
use crate::base::parallel;
use crate::catalog::{Catalog, Component, Extent, Object, Role, Storage};
use crate::digest::{Digest, Hasher};
use crate::dtype::Element;
use crate::error::{Error, Result, quoted};
use crate::format::{self, Context, Format};
use crate::progress::{Observer, advance};
use crate::read::{Charge, Limits};
use crate::remote::{self, Place};
use crate::source::{MapMode, MemorySource, ReadMode, Source, check_range};
use crate::suggest;
use crate::tensor::value::Attributes;
use crate::tensor::{Array, Tensor, check_type, typed_view};

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

    /// Opens a file, by its path or its URL.
    pub fn open(self, path: impl AsRef<Path>) -> Result<Reader> {
        let (path, name) = match remote::place(path.as_ref())? {
            Place::Local(path) => (path.clone(), path),
            // What follows a `?` is no part of the name, and may be a secret.
            Place::Remote(location) => (path.as_ref().to_owned(), location.url().into()),
        };
        let context = Context { path: Some(name.clone()), map_mode: self.map, remote: self.remote.clone() };
        let catalog = format::open(&path, &context).and_then(|catalog| self.admit(catalog));
        let catalog = catalog.map_err(|error| error.in_file(name))?;
        Ok(Reader { catalog, options: self })
    }

    /// Opens any source, such as bytes in memory.
    pub fn open_source(self, source: Arc<dyn Source>) -> Result<Reader> {
        let context = Context { path: None, map_mode: self.map, remote: self.remote.clone() };
        let catalog = self.admit(format::parse(source, &context)?)?;
        Ok(Reader { catalog, options: self })
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

/// What [`Reader::verify`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verification {
    /// Every digest, or the checksums inside an encoding that has its own, agrees.
    Checked,
    /// At least one component has no digest, or one of a kind this version does not know.
    NoDigest,
}

/// An open tensor file of any format. Usable from many threads at once.
#[derive(Debug)]
pub struct Reader {
    catalog: Catalog,
    options: OpenOptions,
}

/// Reads are split into pieces of this size, so that threads share a large tensor.
const PIECE: usize = 4 << 20;
/// What is hashed at a time.
const HASHED: usize = 1 << 20;
/// Bytes of a part of a tensor that each thread decodes, at least.
const WORTH_A_THREAD: usize = 1 << 20;

impl Reader {
    /// Opens a file of any format; it is mapped when a view is asked for.
    pub fn open(path: impl AsRef<Path>) -> Result<Reader> {
        OpenOptions::default().open(path)
    }

    /// Opens a file and maps it at once, or says why it cannot be mapped.
    pub fn open_mmap(path: impl AsRef<Path>) -> Result<Reader> {
        let reader = Self::open(path)?;
        for index in 0..reader.catalog.sources.len() as u32 {
            reader.catalog.sources.get(index)?.mapped()?;
        }
        Ok(reader)
    }

    /// Opens a file that lies in memory.
    pub fn from_bytes(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Result<Reader> {
        OpenOptions::default().open_source(Arc::new(MemorySource::new(bytes)))
    }

    /// A reader of a catalog that was made by other means.
    pub(crate) fn of(catalog: Catalog, options: OpenOptions) -> Reader {
        Reader { catalog, options }
    }

    /// The format that was recognised.
    pub fn format(&self) -> Format {
        self.catalog.format
    }

    /// The names, in the order of the file.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &str> {
        self.catalog.objects.keys().map(|name| &**name)
    }

    /// Names and objects, in the order of the file.
    pub fn objects(&self) -> impl ExactSizeIterator<Item = (&str, &Object)> {
        self.catalog.objects.iter().map(|(name, object)| (&**name, object))
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.catalog.objects.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.catalog.objects.is_empty()
    }

    /// Whether there is an object of that name.
    pub fn contains(&self, name: &str) -> bool {
        self.catalog.objects.contains_key(name)
    }

    /// The object of that name: shape, layout, components.
    pub fn get(&self, name: &str) -> Result<&Object> {
        self.catalog.objects.get(name).ok_or_else(|| {
            let near = suggest::nearest(name, self.catalog.objects.keys().map(|name| &**name));
            let hint = near.map(|key| format!("; did you mean {}?", quoted(key))).unwrap_or_default();
            let error = Error::not_found(format!("no tensor is named {}{hint}", quoted(name)));
            error.in_file(self.catalog.sources.label(0))
        })
    }

    /// Attributes of the whole file.
    pub fn attributes(&self) -> &Attributes {
        &self.catalog.attributes
    }

    /// Whether a journal beside the file said which part of it is good: an edit is under mode, or
    /// was interrupted, and this is the state before it.
    pub fn is_limited_by_journal(&self) -> bool {
        self.catalog.by_journal
    }

    /// Functions that the file's pickles name and that run code, start programs or open files in
    /// tools that unpickle it; empty for every other format. Nothing was called here.
    pub fn unsafe_globals(&self) -> &[Box<str>] {
        &self.catalog.unsafe_globals
    }

    /// The catalog itself: every object and where its bytes are.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// How the file was opened.
    pub fn options(&self) -> &OpenOptions {
        &self.options
    }

    /// A component of a tensor: `data` for dense ones.
    fn component(&self, name: &str, role: &str) -> Result<&Component> {
        self.get(name)?.require(role).map_err(|error| self.at(name, error))
    }

    /// The data of a dense tensor.
    pub(crate) fn dense(&self, name: &str) -> Result<&Component> {
        self.component(name, "data")
    }

    /// Puts the file and the tensor into an error.
    pub(crate) fn at(&self, name: &str, error: Error) -> Error {
        error.in_tensor(name).in_file(self.catalog.sources.label(0))
    }

    /// The bytes of a dense tensor, without a copy; an error says why there must be one.
    pub fn view(&self, name: &str) -> Result<&[u8]> {
        self.view_component(name, "data")
    }

    /// The elements of a dense tensor, without a copy; an error says why there must be one.
    pub fn view_as<T: Element>(&self, name: &str) -> Result<&[T]> {
        let bytes = self.view(name)?;
        typed_view(self.component(name, "data")?.dtype, bytes).map_err(|error| self.at(name, error))
    }

    /// The bytes of any component, without a copy.
    pub fn view_component(&self, name: &str, role: &str) -> Result<&[u8]> {
        self.try_view(self.component(name, role)?).map_err(|error| self.at(name, error))
    }

    fn try_view<'a>(&'a self, component: &'a Component) -> Result<&'a [u8]> {
        match &component.storage {
            Storage::Plain(extent) => self.catalog.sources.view(*extent),
            Storage::Inline(bytes) => Ok(bytes),
            Storage::Encoded(decoder) => Err(Error::unsupported(format!(
                "it is stored as {}, which must be decoded: read it instead of viewing it",
                decoder.encoding()
            ))),
        }
    }

    /// The bytes of a dense tensor, copied.
    pub fn read(&self, name: &str) -> Result<Vec<u8>> {
        self.read_component(name, "data")
    }

    /// The elements of a dense tensor, copied; alignment in the file does not matter.
    pub fn read_as<T: Element>(&self, name: &str) -> Result<Vec<T>> {
        let component = self.component(name, "data")?;
        check_type::<T>(component.dtype).map_err(|error| self.at(name, error))?;
        self.check_component(name, component)?;
        let mut elements = zeroed_vec::<T>(component.len / size_of::<T>() as u64)?;
        self.read_into(name, bytemuck::cast_slice_mut(&mut elements))?;
        Ok(elements)
    }

    /// The bytes of any component, copied.
    pub fn read_component(&self, name: &str, role: &str) -> Result<Vec<u8>> {
        let component = self.component(name, role)?;
        self.check_component(name, component)?;
        let mut bytes = zeroed_vec::<u8>(component.len).map_err(|error| self.at(name, error))?;
        self.read_component_into(name, role, &mut bytes)?;
        Ok(bytes)
    }

    /// Refuses a component that exceeds the limits, before memory is allocated for it.
    fn check_component(&self, name: &str, component: &Component) -> Result<()> {
        self.check_limit(name, component.len)?;
        self.touch(component);
        let mut charge = Charge::default();
        charge.add(component, &(0..component.len));
        charge.check(self).map_err(|error| self.at(name, error))
    }

    /// Fills the caller's buffer with a dense tensor; the length must match.
    pub fn read_into(&self, name: &str, out: &mut [u8]) -> Result<()> {
        self.read_component_into(name, "data", out)
    }

    /// Fills the caller's buffer with any component; the length must match.
    pub fn read_component_into(&self, name: &str, role: &str, out: &mut [u8]) -> Result<()> {
        self.read_many(vec![(name, role, out)], None)
    }

    /// Fills many buffers: sorted by position, in parallel, with large requests.
    /// Everything is checked before the first byte is written.
    pub fn read_many(
        &self,
        requests: Vec<(&str, &str, &mut [u8])>,
        observer: Option<&dyn Observer>,
    ) -> Result<()> {
        let mut jobs = Vec::with_capacity(requests.len());
        let mut charge = Charge::default();
        for (name, role, out) in requests {
            let component = self.component(name, role)?;
            if component.len != out.len() as u64 {
                let message =
                    format!("the buffer has {} bytes, the component {role:?} {}", out.len(), component.len);
                return Err(self.at(name, Error::invalid(message)));
            }
            self.check_limit(name, component.len)?;
            self.touch(component);
            charge.add(component, &(0..component.len));
            self.cut(name, component, out, &mut jobs);
        }
        charge.check(self)?;
        jobs.sort_by_key(|job| job.component.extent().map(|extent| (extent, job.skip)));
        let (remote, local): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|job| self.is_remote(job.component));
        self.run_all(local, observer)?;
        self.read_remote(remote, observer)
    }

    /// Fills buffers with stored bytes as they are, without decoding and without comparing digests:
    /// the storages that several tensors are views of. Each length must match.
    pub fn read_stored(
        &self,
        requests: Vec<(Extent, &mut [u8])>,
        observer: Option<&dyn Observer>,
    ) -> Result<()> {
        let mut pieces = Vec::new();
        for (extent, out) in requests {
            if extent.len != out.len() as u64 {
                let message = format!("the buffer has {} bytes, the storage {}", out.len(), extent.len);
                return Err(Error::invalid(message).in_file(self.catalog.sources.label(extent.source)));
            }
            pieces.extend(out.chunks_mut(PIECE).enumerate().map(|(index, out)| (extent, index * PIECE, out)));
        }
        parallel::for_each(self.options.threads, pieces, |(extent, skip, out)| {
            let bytes = out.len() as u64;
            self.catalog.sources.read(extent, skip as u64, out)?;
            advance(observer, bytes)
        })
    }

    /// Reads and decodes each on its own, on all threads.
    pub(crate) fn run_all(&self, jobs: Vec<Job<'_>>, observer: Option<&dyn Observer>) -> Result<()> {
        // A decoder may use its share of the threads: with few or very unequal tensors
        // that is more than one.
        let total = jobs.iter().map(|job| job.out.len() as u64).sum();
        let threads = parallel::resolve(self.options.threads);
        let work = |job: Job<'_>, mode| {
            let bytes = job.out.len() as u64;
            let inner = parallel::share(threads, bytes, total);
            self.run(job.component, job.skip, job.out, job.checksum.as_deref(), mode, inner)
                .map_err(|error| self.at(job.name, error))?;
            advance(observer, bytes)
        };
        if threads > 1 && self.is_first_read(&jobs) {
            return self.read_first(threads, jobs, work);
        }
        parallel::for_each(threads, jobs, |job| work(job, ReadMode::Cached))
    }

    /// Cuts a request into pieces that threads can share.
    fn cut<'a>(
        &'a self,
        name: &'a str,
        component: &'a Component,
        out: &'a mut [u8],
        jobs: &mut Vec<Job<'a>>,
    ) {
        let plain = matches!(component.storage, Storage::Plain(_));
        let digest = self.digest(component);
        // CRC-32C values of pieces combine to that of the whole; other digests are sequential.
        let combines = matches!(digest, None | Some(Digest::Crc32c(_)));
        // Ranges of remote files are planned where requests are made (`remote::coalesce`).
        if !plain || !combines || out.len() <= PIECE || self.is_remote(component) {
            jobs.push(Job { name, component, skip: 0, out, checksum: None });
            return;
        }
        let pieces = out.len().div_ceil(PIECE);
        let checksum = digest.map(|digest| Arc::new(PieceChecksums::new(digest.clone(), pieces)));
        for (index, out) in out.chunks_mut(PIECE).enumerate() {
            jobs.push(Job { name, component, skip: (index * PIECE) as u64, out, checksum: checksum.clone() });
        }
    }

    /// The digest to compare on an owned read, if there is one and it is wanted.
    pub(crate) fn digest<'a>(&self, component: &'a Component) -> Option<&'a Digest> {
        component.digest.as_ref().filter(|digest| self.options.verify && digest.hasher().is_some())
    }

    fn run(
        &self,
        component: &Component,
        skip: u64,
        out: &mut [u8],
        checksum: Option<&PieceChecksums>,
        mode: ReadMode,
        threads: usize,
    ) -> Result<()> {
        let sources = &self.catalog.sources;
        let range = skip..skip + out.len() as u64;
        match (&component.storage, self.digest(component)) {
            (Storage::Plain(extent), None) => sources.read_by(mode, *extent, skip, out),
            (storage, None) => storage.read(sources, range, out, threads),
            (Storage::Plain(extent), Some(digest)) => {
                // Hash each piece while it is in the processor's cache; devices want large ones.
                let step = if mode == ReadMode::Direct { PIECE } else { HASHED };
                let mut hasher = hasher(digest);
                for (index, piece) in out.chunks_mut(step).enumerate() {
                    sources.read_by(mode, *extent, skip + (index * step) as u64, piece)?;
                    hasher.update(piece);
                }
                match checksum {
                    Some(pieces) => pieces.add(skip, out.len() as u64, hasher),
                    None => compare(hasher, digest),
                }
            }
            (storage, Some(digest)) => {
                // One read for the checksum and the decoder, where it takes the stored bytes.
                if let Storage::Encoded(decoder) = storage
                    && let (Some(extent), Some(stored)) = (decoder.extent(), decoder.stored())
                    && sources.get(extent.source)?.remote().is_none()
                {
                    return sources.with_whole(extent, |bytes| {
                        let mut hasher = hasher(digest);
                        hasher.update(bytes);
                        compare(hasher, digest)?;
                        stored.decode_stored(bytes, range, out, threads)
                    });
                }
                self.hash_stored(component, digest)?;
                storage.read(sources, range, out, threads)
            }
        }
    }

    /// Rows `rows` of a dense tensor (its outermost dimension), reading only what
    /// they need. A digest covers whole tensors, so it is not compared here.
    pub fn read_rows(&self, name: &str, rows: Range<u64>) -> Result<Vec<u8>> {
        let range = self.row_bytes(name, rows)?;
        let len = range.end - range.start;
        self.check_range_limits(name, range.clone())?;
        let mut bytes = zeroed_vec::<u8>(len).map_err(|error| self.at(name, error))?;
        self.read_range_into(name, range, &mut bytes)?;
        Ok(bytes)
    }

    /// Fills `out` with bytes `range` of a dense tensor's decoded data.
    pub fn read_range_into(&self, name: &str, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        // Callers of this have threads of their own: more are worth it for much work only.
        let threads = parallel::resolve(self.options.threads).min(1 + out.len() / WORTH_A_THREAD);
        self.read_range_with(name, range, out, threads)
    }

    /// The same on at most `threads` threads.
    pub fn read_range_with(
        &self,
        name: &str,
        range: Range<u64>,
        out: &mut [u8],
        threads: usize,
    ) -> Result<()> {
        let component = self.component(name, "data")?;
        let checked = check_range(component.len, range.start, range.end.wrapping_sub(range.start));
        if checked.is_err() || range.end - range.start != out.len() as u64 {
            let message =
                format!("bytes {range:?} of {} do not fill a buffer of {} bytes", component.len, out.len());
            return Err(self.at(name, Error::invalid(message)));
        }
        self.check_range_limits(name, range.clone())?;
        component
            .storage
            .read(&self.catalog.sources, range, out, threads)
            .map_err(|error| self.at(name, error))
    }

    /// The byte range of some rows of a dense tensor.
    pub fn row_bytes(&self, name: &str, rows: Range<u64>) -> Result<Range<u64>> {
        let object = self.get(name)?;
        let component = self.component(name, "data")?;
        let Some((&count, inner)) = object.shape.split_first() else {
            return Err(self.at(name, Error::invalid("a scalar has no rows")));
        };
        if rows.start > rows.end || rows.end > count {
            return Err(self.at(name, Error::invalid(format!("rows {rows:?} of {count} do not exist"))));
        }
        // The whole tensor's size was checked against its length, so no part of it overflows.
        let row_bits = inner.iter().product::<u64>() * u64::from(component.dtype.bits());
        let (start, end) = (rows.start * row_bits, rows.end * row_bits);
        let last = rows.end == count;
        if start % 8 != 0 || (end % 8 != 0 && !last) {
            return Err(self.at(
                name,
                Error::unsupported(format!(
                    "rows {rows:?} of {} do not start at whole bytes",
                    component.dtype
                )),
            ));
        }
        Ok(start / 8..end.div_ceil(8))
    }

    /// A tensor with its bytes: borrowed where they can be viewed, decoded where not.
    pub fn read_object(&self, name: &str) -> Result<Tensor<'_>> {
        self.object_with(name, |role, component| match self.try_view(component) {
            Ok(bytes) => Ok(Cow::Borrowed(bytes)),
            Err(_) => self.read_component(name, role).map(Cow::Owned),
        })
    }

    /// Like [`read_object`](Reader::read_object), with digests compared if this reader compares them.
    pub fn read_checked(&self, name: &str) -> Result<Tensor<'_>> {
        let object = self.get(name)?;
        // Reading compares as well, and what is remote should come once.
        if object.components.iter().any(|(_, component)| self.is_remote(component)) {
            return self.read_owned(name);
        }
        if self.options.verify {
            self.verify(name)?;
        }
        self.read_object(name)
    }

    /// A tensor with its own copy of the bytes, digests compared.
    pub fn read_owned(&self, name: &str) -> Result<Tensor<'static>> {
        self.object_with(name, |role, _| self.read_component(name, role).map(Cow::Owned))
    }

    fn object_with<'a, 'b>(
        &'a self,
        name: &str,
        mut bytes: impl FnMut(&Role, &'a Component) -> Result<Cow<'b, [u8]>>,
    ) -> Result<Tensor<'b>> {
        let object = self.get(name)?;
        self.check_limits([name])?;
        let components = object.components.iter().map(|(role, component)| {
            let array = Array {
                dtype: component.dtype,
                unknown_type: component.unknown_type.clone(),
                bytes: bytes(role, component)?,
            };
            Ok((role.clone(), array))
        });
        Ok(Tensor {
            shape: object.shape.clone(),
            layout: object.layout.clone(),
            components: components.collect::<Result<_>>()?,
            attributes: object.attributes.clone(),
        })
    }

    /// Compares a tensor's digests with its bytes as stored; an encoding that has checksums
    /// of its own is checked by them.
    pub fn verify(&self, name: &str) -> Result<Verification> {
        self.check_verification(std::iter::once((name, self.get(name)?)))?;
        self.verify_object(name)
    }

    /// Refuses checks by decoding that would decode more than the limits allow.
    fn check_verification<'a>(&self, objects: impl Iterator<Item = (&'a str, &'a Object)>) -> Result<()> {
        let mut charge = Charge::default();
        for (_, object) in objects {
            let decoded = object.components.iter().filter(|(_, component)| {
                matches!(component.storage, Storage::Encoded(_))
                    && component.digest.as_ref().is_none_or(|digest| digest.hasher().is_none())
            });
            for (_, component) in decoded {
                self.touch(component);
                charge.add(component, &(0..component.len));
            }
        }
        charge.check(self)
    }

    fn verify_object(&self, name: &str) -> Result<Verification> {
        let mut verification = Verification::Checked;
        for (_, component) in &self.get(name)?.components {
            match component.digest.as_ref().filter(|digest| digest.hasher().is_some()) {
                Some(digest) => self.hash_stored(component, digest).map_err(|error| self.at(name, error))?,
                None => match self.check_itself(component) {
                    Some(checked) => checked.map_err(|error| self.at(name, error))?,
                    None => verification = Verification::NoDigest,
                },
            }
        }
        Ok(verification)
    }

    /// Compares the digests of tensors that are about to be used where they lie, as a read into
    /// other memory does: those of raw components, of files in which digests are there on request.
    /// (The checksums of zip archives are always there, and are compared when a member is read.)
    pub fn verify_in_place(&self, names: &[&str]) -> Result<()> {
        if !self.options.verify || self.format() != Format::Zt {
            return Ok(());
        }
        let has_digest = |component: &Component| {
            let known = component.digest.as_ref().is_some_and(|digest| digest.hasher().is_some());
            // Remote tensors are never viewed: reading them compares their digests.
            let viewed = matches!(component.storage, Storage::Plain(_) | Storage::Inline(_));
            known && viewed && !self.is_remote(component)
        };
        let mut wanted = Vec::new();
        for &name in names {
            let components = self.get(name)?.components.iter();
            wanted.extend(components.filter(|(_, one)| has_digest(one)).map(|(_, one)| (name, one)));
        }
        parallel::for_each(self.options.threads, wanted, |(name, component)| match &component.digest {
            Some(digest) => self.hash_stored(component, digest).map_err(|error| self.at(name, error)),
            None => Ok(()),
        })
    }

    /// Compares the checksums that an encoding brings itself, if it does.
    fn check_itself(&self, component: &Component) -> Option<Result<()>> {
        match &component.storage {
            Storage::Encoded(decoder) => decoder.verify(&self.catalog.sources, 1),
            _ => None,
        }
    }

    /// Compares every digest in the file; how many tensors had one and how many had none.
    pub fn verify_all(&self, observer: Option<&dyn Observer>) -> Result<Summary> {
        self.check_verification(self.objects())?;
        let (checked, unchecked) =
            (std::sync::atomic::AtomicU64::new(0), std::sync::atomic::AtomicU64::new(0));
        parallel::for_each(self.options.threads, self.objects().collect(), |(name, object)| {
            let counter = match self.verify_object(name)? {
                Verification::Checked => &checked,
                Verification::NoDigest => &unchecked,
            };
            counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            advance(observer, object.stored_len())
        })?;
        Ok(Summary { checked: checked.into_inner(), unchecked: unchecked.into_inner() })
    }

    fn hash_stored(&self, component: &Component, digest: &Digest) -> Result<()> {
        let mut hasher = hasher(digest);
        match component.extent() {
            Some(extent) => self.catalog.sources.for_pieces(extent, 1, |piece| {
                hasher.update(piece);
                Ok(())
            })?,
            None => {
                if let Storage::Inline(bytes) = &component.storage {
                    hasher.update(bytes);
                }
            }
        }
        compare(hasher, digest)
    }
}

/// What [`Reader::verify_all`] found in a file without mismatches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Tensors all of whose digests agree.
    pub checked: u64,
    /// Tensors of which at least one component has no digest.
    pub unchecked: u64,
}

/// One piece of a batch read.
pub(crate) struct Job<'a> {
    pub(crate) name: &'a str,
    pub(crate) component: &'a Component,
    pub(crate) skip: u64,
    pub(crate) out: &'a mut [u8],
    /// Where the checksum of this piece is combined with those of the others.
    pub(crate) checksum: Option<Arc<PieceChecksums>>,
}

/// CRC-32C values of the pieces of one component, read by several threads: the last one to arrive
/// combines them and compares.
pub(crate) struct PieceChecksums {
    expected: Digest,
    pieces: usize,
    /// Offset, length and CRC-32C of each piece that was read.
    read: std::sync::Mutex<Vec<(u64, u64, u32)>>,
}

impl PieceChecksums {
    fn new(expected: Digest, pieces: usize) -> PieceChecksums {
        PieceChecksums { expected, pieces, read: std::sync::Mutex::new(Vec::with_capacity(pieces)) }
    }

    fn add(&self, offset: u64, len: u64, hasher: Hasher) -> Result<()> {
        let Hasher::Crc32c(crc) = hasher else {
            return Err(Error::invalid("only CRC-32C values of pieces combine"));
        };
        let mut read = self.read.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        read.push((offset, len, crc));
        if read.len() < self.pieces {
            return Ok(());
        }
        read.sort_unstable();
        let whole = read.iter().fold(0, |sum, &(_, len, crc)| crc32c_combine::combine(sum, crc, len));
        compare(Hasher::Crc32c(whole), &self.expected)
    }
}

pub(crate) fn hasher(digest: &Digest) -> Hasher {
    // Callers pass only digests that can be computed.
    digest.hasher().unwrap_or(Hasher::Crc32c(0))
}

pub(crate) fn compare(hasher: Hasher, expected: &Digest) -> Result<()> {
    let found = hasher.finish();
    match found == *expected {
        true => Ok(()),
        false => Err(Error::mismatch(format!(
            "the stored bytes have the digest {found}, the file says {expected}"
        ))),
    }
}
