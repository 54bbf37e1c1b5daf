//! Load accounting for Python.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::pool::load;

#[pyclass(frozen, module = "epd_router._core")]
struct Load(load::Load);

#[pymethods]
impl Load {
    #[new]
    #[pyo3(signature = (weight = 1.0))]
    fn new(weight: f64) -> PyResult<Self> {
        if !(weight.is_finite() && weight > 0.0) {
            return Err(PyValueError::new_err("weight must be a finite number above 0"));
        }
        Ok(Self(load::Load::new(weight)))
    }
    #[getter]
    fn outstanding(&self) -> f64 {
        self.0.outstanding()
    }
    #[getter]
    fn active(&self) -> usize {
        self.0.active()
    }
    #[getter]
    fn weight(&self) -> f64 {
        self.0.weight
    }
    fn lease(&self, cost: f64) -> PyResult<Lease> {
        check(cost)?;
        Ok(Lease(Mutex::new(self.0.lease(cost))))
    }
}

#[pyclass(frozen, module = "epd_router._core")]
struct Lease(Mutex<load::Lease>);

#[pymethods]
impl Lease {
    fn release(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).release();
    }
    #[getter]
    fn released(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).released()
    }
}

/// One cost that is no number would make every comparison false from then on.
fn check(cost: f64) -> PyResult<()> {
    if cost.is_finite() && cost >= 0.0 {
        return Ok(());
    }
    Err(PyValueError::new_err("cost must be a finite number from 0"))
}

static STATE: AtomicU64 = AtomicU64::new(0x9e37_79b9_7f4a_7c15);

/// A cheap random number (splitmix64): ties between workers need no better.
fn random() -> u64 {
    let mut value = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[pyfunction]
fn least_loaded(loads: Vec<PyRef<'_, Load>>, cost: f64) -> PyResult<i64> {
    check(cost)?;
    let loads: Vec<load::Load> = loads.iter().map(|load| load.0.clone()).collect();
    Ok(load::least(&loads, cost, random()).map_or(-1, |index| index as i64))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Load>()?;
    module.add_class::<Lease>()?;
    module.add_function(wrap_pyfunction!(least_loaded, module)?)
}
