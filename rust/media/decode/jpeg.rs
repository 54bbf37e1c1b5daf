//! JPEG. A file that ends before its end marker is refused even when every pixel is there, as Pillow refuses it.

use super::{convert, Stop};
use crate::media::native::pages;
use crate::media::native::turbo::{self, End, Failure};
use crate::media::Probe;

/// Decode to RGB.
pub fn decode(data: &[u8], probe: &Probe, out: &mut [u8]) -> Result<(), Stop> {
    if probe.channels != 4 {
        return samples(data, probe, out);
    }
    let mut inks = pages::zeros(out.len() / 3 * 4);
    samples(data, probe, &mut inks)?;
    convert::inverted_cmyk(&mut inks, out);
    Ok(())
}

fn samples(data: &[u8], probe: &Probe, out: &mut [u8]) -> Result<(), Stop> {
    let (width, height, cmyk) = (probe.width as usize, probe.height as usize, probe.channels == 4);
    let text = match turbo::decode(data, width, height, cmyk, false, out) {
        Ok(End::Clean) => return Ok(()),
        Ok(End::Warned(text)) => text,
        Err(Failure::Fatal(_)) => return Err(super::BROKEN),
        Err(Failure::Other(what)) => return Err(Stop::Pass(what)),
    };
    // Only the first warning is kept, so that it alone cannot tell whether the data ended.
    let early = text.contains("Premature end of JPEG file");
    match tail(data) {
        Tail::Ended if !early => Ok(()),
        Tail::Open if early => {
            // Without an end marker, but with enough bytes behind the last block that nobody missed it, Pillow has all rows
            // and takes them. Stopped at the warning, the decoder shows whether the last row was written by then.
            let last = out.len() - out.len() / height;
            let mut again: Vec<u8> = vec![!out[out.len() - 1]; out.len()];
            again[last..].iter_mut().zip(&out[last..]).for_each(|(again, &sample)| *again = !sample);
            let _ = turbo::decode(data, width, height, cmyk, true, &mut again);
            if again[last..] == out[last..] {
                return Ok(());
            }
            Err(Stop::Refused("the JPEG data end early".into()))
        }
        _ => Err(super::BROKEN),
    }
}

/// What comes behind the entropy-coded data.
#[derive(Debug, PartialEq, Eq)]
enum Tail {
    /// The end marker.
    Ended,
    /// Nothing: the file is cut.
    Open,
    /// A marker that has no business there, or another than the next one to restart at. Data end for a decoder where it
    /// finds one, and it has every row then, though without an end marker.
    Odd,
}

/// Walk the markers to the end of the picture.
fn tail(data: &[u8]) -> Tail {
    let mut at = 2;
    let (mut scans, mut last) = (false, Tail::Open);
    let (mut restarts, mut next) = (false, 0xd0);
    while let Some(found) = memchr::memchr(0xff, data.get(at..).unwrap_or_default()) {
        at += found + 1;
        match data.get(at).copied() {
            None => break,
            Some(0xd9) => return Tail::Ended,
            Some(0 | 0xff) => {}
            Some(marker @ 0xd0..=0xd7) => {
                if scans && !(restarts && marker == next) {
                    last = Tail::Odd;
                }
                next = if marker == 0xd7 { 0xd0 } else { marker + 1 };
            }
            Some(0xd8 | 0x01..=0xbf | 0xf0..=0xfd) if scans => return Tail::Odd,
            Some(0xd8 | 0x01..=0xbf) => {}
            Some(marker) => {
                let field = |at: usize| data.get(at..at + 2).map_or(0, |two| u16::from_be_bytes([two[0], two[1]]));
                match marker {
                    0xda => (scans, last, next) = (true, Tail::Open, 0xd0),
                    0xdd => restarts = field(at + 3) > 0,
                    _ => {}
                }
                if marker != 0xda && scans {
                    last = Tail::Odd;
                }
                at += 1 + usize::from(field(at + 1));
                if scans && at > data.len() {
                    return Tail::Odd;
                }
            }
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::{tail, Tail};

    #[test]
    fn an_end_marker_in_a_segment_is_none() {
        assert_eq!(tail(b"\xff\xd8\xff\xda\x00\x02\x12\xff\x00\x34\xff\xd9"), Tail::Ended);
        assert_eq!(tail(b"\xff\xd8\xff\xe1\x00\x04\xff\xd9\xff\xda\x00\x02\x12\xff\x00\x34"), Tail::Open);
        assert_eq!(tail(b"\xff\xd8\xff\xda\x00\x02\x12\xff\xd8\xff\xd9"), Tail::Odd);
        assert_eq!(tail(b"\xff\xd8\xff"), Tail::Open);
    }

    #[test]
    fn a_marker_within_the_data_ends_them() {
        let scan = b"\xff\xda\x00\x02\x12";
        let after = |bytes: &[u8]| tail(&[b"\xff\xd8", &scan[..], bytes].concat());
        assert_eq!(after(b"\xff\xd0\x12"), Tail::Odd, "restarts were not announced");
        assert_eq!(after(b"\xff\xe5\x00\x02\x12"), Tail::Odd);
        assert_eq!(after(b"\xff\xc4\x00\x02\xff\xda\x00\x02\x12"), Tail::Open, "the next scan");
        let restarting = |bytes: &[u8]| tail(&[b"\xff\xd8\xff\xdd\x00\x04\x00\x07", &scan[..], bytes].concat());
        assert_eq!(restarting(b"\xff\xd0\x12\xff\xd1\x12"), Tail::Open);
        assert_eq!(restarting(b"\xff\xd1\x12"), Tail::Odd, "one is missing");
    }
}
