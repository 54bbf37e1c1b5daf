//! Reading `bytes` and `bytearray` in place.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView};

/// Bytes from this size on are worked on without the GIL; below that, giving it up costs more than the work.
pub const DETACH: usize = 64 << 10;

/// Call `work` with the content of a `bytes` or `bytearray`.
///
/// A bytearray is exported while `work` runs, so Python refuses to resize it and the pointer stays valid. Its content must
/// not be written meanwhile: request bodies are not, once they are complete.
#[allow(unsafe_code)]
pub fn with_bytes<T: Send>(object: &Bound<'_, PyAny>, work: impl FnOnce(&[u8]) -> T + Send) -> PyResult<T> {
    let py = object.py();
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(run(py, bytes.as_bytes(), work));
    }
    if let Ok(array) = object.cast::<PyByteArray>() {
        let _export = PyMemoryView::from(object)?;
        // SAFETY: the export above keeps the buffer in place; see the contract in the comment of this function.
        let slice = unsafe { array.as_bytes() };
        return Ok(run(py, slice, work));
    }
    Err(PyTypeError::new_err("bytes or bytearray is expected"))
}

fn run<T: Send>(py: Python<'_>, slice: &[u8], work: impl FnOnce(&[u8]) -> T + Send) -> T {
    if slice.len() < DETACH {
        return work(slice);
    }
    py.detach(|| work(slice))
}
