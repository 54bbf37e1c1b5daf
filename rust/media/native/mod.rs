//! The two C libraries, behind safe functions: the only unsafe code outside `py`.

pub mod turbo;
pub mod webp;
