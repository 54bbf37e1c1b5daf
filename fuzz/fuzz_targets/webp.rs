#![no_main]

#[path = "../budget.rs"]
mod budget;
#[path = "../pictures.rs"]
mod pictures;

use _core::media::sniff::Format;
use libfuzzer_sys::{fuzz_target, Corpus};

fuzz_target!(|data: &[u8]| -> Corpus {
    if pictures::one(&[Format::Webp], data) {
        Corpus::Keep
    } else {
        Corpus::Reject
    }
});
