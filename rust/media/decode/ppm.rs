//! Binary netpbm with samples of one bit or up to 255.

use super::convert::{self, Table};
use super::Stop;
use crate::media::probe::ppm::header;

/// Decode to RGB.
pub fn decode(data: &[u8], out: &mut [u8]) -> Result<(), Stop> {
    let header = header(data).map_err(|_| Stop::Refused("a damaged netpbm file".into()))?;
    let width = header.width as usize;
    let stride = match (header.kind, header.max) {
        (b'4', _) => width.div_ceil(8),
        (b'5', 255) => width,
        (b'6', 255) => width * 3,
        _ => return Err(Stop::Pass("a netpbm file that is not of one bit or eight")),
    };
    let from = stride
        .checked_mul(header.height as usize)
        .and_then(|size| data.get(header.data..header.data.checked_add(size)?))
        .ok_or_else(|| Stop::Refused("the netpbm data end early".into()))?;
    match header.kind {
        b'6' => out.copy_from_slice(from),
        b'5' => convert::grey(from, out),
        _ => {
            let ink = Table::grey(255).invert();
            for (from, to) in from.chunks_exact(stride).zip(out.chunks_exact_mut(width * 3)) {
                ink.packed(1, from, to);
            }
        }
    }
    Ok(())
}
