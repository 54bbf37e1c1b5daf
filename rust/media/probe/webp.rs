//! WebP: size from the bit stream or the extended header, orientation from the chunks behind the picture.

use super::exif;
use super::reader::{Order::Little, Reader, Stop};
use super::Probe;
use crate::media::sniff::Format;

const ANIMATED: u8 = 0x02;
const XMP: u8 = 0x04;
const EXIF: u8 = 0x08;
const ALPHA: u8 = 0x10;

/// Read the header, and the rest as far as it is there for orientation and frames.
pub fn probe(data: &[u8], complete: bool) -> Result<Probe, Stop> {
    let mut reader = Reader::new(data, 4);
    let end = (reader.u32(Little)? as usize).saturating_add(8);
    reader.at = 12;
    let kind = reader.take(4)?;
    let size = reader.u32(Little)? as usize;
    let probe = match kind {
        b"VP8 " => lossy(reader)?,
        b"VP8L" => lossless(reader)?,
        _ => return extended(data, reader, end.min(data.len()), complete || end <= data.len(), size),
    };
    Ok(probe)
}

fn lossy(mut reader: Reader<'_>) -> Result<Probe, Stop> {
    reader.at += 3;
    if reader.take(3)? != b"\x9d\x01\x2a" {
        return Err(Stop::Bad("a WebP without a key frame"));
    }
    let mut side = || reader.u16(Little).map(|side| u32::from(side & 0x3fff));
    Ok(Probe { channels: 3, ..Probe::new(Format::Webp, side()?, side()?) })
}

fn lossless(mut reader: Reader<'_>) -> Result<Probe, Stop> {
    if reader.u8()? != 0x2f {
        return Err(Stop::Bad("a lossless WebP without its mark"));
    }
    let bits = reader.u32(Little)?;
    let alpha = bits >> 28 & 1 != 0;
    let probe = Probe::new(Format::Webp, (bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1);
    Ok(Probe { alpha, channels: if alpha { 4 } else { 3 }, ..probe })
}

fn extended<'a>(data: &'a [u8], mut reader: Reader<'a>, end: usize, whole: bool, size: usize) -> Result<Probe, Stop> {
    let start = reader.at;
    let flags = reader.u8()?;
    reader.at += 3;
    let mut side = || -> Result<u32, Stop> {
        Ok(u32::from(reader.u8()?) + (u32::from(reader.u8()?) << 8) + (u32::from(reader.u8()?) << 16) + 1)
    };
    let mut probe = Probe::new(Format::Webp, side()?, side()?);
    probe.alpha = flags & ALPHA != 0;
    probe.channels = if probe.alpha { 4 } else { 3 };
    let (mut exif, mut xmp, mut frames) = (None, None, 0);
    reader = Reader::new(&data[..end.max(start).min(data.len())], start.saturating_add(size).saturating_add(size & 1));
    while let Ok(kind) = reader.take(4) {
        let Ok(size) = reader.u32(Little) else { break };
        let Ok(body) = reader.take(size as usize) else { break };
        reader.at += size as usize & 1;
        match kind {
            b"EXIF" if flags & EXIF != 0 => exif = exif.or(Some(body)),
            b"XMP " if flags & XMP != 0 => xmp = xmp.or(Some(body)),
            b"ANMF" => frames += 1,
            _ => {}
        }
    }
    if flags & ANIMATED != 0 {
        probe.frames = frames.max(1);
    }
    probe.orientation = exif::orientation(exif, xmp);
    probe.settled = whole;
    Ok(probe)
}
