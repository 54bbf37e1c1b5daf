//! libjpeg-turbo through its TurboJPEG 3 interface, with the settings whose pixels equal Pillow's: accurate transform,
//! smooth chroma. The handle decides nothing else; warnings are told apart from errors, which wrapper crates do not.
#![allow(unsafe_code)]

use std::ffi::{c_int, CStr};

use turbojpeg_sys as sys;

/// How a file that was decoded to the end came out.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// Without a complaint.
    Clean,
    /// The decoder warned; the text of its first warning.
    Warned(String),
}

/// Why there are no pixels.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure {
    /// The decoder gave up.
    Fatal(String),
    /// A kind of JPEG that is not decoded here.
    Other(&'static str),
}

struct Handle(sys::tjhandle);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle came from tj3Init and is dropped once.
        unsafe { sys::tj3Destroy(self.0) }
    }
}

impl Handle {
    fn new() -> Result<Self, Failure> {
        // SAFETY: no preconditions; null is checked.
        let handle = unsafe { sys::tj3Init(sys::TJINIT_TJINIT_DECOMPRESS as c_int) };
        if handle.is_null() {
            return Err(Failure::Fatal("out of memory".into()));
        }
        Ok(Handle(handle))
    }

    fn get(&self, what: sys::TJPARAM) -> c_int {
        // SAFETY: a live handle.
        unsafe { sys::tj3Get(self.0, what as c_int) }
    }

    fn set(&self, what: sys::TJPARAM, value: c_int) {
        // SAFETY: a live handle. The parameters set here exist in every TurboJPEG 3.
        unsafe { sys::tj3Set(self.0, what as c_int, value) };
    }

    fn text(&self) -> String {
        // SAFETY: a live handle; the string is static or part of the handle and copied at once.
        unsafe { CStr::from_ptr(sys::tj3GetErrorStr(self.0)) }.to_string_lossy().into_owned()
    }

    /// The last call failed for good, rather than warned.
    fn fatal(&self) -> bool {
        // SAFETY: a live handle.
        let code = unsafe { sys::tj3GetErrorCode(self.0) };
        let text = self.text();
        // An error that follows a warning is reported as a warning: only its text, the latest, gives it away.
        code != sys::TJERR_TJERR_WARNING as c_int || !WARNINGS.iter().any(|warning| text.contains(warning))
    }
}

/// How the texts of all warnings of libjpeg begin.
const WARNINGS: [&str; 6] = [
    "Corrupt JPEG data",
    "Premature end of JPEG file",
    "Warning: ",
    "Inconsistent progression sequence",
    "Invalid SOS parameters",
    "Application transferred",
];

/// Most scans of a progressive file: each costs as much as the whole picture.
const SCANS: c_int = 512;

/// Decode a picture of the given size: four channels (CMYK as stored) with `cmyk`, else RGB. `out` has exactly its size.
/// `strict`: stop at the first warning, with the rows written until then.
pub fn decode(
    jpeg: &[u8],
    width: usize,
    height: usize,
    cmyk: bool,
    strict: bool,
    out: &mut [u8],
) -> Result<End, Failure> {
    let handle = Handle::new()?;
    handle.set(sys::TJPARAM_TJPARAM_FASTDCT, 0);
    handle.set(sys::TJPARAM_TJPARAM_FASTUPSAMPLE, 0);
    handle.set(sys::TJPARAM_TJPARAM_SCANLIMIT, SCANS);
    handle.set(sys::TJPARAM_TJPARAM_STOPONWARNING, strict.into());
    // SAFETY: pointer and length are of one slice, which outlives the call.
    let status = unsafe { sys::tj3DecompressHeader(handle.0, jpeg.as_ptr(), jpeg.len() as sys::size_t) };
    if status != 0 && handle.fatal() {
        return Err(Failure::Fatal(handle.text()));
    }
    if handle.get(sys::TJPARAM_TJPARAM_LOSSLESS) == 1 {
        return Err(Failure::Other("a lossless JPEG"));
    }
    let size = (handle.get(sys::TJPARAM_TJPARAM_JPEGWIDTH), handle.get(sys::TJPARAM_TJPARAM_JPEGHEIGHT));
    let space = handle.get(sys::TJPARAM_TJPARAM_COLORSPACE) as sys::TJCS;
    let four = matches!(space, sys::TJCS_TJCS_CMYK | sys::TJCS_TJCS_YCCK);
    let format = if cmyk { sys::TJPF_TJPF_CMYK } else { sys::TJPF_TJPF_RGB };
    let bytes = width.checked_mul(height).and_then(|pixels| pixels.checked_mul(if cmyk { 4 } else { 3 }));
    if (usize::try_from(size.0), usize::try_from(size.1)) != (Ok(width), Ok(height))
        || four != cmyk
        || bytes != Some(out.len())
    {
        return Err(Failure::Other("a JPEG with contradicting headers"));
    }
    // SAFETY: `out` holds width * height pixels of the format (checked above), rows without gaps (pitch 0); the call reads
    // the header of the same bytes again, and so finds the same size.
    let status = unsafe {
        sys::tj3Decompress8(handle.0, jpeg.as_ptr(), jpeg.len() as sys::size_t, out.as_mut_ptr(), 0, format as c_int)
    };
    match status {
        0 => Ok(End::Clean),
        _ if !handle.fatal() => Ok(End::Warned(handle.text())),
        _ if handle.text().contains("scans") => Err(Failure::Other("a JPEG of very many scans")),
        _ => Err(Failure::Fatal(handle.text())),
    }
}
