//! Runs [`fulmar_http_fuzz::requests`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_http_fuzz::requests(data));
