//! The eight EXIF orientations as moves of RGB pixels.

const PIXEL: usize = 3;
const TILE: usize = 32; // pixels a side: source and target of a transposed tile stay in the first-level cache

/// Width and height once `orientation` is applied.
pub fn size(width: u32, height: u32, orientation: u8) -> (u32, u32) {
    if (5..=8).contains(&orientation) {
        (height, width)
    } else {
        (width, height)
    }
}

/// Write RGB `from`, `width` by `height`, into `to` with EXIF `orientation` applied. Both are whole pictures.
pub fn apply(from: &[u8], width: usize, height: usize, orientation: u8, to: &mut [u8]) {
    let stride = width * PIXEL;
    if stride == 0 {
        return;
    }
    match orientation {
        2 => from.chunks_exact(stride).zip(to.chunks_exact_mut(stride)).for_each(|(from, to)| mirror(from, to)),
        3 => from.chunks_exact(stride).rev().zip(to.chunks_exact_mut(stride)).for_each(|(from, to)| mirror(from, to)),
        4 => from
            .chunks_exact(stride)
            .rev()
            .zip(to.chunks_exact_mut(stride))
            .for_each(|(from, to)| to.copy_from_slice(from)),
        5..=8 => turn(from, width, height, orientation, to),
        _ => to.copy_from_slice(from),
    }
}

fn mirror(from: &[u8], to: &mut [u8]) {
    for (from, to) in from.chunks_exact(PIXEL).rev().zip(to.chunks_exact_mut(PIXEL)) {
        to.copy_from_slice(from);
    }
}

fn turn(from: &[u8], width: usize, height: usize, orientation: u8, to: &mut [u8]) {
    // The target row is the source column (from the right for 7 and 8), its column the source row (from the bottom for 6, 7).
    let (right, bottom) = (matches!(orientation, 7 | 8), matches!(orientation, 6 | 7));
    for top in (0..height).step_by(TILE) {
        for left in (0..width).step_by(TILE) {
            for x in left..width.min(left + TILE) {
                let row = if right { width - 1 - x } else { x } * height;
                for y in top..height.min(top + TILE) {
                    let target = (row + if bottom { height - 1 - y } else { y }) * PIXEL;
                    let source = (y * width + x) * PIXEL;
                    to[target..target + PIXEL].copy_from_slice(&from[source..source + PIXEL]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2 by 3, pixels named by one byte.
    fn turned(orientation: u8) -> Vec<u8> {
        let from: Vec<u8> = (1..=6).flat_map(|name| [name; PIXEL]).collect();
        let mut to = vec![0; from.len()];
        apply(&from, 2, 3, orientation, &mut to);
        to.chunks_exact(PIXEL).map(|pixel| pixel[0]).collect()
    }

    #[test]
    fn all_eight() {
        assert_eq!(turned(1), [1, 2, 3, 4, 5, 6]);
        assert_eq!(turned(2), [2, 1, 4, 3, 6, 5]);
        assert_eq!(turned(3), [6, 5, 4, 3, 2, 1]);
        assert_eq!(turned(4), [5, 6, 3, 4, 1, 2]);
        assert_eq!(turned(5), [1, 3, 5, 2, 4, 6]);
        assert_eq!(turned(6), [5, 3, 1, 6, 4, 2]);
        assert_eq!(turned(7), [6, 4, 2, 5, 3, 1]);
        assert_eq!(turned(8), [2, 4, 6, 1, 3, 5]);
        assert_eq!(size(2, 3, 4), (2, 3));
        assert_eq!(size(2, 3, 5), (3, 2));
    }
}
