//! Fuzz targets of `fulmar-bulk`: each a function of any bytes that panics when a rule is broken.
//! `fulmar-mqtt-fuzz` says how such crates are made.

mod encryption;
mod peer;
mod script;
mod stream;
#[path = "../../tests/support/mod.rs"]
pub mod support;

use fulmar_bulk::wire::Message;
use fulmar_mqtt_fuzz::heap;

pub use encryption::encryption;
pub use peer::{receiver, sender};
pub use stream::stream;

/// One datagram. If it is accepted, encoding and decoding it again gives the same message, and reading it allocates
/// nothing.
pub fn packet(data: &[u8]) {
    let (message, used) = heap::measure(|| Message::decode(data));
    assert_eq!(used.peak_bytes, 0, "decoding borrows");
    let Ok(message) = message else { return };
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    assert_eq!(Message::decode(&bytes).as_ref(), Ok(&message));
}

#[cfg(test)]
mod tests {
    use super::*;
    use fulmar_mqtt_fuzz::replay;

    const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/seeds/");

    #[test]
    fn seeds_pass() {
        replay(SEEDS.to_owned() + "bulk-packet", packet);
        replay(SEEDS.to_owned() + "bulk-receiver", receiver);
        replay(SEEDS.to_owned() + "bulk-sender", sender);
        replay(SEEDS.to_owned() + "bulk-encryption", encryption);
        replay(SEEDS.to_owned() + "bulk-stream", stream);
    }

    /// Scripts without a pattern, so that streams are also tried by `cargo test`.
    #[test]
    fn any_script_passes() {
        let mut random = fastrand::Rng::with_seed(6);
        for _ in 0..300 {
            let script: Vec<u8> = (0..random.usize(..2000)).map(|_| random.u8(..)).collect();
            stream(&script);
        }
    }
}
