//! Rust core of epd-router. Everything here is free of I/O; only `py` knows Python.

pub mod body;
pub mod error;
pub mod http;
pub mod media;
pub mod pool;

#[cfg(feature = "python")]
mod py;
