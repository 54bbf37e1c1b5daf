//! The request body: one validating pass (`scan`), then byte edits (`splice`).
//!
//! There is no typed request model: what goes on to a worker is the client's bytes with small edits, so unknown members,
//! order and formatting survive.

pub mod json;
pub mod scan;
pub mod splice;
