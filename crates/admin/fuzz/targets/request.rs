//! Runs [`fulmar_admin_fuzz::request`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_admin_fuzz::request(data));
