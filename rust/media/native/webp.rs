//! libwebp: the container reader that decides what Pillow takes, and the plain decoders for the first frame.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::mem::MaybeUninit;

use libwebp_sys as sys;

/// The first frame on its canvas.
#[derive(Debug)]
pub struct Frame<'a> {
    /// Canvas size.
    pub canvas: (u32, u32),
    /// Left, top, width, height.
    pub place: (u32, u32, u32, u32),
    /// The file announces an alpha channel.
    pub alpha: bool,
    /// Its bit stream.
    pub data: &'a [u8],
}

/// Find the first frame of a complete file; None for what is damaged or cut short.
pub fn first_frame(webp: &[u8]) -> Option<Frame<'_>> {
    let data = sys::WebPData { bytes: webp.as_ptr(), size: webp.len() };
    // SAFETY: `data` describes one slice, which outlives the demuxer.
    let demux = unsafe { sys::WebPDemuxInternal(&data, 0, std::ptr::null_mut(), sys::WEBP_DEMUX_ABI_VERSION as c_int) };
    if demux.is_null() {
        return None;
    }
    // SAFETY: a live demuxer.
    let feature = |what| unsafe { sys::WebPDemuxGetI(demux, what) };
    let canvas =
        (feature(sys::WebPFormatFeature::WEBP_FF_CANVAS_WIDTH), feature(sys::WebPFormatFeature::WEBP_FF_CANVAS_HEIGHT));
    let mut frame = MaybeUninit::<sys::WebPIterator>::zeroed();
    // SAFETY: a live demuxer, and an iterator that it fills; all of it is released below and only the position of the
    // fragment within `webp` is kept.
    let found = unsafe {
        let mut found = None;
        if sys::WebPDemuxGetFrame(demux, 1, frame.as_mut_ptr()) != 0 {
            let frame = frame.assume_init_mut();
            if frame.complete != 0 {
                let start = (frame.fragment.bytes as usize).wrapping_sub(webp.as_ptr() as usize);
                let place = [frame.x_offset, frame.y_offset, frame.width, frame.height];
                found = Some((start, frame.fragment.size, place.map(|side| u32::try_from(side).unwrap_or(0))));
            }
            sys::WebPDemuxReleaseIterator(frame);
        }
        sys::WebPDemuxDelete(demux);
        found
    };
    let (start, size, [left, top, width, height]) = found?;
    let data = webp.get(start..start.checked_add(size)?)?;
    Some(Frame { canvas, place: (left, top, width, height), alpha: alpha(webp)?, data })
}

fn alpha(webp: &[u8]) -> Option<bool> {
    let mut features = MaybeUninit::<sys::WebPBitstreamFeatures>::zeroed();
    // SAFETY: one slice, and a plain structure of integers that is valid when zeroed.
    let (status, features) = unsafe {
        let version = sys::WEBP_DECODER_ABI_VERSION as c_int;
        let status = sys::WebPGetFeaturesInternal(webp.as_ptr(), webp.len(), features.as_mut_ptr(), version);
        (status, features.assume_init())
    };
    (status == sys::VP8StatusCode::VP8_STATUS_OK).then_some(features.has_alpha != 0)
}

/// Decode a bit stream into rows of `stride` bytes, 3 or (with `alpha`) 4 bytes a pixel. False for damaged data.
pub fn decode(data: &[u8], alpha: bool, stride: usize, out: &mut [u8]) -> bool {
    let Ok(stride) = c_int::try_from(stride) else { return false };
    // SAFETY: both slices are given with their sizes; libwebp checks that the picture fits size and stride.
    let result = unsafe {
        if alpha {
            sys::WebPDecodeRGBAInto(data.as_ptr(), data.len(), out.as_mut_ptr(), out.len(), stride)
        } else {
            sys::WebPDecodeRGBInto(data.as_ptr(), data.len(), out.as_mut_ptr(), out.len(), stride)
        }
    };
    !result.is_null()
}
