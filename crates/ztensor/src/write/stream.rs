//! One tensor, piece by piece: its size does not matter, memory is bounded.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use zstd::stream::raw::{Encoder as ZstdEncoder, Operation};

use super::atomic;
use super::compress::{JOB, JOBS_ABOVE, LONG_WINDOWS_FROM, codec_options, not_encoded, use_jobs};
use super::options::{Compression, WriteOptions, ZtVersion};
use super::version2;
use super::writer::{Writer, duplicate};
use crate::base::{CACHE_BLOCK, parallel};
use crate::catalog::validate;
use crate::catalog::{Component, Extent, Object, Storage, elements};
use crate::decode::SeekableEncoder;
use crate::digest::Hasher;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::format::zt::manifest;
use crate::format::zt2::{self, CheckedContent};

/// Frames up to this length wait in memory for their headers, longer ones in an unnamed file. (limit)
const SPOOLED_IN_MEMORY: usize = 16 << 20;

/// A dense tensor being written to a [`Writer`] piece by piece: a [`Write`] that takes exactly the
/// bytes of the tensor, little-endian and in row-major order. [`finish`](TensorStream::finish) adds
/// the tensor to the file; a stream that is dropped before leaves a writer that cannot be finished,
/// so that no file with half a tensor appears.
///
/// Compressed bytes are stored compressed even where they did not get smaller, as the size is not
/// known before; in a file of version 2 they are a seekable zstd stream. A frame of the weight codec has its lengths in front: one of more than 16 MB waits
/// in an unnamed file beside the output until it is complete.
#[must_use = "the tensor is in the file when `finish` returns"]
pub struct TensorStream<'a, 'w> {
    writer: &'a mut Writer<'w>,
    pending: PendingTensor,
}

/// The state of a [`TensorStream`] without its writer, for callers that keep both.
pub struct PendingTensor {
    name: String,
    /// What it will be, with no bytes yet.
    object: Object,
    described: Component,
    options: WriteOptions,
    seen: u64,
    /// Where the blob starts; it ends where the writer is.
    start: u64,
    hash: Hash,
    encoder: Encoder,
}

/// What is hashed.
enum Hash {
    None,
    /// The bytes in the file.
    Stored(Hasher),
    /// The bytes that come, in files of version 2.
    Content(CheckedContent),
}

enum Encoder {
    Raw,
    Seekable(Box<SeekableEncoder>),
    Zstd(Box<ZstdState>),
    Z4ai(Box<z4ai::StreamEncoder>, Spool),
}

struct ZstdState {
    encoder: ZstdEncoder<'static>,
    buffer: Vec<u8>,
}

impl<'w> Writer<'w> {
    /// Starts a dense tensor whose elements come piece by piece.
    ///
    /// ```
    /// use std::io::Write;
    /// use ztensor::{Compression, DType, WriteOptions, Writer};
    ///
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("model.zt");
    /// let mut writer = Writer::create(&path)?;
    /// let options = WriteOptions { compression: Compression::Zstd(3), ..WriteOptions::default() };
    /// let mut stream = writer.stream("rows", &[1000, 4], DType::F32, options)?;
    /// for row in 0..1000 {
    ///     let numbers = [row as f32; 4];
    ///     stream.write_all(bytemuck::cast_slice(&numbers)).unwrap();
    /// }
    /// stream.finish()?;
    /// writer.finish()?;
    /// assert_eq!(ztensor::open(&path)?.read_as::<f32>("rows")?[4 * 77], 77.0);
    /// # Ok::<(), ztensor::Error>(())
    /// ```
    pub fn stream(
        &mut self,
        name: &str,
        shape: &[u64],
        dtype: DType,
        options: WriteOptions,
    ) -> Result<TensorStream<'_, 'w>> {
        let pending = PendingTensor::start(self, name, shape, dtype, options)?;
        Ok(TensorStream { writer: self, pending })
    }
}

impl TensorStream<'_, '_> {
    /// Bytes that are still missing.
    pub fn remaining(&self) -> u64 {
        self.pending.remaining()
    }

    /// Takes the next bytes: like [`Write::write_all`], with the library's errors.
    pub fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.pending.push(self.writer, bytes)
    }

    /// Ends the tensor, all of whose bytes must have come.
    pub fn finish(self) -> Result<()> {
        self.pending.finish(self.writer)
    }
}

impl Write for TensorStream<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.push(bytes).map_err(std::io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl std::fmt::Debug for PendingTensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PendingTensor")
            .field("name", &self.name)
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}

impl PendingTensor {
    /// Starts a tensor; until it is finished, nothing else can be written.
    pub fn start(
        writer: &mut Writer<'_>,
        name: &str,
        shape: &[u64],
        dtype: DType,
        options: WriteOptions,
    ) -> Result<PendingTensor> {
        options.compression.check()?;
        if writer.contains(name) {
            return Err(duplicate(name));
        }
        let len = elements(shape).and_then(|count| dtype.byte_len(count));
        let len =
            len.ok_or_else(|| Error::invalid(format!("the shape {shape:?} describes more bytes than 2^64")))?;
        let described = Component::plain(dtype, Extent::new(0, len));
        let object = Object::dense(shape, described.clone());
        validate::object(&object).map_err(|error| Error::invalid(error.to_string()).in_tensor(name))?;
        let hash = match writer.version() {
            ZtVersion::V1 => options.checksum.hasher().map_or(Hash::None, Hash::Stored),
            ZtVersion::V2 => {
                zt2::check_description(name, &object)?;
                version2::zstd_level(options.compression)?;
                let hasher = version2::hasher(options.checksum)?;
                Hash::Content(CheckedContent::of(&object, &described, hasher))
            }
        };
        let encoder = match options.compression {
            // What has no bytes gets no frame.
            _ if len == 0 => Encoder::Raw,
            Compression::None => Encoder::Raw,
            Compression::Zstd(level) if writer.version() == ZtVersion::V2 => {
                Encoder::Seekable(Box::new(SeekableEncoder::new(level, writer.threads())))
            }
            Compression::Zstd(level) => {
                Encoder::Zstd(Box::new(ZstdState::new(level, len, writer.threads())?))
            }
            Compression::Z4ai(effort) => {
                let options = codec_options(dtype, shape, len, effort, writer.threads());
                let encoder = z4ai::StreamEncoder::new(&options, Some(len)).map_err(not_encoded)?;
                Encoder::Z4ai(Box::new(encoder), Spool::new(writer.folder()))
            }
        };
        let start = writer.start_stream(name, if matches!(encoder, Encoder::Raw) { len } else { 0 })?;
        let name = name.to_owned();
        Ok(PendingTensor { name, object, described, options, seen: 0, start, hash, encoder })
    }

    /// Bytes that are still missing.
    pub fn remaining(&self) -> u64 {
        self.described.len - self.seen
    }

    /// Takes the next bytes.
    pub fn push(&mut self, writer: &mut Writer<'_>, bytes: &[u8]) -> Result<()> {
        if bytes.len() as u64 > self.remaining() {
            let message =
                format!("{} bytes were written where {} are missing", bytes.len(), self.remaining());
            return Err(Error::invalid(message).in_tensor(&*self.name));
        }
        // Memory of callers is read once: what is checked, hashed and written is a copy of it.
        let mut block = Vec::with_capacity(bytes.len().min(CACHE_BLOCK));
        for piece in bytes.chunks(CACHE_BLOCK) {
            block.clear();
            block.extend_from_slice(piece);
            self.push_block(writer, &block).map_err(|error| error.in_tensor(&*self.name))?;
        }
        Ok(())
    }

    fn push_block(&mut self, writer: &mut Writer<'_>, bytes: &[u8]) -> Result<()> {
        self.described.dtype.check_values(bytes)?;
        let hash = &mut self.hash;
        if let Hash::Content(content) = hash {
            content.take(bytes)?;
        }
        self.seen += bytes.len() as u64;
        match &mut self.encoder {
            Encoder::Raw => put(writer, hash, bytes),
            Encoder::Seekable(encoder) => encoder.push(bytes, |encoded| put(writer, hash, encoded)),
            Encoder::Zstd(state) => state.push(bytes, |encoded| put(writer, hash, encoded)),
            Encoder::Z4ai(encoder, spool) => {
                encoder.write(bytes, |payload| spool.put(payload)).map_err(Failed::into_error)
            }
        }
    }

    /// Ends the tensor and adds it to the file.
    pub fn finish(mut self, writer: &mut Writer<'_>) -> Result<()> {
        if self.remaining() > 0 {
            let message = format!("{} bytes of {} are missing", self.remaining(), self.described.len);
            return Err(Error::invalid(message).in_tensor(&*self.name));
        }
        let hash = &mut self.hash;
        let raw = matches!(self.encoder, Encoder::Raw);
        match self.encoder {
            Encoder::Raw => {}
            Encoder::Seekable(encoder) => {
                encoder.finish(|encoded| put(writer, hash, encoded))?;
            }
            Encoder::Zstd(mut state) => state.finish(|encoded| put(writer, hash, encoded))?,
            Encoder::Z4ai(encoder, mut spool) => {
                let ends = encoder.finish(|payload| spool.put(payload)).map_err(Failed::into_error)?;
                put(writer, hash, &ends.header)?;
                spool.for_pieces(|piece| put(writer, hash, piece))?;
                put(writer, hash, &ends.index)?;
            }
        }
        let (described, extent) = (self.described, Extent::new(self.start, writer.position() - self.start));
        let component = match self.hash {
            Hash::Content(content) => {
                let digest = content.finish().map_err(|error| error.in_tensor(&*self.name))?;
                version2::component(&described, !raw, extent, digest)
            }
            hash => {
                let storage = match raw {
                    true => Storage::Plain(extent),
                    false => manifest::encoded(self.options.compression.encoding(), extent, described.len)?,
                };
                let mut component = Component::new(described.dtype, described.len, storage);
                component.digest = match hash {
                    Hash::Stored(hasher) => Some(hasher.finish()),
                    Hash::None | Hash::Content(_) => None,
                };
                component
            }
        };
        writer.end_stream();
        writer.insert(&self.name, Object::dense(self.object.shape, component))
    }
}

/// Writes stored bytes, and hashes them if their digest is one of stored bytes.
fn put(writer: &mut Writer<'_>, hash: &mut Hash, bytes: &[u8]) -> Result<()> {
    if let Hash::Stored(hasher) = hash {
        hasher.update(bytes);
    }
    writer.put_streamed(bytes)
}

impl ZstdState {
    fn new(level: i32, len: u64, threads: usize) -> Result<ZstdState> {
        let mut encoder = ZstdEncoder::new(level).map_err(failed)?;
        encoder.set_pledged_src_size(Some(len)).map_err(failed)?;
        // By the size alone, so that the bytes do not depend on the number of threads.
        if len > JOBS_ABOVE as u64 {
            let workers = u32::try_from(parallel::resolve(threads)).unwrap_or(1);
            let job = if level < LONG_WINDOWS_FROM { JOB } else { 0 };
            use_jobs(workers as usize, job, |parameter| encoder.set_parameter(parameter)).map_err(failed)?;
        }
        Ok(ZstdState { encoder, buffer: vec![0; CACHE_BLOCK] })
    }

    fn push(&mut self, mut bytes: &[u8], mut put: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        while !bytes.is_empty() {
            let done = self.encoder.run_on_buffers(bytes, &mut self.buffer).map_err(failed)?;
            bytes = &bytes[done.bytes_read..];
            put(&self.buffer[..done.bytes_written])?;
        }
        Ok(())
    }

    fn finish(&mut self, mut put: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        loop {
            let mut out = zstd::zstd_safe::OutBuffer::around(&mut self.buffer[..]);
            let left = self.encoder.finish(&mut out, true).map_err(failed)?;
            let written = out.pos();
            put(&self.buffer[..written])?;
            if left == 0 {
                return Ok(());
            }
        }
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::io("zstd failed", error)
}

/// An error of the codec, or of this library, out of a call of the codec.
enum Failed {
    Codec(z4ai::Error),
    Here(Error),
}

impl From<z4ai::Error> for Failed {
    fn from(error: z4ai::Error) -> Failed {
        Failed::Codec(error)
    }
}

impl Failed {
    fn into_error(self) -> Error {
        match self {
            Failed::Codec(error) => not_encoded(error),
            Failed::Here(error) => error,
        }
    }
}

/// Bytes that are read again when all are there: in memory as long as they are few, then in a file
/// without a name, which is gone when this is, or when the process ends.
struct Spool {
    folder: Option<std::path::PathBuf>,
    memory: Vec<u8>,
    file: Option<File>,
}

impl Spool {
    fn new(folder: Option<&Path>) -> Spool {
        Spool { folder: folder.map(Path::to_owned), memory: Vec::new(), file: None }
    }

    fn put(&mut self, bytes: &[u8]) -> std::result::Result<(), Failed> {
        let failed = |error| Failed::Here(Error::io("cannot write a temporary file", error));
        if self.file.is_none() && self.memory.len() + bytes.len() <= SPOOLED_IN_MEMORY {
            self.memory.extend_from_slice(bytes);
            return Ok(());
        }
        if self.file.is_none() {
            let mut file = atomic::unnamed(self.folder.as_deref()).map_err(failed)?;
            file.write_all(&self.memory).map_err(failed)?;
            self.memory = Vec::new();
            self.file = Some(file);
        }
        match &mut self.file {
            Some(file) => file.write_all(bytes).map_err(failed),
            None => Ok(()),
        }
    }

    fn for_pieces(&mut self, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let failed = |error| Error::io("cannot read a temporary file", error);
        let Some(file) = &mut self.file else { return each(&self.memory) };
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let mut piece = vec![0; CACHE_BLOCK * 4];
        loop {
            match file.read(&mut piece).map_err(failed)? {
                0 => return Ok(()),
                read => each(&piece[..read])?,
            }
        }
    }
}

/// A frame of the weight codec from one stream to another, in bounded memory. Returns the bytes of
/// content and of the frame.
///
/// The frame is that of [`z4ai::StreamEncoder`].
pub fn compress_stream(
    from: &mut dyn Read,
    to: &mut dyn Write,
    options: &z4ai::Options,
) -> Result<(u64, u64)> {
    let mut encoder = z4ai::StreamEncoder::new(options, None).map_err(not_encoded)?;
    let mut spool = Spool::new(None);
    let mut piece = vec![0; CACHE_BLOCK * 4];
    let mut stored = 0u64;
    let mut keep = |spool: &mut Spool, payload: &[u8]| {
        stored += payload.len() as u64;
        spool.put(payload)
    };
    loop {
        match from.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => {
                let pushed = encoder.write(&piece[..read], |payload| keep(&mut spool, payload));
                pushed.map_err(Failed::into_error)?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io("cannot read", error)),
        }
    }
    let content = encoder.content_len();
    let ends = encoder.finish(|payload| keep(&mut spool, payload)).map_err(Failed::into_error)?;
    let mut write = |bytes: &[u8]| to.write_all(bytes).map_err(|error| Error::io("cannot write", error));
    write(&ends.header)?;
    spool.for_pieces(&mut write)?;
    write(&ends.index)?;
    Ok((content, stored + (ends.header.len() + ends.index.len()) as u64))
}
