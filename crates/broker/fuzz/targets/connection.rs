//! Runs [`fulmar_broker_fuzz::connection`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_broker_fuzz::connection(data));
