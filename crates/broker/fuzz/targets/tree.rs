//! Runs [`fulmar_broker_fuzz::tree`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_broker_fuzz::tree(data));
