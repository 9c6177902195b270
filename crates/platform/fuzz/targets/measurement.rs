//! Runs [`fulmar_platform_fuzz::measurement`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_platform_fuzz::measurement(data));
