//! Runs [`fulmar_server_fuzz::auth_answer`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_server_fuzz::auth_answer(data));
