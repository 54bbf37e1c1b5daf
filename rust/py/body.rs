//! Scanning and splicing for Python.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PyMemoryView, PySlice, PyString, PyTuple};

use super::buffer::with_bytes;
use super::errors;
use crate::body::json::unescape;
use crate::body::scan::{self, Limits, Modality, Source};
use crate::body::splice::{self, Piece};

/// What one pass found.
#[pyclass(frozen, module = "epd_router._core")]
pub struct Scan {
    pub scan: Arc<scan::Scan>,
    model: Option<Py<PyString>>,
    items: Py<PyTuple>,
    fields: PyOnceLock<Py<PyTuple>>,
}

/// One media part.
#[pyclass(frozen, module = "epd_router._core")]
pub struct Item {
    pub scan: Arc<scan::Scan>,
    index: usize,
    url: Option<String>,
}

impl Item {
    pub fn item(&self) -> &scan::Item {
        &self.scan.items[self.index]
    }
}

#[pymethods]
impl Item {
    #[getter]
    fn modality(&self) -> &'static str {
        match self.item().modality {
            Modality::Image => "image",
            Modality::Audio => "audio",
            Modality::Video => "video",
            Modality::Prompt => "prompt",
        }
    }
    #[getter]
    fn source(&self) -> &'static str {
        match self.item().source {
            Source::Data => "data",
            Source::Http => "http",
            Source::Other => "other",
            Source::None => "none",
            Source::Embeds => "embeds",
        }
    }
    #[getter]
    fn span(&self) -> (usize, usize) {
        (self.item().start, self.item().end)
    }
    #[getter]
    fn url(&self) -> Option<&str> {
        self.url.as_deref()
    }
    #[getter]
    fn client_uuid(&self) -> bool {
        self.item().uuid.is_some()
    }
    #[getter]
    fn param(&self) -> &str {
        &self.item().param
    }
}

#[pymethods]
impl Scan {
    #[getter]
    fn model(&self, py: Python<'_>) -> Option<Py<PyString>> {
        self.model.as_ref().map(|model| model.clone_ref(py))
    }
    #[getter]
    fn stream(&self) -> bool {
        self.scan.stream
    }
    #[getter]
    fn max_tokens(&self) -> Option<u64> {
        self.scan.max_tokens
    }
    #[getter]
    fn n(&self) -> u64 {
        self.scan.n
    }
    #[getter]
    fn items(&self, py: Python<'_>) -> Py<PyTuple> {
        self.items.clone_ref(py)
    }
    #[getter]
    fn text_bytes(&self) -> usize {
        self.scan.text_bytes
    }
    #[getter]
    fn fields(&self, py: Python<'_>) -> PyResult<Py<PyTuple>> {
        let names = || PyTuple::new(py, self.scan.members.iter().map(|member| &member.name)).map(Bound::unbind);
        Ok(self.fields.get_or_try_init(py, names)?.clone_ref(py))
    }
    #[getter]
    fn client_uuids(&self) -> bool {
        self.scan.items.iter().any(|item| item.uuid.is_some())
    }
    fn raw<'py>(&self, py: Python<'py>, body: &Bound<'py, PyAny>, name: &str) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let Some(member) = self.scan.members.iter().rev().find(|member| member.name == name) else {
            return Ok(None);
        };
        let value = with_bytes(body, |bytes| bytes.get(member.value..member.end).map(<[u8]>::to_vec))?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }
    fn edit(&self) -> Edits {
        Edits { scan: self.scan.clone(), edits: Mutex::default(), urls: Mutex::default() }
    }
}

#[pyfunction]
#[pyo3(name = "scan", signature = (body, max_depth = 128, max_items = 1024))]
fn scan_body(py: Python<'_>, body: &Bound<'_, PyAny>, max_depth: usize, max_items: usize) -> PyResult<Scan> {
    // Recursion is bounded by the depth; cap it so that no option can overflow the stack.
    let limits = Limits { depth: max_depth.min(1024), items: max_items };
    let (scan, urls) = with_bytes(body, |bytes| {
        scan::scan(bytes, limits).map(|scan| {
            let urls: Vec<_> = scan.items.iter().map(|item| url(bytes, item)).collect();
            (scan, urls)
        })
    })?
    .map_err(|error| errors::body(py, error))?;
    let model = scan.model.as_ref().map(|model| PyString::new(py, model).unbind());
    let scan = Arc::new(scan);
    let items = urls.into_iter().enumerate().map(|(index, url)| Py::new(py, Item { scan: scan.clone(), index, url }));
    let items = PyTuple::new(py, items.collect::<PyResult<Vec<_>>>()?)?.unbind();
    Ok(Scan { scan, model, items, fields: PyOnceLock::new() })
}

fn url(text: &[u8], item: &scan::Item) -> Option<String> {
    match (item.source, item.text) {
        (Source::Http | Source::Other, Some(string)) => Some(unescape(text, string)),
        _ => None,
    }
}

/// Byte edits of one scanned body.
#[pyclass(frozen, module = "epd_router._core")]
struct Edits {
    scan: Arc<scan::Scan>,
    edits: Mutex<splice::Edits>,
    urls: Mutex<BTreeMap<usize, Py<PyBytes>>>,
}

impl Edits {
    fn change<T>(&self, work: impl FnOnce(&mut splice::Edits) -> T) -> T {
        work(&mut self.edits.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn check(&self, index: usize) -> PyResult<()> {
        if index < self.scan.items.len() {
            return Ok(());
        }
        Err(PyIndexError::new_err("no such media part"))
    }
}

#[pymethods]
impl Edits {
    fn set(&self, name: &str, value: &[u8]) {
        self.change(|edits| edits.set(name, value));
    }
    fn remove(&self, name: &str) {
        self.change(|edits| edits.remove(name));
    }
    #[pyo3(signature = (index, uuid))]
    fn set_uuid(&self, index: usize, uuid: Option<&str>) -> PyResult<()> {
        self.check(index)?;
        if uuid.is_some_and(|uuid| uuid.bytes().any(|byte| byte < 0x20 || byte == b'"' || byte == b'\\')) {
            return Err(PyValueError::new_err("a uuid needs no escapes"));
        }
        self.change(|edits| edits.set_uuid(index, uuid));
        Ok(())
    }
    fn strip_uuids(&self) {
        self.change(|edits| (0..self.scan.items.len()).for_each(|index| edits.set_uuid(index, None)));
    }
    fn set_item(&self, index: usize, part: &[u8]) -> PyResult<()> {
        self.check(index)?;
        self.change(|edits| edits.set_item(index, part));
        Ok(())
    }
    fn set_url(&self, py: Python<'_>, index: usize, url: Py<PyBytes>) -> PyResult<()> {
        self.check(index)?;
        check_url(url.as_bytes(py))?;
        self.urls.lock().unwrap_or_else(PoisonError::into_inner).insert(index, url);
        self.change(|edits| edits.set_url(index));
        Ok(())
    }
    fn apply<'py>(&self, py: Python<'py>, body: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyList>, usize)> {
        let length = self.scan.length;
        let edits = self.change(|edits| edits.clone());
        let pieces = with_bytes(body, |bytes| (bytes.len() == length).then(|| edits.apply(bytes, &self.scan)))?;
        let pieces = pieces.ok_or_else(|| PyValueError::new_err("this is not the scanned body"))?;
        let urls = self.urls.lock().unwrap_or_else(PoisonError::into_inner);
        to_python(py, body, pieces, |index| urls.get(&index).map(|url| url.clone_ref(py)))
    }
}

/// A URL is put between quotes as it is.
fn check_url(url: &[u8]) -> PyResult<()> {
    // Without a way out of the loop, so that it is done in vectors.
    let bad = |byte: u8| !(0x20..0x7f).contains(&byte) || byte == b'"' || byte == b'\\';
    if url.iter().fold(false, |found, &byte| found | bad(byte)) {
        return Err(PyValueError::new_err("a URL needs no escapes"));
    }
    Ok(())
}

fn to_python<'py>(
    py: Python<'py>,
    body: &Bound<'py, PyAny>,
    pieces: Vec<Piece>,
    url: impl Fn(usize) -> Option<Py<PyBytes>>,
) -> PyResult<(Bound<'py, PyList>, usize)> {
    let list = PyList::empty(py);
    let mut total = 0;
    for piece in pieces {
        match piece {
            Piece::Owned(bytes) => {
                total += bytes.len();
                list.append(PyBytes::new(py, &bytes))?;
            }
            Piece::Kept(range) => {
                total += range.len();
                let slice = PySlice::new(py, range.start as isize, range.end as isize, 1);
                list.append(PyMemoryView::from(body)?.get_item(slice)?)?;
            }
            Piece::Url(index) => {
                let url = url(index).ok_or_else(|| PyValueError::new_err("a URL that was not given"))?;
                total += url.as_bytes(py).len();
                list.append(url)?;
            }
        }
    }
    Ok((list, total))
}

#[pyfunction]
#[pyo3(signature = (body, item, uuid, url = None))]
fn item_pieces<'py>(
    py: Python<'py>,
    body: &Bound<'py, PyAny>,
    item: &Item,
    uuid: &str,
    url: Option<Py<PyBytes>>,
) -> PyResult<Bound<'py, PyList>> {
    let replaced = url.is_some();
    if let Some(url) = &url {
        check_url(url.as_bytes(py))?;
    }
    let pieces = with_bytes(body, |bytes| {
        (bytes.len() == item.scan.length).then(|| splice::item_pieces(bytes, item.item(), uuid, replaced))
    })?;
    let pieces = pieces.ok_or_else(|| PyValueError::new_err("this is not the scanned body"))?;
    Ok(to_python(py, body, pieces, |_| url.as_ref().map(|url| url.clone_ref(py)))?.0)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Scan>()?;
    module.add_class::<Item>()?;
    module.add_class::<Edits>()?;
    module.add_function(wrap_pyfunction!(scan_body, module)?)?;
    module.add_function(wrap_pyfunction!(item_pieces, module)?)
}
