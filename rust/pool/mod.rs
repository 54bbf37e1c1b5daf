//! Load of the workers.

pub mod load;
