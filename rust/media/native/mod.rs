//! The two C libraries, mapped files and the system's memory, behind safe functions: the only unsafe code outside `py`.

pub mod mapping;
pub mod pages;
pub mod turbo;
pub mod webp;
