//! Pixels in a form that unmodified engines open at the price of a copy: binary PPM.

use std::io;
use std::path::Path;

use super::decode::{Outcome, Plan};
use super::native::mapping;
use super::MediaError;

/// Size and identity of a written picture.
pub type Written = Result<Outcome<(usize, String)>, MediaError>;

/// The header of a PPM of RGB pixels.
pub fn header(width: u32, height: u32) -> String {
    format!("P6\n{width} {height}\n255\n")
}

/// Bytes of the PPM that a planned picture becomes.
pub fn size(plan: &Plan<'_>) -> Option<usize> {
    let (width, height) = plan.probe.upright();
    plan.size()?.checked_add(header(width, height).len())
}

/// Decode straight into a new file in shared memory, which is there only when the pixels are; then their identity, too.
pub fn write_file(plan: &Plan<'_>, path: &Path) -> io::Result<Written> {
    let size = size(plan).ok_or(io::ErrorKind::InvalidInput)?;
    mapping::create(path, size, |out| {
        let pixels = size - plan.size().unwrap_or(size);
        match write(plan, out) {
            Ok(Outcome::Decoded(())) => (true, Ok(Outcome::Decoded((size, plan.id(&out[pixels..]))))),
            Ok(Outcome::Pass(what)) => (false, Ok(Outcome::Pass(what))),
            Err(error) => (false, Err(error)),
        }
    })
}

/// Decode straight into `out`, a mapping of shared memory for one; it has exactly `size` bytes.
pub fn write(plan: &Plan<'_>, out: &mut [u8]) -> Result<Outcome<()>, MediaError> {
    let (width, height) = plan.probe.upright();
    let header = header(width, height);
    if Some(out.len()) != size(plan) {
        return Err(MediaError::damaged("the target of a picture has another size"));
    }
    let (head, pixels) = out.split_at_mut(header.len());
    head.copy_from_slice(header.as_bytes());
    plan.decode(pixels)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::media::Limits;

    #[test]
    fn a_picture_becomes_a_ppm_of_itself() {
        let mut data = b"P5 # grey\n2 1 255\n".to_vec();
        data.extend([7, 9]);
        let Ok(Outcome::Decoded(plan)) = Plan::new(&data, &Limits::default()) else { panic!("a plan") };
        let mut out = vec![0; size(&plan).unwrap()];
        assert_eq!(write(&plan, &mut out), Ok(Outcome::Decoded(())));
        assert_eq!(out, b"P6\n2 1\n255\n\x07\x07\x07\x09\x09\x09");
        assert!(write(&plan, &mut vec![0; out.len() + 1]).is_err());
        let path = std::env::temp_dir().join(format!("epd-router-handoff-{}.ppm", std::process::id()));
        let id = plan.id(&out[out.len() - 6..]);
        assert_eq!(write_file(&plan, &path).unwrap(), Ok(Outcome::Decoded((out.len(), id))));
        assert_eq!(std::fs::read(&path).unwrap(), out);
        assert!(write_file(&plan, &path).is_err(), "a file that is there is never written over");
        std::fs::remove_file(&path).unwrap();
        let Ok(Outcome::Decoded(short)) = Plan::new(&data[..data.len() - 1], &Limits::default()) else {
            panic!("a plan")
        };
        assert!(write_file(&short, &path).unwrap().is_err() && !path.exists());
    }
}
