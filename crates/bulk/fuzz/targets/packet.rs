//! Runs [`fulmar_bulk_fuzz::packet`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_bulk_fuzz::packet(data));
