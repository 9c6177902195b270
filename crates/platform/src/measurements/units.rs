//! Units: one for each known quantity; what sensors say in another known one is converted.
//!
//! A quantity nobody here knows has the unit of its first measurement, and only that.

/// The quantities that are known, and the units they are kept in.
const KNOWN: [(&str, &str); 8] = [
    ("radon", "Bq/m³"),
    ("co2", "ppm"),
    ("co", "ppm"),
    ("temperature", "°C"),
    ("humidity", "%"),
    ("pressure", "hPa"),
    ("battery", "%"),
    ("voc", "ppb"),
];

/// The unit a quantity is kept in, if it is a known one.
pub(crate) fn usual(quantity: &str) -> Option<&'static str> {
    KNOWN.iter().find(|(name, _)| *name == quantity).map(|(_, unit)| *unit)
}

/// The value in `wanted`, if `unit` is that or can be converted to it.
pub(crate) fn convert(value: f64, unit: &str, wanted: &str) -> Option<f64> {
    if unit == wanted {
        return Some(value);
    }
    let (unit, wanted) = (plain(unit), plain(wanted));
    match (&*unit, &*wanted) {
        (unit, wanted) if unit == wanted => Some(value),
        ("f", "c") => Some((value - 32.0) / 1.8),
        ("k", "c") => Some(value - 273.15),
        ("pci/l", "bq/m3") => Some(value * 37.0),
        ("kbq/m3", "bq/m3") | ("ppm", "ppb") => Some(value * 1000.0),
        ("ppb", "ppm") => Some(value / 1000.0),
        ("pa", "hpa") => Some(value / 100.0),
        ("kpa", "hpa") => Some(value * 10.0),
        _ => None,
    }
}

/// One spelling for a unit's usual ones.
fn plain(unit: &str) -> String {
    let lower = unit.trim().to_lowercase().replace('³', "3").replace("m^3", "m3");
    let short = match lower.trim_start_matches(['°', 'º']) {
        "celsius" | "degc" => "c",
        "fahrenheit" | "degf" => "f",
        "kelvin" => "k",
        "percent" | "%rh" | "rh" => "%",
        "mbar" => "hpa",
        other => other,
    };
    short.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_one_a_quantity() {
        for (value, unit, wanted, expected) in [
            (21.5, "°C", "°C", Some(21.5)),
            (21.5, "C", "°C", Some(21.5)),
            (212.0, "°F", "°C", Some(100.0)),
            (273.15, "K", "°C", Some(0.0)),
            (4.0, "pCi/L", "Bq/m³", Some(148.0)),
            (150.0, "Bq/m3", "Bq/m³", Some(150.0)),
            (40.0, "%RH", "%", Some(40.0)),
            (1013.0, "mbar", "hPa", Some(1013.0)),
            (101_300.0, "Pa", "hPa", Some(1013.0)),
            (9.0, "mg/m³", "ppm", None),
            (9.0, "", "ppm", None),
        ] {
            assert_eq!(convert(value, unit, wanted), expected, "{unit}");
        }
        assert_eq!(usual("radon"), Some("Bq/m³"));
        assert_eq!(usual("dust"), None);
    }
}
