//! Headers and pixels: what must hold for any bytes, and the fuzz corpus replayed.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../fuzz/pictures.rs"]
mod pictures;

use std::path::Path;

use proptest::prelude::*;

#[test]
fn corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/pictures");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        pictures::check(&std::fs::read(entry.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count > 0, "no corpus");
}

fn seeds() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/pictures");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(data in proptest::collection::vec(any::<u8>(), 0..300), seed in any::<prop::sample::Index>()) {
        pictures::check(&data);
        // The same behind a magic number and some more of a real header.
        let seeds = seeds();
        let seed = seed.get(&seeds);
        let mut mixed = seed[..seed.len().min(24)].to_vec();
        mixed.extend(&data);
        pictures::check(&mixed);
    }

    #[test]
    fn damaged_pictures(
        seed in any::<prop::sample::Index>(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut data = seed.get(&seeds()).clone();
        for (place, byte) in damage {
            let at = place.index(data.len());
            data[at] = byte;
        }
        pictures::check(&data);
        data.truncate(cut.index(data.len()));
        pictures::check(&data);
    }
}
