//! The two C libraries and mapped files, behind safe functions: the only unsafe code outside `py`.

pub mod mapping;
pub mod turbo;
pub mod webp;
