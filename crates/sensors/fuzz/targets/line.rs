//! Runs [`fulmar_sensors_fuzz::line`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_sensors_fuzz::line(data));
