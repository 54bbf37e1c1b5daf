//! From what a file stores to RGB, with the arithmetic of Pillow's conversions.

/// `value / 255`, rounded as Pillow rounds it; exact for products of two bytes.
fn div255(value: u32) -> u8 {
    let value = value + 128;
    (((value >> 8) + value) >> 8) as u8
}

/// One sample put on white.
pub fn on_white(sample: u8, alpha: u8) -> u8 {
    let (sample, alpha) = (u32::from(sample), u32::from(alpha));
    div255(255 * (255 - alpha) + sample * alpha)
}

/// RGBA put on white.
pub fn rgba(from: &[u8], to: &mut [u8]) {
    for (from, to) in from.chunks_exact(4).zip(to.chunks_exact_mut(3)) {
        let alpha = from[3];
        for (to, &from) in to.iter_mut().zip(&from[..3]) {
            *to = on_white(from, alpha);
        }
    }
}

/// Grey and alpha put on white.
pub fn la(from: &[u8], to: &mut [u8]) {
    for (from, to) in from.chunks_exact(2).zip(to.chunks_exact_mut(3)) {
        to.fill(on_white(from[0], from[1]));
    }
}

/// Grey.
pub fn grey(from: &[u8], to: &mut [u8]) {
    for (&from, to) in from.iter().zip(to.chunks_exact_mut(3)) {
        to.fill(from);
    }
}

/// CMYK, 0 for no ink.
pub fn cmyk(from: &[u8], to: &mut [u8]) {
    for (from, to) in from.chunks_exact(4).zip(to.chunks_exact_mut(3)) {
        let paper = 255 - from[3];
        for (to, &ink) in to.iter_mut().zip(&from[..3]) {
            // Never below zero: the rounded product of `paper` with at most 255 is at most `paper`.
            *to = paper - div255(u32::from(ink) * u32::from(paper));
        }
    }
}

/// CMYK stored the other way round, 255 for no ink, as every JPEG is taken to have it.
pub fn inverted_cmyk(from: &mut [u8], to: &mut [u8]) {
    for sample in from.iter_mut() {
        *sample = 255 - *sample;
    }
    cmyk(from, to);
}

/// 256 colours of three bytes, on white already where they are transparent.
#[derive(Clone)]
pub struct Table(Box<[[u8; 3]; 256]>);

impl Table {
    /// From colours of three bytes; those that are missing are black.
    pub fn new(colors: impl Iterator<Item = [u8; 3]>) -> Self {
        let mut table = Box::new([[0; 3]; 256]);
        table.iter_mut().zip(colors).for_each(|(entry, color)| *entry = color);
        Table(table)
    }

    /// Grey `index * scale`.
    pub fn grey(scale: u8) -> Self {
        Table::new((0..=255_u8).map(|index| [index.wrapping_mul(scale); 3]))
    }

    /// Put an entry on white.
    pub fn fade(&mut self, index: u8, alpha: u8) {
        self.0[usize::from(index)].iter_mut().for_each(|sample| *sample = on_white(*sample, alpha));
    }

    /// Invert all entries.
    pub fn invert(mut self) -> Self {
        self.0.iter_mut().flatten().for_each(|sample| *sample = 255 - *sample);
        self
    }

    /// Look up whole bytes.
    pub fn bytes(&self, from: &[u8], to: &mut [u8]) {
        for (&from, to) in from.iter().zip(to.chunks_exact_mut(3)) {
            to.copy_from_slice(&self.0[usize::from(from)]);
        }
    }

    /// Look up samples of 1, 2, 4 or 8 bits, the first one in the highest bits.
    pub fn packed(&self, bits: u8, from: &[u8], to: &mut [u8]) {
        if bits == 8 {
            return self.bytes(from, to);
        }
        let samples = usize::from(8 / bits);
        let mask = (1 << bits) - 1;
        for (&from, to) in from.iter().zip(to.chunks_mut(3 * samples)) {
            let mut shift = 8;
            for to in to.chunks_exact_mut(3) {
                shift -= bits;
                to.copy_from_slice(&self.0[usize::from(from >> shift & mask)]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_white_as_measured() {
        let mut out = [0; 6];
        rgba(&[200, 10, 50, 0, 200, 10, 50, 128], &mut out);
        assert_eq!(out, [255, 255, 255, 227, 132, 152]);
        la(&[10, 128, 10, 255], &mut out);
        assert_eq!(out, [132, 132, 132, 10, 10, 10]);
    }

    #[test]
    fn ink_never_underflows() {
        for ink in 0..=255 {
            for black in 0..=255 {
                cmyk(&[ink, ink, ink, black], &mut [0; 3]);
            }
        }
    }

    #[test]
    fn packed_samples() {
        let mut out = [0; 9];
        Table::grey(85).packed(2, &[0b00_01_10_11], &mut out);
        assert_eq!(out, [0, 0, 0, 85, 85, 85, 170, 170, 170]);
        Table::grey(255).packed(1, &[0b0100_0000], &mut out);
        assert_eq!(out, [0, 0, 0, 255, 255, 255, 0, 0, 0]);
    }
}
