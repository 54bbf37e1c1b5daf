//! GIF: the first frame on its screen.

use super::convert::Table;
use super::Stop;
use crate::media::probe::gif::{block, frame, Frame};
use crate::media::probe::reader::Reader;
use crate::media::Probe;

const CODES: usize = 4096;
const PIECE: usize = 64 << 10;

/// Decode to RGB.
pub fn decode(data: &[u8], probe: &Probe, out: &mut [u8]) -> Result<(), Stop> {
    let frame = frame(data).map_err(|_| short())?;
    let (left, top, width, height) = frame.place;
    if width == 0 || height == 0 {
        return Err(Stop::Refused("the GIF frame is empty".into()));
    }
    if frame.bits > 8 {
        return Err(Stop::Pass("a GIF of more than 8 bits"));
    }
    let table = table(&frame);
    let (width, height) = (width as usize, height as usize);
    let mut pixels = vec![0; width * height];
    if unpack(data, &frame, &mut pixels)? < pixels.len() {
        // An end code ends nothing for Pillow, which goes on with the next piece of a file longer than what it read.
        let last = data.len().saturating_sub(frame.data) <= PIECE;
        return Err(if last { short() } else { super::BROKEN });
    }
    let stride = probe.width as usize * 3;
    let ground = frame.transparent.unwrap_or(0);
    if (width, height) != (probe.width as usize, probe.height as usize) {
        table.bytes(&vec![ground; probe.width as usize], &mut out[..stride]);
        let (first, rest) = out.split_at_mut(stride);
        rest.chunks_exact_mut(stride).for_each(|row| row.copy_from_slice(first));
    }
    for (index, row) in pixels.chunks_exact(width).enumerate() {
        let y = top as usize + if frame.interlaced { interlaced(index, height) } else { index };
        let start = y * stride + left as usize * 3;
        table.bytes(row, &mut out[start..start + row.len() * 3]);
    }
    Ok(())
}

fn short() -> Stop {
    Stop::Refused("the GIF data end early".into())
}

fn table(frame: &Frame<'_>) -> Table {
    let mut table = match frame.palette {
        Some(colors) => Table::new(colors.chunks_exact(3).map(|color| [color[0], color[1], color[2]])),
        None => Table::grey(1),
    };
    if let Some(index) = frame.transparent {
        table.fade(index, 0);
    }
    table
}

/// The row that comes `index`-th.
fn interlaced(mut index: usize, height: usize) -> usize {
    for (first, step) in [(0, 8), (4, 8), (2, 4), (1, 2)] {
        let rows = height.saturating_sub(first).div_ceil(step);
        if index < rows {
            return first + index * step;
        }
        index -= rows;
    }
    height
}

/// Codes of growing width out of data blocks.
struct Codes<'a> {
    reader: Reader<'a>,
    left: &'a [u8],
    buffer: u32,
    filled: u32,
}

impl Codes<'_> {
    fn next(&mut self, width: u32) -> Option<usize> {
        while self.filled < width {
            match self.left.split_first() {
                Some((&byte, rest)) => {
                    self.buffer |= u32::from(byte) << self.filled;
                    self.filled += 8;
                    self.left = rest;
                }
                // An empty block does not end the data: only codes do.
                None => self.left = block(&mut self.reader).ok()?.unwrap_or_default(),
            }
        }
        let code = self.buffer & ((1 << width) - 1);
        self.buffer >>= width;
        self.filled -= width;
        Some(code as usize)
    }
}

/// Fill `pixels` and say how many there were before an end code.
fn unpack(data: &[u8], frame: &Frame<'_>, pixels: &mut [u8]) -> Result<usize, Stop> {
    let mut codes = Codes { reader: Reader::new(data, frame.data), left: &[], buffer: 0, filled: 0 };
    let clear = 1_usize << frame.bits;
    let first_width = u32::from(frame.bits) + 1;
    // A string is a run of pixels that were written before: where it starts, and how long it is.
    let mut strings = vec![(0_usize, 0_usize); CODES];
    let (mut next, mut width, mut last) = (clear + 2, first_width, None);
    let mut at = 0;
    while at < pixels.len() {
        let code = codes.next(width).ok_or_else(short)?;
        if code == clear {
            (next, width, last) = (clear + 2, first_width, None);
            continue;
        }
        if code == clear + 1 {
            return Ok(at);
        }
        let start = at;
        match last {
            _ if code < clear => {
                pixels[at] = code as u8;
                at += 1;
            }
            Some((from, length)) if code <= next && code < CODES => {
                let (from, length) = if code < next { strings[code] } else { (from, length + 1) };
                let length = length.min(pixels.len() - at);
                copy(pixels, from, at, length);
                at += length;
            }
            _ => return Err(super::BROKEN),
        }
        if let (Some((from, length)), true) = (last, next < CODES) {
            // The previous string and the first pixel of this one, which follows it.
            strings[next] = (from, length + 1);
            if next == (1 << width) - 1 && width < 12 {
                width += 1;
            }
            next += 1;
        }
        last = Some((start, at - start));
    }
    Ok(at)
}

/// Copy within, byte by byte where source and target overlap.
fn copy(pixels: &mut [u8], from: usize, to: usize, length: usize) {
    if from + length <= to {
        pixels.copy_within(from..from + length, to);
    } else {
        for index in 0..length {
            pixels[to + index] = pixels[from + index];
        }
    }
}
