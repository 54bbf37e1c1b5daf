//! JPEG: size and components from the frame header, orientation from APP1, everything before the first scan.
//!
//! The walk takes and refuses what Pillow's does: junk between markers is skipped, a later frame header wins.

use super::exif;
use super::reader::{Order::Big, Reader, Stop};
use super::Probe;
use crate::media::sniff::Format;

const XMP: &[u8] = b"http://ns.adobe.com/xap/1.0/\0";

/// Read the header.
pub fn probe(data: &[u8]) -> Result<Probe, Stop> {
    let mut reader = Reader::new(data, 2);
    let mut frame = None;
    let (mut exif, mut xmp): (Option<Vec<u8>>, Option<&[u8]>) = (None, None);
    loop {
        let mut marker = reader.u8()?;
        if marker != 0xff {
            continue; // junk
        }
        while marker == 0xff {
            marker = reader.u8()?;
        }
        match marker {
            0 | 0xc8 | 0xd0..=0xd9 | 0xf0..=0xfd => continue,
            0x01..=0xbf => return Err(Stop::Bad("no marker where a JPEG marker must be")),
            _ => {}
        }
        let size = usize::from(reader.u16(Big)?).saturating_sub(2);
        let body = reader.take(size)?;
        match marker {
            0xda => break,
            0xdb => tables(body)?,
            0xe1 if body.starts_with(b"Exif\0\0") => match &mut exif {
                // A block beyond 64 KiB goes on in the next segment.
                Some(exif) => exif.extend_from_slice(&body[6..]),
                None => exif = Some(body.to_vec()),
            },
            0xe1 => xmp = body.strip_prefix(XMP).or(xmp),
            0xc4 | 0xcc => {}
            0xc0..=0xcf | 0xde => frame = Some(header(body)?),
            _ => {}
        }
    }
    let probe = frame.ok_or(Stop::Bad("a JPEG scan without a frame header"))?;
    let orientation = exif::orientation(exif.as_deref(), xmp);
    Ok(Probe { orientation, ..probe })
}

fn header(body: &[u8]) -> Result<Probe, Stop> {
    let &[bits, h1, h0, w1, w0, components, ..] = body else {
        return Err(Stop::Bad("a JPEG frame header that is too short"));
    };
    if bits != 8 {
        return Err(Stop::Bad("a JPEG of more or less than 8 bits"));
    }
    if !matches!(components, 1 | 3 | 4) || (body.len() - 6) % 3 == 1 || (body.len() - 6) % 3 == 2 {
        return Err(Stop::Bad("a JPEG with an unknown number of components"));
    }
    let (width, height) = (u16::from_be_bytes([w1, w0]), u16::from_be_bytes([h1, h0]));
    Ok(Probe { channels: components, ..Probe::new(Format::Jpeg, width.into(), height.into()) })
}

fn tables(mut body: &[u8]) -> Result<(), Stop> {
    while let Some(&first) = body.first() {
        let size = if first < 16 { 65 } else { 129 };
        body = body.get(size..).ok_or(Stop::Bad("a JPEG quantization table that is too short"))?;
    }
    Ok(())
}
