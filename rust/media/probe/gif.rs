//! GIF: screen, the first frame's place, and how many frames follow.

use super::reader::{Order::Little, Reader, Stop};
use super::Probe;
use crate::media::sniff::Format;

/// The first frame, ready to decode.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Screen size, grown to hold the frame.
    pub screen: (u32, u32),
    /// Left, top, width, height.
    pub place: (u32, u32, u32, u32),
    /// Its colours; None where they are a grey ramp or absent.
    pub palette: Option<&'a [u8]>,
    /// The index that is transparent.
    pub transparent: Option<u8>,
    /// Rows come in four passes.
    pub interlaced: bool,
    /// Bits of the first code.
    pub bits: u8,
    /// Where the data blocks start.
    pub data: usize,
}

/// Read up to the data of the first frame.
pub fn frame(data: &[u8]) -> Result<Frame<'_>, Stop> {
    let mut reader = Reader::new(data, 6);
    let mut screen = (u32::from(reader.u16(Little)?), u32::from(reader.u16(Little)?));
    let global = palette(&mut reader, 2)?;
    let mut transparent = None;
    loop {
        match reader.u8()? {
            b';' => return Err(Stop::Bad("a GIF without a frame")),
            b'!' => {
                let label = reader.u8()?;
                let block = block(&mut reader)?;
                if let (0xf9, Some(&[flags, _, _, index, ..])) = (label, block) {
                    transparent = if flags & 1 != 0 { Some(index) } else { transparent };
                } else if label == 0xf9 && block.is_some() {
                    return Err(Stop::Bad("a GIF control block that is too short"));
                }
                if block.is_some() || label != 0xfe {
                    skip(&mut reader)?;
                }
            }
            b',' => break,
            _ => {}
        }
    }
    let mut side = || reader.u16(Little).map(u32::from);
    let place = (side()?, side()?, side()?, side()?);
    screen = (screen.0.max(place.0 + place.2), screen.1.max(place.1 + place.3));
    let flags = data.get(reader.at).copied().ok_or(Stop::Short)?;
    let local = palette(&mut reader, 0)?;
    let palette = if flags & 0x80 != 0 { local } else { global }.filter(|palette| !ramp(palette));
    let bits = reader.u8()?;
    Ok(Frame { screen, place, palette, transparent, interlaced: flags & 0x40 != 0, bits, data: reader.at })
}

/// A flags byte, `gap` bytes that do not matter, and the colour table that the flags announce.
fn palette<'a>(reader: &mut Reader<'a>, gap: usize) -> Result<Option<&'a [u8]>, Stop> {
    let flags = reader.u8()?;
    reader.take(gap)?;
    Ok(if flags & 0x80 != 0 { Some(reader.take(6 << (flags & 7))?) } else { None })
}

fn ramp(palette: &[u8]) -> bool {
    palette.chunks_exact(3).enumerate().all(|(index, rgb)| rgb.iter().all(|&value| usize::from(value) == index))
}

/// A block of data; None for the empty one that ends a list.
pub fn block<'a>(reader: &mut Reader<'a>) -> Result<Option<&'a [u8]>, Stop> {
    match reader.u8()? {
        0 => Ok(None),
        size => reader.take(size.into()).map(Some),
    }
}

fn skip(reader: &mut Reader<'_>) -> Result<(), Stop> {
    while block(reader)?.is_some() {}
    Ok(())
}

/// Read the header, and the rest as far as it is there for the number of frames.
pub fn probe(data: &[u8]) -> Result<Probe, Stop> {
    let first = frame(data)?;
    let (frames, settled) = count(data, first.data);
    let probe = Probe::new(Format::Gif, first.screen.0, first.screen.1);
    Ok(Probe { alpha: first.transparent.is_some(), palette: first.palette.is_some(), frames, settled, ..probe })
}

/// Frames and whether the list of them is complete.
fn count(data: &[u8], first: usize) -> (u32, bool) {
    let mut reader = Reader::new(data, first);
    let mut frames = 1;
    let mut next = |frames: &mut u32| -> Result<bool, Stop> {
        skip(&mut reader)?;
        loop {
            match reader.u8()? {
                b';' => return Ok(false),
                b'!' => {
                    reader.u8()?;
                    skip(&mut reader)?;
                }
                b',' => break,
                _ => {}
            }
        }
        reader.take(8)?;
        palette(&mut reader, 0)?;
        reader.u8()?;
        *frames += 1;
        Ok(true)
    };
    loop {
        match next(&mut frames) {
            Ok(true) => {}
            Ok(false) => return (frames, true),
            Err(_) => return (frames, false),
        }
    }
}
