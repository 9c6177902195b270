//! Messages whose form is their maker's own instead of the standard's.
//!
//! One module a form. Each says whose messages it takes and on what its knowledge rests; whatever no
//! module takes goes the standard way.

mod apator;
mod bfw;

use crate::address::Address;
use crate::error::Error;
use crate::keys::Key;
use crate::records::Records;

/// Reads a maker's transport layer, which begins with one of the CI fields kept for them.
pub(crate) fn transport(
    meter: Address,
    payload: &[u8],
    key: Option<&Key>,
) -> Option<Result<Records, Error>> {
    apator::is_ours(meter, payload).then(|| apator::decode(meter, payload, key))
}

/// Reads a maker's records inside a standard transport layer.
pub(crate) fn records(meter: Address, records: &[u8]) -> Option<Records> {
    bfw::decode(meter, records)
}
