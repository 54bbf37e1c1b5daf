//! Errors as Python exceptions with attributes.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::{self, Code};

pyo3::create_exception!(epd_router._core, BodyError, PyValueError);
pyo3::create_exception!(epd_router._core, HttpError, PyValueError);

#[pyfunction]
fn error_table() -> Vec<(&'static str, u16, &'static str, &'static str)> {
    Code::ALL.iter().map(|code| (code.name(), code.status(), code.kind(), code.hint())).collect()
}

/// The Python exception for a refused body.
pub fn body(py: Python<'_>, error: error::BodyError) -> PyErr {
    let exception = BodyError::new_err(error.message.clone());
    let value = exception.value(py);
    let set = value
        .setattr("code", error.code.name())
        .and_then(|()| value.setattr("message", error.message))
        .and_then(|()| value.setattr("param", error.param))
        .and_then(|()| value.setattr("offset", error.offset));
    set.err().unwrap_or(exception)
}

/// The Python exception for a malformed HTTP message.
pub fn http(py: Python<'_>, error: error::HttpError) -> PyErr {
    let exception = HttpError::new_err(error.message.clone());
    let value = exception.value(py);
    let set = value.setattr("code", error.code.name()).and_then(|()| value.setattr("message", error.message));
    set.err().unwrap_or(exception)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("BodyError", py.get_type::<BodyError>())?;
    module.add("HttpError", py.get_type::<HttpError>())?;
    module.add_function(wrap_pyfunction!(error_table, module)?)
}
