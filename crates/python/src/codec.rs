//! The codec as Python sees it: memory in, `bytes` or filled memory out.
//!
//! What Python calls bytes-like is turned into contiguous bytes on the Python side; here come
//! `bytes`, memoryviews and arrays of bytes.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use z4ai::delta::ParsedDelta;
use z4ai::{
    BlockType, DecodeOptions, Effort, FrameInfo, Kind, Observer, Options, ParsedFrame, SharedObserver,
};

use crate::errors::{OrRaise, exception, invalid, of_codec};
use crate::memory::pin;
use crate::watch::Watch;

/// Memory that is read without the GIL: a concurrent write to it yields a frame
/// of some mix of old and new, since the encoder copies each part before it looks at it.
pub(crate) struct Input(PyBuffer<u8>, #[allow(dead_code)] Option<Py<PyAny>>);

impl<'py> FromPyObject<'_, 'py> for Input {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::get(&object)?;
        match buffer.is_c_contiguous() {
            true => Ok(Input(buffer, pin(&object)?)),
            false => Err(invalid(object.py(), "the memory is not contiguous")),
        }
    }
}

impl Input {
    pub(crate) fn bytes(&self) -> &[u8] {
        if self.0.len_bytes() == 0 {
            return &[];
        }
        // SAFETY: a contiguous buffer of bytes has as many as it says, and stays where it is for
        // as long as `self` holds it.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast_const().cast(), self.0.len_bytes()) }
    }
}

/// Memory of the caller's to be filled.
pub(crate) struct Output(PyBuffer<u8>, #[allow(dead_code)] Option<Py<PyAny>>);

impl<'py> FromPyObject<'_, 'py> for Output {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::get(&object)?;
        match buffer.is_c_contiguous() && !buffer.readonly() {
            true => Ok(Output(buffer, pin(&object)?)),
            false => Err(invalid(object.py(), "out must be contiguous and writable")),
        }
    }
}

impl Output {
    /// The first `len` bytes.
    fn first(&mut self, py: Python<'_>, len: u64) -> PyResult<&mut [u8]> {
        let room = self.0.len_bytes();
        if len > room as u64 {
            return Err(invalid(py, format!("out has {room} bytes, {len} are needed")));
        }
        if len == 0 {
            return Ok(&mut []);
        }
        // SAFETY: a contiguous, writable buffer of at least `len` bytes, which stays where it is
        // for as long as `self` holds it. The decoder never trusts what it wrote.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0.buf_ptr().cast(), len as usize) })
    }

    fn range(&self) -> Range<usize> {
        let start = self.0.buf_ptr().addr();
        start..start + self.0.len_bytes()
    }
}

/// A frame to be decoded: the decoder validates before it decodes, so the frame must not change in
/// between. What can change is copied first.
pub(crate) enum Frame<'py> {
    Fixed(Bound<'py, PyBytes>),
    Copied(Vec<u8>),
}

impl<'py> FromPyObject<'_, 'py> for Frame<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Frame::Fixed(bytes.to_owned()));
        }
        copied(object.py(), Input::extract(object)?.bytes()).map(Frame::Copied)
    }
}

impl Frame<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Frame::Fixed(bytes) => bytes.as_bytes(),
            Frame::Copied(bytes) => bytes,
        }
    }
}

fn copied(py: Python<'_>, bytes: &[u8]) -> PyResult<Vec<u8>> {
    let mut copy = Vec::new();
    let reserved = copy.try_reserve_exact(bytes.len());
    reserved.map_err(|_| no_memory(py, bytes.len() as u64))?;
    ztensor::advise_huge(copy.as_mut_ptr(), bytes.len());
    copy.extend_from_slice(bytes);
    Ok(copy)
}

pub(crate) fn no_memory(py: Python<'_>, len: u64) -> PyErr {
    let message = format!("no memory for {len} bytes");
    exception(py, &ztensor::Error::new(ztensor::ErrorKind::Limit, message))
}

/// New `bytes` of that length, filled by `fill` while the interpreter runs on.
pub(crate) fn new_bytes<'py>(
    py: Python<'py>,
    len: u64,
    fill: impl FnOnce(&mut [u8]) -> ztensor::Result<()> + Send,
) -> PyResult<Bound<'py, PyBytes>> {
    let size = ffi::Py_ssize_t::try_from(len).map_err(|_| no_memory(py, len))?;
    // SAFETY: without a source the call makes uninitialised bytes of that size, or raises.
    let object = unsafe { ffi::PyBytes_FromStringAndSize(std::ptr::null(), size) };
    // SAFETY: a new reference, or null.
    let Some(object) = (unsafe { Bound::from_owned_ptr_or_opt(py, object) }) else {
        drop(PyErr::take(py));
        return Err(no_memory(py, len));
    };
    if len > 0 {
        // SAFETY: `object` is a bytes object, whose memory this is.
        let start = unsafe { ffi::PyBytes_AsString(object.as_ptr()) }.cast::<u8>();
        ztensor::advise_huge(start, size as usize);
        // SAFETY: the object is new, has `size` bytes and is not shared yet; it is dropped
        // unless all of them were written.
        let out = unsafe { std::slice::from_raw_parts_mut(start, size as usize) };
        py.detach(|| fill(out)).or_raise(py)?;
    }
    // SAFETY: it was made as bytes.
    Ok(unsafe { object.cast_into_unchecked() })
}

/// `bytes`, which own their memory, of what was written: one copy, without the interpreter lock.
pub(crate) fn bytes_of(py: Python<'_>, written: Vec<u8>) -> PyResult<Bound<'_, PyBytes>> {
    new_bytes(py, written.len() as u64, move |out| {
        out.copy_from_slice(&written);
        Ok(())
    })
}

/// `(kind, effort, level, threads, structure, shape, array)`
type Settings = (String, String, Option<i32>, usize, bool, Vec<u64>, Option<(String, Vec<u64>)>);

fn options(py: Python<'_>, settings: Settings, watch: &Arc<Watch>) -> PyResult<Options> {
    let (kind, effort, level, threads, structure, shape, array) = settings;
    let watch: Arc<dyn Observer + Send + Sync> = Arc::<Watch>::clone(watch);
    Ok(Options {
        kind: Kind::from_name(&kind).ok_or_else(|| invalid(py, format!("unknown element type {kind:?}")))?,
        effort: self::effort(py, &effort)?,
        threads,
        shape,
        array: array.map(|(dtype, shape)| z4ai::Array { dtype, shape }),
        level,
        structure,
        observer: Some(SharedObserver::from(watch)),
        ..Options::default()
    })
}

/// The effort of that name.
pub(crate) fn effort(py: Python<'_>, name: &str) -> PyResult<Effort> {
    Effort::from_name(name).ok_or_else(|| {
        let known: Vec<_> = Effort::all().map(Effort::name).collect();
        invalid(py, format!("unknown effort {name:?}: choose one of {}", known.join(", ")))
    })
}

/// A frame whose content comes piece by piece.
#[pyclass(module = "ztensor._native")]
pub(crate) struct StreamEncoder(Option<z4ai::StreamEncoder>);

/// First bytes of a frame, more of its payload, and its last bytes.
type Ended<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

#[pymethods]
impl StreamEncoder {
    #[new]
    fn new(py: Python<'_>, settings: Settings) -> PyResult<StreamEncoder> {
        let options = Options { observer: None, ..options(py, settings, &Arc::new(Watch::new(None)))? };
        let encoder = z4ai::StreamEncoder::new(&options, None).map_err(of_codec).or_raise(py)?;
        Ok(StreamEncoder(Some(encoder)))
    }

    /// Takes more content; returns more of the payload.
    fn write<'py>(&mut self, py: Python<'py>, data: Input) -> PyResult<Bound<'py, PyBytes>> {
        let encoder = self.0.as_mut().ok_or_else(|| invalid(py, "the frame is finished"))?;
        let mut payload = Vec::new();
        let written = py.detach(|| encoder.write(data.bytes(), keep(&mut payload)));
        written.map_err(of_codec).or_raise(py)?;
        Ok(PyBytes::new(py, &payload))
    }

    /// Ends the frame: its first bytes, the rest of the payload, and its last bytes.
    fn finish<'py>(&mut self, py: Python<'py>) -> PyResult<Ended<'py>> {
        let encoder = self.0.take().ok_or_else(|| invalid(py, "the frame is finished"))?;
        let mut payload = Vec::new();
        let ends = py.detach(|| encoder.finish(keep(&mut payload))).map_err(of_codec).or_raise(py)?;
        Ok((PyBytes::new(py, &ends.header), PyBytes::new(py, &payload), PyBytes::new(py, &ends.index)))
    }
}

fn keep(payload: &mut Vec<u8>) -> impl FnMut(&[u8]) -> z4ai::Result<()> + Send {
    move |bytes| {
        payload.extend_from_slice(bytes);
        Ok(())
    }
}

/// A frame of `data`, which may be blocks of a quantized type.
#[pyfunction]
#[pyo3(signature = (data, settings, blocks = None))]
pub(crate) fn z4ai_compress<'py>(
    py: Python<'py>,
    data: Input,
    settings: Settings,
    blocks: Option<&str>,
) -> PyResult<Bound<'py, PyBytes>> {
    let watch = Arc::new(Watch::new(None));
    let mut options = options(py, settings, &watch)?;
    if let Some(name) = blocks {
        let known = BlockType::from_name(name);
        let names = || BlockType::ALL.map(BlockType::name).join(", ");
        options.blocks =
            Some(known.ok_or_else(|| invalid(py, format!("blocks of {name:?}: choose one of {}", names())))?);
    }
    let data = data.bytes();
    let frame = watch.run(py, |_| z4ai::compress(data, &options).map_err(of_codec))?;
    bytes_of(py, frame)
}

/// The limits of a call that restores a whole file.
pub(crate) fn limits(max_total_bytes: Option<u64>) -> ztensor::Limits {
    let default = ztensor::Limits::default();
    max_total_bytes.map_or(default, |bytes| default.max_total(bytes))
}

/// Refuses a frame of `stored` bytes that declares more than `max_bytes` decoded ones, by default
/// those that a file of its size may decode to. Called before they are allocated.
#[pyfunction]
#[pyo3(signature = (len, stored, max_bytes))]
pub(crate) fn z4ai_check_size(py: Python<'_>, len: u64, stored: u64, max_bytes: Option<u64>) -> PyResult<()> {
    let most = max_bytes.unwrap_or_else(|| ztensor::Limits::default().most(stored));
    if len <= most {
        return Ok(());
    }
    let message = format!(
        "a frame of {stored} bytes declares {len} decoded ones, the limit is {most}; \
         pass a larger max_bytes if the frame is trusted"
    );
    Err(exception(py, &ztensor::Error::new(ztensor::ErrorKind::Limit, message)))
}

/// A frame and the number of bytes it decodes to, parsed once for both.
fn parsed<'a>(py: Python<'_>, frame: &'a [u8]) -> PyResult<(ParsedFrame<'a>, u64)> {
    let parse = || {
        let frame = ParsedFrame::parse(frame)?;
        let len = frame.content_len()?;
        Ok((frame, len))
    };
    py.detach(parse).map_err(of_codec).or_raise(py)
}

/// The same of a delta.
fn parsed_delta<'a>(py: Python<'_>, frame: &'a [u8]) -> PyResult<(ParsedDelta<'a>, u64)> {
    let parse = || {
        let frame = ParsedDelta::parse(frame)?;
        let len = frame.content_len()?;
        Ok((frame, len))
    };
    py.detach(parse).map_err(of_codec).or_raise(py)
}

/// What a frame decodes to.
#[pyfunction]
#[pyo3(signature = (frame, threads, max_bytes = None))]
pub(crate) fn z4ai_decompress<'py>(
    py: Python<'py>,
    frame: Frame<'py>,
    threads: usize,
    max_bytes: Option<u64>,
) -> PyResult<Bound<'py, PyBytes>> {
    let stored = frame.bytes();
    let (frame, len) = parsed(py, stored)?;
    z4ai_check_size(py, len, stored.len() as u64, max_bytes)?;
    let options = DecodeOptions { threads, ..DecodeOptions::default() };
    new_bytes(py, len, |out| frame.decompress_into(out, &options).map_err(of_codec))
}

/// Decodes a frame into the start of `out`; returns the number of bytes.
#[pyfunction]
pub(crate) fn z4ai_decompress_into(
    py: Python<'_>,
    frame: Frame<'_>,
    mut out: Output,
    threads: usize,
) -> PyResult<u64> {
    let (frame, len) = parsed(py, frame.bytes())?;
    let options = DecodeOptions { threads, ..DecodeOptions::default() };
    let out = out.first(py, len)?;
    py.detach(|| frame.decompress_into(out, &options)).map_err(of_codec).or_raise(py)?;
    Ok(len)
}

/// `(format, version, kind, array, content_len, frame_len, chunks)`
type Info = (&'static str, u32, &'static str, Option<(String, Vec<u64>)>, u64, u64, usize);

fn info(info: FrameInfo) -> Info {
    let array = info.array.map(|array| (array.dtype, array.shape));
    (info.format, info.version, info.kind.name(), array, info.content_len, info.frame_len, info.chunks)
}

/// What a frame or a delta says about itself.
#[pyfunction]
pub(crate) fn z4ai_inspect(py: Python<'_>, frame: Frame<'_>) -> PyResult<Info> {
    let frame = frame.bytes();
    let inspect = || match z4ai::delta::is_delta(frame) {
        true => z4ai::delta::inspect(frame),
        false => z4ai::inspect(frame),
    };
    py.detach(inspect).map(info).map_err(of_codec).or_raise(py)
}

/// `"frame"` or `"delta"`, if bytes start like one.
#[pyfunction]
pub(crate) fn z4ai_kind_of(data: Input) -> Option<&'static str> {
    // A concurrent write changes the answer, and nothing else.
    let start = data.bytes();
    let start = start[..start.len().min(16)].to_vec();
    if z4ai::is_frame(&start) {
        Some("frame")
    } else if z4ai::delta::is_delta(&start) {
        Some("delta")
    } else {
        None
    }
}

/// A delta from `reference` to `current`.
#[pyfunction]
pub(crate) fn z4ai_delta_compress<'py>(
    py: Python<'py>,
    current: Input,
    reference: Input,
    settings: Settings,
) -> PyResult<Bound<'py, PyBytes>> {
    let watch = Arc::new(Watch::new(None));
    let options = options(py, settings, &watch)?;
    let (current, reference) = (current.bytes(), reference.bytes());
    let frame = watch.run(py, |_| z4ai::delta::compress(current, reference, &options).map_err(of_codec))?;
    bytes_of(py, frame)
}

/// What a delta makes of its reference.
#[pyfunction]
pub(crate) fn z4ai_delta_decompress<'py>(
    py: Python<'py>,
    frame: Frame<'py>,
    reference: Input,
    threads: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let (frame, len) = parsed_delta(py, frame.bytes())?;
    let reference = reference.bytes();
    let options = DecodeOptions { threads, ..DecodeOptions::default() };
    if len != reference.len() as u64 {
        // Found before anything is allocated.
        let message = format!("the delta's reference has {len} bytes, this one {}", reference.len());
        return Err(exception(py, &ztensor::Error::new(ztensor::ErrorKind::Mismatch, message)));
    }
    new_bytes(py, len, |out| frame.decompress_into(reference, out, &options).map_err(of_codec))
}

/// Decodes a delta into the start of `out`, which may be the reference itself.
#[pyfunction]
pub(crate) fn z4ai_delta_decompress_into(
    py: Python<'_>,
    frame: Frame<'_>,
    reference: Input,
    mut out: Output,
    threads: usize,
) -> PyResult<u64> {
    let (frame, len) = parsed_delta(py, frame.bytes())?;
    let options = DecodeOptions { threads, ..DecodeOptions::default() };
    let (from, to) = (reference.bytes().as_ptr_range(), out.range());
    let from = from.start.addr()..from.end.addr();
    if from.start == to.start && from.len() as u64 == len && to.len() as u64 >= len {
        drop(reference);
        let buffer = out.first(py, len)?;
        py.detach(|| frame.apply(buffer, &options)).map_err(of_codec).or_raise(py)?;
        return Ok(len);
    }
    let overlap = from.start < to.end && to.start < from.end;
    let reference: Cow<'_, [u8]> = match overlap {
        true => copied(py, reference.bytes())?.into(),
        false => reference.bytes().into(),
    };
    let out = out.first(py, len)?;
    py.detach(|| frame.decompress_into(&reference, out, &options)).map_err(of_codec).or_raise(py)?;
    Ok(len)
}

/// Adds everything here to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("Z4AI_DEFAULT_LEVEL", z4ai::DEFAULT_LEVEL)?;
    module.add("Z4AI_EFFORTS", Effort::all().map(Effort::name).collect::<Vec<_>>())?;
    module.add_class::<StreamEncoder>()?;
    module.add_function(wrap_pyfunction!(z4ai_compress, module)?)?;
    module.add_function(wrap_pyfunction!(z4ai_check_size, module)?)?;
    module.add_function(wrap_pyfunction!(z4ai_decompress, module)?)?;
    module.add_function(wrap_pyfunction!(z4ai_decompress_into, module)?)?;
    module.add_function(wrap_pyfunction!(z4ai_delta_compress, module)?)?;
    module.add_function(wrap_pyfunction!(z4ai_delta_decompress, module)?)?;
    module.add_function(wrap_pyfunction!(z4ai_delta_decompress_into, module)?)?;
    module.add_function(wrap_pyfunction!(z4ai_inspect, module)?)?;
    module.add_function(wrap_pyfunction!(z4ai_kind_of, module)?)?;
    Ok(())
}
