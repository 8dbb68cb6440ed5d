//! Many tensors at once: views where the file can be viewed, parallel reads
//! straight into the new arrays where not.

use std::collections::HashMap;
use std::sync::Arc;

use numpy::PyArrayDescr;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use ztensor::object::Storage;
use ztensor::source::{CowRegion, Source};
use ztensor::{Component, DType, Error, Extent, Layout, Object, Reader};

use crate::arrays::{self, Dims, Mapping};
use crate::errors::{OrRaise, exception};
use crate::watch::Watch;
use crate::{dlpack, dtypes, values};

/// What the arrays are to be.
#[derive(Clone, Copy, PartialEq, Eq)]
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
    let mut fetcher =
        Fetcher { py, reader, copy, regions: Vec::new(), ties: HashMap::new(), reads: Vec::new() };
    let mut results = Vec::with_capacity(objects.len());
    for &(name, object) in objects {
        results.push(fetcher.object(name, object, framework)?);
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
    let count = component.len / dtype.size()? as u64;
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

/// A request to fill memory with a component.
struct Read<'a> {
    name: &'a str,
    role: &'a str,
    data: *mut u8,
    len: usize,
}

// SAFETY: each request points to memory of an array that this call made and
// that nothing else knows yet.
unsafe impl Send for Read<'_> {}

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
    /// Arrays by where they are in the file: two names of one range are tied.
    ties: HashMap<(Extent, DType), (Dims, Bound<'py, PyAny>)>,
    reads: Vec<Read<'a>>,
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
            let array = match self.numpy(name, object, role, component)? {
                Some(array) if component.unknown_type.is_none() => array,
                _ => self.raw(name, object, role, component)?,
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
        self.tied(component, dtype, dims, |this, dims| {
            if let Some((data, owner)) =
                this.mapped(component)?.map(|(data, region)| (data, region.owner.clone()))
            {
                // SAFETY: `mapped` found the component's whole range inside the
                // mapping, `component_dims` made the array exactly that large,
                // and the mapping lives as long as its owner.
                return Ok(unsafe { arrays::view(this.py, descr, dims, data, owner) }?.into_any());
            }
            let len = component.len as usize;
            let (array, data) = arrays::large(this.py, descr, dims, len, phase(component))?;
            this.reads.push(Read { name, role, data, len });
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
        self.tied(component, component.dtype, dims, |this, dims| {
            let mapped = this.mapped(component)?;
            if let Some((data, region)) = mapped.filter(|(data, _)| data.addr().is_multiple_of(alignment)) {
                let source = Arc::clone(&region.source);
                let code = dlpack::code(component.dtype);
                // Types that older versions do not take are handed over as bytes.
                let (code, bits) = code.map_or((1, 8), |code| (code, component.dtype.bits()));
                // SAFETY: as for arrays.
                let capsule = unsafe { dlpack::capsule(py, code, bits, dims, data, source) }?;
                let tensor = functions(py)?.from_dlpack.bind(py).call1((capsule,))?;
                return match dlpack::code(component.dtype) {
                    Some(_) => Ok(tensor),
                    None => tensor.call_method1("view", (dtype,)),
                };
            }
            let sizes = PyTuple::new(py, dims)?;
            let keywords = PyDict::new(py);
            keywords.set_item("dtype", dtype)?;
            let tensor = functions(py)?.empty.bind(py).call((sizes,), Some(&keywords))?;
            let address: usize = tensor.call_method0("data_ptr")?.extract()?;
            let data = std::ptr::with_exposed_provenance_mut::<u8>(address);
            let len = component.len as usize;
            ztensor::advise_huge(data, len);
            this.reads.push(Read { name, role, data, len });
            Ok(tensor)
        })
        .map(Some)
    }

    /// The array that was already made for the same range, or a new one.
    fn tied(
        &mut self,
        component: &Component,
        dtype: DType,
        dims: Dims,
        make: impl FnOnce(&mut Self, &Dims) -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(extent) = component.extent().filter(|_| component.len > 0) else {
            return make(self, &dims);
        };
        match self.ties.get(&(extent, dtype)) {
            Some((first, array)) if *first == dims => return Ok(array.clone()),
            // The same bytes in another shape.
            Some((_, array)) => return array.call_method1("reshape", (PyTuple::new(self.py, &dims)?,)),
            None => {}
        }
        let array = make(self, &dims)?;
        self.ties.insert((extent, dtype), (dims, array.clone()));
        Ok(array)
    }

    /// Where a component lies in a private mapping; `None` if it must be read.
    fn mapped(&mut self, component: &Component) -> PyResult<Option<(*mut u8, &Region<'py>)>> {
        let (false, Storage::Plain(extent)) = (self.copy || component.len == 0, &component.storage) else {
            return Ok(None);
        };
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
        if !inside || extent.len != component.len {
            return Ok(None); // reading it says what is wrong
        }
        Ok(Some((region.region.ptr.wrapping_add(extent.offset as usize), region)))
    }

    /// Fills all new arrays.
    fn read(self, watch: &Watch) -> PyResult<()> {
        let Fetcher { py, reader, mut reads, .. } = self;
        reads.retain(|read| read.len > 0);
        if reads.is_empty() {
            return py.check_signals();
        }
        watch.run(py, move |observer| {
            let requests = reads.into_iter().map(|read| {
                // SAFETY: the array was made with exactly this many bytes and
                // nobody else has it yet; bytes of any value are valid.
                let out = unsafe { std::slice::from_raw_parts_mut(read.data, read.len) };
                (read.name, read.role, out)
            });
            reader.read_many(requests.collect(), Some(observer))
        })
    }
}

/// Where in a page the memory for a component starts: as in the file, if its elements allow that.
fn phase(component: &Component) -> usize {
    const PAGE: u64 = 4096;
    match component.storage {
        Storage::Plain(extent) => {
            let phase = (extent.offset % PAGE) as usize;
            if phase.is_multiple_of(component.dtype.alignment()) { phase } else { 0 }
        }
        _ => 0,
    }
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
