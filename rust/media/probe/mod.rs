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
    /// Pixels a row, as stored: what SGLang counts with, except for a TIFF, which Pillow opens upright.
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
        Format::Tiff => tiff::probe(data, complete),
        Format::Avif | Format::Heif => heif::probe(data, format, complete),
        Format::Ppm => ppm::probe(data),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// What a start of the file says, for every start.
    fn starts(data: &[u8]) -> Vec<Result<Found, MediaError>> {
        (0..data.len()).map(|size| probe(&data[..size], false, &Limits::default())).collect()
    }

    #[test]
    fn a_start_of_a_tiff_is_never_refused() {
        // A description of 40 bytes behind the directory: more than the start of the file has.
        let mut data = b"II*\0\x08\0\0\0\x03\0".to_vec();
        for (tag, kind, count, value) in [(256_u16, 3_u16, 1_u32, 7_u32), (257, 3, 1, 5), (270, 2, 40, 50)] {
            data.extend(tag.to_le_bytes());
            data.extend(kind.to_le_bytes());
            data.extend(count.to_le_bytes());
            data.extend(value.to_le_bytes());
        }
        data.extend([0; 4]);
        data.extend([b'x'; 40]);
        assert!(starts(&data).iter().all(|found| *found == Ok(Found::More)));
        let Ok(Found::Header(whole)) = probe(&data, false, &Limits::default()) else { panic!("a header") };
        assert_eq!((whole.width, whole.height, whole.frames, whole.settled), (7, 5, 1, true));
        // The offset of a second page that is not there yet.
        let last = data.len() - 44;
        data[last] = 200;
        let Ok(Found::Header(open)) = probe(&data, false, &Limits::default()) else { panic!("a header") };
        assert!(!open.settled);
        let Ok(Found::Header(whole)) = probe(&data, true, &Limits::default()) else { panic!("a header") };
        assert!(whole.settled);
    }

    #[test]
    fn a_box_to_the_end_of_the_file_waits_for_the_end() {
        let mut data = b"\0\0\0\x10ftypavif\0\0\0\0".to_vec();
        data.extend(b"\0\0\0\0meta\0\0\0\0\0\0\0\x0epitm");
        assert!(starts(&data).iter().all(|found| *found == Ok(Found::More)));
        assert!(probe(&data, true, &Limits::default()).is_err());
    }

    #[test]
    fn many_packed_texts_are_no_picture() {
        let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
        std::io::Write::write_all(&mut packed, &vec![b'x'; 1 << 20]).unwrap();
        let packed = packed.finish().unwrap();
        let chunk = |kind: &[u8; 4], body: &[u8]| {
            let mut check = crc32fast::Hasher::new();
            check.update(kind);
            check.update(body);
            [&(body.len() as u32).to_be_bytes()[..], kind, body, &check.finalize().to_be_bytes()].concat()
        };
        for (kind, head) in [(b"zTXt", &b"k\0\0"[..]), (b"iTXt", b"k\0\x01\0\0\0"), (b"iCCP", b"k\0\0")] {
            for (count, taken) in [(64, true), (65, false)] {
                let mut data = b"\x89PNG\r\n\x1a\n".to_vec();
                data.extend(chunk(b"IHDR", b"\0\0\0\x01\0\0\0\x01\x08\0\0\0\0"));
                data.extend(chunk(kind, &[head, &packed].concat()).repeat(count));
                data.extend(chunk(b"IDAT", b""));
                assert_eq!(probe(&data, true, &Limits::default()).is_ok(), taken, "{count}");
            }
        }
    }
}
