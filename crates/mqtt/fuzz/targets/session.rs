//! Runs [`fulmar_mqtt_fuzz::session`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_mqtt_fuzz::session(data));
