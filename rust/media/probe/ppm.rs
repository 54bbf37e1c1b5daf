//! The netpbm family.

use super::reader::{Reader, Stop};
use super::Probe;
use crate::media::sniff::Format;

/// The header.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// The digit of the magic number, or another letter.
    pub kind: u8,
    /// Pixels a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Largest sample; 1 for bitmaps, 0 for kinds without.
    pub max: u32,
    /// Where the samples start.
    pub data: usize,
}

fn space(byte: u8) -> bool {
    matches!(byte, b' ' | 9..=13)
}

/// Read the header.
pub fn header(data: &[u8]) -> Result<Header, Stop> {
    let mut reader = Reader::new(data, 2);
    let kind = data.get(1).copied().ok_or(Stop::Short)?;
    let plain = reader.u8()?;
    if !space(plain) {
        // Longer magic numbers are Pillow's own test formats.
        return Err(Stop::Bad("an unknown netpbm format"));
    }
    let (width, height) = (token(&mut reader)?, token(&mut reader)?);
    let max = match kind {
        b'1' | b'4' => 1,
        b'2' | b'3' | b'5' | b'6' => match token(&mut reader)? {
            max @ 1..=65535 => max,
            _ => return Err(Stop::Bad("a netpbm file with an unknown sample size")),
        },
        b'f' => 0,
        _ => return Err(Stop::Bad("an unknown netpbm format")),
    };
    Ok(Header { kind, width, height, max, data: reader.at })
}

fn token(reader: &mut Reader<'_>) -> Result<u32, Stop> {
    let mut value: Option<u64> = None;
    let mut digits = 0;
    while digits <= 10 {
        match reader.u8()? {
            b'#' => while !matches!(reader.u8()?, b'\r' | b'\n') {},
            byte if space(byte) => match value {
                Some(value) => return u32::try_from(value).map_err(|_| Stop::Bad("a netpbm number that is too large")),
                None => continue,
            },
            byte @ b'0'..=b'9' => {
                digits += 1;
                value = Some(value.unwrap_or(0) * 10 + u64::from(byte - b'0'));
            }
            _ => return Err(Stop::Bad("a netpbm header that is no number")),
        }
    }
    Err(Stop::Bad("a netpbm number that is too long"))
}

/// Read the header.
pub fn probe(data: &[u8]) -> Result<Probe, Stop> {
    let header = header(data)?;
    let depth = match header.max {
        0 => 32,
        1 => 1,
        2..=255 => 8,
        _ => 16,
    };
    let channels = if matches!(header.kind, b'3' | b'6') { 3 } else { 1 };
    Ok(Probe { depth, channels, ..Probe::new(Format::Ppm, header.width, header.height) })
}
