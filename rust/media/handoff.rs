//! Pixels in a form that unmodified engines open at the price of a copy: binary PPM.

use super::decode::{Outcome, Plan};
use super::MediaError;

/// The header of a PPM of RGB pixels.
pub fn header(width: u32, height: u32) -> String {
    format!("P6\n{width} {height}\n255\n")
}

/// Bytes of the PPM that a planned picture becomes.
pub fn size(plan: &Plan<'_>) -> Option<usize> {
    let (width, height) = plan.probe.upright();
    plan.size()?.checked_add(header(width, height).len())
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
    }
}
