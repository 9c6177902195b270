//! Runs [`fulmar_broker_fuzz::token`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_broker_fuzz::token(data));
