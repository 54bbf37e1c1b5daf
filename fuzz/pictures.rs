//! What must hold of pictures for any bytes. Shared by the fuzz targets, one for each format, and by the test that replays
//! their corpora.

use _core::media::decode::{Outcome, Plan};
use _core::media::probe::{probe, Found};
use _core::media::sniff::{sniff, Format, Sniff};
use _core::media::{handoff, Limits};

use crate::budget;

/// The folder of a corpus, which is the name of its target too, and what its files are.
#[allow(dead_code)]
pub const TARGETS: [(&str, &[Format]); 8] = [
    ("jpeg", &[Format::Jpeg]),
    ("png", &[Format::Png]),
    ("webp", &[Format::Webp]),
    ("gif", &[Format::Gif]),
    ("bmp", &[Format::Bmp]),
    ("tiff", &[Format::Tiff]),
    ("ppm", &[Format::Ppm]),
    ("heif", &[Format::Avif, Format::Heif]),
];

const PIXELS: u64 = 1 << 20;
const GUARD: usize = 64;

/// Small, so that a lying header costs nothing.
fn limits() -> Limits {
    Limits { pixels: PIXELS, side: 1 << 14, frames: 1 << 12, bytes: 1 << 20, ..Limits::default() }
}

/// The same for bytes of one format; false for others, which are another target's.
#[allow(dead_code)]
pub fn one(formats: &[Format], data: &[u8]) -> bool {
    let known = matches!(sniff(data), Sniff::Known(format) if formats.contains(&format));
    if known {
        check(data);
        if formats == [Format::Png] {
            check(&repaired(data));
        }
    }
    known
}

/// No panic, no answer that contradicts another, no memory beyond what the header explains.
pub fn check(data: &[u8]) {
    let limits = limits();
    // A text of a PNG may be 1 MiB unpacked, and is held at most twice while it grows.
    let (whole, peak) = budget::peak(|| probe(data, true, &limits));
    assert!(peak <= 8 * data.len() + (5 << 20), "a probe of {} bytes took {peak}", data.len());
    assert!(whole != Ok(Found::More));
    prefixes(data, &whole, &limits);
    let plan = match Plan::new(data, &limits) {
        Ok(Outcome::Decoded(plan)) => plan,
        _ => return,
    };
    assert_eq!(whole, Ok(Found::Header(plan.probe)));
    let (width, height) = plan.probe.upright();
    let size = plan.size().unwrap_or(0);
    assert_eq!(size, width as usize * height as usize * 3);
    let mut pixels = vec![0xa5; size + GUARD];
    let (outcome, peak) = budget::peak(|| plan.decode(&mut pixels[..size]));
    // Besides the target: the picture as stored, its inks or a second look, and the palette of a damaged file.
    assert!(peak <= 4 * size + 8 * data.len() + (9 << 20), "{width}x{height} of {} bytes took {peak}", data.len());
    let mut ppm = vec![0x5a; handoff::size(&plan).unwrap_or(0) + GUARD];
    let room = ppm.len() - GUARD;
    assert_eq!(handoff::write(&plan, &mut ppm[..room]), outcome, "a second time is another time");
    assert!(pixels[size..] == [0xa5; GUARD] && ppm[room..] == [0x5a; GUARD], "written beyond the target");
    if outcome == Ok(Outcome::Decoded(())) {
        assert!(ppm[..room].ends_with(&pixels[..size]), "what was in the target before shows through");
    }
}

/// What a start of the file says for good is what the whole says.
fn prefixes(data: &[u8], whole: &Result<Found, _core::media::MediaError>, limits: &Limits) {
    // Cuts at fixed places, and at four that depend on the data, so that a fuzzer can move them.
    let sum = data.iter().fold(data.len(), |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let anywhere = (0..4).map(|turn| (sum >> (turn * 13)) % (data.len() + 1));
    for cut in [16, data.len() / 2, data.len().saturating_sub(1)].into_iter().chain(anywhere) {
        let start = probe(&data[..cut.min(data.len())], false, limits);
        match (&start, whole) {
            (Ok(Found::Header(start)), Ok(Found::Header(whole))) => {
                assert_eq!((start.width, start.height), (whole.width, whole.height), "cut at {cut}");
                assert!(start.frames <= whole.frames, "cut at {cut}");
                if start.settled {
                    assert_eq!((start.orientation, start.frames), (whole.orientation, whole.frames), "cut at {cut}");
                }
            }
            (Err(error), Ok(_)) => panic!("refused when cut at {cut}: {error}"),
            _ => {}
        }
    }
}

/// A PNG with the check sums that its chunks should have: a fuzzer does not find them.
fn repaired(data: &[u8]) -> Vec<u8> {
    let mut data = data.to_vec();
    let mut at = 8;
    while let Some(head) = data.get(at..at + 8) {
        let size = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let Some(body) = at.checked_add(8 + size).and_then(|end| data.get(at + 4..end)) else { break };
        let sum = crc32(body).to_be_bytes();
        at += 8 + size;
        let Some(place) = data.get_mut(at..at + 4) else { break };
        place.copy_from_slice(&sum);
        at += 4;
    }
    data
}

fn crc32(data: &[u8]) -> u32 {
    let step = |sum: u32| if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
    !data.iter().fold(!0, |sum, &byte| (0..8).fold(sum ^ u32::from(byte), |sum, _| step(sum)))
}
