//! The object model that every format projects into.
//!
//! A [`Catalog`] lists named [`Object`]s. An object has a shape, a layout and
//! typed [`Component`]s: a dense tensor has one, a sparse one two or three. A
//! component knows where its bytes are ([`Storage`]), not the bytes.

pub(crate) mod validate;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use indexmap::IndexMap;
use smallvec::SmallVec;

use crate::digest::Digest;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::format::Format;
use crate::source::Sources;
use crate::tensor::value::{Attributes, Value};

/// The sizes of a tensor's dimensions, outermost first; empty for a scalar.
pub type Shape = SmallVec<[u64; 4]>;

/// The largest number of dimensions that any reader accepts.
pub const MAX_RANK: usize = 64;

/// How an object's components make up its tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Row-major elements in `data`.
    Dense,
    /// Compressed sparse rows: `values`, `indices`, `indptr`.
    SparseCsr,
    /// Coordinates: `values`, `coords` (all of dimension 0 first).
    SparseCoo,
    /// Group-wise quantized: `packed_weight`, `scales`, `zeros`.
    QuantizedGroup,
    /// A layout this library does not interpret; it is passed through by name.
    Other(Box<str>),
}

impl Layout {
    /// The name in a `.zt` manifest.
    pub fn name(&self) -> &str {
        match self {
            Layout::Dense => "dense",
            Layout::SparseCsr => "sparse_csr",
            Layout::SparseCoo => "sparse_coo",
            Layout::QuantizedGroup => "quantized_group",
            Layout::Other(name) => name,
        }
    }

    /// The layout of that name; unknown names are passed through.
    pub fn from_name(name: &str) -> Layout {
        match name {
            "dense" => Layout::Dense,
            "sparse_csr" => Layout::SparseCsr,
            "sparse_coo" => Layout::SparseCoo,
            "quantized_group" => Layout::QuantizedGroup,
            other => Layout::Other(other.into()),
        }
    }
}

impl std::fmt::Display for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// A component's name within its object, such as `data` or `indptr`.
pub type Role = Cow<'static, str>;

/// A named tensor, whatever its layout.
#[derive(Debug, Clone)]
pub struct Object {
    /// The logical shape.
    pub shape: Shape,
    /// How the components make up the tensor.
    pub layout: Layout,
    /// The components by role, in the order of the file.
    pub components: SmallVec<[(Role, Component); 1]>,
    /// Attributes of this object; most have none.
    pub attributes: Option<Box<Attributes>>,
    /// Keys of this object that this version does not know, kept by edits.
    pub(crate) unknown: Unknown,
}

impl Object {
    /// An object with the given parts and no attributes.
    pub fn new(
        shape: impl Into<Shape>,
        layout: Layout,
        components: impl IntoIterator<Item = (Role, Component)>,
    ) -> Object {
        Object {
            shape: shape.into(),
            layout,
            components: components.into_iter().collect(),
            attributes: None,
            unknown: Unknown::default(),
        }
    }

    /// A dense object.
    pub fn dense(shape: impl Into<Shape>, data: Component) -> Object {
        Object {
            shape: shape.into(),
            layout: Layout::Dense,
            components: smallvec::smallvec![(Cow::Borrowed("data"), data)],
            attributes: None,
            unknown: Unknown::default(),
        }
    }

    /// The component of that role.
    pub fn component(&self, role: &str) -> Option<&Component> {
        self.components.iter().find(|(name, _)| name == role).map(|(_, component)| component)
    }

    /// The component of that role, or an error that lists the ones there are.
    pub fn require(&self, role: &str) -> Result<&Component> {
        self.component(role).ok_or_else(|| {
            let roles: Vec<_> = self.components.iter().map(|(role, _)| &**role).collect();
            Error::not_found(format!("a {} object has no component {role:?}; it has {roles:?}", self.layout))
        })
    }

    /// The element type of the tensor: that of `data`, `values` or the first component.
    pub fn dtype(&self) -> Option<DType> {
        self.component("data")
            .or_else(|| self.component("values"))
            .or_else(|| self.components.first().map(|(_, component)| component))
            .map(|component| component.dtype)
    }

    /// The number of elements the shape describes; `None` on overflow.
    pub fn elements(&self) -> Option<u64> {
        elements(&self.shape)
    }

    /// Decoded size of all components together, saturating.
    pub fn byte_len(&self) -> u64 {
        self.components.iter().fold(0, |sum: u64, (_, component)| sum.saturating_add(component.len))
    }

    /// Size of all components in the file, saturating.
    pub fn stored_len(&self) -> u64 {
        self.components.iter().fold(0, |sum: u64, (_, component)| sum.saturating_add(component.stored_len()))
    }

    /// The attribute of that name.
    pub fn attribute(&self, name: &str) -> Option<&Value> {
        self.attributes.as_ref()?.get(name)
    }

    /// Sets an attribute.
    pub fn set_attribute(&mut self, name: impl Into<String>, value: impl Into<Value>) {
        self.attributes.get_or_insert_default().insert(name.into(), value.into());
    }
}

/// The product of a shape; `None` on overflow. A zero dimension gives 0 even
/// when the others alone would overflow.
pub fn elements(shape: &[u64]) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size))
}

/// Which bytes of a component its digest covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DigestOf {
    /// Those in the file, compressed or not.
    Stored,
    /// Those that they decode to.
    Decoded,
}

/// One array of bytes of an object.
#[derive(Debug, Clone)]
pub struct Component {
    /// What the elements are.
    pub dtype: DType,
    /// The logical type's name where this version does not know it; `dtype` is
    /// then the storage type.
    pub unknown_type: Option<Box<str>>,
    /// Decoded size in bytes.
    pub len: u64,
    /// Where the bytes are and how they are stored.
    pub storage: Storage,
    /// The digest that the file has of it, if any.
    pub digest: Option<Digest>,
    /// Which bytes the digest covers.
    pub digest_of: DigestOf,
    /// Keys of this component that this version does not know, kept by edits.
    pub(crate) unknown: Unknown,
}

impl Component {
    /// A component without a digest.
    pub fn new(dtype: DType, len: u64, storage: Storage) -> Component {
        Component {
            dtype,
            unknown_type: None,
            len,
            storage,
            digest: None,
            digest_of: DigestOf::Stored,
            unknown: Unknown::default(),
        }
    }

    /// A component whose elements lie in the source as they are.
    pub fn plain(dtype: DType, extent: Extent) -> Component {
        Component::new(dtype, extent.len, Storage::Plain(extent))
    }

    /// The logical type's `.zt` name, known or not, if it differs from the storage type.
    pub fn type_name(&self) -> Option<&str> {
        self.unknown_type.as_deref().or(self.dtype.logical_name())
    }

    /// Bytes that it takes in the file.
    pub fn stored_len(&self) -> u64 {
        self.storage.stored_len()
    }

    /// How it is stored: `raw`, `zstd`, `deflate`, …
    pub fn encoding(&self) -> &str {
        match &self.storage {
            Storage::Plain(_) | Storage::Inline(_) => "raw",
            Storage::Encoded(decoder) => decoder.encoding(),
        }
    }

    /// The range of a source that is read for it, if that is contiguous. It says nothing of what
    /// the bytes are decoded to: see [`content_key`](Component::content_key).
    pub fn extent(&self) -> Option<Extent> {
        self.storage.extent()
    }

    /// What identifies its content: components with equal keys have equal elements, whatever their
    /// names and shapes. `None` if nothing is known about that, and for components without bytes.
    pub fn content_key(&self) -> Option<ContentKey<'_>> {
        let (extent, encoding) = match &self.storage {
            Storage::Plain(extent) => (*extent, "raw"),
            Storage::Inline(_) => return None,
            Storage::Encoded(decoder) => (decoder.content_extent()?, decoder.encoding()),
        };
        let unknown_type = self.unknown_type.as_deref();
        (self.len > 0).then_some(ContentKey {
            extent,
            encoding,
            len: self.len,
            dtype: self.dtype,
            unknown_type,
        })
    }

    /// The component, of a dense tensor of that shape, as a strided view of raw bytes in a source;
    /// `None` if it is stored in another way.
    pub fn strided_view(&self, shape: &[u64]) -> Option<StridedView> {
        let item = self.dtype.size()?;
        (elements(shape)?.checked_mul(item as u64)? == self.len).then_some(())?;
        self.storage.strided_view(shape, item)
    }
}

/// What a component's content is: which bytes, decoded in which way to which elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContentKey<'a> {
    extent: Extent,
    encoding: &'a str,
    len: u64,
    dtype: DType,
    unknown_type: Option<&'a str>,
}

/// Elements that lie in a source as they are in memory, at regular steps.
#[derive(Debug, Clone)]
pub struct StridedView {
    /// From the first element up to behind the last one.
    pub extent: Extent,
    /// Bytes of an element.
    pub item: usize,
    /// Elements from one index to the next, for each dimension.
    pub strides: Shape,
    /// Whether the elements are the complex conjugates of those stored.
    pub conjugate: bool,
    /// Whether the elements are the negatives of those stored.
    pub negate: bool,
}

/// A range of bytes in one of a catalog's sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Extent {
    /// Index into the catalog's sources.
    pub source: u32,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

impl Extent {
    /// A range of the catalog's first source, which is the only one of most files.
    pub fn new(offset: u64, len: u64) -> Extent {
        Extent { source: 0, offset, len }
    }
}

/// Where a component's bytes are.
#[derive(Debug, Clone)]
pub enum Storage {
    /// In a source, exactly as the elements are in memory: can be viewed.
    Plain(Extent),
    /// In the catalog itself, because the format keeps them in its header.
    Inline(Arc<[u8]>),
    /// Behind a decoder.
    Encoded(Arc<dyn Decode>),
}

impl Storage {
    /// Bytes that it takes in the file.
    pub fn stored_len(&self) -> u64 {
        match self {
            Storage::Plain(extent) => extent.len,
            Storage::Inline(bytes) => bytes.len() as u64,
            Storage::Encoded(decoder) => decoder.stored_len(),
        }
    }

    /// The range of a source that is read for it, if that is contiguous.
    pub fn extent(&self) -> Option<Extent> {
        match self {
            Storage::Plain(extent) => Some(*extent),
            Storage::Inline(_) => None,
            Storage::Encoded(decoder) => decoder.extent(),
        }
    }

    /// The elements, those of `item` bytes of a tensor of that shape, as a strided view of raw bytes.
    pub(crate) fn strided_view(&self, shape: &[u64], item: usize) -> Option<StridedView> {
        match self {
            Storage::Plain(extent) => {
                let mut strides: Shape = shape.into();
                let mut step = 1u64;
                for stride in strides.iter_mut().rev() {
                    let size = std::mem::replace(stride, step);
                    step = step.checked_mul(size)?;
                }
                Some(StridedView { extent: *extent, item, strides, conjugate: false, negate: false })
            }
            Storage::Inline(_) => None,
            Storage::Encoded(decoder) => decoder.strided_view(shape, item),
        }
    }
}

/// Bytes that must be decoded: compressed, strided, byte-swapped or chunked.
pub trait Decode: Send + Sync + std::fmt::Debug {
    /// The name that `info` shows, such as `zstd`.
    fn encoding(&self) -> &str;

    /// Bytes that the encoded form takes in the file.
    fn stored_len(&self) -> u64;

    /// The range of a source that decoding reads, if it is contiguous: what a digest covers, and
    /// what reads are sorted, prefetched and checked for overlaps by. Two views of one storage
    /// read the same range and are different tensors.
    fn extent(&self) -> Option<Extent>;

    /// All ranges that hold the encoded form: the one of [`extent`](Decode::extent), or those of chunks.
    fn extents(&self, _sources: &Sources) -> Result<Vec<Extent>> {
        Ok(self.extent().into_iter().collect())
    }

    /// The range whose content, as decoded by [`encoding`](Decode::encoding), this is all of and
    /// nothing else: what ties are found by. `None` unless a decoder knows better.
    fn content_extent(&self) -> Option<Extent> {
        None
    }

    /// The decoded elements, those of `item` bytes of a tensor of that shape, as a strided view of
    /// raw bytes.
    fn strided_view(&self, _shape: &[u64], _item: usize) -> Option<StridedView> {
        None
    }

    /// Writes decoded bytes `range` to `out`, which has exactly that length.
    /// The caller has checked `range` against the component's length.
    /// `threads` is how many the decoder may use.
    fn decode(&self, sources: &Sources, range: Range<u64>, out: &mut [u8], threads: usize) -> Result<()>;

    /// The decoder of stored bytes that the caller has in memory, so that a checksum and the
    /// decoder share one read; `None` where decoding reads ranges of its own.
    fn stored(&self) -> Option<&dyn DecodeStored> {
        None
    }

    /// Shows all decoded bytes in order, a piece at a time, in bounded memory; `None` where ranges
    /// can be decoded as well as the whole, and where all of it has to be in memory.
    fn decode_in_order(
        &self,
        _sources: &Sources,
        _each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Option<Result<()>> {
        None
    }

    /// Bytes that decoding `range` produces, including those that are decoded and dropped: what
    /// [`Limits`](crate::Limits) count.
    fn work(&self, range: &Range<u64>) -> u64 {
        range.end.saturating_sub(range.start)
    }

    /// Whether decoding compares the checksums that [`verify`](Decode::verify) does.
    fn decoding_verifies(&self) -> bool {
        true
    }

    /// Checks the encoded form by checksums of its own; `None` if it has none.
    fn verify(&self, _sources: &Sources, _threads: usize) -> Option<Result<()>> {
        None
    }
}

/// Decoding from all stored bytes of [`Decode::extent`].
pub trait DecodeStored: Sync {
    /// Writes decoded bytes `range` to `out`, which has exactly that length.
    fn decode_stored(&self, stored: &[u8], range: Range<u64>, out: &mut [u8], threads: usize) -> Result<()>;
}

/// Objects by name. The hash is seeded at random and fast on short names.
pub type Objects = IndexMap<Box<str>, Object, foldhash::fast::RandomState>;

/// What a file holds: names, objects, and where their bytes are.
#[derive(Debug)]
pub struct Catalog {
    /// The format it was read from.
    pub format: Format,
    /// The file, and any others its objects point into.
    pub sources: Sources,
    /// The objects by name, in the order of the file.
    pub objects: Objects,
    /// Attributes of the whole file.
    pub attributes: Attributes,
    /// Keys of the file's index that this version does not know, kept by edits.
    pub(crate) unknown: Unknown,
    /// The format version that the file states, kept by edits.
    pub(crate) version: Option<Box<str>>,
    /// Functions that a pickle names and that are dangerous in tools that unpickle it.
    pub(crate) unsafe_globals: Vec<Box<str>>,
    /// Where the index that lists the objects lies, in formats that edits change in place.
    pub(crate) index: Option<Extent>,
    /// Whether only the committed part of the file is listed: an edit is under way, or was
    /// interrupted.
    pub(crate) by_journal: bool,
}

impl Catalog {
    /// An empty catalog over `sources`.
    pub fn new(format: Format, sources: Sources) -> Catalog {
        Catalog {
            format,
            sources,
            objects: Objects::default(),
            attributes: Attributes::new(),
            unknown: Unknown::default(),
            version: None,
            unsafe_globals: Vec::new(),
            index: None,
            by_journal: false,
        }
    }

    /// Adds an object: the one place where every parser's objects are validated and where names
    /// that come twice are found.
    pub fn insert(&mut self, name: impl Into<Box<str>>, object: Object) -> Result<()> {
        let name = name.into();
        validate::object(&object).map_err(|error| error.in_tensor(&*name))?;
        match self.objects.entry(name) {
            indexmap::map::Entry::Vacant(entry) => {
                entry.insert(object);
                Ok(())
            }
            indexmap::map::Entry::Occupied(entry) => Err(Error::corrupt(
                "name.duplicate",
                format!("two objects have the name {}", crate::error::quoted(entry.key())),
            )),
        }
    }
}

/// Keys that this version does not know, with their values as the format encodes them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Unknown(Option<Box<Pairs>>);

type Pairs = Vec<(String, Vec<u8>)>;

impl Unknown {
    pub(crate) fn push(&mut self, key: String, value: Vec<u8>) {
        self.0.get_or_insert_default().push((key, value));
    }

    pub(crate) fn pairs(&self) -> &[(String, Vec<u8>)] {
        self.0.as_ref().map_or(&[], |pairs| pairs)
    }

    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Vec<u8>> {
        let pairs = self.0.as_mut()?;
        pairs.iter_mut().find(|(name, _)| name == key).map(|(_, value)| value)
    }
}
