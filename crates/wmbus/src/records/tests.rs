use super::*;

#[track_caller]
fn shown(bytes: &[u8]) -> Vec<String> {
    let records = Records::parse(bytes);
    assert_eq!(records.problem, None);
    let readings = records.readings.iter();
    readings
        .map(|Reading { quantity, value, unit, storage, qualifiers, .. }| {
            format!("{quantity} {value} {unit} {storage} {}", qualifiers.join(", "))
        })
        .collect()
}

#[test]
fn units_are_brought_to_one_a_quantity() {
    for (bytes, wanted) in [
        (&[0x04, 0x03, 0x10, 0x27, 0, 0][..], "energy 10 kWh 0 "),
        (&[0x04, 0x06, 5, 0, 0, 0], "energy 5 kWh 0 "),
        (&[0x04, 0x0F, 1, 0, 0, 0], "energy 2.7777777777777777 kWh 0 "),
        (&[0x04, 0xFB, 0x00, 1, 0, 0, 0], "energy 100 kWh 0 "),
        (&[0x0C, 0x13, 0x78, 0x56, 0x34, 0x12], "volume 12345.678 m³ 0 "),
        (&[0x02, 0x2B, 0x10, 0x27], "power 10 kW 0 "),
        (&[0x02, 0x3B, 0x64, 0], "volume flow 0.1 m³/h 0 "),
        (&[0x02, 0x42, 0x64, 0], "volume flow 0.06 m³/h 0 "),
        (&[0x02, 0x5A, 0x2C, 0x01], "flow temperature 30 °C 0 "),
        (&[0x02, 0xFD, 0x47, 0xF6, 0x08], "voltage 22.94 V 0 "),
        (&[0x02, 0xFB, 0x1A, 0x69, 0x01], "relative humidity 36.1 % 0 "),
        (&[0x05, 0x13, 0, 0, 0xC0, 0x3F], "volume 0.0015 m³ 0 "),
    ] {
        assert_eq!(shown(bytes), [wanted]);
    }
}

#[test]
fn qualifiers_are_named_and_corrections_applied() {
    for (bytes, wanted) in [
        (&[0x04, 0x93, 0x3C, 1, 0, 0, 0][..], "volume 0.001 m³ 0 backward"),
        (&[0x04, 0x93, 0x7D, 1, 0, 0, 0], "volume 1 m³ 0 "),
        (&[0x04, 0x93, 0x74, 1, 0, 0, 0], "volume 0.00001 m³ 0 "),
        (&[0x01, 0x93, 0x49, 3], "volume 3  0 times above upper limit"),
        (&[0x02, 0x93, 0x59, 3, 0], "volume 3 min 0 duration of first time above upper limit"),
        (&[0x02, 0xEC, 0xFC, 0x01, 0x9F, 0x2C], "date 2020-12-31  0 phase L1"),
        (&[0x42, 0x93, 0x39, 0x9F, 0x2C], "volume 2020-12-31  1 start"),
        (&[0x02, 0xFF, 0x20, 8, 0], "manufacturer specific 8  0 "),
        (&[0x02, 0xFC, 0x02, b'R', b'%', 0x74, 8, 0], "plain text unit 0.08 %R 0 "),
    ] {
        assert_eq!(shown(bytes), [wanted]);
    }
}

#[test]
fn what_has_no_value_is_missing() {
    for bytes in [
        &[0x0C, 0x13, 0xFF, 0xFF, 0xEE, 0xEE][..],
        &[0x02, 0x6C, 0xFF, 0xFF],
        &[0x00, 0x13],
        &[0x0D, 0x78, 0],
        &[0x05, 0x13, 0, 0, 0xC0, 0x7F],
    ] {
        assert_eq!(Records::parse(bytes).readings[0].value, Value::Missing, "{bytes:02X?}");
    }
}

#[test]
fn a_profile_is_spread_out() {
    let bytes = [0x0D, 0x93, 0x1F, 10, 0x32, 254, 1, 0, 2, 0, 3, 0, 0, 0x80];
    assert_eq!(
        shown(&bytes),
        ["volume absolute every 1 month: 0.001 0.002 0.003 - m³ 0 compact profile"]
    );
}

#[test]
fn a_makers_data_are_kept_raw() {
    let records = Records::parse(&[0x2F, 0x01, 0x13, 7, 0x1F, 0xAA, 0xBB]);
    assert_eq!((records.readings.len(), records.more_follows), (1, true));
    assert_eq!(records.manufacturer, [0xAA, 0xBB]);
    assert!(!Records::parse(&[0x0F]).more_follows);
}

#[test]
fn what_came_before_a_broken_record_is_kept() {
    let records = Records::parse(&[0x01, 0x13, 7, 0x04, 0x13, 1]);
    assert_eq!(records.readings.len(), 1);
    assert_eq!(records.problem, Some(Error::Short("records")));
}

#[test]
fn a_monthly_profile_is_dated_from_its_storage_numbers_date() {
    let date = [0x42, 0x6C, 0x41, 0x32];
    let profile = |kind| [0x4D, 0x93, kind, 6, 0x32, 254, 1, 0, 2, 0];
    let times = |kind| {
        let records = Records::parse(&[&date[..], &profile(kind)].concat());
        match &records.readings[1].value {
            Value::Profile(profile) => profile.times.iter().map(Moment::to_string).collect(),
            other => vec![other.to_string()],
        }
    };
    assert_eq!(times(0x13), ["2026-01-01", "2025-12-01"]);
    assert_eq!(times(0x1F), ["2026-03-01", "2026-04-01"]);
}
