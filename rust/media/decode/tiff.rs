//! TIFF: the first page, of samples of 8 bits (or one of 1 to 8), interleaved, in strips or tiles.

use std::borrow::Cow;

use flate2::FlushDecompress;

use super::convert::{self, Table};
use super::lzw::{self, Codes, End};
use super::Stop;
use crate::media::probe::exif::header;
use crate::media::probe::reader::Reader;
use crate::media::probe::tiff::Directory;
use crate::media::Probe;

const TILE: u64 = 1024; // pixels a side of the largest tile that any picture may have
const MISSING: Stop = Stop::Pass("a TIFF without a tag that it needs");

#[derive(Clone, Copy, PartialEq)]
enum Packing {
    Raw,
    Lzw,
    Deflate,
    Runs,
}

/// How the samples of a row become RGB.
enum Row {
    Table(Table),
    /// RGB and samples that do not matter, `0` bytes a pixel.
    Rgb(usize),
    Rgba,
    GreyAlpha,
    Cmyk,
}

struct Layout {
    row: Row,
    bits: u8,
    samples: usize,
    packing: Packing,
    predicted: bool,
    /// Pixels of a strip or tile.
    width: usize,
    height: usize,
}

/// The directory of a TIFF begins within the file.
pub fn started(data: &[u8]) -> bool {
    let started = |(order, offset)| Reader::new(data, offset).u16(order).is_ok();
    header(data).is_some_and(started)
}

/// Decode to RGB.
pub fn decode(data: &[u8], probe: &Probe, out: &mut [u8]) -> Result<(), Stop> {
    let (directory, _) = Directory::read(data, true).map_err(|_| Stop::Refused("a damaged TIFF".into()))?;
    if directory.odd() {
        return Err(Stop::Pass("a TIFF of unusual tags"));
    }
    let layout = layout(&directory, probe)?;
    let (offsets, sizes) = if directory.has(273) {
        (directory.numbers(273), directory.numbers(279))
    } else {
        (directory.numbers(324), directory.numbers(325))
    };
    let (width, height) = (probe.width as usize, probe.height as usize);
    let across = width.div_ceil(layout.width);
    if offsets.len() != across * height.div_ceil(layout.height) || sizes.len() != offsets.len() {
        return Err(MISSING);
    }
    let single = offsets.len() == 1;
    let parts = offsets.iter().zip(&sizes).enumerate();
    for (index, (&offset, &size)) in parts {
        let (left, top) = (index % across * layout.width, index / across * layout.height);
        let rows = layout.height.min(height - top);
        let columns = layout.width.min(width - left);
        // A tile is always whole, a strip ends with the picture.
        let stored = if layout.width == width && directory.has(273) { rows } else { layout.height };
        let part = layout.unpack(data, offset as usize, size as usize, stored).map_err(|stop| match stop {
            Stop::Refused(_) if !single => super::BROKEN,
            stop => stop,
        })?;
        for (row, from) in part.chunks_exact(layout.stride()).take(rows).enumerate() {
            let start = ((top + row) * width + left) * 3;
            layout.row.write(layout.bits, from, &mut out[start..start + columns * 3]);
        }
    }
    Ok(())
}

fn layout(directory: &Directory<'_>, probe: &Probe) -> Result<Layout, Stop> {
    let number = |tag, default| directory.number(tag).unwrap_or(default);
    let depths = directory.numbers(258);
    let samples = number(277, 1) as usize;
    let bits = depths.first().map_or(1, |&bits| bits.min(255) as u8);
    let extra = directory.numbers(338);
    let plain = depths.iter().all(|&depth| depth == u32::from(bits))
        && (depths.len() == samples || depths.len() == 1)
        && (1..=6).contains(&samples)
        && directory.numbers(339).iter().all(|&format| format == 1)
        && number(266, 1) == 1
        && number(284, 1) == 1;
    if !plain || !matches!(bits, 1 | 2 | 4 | 8) || (bits < 8 && samples > 1) {
        return Err(Stop::Pass("a TIFF of unusual samples"));
    }
    let photo = number(262, 0);
    let row = match (photo, samples, &extra[..]) {
        (0, 1, []) => Row::Table(Table::grey(255 / ((1_u16 << bits) - 1) as u8).invert()),
        (1, 1, []) => Row::Table(Table::grey(255 / ((1_u16 << bits) - 1) as u8)),
        (1, 2, [2]) => Row::GreyAlpha,
        (2, 3, []) => Row::Rgb(3),
        (2, 4, [0]) => Row::Rgb(4),
        (2, 4, [] | [2]) => Row::Rgba,
        (3, 1, []) => Row::Table(colors(directory, bits)?),
        (5, 4, []) => Row::Cmyk,
        _ => return Err(Stop::Pass("a TIFF of unusual colours")),
    };
    let packing = match number(259, 1) {
        1 => Packing::Raw,
        5 => Packing::Lzw,
        8 | 32946 => Packing::Deflate,
        32773 => Packing::Runs,
        _ => return Err(Stop::Pass("a TIFF of unusual compression")),
    };
    let predictor = if matches!(packing, Packing::Lzw | Packing::Deflate) { number(317, 1) } else { 1 };
    if !matches!(predictor, 1 | 2) || (predictor == 2 && bits != 8) {
        return Err(Stop::Pass("a TIFF with an unusual predictor"));
    }
    let (width, height) = if directory.has(273) {
        (probe.width, number(278, probe.height).min(probe.height))
    } else {
        (number(322, 0), number(323, 0))
    };
    // A tile may be larger than the picture; one that is much larger is not worth its memory.
    let fits = |tile: u32, side: u32| tile > 0 && u64::from(tile) <= u64::from(side).next_multiple_of(TILE);
    if !fits(width, probe.width) || !fits(height, probe.height) {
        return Err(MISSING);
    }
    let (width, height) = (width as usize, height as usize);
    Ok(Layout { row, bits, samples, packing, predicted: predictor == 2, width, height })
}

/// Sixteen bits a sample, all reds first.
fn colors(directory: &Directory<'_>, bits: u8) -> Result<Table, Stop> {
    let map = directory.numbers(320);
    let count = 1 << bits;
    if map.len() != 3 * count {
        return Err(MISSING);
    }
    let high = |index: usize| (map[index] >> 8) as u8;
    Ok(Table::new((0..count).map(|index| [high(index), high(count + index), high(2 * count + index)])))
}

impl Layout {
    fn stride(&self) -> usize {
        (self.width * self.samples * usize::from(self.bits)).div_ceil(8)
    }

    /// The rows of a strip or tile.
    fn unpack<'a>(&self, data: &'a [u8], offset: usize, size: usize, rows: usize) -> Result<Cow<'a, [u8]>, Stop> {
        let short = || Stop::Refused("the TIFF data end early".into());
        let wanted = self.stride() * rows;
        if self.packing == Packing::Raw {
            let part = offset.checked_add(wanted).and_then(|end| data.get(offset..end)).ok_or_else(short)?;
            return Ok(Cow::Borrowed(part));
        }
        let part = offset.checked_add(size).and_then(|end| data.get(offset..end)).ok_or(super::BROKEN)?;
        let mut out = match self.packing {
            Packing::Lzw => {
                // Old writers put the low bits first.
                if matches!(part, [0, second, ..] if second & 1 != 0) {
                    return Err(Stop::Pass("a TIFF of old LZW codes"));
                }
                let mut out = vec![0; wanted];
                match lzw::unpack(&mut Bits { data: part, at: 0 }, 8, 1, &mut out) {
                    End::Full => out,
                    _ => return Err(super::BROKEN),
                }
            }
            Packing::Deflate => {
                let mut out = vec![0; wanted];
                let mut stream = flate2::Decompress::new(true);
                // Whatever is wrong in the stream, up to its check sum, costs the strip; one that goes on does not.
                if stream.decompress(part, &mut out, FlushDecompress::Finish).is_err() {
                    return Err(super::BROKEN);
                }
                out.truncate(usize::try_from(stream.total_out()).unwrap_or(0));
                out
            }
            _ => runs(part, wanted),
        };
        if out.len() < wanted {
            return Err(super::BROKEN);
        }
        if self.predicted {
            for row in out.chunks_exact_mut(self.stride()) {
                for index in self.samples..row.len() {
                    row[index] = row[index].wrapping_add(row[index - self.samples]);
                }
            }
        }
        Ok(Cow::Owned(out))
    }
}

/// Codes with the high bits first.
struct Bits<'a> {
    data: &'a [u8],
    /// Bits taken.
    at: usize,
}

impl Codes for Bits<'_> {
    fn next(&mut self, width: u32) -> Option<usize> {
        let (start, end) = (self.at / 8, self.at + width as usize);
        let word = match self.data.get(start..).and_then(|rest| rest.first_chunk()) {
            Some(word) => u64::from_be_bytes(*word),
            None if end <= self.data.len() * 8 => {
                let mut word = [0; 8];
                word.iter_mut().zip(&self.data[start..]).for_each(|(to, &from)| *to = from);
                u64::from_be_bytes(word)
            }
            None => return None,
        };
        let code = word << (self.at % 8) >> (u64::BITS - width);
        self.at = end;
        Some(code as usize)
    }
}

/// PackBits.
fn runs(mut part: &[u8], wanted: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(wanted);
    while let (Some((&head, rest)), true) = (part.split_first(), out.len() < wanted) {
        let room = wanted - out.len();
        part = rest;
        match head {
            0x80 => {}
            0..=0x7f => {
                let (run, rest) = part.split_at(part.len().min(usize::from(head) + 1));
                out.extend_from_slice(&run[..run.len().min(room)]);
                part = rest;
            }
            _ => {
                let Some((&byte, rest)) = part.split_first() else { break };
                out.resize(out.len() + room.min(257 - usize::from(head)), byte);
                part = rest;
            }
        }
    }
    out
}

impl Row {
    fn write(&self, bits: u8, from: &[u8], to: &mut [u8]) {
        match self {
            Row::Table(table) => table.packed(bits, from, to),
            Row::Rgb(3) => to.copy_from_slice(&from[..to.len()]),
            Row::Rgb(samples) => {
                for (from, to) in from.chunks_exact(*samples).zip(to.chunks_exact_mut(3)) {
                    to.copy_from_slice(&from[..3]);
                }
            }
            Row::Rgba => convert::rgba(from, to),
            Row::GreyAlpha => convert::la(from, to),
            Row::Cmyk => convert::cmyk(from, to),
        }
    }
}
