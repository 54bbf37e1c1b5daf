//! What a picture may be. Checked from its header, before anything is allocated for its pixels.

use super::{MediaError, Probe};
use crate::error::Code;

/// Bounds on one picture.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most pixels.
    pub pixels: u64,
    /// Most pixels of the longer side.
    pub side: u32,
    /// Most times that the longer side may be the shorter one.
    pub aspect: u32,
    /// Most frames of an animation; only the first one is ever decoded.
    pub frames: u32,
    /// Most encoded bytes.
    pub bytes: usize,
}

impl Default for Limits {
    /// What vLLM accepts: 178 956 970 pixels and 256 MiB, nothing else bounded.
    fn default() -> Self {
        Limits { pixels: 178_956_970, side: u32::MAX, aspect: u32::MAX, frames: u32::MAX, bytes: 256 << 20 }
    }
}

impl Limits {
    /// Refuse too many encoded bytes.
    pub fn check_bytes(&self, bytes: usize) -> Result<(), MediaError> {
        if bytes > self.bytes {
            return Err(too_large(format!("the picture has {bytes} bytes, more than the {} allowed", self.bytes)));
        }
        Ok(())
    }

    /// Refuse what the header announces.
    pub fn check(&self, probe: &Probe) -> Result<(), MediaError> {
        let (width, height) = (probe.width, probe.height);
        let (long, short) = (width.max(height), width.min(height));
        let pixels = u64::from(width) * u64::from(height);
        if pixels > self.pixels {
            return Err(too_large(format!("{width}x{height} is more than the {} pixels allowed", self.pixels)));
        }
        if long > self.side {
            return Err(too_large(format!(
                "{width}x{height} has a side of more than the {} pixels allowed",
                self.side
            )));
        }
        if u64::from(long) > u64::from(short) * u64::from(self.aspect) {
            return Err(too_large(format!("{width}x{height} is more than {} times as long as wide", self.aspect)));
        }
        if probe.frames > self.frames {
            return Err(too_large(format!("{} frames are more than the {} allowed", probe.frames, self.frames)));
        }
        Ok(())
    }
}

fn too_large(message: String) -> MediaError {
    MediaError { code: Code::MediaTooLarge, message }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::media::sniff::Format;

    #[test]
    fn every_bound_holds() {
        let probe = Probe { frames: 3, ..Probe::new(Format::Gif, 400, 20) };
        let limits = Limits::default();
        assert!(limits.check(&probe).is_ok());
        let refused = |limits: Limits| limits.check(&probe).unwrap_err().code == Code::MediaTooLarge;
        assert!(refused(Limits { pixels: 7_999, ..limits }) && limits.check_bytes(257 << 20).is_err());
        assert!(refused(Limits { side: 399, ..limits }));
        assert!(refused(Limits { aspect: 19, ..limits }));
        assert!(refused(Limits { frames: 2, ..limits }));
        assert!(Limits { pixels: 8_000, side: 400, aspect: 20, frames: 3, bytes: 1 }.check(&probe).is_ok());
    }
}
