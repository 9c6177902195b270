//! Runs [`fulmar_mqttsn_fuzz::message`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_mqttsn_fuzz::message(data));
