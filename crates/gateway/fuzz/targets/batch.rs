//! Runs [`fulmar_gateway_fuzz::batch`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_gateway_fuzz::batch(data));
