//! Datagrams as they come from the network.
#![no_main]

use std::cell::RefCell;

use fulmar_tiny::{Client, fuzzing};

thread_local!(static CLIENT: RefCell<Box<Client>> = RefCell::new(Box::new(Client::new())));

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    CLIENT.with_borrow_mut(|client| fuzzing::datagram(client, &mut data.to_vec()));
});
