//! The streaming writer of `.zt` files.

use std::collections::HashMap;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::options::{Compression, CreateOptions, WriteOptions, ZtVersion};
use super::sink::{NewFile, Plain, Sink};
use crate::catalog::{Catalog, Component, Extent, Layout, Object, Role, Shape, Storage, elements};
use crate::digest::{Checksum, Digest};
use crate::dtype::Element;
use crate::error::{Error, Result, quoted};
use crate::format::zt::{ALIGNMENT, MAGIC, manifest};
use crate::format::{Format, zt2};
use crate::progress::{Observer, advance};
use crate::remote;
use crate::source::Sources;
use crate::tensor::value::Value;
use crate::tensor::{Array, Tensor, check_coo, check_csr};
use crate::write::atomic::AtomicFile;
use crate::write::compress::Compressors;
use crate::write::destination::Destination;
use crate::write::vectored::LONGEST_PIECE;

/// Writes a `.zt` file from front to back, of version 1.2 unless [`CreateOptions`] say else. Peak memory is one tensor; where several are compressed,
/// one, or for each thread as many as have 32 MB.
///
/// Made by [`Writer::create`], the file appears under its name when
/// [`finish`](Writer::finish) returns; a writer that is dropped leaves nothing.
/// Made by [`Writer::append`], it adds to a file, which stays as it was until then.
pub struct Writer<'w> {
    pub(super) out: BufWriter<Box<dyn Sink + 'w>>,
    pub(super) position: u64,
    pub(crate) catalog: Catalog,
    pub(super) threads: usize,
    pub(super) compressors: Compressors,
    /// The file, for messages.
    label: Option<PathBuf>,
    /// A write failed, so that positions no longer mean anything.
    broken: bool,
    /// The tensor that is being streamed, and was not finished yet.
    streaming: Option<String>,
    pub(super) version: ZtVersion,
}

/// Small tensors are gathered in a buffer of this size; larger writes pass it by. (case: `constants.py`: halved or doubled
/// the same, 32 kB takes 1.2 to 2.1 times as long, 32 MB 1.3 to 1.9 times)
pub(super) const WRITE_BUFFER: usize = 1 << 20;

/// Blocks of [`WRITE_BUFFER`] bytes that are hashed and written at the same time. Together they stay in
/// the processor's cache. (structural: one filled, one hashed, one written)
const BLOCKS_IN_FLIGHT: usize = 3;

impl Writer<'static> {
    /// Starts a new file, which replaces an old one of that name only when finished.
    pub fn create(to: impl Into<Destination>) -> Result<Writer<'static>> {
        Self::create_with(to, &CreateOptions::default())
    }

    /// Like [`create`](Writer::create); `finish` then also waits until the disk has it all.
    pub fn create_durable(to: impl Into<Destination>) -> Result<Writer<'static>> {
        Self::create_with(to, &CreateOptions::default().durable(true))
    }

    /// Like [`create`](Writer::create), for a URL whose store has to be told how to reach it.
    pub fn create_remote(to: impl Into<Destination>, options: &remote::Options) -> Result<Writer<'static>> {
        Self::create_with(to, &CreateOptions::default().remote(options.clone()))
    }

    /// Like [`create`](Writer::create), with a version of the format and where to wait for the disk.
    ///
    /// ```
    /// use ztensor::{Writer, ZtVersion, write::CreateOptions};
    ///
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("model.zt");
    /// let mut writer = Writer::create_with(&path, &CreateOptions::default().version(ZtVersion::V2))?;
    /// writer.add("bias", &[3], &[1f32, 2.0, 3.0])?;
    /// writer.finish()?;
    /// assert_eq!(ztensor::open(&path)?.format(), ztensor::Format::Zt2);
    /// # Ok::<(), ztensor::Error>(())
    /// ```
    pub fn create_with(to: impl Into<Destination>, options: &CreateOptions) -> Result<Writer<'static>> {
        let to = to.into();
        let file = AtomicFile::create_with(&to, &options.remote)?;
        let sink = NewFile { file, durable: options.durable };
        let mut writer = Self::start(Box::new(sink), options.version)?;
        writer.label = Some(to.path().to_owned());
        Ok(writer)
    }
}

impl<'w> Writer<'w> {
    /// Writes to anything, such as a vector or a socket.
    pub fn new(out: impl Write + Send + 'w) -> Result<Writer<'w>> {
        Self::new_version(out, ZtVersion::V1)
    }

    /// Like [`new`](Writer::new), in a version of the format.
    pub fn new_version(out: impl Write + Send + 'w, version: ZtVersion) -> Result<Writer<'w>> {
        Self::start(Box::new(Plain(out)), version)
    }

    fn start(sink: Box<dyn Sink + 'w>, version: ZtVersion) -> Result<Writer<'w>> {
        let (format, magic) = match version {
            ZtVersion::V1 => (Format::Zt, MAGIC),
            ZtVersion::V2 => (Format::Zt2, zt2::MAGIC),
        };
        let mut writer = Self::resume(sink, 0, Catalog::new(format, Sources::default()), None);
        writer.version = version;
        writer.put(magic)?;
        Ok(writer)
    }

    /// A writer that goes on at `position` of a version 1.2 file that already holds `catalog`.
    pub(crate) fn resume(
        sink: Box<dyn Sink + 'w>,
        position: u64,
        catalog: Catalog,
        label: Option<PathBuf>,
    ) -> Writer<'w> {
        let out = BufWriter::with_capacity(WRITE_BUFFER, sink);
        Writer {
            out,
            position,
            catalog,
            threads: 0,
            compressors: Compressors::default(),
            label,
            broken: false,
            streaming: None,
            version: ZtVersion::V1,
        }
    }

    pub(super) fn version(&self) -> ZtVersion {
        self.version
    }

    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    /// The number of bytes so far.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// The folder of the file, if it is one of this machine.
    pub(super) fn folder(&self) -> Option<&Path> {
        let folder = self.label.as_deref().filter(|path| !remote::is_url(path))?.parent()?;
        Some(if folder.as_os_str().is_empty() { Path::new(".") } else { folder })
    }

    /// Starts a blob that comes piece by piece, with room for `len` bytes; returns its offset. Until
    /// [`end_stream`](Writer::end_stream) nothing else can be written.
    pub(super) fn start_stream(&mut self, name: &str, len: u64) -> Result<u64> {
        self.align()?;
        self.reserve(len)?;
        self.streaming = Some(name.to_owned());
        Ok(self.position)
    }

    /// Writes more of that blob.
    pub(super) fn put_streamed(&mut self, bytes: &[u8]) -> Result<()> {
        let name = self.streaming.take();
        let written = self.put(bytes);
        self.streaming = name;
        written
    }

    /// The blob is complete.
    pub(super) fn end_stream(&mut self) {
        self.streaming = None;
    }

    /// Threads for compression; 0 is one per core. The bytes written do not depend on it.
    pub fn set_threads(&mut self, threads: usize) {
        self.threads = threads;
    }

    /// Sets an attribute of the whole file.
    pub fn set_attribute(&mut self, name: impl Into<String>, value: impl Into<Value>) {
        self.catalog.attributes.insert(name.into(), value.into());
    }

    /// Whether a tensor of that name was written, or was there before.
    pub fn contains(&self, name: &str) -> bool {
        self.catalog.objects.contains_key(name)
    }

    /// Writes a dense tensor as it is.
    pub fn add<T: Element>(&mut self, name: &str, shape: &[u64], data: &[T]) -> Result<()> {
        self.add_with(name, shape, data).write()
    }

    /// Writes a dense tensor with compression or a checksum.
    pub fn add_with<'a, T: Element>(
        &'a mut self,
        name: &'a str,
        shape: &[u64],
        data: &'a [T],
    ) -> Add<'a, 'w> {
        Add {
            writer: self,
            name,
            shape: shape.into(),
            array: Array::from_slice(data),
            options: WriteOptions::default(),
        }
    }

    /// Writes a sparse matrix by rows; indices of any integer type are stored as `u64`.
    pub fn add_csr<T: Element, I: Copy + TryInto<u64>, P: Copy + TryInto<u64>>(
        &mut self,
        name: &str,
        shape: [u64; 2],
        values: &[T],
        indices: &[I],
        indptr: &[P],
    ) -> Result<()> {
        let invalid = |error: Error| Error::invalid(error.to_string()).in_tensor(name);
        let (indices, indptr) = (unsigned(indices).map_err(invalid)?, unsigned(indptr).map_err(invalid)?);
        check_csr(shape, values.len() as u64, &indices, &indptr).map_err(invalid)?;
        let components = [
            (Role::Borrowed("values"), Array::from_slice(values)),
            (Role::Borrowed("indices"), Array::from_slice(&indices)),
            (Role::Borrowed("indptr"), Array::from_slice(&indptr)),
        ];
        let tensor = Tensor::new(&shape[..], Layout::SparseCsr, components, None)?;
        self.write_object(name, &tensor)
    }

    /// Writes a sparse tensor by coordinates: all of dimension 0 first, then all of dimension 1, …
    pub fn add_coo<T: Element, I: Copy + TryInto<u64>>(
        &mut self,
        name: &str,
        shape: &[u64],
        values: &[T],
        coords: &[I],
    ) -> Result<()> {
        let invalid = |error: Error| Error::invalid(error.to_string()).in_tensor(name);
        let coords = unsigned(coords).map_err(invalid)?;
        check_coo(shape, values.len() as u64, &coords).map_err(invalid)?;
        let components = [
            (Role::Borrowed("values"), Array::from_slice(values)),
            (Role::Borrowed("coords"), Array::from_slice(&coords)),
        ];
        let tensor = Tensor::new(shape, Layout::SparseCoo, components, None)?;
        self.write_object(name, &tensor)
    }

    /// Writes a tensor of any layout as it is.
    pub fn write_object(&mut self, name: &str, tensor: &Tensor<'_>) -> Result<()> {
        self.write_object_with(name, tensor, WriteOptions::default())
    }

    /// Writes a tensor of any layout with compression or a checksum.
    pub fn write_object_with(
        &mut self,
        name: &str,
        tensor: &Tensor<'_>,
        options: WriteOptions,
    ) -> Result<()> {
        self.write_many(&[(name, tensor)], options)
    }

    /// Gives a tensor that was already written a second name; its bytes are stored once.
    pub fn tie(&mut self, name: &str, existing: &str) -> Result<()> {
        if self.contains(name) {
            return Err(duplicate(name));
        }
        let object = self.catalog.objects.get(existing).cloned().ok_or_else(|| {
            Error::not_found(format!(
                "{} cannot be tied to {}, which was not written",
                quoted(name),
                quoted(existing)
            ))
        })?;
        self.catalog.insert(name, object)
    }

    /// Like [`tie`](Writer::tie), for a dense tensor whose second name stands for another shape
    /// of the same elements.
    pub fn tie_shaped(&mut self, name: &str, existing: &str, shape: &[u64]) -> Result<()> {
        self.tie(name, existing)?;
        let Some(tied) = self.catalog.objects.get_mut(name) else { return Ok(()) };
        if *tied.shape == *shape {
            return Ok(());
        }
        if tied.layout != Layout::Dense || elements(shape) != tied.elements() {
            let message =
                format!("{:?} is not another shape of the dense tensor {}", shape, quoted(existing));
            self.catalog.objects.shift_remove(name);
            return Err(Error::invalid(message).in_tensor(name));
        }
        tied.shape = shape.into();
        Ok(())
    }

    /// Lists the tensors in the order of `names`; those not named stay in front.
    pub fn reorder<'n>(&mut self, names: impl IntoIterator<Item = &'n str>) {
        let order: HashMap<&str, usize> = names.into_iter().zip(1..).collect();
        self.catalog.objects.sort_by_cached_key(|name, _| order.get(&**name).copied());
    }

    /// Writes the manifest and the footer, and returns the size of the file.
    pub fn finish(mut self) -> Result<u64> {
        let tail = match self.version {
            ZtVersion::V1 => manifest::tail(&self.catalog, self.position),
            ZtVersion::V2 => self.align().and_then(|()| zt2::tail_of(&self.catalog, self.position)),
        };
        let tail = tail.map_err(|error| self.name_file(error))?;
        let (body, magic) = tail.split_at(tail.len() - MAGIC.len());
        self.put(body)?;
        self.flush()?;
        self.out.get_mut().seal()?;
        self.put(magic)?;
        self.flush()?;
        // The buffer is empty, so there is nothing that could fail.
        let sink = self.out.into_inner().map_err(|error| Error::io("cannot write", error.into_error()))?;
        sink.finish()?;
        Ok(self.position)
    }

    /// Writes one blob and says where it is.
    pub(super) fn write_component(
        &mut self,
        array: &Array<'_>,
        encoded: Option<&[u8]>,
        options: WriteOptions,
        observer: Option<&dyn Observer>,
    ) -> Result<Component> {
        let len = array.bytes.len() as u64;
        let blob = encoded.unwrap_or(&array.bytes);
        let (extent, digest) = self.write_blob(blob, options.checksum, observer)?;
        // Progress counts what the tensors hold, not what compression left of it.
        advance(observer, len.saturating_sub(extent.len))?;
        let storage = match encoded {
            Some(_) => manifest::encoded(options.compression.encoding(), extent, len)?,
            None => Storage::Plain(extent),
        };
        let mut component = Component::new(array.dtype, len, storage);
        component.unknown_type = array.unknown_type.clone();
        component.digest = digest;
        Ok(component)
    }

    /// Writes bytes at the next place where a blob may start.
    pub(crate) fn write_blob(
        &mut self,
        blob: &[u8],
        checksum: Checksum,
        observer: Option<&dyn Observer>,
    ) -> Result<(Extent, Option<Digest>)> {
        self.align()?;
        let extent = Extent::new(self.position, blob.len() as u64);
        let digest = match checksum.hasher() {
            None => {
                self.put_observed(blob, observer)?;
                None
            }
            Some(mut hasher) => {
                let hash = |block: &[u8]| {
                    hasher.update(block);
                    Ok(())
                };
                self.put_copied(blob, hash, observer)?;
                Some(hasher.finish())
            }
        };
        Ok((extent, digest))
    }

    /// Writes bytes that `each` block of is shown to, to hash it. Memory of callers may change meanwhile, so
    /// it is read once: each block is copied, and the copy is both hashed and written.
    pub(super) fn put_copied(
        &mut self,
        bytes: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<()> + Send,
        observer: Option<&dyn Observer>,
    ) -> Result<()> {
        if bytes.len() < 2 * WRITE_BUFFER {
            let mut block = Vec::with_capacity(bytes.len().min(WRITE_BUFFER));
            for part in bytes.chunks(WRITE_BUFFER) {
                block.clear();
                block.extend_from_slice(part);
                each(&block)?;
                self.put_observed(&block, observer)?;
            }
            return Ok(());
        }
        // Hashing and writing take about as long: do both at once. Blocks go round between this
        // thread, which fills and writes them, and the one that hashes them.
        std::thread::scope(|scope| {
            let (filled, to_hash) = std::sync::mpsc::channel::<Arc<Vec<u8>>>();
            let (hashed, free) = std::sync::mpsc::channel::<Arc<Vec<u8>>>();
            for _ in 0..BLOCKS_IN_FLIGHT {
                let _ = hashed.send(Arc::new(Vec::with_capacity(WRITE_BUFFER)));
            }
            let hashing = scope.spawn(move || {
                for block in to_hash {
                    each(&block)?;
                    let _ = hashed.send(block); // the last blocks are not waited for
                }
                Ok(())
            });
            let mut writing = Ok(());
            for part in bytes.chunks(WRITE_BUFFER) {
                let Ok(mut block) = free.recv() else { break }; // the other thread failed
                let copy = Arc::make_mut(&mut block);
                copy.clear();
                copy.extend_from_slice(part);
                if filled.send(Arc::clone(&block)).is_err() {
                    break;
                }
                writing = self.put_observed(&block, observer);
                if writing.is_err() {
                    break;
                }
            }
            drop(filled);
            let hashing = hashing.join().map_err(|_| Error::invalid("the hashing thread failed"))?;
            hashing.and(writing)
        })
    }

    /// Copies stored bytes of another file to the next place where a blob may start, as they are.
    /// `each` piece that was copied is shown, and may end the copying.
    pub(crate) fn copy_blob(
        &mut self,
        sources: &Sources,
        from: Extent,
        mut each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<Extent> {
        self.align()?;
        self.reserve(from.len)?;
        let to = Extent::new(self.position, from.len);
        sources.for_pieces(from, self.threads, |piece| {
            self.put(piece)?;
            each(piece)
        })?;
        Ok(to)
    }

    /// Records an object whose bytes were written.
    pub(crate) fn insert(&mut self, name: &str, object: Object) -> Result<()> {
        if self.contains(name) {
            return Err(duplicate(name));
        }
        self.catalog.insert(name, object)
    }

    /// Fills up with zeros to the next place where a blob may start.
    pub(super) fn align(&mut self) -> Result<()> {
        self.put(self.padding())
    }

    /// The zeros that are missing to the next place where a blob may start.
    pub(super) fn padding(&self) -> &'static [u8] {
        static ZEROS: [u8; zt2::MIN_ALIGNMENT as usize] = [0; zt2::MIN_ALIGNMENT as usize];
        let alignment = match self.version {
            ZtVersion::V1 => ALIGNMENT,
            ZtVersion::V2 => zt2::MIN_ALIGNMENT,
        };
        let padding = self.position.next_multiple_of(alignment) - self.position;
        &ZEROS[..padding as usize]
    }

    pub(super) fn reserve(&mut self, len: u64) -> Result<()> {
        let reserved = self.out.get_mut().reserve(len);
        self.check(reserved)
    }

    fn put_observed(&mut self, bytes: &[u8], observer: Option<&dyn Observer>) -> Result<()> {
        for piece in bytes.chunks(LONGEST_PIECE) {
            self.put(piece)?;
            advance(observer, piece.len() as u64)?;
        }
        Ok(())
    }

    pub(super) fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.check_whole()?;
        let written = self.out.write_all(bytes);
        self.check(written)?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    pub(super) fn check_whole(&self) -> Result<()> {
        if let Some(name) = &self.streaming {
            let message = format!("the tensor {} is being streamed and was not finished", quoted(name));
            return Err(self.name_file(Error::invalid(message)));
        }
        match self.broken {
            false => Ok(()),
            true => {
                let error = Error::invalid("an earlier write failed, so this file cannot be finished");
                Err(self.name_file(error))
            }
        }
    }

    fn flush(&mut self) -> Result<()> {
        let flushed = self.out.flush();
        self.check(flushed)
    }

    /// Remembers that a write failed: part of it may have been written.
    pub(super) fn check<T>(&mut self, result: std::io::Result<T>) -> Result<T> {
        result.map_err(|error| {
            self.broken = true;
            self.name_file(Error::io("cannot write", error))
        })
    }

    fn name_file(&self, error: Error) -> Error {
        match &self.label {
            Some(path) => error.in_file(path),
            None => error,
        }
    }
}

pub(crate) fn duplicate(name: &str) -> Error {
    Error::invalid(format!("a tensor named {} was already written: names must differ", quoted(name)))
}

/// Index arrays of any integer type, as the `u64` that files store.
fn unsigned<I: Copy + TryInto<u64>>(indices: &[I]) -> Result<Vec<u64>> {
    let unsigned = |&index: &I| index.try_into().map_err(|_| Error::invalid("an index is negative"));
    indices.iter().map(unsigned).collect()
}

/// A dense tensor about to be written.
#[must_use = "nothing is written until `write` is called"]
pub struct Add<'a, 'w> {
    writer: &'a mut Writer<'w>,
    name: &'a str,
    shape: Shape,
    array: Array<'a>,
    options: WriteOptions,
}

impl Add<'_, '_> {
    /// How its bytes are stored.
    pub fn compress(mut self, compression: Compression) -> Self {
        self.options.compression = compression;
        self
    }

    /// Which digest is stored with them.
    pub fn checksum(mut self, checksum: Checksum) -> Self {
        self.options.checksum = checksum;
        self
    }

    /// Writes it.
    pub fn write(self) -> Result<()> {
        let tensor = Tensor::new(self.shape, Layout::Dense, [(Role::Borrowed("data"), self.array)], None)
            .map_err(|error| error.in_tensor(self.name))?;
        self.writer.write_object_with(self.name, &tensor, self.options)
    }
}
