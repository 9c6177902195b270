//! Runs [`fulmar_server_fuzz::credentials`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_server_fuzz::credentials(data));
