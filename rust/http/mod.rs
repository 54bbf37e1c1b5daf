//! HTTP/1.1 without I/O: heads, and where bodies end.

pub mod chunked;
pub mod framer;
pub mod head;
