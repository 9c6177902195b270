//! Runs [`fulmar_server_fuzz::traceparent`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_server_fuzz::traceparent(data));
