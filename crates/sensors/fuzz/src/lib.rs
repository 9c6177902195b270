//! Fuzz target of `fulmar-sensors`: lines that a sensor, a script or a serial port prints.

use fulmar_mqtt_fuzz::heap;
use fulmar_sensors::line::{MAX_BYTES, MAX_READINGS, parse};
use fulmar_sensors::{Reading, instant, is_device, is_quantity};
use serde_json::json;

/// As which all times from the end of the year 9999 on are written.
const LAST: &str = "9999-12-31T23:59:59.999Z";
/// What reading a line may take, per byte of it and besides: an object's members are larger than their text.
const MAX_HEAP_PER_BYTE: usize = 128;
const MAX_HEAP_BYTES: usize = 4096;

/// One line. Its readings are within their bounds, and read again when they are written in either form.
pub fn line(data: &[u8]) {
    let (read, used) = heap::measure(|| parse(data));
    assert!(used.peak_bytes <= MAX_HEAP_BYTES + MAX_HEAP_PER_BYTE * data.len(), "{used:?}");
    let Ok((readings, _)) = read else { return };
    assert!(data.len() <= MAX_BYTES && readings.len() <= MAX_READINGS);
    for reading in readings {
        assert!(is_device(&reading.device) && is_quantity(&reading.quantity), "{reading:?}");
        assert!(reading.value.is_finite(), "{reading:?}");
        let at = reading.at_ms.map(instant);
        if at.as_deref() != Some(LAST) {
            check(reading, at.as_deref());
        }
    }
}

fn check(reading: Reading, at: Option<&str>) {
    let payload = reading.payload();
    assert_eq!(payload["value"].as_f64(), Some(reading.value));
    assert_eq!(payload["at"].as_str(), at);
    let Reading { device, quantity, value, unit, at_ms: _ } = &reading;
    let words = format!("{device} {quantity} {value:e} {}", at.unwrap_or_default());
    let mut object = json!({"device": device, "quantity": quantity, "value": value});
    (object["at"], object["unit"]) = (at.into(), unit.as_deref().into());
    assert!(reads_as(&object.to_string(), &reading), "{object} {reading:?}");
    // Words have no unit.
    assert!(reads_as(&words, &Reading { unit: None, ..reading }), "{words}");
}

fn reads_as(line: &str, reading: &Reading) -> bool {
    let Ok((all, _)) = parse(line.as_bytes()) else { return false };
    let [read] = &all[..] else { return false };
    // serde_json may read the closest number but one.
    let apart = (read.value - reading.value).abs();
    apart <= 2.0 * f64::EPSILON * reading.value.abs()
        && *read == Reading { value: read.value, ..reading.clone() }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn seeds() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds/sensors-line");
        fulmar_mqtt_fuzz::replay(&folder, line);
    }
}
