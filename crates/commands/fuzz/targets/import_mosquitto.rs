//! Runs [`fulmar_command_fuzz::import_mosquitto`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_command_fuzz::import_mosquitto(data));
