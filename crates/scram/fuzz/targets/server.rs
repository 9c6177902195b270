//! Runs [`fulmar_scram_fuzz::server`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_scram_fuzz::server(data));
