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
use crate::records::value::{Value, binary};
use crate::records::{Kind, Reading, Records};

/// A frame's sender and payload without a manufacturer's layer around the standard's.
pub(crate) fn unwrap(sender: Address, payload: &[u8]) -> (Address, &[u8]) {
    apator162::unwrap(sender, payload).unwrap_or((sender, payload))
}

/// The frame's sender, if a manufacturer's link address differs from the standard's.
pub(crate) fn sender(sender: Address, payload: &[u8]) -> Address {
    diehl::address(sender, payload).unwrap_or(sender)
}

/// Message that a manufacturer sends in place of the standard's transport layer.
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

/// The key of meters whose owner asked for none of his own, for security mode 5. Anybody has it.
pub(crate) fn general_key(meter: Address) -> Option<Key> {
    diehl::general_key(meter)
}

/// A count of thousandths without a sign, lowest byte first.
fn thousandths(bytes: &[u8]) -> Value {
    let count = binary(bytes, Kind::Unsigned);
    count.map_or(Value::Missing, |count| Value::Number(count / 1000.0))
}

/// Leaves out what a manufacturer's meters send in place of a value: Kamstrup's water meters send 127 or -127 °C where
/// they have no sensor.
pub(crate) fn leave_out(meter: Address, readings: &mut [Reading]) {
    const WATER: [u8; 5] = [0x06, 0x07, 0x15, 0x16, 0x17];
    let is_kamstrup = matches!(meter.manufacturer.letters(), ['K', 'A', 'M' | 'W']);
    if is_kamstrup && WATER.contains(&meter.medium.0) {
        let none = |value: &Value| matches!(value, Value::Number(number) if number.abs() == 127.0);
        let readings = readings.iter_mut().filter(|own| own.unit == "°C" && none(&own.value));
        readings.for_each(|reading| reading.value = Value::Missing);
    }
}

/// Reads a manufacturer's records inside a standard transport layer; besides, what of them was encrypted once more under
/// the meter's key.
pub(crate) fn records(
    meter: Address,
    records: &[u8],
    key: Option<&Key>,
) -> Option<(Records, Vec<u8>)> {
    let plain = bfw::decode(meter, records)
        .or_else(|| apator162::decode(meter, records))
        .or_else(|| packed::records(meter, records));
    plain.map(|plain| (plain, Vec::new())).or_else(|| qundis::decode(meter, records, key))
}
