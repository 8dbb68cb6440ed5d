//! The reader: one door for looking at, reading and checking tensors of any format.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::verify::{PieceChecksums, compare, hasher, stored_decoder};
use super::{Charge, OpenOptions};
use crate::base::huge_pages::zeroed_vec;
use crate::base::parallel;
use crate::base::pool::BufferPool;
use crate::catalog::{Catalog, Component, DigestOf, Extent, Layout, Object, Role, Storage};
use crate::digest::{Digest, Hasher};
use crate::dtype::Element;
use crate::error::{Error, Result, quoted};
use crate::format::{Format, zt2};
use crate::progress::{Observer, advance};
use crate::source::{MemorySource, ReadMode, check_range};
use crate::suggest;
use crate::tensor::value::Attributes;
use crate::tensor::{Array, Tensor, check_type, typed_view};

/// An open tensor file of any format. Usable from many threads at once.
#[derive(Debug)]
pub struct Reader {
    catalog: Catalog,
    options: OpenOptions,
}

/// Reads are split into pieces of this size, so that threads share a large tensor. (case: the cold reads of
/// `docs/architecture.md`, where pieces of 1 to 16 MB are equally fast)
pub(super) const READ_PIECE: usize = 4 << 20;
/// The same of what is decoded: several threads then have frames of their own. (limit)
const DECODED_PIECE: u64 = 32 << 20;
/// What is hashed at a time. (structural: half of a second-level cache)
const HASHED: usize = 1 << 20;
/// Threads that fill pieces ahead of the one that takes them. (limit: as many pieces and one are held)
const FILLERS: usize = 3;

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

    /// The object of that name, if there is one: for names that may well be absent, since the error
    /// of [`get`](Self::get) costs a search for similar ones.
    pub fn find(&self, name: &str) -> Option<&Object> {
        self.catalog.objects.get(name)
    }

    /// The object of that name: shape, layout, components.
    pub fn get(&self, name: &str) -> Result<&Object> {
        self.find(name).ok_or_else(|| {
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

    /// Whether a journal beside the file said which part of it is good: an edit is under way, or
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
            pieces.extend(
                out.chunks_mut(READ_PIECE).enumerate().map(|(index, out)| (extent, index * READ_PIECE, out)),
            );
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
            return self.read_first(jobs, work, |bytes| advance(observer, bytes));
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
        // Ranges of remote files are planned where requests are made (`remote::coalesce`).
        if !self.is_cut(component) {
            jobs.push(Job { name, component, skip: 0, out, checksum: None });
            return;
        }
        let checksum = PieceChecksums::new(self.digest(component), component.len).map(Arc::new);
        for (index, out) in out.chunks_mut(READ_PIECE).enumerate() {
            jobs.push(Job {
                name,
                component,
                skip: (index * READ_PIECE) as u64,
                out,
                checksum: checksum.clone(),
            });
        }
    }

    /// Whether a component is read in pieces by several threads: raw, and without a digest that must be
    /// computed sequentially. (CRC-32C values of pieces combine to that of the whole.)
    fn is_cut(&self, component: &Component) -> bool {
        matches!(component.storage, Storage::Plain(_))
            && matches!(self.digest(component), None | Some(Digest::Crc32c(_)))
            && component.len > READ_PIECE as u64
            && !self.is_remote(component)
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
                let step = if mode == ReadMode::Direct { READ_PIECE } else { HASHED };
                let mut hasher = hasher(digest);
                for (index, piece) in out.chunks_mut(step).enumerate() {
                    sources.read_by(mode, *extent, skip + (index * step) as u64, piece)?;
                    hasher.update(piece);
                }
                match (checksum, &hasher) {
                    (Some(pieces), Hasher::Crc32c(crc)) => pieces.add(skip, out.len() as u64, *crc),
                    _ => compare(hasher, digest),
                }
            }
            (storage, Some(digest)) if component.digest_of == DigestOf::Decoded => {
                storage.read(sources, range, out, threads)?;
                let mut hasher = hasher(digest);
                hasher.update(out);
                compare(hasher, digest).map_err(|error| error.under("zt2.Digest"))
            }
            (storage, Some(digest)) => {
                if let Some((decoder, extent)) = stored_decoder(storage) {
                    let decode = |bytes: &[u8]| decoder.decode_stored(bytes, range, out, threads);
                    return self.with_verified(extent, digest, decode);
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

    /// The same as elements of a type, which must be the tensor's.
    pub fn read_rows_as<T: Element>(&self, name: &str, rows: Range<u64>) -> Result<Vec<T>> {
        check_type::<T>(self.component(name, "data")?.dtype).map_err(|error| self.at(name, error))?;
        let range = self.row_bytes(name, rows)?;
        self.check_range_limits(name, range.clone())?;
        let count = (range.end - range.start) / size_of::<T>() as u64;
        let mut elements = zeroed_vec::<T>(count).map_err(|error| self.at(name, error))?;
        self.read_range_into(name, range, bytemuck::cast_slice_mut(&mut elements))?;
        Ok(elements)
    }

    /// Fills `out` with bytes `range` of a dense tensor's decoded data.
    pub fn read_range_into(&self, name: &str, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        // Callers of this have threads of their own: more are worth it for much work only.
        let threads = parallel::resolve(self.options.threads).min(1 + out.len() / parallel::WORTH_A_THREAD);
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
            return Err(self.at(
                name,
                Error::invalid(format!("rows {rows:?} are outside the {count} rows of the tensor")),
            ));
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

    /// Whether a component is large, and any piece of it costs about as much as it holds: then
    /// [`read_pieces`](Reader::read_pieces) needs less memory and not more time. One that can be viewed and has
    /// no digest to compare needs no copy at all.
    pub fn has_pieces(&self, name: &str, role: &str) -> bool {
        let Ok(component) = self.component(name, role) else { return false };
        if self.digest(component).is_none() && self.try_view(component).is_ok() {
            return false;
        }
        let (len, step) = (component.len, piece_len(component));
        // A piece in the middle: the first ones are cheap even where there is no way in but the start.
        let middle = len / 2..(len / 2).saturating_add(step).min(len);
        len >= 2 * step && !self.is_remote(component) && component.storage.work(&middle) <= 4 * step
    }

    /// The first `most` decoded bytes of a component, or all of it. Its digest is not compared.
    pub fn read_start(&self, name: &str, role: &str, most: u64) -> Result<Vec<u8>> {
        let component = self.component(name, role)?;
        let len = component.len.min(most);
        let mut bytes = zeroed_vec::<u8>(len)?;
        let read = component.storage.read(&self.catalog.sources, 0..len, &mut bytes, 1);
        read.map_err(|error| self.at(name, error))?;
        Ok(bytes)
    }

    /// Calls `each` with all decoded bytes of a component, piece by piece and in order, while other threads
    /// read, decode and hash the next pieces. The last piece comes before its digest is compared.
    pub fn read_pieces(
        &self,
        name: &str,
        role: &str,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let object = self.get(name)?;
        let component = self.component(name, role)?;
        self.check_component(name, component)?;
        let at = |error: Error| self.at(name, error);
        self.check_apart(component).map_err(at)?;
        let sources = &self.catalog.sources;
        let digest = self.digest(component);
        let of_stored = component.digest_of == DigestOf::Stored && component.encoding() != "raw";
        if let (true, Some(digest), storage @ Storage::Encoded(_)) = (of_stored, digest, &component.storage) {
            // A large remote component is fetched twice, so that memory stays bounded.
            let fits = self.remote_share(component).is_none_or(|share| component.stored_len() <= share);
            if let Some((decoder, extent)) = stored_decoder(storage).filter(|_| fits) {
                let decoded = self.with_verified(extent, digest, |bytes| {
                    let decode = |range, out: &mut [u8], threads| {
                        decoder.decode_stored(bytes, range, out, threads).map_err(at)
                    };
                    Ok(self.for_pieces(component, decode, each))
                });
                return decoded.map_err(at)?;
            }
            self.hash_stored(component, digest).map_err(at)?;
        }
        let (dtype, known) = (component.dtype, component.unknown_type.is_none());
        let checked = self.format() == Format::Zt2 && known;
        let elements = object.elements().filter(|_| object.layout == Layout::Dense).unwrap_or(0);
        let read = |range: Range<u64>, out: &mut [u8], threads| {
            component.storage.read(sources, range.clone(), out, threads).map_err(at)?;
            if checked {
                zt2::layout::check_elements(dtype, out).map_err(at)?;
            }
            match checked && elements > 0 && range.end == component.len {
                true => zt2::layout::check_last(dtype, elements, out.last()).map_err(at),
                false => Ok(()),
            }
        };
        let Some(digest) = digest.filter(|_| !of_stored) else {
            return self.for_pieces(component, read, each);
        };
        if let Some(checksums) = PieceChecksums::new(Some(digest), component.len) {
            let read_and_hash = |range: Range<u64>, out: &mut [u8], threads| {
                read(range.clone(), out, threads)?;
                checksums.add(range.start, out.len() as u64, crc32c::crc32c(out)).map_err(at)
            };
            return self.for_pieces(component, read_and_hash, each);
        }
        // Other digests are sequential.
        let mut hasher = hasher(digest);
        self.for_pieces(component, read, &mut |piece| {
            hasher.update(piece);
            each(piece)
        })?;
        let rule = |error: Error| match component.digest_of {
            DigestOf::Decoded => error.under("zt2.Digest"),
            DigestOf::Stored => error,
        };
        compare(hasher, digest).map_err(|error| at(rule(error)))
    }

    /// Compares checksums that reading does not compare: those of the chunks of an assembled tensor, and
    /// digests that no bytes have.
    fn check_apart(&self, component: &Component) -> Result<()> {
        match &component.storage {
            _ if !self.options.verify => Ok(()),
            _ if component.digest_of == DigestOf::Decoded => zt2::check_digest(component),
            Storage::Encoded(decoder) if component.digest.is_none() && !decoder.decoding_verifies() => {
                let threads = parallel::resolve(self.options.threads);
                decoder.verify(&self.catalog.sources, threads).unwrap_or(Ok(()))
            }
            _ => Ok(()),
        }
    }

    /// Calls `each` with the bytes of a component in order, while threads `fill` the next pieces of it.
    fn for_pieces(
        &self,
        component: &Component,
        fill: impl Fn(Range<u64>, &mut [u8], usize) -> Result<()> + Sync,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let (len, step) = (component.len, piece_len(component));
        let threads = parallel::resolve(self.options.threads);
        let fillers = threads.min(FILLERS);
        let pool = BufferPool::default();
        let ranges = (0..len).step_by(step as usize).map(|start| start..len.min(start + step));
        let fill = |range: Range<u64>| {
            let len = range.end - range.start;
            let mut buffer = pool.take(len)?;
            fill(range, &mut buffer[..len as usize], threads / fillers)?;
            Ok((buffer, len as usize))
        };
        let items = ranges.map(|range| (range.end - range.start, range)).collect();
        parallel::in_order(fillers, items, (fillers as u64 + 1) * step, fill, |(buffer, len)| {
            each(&buffer[..len])?;
            pool.put(buffer);
            Ok(())
        })
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
        self.object_with(name, |role, component| {
            self.check_apart(component).map_err(|error| self.at(name, error))?;
            match self.try_view(component) {
                // Bytes that must be hashed are read once, by a copy.
                Ok(bytes) if self.digest(component).is_none() => Ok(Cow::Borrowed(bytes)),
                _ => self.read_component(name, role).map(Cow::Owned),
            }
        })
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
        let tensor = Tensor {
            shape: object.shape.clone(),
            layout: object.layout.clone(),
            components: components.collect::<Result<_>>()?,
            attributes: object.attributes.clone(),
        };
        if self.format() == Format::Zt2 {
            zt2::layout::check_data(&tensor).map_err(|error| self.at(name, error))?;
        }
        Ok(tensor)
    }
}

/// How much of a component is held at a time when it is read in pieces.
fn piece_len(component: &Component) -> u64 {
    match component.storage {
        Storage::Encoded(_) => DECODED_PIECE,
        Storage::Plain(_) | Storage::Inline(_) => READ_PIECE as u64,
    }
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
