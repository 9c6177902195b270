//! Runs [`fulmar_mqtt_fuzz::packet`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_mqtt_fuzz::packet(data));
