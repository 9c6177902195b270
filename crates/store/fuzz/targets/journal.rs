//! Runs [`fulmar_store_fuzz::journal`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_store_fuzz::journal(data));
