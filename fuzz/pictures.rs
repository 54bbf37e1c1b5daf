//! What must hold of pictures for any bytes. Shared by the fuzz target and by the test that replays its corpus.

use _core::media::decode::{Outcome, Plan};
use _core::media::probe::{probe, Found};
use _core::media::{handoff, Limits};

/// Small, so that a lying header costs nothing.
fn limits() -> Limits {
    Limits { pixels: 1 << 20, side: 1 << 14, frames: 1 << 12, bytes: 1 << 20, ..Limits::default() }
}

/// No panic, no answer that contradicts another.
pub fn check(data: &[u8]) {
    let limits = limits();
    let whole = probe(data, true, &limits);
    assert!(whole != Ok(Found::More));
    for cut in [16, data.len() / 2, data.len().saturating_sub(1)] {
        let start = probe(&data[..cut.min(data.len())], false, &limits);
        // What a start of the file says for good is what the whole says.
        if let (Ok(Found::Header(start)), Ok(Found::Header(whole))) = (start, &whole) {
            assert_eq!((start.width, start.height), (whole.width, whole.height));
            assert!(!start.settled || start.orientation == whole.orientation);
        }
    }
    let Ok(Outcome::Decoded(plan)) = Plan::new(data, &limits) else { return };
    assert_eq!(whole, Ok(Found::Header(plan.probe)));
    let mut pixels = vec![0xa5; plan.size().unwrap_or(0)];
    let outcome = plan.decode(&mut pixels);
    if outcome == Ok(Outcome::Decoded(())) {
        let mut ppm = vec![0x5a; handoff::size(&plan).unwrap_or(0)];
        assert_eq!(handoff::write(&plan, &mut ppm), outcome);
        assert!(ppm.ends_with(&pixels), "what was in the target before shows through");
    }
}
