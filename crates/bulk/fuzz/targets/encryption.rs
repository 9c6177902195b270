//! Runs [`fulmar_bulk_fuzz::encryption`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_bulk_fuzz::encryption(data));
