//! A message with measurements of a sensor in a home, as it came from the broker.

use fulmar_mqtt_fuzz::heap;
use serde_json::json;

use crate::measurements::NewMeasurement;
use crate::measurements::message::{Contents, SensorMessage, parse};
use crate::time::Time;

const MAX_ITEMS: usize = 1000;
const MAX_AMOUNT: f64 = 1e12;
const MAX_ID: usize = 160;
const MAX_UNIT: usize = 16;
const NOW: Time = Time(1_800_000_000_000);
/// What reading a message may take, per byte of it and besides: an object in the payload is a tree first.
const MAX_HEAP_PER_BYTE: usize = 128;
const MAX_HEAP_BYTES: usize = 4096;

/// Four lines: the topic's device and its quantity, the user properties `at` and `id`; then the payload. An empty line stands
/// for what is not there.
pub fn measurement(data: &[u8]) {
    let mut parts = data.splitn(5, |byte| *byte == b'\n');
    let mut line = || std::str::from_utf8(parts.next().unwrap_or_default()).unwrap_or_default();
    let (device, quantity, at, id) = (line(), line(), line(), line());
    let there = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let quantity = Some(quantity).filter(|quantity| !quantity.is_empty());
    let payload = parts.next().unwrap_or_default().to_vec();
    let message = SensorMessage { topic: String::new(), payload, at: there(at), id: there(id) };
    let (read, used) = heap::measure(|| parse(device, quantity, &message, NOW));
    assert!(used.peak_bytes <= MAX_HEAP_BYTES + MAX_HEAP_PER_BYTE * data.len(), "{used:?}");
    let Ok(Contents { measurements: items, unusable }) = read else { return };
    assert!(items.len() + unusable.len() <= MAX_ITEMS && !items.is_empty());
    for item in &items {
        assert_eq!((&*item.device, &*item.quantity), (device, quantity.unwrap_or(&item.quantity)));
        check(item);
    }
}

/// A measurement is within its bounds, and read again when it is written.
fn check(item: &NewMeasurement) {
    let NewMeasurement { device, quantity, at, value, unit, id } = item;
    assert!(value.abs() <= MAX_AMOUNT, "{item:?}");
    assert!(unit.as_ref().is_none_or(|unit| unit.chars().count() <= MAX_UNIT), "{item:?}");
    assert!(id.as_ref().is_none_or(|id| (1..=MAX_ID).contains(&id.chars().count())), "{item:?}");
    let written = json!({"value": value, "at": at, "unit": unit, "id": id}).to_string();
    let message = SensorMessage { payload: written.into(), ..SensorMessage::default() };
    let again = parse(device, Some(quantity), &message, NOW).expect("what was accepted");
    let [again] = &again.measurements[..] else { panic!("{again:?}") };
    // serde_json may read the closest number but one.
    assert!((*again.value - **value).abs() <= 2.0 * f64::EPSILON * value.abs(), "{again:?}");
    assert_eq!(*again, NewMeasurement { value: again.value, ..item.clone() });
}
