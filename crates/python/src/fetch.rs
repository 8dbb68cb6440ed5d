//! Many tensors at once: views where the file can be viewed, parallel reads
//! straight into the new arrays where not.

use std::collections::HashMap;
use std::sync::Arc;

use numpy::PyArrayDescr;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use ztensor::object::{ContentKey, Storage, StridedView};
use ztensor::read::views::{SharedStorage, shared_storages};
use ztensor::source::{CowRegion, Source};
use ztensor::{Component, DType, Error, Extent, Layout, Object, Reader};

use crate::arrays::{self, Dims, Keeps, Mapping};
use crate::errors::{OrRaise, exception, invalid};
use crate::memory::Memory;
use crate::reader::check_values;
use crate::watch::Watch;
use crate::{dlpack, dtypes, values};

/// What the arrays are to be.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Framework {
    Numpy,
    Torch,
    /// Every object is made by `other`.
    None,
}

/// Reads tensors. Dense ones of a type that the framework has become its
/// arrays; `other` makes everything else from its NumPy components.
pub(crate) fn fetch<'py>(
    py: Python<'py>,
    reader: &Reader,
    objects: &[(&str, &Object)],
    framework: Framework,
    copy: bool,
    other: &Bound<'py, PyAny>,
    watch: &Watch,
) -> PyResult<Bound<'py, PyDict>> {
    // Arrays are allocated before they are filled.
    py.detach(|| reader.check_limits(objects.iter().map(|(name, _)| *name))).or_raise(py)?;
    let mut fetcher = Fetcher {
        py,
        reader,
        copy,
        regions: Vec::new(),
        ties: HashMap::new(),
        storages: Vec::new(),
        views: HashMap::new(),
        reads: Vec::new(),
        stored: Vec::new(),
        pool: arrays::Pool::of_kept_arrays(),
    };
    if framework == Framework::Torch {
        fetcher.find_views(objects);
    }
    let mut results = Vec::with_capacity(objects.len());
    for (index, &(name, object)) in objects.iter().enumerate() {
        let view = fetcher.views.remove(&index);
        let shared = view.map(|view| fetcher.view(name, object, view)).transpose()?.flatten();
        results.push(match shared {
            Some(tensor) => Fetched::Array(tensor),
            None => fetcher.object(name, object, framework)?,
        });
    }
    fetcher.read(watch)?;
    let dict = PyDict::new(py);
    for ((name, object), result) in objects.iter().zip(results) {
        dict.set_item(name, result.finish(py, object, other)?)?;
    }
    Ok(dict)
}

/// One component of one object, read as NumPy arrays are: the array's element
/// type and sizes.
fn component_dims(object: &Object, role: &str, component: &Component, dtype: DType) -> Option<Dims> {
    let size = dtype.size()? as u64;
    let count = component.len.is_multiple_of(size).then_some(component.len / size)?;
    let whole = |shape: &[u64]| -> Option<Dims> {
        (ztensor::object::elements(shape)? == count).then_some(())?;
        shape.iter().map(|&size| isize::try_from(size).ok()).collect()
    };
    let shaped = match (&object.layout, role) {
        (Layout::Dense, "data") => whole(&object.shape),
        (Layout::SparseCoo, "coords") => {
            let rank = object.shape.len() as u64;
            whole(&[rank, count.checked_div(rank)?])
        }
        _ => None,
    };
    shaped.or_else(|| whole(&[count]))
}

/// A request to fill memory, that of an array which this call made and nothing else refers to yet.
struct Read<'a> {
    name: &'a str,
    role: &'a str,
    memory: Memory,
}

/// A storage that several tensors of the result are views of.
struct Shared<'a, 'py> {
    storage: SharedStorage,
    /// Names of its tensors.
    names: Vec<&'a str>,
    /// Its memory as a torch storage, once a tensor needed it.
    memory: Option<Bound<'py, PyAny>>,
}

/// What will be a value of the result.
enum Fetched<'py> {
    Array(Bound<'py, PyAny>),
    /// The components of an object that Python assembles.
    Parts(Bound<'py, PyDict>),
}

impl<'py> Fetched<'py> {
    fn finish(
        self,
        py: Python<'py>,
        object: &Object,
        other: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Fetched::Array(array) => Ok(array),
            Fetched::Parts(parts) => {
                let dtype = object.dtype().map_or("uint8", |dtype| dtype.storage().python_name());
                let main = object.component("data").or_else(|| object.component("values"));
                let logical =
                    main.or(object.components.first().map(|(_, first)| first)).and_then(Component::type_name);
                let attributes =
                    object.attributes.as_deref().map(|map| values::to_dict(py, map)).transpose()?;
                other.call1((parts, object.shape.to_vec(), dtype, logical, object.layout.name(), attributes))
            }
        }
    }
}

/// The mapping of one source, if it could be made.
struct Region<'py> {
    region: CowRegion,
    source: Arc<dyn Source>,
    owner: Bound<'py, Mapping>,
}

struct Fetcher<'a, 'py> {
    py: Python<'py>,
    reader: &'a Reader,
    copy: bool,
    /// By source; `None` inside for one that cannot be mapped.
    regions: Vec<Option<Option<Region<'py>>>>,
    /// Arrays by their content, the type that they have it as and the framework that they are of:
    /// two names of one are tied.
    ties: HashMap<(ContentKey<'a>, DType, Framework), (Dims, Bound<'py, PyAny>)>,
    /// Storages of several tensors.
    storages: Vec<Shared<'a, 'py>>,
    /// The storage that a tensor is a view of, by the tensor's index.
    views: HashMap<usize, (usize, StridedView)>,
    reads: Vec<Read<'a>>,
    /// Storages to be filled with what is stored.
    stored: Vec<(Extent, Memory)>,
    /// The memory of new arrays.
    pool: arrays::Pool,
}

impl<'a, 'py> Fetcher<'a, 'py> {
    fn object(&mut self, name: &'a str, object: &'a Object, framework: Framework) -> PyResult<Fetched<'py>> {
        if let (Layout::Dense, [(role, component)]) = (&object.layout, object.components.as_slice()) {
            let array = match framework {
                _ if component.unknown_type.is_some() => None,
                Framework::Numpy => self.numpy(name, object, role, component)?,
                Framework::Torch => self.torch(name, object, role, component)?,
                Framework::None => None,
            };
            if let Some(array) = array {
                return Ok(Fetched::Array(array));
            }
        }
        let parts = PyDict::new(self.py);
        for (role, component) in &object.components {
            let array = match component.unknown_type {
                None => self.numpy(name, object, role, component)?,
                Some(_) => None,
            };
            let array = match array {
                Some(array) => array,
                None => self.raw(name, object, role, component)?,
            };
            parts.set_item(&**role, array)?;
        }
        Ok(Fetched::Parts(parts))
    }

    /// A component as a NumPy array of its own type, if there is such a type.
    fn numpy(
        &mut self,
        name: &'a str,
        object: &Object,
        role: &'a str,
        component: &'a Component,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(descr) = dtypes::descr(self.py, component.dtype)? else { return Ok(None) };
        self.array(name, object, role, component, component.dtype, descr).map(Some)
    }

    /// A component as a NumPy array of the storage type, or of bytes.
    fn raw(
        &mut self,
        name: &'a str,
        object: &Object,
        role: &'a str,
        component: &'a Component,
    ) -> PyResult<Bound<'py, PyAny>> {
        let storage = match component.dtype.storage() {
            DType::BF16 => DType::U16,
            storage => storage,
        };
        match dtypes::descr(self.py, storage)? {
            Some(descr) => self.array(name, object, role, component, storage, descr),
            None => Err(exception(self.py, &Error::unsupported(format!("NumPy has no {storage}")))),
        }
    }

    fn array(
        &mut self,
        name: &'a str,
        object: &Object,
        role: &'a str,
        component: &'a Component,
        dtype: DType,
        descr: &Bound<'py, PyArrayDescr>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let dims = component_dims(object, role, component, dtype).ok_or_else(|| too_large(self.py, name))?;
        self.tied(component, (dtype, Framework::Numpy), dims, |this, dims| {
            if let Some((memory, owner)) =
                this.mapped(name, component)?.map(|(memory, region)| (memory, region.owner.clone()))
            {
                // SAFETY: `mapped` found these bytes inside the mapping, which lives as long as its
                // owner; `view` makes the array exactly as long.
                return Ok(unsafe { arrays::view(this.py, descr, dims, memory, owner) }?.into_any());
            }
            let memory =
                arrays::byte_len(descr, dims).and_then(|len| this.pool.take_at(len, phase(component)));
            let array = match memory {
                Some(memory) => memory.into_array_of(this.py, descr, dims)?,
                None => arrays::empty(this.py, descr, dims)?,
            };
            this.reads.push(Read { name, role, memory: Memory::of_array(&array)? });
            Ok(array.into_any())
        })
    }

    /// A dense tensor as a torch tensor, if torch has the type.
    fn torch(
        &mut self,
        name: &'a str,
        object: &Object,
        role: &'a str,
        component: &'a Component,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = self.py;
        let Some(dtype) = dtypes::torch(py, component.dtype)? else { return Ok(None) };
        let dims = match component.dtype.size() {
            Some(_) => component_dims(object, role, component, component.dtype),
            None => packed_dims(object, component),
        };
        let Some(dims) = dims else { return Ok(None) };
        let alignment = component.dtype.alignment();
        self.tied(component, (component.dtype, Framework::Torch), dims, |this, dims| {
            let mapped = this.mapped(name, component)?;
            let aligned = mapped.filter(|((data, _), _)| data.addr().is_multiple_of(alignment));
            if let Some((memory, region)) = aligned {
                let keeps = Keeps::Source(Arc::clone(&region.source));
                // SAFETY: as for arrays; `capsule` refuses a tensor that is not exactly as long.
                return unsafe { tensor_over(py, component.dtype, dtype, dims, memory, keeps) };
            }
            let len = usize::try_from(component.len).ok();
            let tensor = match len.and_then(|len| this.pool.take_at(len, phase(component))) {
                Some(memory) => {
                    let (memory, keeps) = memory.into_parts();
                    // SAFETY: memory of the pool, which is handed out once and lives while it is
                    // kept.
                    unsafe { tensor_over(py, component.dtype, dtype, dims, memory, keeps) }?
                }
                None => empty_tensor(py, dims, dtype)?,
            };
            this.reads.push(Read { name, role, memory: Memory::of_tensor(&tensor)? });
            Ok(tensor)
        })
        .map(Some)
    }

    /// Finds the tensors that are views of one storage.
    fn find_views(&mut self, objects: &[(&'a str, &'a Object)]) {
        let listed: Vec<&Object> = objects.iter().map(|(_, object)| *object).collect();
        for storage in shared_storages(&listed) {
            let lens = storage.views.iter().map(|(index, _)| listed[*index].byte_len());
            let total = lens.fold(0, u64::saturating_add);
            // Thin slices of a large storage are less to read, and to keep, one by one.
            if self.copy && storage.extent.len > total {
                continue;
            }
            let number = self.storages.len();
            self.views.extend(storage.views.iter().map(|(index, view)| (*index, (number, view.clone()))));
            let names = storage.views.iter().map(|(index, _)| objects[*index].0).collect();
            self.storages.push(Shared { storage, names, memory: None });
        }
    }

    /// A tensor as a view of a storage that it shares with others; `None` if torch has no such view.
    fn view(
        &mut self,
        name: &str,
        object: &Object,
        (number, view): (usize, StridedView),
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = self.py;
        // Booleans are checked when they are read, each tensor by itself.
        let Some(stored) = object.dtype().filter(|dtype| *dtype != DType::Bool) else { return Ok(None) };
        let Some(dtype) = dtypes::torch(py, stored)? else { return Ok(None) };
        let numbers = |sizes: &[u64]| -> Option<Vec<i64>> {
            sizes.iter().map(|&size| i64::try_from(size).ok()).collect()
        };
        let offset = i64::try_from(self.storages[number].storage.offset_of(&view)).ok();
        let (Some(sizes), Some(strides), Some(offset)) =
            (numbers(&object.shape), numbers(&view.strides), offset)
        else {
            return Err(too_large(py, name));
        };
        let storage = match &self.storages[number].memory {
            Some(storage) => storage.clone(),
            None => {
                let storage = self.storage(number)?;
                self.storages[number].memory = Some(storage.clone());
                storage
            }
        };
        let empty = empty_tensor(py, &[0].into_iter().collect(), dtype)?;
        let (sizes, strides) = (PyTuple::new(py, sizes)?, PyTuple::new(py, strides)?);
        // `shared_storages` found all elements inside of the storage, which is not resized then.
        let mut tensor = empty.call_method1("set_", (storage, offset, sizes, strides))?;
        if view.conjugate {
            tensor = tensor.call_method0("conj")?;
        }
        if view.negate {
            tensor = py.import("torch")?.call_method1("_neg_view", (tensor,))?;
        }
        Ok(Some(tensor))
    }

    /// The memory of a storage: mapped, or to be read.
    fn storage(&mut self, number: usize) -> PyResult<Bound<'py, PyAny>> {
        const ALIGNMENT: usize = 16;
        let py = self.py;
        let extent = self.storages[number].storage.extent;
        let bytes = dtypes::torch(py, DType::U8)?.ok_or_else(|| invalid(py, "torch has no uint8"))?;
        let size = isize::try_from(extent.len).map_err(|_| too_large(py, self.storages[number].names[0]))?;
        let dims: Dims = [size].into_iter().collect();
        let mapped = if self.copy { None } else { self.mapped_range(extent)? };
        let aligned = mapped.filter(|((data, _), _)| data.addr().is_multiple_of(ALIGNMENT));
        let tensor = match aligned {
            Some((memory, region)) => {
                let keeps = Keeps::Source(Arc::clone(&region.source));
                // SAFETY: as for single tensors.
                let capsule = unsafe { dlpack::capsule(py, 1, 8, &dims, memory, keeps) }?;
                functions(py)?.from_dlpack.bind(py).call1((capsule,))?
            }
            None => {
                let tensor = empty_tensor(py, &dims, bytes)?;
                let memory = Memory::of_tensor(&tensor)?;
                ztensor::advise_huge(memory.start(), memory.len());
                self.stored.push((extent, memory));
                tensor
            }
        };
        tensor.call_method0("untyped_storage")
    }

    /// The array that was already made for the same content, or a new one.
    fn tied(
        &mut self,
        component: &'a Component,
        (dtype, framework): (DType, Framework),
        dims: Dims,
        make: impl FnOnce(&mut Self, &Dims) -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(content) = component.content_key() else {
            return make(self, &dims);
        };
        match self.ties.get(&(content, dtype, framework)) {
            Some((first, array)) if *first == dims => return Ok(array.clone()),
            // The same elements in another shape.
            Some((_, array)) => return array.call_method1("reshape", (PyTuple::new(self.py, &dims)?,)),
            None => {}
        }
        let array = make(self, &dims)?;
        self.ties.insert((content, dtype, framework), (dims, array.clone()));
        Ok(array)
    }

    /// Where a component lies in a private mapping, and how long it is; `None` if it must be read.
    fn mapped(&mut self, name: &str, component: &Component) -> PyResult<Option<(Bytes, &Region<'py>)>> {
        let (false, Storage::Plain(extent)) = (self.copy || component.len == 0, &component.storage) else {
            return Ok(None);
        };
        if extent.len != component.len {
            return Ok(None); // reading it says what is wrong
        }
        let (py, reader, dtype) = (self.py, self.reader, component.dtype);
        let found = self.mapped_range(*extent)?;
        if let (Some(((data, len), _)), DType::Bool) = (&found, dtype) {
            // SAFETY: bytes of the mapping, which the region keeps.
            let bytes = unsafe { std::slice::from_raw_parts(data.cast_const(), *len) };
            let at = |error: Error| error.in_tensor(name).in_file(reader.catalog().sources.label(0));
            dtype.check_values(bytes).map_err(at).or_raise(py)?;
        }
        Ok(found)
    }

    /// Where a range of a source lies in a private mapping; `None` if it must be read.
    fn mapped_range(&mut self, extent: Extent) -> PyResult<Option<(Bytes, &Region<'py>)>> {
        let index = extent.source as usize;
        if self.regions.len() <= index {
            self.regions.resize_with(index + 1, || None);
        }
        if self.regions[index].is_none() {
            let sources = &self.reader.catalog().sources;
            let source = self.py.detach(|| sources.get(extent.source)).or_raise(self.py)?;
            let region = match source.copy_on_write() {
                Some(region) => {
                    let owner = Bound::new(self.py, Mapping::new(Arc::clone(source)))?;
                    Some(Region { region, source: Arc::clone(source), owner })
                }
                None => None,
            };
            self.regions[index] = Some(region);
        }
        let Some(Some(region)) = &self.regions[index] else { return Ok(None) };
        let inside = extent.offset.checked_add(extent.len).is_some_and(|end| end <= region.region.len as u64);
        if !inside {
            return Ok(None); // reading it says what is wrong
        }
        let data = region.region.ptr.wrapping_add(extent.offset as usize);
        Ok(Some(((data, extent.len as usize), region)))
    }

    /// Fills all new arrays.
    fn read(self, watch: &Watch) -> PyResult<()> {
        let Fetcher { py, reader, reads, stored, storages, .. } = self;
        if reads.is_empty() && stored.is_empty() {
            return py.check_signals();
        }
        let read: Vec<_> = stored.iter().map(|(extent, _)| *extent).collect();
        let views: Vec<&str> = storages
            .iter()
            .filter(|shared| reader.options().verify && read.contains(&shared.storage.extent))
            .flat_map(|shared| shared.names.iter().copied())
            .collect();
        watch.run(py, |observer| {
            let requests = reads.iter().filter(|read| read.memory.len() > 0).map(|read| {
                // SAFETY: memory of an array that this call made and that nothing else reads or
                // writes yet. Each is in the list once.
                (read.name, read.role, unsafe { read.memory.bytes_mut() })
            });
            reader.read_many(requests.collect(), Some(observer))?;
            for read in &reads {
                // SAFETY: as above; what was handed out before is not used any more.
                check_values(reader, read.name, read.role, unsafe { read.memory.bytes_mut() })?;
            }
            for name in &views {
                reader.verify(name)?; // storages are read as they are
            }
            // SAFETY: as above.
            let requests = stored.iter().map(|(extent, memory)| (*extent, unsafe { memory.bytes_mut() }));
            reader.read_stored(requests.collect(), Some(observer))
        })
    }
}

/// An address and a length.
type Bytes = (*mut u8, usize);

/// A torch tensor over memory. Types that older versions do not take by DLPack are handed over as
/// bytes.
///
/// # Safety
/// The memory must be valid for reads and writes for as long as `keeps` lives.
unsafe fn tensor_over<'py>(
    py: Python<'py>,
    dtype: DType,
    torch_dtype: &Bound<'py, PyAny>,
    dims: &Dims,
    memory: Bytes,
    keeps: Keeps,
) -> PyResult<Bound<'py, PyAny>> {
    let code = dlpack::code(dtype);
    let (number, bits) = code.map_or((1, 8), |code| (code, dtype.bits()));
    // SAFETY: the caller vouches for the memory.
    let capsule = unsafe { dlpack::capsule(py, number, bits, dims, memory, keeps) }?;
    let tensor = functions(py)?.from_dlpack.bind(py).call1((capsule,))?;
    match code {
        Some(_) => Ok(tensor),
        None => tensor.call_method1("view", (torch_dtype,)),
    }
}

/// An uninitialised CPU tensor, whatever device is the default.
fn empty_tensor<'py>(py: Python<'py>, dims: &Dims, dtype: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let keywords = PyDict::new(py);
    keywords.set_item(pyo3::intern!(py, "dtype"), dtype)?;
    keywords.set_item(pyo3::intern!(py, "device"), pyo3::intern!(py, "cpu"))?;
    functions(py)?.empty.bind(py).call((PyTuple::new(py, dims)?,), Some(&keywords))
}

/// Where in a page the memory for a component starts: as in the file, if its elements allow that.
fn phase(component: &Component) -> Option<usize> {
    const PAGE: u64 = 4096;
    let Storage::Plain(extent) = component.storage else { return None };
    let phase = (extent.offset % PAGE) as usize;
    phase.is_multiple_of(component.dtype.alignment()).then_some(phase)
}

/// The sizes of torch's packed four-bit type, two elements to a byte.
fn packed_dims(object: &Object, component: &Component) -> Option<Dims> {
    let (last, rest) = object.shape.split_last()?;
    if component.dtype.bits() != 4 || !last.is_multiple_of(2) {
        return None;
    }
    rest.iter().chain([&(last / 2)]).map(|&size| isize::try_from(size).ok()).collect()
}

fn too_large(py: Python<'_>, name: &str) -> PyErr {
    exception(py, &Error::limit("its shape is larger than an array can be").in_tensor(name))
}

/// The functions of torch that are called once per tensor.
struct Functions {
    from_dlpack: Py<PyAny>,
    empty: Py<PyAny>,
}

fn functions(py: Python<'_>) -> PyResult<&'static Functions> {
    static FUNCTIONS: PyOnceLock<Functions> = PyOnceLock::new();
    FUNCTIONS.get_or_try_init(py, || {
        // The C function behind `torch.utils.dlpack.from_dlpack`, where it can be found.
        let direct = py.import("torch._C")?.getattr_opt("_from_dlpack")?;
        let from_dlpack = match direct {
            Some(function) => function,
            None => py.import("torch.utils.dlpack")?.getattr("from_dlpack")?,
        };
        let empty = py.import("torch")?.getattr("empty")?;
        Ok(Functions { from_dlpack: from_dlpack.unbind(), empty: empty.unbind() })
    })
}
