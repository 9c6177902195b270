//! How much operations are, for limits of what waits.

use std::borrow::Borrow;

use fulmar_broker::storage::{Op, SubscriptionRecord};

/// Bytes of a message that count as one operation in the backlog.
const BYTES_PER_OP: usize = 1024;

/// Weight of `batch` in the backlog, or in what the database lacks: one per operation, and one per whole
/// [`BYTES_PER_OP`] of a message, a filter or a topic, so that a limit bounds the memory for those of any size. A message in
/// many queues counts once if its operations follow each other; the broker submits them like this.
pub(crate) fn weight(batch: impl IntoIterator<Item = impl Borrow<Op>>) -> usize {
    let mut weight = 0;
    let mut last = None;
    for op in batch {
        let op = op.borrow();
        weight += 1;
        if let Op::Enqueue { message, .. } | Op::RetainedPut(message) = op {
            if last != Some(message.id()) {
                weight += message.size() / BYTES_PER_OP;
            }
            last = Some(message.id());
        }
        if let Op::Row { key, value, .. } = op {
            weight += (key.len() + value.as_ref().map_or(0, |value| value.len())) / BYTES_PER_OP;
        }
        if let Op::SessionPut(record) = op {
            let will = record.will.as_ref();
            weight += will.map_or(0, |will| {
                let credential = will.testator.credential.as_ref().map_or(0, |text| text.len());
                let own = will.topic.len() + will.payload.len() + will.properties.len();
                (own + credential) / BYTES_PER_OP
            });
        }
        if let Op::SubscriptionPut(SubscriptionRecord { filter: text, .. })
        | Op::SubscriptionRemove { filter: text, .. }
        | Op::RetainedRemove(text) = op
        {
            weight += text.len() / BYTES_PER_OP;
        }
    }
    weight
}
