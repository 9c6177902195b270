//! Messages in a manufacturer's own format instead of the standard's.
//!
//! One module per format. Each states whose messages it decodes and the source of its knowledge; all other messages are
//! decoded by the standard.

mod apator;
mod apator162;
mod bfw;
mod diehl;
mod packed;
mod qundis;

use crate::address::Address;
use crate::error::Error;
use crate::keys::Key;
use crate::protection::Protection;
use crate::records::Records;

/// The frame's sender, if a manufacturer's link address differs from the standard's.
pub(crate) fn sender(sender: Address, payload: &[u8]) -> Address {
    diehl::address(sender, payload).unwrap_or(sender)
}

/// What a manufacturer sends in place of the standard's transport layer.
pub(crate) struct Message {
    pub(crate) records: Result<Records, Error>,
    pub(crate) protection: Protection,
}

/// Reads what a manufacturer sends in place of the standard's transport layer, or hidden in one; `link` is the
/// address as it was sent.
pub(crate) fn transport(
    link: Address,
    meter: Address,
    payload: &[u8],
    key: Option<&Key>,
) -> Option<Message> {
    let message = |protection, records| Message { records, protection };
    if apator::is_ours(meter, payload) {
        return Some(message(Protection::Encrypted, apator::decode(meter, payload, key)));
    }
    if let Some(records) = diehl::decode(link, payload, key) {
        // Anybody has the general keys.
        let own = key.map_or(Protection::Unauthenticated, |_| Protection::Encrypted);
        return Some(message(own, records));
    }
    let records = packed::transport(meter, payload)?;
    Some(message(Protection::Unauthenticated, Ok(records)))
}

/// Reads a manufacturer's records inside a standard transport layer.
pub(crate) fn records(meter: Address, records: &[u8]) -> Option<Records> {
    bfw::decode(meter, records)
        .or_else(|| apator162::decode(meter, records))
        .or_else(|| packed::records(meter, records))
        .or_else(|| qundis::decode(meter, records))
}
