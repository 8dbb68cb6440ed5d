//! Where bytes live: a mapped file, positioned reads, memory, or somewhere else.

mod cursor;
mod file;
pub(crate) mod memory;
mod pieces;
mod remote;
pub(crate) mod sibling;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

#[cfg(feature = "hdf5")]
pub(crate) use cursor::AFTER_JUMP;
pub use cursor::Cursor;
pub(crate) use cursor::FAR_JUMP;
pub use file::{FileSource, MapMode};
pub use memory::MemorySource;
pub use remote::{Access, Budget, Remote, Staged};

use crate::base::pool::BufferPool;
use crate::catalog::Extent;
use crate::error::{Error, Result};
use crate::remote::{self as places, Options, Place};

/// Bytes of a known length that can be read at any position.
pub trait Source: Send + Sync + fmt::Debug {
    /// Number of bytes.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What to call it in messages: mostly a path.
    fn label(&self) -> &str;

    /// Fills `out` from `offset` on, or fails.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()>;

    /// All bytes, if they are addressable: a read-only mapping, or memory.
    fn mapped(&self) -> Result<&[u8]>;

    /// Whether [`mapped`](Source::mapped) works, without saying why not.
    fn is_mapped(&self) -> bool {
        self.mapped().is_ok()
    }

    /// Brings a mapped range into memory at once, where that saves touching it page by page.
    /// It only helps, and may do nothing.
    fn prefetch(&self, _offset: u64, _len: u64) {}

    /// Says that these ranges (position and length) are about to be read, each for itself, so
    /// that they can be fetched together. It only helps, and may do nothing.
    fn will_read(&self, _ranges: &[(u64, u64)]) {}

    /// How many of the `len` bytes from `offset` on to read where only the first few are sure to be needed:
    /// all, unless the others take much longer to get, such as those that have to be decoded first.
    fn readahead(&self, _offset: u64, len: u64) -> u64 {
        len
    }

    /// Asks the system to drop the whole pages of a range from its cache. What is used again is read
    /// again. It is advice, and may do nothing.
    fn evict(&self, _offset: u64, _len: u64) {}

    /// Whether the byte at `offset` would have to come from the device: `false` where it is in the
    /// system's cache, and where that is not known.
    fn is_uncached(&self, _offset: u64) -> bool {
        false
    }

    /// Like [`read_at`](Source::read_at), but leaves no copy in the system's cache where that can
    /// be avoided: for large amounts that are not there yet.
    fn read_direct(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.read_at(offset, out)
    }

    /// The same for several ranges that lie beside each other, in the order of the file, with one request.
    fn read_direct_all(&self, parts: &mut [(u64, &mut [u8])]) -> Result<()> {
        parts.iter_mut().try_for_each(|(offset, out)| self.read_direct(*offset, out))
    }

    /// A second, copy-on-write view of all bytes, for callers that hand out
    /// writable memory. `None` if the source cannot be mapped so.
    fn copy_on_write(&self) -> Option<CowRegion> {
        None
    }

    /// What else can be asked of a source where every read is a request.
    fn remote(&self) -> Option<&dyn Remote> {
        None
    }
}

/// Opens what a path or a URL names: a file, or an object somewhere else.
pub fn open(path: impl AsRef<Path>, mode: MapMode, options: &Options) -> Result<Arc<dyn Source>> {
    open_place(places::place(path.as_ref())?, mode, options)
}

/// The same of a path or URL that was parsed.
pub(crate) fn open_place(place: Place, mode: MapMode, options: &Options) -> Result<Arc<dyn Source>> {
    match place {
        Place::Local(path) => Ok(Arc::new(FileSource::open(path, mode)?)),
        Place::Remote(location) => Ok(Arc::new(places::RemoteSource::open(&location, options)?)),
    }
}

/// Opens a file whose length is known: of one that is elsewhere, only what is read is asked for.
pub(crate) fn open_sized(
    path: impl AsRef<Path>,
    mode: MapMode,
    options: &Options,
    len: u64,
) -> Result<Arc<dyn Source>> {
    match places::place(path.as_ref())? {
        Place::Remote(location) => Ok(Arc::new(places::RemoteSource::sized(&location, options, len)?)),
        local => open_place(local, mode, options),
    }
}

/// A writable, private mapping. Rust code never reads through it, so that what
/// its users write there can never change what a read, a slice or a digest sees.
#[derive(Debug, Clone, Copy)]
pub struct CowRegion {
    /// First byte.
    pub ptr: *mut u8,
    /// Number of bytes.
    pub len: usize,
}

// SAFETY: the region is only a pointer and a length; nothing is read or written
// through it here, and the mapping it names lives as long as its source.
unsafe impl Send for CowRegion {}
// SAFETY: as above.
unsafe impl Sync for CowRegion {}

impl dyn Source + '_ {
    /// The bytes of a range: borrowed when the source is mapped, read otherwise.
    /// The range is checked before anything is allocated.
    pub fn bytes(&self, offset: u64, len: u64) -> Result<Cow<'_, [u8]>> {
        check_range(self.len(), offset, len).map_err(|error| error.in_file(self.label()))?;
        if let Ok(all) = self.mapped() {
            // The range is inside the source, so both ends fit in memory.
            return Ok(Cow::Borrowed(&all[offset as usize..(offset + len) as usize]));
        }
        let mut bytes = zeroed(len)?;
        self.read_at(offset, &mut bytes)?;
        Ok(Cow::Owned(bytes))
    }
}

/// Checks that a range lies inside a source of `total` bytes.
pub(crate) fn check_range(total: u64, offset: u64, len: u64) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= total => Ok(()),
        _ => Err(Error::corrupt(
            "range.outside",
            format!("bytes {offset} + {len} lie outside the {total} bytes there are"),
        )),
    }
}

/// A zeroed buffer, or an error instead of an abort when there is no memory for it.
/// Large ones are backed by huge pages, which the caller's first touch then fills
/// several times faster.
pub(crate) fn zeroed(len: u64) -> Result<Vec<u8>> {
    crate::base::huge_pages::zeroed_vec::<u8>(len)
}

/// How bytes come from a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadMode {
    /// Through the system's cache, which has them the next time.
    Cached,
    /// Past it, which is cheaper.
    Direct,
}

type Opener = Box<dyn Fn() -> Result<Arc<dyn Source>> + Send + Sync>;

enum Slot {
    Open(Arc<dyn Source>),
    Lazy { label: String, opener: Opener, source: OnceLock<Arc<dyn Source>> },
}

/// Shorter extents of a mapping are left to page faults: `madvise` costs as much.
/// (case: benchmark/bench.py, small and mixed distributions)
const MIN_POPULATE: u64 = 256 << 10;

/// The sources that a catalog's extents point into; all but the first are
/// opened when they are first needed.
#[derive(Default)]
pub struct Sources {
    slots: Vec<Slot>,
    /// What was read from sources that are not mapped goes here, again and again.
    pool: BufferPool,
}

impl Sources {
    /// A single source.
    pub fn one(source: Arc<dyn Source>) -> Sources {
        Sources { slots: vec![Slot::Open(source)], ..Sources::default() }
    }

    /// Adds an open source and returns its index.
    pub fn push(&mut self, source: Arc<dyn Source>) -> u32 {
        self.push_slot(Slot::Open(source))
    }

    /// Adds a source that `opener` opens when it is first needed.
    pub fn push_lazy(
        &mut self,
        label: impl Into<String>,
        opener: impl Fn() -> Result<Arc<dyn Source>> + Send + Sync + 'static,
    ) -> u32 {
        self.push_slot(Slot::Lazy { label: label.into(), opener: Box::new(opener), source: OnceLock::new() })
    }

    fn push_slot(&mut self, slot: Slot) -> u32 {
        self.slots.push(slot);
        (self.slots.len() - 1) as u32
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Size of all sources that are open, in bytes.
    pub(crate) fn open_len(&self) -> u64 {
        let open = self.slots.iter().filter_map(|slot| match slot {
            Slot::Open(source) => Some(source),
            Slot::Lazy { source, .. } => source.get(),
        });
        open.fold(0, |sum, source| sum.saturating_add(source.len()))
    }

    /// What the source is called in messages.
    pub fn label(&self, index: u32) -> &str {
        match self.slots.get(index as usize) {
            Some(Slot::Open(source)) => source.label(),
            Some(Slot::Lazy { label, .. }) => label,
            None => "",
        }
    }

    /// The source of that index, opened if it was not yet.
    pub fn get(&self, index: u32) -> Result<&Arc<dyn Source>> {
        match self.slots.get(index as usize) {
            Some(Slot::Open(source)) => Ok(source),
            Some(Slot::Lazy { opener, source, .. }) => match source.get() {
                Some(source) => Ok(source),
                None => {
                    let opened = opener()?;
                    Ok(source.get_or_init(|| opened))
                }
            },
            None => Err(Error::invalid(format!("there is no source {index}"))),
        }
    }

    /// The bytes of an extent, borrowed; an error if its source cannot be mapped.
    pub fn view(&self, extent: Extent) -> Result<&[u8]> {
        let source = self.get(extent.source)?;
        check_range(source.len(), extent.offset, extent.len)
            .map_err(|error| error.in_file(source.label()))?;
        let all = source.mapped()?;
        Ok(&all[extent.offset as usize..(extent.offset + extent.len) as usize])
    }

    /// The bytes of an extent, borrowed if possible.
    pub fn bytes(&self, extent: Extent) -> Result<Cow<'_, [u8]>> {
        self.get(extent.source)?.bytes(extent.offset, extent.len)
    }

    /// The read policy of decoders that need all stored bytes: pages of a mapping are populated by
    /// one `madvise` instead of a page fault each; otherwise positioned reads fill a pooled buffer.
    pub(crate) fn with_whole<T>(&self, extent: Extent, then: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
        let source = self.get(extent.source)?;
        if extent.len >= MIN_POPULATE && source.is_mapped() {
            source.prefetch(extent.offset, extent.len);
        }
        self.with_bytes(extent, then)
    }

    /// Calls `then` with the bytes of an extent, in a pooled buffer if they had to be read.
    pub(crate) fn with_bytes<T>(&self, extent: Extent, then: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
        let source = self.get(extent.source)?;
        if source.remote().is_some() || source.is_mapped() {
            return then(&self.bytes(extent)?);
        }
        check_range(source.len(), extent.offset, extent.len)
            .map_err(|error| error.in_file(source.label()))?;
        let mut buffer = self.pool.take(extent.len)?;
        let bytes = &mut buffer[..extent.len as usize];
        let done = self.read(extent, 0, bytes).and_then(|()| then(bytes));
        self.pool.put(buffer);
        done
    }

    /// Fills `out` with the bytes of an extent from `skip` on.
    pub fn read(&self, extent: Extent, skip: u64, out: &mut [u8]) -> Result<()> {
        self.read_by(ReadMode::Cached, extent, skip, out)
    }

    /// The same, through the page cache or with O_DIRECT.
    pub(crate) fn read_by(&self, mode: ReadMode, extent: Extent, skip: u64, out: &mut [u8]) -> Result<()> {
        let source = self.get(extent.source)?;
        check_range(extent.len, skip, out.len() as u64)
            .and_then(|()| check_range(source.len(), extent.offset, extent.len))
            .map_err(|error| error.in_file(source.label()))?;
        match mode {
            ReadMode::Cached => source.read_at(extent.offset + skip, out),
            ReadMode::Direct => source.read_direct(extent.offset + skip, out),
        }
    }

    /// Parts of an extent, each with where it starts in it; those of a remote source at once.
    pub(crate) fn parts(&self, extent: Extent, ranges: &[Range<u64>]) -> Result<Vec<(u64, Vec<u8>)>> {
        let source = self.get(extent.source)?;
        let mut parts = Vec::with_capacity(ranges.len());
        for range in ranges {
            let len = range.end.saturating_sub(range.start);
            check_range(extent.len, range.start, len)
                .and_then(|()| check_range(source.len(), extent.offset, extent.len))
                .map_err(|error| error.in_file(source.label()))?;
            parts.push((range.start, zeroed(len)?));
        }
        let mut requests = parts.iter_mut().map(|(start, bytes)| (extent.offset + *start, &mut bytes[..]));
        match source.remote() {
            Some(far) => far.read_many(requests.collect(), &mut |_| Ok(()))?,
            None => requests.try_for_each(|(offset, out)| source.read_at(offset, out))?,
        }
        Ok(parts)
    }
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries((0..self.slots.len()).map(|index| self.label(index as u32))).finish()
    }
}
