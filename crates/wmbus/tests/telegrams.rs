//! Real telegrams with their keys, and what they say (`data/telegrams.jsonl`, which names the source of
//! each).
//!
//! Every number and date that is expected must be among the readings in its unit; the main ones, such
//! as `total_m3`, must be where the meter's owner would look for them. Words that a driver makes of a
//! manufacturer's own status bits are not expected of us.
#![allow(clippy::unwrap_used)]

use fulmar_wmbus::{
    Address, Decoder, Function, InMemoryKeys, Key, Protection, Reading, Received, Seal, Telegram,
    Value, encode,
};
use serde_json::Value as Json;

fn lines() -> Vec<Json> {
    let text = include_str!("data/telegrams.jsonl");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn keys(line: &Json) -> InMemoryKeys {
    let mut keys = InMemoryKeys::new();
    if let Some(key) = line["key"].as_str() {
        keys.insert(line["meter_id"].as_str().unwrap(), key.parse().unwrap()).unwrap();
    }
    keys
}

fn received(line: &Json) -> Received {
    Received { bytes: bytes(line["frame"].as_str().unwrap()), ..Received::default() }
}

fn decoded(line: &Json) -> Telegram {
    Decoder::new(keys(line))
        .decode(&received(line))
        .unwrap_or_else(|error| panic!("{error}\n{line}"))
}

/// Our unit, and what to multiply our number by, for an ending of an expected key.
const UNITS: [(&str, &str, f64); 17] = [
    ("_m3h", "m³/h", 1.0),
    ("_m3c", "", 1.0),
    ("_m3", "m³", 1.0),
    ("_kwh", "kWh", 1.0),
    ("_kw", "kW", 1.0),
    ("_c", "°C", 1.0),
    ("_rh", "%", 1.0),
    ("_hca", "units", 1.0),
    ("_s", "s", 1.0),
    ("_h", "min", 1.0 / 60.0),
    ("_h", "h", 1.0),
    ("_y", "d", 1.0 / 365.2425),
    ("_y", "d", 1.0 / 365.0),
    ("_y", "months", 1.0 / 12.0),
    ("_h", "s", 1.0 / 3600.0),
    ("counter", "", 1.0),
    ("counter", "units", 1.0),
];

fn is_close(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-6 * other.abs().max(1.0)
}

fn number(reading: &Reading) -> Option<f64> {
    match reading.value {
        Value::Number(number) => Some(number),
        _ => None,
    }
}

/// Dates and ages that a driver works out from others instead of reading them.
fn is_derived(driver: &str, key: &str) -> bool {
    match driver {
        "waterstarm" => key.starts_with("history_") && key.ends_with("_date"),
        "apatorna1" => key == "historic_age_h",
        _ => false,
    }
}

/// Whether a number is among the readings, in the unit its key ends with.
fn has_number(readings: &[Reading], key: &str, wanted: f64) -> bool {
    let units: Vec<_> = UNITS.iter().filter(|(ending, ..)| key.ends_with(ending)).collect();
    let first = units.first().unwrap_or_else(|| panic!("no unit for {key}")).0;
    let ours = |reading: &Reading| {
        units.iter().any(|(ending, unit, factor)| {
            *ending == first
                && reading.unit == *unit
                && number(reading).is_some_and(|number| is_close(number * factor, wanted))
        })
    };
    readings.iter().any(ours)
}

fn has_moment(readings: &[Reading], wanted: &str) -> bool {
    readings.iter().any(|reading| match &reading.value {
        Value::Moment(moment) => moment.to_string().starts_with(wanted),
        Value::Profile(profile) => profile.times.iter().any(|time| time.to_string() == wanted),
        _ => false,
    })
}

/// Where the main values are: quantity, storage number, function, qualifier.
fn place(key: &str) -> Option<(&'static str, Option<u64>, Function, &'static [&'static str])> {
    const NOW: Function = Function::Instantaneous;
    Some(match key {
        "total_m3" | "total_volume_m3" => ("volume", Some(0), NOW, &[]),
        "total_energy_consumption_kwh" => ("energy", Some(0), NOW, &[]),
        "current_consumption_hca" | "consumption_hca" | "current_hca" => {
            ("heat cost allocation", Some(0), NOW, &[])
        }
        "total_backward_m3" => ("volume", Some(0), NOW, &["backward"]),
        _ => return None,
    })
}

#[test]
fn every_expected_number_and_date_is_read() {
    let (mut numbers, mut moments, mut texts) = (0, 0, 0);
    let mut missing = Vec::new();
    for line in lines() {
        let telegram = decoded(&line);
        assert_eq!(telegram.meter.id.to_string(), line["meter_id"].as_str().unwrap());
        let readings = &telegram.records.readings;
        let mut fail = |key: &str, wanted: &Json| {
            missing.push(format!("{}: {key} = {wanted}", line["driver"]));
        };
        for (key, wanted) in line["expected"].as_object().unwrap() {
            if is_derived(line["driver"].as_str().unwrap(), key) {
                continue;
            }
            if let Some(number) = wanted.as_f64() {
                numbers += 1;
                if !has_number(readings, key, number) {
                    fail(key, wanted);
                }
            } else if let Some(text) = wanted.as_str().filter(|text| text.get(4..5) == Some("-")) {
                moments += 1;
                if !has_moment(readings, text) {
                    fail(key, wanted);
                }
            } else if [
                "fabrication_no",
                "software_version",
                "parameter_set",
                "version",
                "enhanced_id",
            ]
            .contains(&key.as_str())
            {
                texts += 1;
                let text = wanted.as_str().unwrap().trim();
                if !readings.iter().any(|reading| reading.value.to_string().trim() == text) {
                    fail(key, wanted);
                }
            }
        }
    }
    assert_eq!(missing, [""; 0]);
    assert!(numbers > 230 && moments > 30 && texts > 8, "{numbers} {moments} {texts}");
}

#[test]
fn main_values_are_where_one_looks_for_them() {
    let mut checked = 0;
    for line in lines() {
        let telegram = decoded(&line);
        for (key, wanted) in line["expected"].as_object().unwrap() {
            let Some((quantity, storage, function, qualifiers)) = place(key) else { continue };
            let found: Vec<f64> = telegram
                .records
                .readings
                .iter()
                .filter(|reading| {
                    reading.quantity == quantity
                        && storage.is_none_or(|storage| reading.storage == storage)
                        && reading.function == function
                        && (reading.tariff, reading.subunit) == (0, 0)
                        && reading.qualifiers.contains(&"backward")
                            == qualifiers.contains(&"backward")
                })
                .filter_map(number)
                .collect();
            let wanted = wanted.as_f64().unwrap();
            assert!(found.iter().any(|found| is_close(*found, wanted)), "{key}: {found:?}\n{line}");
            checked += 1;
        }
    }
    assert!(checked > 25, "{checked}");
}

#[test]
fn a_wrong_key_is_said_to_be_wrong() {
    let mut encrypted = 0;
    for line in lines().iter().filter(|line| line["key"].is_string()) {
        let mut wrong = InMemoryKeys::new();
        wrong.insert(line["meter_id"].as_str().unwrap(), Key::new([0x5A; 16])).unwrap();
        let error = Decoder::new(wrong).decode(&received(line)).unwrap_err();
        assert_eq!(error.code(), "wrong-key", "{error}\n{line}");
        let error = Decoder::new(InMemoryKeys::new()).decode(&received(line)).unwrap_err();
        assert_eq!(error.code(), "no-key", "{error}\n{line}");
        encrypted += 1;
    }
    assert!(encrypted >= 17, "{encrypted}");
}

#[test]
fn a_replayed_telegram_is_refused_and_the_next_one_read() {
    for line in lines() {
        let mut decoder = Decoder::new(keys(&line));
        assert!(decoder.decode(&received(&line)).is_ok());
        let error = decoder.decode(&received(&line)).unwrap_err();
        assert_eq!(error.code(), "replayed", "{line}");
    }
}

#[test]
fn a_telegram_cut_anywhere_is_refused() {
    for line in lines() {
        let whole = received(&line);
        // Cut behind its encrypted part, it is the same message.
        let mut decoder = Decoder::new(keys(&line)).with_repeats(true);
        for cut in 0..whole.bytes.len() {
            let mut received = whole.clone();
            received.bytes.truncate(cut);
            let error = decoder.decode(&received).unwrap_err();
            assert_eq!(error.code(), "truncated", "{cut} bytes: {error}\n{line}");
            // As if the sender had meant it: the length fits, the layers inside do not, or a record
            // ends early.
            if cut > 10 {
                received.bytes[0] = (cut - 1) as u8;
                let _ = decoder.decode(&received);
            }
        }
        assert!(decoder.decode(&whole).is_ok(), "the stream goes on\n{line}");
    }
}

#[test]
fn a_record_that_is_encrypted_in_part_is_not_protected() {
    let (meter, key) = (Address::from_link([0x2D, 0x2C, 1, 2, 3, 4, 5, 7]), Key::new([1; 16]));
    let mut keys = InMemoryKeys::new();
    keys.insert("04030201", key.clone()).unwrap();
    let records = [&[0x0C, 0x06, 1, 0, 0, 0][..], &[0x02, 0x5A, 1, 2], &[0x04, 0x13, 1, 2, 3, 4]];
    let mut frame = encode(meter, 1, 0, Seal::Mode5(&key), &records.concat());
    let mut decoder = Decoder::new(keys).with_repeats(true);
    let mut volume = |bytes: &[u8]| {
        let received = Received { bytes: bytes.to_vec(), ..Received::default() };
        let telegram = decoder.decode(&received).unwrap();
        (telegram.main("volume").unwrap().protection, telegram.is_whole)
    };
    assert_eq!(volume(&frame), (Protection::Encrypted, true));
    // Its encrypted part is said to be one block instead of two, and what was in the second is in the clear.
    frame[13] = 0x10;
    frame.truncate(15 + 16);
    frame.extend([3, 4]);
    frame[0] = (frame.len() - 1) as u8;
    assert_eq!(volume(&frame), (Protection::Unauthenticated, false));
}

#[test]
fn a_changed_authenticated_telegram_is_refused() {
    let mut authenticated = 0;
    for line in lines() {
        if decoded(&line).protection != Protection::Authenticated {
            continue;
        }
        authenticated += 1;
        let whole = received(&line);
        let mut decoder = Decoder::new(keys(&line));
        // Behind the link layer's header, whose address says which key, and the extended one's CI, CC
        // and ACC, which nothing vouches for.
        for at in 14..whole.bytes.len() {
            for bit in 0..8 {
                let mut received = whole.clone();
                received.bytes[at] ^= 1 << bit;
                let outcome = decoder.decode(&received);
                assert!(outcome.is_err(), "bit {bit} of byte {at}: {outcome:?}");
            }
        }
        assert!(decoder.decode(&whole).is_ok());
    }
    assert_eq!(authenticated, 3);
}
