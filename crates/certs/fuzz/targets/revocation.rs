//! Runs [`fulmar_certs_fuzz::revocation`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fulmar_certs_fuzz::revocation(data));
