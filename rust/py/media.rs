//! Media identity for Python.

use pyo3::prelude::*;

use super::body::Scan;
use super::buffer::with_bytes;
use super::errors;
use crate::media::identity;

#[pyfunction]
fn media_ids(py: Python<'_>, body: &Bound<'_, PyAny>, scan: &Scan, salt: &[u8]) -> PyResult<Vec<Option<String>>> {
    let items = &scan.scan.items;
    let ids = with_bytes(body, |bytes| items.iter().map(|item| identity::media_id(bytes, item, salt)).collect())?;
    let ids: Result<Vec<_>, _> = ids;
    ids.map_err(|error| errors::body(py, error))
}

#[pyfunction]
fn derive_id(parts: Vec<Vec<u8>>) -> String {
    identity::derive(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(media_ids, module)?)?;
    module.add_function(wrap_pyfunction!(derive_id, module)?)
}
