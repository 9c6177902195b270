//! Fuzz target of `fulmar-gateway`: batches that gateways send.

use fulmar_gateway::batch::{DEFLATE, MAX_BYTES, MAX_MESSAGES, Message, decode, encode};
use fulmar_gateway::outbox::Stored;
use fulmar_mqtt::topic::check_name;
use fulmar_mqtt_fuzz::heap;

/// What one batch may take while it is unpacked and read, in bytes: the unpacked text in a vector that doubles, and as
/// many messages as fit in it.
const MAX_HEAP_BYTES: usize = 8 * MAX_BYTES;

/// How a batch is packed, and the batch. What was read reads again when it is written, packed or not.
pub fn batch(data: &[u8]) {
    let Some((packed, payload)) = data.split_first() else { return };
    let encoding = [None, Some(DEFLATE), Some("none"), Some("br")][usize::from(packed % 4)];
    let (read, used) = heap::measure(|| decode(payload, encoding));
    assert!(used.peak_bytes <= MAX_HEAP_BYTES, "{used:?}");
    let Ok(messages) = read else { return };
    assert!(messages.len() <= MAX_MESSAGES);
    let bytes = |one: &Message| one.topic.len() + one.payload.len() + one.at.len() + one.id.len();
    assert!(messages.iter().map(bytes).sum::<usize>() <= MAX_BYTES);
    assert!(messages.iter().all(|message| check_name(&message.topic).is_ok()));
    let stored: Vec<Stored> = messages.iter().map(stored).collect();
    for compress in [false, true] {
        let (written, is_packed) = encode(&stored, compress);
        match decode(&written, is_packed.then_some(DEFLATE)) {
            Ok(again) => assert_eq!(again, messages),
            // Characters that came as themselves may have to be escaped.
            Err(error) => assert!(encode(&stored, false).0.len() > MAX_BYTES, "{error}"),
        }
    }
}

fn stored(message: &Message) -> Stored {
    let Message { topic, payload, at, id } = message.clone();
    Stored { topic, payload: payload.into(), at, id, ..Stored::default() }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn seeds() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds/gateway-batch");
        fulmar_mqtt_fuzz::replay(&folder, batch);
    }
}
