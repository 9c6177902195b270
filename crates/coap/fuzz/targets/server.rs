//! Runs [`fulmar_coap_fuzz::server`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_coap_fuzz::server(data));
