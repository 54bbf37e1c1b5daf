//! Replays the fuzz corpora, so that every input that once broke something stays fixed without a fuzzer.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../fuzz/checks.rs"]
mod checks;

use std::path::Path;

fn replay(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        check(&std::fs::read(entry.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count > 0, "no corpus of {target}");
}

#[test]
fn scan() {
    replay("scan", checks::scan);
}

#[test]
fn splice() {
    replay("splice", checks::splice);
}

#[test]
fn heads() {
    replay("heads", checks::heads);
}

#[test]
fn framer() {
    replay("framer", checks::framer);
}
