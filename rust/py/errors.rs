//! Errors as Python exceptions with attributes.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::{BodyError, Code, HttpError};

pyo3::create_exception!(_core, BodyErrorType, PyValueError);
pyo3::create_exception!(_core, HttpErrorType, PyValueError);

#[pyfunction]
fn error_table() -> Vec<(&'static str, u16, &'static str, &'static str)> {
    Code::ALL.iter().map(|code| (code.name(), code.status(), code.kind(), code.hint())).collect()
}

/// The Python exception for a refused body.
pub fn body(py: Python<'_>, error: BodyError) -> PyErr {
    let exception = BodyErrorType::new_err(error.message.clone());
    let value = exception.value(py);
    let set = value
        .setattr("code", error.code.name())
        .and_then(|()| value.setattr("message", error.message))
        .and_then(|()| value.setattr("param", error.param))
        .and_then(|()| value.setattr("offset", error.offset));
    set.err().unwrap_or(exception)
}

/// The Python exception for a malformed HTTP message.
pub fn http(py: Python<'_>, error: HttpError) -> PyErr {
    let exception = HttpErrorType::new_err(error.message.clone());
    let value = exception.value(py);
    let set = value.setattr("code", error.code.name()).and_then(|()| value.setattr("message", error.message));
    set.err().unwrap_or(exception)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("BodyError", py.get_type::<BodyErrorType>())?;
    module.add("HttpError", py.get_type::<HttpErrorType>())?;
    module.add_function(wrap_pyfunction!(error_table, module)?)
}
