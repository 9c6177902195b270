//! Fuzz targets of `fulmar-mqtt`: each a function of arbitrary bytes that panics when a rule is broken.
//!
//! `targets/` passes them to libFuzzer (`make fuzz`); the tests here run every seed through them, so that `cargo
//! test` detects both a broken target and a bug that has returned. Each bug that a target found has a test beside its
//! code, named after the bug.
//!
//! Also shared code of other crates' targets: [`heap`], [`replay`], and the models in `tests/support`.

pub mod heap;
mod packet;
#[path = "../../tests/support/mod.rs"]
pub mod support;

use std::path::Path;

use fulmar_mqtt::flow::{self, MAX_HEADER_BYTES, is_flow_header};
use support::{link, model, topics};

pub use packet::packet;

/// The session machines compared with their models, and two of them over a link that is cut.
pub fn session(data: &[u8]) {
    let Some((first, script)) = data.split_first() else { return };
    match first % 4 {
        0 => model::outbound(script),
        1 => model::inbound(script),
        2 => link::exactly_once(script),
        _ => link::at_least_once(script),
    }
}

/// Two lines of text: a filter as in SUBSCRIBE, and a topic name.
pub fn topic(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (filter, name) = text.split_once('\n').unwrap_or((text, text));
    topics::agree(filter, name);
}

/// The header of a data stream, cut at any place.
pub fn flow(data: &[u8]) {
    match flow::decode(data) {
        Ok(Some((header, used))) => {
            assert!(used <= MAX_HEADER_BYTES.min(data.len()));
            for cut in 0..used {
                assert_eq!(flow::decode(&data[..cut]), Ok(None), "a header has one end");
            }
            let mut bytes = Vec::new();
            flow::encode(&header, &mut bytes);
            assert!(is_flow_header(bytes[0]));
            assert_eq!(flow::decode(&bytes), Ok(Some((header, bytes.len()))));
        }
        Ok(None) => assert!(data.len() < MAX_HEADER_BYTES),
        Err(error) => assert!(error.stream_error() as u64 >= 0xB3),
    }
}

/// Runs every file of a folder of seeds through a target.
///
/// # Panics
/// If there are none: a moved folder must not count as success.
pub fn replay(folder: impl AsRef<Path>, target: fn(&[u8])) {
    let folder = folder.as_ref();
    let files: Vec<_> = std::fs::read_dir(folder).into_iter().flatten().flatten().collect();
    assert!(!files.is_empty(), "no seeds in {}", folder.display());
    for file in files {
        let bytes = std::fs::read(file.path());
        // Captured, and shown when the target panics.
        println!("{}", file.path().display());
        target(&bytes.unwrap_or_else(|error| panic!("{}: {error}", file.path().display())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/seeds/");

    #[test]
    fn seeds_pass() {
        replay(SEEDS.to_owned() + "mqtt-packet", packet);
        replay(SEEDS.to_owned() + "mqtt-session", session);
        replay(SEEDS.to_owned() + "mqtt-topic", topic);
        replay(SEEDS.to_owned() + "mqtt-flow", flow);
    }
}
