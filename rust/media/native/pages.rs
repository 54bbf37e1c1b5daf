//! Memory for large pictures. A picture of 36 MB is 9 000 pages, and touching each for the first time costs a quarter of its
//! decoding; in huge pages it costs next to nothing. Systems give them to who asks.
#![allow(unsafe_code)]

/// What is shorter holds no whole huge page for certain.
#[cfg(target_os = "linux")]
const LEAST: usize = 4 << 20;
#[cfg(target_os = "linux")]
const HUGE: usize = 2 << 20;

/// Ask for huge pages behind what is about to be written. Only a wish: nothing depends on it.
#[cfg(target_os = "linux")]
pub fn large(target: &mut [u8]) {
    if target.len() < LEAST {
        return;
    }
    let range = target.as_mut_ptr_range();
    // Inwards: nobody else's memory is meant.
    let start = (range.start as usize).next_multiple_of(HUGE);
    let end = range.end as usize / HUGE * HUGE;
    if start < end {
        let first = target.as_mut_ptr().wrapping_add(start - range.start as usize);
        // SAFETY: the pages from `first` on lie within `target`; the advice changes how they are backed, not what they hold.
        unsafe { libc::madvise(first.cast(), end - start, libc::MADV_HUGEPAGE) };
    }
}

/// Elsewhere pages are what they are.
#[cfg(not(target_os = "linux"))]
pub fn large(_: &mut [u8]) {}

/// Zeros to decode into.
pub fn zeros(size: usize) -> Vec<u8> {
    let mut target = vec![0; size];
    large(&mut target);
    target
}

#[cfg(test)]
mod tests {
    use super::zeros;

    #[test]
    fn any_size_is_zeros() {
        for size in [0, 1, 4 << 20, (4 << 20) + 1, (9 << 20) + 4095] {
            let mut target = zeros(size);
            assert!(target.len() == size && target.iter().all(|&byte| byte == 0));
            target.fill(7);
            assert!(target.iter().all(|&byte| byte == 7));
        }
    }
}
