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
use crate::records::Records;

/// The frame's sender, if a manufacturer's link address differs from the standard's.
pub(crate) fn sender(sender: Address, payload: &[u8]) -> Address {
    diehl::address(sender, payload).unwrap_or(sender)
}

/// Reads what a manufacturer sends in place of the standard's transport layer, or hidden in one; `link` is the
/// address as it was sent.
pub(crate) fn transport(
    link: Address,
    meter: Address,
    payload: &[u8],
    key: Option<&Key>,
) -> Option<Result<Records, Error>> {
    if apator::is_ours(meter, payload) {
        return Some(apator::decode(meter, payload, key));
    }
    diehl::decode(link, payload, key).or_else(|| packed::transport(meter, payload).map(Ok))
}

/// Reads a manufacturer's records inside a standard transport layer.
pub(crate) fn records(meter: Address, records: &[u8]) -> Option<Records> {
    bfw::decode(meter, records)
        .or_else(|| apator162::decode(meter, records))
        .or_else(|| packed::records(meter, records))
        .or_else(|| qundis::decode(meter, records))
}
