//! Predicted outstanding work, held by leases.
//!
//! A lease gives its work back when it is released or dropped, whichever comes first and only once. Counters kept by hand in
//! the request path are what other routers leak.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
struct Totals {
    outstanding: f64,
    active: usize,
}

/// Work at one worker.
#[derive(Clone, Debug)]
pub struct Load {
    totals: Arc<Mutex<Totals>>,
    /// Relative capacity.
    pub weight: f64,
}

impl Load {
    /// Nothing outstanding.
    pub fn new(weight: f64) -> Self {
        Self { totals: Arc::default(), weight }
    }

    fn totals(&self) -> MutexGuard<'_, Totals> {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Predicted work held by leases.
    pub fn outstanding(&self) -> f64 {
        self.totals().outstanding
    }

    /// Leases held.
    pub fn active(&self) -> usize {
        self.totals().active
    }

    /// Hold `cost`.
    pub fn lease(&self, cost: f64) -> Lease {
        let mut totals = self.totals();
        totals.outstanding += cost;
        totals.active += 1;
        drop(totals);
        Lease { load: Some(self.clone()), cost }
    }

    /// Time until this much more work would be done, in units of work at weight 1.
    pub fn pressure(&self, cost: f64) -> f64 {
        (self.outstanding() + cost) / self.weight
    }
}

/// Work held at a worker.
#[derive(Debug)]
pub struct Lease {
    load: Option<Load>,
    cost: f64,
}

impl Lease {
    /// Give the work back; only the first call does.
    pub fn release(&mut self) {
        if let Some(load) = self.load.take() {
            let mut totals = load.totals();
            totals.active -= 1;
            // An idle worker has exactly nothing outstanding, whatever rounding has left.
            totals.outstanding = if totals.active == 0 { 0.0 } else { totals.outstanding - self.cost };
        }
    }

    /// It has been given back.
    pub fn released(&self) -> bool {
        self.load.is_none()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.release();
    }
}

/// Index of the least pressure; `random` breaks ties.
pub fn least(loads: &[Load], cost: f64, random: u64) -> Option<usize> {
    let mut best = f64::INFINITY;
    let mut ties = Vec::with_capacity(loads.len());
    for (index, load) in loads.iter().enumerate() {
        let pressure = load.pressure(cost);
        if pressure < best {
            best = pressure;
            ties.clear();
        }
        if pressure <= best {
            ties.push(index);
        }
    }
    let pick = usize::try_from(random % (ties.len().max(1) as u64)).unwrap_or(0);
    ties.get(pick).copied()
}
