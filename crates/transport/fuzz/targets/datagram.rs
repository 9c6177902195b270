//! Runs [`fulmar_transport_fuzz::datagram`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_transport_fuzz::datagram(data));
