//! Runs [`fulmar_mirror_fuzz::rows`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_mirror_fuzz::rows(data));
