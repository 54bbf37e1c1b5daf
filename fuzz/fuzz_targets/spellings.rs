#![no_main]

#[path = "../spellings.rs"]
mod spellings;

libfuzzer_sys::fuzz_target!(|data: &[u8]| spellings::check(data));
