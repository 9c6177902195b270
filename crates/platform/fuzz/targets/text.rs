//! Runs [`fulmar_platform_fuzz::text`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_platform_fuzz::text(data));
