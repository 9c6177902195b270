//! Runs [`fulmar_bulk_fuzz::receiver`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_bulk_fuzz::receiver(data));
