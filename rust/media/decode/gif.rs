//! GIF: the first frame on its screen.

use super::convert::Table;
use super::lzw::{self, Codes, End};
use super::Stop;
use crate::media::native::pages;
use crate::media::probe::gif::{block, frame, Frame};
use crate::media::probe::reader::Reader;
use crate::media::Probe;

const PIECE: usize = 64 << 10;

/// Decode to RGB.
pub fn decode(data: &[u8], probe: &Probe, out: &mut [u8]) -> Result<(), Stop> {
    let frame = frame(data).map_err(|_| short())?;
    let (left, top, width, height) = frame.place;
    if width == 0 || height == 0 {
        return Err(Stop::Refused("the GIF frame is empty".into()));
    }
    // Codes of less than 3 bits never grow for Pillow; no writer begins with them.
    if !(2..=8).contains(&frame.bits) {
        return Err(Stop::Pass("a GIF of an unusual code size"));
    }
    let table = table(&frame);
    let (width, height) = (width as usize, height as usize);
    let mut pixels = pages::zeros(width * height);
    let mut codes = Blocks { reader: Reader::new(data, frame.data), left: &[], buffer: 0, filled: 0 };
    match lzw::unpack(&mut codes, frame.bits.into(), 0, &mut pixels) {
        End::Full => {}
        // An end code ends nothing for Pillow, which goes on with the next piece of a file longer than what it read.
        End::Code if data.len().saturating_sub(frame.data) <= PIECE => return Err(short()),
        End::Data => return Err(short()),
        End::Code | End::Broken => return Err(super::BROKEN),
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

/// Codes out of data blocks, the first one in the lowest bits.
struct Blocks<'a> {
    reader: Reader<'a>,
    left: &'a [u8],
    buffer: u64,
    filled: u32,
}

impl Codes for Blocks<'_> {
    fn next(&mut self, width: u32) -> Option<usize> {
        while self.filled < width {
            if let Some((four, rest)) = self.left.split_first_chunk() {
                self.buffer |= u64::from(u32::from_le_bytes(*four)) << self.filled;
                self.filled += 32;
                self.left = rest;
                break;
            }
            match self.left.split_first() {
                Some((&byte, rest)) => {
                    self.buffer |= u64::from(byte) << self.filled;
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
