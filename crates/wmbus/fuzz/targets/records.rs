//! Runs [`fulmar_wmbus_fuzz::records`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_wmbus_fuzz::records(data));
