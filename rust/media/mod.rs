//! Pictures: content identity, what their headers say, and their pixels exactly as Pillow decodes them.

pub mod base64;
pub mod decode;
pub mod handoff;
pub mod identity;
pub mod limits;
mod native;
pub mod orient;
pub mod probe;
pub mod sniff;
pub mod workers;

use std::fmt;

use crate::error::Code;
pub use limits::Limits;
pub use probe::Probe;

/// A picture that no engine would take, or that is beyond the limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaError {
    /// `media_damaged`, `media_unsupported` or `media_too_large`.
    pub code: Code,
    /// For humans, one sentence.
    pub message: String,
}

impl MediaError {
    fn damaged(message: impl Into<String>) -> Self {
        MediaError { code: Code::MediaDamaged, message: message.into() }
    }

    fn unsupported(message: impl Into<String>) -> Self {
        MediaError { code: Code::MediaUnsupported, message: message.into() }
    }
}

impl fmt::Display for MediaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for MediaError {}
