//! Runs [`fulmar_wmbus_fuzz::chips`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_wmbus_fuzz::chips(data));
