//! PNG. The chunks are ours, so that what is taken and refused is what Pillow takes and refuses; the crate gets a clean
//! stream of the same picture data for its inflate and filters.

use std::borrow::Cow;
use std::io::{self, BufRead, Read};

use png::{DecodeOptions, Decoder, Transformations};

use super::convert::{self, Table};
use super::Stop;
use crate::media::native::pages;
use crate::media::probe::png::{chunks, Chunks};

/// Decode to RGB.
pub fn decode(data: &[u8], out: &mut [u8]) -> Result<(), Stop> {
    let png = chunks(data, true).map_err(|_| Stop::Refused("a damaged PNG".into()))?;
    if png.odd {
        return Err(Stop::Pass("an animation whose first frame is a part of its canvas"));
    }
    let rows = Rows::new(&png)?;
    // Damage that no check sum vouches for may hide behind the last row, where the crate does not look and Pillow does.
    if !sound(data, &png) {
        if let Some(stop) = blame(data, &png) {
            return Err(stop);
        }
    }
    match pixels(data, &png, &rows, out) {
        Ok(()) => Ok(()),
        Err(_) => Err(blame(data, &png).unwrap_or(super::BROKEN)),
    }
}

fn sound(data: &[u8], png: &Chunks<'_>) -> bool {
    png.idat.iter().all(|part| {
        let mut check = crc32fast::Hasher::new();
        check.update(b"IDAT");
        check.update(&data[part.clone()]);
        data.get(part.end..part.end + 4).is_some_and(|sum| sum == check.finalize().to_be_bytes())
    })
}

/// How a row becomes RGB.
enum Rows {
    Direct,
    Table(Table),
    GreyAlpha,
    Rgba,
    /// Sixteen bits: the layout of the high bytes, or None for grey, which is cut off at 255.
    Wide(Option<usize>),
}

impl Rows {
    fn new(png: &Chunks<'_>) -> Result<Self, Stop> {
        Ok(match (png.color, png.depth) {
            (0, 16) if png.trns.is_some() => return Err(Stop::Pass("16-bit grey with a transparent level")),
            (0, 16) => Rows::Wide(None),
            (_, 16) => Rows::Wide(Some([0, 0, 3, 0, 2, 0, 4][usize::from(png.color)])),
            (0, depth) => Rows::Table(levels(depth, png.trns)),
            (3, _) => Rows::Table(colors(png)?),
            (4, _) => Rows::GreyAlpha,
            (6, _) => Rows::Rgba,
            _ => Rows::Direct,
        })
    }

    fn write(&self, depth: u8, from: &[u8], to: &mut [u8]) {
        match self {
            Rows::Direct => to.copy_from_slice(&from[..to.len()]),
            Rows::Table(table) => table.packed(depth, from, to),
            Rows::GreyAlpha => convert::la(from, to),
            Rows::Rgba => convert::rgba(from, to),
            Rows::Wide(None) => {
                for (from, to) in from.chunks_exact(2).zip(to.chunks_exact_mut(3)) {
                    to.fill(if from[0] > 0 { 255 } else { from[1] });
                }
            }
            Rows::Wide(Some(samples)) => {
                for (from, to) in from.chunks_exact(2 * samples).zip(to.chunks_exact_mut(3)) {
                    let high = |index: usize| from[2 * index];
                    match samples {
                        2 => to.fill(convert::on_white(high(0), high(1))),
                        3 => to.copy_from_slice(&[high(0), high(1), high(2)]),
                        _ => convert::rgba(&[high(0), high(1), high(2), high(3)], to),
                    }
                }
            }
        }
    }
}

/// Grey levels. Pillow compares the transparent one with the scaled level and looks at its low byte only.
fn levels(depth: u8, trns: Option<&[u8]>) -> Table {
    let scale = [0, 255, 85, 0, 17, 0, 0, 0, 1][usize::from(depth)];
    let mut table = Table::grey(scale);
    if let Some(&[high, low, ..]) = trns {
        let key = match (depth, high | low) {
            (1, 0) => 0,
            (1, _) => 255,
            _ => low,
        };
        if key % scale == 0 {
            table.fade(key / scale, 0);
        }
    }
    table
}

fn colors(png: &Chunks<'_>) -> Result<Table, Stop> {
    let palette = png.palette.ok_or(Stop::Pass("a palette picture without a palette"))?;
    if palette.len() > 768 || palette.len() % 3 != 0 {
        return Err(Stop::Pass("a palette of an odd size"));
    }
    let mut table = Table::new(palette.chunks_exact(3).map(|color| [color[0], color[1], color[2]]));
    let trns = png.trns.unwrap_or_default();
    if trns.len() > 256 {
        return Err(Stop::Refused("the PNG palette has too many transparent colours".into()));
    }
    for (index, &alpha) in trns.iter().enumerate() {
        table.fade(index as u8, alpha);
    }
    Ok(table)
}

fn pixels(data: &[u8], png: &Chunks<'_>, rows: &Rows, out: &mut [u8]) -> Result<(), png::DecodingError> {
    let mut options = DecodeOptions::default();
    options.set_ignore_crc(true);
    options.set_ignore_adler32(false);
    let mut decoder = Decoder::new_with_options(Clean::new(data, png), options);
    decoder.set_limits(png::Limits { bytes: usize::MAX });
    decoder.set_transformations(Transformations::IDENTITY);
    let mut reader = decoder.read_info()?;
    let stride = png.width as usize * 3;
    if matches!(rows, Rows::Direct) {
        reader.next_frame(out)?;
    } else if png.interlaced {
        let mut frame = pages::zeros(reader.output_buffer_size().unwrap_or(0));
        let info = reader.next_frame(&mut frame)?;
        for (from, to) in frame.chunks_exact(info.line_size.max(1)).zip(out.chunks_exact_mut(stride)) {
            rows.write(png.depth, from, to);
        }
    } else {
        for to in out.chunks_exact_mut(stride) {
            let Some(row) = reader.next_row()? else {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            };
            rows.write(png.depth, row.data(), to);
        }
        reader.finish()?;
    }
    Ok(())
}

/// What is wrong with the data, if they are not what a writer writes: a stream that ends with the last row. Data that end
/// early are refused, by the end of the file or of the compressed stream alike, unless a whole row was broken before.
fn blame(data: &[u8], png: &Chunks<'_>) -> Option<Stop> {
    let passes = passes(png);
    let wanted = passes.iter().map(|&(rows, size)| rows * size).sum();
    let mut filters = Filters { passes: passes.into_iter(), pass: (0, 0), left: 0, bad: false };
    let mut stream = flate2::Decompress::new(true);
    let mut scratch = vec![0; 1 << 16];
    for part in &png.idat {
        let mut part = &data[part.clone()];
        loop {
            let before = (stream.total_in(), stream.total_out());
            let status = stream.decompress(part, &mut scratch, flate2::FlushDecompress::None);
            part = &part[(stream.total_in() - before.0) as usize..];
            if !filters.known(&scratch[..(stream.total_out() - before.1) as usize]) {
                return Some(super::BROKEN);
            }
            match status {
                Ok(flate2::Status::StreamEnd) if stream.total_out() == wanted => return None,
                Ok(_) if stream.total_out() > wanted => return Some(ODD),
                Ok(flate2::Status::StreamEnd) if part.is_empty() => break,
                Ok(flate2::Status::StreamEnd) | Err(_) => return Some(super::BROKEN),
                Ok(_) if (stream.total_in(), stream.total_out()) == before => break,
                Ok(_) => {}
            }
        }
    }
    if png.torn {
        return Some(super::BROKEN);
    }
    // Pillow takes all rows for enough.
    Some(if stream.total_out() >= wanted { ODD } else { Stop::Refused("the PNG data end early".into()) })
}

const ODD: Stop = Stop::Pass("a PNG with odd data");

/// Looks at the filter of every row that is complete.
struct Filters {
    passes: std::vec::IntoIter<(u64, u64)>,
    /// Rows that remain, and the bytes of each.
    pass: (u64, u64),
    /// Bytes that the current row still needs.
    left: u64,
    /// Its filter does not exist.
    bad: bool,
}

impl Filters {
    /// False once a row with a filter that does not exist has come to its end.
    fn known(&mut self, mut bytes: &[u8]) -> bool {
        while let Some(&first) = bytes.first() {
            if self.left == 0 {
                while self.pass.0 == 0 {
                    let Some(pass) = self.passes.next() else { return true };
                    self.pass = pass;
                }
                self.pass.0 -= 1;
                (self.left, self.bad) = (self.pass.1, first > 4);
            }
            let size = self.left.min(bytes.len() as u64);
            self.left -= size;
            bytes = &bytes[size as usize..];
            if self.bad && self.left == 0 {
                return false;
            }
        }
        true
    }
}

/// Rows of every pass, and the bytes of each with its filter.
fn passes(png: &Chunks<'_>) -> Vec<(u64, u64)> {
    let bits = u64::from(png.depth) * [1, 0, 3, 1, 2, 0, 4][usize::from(png.color)];
    let pass = |width: u64, height: u64| (if width == 0 { 0 } else { height }, 1 + (width * bits).div_ceil(8));
    let (width, height) = (u64::from(png.width), u64::from(png.height));
    if !png.interlaced {
        return vec![pass(width, height)];
    }
    const PASSES: [(u64, u64, u64, u64); 7] =
        [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)];
    let count = |size: u64, first: u64, step: u64| size.saturating_sub(first).div_ceil(step);
    PASSES.iter().map(|&(x, y, dx, dy)| pass(count(width, x, dx), count(height, y, dy))).collect()
}

/// The same picture as a stream without anything but header, data and end.
struct Clean<'a> {
    parts: std::vec::IntoIter<Cow<'a, [u8]>>,
    part: Cow<'a, [u8]>,
    at: usize,
}

impl<'a> Clean<'a> {
    fn new(data: &'a [u8], png: &Chunks<'_>) -> Self {
        // Indices are laid out like grey levels, and need no palette.
        let color = if png.color == 3 { 0 } else { png.color };
        let mut head = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec();
        head.extend(png.width.to_be_bytes());
        head.extend(png.height.to_be_bytes());
        head.extend([png.depth, color, 0, 0, png.interlaced.into(), 0, 0, 0, 0]);
        let mut parts = vec![Cow::Owned(head)];
        for part in &png.idat {
            let part = &data[part.clone()];
            let mut head = (part.len() as u32).to_be_bytes().to_vec();
            head.extend(b"IDAT");
            parts.extend([Cow::Owned(head), Cow::Borrowed(part), Cow::Borrowed(&[0; 4][..])]);
        }
        parts.push(Cow::Borrowed(b"\0\0\0\0IEND\xae\x42\x60\x82"));
        Clean { parts: parts.into_iter(), part: Cow::Borrowed(&[]), at: 0 }
    }
}

impl Read for Clean<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let from = self.fill_buf()?;
        let size = from.len().min(out.len());
        out[..size].copy_from_slice(&from[..size]);
        self.consume(size);
        Ok(size)
    }
}

impl BufRead for Clean<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.at >= self.part.len() {
            let Some(part) = self.parts.next() else { return Ok(&[]) };
            (self.part, self.at) = (part, 0);
        }
        Ok(&self.part[self.at..])
    }

    fn consume(&mut self, size: usize) {
        self.at += size;
    }
}

impl io::Seek for Clean<'_> {
    fn seek(&mut self, _: io::SeekFrom) -> io::Result<u64> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
