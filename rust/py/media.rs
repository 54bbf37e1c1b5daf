//! Media identity, headers and pixels for Python.

use std::path::{Path, PathBuf};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCFunction};

use super::body::{Item, Scan};
use super::buffer::with_bytes;
use super::errors;
use crate::body::scan::{self, Modality};
use crate::error::{BodyError, Code};
use crate::media::decode::{Outcome, Plan};
use crate::media::workers::Workers;
use crate::media::{handoff, identity, limits, probe as header, MediaError as Refusal};

pyo3::create_exception!(epd_router._core, MediaError, PyValueError);

fn raised(py: Python<'_>, error: Refusal) -> PyErr {
    let exception = MediaError::new_err(error.message.clone());
    let value = exception.value(py);
    let set = value.setattr("code", error.code.name()).and_then(|()| value.setattr("message", error.message));
    set.err().unwrap_or(exception)
}

/// What is known of the bytes of one item.
#[pyclass(frozen, module = "epd_router._core")]
struct Named(identity::Named);

#[pymethods]
impl Named {
    #[getter]
    fn id(&self) -> &str {
        &self.0.id
    }
    #[getter]
    fn size(&self) -> u64 {
        self.0.size
    }
    #[getter]
    fn canonical(&self) -> bool {
        self.0.canonical
    }
    #[getter]
    fn probe(&self) -> Option<Probe> {
        self.0.probe.map(Probe)
    }
}

#[pyfunction]
#[pyo3(signature = (body, scan, salt, *, limits = None))]
fn identify(
    py: Python<'_>,
    body: &Bound<'_, PyAny>,
    scan: &Scan,
    salt: &[u8],
    limits: Option<PyRef<'_, Limits>>,
) -> PyResult<Vec<Option<Named>>> {
    let (items, limits) = (&scan.scan.items, chosen(limits.as_deref()));
    let name = |bytes: &[u8]| items.iter().map(|item| identity::name_item(bytes, item, salt, &limits)).collect();
    let found: Result<Vec<_>, _> = with_bytes(body, name)?;
    let found = found.map_err(|error| errors::body(py, error))?;
    Ok(found.into_iter().map(|named| named.map(Named)).collect())
}

fn modality(name: &str) -> PyResult<Modality> {
    match name {
        "image" => Ok(Modality::Image),
        "audio" => Ok(Modality::Audio),
        "video" => Ok(Modality::Video),
        "prompt" => Ok(Modality::Prompt),
        _ => Err(PyValueError::new_err("modality is image, audio, video or prompt")),
    }
}

#[pyfunction]
#[pyo3(signature = (data, kind, salt, *, limits = None))]
fn name_bytes(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    kind: &str,
    salt: &[u8],
    limits: Option<PyRef<'_, Limits>>,
) -> PyResult<Named> {
    let (kind, limits) = (modality(kind)?, chosen(limits.as_deref()));
    let named = with_bytes(data, |bytes| identity::name_bytes(bytes, kind, salt, &limits))?;
    named.map(Named).map_err(|error| raised(py, error))
}

type Reader = fn(&[u8], &scan::Item) -> Result<Option<Vec<u8>>, BodyError>;

fn text_of<'py>(body: &Bound<'py, PyAny>, item: &Item, read: Reader) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let py = body.py();
    let found = with_bytes(body, |bytes| (bytes.len() == item.scan.length).then(|| read(bytes, item.item())))?;
    let found = found.ok_or_else(|| PyValueError::new_err("this is not the scanned body"))?;
    Ok(found.map_err(|error| errors::body(py, error))?.map(|bytes| PyBytes::new(py, &bytes)))
}

#[pyfunction]
fn item_bytes<'py>(body: &Bound<'py, PyAny>, item: &Item) -> PyResult<Option<Bound<'py, PyBytes>>> {
    text_of(body, item, identity::item_bytes)
}

#[pyfunction]
fn clean_text<'py>(body: &Bound<'py, PyAny>, item: &Item) -> PyResult<Option<Bound<'py, PyBytes>>> {
    text_of(body, item, identity::clean_text)
}

#[pyfunction]
#[pyo3(signature = (data, kind, declared = ""))]
fn data_url<'py>(data: &Bound<'py, PyAny>, kind: &str, declared: &str) -> PyResult<Bound<'py, PyBytes>> {
    let kind = modality(kind)?;
    Ok(PyBytes::new(data.py(), &with_bytes(data, |bytes| identity::data_url(bytes, kind, declared))?))
}

#[pyfunction]
fn derive_id(parts: Vec<Vec<u8>>) -> String {
    identity::derive(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

#[pyclass(frozen, module = "epd_router._core")]
struct Limits(limits::Limits);

#[pymethods]
impl Limits {
    #[new]
    #[pyo3(signature = (*, pixels = None, side = None, aspect = None, frames = None, encoded = None))]
    fn new(
        pixels: Option<u64>,
        side: Option<u32>,
        aspect: Option<u32>,
        frames: Option<u32>,
        encoded: Option<usize>,
    ) -> Self {
        let default = limits::Limits::default();
        Limits(limits::Limits {
            pixels: pixels.unwrap_or(default.pixels),
            side: side.unwrap_or(default.side),
            aspect: aspect.unwrap_or(default.aspect),
            frames: frames.unwrap_or(default.frames),
            bytes: encoded.unwrap_or(default.bytes),
        })
    }
    #[getter]
    fn pixels(&self) -> u64 {
        self.0.pixels
    }
    #[getter]
    fn side(&self) -> u32 {
        self.0.side
    }
    #[getter]
    fn aspect(&self) -> u32 {
        self.0.aspect
    }
    #[getter]
    fn frames(&self) -> u32 {
        self.0.frames
    }
    #[getter]
    fn encoded(&self) -> usize {
        self.0.bytes
    }
}

fn chosen(limits: Option<&Limits>) -> limits::Limits {
    limits.map_or_else(limits::Limits::default, |limits| limits.0)
}

#[pyclass(frozen, module = "epd_router._core")]
struct Probe(header::Probe);

#[pymethods]
impl Probe {
    #[getter]
    fn format(&self) -> &'static str {
        self.0.format.name()
    }
    #[getter]
    fn mime(&self) -> &'static str {
        self.0.format.mime()
    }
    #[getter]
    fn width(&self) -> u32 {
        self.0.width
    }
    #[getter]
    fn height(&self) -> u32 {
        self.0.height
    }
    #[getter]
    fn upright(&self) -> (u32, u32) {
        self.0.upright()
    }
    #[getter]
    fn orientation(&self) -> u8 {
        self.0.orientation
    }
    #[getter]
    fn alpha(&self) -> bool {
        self.0.alpha
    }
    #[getter]
    fn depth(&self) -> u8 {
        self.0.depth
    }
    #[getter]
    fn channels(&self) -> u8 {
        self.0.channels
    }
    #[getter]
    fn palette(&self) -> bool {
        self.0.palette
    }
    #[getter]
    fn frames(&self) -> u32 {
        self.0.frames
    }
    #[getter]
    fn settled(&self) -> bool {
        self.0.settled
    }
}

#[pyfunction]
#[pyo3(signature = (data, *, complete = true, limits = None))]
fn probe(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    complete: bool,
    limits: Option<PyRef<'_, Limits>>,
) -> PyResult<Option<Probe>> {
    let limits = chosen(limits.as_deref());
    match with_bytes(data, |bytes| header::probe(bytes, complete, &limits))? {
        Ok(header::Found::Header(probe)) => Ok(Some(Probe(probe))),
        Ok(header::Found::More) => Ok(None),
        Err(error) => Err(raised(py, error)),
    }
}

#[pyclass(frozen, module = "epd_router._core")]
struct Decoded {
    probe: header::Probe,
    ppm: bool,
    pixels: Py<PyBytes>,
    #[pyo3(get)]
    size: usize,
    #[pyo3(get)]
    id: Option<String>,
}

#[pymethods]
impl Decoded {
    #[getter]
    fn width(&self) -> u32 {
        self.probe.upright().0
    }
    #[getter]
    fn height(&self) -> u32 {
        self.probe.upright().1
    }
    #[getter]
    fn mode(&self) -> &'static str {
        "RGB"
    }
    #[getter]
    fn format(&self) -> &'static str {
        self.probe.format.name()
    }
    #[getter]
    fn data(&self, py: Python<'_>) -> Py<PyBytes> {
        self.pixels.clone_ref(py)
    }
    #[getter]
    fn offset(&self) -> usize {
        let (width, height) = self.probe.upright();
        if self.ppm {
            handoff::header(width, height).len()
        } else {
            0
        }
    }
}

#[pyclass(frozen, module = "epd_router._core")]
struct PassThrough {
    #[pyo3(get)]
    reason: &'static str,
}

/// What to make of a picture.
#[derive(Clone, Copy)]
struct Wish {
    limits: limits::Limits,
    ppm: bool,
    identify: bool,
}

/// Decode with the GIL held only to allocate: the pixels are written straight into a new `bytes`.
fn pixels(py: Python<'_>, data: &[u8], wish: &Wish) -> PyResult<Py<PyAny>> {
    let Wish { limits, ppm, identify } = *wish;
    let plan = match py.detach(|| Plan::new(data, &limits)).map_err(|error| raised(py, error))? {
        Outcome::Decoded(plan) => plan,
        Outcome::Pass(reason) => return Ok(PassThrough { reason }.into_pyobject(py)?.into_any().unbind()),
    };
    let size = if ppm { handoff::size(&plan) } else { plan.size() };
    let size = size.ok_or_else(|| MediaError::new_err("the picture has too many pixels"))?;
    let target = zeros(py, size)?;
    let out = writable(&target, size)?;
    let outcome = py.detach(|| {
        let outcome = if ppm { handoff::write(&plan, out) } else { plan.decode(out) }?;
        Ok(match outcome {
            Outcome::Decoded(()) => {
                let pixels = &out[size - plan.size().unwrap_or(size)..];
                Outcome::Decoded(identify.then(|| plan.id(pixels)))
            }
            Outcome::Pass(reason) => Outcome::Pass(reason),
        })
    });
    match outcome.map_err(|error| raised(py, error))? {
        Outcome::Decoded(id) => {
            let decoded = Decoded { probe: plan.probe, ppm, pixels: target.unbind(), size, id };
            Ok(decoded.into_pyobject(py)?.into_any().unbind())
        }
        Outcome::Pass(reason) => Ok(PassThrough { reason }.into_pyobject(py)?.into_any().unbind()),
    }
}

/// A new `bytes` of zeros, which the allocator gets from the system without writing them.
fn zeros(py: Python<'_>, size: usize) -> PyResult<Bound<'_, PyBytes>> {
    Ok(py.get_type::<PyBytes>().call1((size,))?.cast_into::<PyBytes>()?)
}

/// Its memory. Only for an object fresh from `zeros`, of more than one byte (shorter ones are shared), before anyone else
/// sees it.
#[allow(unsafe_code, clippy::mut_from_ref)]
fn writable<'a>(target: &'a Bound<'_, PyBytes>, size: usize) -> PyResult<&'a mut [u8]> {
    // SAFETY: the object has `size` bytes, stays alive as long as the slice, and has no other reader or writer.
    unsafe {
        let start = pyo3::ffi::PyBytes_AsString(target.as_ptr());
        if start.is_null() {
            return Err(PyErr::fetch(target.py()));
        }
        Ok(std::slice::from_raw_parts_mut(start.cast::<u8>(), size))
    }
}

/// Decode into a new file at `path`, a PPM; the GIL is not needed at all.
fn file(py: Python<'_>, data: &[u8], limits: &limits::Limits, path: &Path) -> PyResult<Py<PyAny>> {
    let made = py.detach(|| {
        Ok(match Plan::new(data, limits)? {
            Outcome::Decoded(plan) => (Some(plan.probe), handoff::write_file(&plan, path)),
            Outcome::Pass(reason) => (None, Ok(Ok(Outcome::Pass(reason)))),
        })
    });
    let (probe, made) = made.map_err(|error| raised(py, error))?;
    match made?.map_err(|error| raised(py, error))? {
        Outcome::Decoded((size, id)) => {
            let probe = probe.ok_or_else(|| PyRuntimeError::new_err("pixels without a header"))?;
            let pixels = PyBytes::new(py, b"").unbind();
            let decoded = Decoded { probe, ppm: true, pixels, size, id: Some(id) };
            Ok(decoded.into_pyobject(py)?.into_any().unbind())
        }
        Outcome::Pass(reason) => Ok(PassThrough { reason }.into_pyobject(py)?.into_any().unbind()),
    }
}

#[pyfunction]
#[pyo3(signature = (data, *, limits = None, ppm = false, identify = true))]
fn decode(
    py: Python<'_>,
    data: &Bound<'_, PyBytes>,
    limits: Option<PyRef<'_, Limits>>,
    ppm: bool,
    identify: bool,
) -> PyResult<Py<PyAny>> {
    pixels(py, data.as_bytes(), &Wish { limits: chosen(limits.as_deref()), ppm, identify })
}

#[pyclass(frozen, module = "epd_router._core")]
struct DecodePool(Workers);

#[pymethods]
impl DecodePool {
    #[new]
    fn new(threads: usize, queue: usize) -> PyResult<Self> {
        Ok(DecodePool(Workers::new(threads, queue)?))
    }

    #[pyo3(signature = (data, *, limits = None, ppm = false, identify = true))]
    fn decode<'py>(
        &self,
        py: Python<'py>,
        data: Py<PyBytes>,
        limits: Option<PyRef<'_, Limits>>,
        ppm: bool,
        identify: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let wish = Wish { limits: chosen(limits.as_deref()), ppm, identify };
        self.submit(py, move |py| pixels(py, data.as_bytes(py), &wish))
    }

    #[pyo3(signature = (data, path, *, limits = None))]
    fn decode_to<'py>(
        &self,
        py: Python<'py>,
        data: Py<PyBytes>,
        path: PathBuf,
        limits: Option<PyRef<'_, Limits>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let limits = chosen(limits.as_deref());
        self.submit(py, move |py| file(py, data.as_bytes(py), &limits, &path))
    }

    #[getter]
    fn waiting(&self) -> usize {
        self.0.load().0
    }
    #[getter]
    fn running(&self) -> usize {
        self.0.load().1
    }
    fn close(&self) {
        self.0.close();
    }
}

impl DecodePool {
    fn submit<'py>(
        &self,
        py: Python<'py>,
        work: impl FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Bound<'py, PyAny>> {
        let event_loop = py.import("asyncio")?.call_method0("get_running_loop")?;
        let future = event_loop.call_method0("create_future")?;
        let (event_loop, waiter) = (event_loop.unbind(), future.clone().unbind());
        let queued = self.0.submit(move || {
            // None while the interpreter shuts down: then nobody waits either.
            Python::try_attach(|py| run(py, work, event_loop.bind(py), waiter.bind(py)));
        });
        if queued {
            return Ok(future);
        }
        let message = "too many pictures wait for being decoded".to_owned();
        Err(raised(py, Refusal { code: Code::QueueFull, message }))
    }
}

fn run(
    py: Python<'_>,
    work: impl FnOnce(Python<'_>) -> PyResult<Py<PyAny>>,
    event_loop: &Bound<'_, PyAny>,
    waiter: &Bound<'_, PyAny>,
) {
    // Reading the state of a future from another thread is a look at one attribute; `settle` looks again on the loop.
    if waiter.call_method0("cancelled").is_ok_and(|cancelled| cancelled.is_truthy().unwrap_or(false)) {
        return;
    }
    let (failed, value) = match work(py) {
        Ok(value) => (false, value),
        Err(error) => (true, error.into_value(py).into_any()),
    };
    // A loop that is closed meanwhile raises, and nobody waits any more.
    let _ =
        settler(py).and_then(|settle| event_loop.call_method1("call_soon_threadsafe", (settle, waiter, failed, value)));
}

fn settler(py: Python<'_>) -> PyResult<Bound<'_, PyCFunction>> {
    wrap_pyfunction!(settle, py)
}

#[pyfunction]
fn settle(waiter: &Bound<'_, PyAny>, failed: bool, value: Bound<'_, PyAny>) -> PyResult<()> {
    if waiter.call_method0("done")?.is_truthy()? {
        return Ok(());
    }
    let result = waiter.call_method1(if failed { "set_exception" } else { "set_result" }, (value,));
    result.map(|_| ()).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("MediaError", module.py().get_type::<MediaError>())?;
    module.add_class::<Limits>()?;
    module.add_class::<Probe>()?;
    module.add_class::<Decoded>()?;
    module.add_class::<PassThrough>()?;
    module.add_class::<DecodePool>()?;
    module.add_function(wrap_pyfunction!(probe, module)?)?;
    module.add_function(wrap_pyfunction!(decode, module)?)?;
    module.add_class::<Named>()?;
    module.add_function(wrap_pyfunction!(identify, module)?)?;
    module.add_function(wrap_pyfunction!(name_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(item_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(clean_text, module)?)?;
    module.add_function(wrap_pyfunction!(data_url, module)?)?;
    module.add_function(wrap_pyfunction!(derive_id, module)?)
}
