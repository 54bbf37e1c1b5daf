//! The two C libraries and the system's memory, behind safe functions: the only unsafe code outside `py`.

pub mod pages;
pub mod turbo;
pub mod webp;
