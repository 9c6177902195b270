//! Runs [`fulmar_client_fuzz::server`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_client_fuzz::server(data));
