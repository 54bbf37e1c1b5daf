//! Media without decoding them: base64 and content identity.

pub mod base64;
pub mod identity;
