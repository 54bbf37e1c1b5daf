//! Windows bitmaps of every header size.

use super::reader::{Order::Little, Reader, Stop};
use super::Probe;
use crate::media::sniff::Format;

/// The header.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    /// Pixels a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// The first row is the top one.
    pub top_down: bool,
    /// Bits a pixel.
    pub bits: u16,
    /// 0 raw, 1 and 2 run lengths, 3 bit fields.
    pub compression: u32,
    /// Red, green, blue, alpha.
    pub masks: [u32; 4],
    /// Colours, `entry` bytes each, blue first.
    pub palette: &'a [u8],
    /// Number of colours announced.
    pub colors: u32,
    /// Bytes of a colour.
    pub entry: usize,
    /// Where the rows start.
    pub rows: usize,
}

/// Read the header and the colours.
pub fn header(data: &[u8]) -> Result<Header<'_>, Stop> {
    let mut reader = Reader::new(data, 10);
    let offset = reader.u32(Little)?;
    let size = reader.u32(Little)?;
    if !matches!(size, 12 | 40 | 52 | 56 | 64 | 108 | 124) {
        return Err(Stop::Bad("an unknown BMP header"));
    }
    let body = reader.take(size as usize - 4)?;
    let mut field = Reader::new(body, 0);
    let mut header = Header {
        width: 0,
        height: 0,
        top_down: false,
        bits: 0,
        compression: 0,
        masks: [0; 4],
        palette: &[],
        colors: 0,
        entry: 3,
        rows: 0,
    };
    if size == 12 {
        (header.width, header.height) = (field.u16(Little)?.into(), field.u16(Little)?.into());
        field.at += 2;
        header.bits = field.u16(Little)?;
    } else {
        header.top_down = body[7] == 0xff;
        header.width = field.u32(Little)?;
        let height = field.u32(Little)?;
        header.height = if header.top_down { height.wrapping_neg() } else { height };
        field.at += 2;
        header.bits = field.u16(Little)?;
        header.compression = field.u32(Little)?;
        field.at += 12;
        header.colors = field.u32(Little)?;
        header.entry = 4;
    }
    if header.compression == 3 {
        let wide = body.len() >= 48;
        let mut masks = if wide { Reader::new(body, 36) } else { reader };
        for mask in header.masks.iter_mut().take(if body.len() >= 52 { 4 } else { 3 }) {
            *mask = masks.u32(Little)?;
        }
        reader = if wide { reader } else { masks };
    }
    if !matches!(header.bits, 1 | 4 | 8 | 16 | 24 | 32) {
        return Err(Stop::Bad("an unknown BMP depth"));
    }
    if header.colors == 0 {
        header.colors = 1_u32.checked_shl(header.bits.into()).unwrap_or(0);
    }
    let mut rows = u64::from(offset);
    if header.bits <= 8 {
        if !(1..=65536).contains(&header.colors) {
            return Err(Stop::Bad("a BMP with too many colours"));
        }
        if offset == 14 + size {
            rows += header.entry as u64 * u64::from(header.colors);
        }
        let size = header.entry * header.colors as usize;
        header.palette = &data[reader.at..data.len().min(reader.at + size)];
        reader.at += header.palette.len();
    }
    header.rows = if rows == 0 { reader.at } else { usize::try_from(rows).map_err(|_| Stop::Short)? };
    Ok(header)
}

/// Read the header.
pub fn probe(data: &[u8]) -> Result<Probe, Stop> {
    let header = header(data)?;
    let alpha = header.bits == 32 && header.compression == 3 && header.masks[3] != 0;
    Ok(Probe { alpha, palette: header.bits <= 8, ..Probe::new(Format::Bmp, header.width, header.height) })
}
