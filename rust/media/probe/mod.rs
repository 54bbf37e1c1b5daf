//! What a picture is, from its header alone: nothing is decoded and nothing of its size allocated.

pub mod bmp;
pub mod exif;
pub mod gif;
mod heif;
mod jpeg;
pub mod png;
pub mod ppm;
pub mod reader;
pub mod tiff;
mod webp;

use super::sniff::{sniff, Format, Sniff};
use super::{orient, Limits, MediaError};
use reader::Stop;

/// What the header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// From the magic bytes.
    pub format: Format,
    /// Pixels a row, as stored.
    pub width: u32,
    /// Rows, as stored.
    pub height: u32,
    /// EXIF orientation, 1 to 8, from wherever the engine finds one.
    pub orientation: u8,
    /// It may have transparent pixels.
    pub alpha: bool,
    /// Bits a sample.
    pub depth: u8,
    /// Samples a pixel as stored; 1 for a palette.
    pub channels: u8,
    /// Samples are indices.
    pub palette: bool,
    /// Frames or pages; as many as were there to be counted.
    pub frames: u32,
    /// False while bytes still missing may change orientation or frames.
    pub settled: bool,
}

impl Probe {
    pub(super) fn new(format: Format, width: u32, height: u32) -> Self {
        Probe {
            format,
            width,
            height,
            orientation: 1,
            alpha: false,
            depth: 8,
            channels: 1,
            palette: false,
            frames: 1,
            settled: true,
        }
    }

    /// Width and height as vLLM sees them: with the orientation applied.
    pub fn upright(&self) -> (u32, u32) {
        orient::size(self.width, self.height, self.orientation)
    }
}

/// A header, or the wish for more bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The header.
    Header(Probe),
    /// It is not complete.
    More,
}

/// Read the header of `data`, which is the whole file or, without `complete`, its start.
///
/// Errors: `media_unsupported` for what is none of the formats, `media_damaged` for a broken header, `media_too_large`.
pub fn probe(data: &[u8], complete: bool, limits: &Limits) -> Result<Found, MediaError> {
    limits.check_bytes(data.len())?;
    let format = match sniff(data) {
        Sniff::Known(format) => format,
        Sniff::More if !complete => return Ok(Found::More),
        _ => return Err(MediaError::unsupported("the bytes are no picture of a known format")),
    };
    let probe = match read(format, data, complete) {
        Ok(probe) => probe,
        Err(Stop::Short) if !complete => return Ok(Found::More),
        Err(Stop::Short) => return Err(MediaError::damaged(format!("the {} header is cut short", format.name()))),
        Err(Stop::Bad(what)) => return Err(MediaError::damaged(format!("the picture is {what}"))),
    };
    if probe.width == 0 || probe.height == 0 {
        return Err(MediaError::damaged("the picture has no pixels"));
    }
    limits.check(&probe)?;
    Ok(Found::Header(probe))
}

fn read(format: Format, data: &[u8], complete: bool) -> Result<Probe, Stop> {
    match format {
        Format::Jpeg => jpeg::probe(data),
        Format::Png => png::probe(data, complete),
        Format::Webp => webp::probe(data, complete),
        Format::Gif => gif::probe(data).map(|probe| Probe { settled: probe.settled || complete, ..probe }),
        Format::Bmp => bmp::probe(data),
        Format::Tiff => tiff::probe(data),
        Format::Avif | Format::Heif => heif::probe(data, format),
        Format::Ppm => ppm::probe(data),
    }
}
