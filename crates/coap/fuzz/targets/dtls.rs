//! Runs [`fulmar_coap_fuzz::dtls`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_coap_fuzz::dtls(data));
