//! Runs [`fulmar_identity_fuzz::control`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_identity_fuzz::control(data));
