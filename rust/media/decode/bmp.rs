//! Windows bitmaps, raw.

use super::convert::{self, Table};
use super::Stop;
use crate::media::probe::bmp::{header, Header};

/// Where the samples of a 32-bit pixel are: red, green, blue, alpha.
type Layout = (usize, usize, usize, Option<usize>);

enum Row {
    Table(Table),
    Fifteen,
    Sixteen,
    Three,
    Four(Layout),
}

/// Decode to RGB.
pub fn decode(data: &[u8], out: &mut [u8]) -> Result<(), Stop> {
    let header = header(data).map_err(|_| Stop::Refused("a damaged BMP".into()))?;
    let row = row(&header)?;
    let width = header.width as usize;
    let bits = width * usize::from(header.bits);
    let stride = bits.div_ceil(32) * 4;
    let used = bits.div_ceil(8);
    let rows = out.chunks_exact_mut(width * 3);
    let write = |index: usize, to: &mut [u8]| {
        let start = header.rows.checked_add(index * stride)?;
        // The padding of the last row may be missing.
        row.write(header.bits, data.get(start..start.checked_add(used)?)?, to);
        Some(())
    };
    let done = if header.top_down {
        rows.enumerate().try_for_each(|(index, to)| write(index, to))
    } else {
        rows.rev().enumerate().try_for_each(|(index, to)| write(index, to))
    };
    done.ok_or_else(|| Stop::Refused("the BMP data end early".into()))
}

fn row(header: &Header<'_>) -> Result<Row, Stop> {
    let refused = |what: &str| Err(Stop::Refused(what.into()));
    match header.compression {
        0 | 3 => {}
        1 | 2 => return Err(Stop::Pass("a BMP of run lengths")),
        _ => return refused("a BMP of unknown compression"),
    }
    let fields = header.compression == 3;
    let [red, green, blue, _] = header.masks;
    match header.bits {
        1 | 4 | 8 if fields => refused("a BMP with bit fields it cannot have"),
        1 | 4 | 8 => table(header).map(Row::Table),
        16 if !fields || (red, green, blue) == (0x7c00, 0x3e0, 0x1f) => Ok(Row::Fifteen),
        16 if (red, green, blue) == (0xf800, 0x7e0, 0x1f) => Ok(Row::Sixteen),
        24 if !fields || (red, green, blue) == (0xff_0000, 0xff00, 0xff) => Ok(Row::Three),
        32 if !fields => Ok(Row::Four((2, 1, 0, None))),
        32 => layout(header.masks).map(Row::Four).map_or_else(|| refused("a BMP with unknown bit fields"), Ok),
        _ => refused("a BMP with unknown bit fields"),
    }
}

fn layout(masks: [u32; 4]) -> Option<Layout> {
    Some(match masks {
        [0xff_0000, 0xff00, 0xff, 0] => (2, 1, 0, None),
        [0xff00_0000, 0xff_0000, 0xff00, 0] => (3, 2, 1, None),
        [0xff00_0000, 0xff00, 0xff, 0] => (3, 1, 0, None),
        [0xff00_0000, 0xff_0000, 0xff00, 0xff] => (3, 2, 1, Some(0)),
        [0xff, 0xff00, 0xff_0000, 0xff00_0000] => (0, 1, 2, Some(3)),
        [0xff_0000, 0xff00, 0xff, 0xff00_0000] | [0, 0, 0, 0] => (2, 1, 0, Some(3)),
        [0xff00_0000, 0xff00, 0xff, 0xff_0000] => (3, 1, 0, Some(2)),
        _ => return None,
    })
}

fn table(header: &Header<'_>) -> Result<Table, Stop> {
    let colors = header.colors as usize;
    if colors > 256 {
        return Err(Stop::Pass("a BMP with more than 256 colours"));
    }
    let entries = || header.palette.chunks_exact(header.entry).map(|color| [color[2], color[1], color[0]]);
    let full = header.palette.len() / header.entry == colors;
    let level = |index: usize| if colors == 2 { index * 255 } else { index };
    let grey = full && entries().enumerate().all(|(index, color)| color.map(usize::from) == [level(index); 3]);
    if !grey {
        return Ok(Table::new(entries()));
    }
    // A ramp of greys makes Pillow forget the palette, and read the samples as if they had one bit or eight.
    match (header.bits, colors) {
        (1, 1 | 2) => Ok(Table::grey(255)),
        (8, 3..) => Ok(Table::grey(1)),
        _ => Err(Stop::Pass("a BMP with a short ramp of greys")),
    }
}

impl Row {
    fn write(&self, bits: u16, from: &[u8], to: &mut [u8]) {
        let pixels = to.chunks_exact_mut(3);
        match self {
            Row::Table(table) => table.packed(bits as u8, from, to),
            Row::Three => {
                for (from, to) in from.chunks_exact(3).zip(pixels) {
                    to.copy_from_slice(&[from[2], from[1], from[0]]);
                }
            }
            Row::Fifteen | Row::Sixteen => {
                let sixteen = matches!(self, Row::Sixteen);
                for (from, to) in from.chunks_exact(2).zip(pixels) {
                    let value = u32::from(u16::from_le_bytes([from[0], from[1]]));
                    let five = |value: u32| ((value & 31) * 255 / 31) as u8;
                    let color = if sixteen {
                        [five(value >> 11), ((value >> 5 & 63) * 255 / 63) as u8, five(value)]
                    } else {
                        [five(value >> 10), five(value >> 5), five(value)]
                    };
                    to.copy_from_slice(&color);
                }
            }
            &Row::Four((red, green, blue, alpha)) => {
                for (from, to) in from.chunks_exact(4).zip(pixels) {
                    let alpha = alpha.map_or(255, |alpha| from[alpha]);
                    to.copy_from_slice(
                        &[from[red], from[green], from[blue]].map(|sample| convert::on_white(sample, alpha)),
                    );
                }
            }
        }
    }
}
