//! The Python module `epd_router._core`. Documentation of what Python sees is in `_core.pyi`.

mod body;
mod buffer;
mod errors;
mod http;
mod media;
mod pool;

use pyo3::prelude::*;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    errors::register(module)?;
    http::register(module)?;
    body::register(module)?;
    media::register(module)?;
    pool::register(module)
}
