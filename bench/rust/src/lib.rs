//! Decoders that have no Python package, for `bench/media.py`: called through ctypes, they take part in its rounds.
//!
//! Every function decodes `size` bytes at `data` into the `room` bytes of RGB at `out`. 0 for success.

use std::ffi::c_int;

use _core::media::decode::{Outcome, Plan};
use _core::media::Limits;

/// # Safety
/// `data` and `out` are of the given sizes.
unsafe fn slices<'a>(data: *const u8, size: usize, out: *mut u8, room: usize) -> (&'a [u8], &'a mut [u8]) {
    (std::slice::from_raw_parts(data, size), std::slice::from_raw_parts_mut(out, room))
}

/// This router's decoder without Python.
///
/// # Safety
/// `data` and `out` are of the given sizes.
#[no_mangle]
pub unsafe extern "C" fn ours(data: *const u8, size: usize, out: *mut u8, room: usize) -> c_int {
    let (data, out) = slices(data, size, out, room);
    match Plan::new(data, &Limits::default()) {
        Ok(Outcome::Decoded(plan)) => c_int::from(plan.decode(out) != Ok(Outcome::Decoded(()))),
        _ => 2,
    }
}

/// libjpeg-turbo's own interface, as its manual uses it.
///
/// # Safety
/// `data` and `out` are of the given sizes.
#[no_mangle]
pub unsafe extern "C" fn turbo(data: *const u8, size: usize, out: *mut u8, room: usize) -> c_int {
    use turbojpeg_sys as sys;
    let handle = sys::tj3Init(sys::TJINIT_TJINIT_DECOMPRESS as c_int);
    let mut status = sys::tj3DecompressHeader(handle, data, size as sys::size_t);
    let side = |what| sys::tj3Get(handle, what as c_int) as usize;
    if side(sys::TJPARAM_TJPARAM_JPEGWIDTH) * side(sys::TJPARAM_TJPARAM_JPEGHEIGHT) * 3 != room {
        status = 2;
    }
    if status == 0 {
        status = sys::tj3Decompress8(handle, data, size as sys::size_t, out, 0, sys::TJPF_TJPF_RGB as c_int);
    }
    sys::tj3Destroy(handle);
    status
}

/// libwebp's simple interface.
///
/// # Safety
/// `data` and `out` are of the given sizes.
#[no_mangle]
pub unsafe extern "C" fn webp(data: *const u8, size: usize, out: *mut u8, room: usize) -> c_int {
    let (mut width, mut height) = (0, 0);
    if libwebp_sys::WebPGetInfo(data, size, &mut width, &mut height) == 0 || (width * height * 3) as usize != room {
        return 2;
    }
    c_int::from(libwebp_sys::WebPDecodeRGBInto(data, size, out, room, width * 3).is_null())
}

/// The `image` crate, as most callers use it: a new picture, converted to RGB. It is copied out only when `check` asks for
/// it, by a room of any size but 0.
///
/// # Safety
/// `data` and `out` are of the given sizes.
#[no_mangle]
pub unsafe extern "C" fn image(data: *const u8, size: usize, out: *mut u8, room: usize) -> c_int {
    let (data, out) = slices(data, size, out, room);
    let Ok(picture) = image::load_from_memory(data) else { return 1 };
    let pixels = std::hint::black_box(picture.into_rgb8()).into_raw();
    if out.len() == pixels.len() {
        out.copy_from_slice(&pixels);
    }
    0
}
