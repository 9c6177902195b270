//! Runs [`fulmar_wmbus_fuzz::input`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_wmbus_fuzz::input(data));
