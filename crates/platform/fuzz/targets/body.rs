//! Runs [`fulmar_platform_fuzz::body`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_platform_fuzz::body(data));
