//! WebP: the first frame through libwebp's plain decoders, which cost half of the animation decoder that Pillow uses.

use super::{convert, Stop};
use crate::media::native::{pages, webp};
use crate::media::Probe;

/// Decode to RGB.
pub fn decode(data: &[u8], probe: &Probe, out: &mut [u8]) -> Result<(), Stop> {
    let refused = || Stop::Refused("the WebP data are damaged".into());
    let frame = webp::first_frame(data).ok_or_else(refused)?;
    if frame.canvas != (probe.width, probe.height) {
        return Err(Stop::Pass("a WebP with contradicting headers"));
    }
    let (width, height) = (probe.width as usize, probe.height as usize);
    let [left, top, frame_width, frame_height] =
        [frame.place.0, frame.place.1, frame.place.2, frame.place.3].map(|side| side as usize);
    if left + frame_width > width || top + frame_height > height || frame_width == 0 || frame_height == 0 {
        return Err(refused());
    }
    let whole = (frame_width, frame_height) == (width, height);
    if whole && !frame.alpha {
        return webp::decode(frame.data, false, width * 3, out).then_some(()).ok_or_else(refused);
    }
    // What the first frame leaves uncovered is transparent, and black where there is no transparency.
    let bytes = if frame.alpha { 4 } else { 3 };
    let mut canvas = pages::zeros(width * height * bytes);
    let start = (top * width + left) * bytes;
    let end = ((top + frame_height - 1) * width + left + frame_width) * bytes;
    if !webp::decode(frame.data, frame.alpha, width * bytes, &mut canvas[start..end]) {
        return Err(refused());
    }
    if frame.alpha {
        convert::rgba(&canvas, out);
    } else {
        out.copy_from_slice(&canvas);
    }
    Ok(())
}
