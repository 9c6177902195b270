//! Manufacturers' small formats with values at fixed offsets: Apator 08 and 172, Techem's radio 3 and 4 meters and
//! compact heat meters, Zenner's EDC. One line per format.
//!
//! The wmbusmeters project found out the offsets. Everything else in such a message is kept as manufacturer-specific
//! data.

use crate::address::Address;
use crate::records::value::{Value, binary};
use crate::records::{Kind, Reading, Records};

/// Arrangement of a message's values.
struct Form {
    manufacturer: [char; 3],
    /// Versions and media of the meters that send it.
    models: &'static [(u8, u8)],
    quantity: &'static str,
    unit: &'static str,
    /// Where the value at the last due date lies, and in how many bytes, lowest first.
    then: Option<(usize, usize)>,
    /// The same for the value of now.
    now: (usize, usize),
    /// Whether that one counts from the last due date.
    since_then: bool,
    /// Amount for which a count of one stands.
    scale: f64,
}

const WATER: Form = Form {
    manufacturer: ['A', 'P', 'T'],
    models: &[],
    quantity: "volume",
    unit: "m³",
    then: None,
    now: (0, 4),
    since_then: false,
    scale: 0.001,
};
const TECHEM_WATER: Form =
    Form { manufacturer: ['T', 'C', 'H'], since_then: true, scale: 0.1, ..WATER };
const TECHEM_HEAT: Form = Form { quantity: "energy", unit: "kWh", scale: 1.0, ..TECHEM_WATER };

/// Forms behind a CI field of A0 to A2.
const OF_TRANSPORT: [Form; 6] = [
    Form { models: &[(0x03, 0x03), (0x0F, 0x0F)], scale: 0.001 / 3.0, ..WATER },
    Form { models: &[(0x04, 0x11)], scale: 1.0 / 3.0, ..WATER },
    Form { models: &[(0x74, 0x62), (0x74, 0x72)], then: Some((3, 2)), now: (7, 2), ..TECHEM_WATER },
    Form {
        models: &[(0x95, 0x62), (0x70, 0x62), (0x95, 0x72), (0x70, 0x72)],
        then: Some((3, 2)),
        now: (7, 2),
        ..TECHEM_WATER
    },
    Form {
        models: &[
            (0x45, 0x04),
            (0x45, 0xC3),
            (0x22, 0x43),
            (0x27, 0x43),
            (0x45, 0x43),
            (0x39, 0x43),
        ],
        then: Some((3, 3)),
        now: (7, 3),
        ..TECHEM_HEAT
    },
    // These count in megajoules.
    Form {
        models: &[(0x27, 0x04), (0x27, 0xC3)],
        then: Some((3, 2)),
        now: (7, 2),
        scale: 1.0 / 3.6,
        ..TECHEM_HEAT
    },
];

/// Formats after the marker of manufacturer-specific data in a standard transport layer.
const OF_RECORDS: [Form; 1] = [Form {
    manufacturer: ['Z', 'R', 'I'],
    models: &[(0x0B, 0x16)],
    then: Some((4, 4)),
    now: (8, 4),
    scale: 1.0 / 256_000.0,
    ..WATER
}];

pub(super) fn transport(meter: Address, payload: &[u8]) -> Option<Records> {
    let (0xA0..=0xA2, body) = payload.split_first()? else { return None };
    read(&OF_TRANSPORT, meter, body)
}

pub(super) fn records(meter: Address, records: &[u8]) -> Option<Records> {
    const FILLER: u8 = 0x2F;
    let start = records.iter().position(|byte| *byte != FILLER)?;
    let (0x0F, body) = records[start..].split_first()? else { return None };
    read(&OF_RECORDS, meter, body)
}

fn read(forms: &[Form], meter: Address, body: &[u8]) -> Option<Records> {
    let model = (meter.version, meter.medium.0);
    let form = forms.iter().find(|form| {
        form.manufacturer == meter.manufacturer.letters() && form.models.contains(&model)
    })?;
    let count = |(at, bytes): (usize, usize)| {
        body.get(at..at + bytes).map(|bytes| binary(bytes, Kind::Unsigned))
    };
    let reading = |count: Option<f64>, storage| {
        let value = count.map_or(Value::Missing, |count| Value::Number(count * form.scale));
        Reading { storage, ..Reading::now(form.quantity, form.unit, value) }
    };
    let now = count(form.now)?;
    let mut readings = Vec::with_capacity(2);
    match form.then.map(count) {
        None => readings.push(reading(now, 0)),
        Some(then) => {
            let then = then?;
            let base = if form.since_then { then } else { Some(0.0) };
            readings.push(reading(base.zip(now).map(|(base, now)| base + now), 0));
            readings.push(reading(then, 1));
        }
    }
    Some(Records { readings, manufacturer: body.to_vec(), ..Records::default() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::str::FromStr;

    use crate::address::{Manufacturer, Medium, MeterId};

    fn meter(manufacturer: &str, version: u8, medium: u8) -> Address {
        Address {
            manufacturer: Manufacturer::from_str(manufacturer).unwrap(),
            id: MeterId::from_number(1),
            version,
            medium: Medium(medium),
        }
    }

    fn numbers(records: &Records) -> Vec<f64> {
        let number = |reading: &Reading| match reading.value {
            Value::Number(number) => (number * 1e6).round() / 1e6,
            _ => f64::NAN,
        };
        records.readings.iter().map(number).collect()
    }

    #[test]
    fn values_lie_where_the_forms_say() {
        let of = |manufacturer, version, medium, payload: &[u8]| {
            transport(meter(manufacturer, version, medium), payload)
                .map(|records| numbers(&records))
        };
        assert_eq!(of("APT", 0x03, 0x03, &[0xA0, 3, 0, 1, 0, 9]), Some(vec![21.846_333]));
        assert_eq!(of("APT", 0x04, 0x11, &[0xA0, 0x1D, 0x54, 0, 0]), Some(vec![7_177.666_667]));
        let radio = [0xA2, 6, 0x9F, 0x25, 89, 0, 0xB0, 0x29, 49, 0, 1];
        assert_eq!(of("TCH", 0x74, 0x62, &radio), Some(vec![13.8, 8.9]));
        let heat = [0xA1, 0, 0x9F, 0x27, 0x77, 1, 0, 0x60, 0x78, 0, 0, 1];
        assert_eq!(of("TCH", 0x45, 0x43, &heat), Some(vec![495.0, 375.0]));
        assert_eq!(of("TCH", 0x46, 0x43, &heat), None);
        assert_eq!(of("TCH", 0x45, 0x43, &heat[..8]), None);
        let zenner = [0x2F, 0x2F, 0x0F, 0, 0, 0, 0, 0x80, 0xBF, 0x1B, 0, 0, 0xA6, 0x42, 0];
        let read = records(meter("ZRI", 0x0B, 0x16), &zenner).unwrap();
        assert_eq!(numbers(&read), [17.062, 7.1035]);
    }
}
