//! Pixels exactly as vLLM gets them from Pillow: first frame, orientation applied, transparency put on white, RGB.
//!
//! What is not reproduced byte for byte is not decoded at all: `Outcome::Pass` says to hand the encoded bytes on. What is
//! refused is what Pillow refuses.

mod bmp;
mod convert;
mod gif;
mod jpeg;
mod lzw;
mod png;
mod ppm;
mod tiff;
mod webp;

use super::native::pages;
use super::probe::{probe, Found};
use super::sniff::{sniff, Format, Sniff};
use super::{orient, Limits, MediaError, Probe};
use crate::error::Code;

/// Why a codec gave no pixels.
#[derive(Debug)]
enum Stop {
    /// The engine would not take it either.
    Refused(String),
    /// It may, but the pixels are not known to be the same.
    Pass(&'static str),
}

/// A decoder gave up in the middle. The engine turns the picture upright first, and forgives whatever fails then: it goes on
/// with the pixels of whatever its decoder wrote by that time. Only data that end too early are refused.
const BROKEN: Stop = Stop::Pass("a picture with broken data");

/// A decoded picture: rows of RGB, 8 bits a sample, no gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// What it came from.
    pub format: Format,
    /// Pixels a row, orientation applied.
    pub width: u32,
    /// Rows, orientation applied.
    pub height: u32,
    /// `width * height * 3` bytes.
    pub pixels: Vec<u8>,
}

/// Pixels, or why they are left to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// The pixels.
    Decoded(T),
    /// The engine is to decode it; the kind of picture, for counting.
    Pass(&'static str),
}

/// A picture whose header was read and found within the limits, ready to be decoded.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    data: &'a [u8],
    /// What the header says.
    pub probe: Probe,
}

impl<'a> Plan<'a> {
    /// Read the header of a whole file.
    pub fn new(data: &'a [u8], limits: &Limits) -> Result<Outcome<Self>, MediaError> {
        limits.check_bytes(data.len())?;
        match sniff(data) {
            Sniff::Known(Format::Avif) => return Ok(Outcome::Pass("AVIF")),
            Sniff::Known(Format::Heif) => return Err(MediaError::unsupported("HEIC pictures are not supported")),
            Sniff::Known(Format::Tiff) if matches!(data.get(2..4), Some(b"\0+" | b"+\0")) => {
                return Ok(Outcome::Pass("BigTIFF"));
            }
            Sniff::Known(Format::Ppm) if !matches!(data, [_, b'4'..=b'6', ..]) => {
                return Ok(Outcome::Pass("plain netpbm"))
            }
            Sniff::Known(_) => {}
            Sniff::More => return Err(MediaError::damaged("the picture is cut short")),
            // Engines open dozens of rare formats.
            Sniff::Unknown => return Ok(Outcome::Pass("another format")),
        }
        match probe(data, true, limits) {
            Ok(Found::Header(probe)) => Ok(Outcome::Decoded(Plan { data, probe })),
            Ok(Found::More) => Err(MediaError::damaged("the picture is cut short")),
            // A directory with a broken entry still counts for what it says before that.
            Err(error) if error.code == Code::MediaDamaged && tiff::started(data) => {
                Ok(Outcome::Pass("a damaged TIFF"))
            }
            Err(error) => Err(error),
        }
    }

    /// Bytes of the pixels.
    pub fn size(&self) -> Option<usize> {
        (self.probe.width as usize).checked_mul(self.probe.height as usize)?.checked_mul(3)
    }

    /// Content identity of its decoded pixels: mode, size and samples, so that one picture in two containers is one.
    pub fn id(&self, pixels: &[u8]) -> String {
        let (width, height) = self.probe.upright();
        let (width, height) = (width.to_le_bytes(), height.to_le_bytes());
        super::identity::derive(&[b"epd-router pixels 1", b"RGB", &width, &height, pixels])
    }

    /// Decode into `out`, which has exactly `size` bytes. After anything but `Decoded` its content is undefined.
    pub fn decode(&self, out: &mut [u8]) -> Result<Outcome<()>, MediaError> {
        if Some(out.len()) != self.size() {
            return Err(MediaError::damaged("the target of a picture has another size"));
        }
        let Probe { width, height, orientation, .. } = self.probe;
        pages::large(out);
        let result = if orientation == 1 {
            self.stored(out)
        } else {
            let mut stored = pages::zeros(out.len());
            self.stored(&mut stored).map(|()| orient::apply(&stored, width as usize, height as usize, orientation, out))
        };
        match result {
            Ok(()) => Ok(Outcome::Decoded(())),
            Err(Stop::Pass(what)) => Ok(Outcome::Pass(what)),
            Err(Stop::Refused(message)) => Err(MediaError::damaged(message)),
        }
    }

    fn stored(&self, out: &mut [u8]) -> Result<(), Stop> {
        match self.probe.format {
            Format::Jpeg => jpeg::decode(self.data, &self.probe, out),
            Format::Png => png::decode(self.data, out),
            Format::Webp => webp::decode(self.data, &self.probe, out),
            Format::Gif => gif::decode(self.data, &self.probe, out),
            Format::Bmp => bmp::decode(self.data, out),
            Format::Tiff => tiff::decode(self.data, &self.probe, out),
            Format::Ppm => ppm::decode(self.data, out),
            Format::Avif | Format::Heif => Err(Stop::Pass("AVIF")),
        }
    }
}

/// Decode a whole file.
pub fn decode(data: &[u8], limits: &Limits) -> Result<Outcome<Picture>, MediaError> {
    let plan = match Plan::new(data, limits)? {
        Outcome::Decoded(plan) => plan,
        Outcome::Pass(what) => return Ok(Outcome::Pass(what)),
    };
    let mut pixels = pages::zeros(plan.size().ok_or_else(|| MediaError::damaged("the picture has too many pixels"))?);
    Ok(match plan.decode(&mut pixels)? {
        Outcome::Decoded(()) => {
            let (width, height) = plan.probe.upright();
            Outcome::Decoded(Picture { format: plan.probe.format, width, height, pixels })
        }
        Outcome::Pass(what) => Outcome::Pass(what),
    })
}
