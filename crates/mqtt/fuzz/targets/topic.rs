//! Runs [`fulmar_mqtt_fuzz::topic`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_mqtt_fuzz::topic(data));
