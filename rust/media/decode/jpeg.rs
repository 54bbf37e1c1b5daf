//! JPEG. A file that ends before its end marker is refused even when every pixel is there, as Pillow refuses it.

use super::{convert, Stop};
use crate::media::native::turbo::{self, End, Failure};
use crate::media::Probe;

/// Decode to RGB.
pub fn decode(data: &[u8], probe: &Probe, out: &mut [u8]) -> Result<(), Stop> {
    let (width, height) = (probe.width as usize, probe.height as usize);
    let end = if probe.channels == 4 {
        let mut inks = vec![0; width * height * 4];
        let end = turbo::decode(data, width, height, true, &mut inks);
        convert::inverted_cmyk(&mut inks, out);
        end
    } else {
        turbo::decode(data, width, height, false, out)
    };
    match end {
        Ok(End::Clean) => Ok(()),
        // Only the first warning is kept, so that an earlier one may hide that the data ended.
        Ok(End::Warned(text)) if text.contains("Premature end of JPEG file") || !ended(data) => Err(Stop::Refused(text)),
        Ok(End::Warned(_)) => Ok(()),
        Err(Failure::Fatal(_)) => Err(super::BROKEN),
        Err(Failure::Other(what)) => Err(Stop::Pass(what)),
    }
}

/// An end marker stands where markers are looked for.
fn ended(data: &[u8]) -> bool {
    let mut at = 2;
    while let Some(found) = memchr::memchr(0xff, data.get(at..).unwrap_or_default()) {
        at += found + 1;
        match data.get(at).copied() {
            None => return false,
            Some(0xd9) => return true,
            Some(0 | 0xff | 0x01 | 0xd0..=0xd8) => {}
            Some(_) => {
                let size = data.get(at + 1..at + 3).map_or(0, |size| usize::from(u16::from_be_bytes([size[0], size[1]])));
                at += 1 + size;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::ended;

    #[test]
    fn an_end_marker_in_a_segment_is_none() {
        assert!(ended(b"\xff\xd8\xff\xda\x00\x02\x12\xff\x00\x34\xff\xd9"));
        assert!(!ended(b"\xff\xd8\xff\xe1\x00\x04\xff\xd9\xff\xda\x00\x02\x12\xff\x00\x34"));
        assert!(!ended(b"\xff\xd8\xff"));
    }
}
