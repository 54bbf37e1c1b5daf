//! Headers and pixels: what must hold for any bytes, and the fuzz corpus replayed.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../fuzz/budget.rs"]
mod budget;
#[path = "../../fuzz/pictures.rs"]
mod pictures;
#[path = "../../fuzz/spellings.rs"]
mod spellings;

use std::path::Path;

use proptest::prelude::*;

fn folder(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "no corpus of {target}");
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

fn seeds() -> Vec<Vec<u8>> {
    pictures::TARGETS.iter().flat_map(|(target, _)| folder(target)).collect()
}

#[test]
fn corpus() {
    for (target, formats) in pictures::TARGETS {
        for data in folder(target) {
            assert!(pictures::one(formats, &data), "a file of another format in the corpus of {target}");
        }
    }
    folder("spellings").iter().for_each(|data| spellings::check(data));
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
    fn any_spelling(data in proptest::collection::vec(any::<u8>(), 2..80)) {
        spellings::check(&data);
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
