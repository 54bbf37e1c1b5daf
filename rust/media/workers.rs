//! A bounded pool of threads for decoding, so that neither the event loop nor Python's executors wait for pictures.

use std::collections::VecDeque;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    running: usize,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                state.running += 1;
                drop(state);
                // A job that panics must not cost a thread.
                let _ = catch_unwind(AssertUnwindSafe(job));
                state = self.lock();
                state.running -= 1;
            } else if state.closed {
                return;
            } else {
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

/// Threads and their queue. Dropping it lets queued jobs finish and waits for none: a job may need a lock that whoever
/// drops it holds.
pub struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    most: usize,
}

impl Workers {
    /// `threads` threads; at most `most` jobs wait for them.
    pub fn new(threads: usize, most: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let mut workers = Workers { shared, threads: Vec::new(), most };
        for index in 0..threads.max(1) {
            let shared = Arc::clone(&workers.shared);
            let thread = std::thread::Builder::new().name(format!("decode-{index}")).spawn(move || shared.work())?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    /// Queue a job; false if too many wait already.
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.shared.lock();
        if state.closed || state.jobs.len() >= self.most {
            return false;
        }
        state.jobs.push_back(Box::new(job));
        drop(state);
        self.shared.wake.notify_one();
        true
    }

    /// Jobs that wait and jobs that run.
    pub fn load(&self) -> (usize, usize) {
        let state = self.shared.lock();
        (state.jobs.len(), state.running)
    }

    /// Take no more jobs; threads end once the queue is empty.
    pub fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.wake.notify_all();
    }

    /// Close, and wait for everything queued.
    pub fn join(mut self) {
        self.close();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn bounded_and_complete() {
        let workers = Workers::new(1, 2).unwrap();
        let (open, gate) = channel::<()>();
        let (done, results) = channel();
        let (started, start) = channel();
        assert!(workers.submit(move || {
            started.send(()).unwrap();
            gate.recv().unwrap();
        }));
        start.recv().unwrap();
        for index in 0..2 {
            let done = done.clone();
            assert!(workers.submit(move || done.send(index).unwrap()));
        }
        assert!(!workers.submit(|| {}), "the queue is full");
        assert_eq!(workers.load(), (2, 1));
        open.send(()).unwrap();
        workers.join();
        assert_eq!(results.try_iter().collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn a_panic_costs_nothing() {
        let workers = Workers::new(1, 8).unwrap();
        let (done, results) = channel();
        std::panic::set_hook(Box::new(|_| {}));
        workers.submit(|| panic!("a job"));
        workers.submit(move || done.send(()).unwrap());
        assert!(results.recv().is_ok());
        let _ = std::panic::take_hook();
    }
}
