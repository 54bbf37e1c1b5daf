//! Heads and framing for Python.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView, PyString};

use super::buffer::with_bytes;
use super::errors;
use crate::http::chunked::Decoder;
use crate::http::framer::Framer as Follow;
use crate::http::head::{self, Head};

fn latin1(value: &[u8]) -> String {
    value.iter().map(|&byte| byte as char).collect()
}

#[pyclass(frozen, module = "epd_router._core")]
struct RequestHead {
    head: Head,
    method: Py<PyString>,
    path: Py<PyString>,
}

#[pymethods]
impl RequestHead {
    #[getter]
    fn method(&self, py: Python<'_>) -> Py<PyString> {
        self.method.clone_ref(py)
    }
    #[getter]
    fn target(&self) -> &str {
        &self.head.target
    }
    #[getter]
    fn path(&self, py: Python<'_>) -> Py<PyString> {
        self.path.clone_ref(py)
    }
    #[getter]
    fn minor(&self) -> u8 {
        self.head.minor
    }
    #[getter]
    fn size(&self) -> usize {
        self.head.size
    }
    #[getter]
    fn content_length(&self) -> Option<u64> {
        self.head.content_length
    }
    #[getter]
    fn chunked(&self) -> bool {
        self.head.chunked
    }
    #[getter]
    fn keep_alive(&self) -> bool {
        self.head.keep_alive
    }
    #[getter]
    fn expect_continue(&self) -> bool {
        self.head.minor == 1 && self.head.get("expect").is_some_and(|value| value.eq_ignore_ascii_case(b"100-continue"))
    }
    #[getter]
    fn request_id(&self) -> Option<&str> {
        self.head.request_id()
    }
    #[getter]
    fn authorization(&self) -> Option<String> {
        self.head.get("authorization").map(latin1)
    }
    #[getter]
    fn forward<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.head.forward())
    }
    fn get(&self, name: &str) -> Option<String> {
        self.head.get(name).map(latin1)
    }
}

#[pyfunction]
fn parse_request_head(
    py: Python<'_>,
    buffer: &Bound<'_, PyAny>,
    start: usize,
    end: usize,
    limit: usize,
) -> PyResult<Option<RequestHead>> {
    let parsed = with_bytes(buffer, |bytes| head::request(bytes.get(start..end).unwrap_or_default(), limit))?;
    Ok(parsed.map_err(|error| errors::http(py, error))?.map(|head| RequestHead {
        method: PyString::intern(py, &head.method).unbind(),
        path: PyString::new(py, head.path()).unbind(),
        head,
    }))
}

#[pyclass(frozen, module = "epd_router._core")]
struct ResponseHead {
    head: Head,
    event_stream: bool,
}

#[pymethods]
impl ResponseHead {
    #[getter]
    fn status(&self) -> u16 {
        self.head.status
    }
    #[getter]
    fn reason(&self) -> &str {
        &self.head.reason
    }
    #[getter]
    fn minor(&self) -> u8 {
        self.head.minor
    }
    #[getter]
    fn size(&self) -> usize {
        self.head.size
    }
    #[getter]
    fn content_length(&self) -> Option<u64> {
        self.head.content_length
    }
    #[getter]
    fn chunked(&self) -> bool {
        self.head.chunked
    }
    #[getter]
    fn keep_alive(&self) -> bool {
        self.head.keep_alive
    }
    #[getter]
    fn event_stream(&self) -> bool {
        self.event_stream
    }
    #[getter]
    fn forward<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.head.forward())
    }
    fn get(&self, name: &str) -> Option<String> {
        self.head.get(name).map(latin1)
    }
}

#[pyfunction]
fn parse_response_head(py: Python<'_>, buffer: &Bound<'_, PyAny>, limit: usize) -> PyResult<Option<ResponseHead>> {
    let parsed = with_bytes(buffer, |bytes| head::response(bytes, limit))?;
    Ok(parsed.map_err(|error| errors::http(py, error))?.map(|head| {
        let kind = head.get("content-type").map(|value| value.trim_ascii_start().to_ascii_lowercase());
        ResponseHead { event_stream: kind.is_some_and(|kind| kind.starts_with(b"text/event-stream")), head }
    }))
}

#[pyclass(module = "epd_router._core")]
struct Framer(Follow);

#[pymethods]
impl Framer {
    #[new]
    #[pyo3(signature = (content_length, chunked, sse))]
    fn new(content_length: Option<u64>, chunked: bool, sse: bool) -> Self {
        Self(Follow::new(content_length, chunked, sse))
    }
    fn feed(&mut self, py: Python<'_>, data: &[u8]) -> PyResult<u64> {
        self.0.feed(data).map_err(|error| errors::http(py, error))
    }
    #[getter]
    fn done(&self) -> bool {
        self.0.done
    }
    #[getter]
    fn excess(&self) -> u64 {
        self.0.excess
    }
    #[getter]
    fn first_event<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.0.first_event().map(|data| PyBytes::new(py, data))
    }
    #[getter]
    fn error_event<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.0.error_event().map(|data| PyBytes::new(py, data))
    }
}

#[pyclass(module = "epd_router._core")]
struct ChunkedDecoder(Decoder);

#[pymethods]
impl ChunkedDecoder {
    #[new]
    #[pyo3(signature = (limit))]
    fn new(limit: u64) -> Self {
        Self(Decoder::new(limit))
    }
    fn feed<'py>(&mut self, py: Python<'py>, data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        let owned;
        let bytes: &[u8] = if let Ok(bytes) = data.cast::<PyBytes>() {
            bytes.as_bytes()
        } else if data.is_instance_of::<PyByteArray>() || data.is_instance_of::<PyMemoryView>() {
            owned = py.get_type::<PyBytes>().call1((data,))?;
            owned.cast::<PyBytes>()?.as_bytes()
        } else {
            return Err(PyTypeError::new_err("bytes, bytearray or memoryview is expected"));
        };
        let payload = self.0.feed(bytes).map_err(|error| errors::http(py, error))?;
        Ok(PyBytes::new(py, &payload))
    }
    #[getter]
    fn done(&self) -> bool {
        self.0.done()
    }
    #[getter]
    fn excess(&self) -> usize {
        self.0.excess
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RequestHead>()?;
    module.add_class::<ResponseHead>()?;
    module.add_class::<Framer>()?;
    module.add_class::<ChunkedDecoder>()?;
    module.add_function(wrap_pyfunction!(parse_request_head, module)?)?;
    module.add_function(wrap_pyfunction!(parse_response_head, module)?)
}
