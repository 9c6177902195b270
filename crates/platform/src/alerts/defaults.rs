//! The rules of a new twin, with the sources of their limits.
//!
//! They are recommendations for living rooms, and can be changed; none replaces a certified alarm.

use super::types::{Rule, Severity};

/// A limit on a quantity: identifier, name, quantity, severity, above, clear, how long, averaged over.
type Limit = (&'static str, &'static str, &'static str, Severity, f64, f64, u32, u32, &'static str);

const RADON: &str = "Council Directive 2013/59/Euratom, article 74, and WHO handbook on indoor radon \
                     (2009): 300 Bq/m³, as the mean of a year; the mean of an hour is an early sign of it";
const CO2: &str = "Umweltbundesamt, Bundesgesundheitsblatt 51 (2008) 1358-1369: up to 1000 ppm harmless, \
                   to 2000 ppm elevated, above unacceptable";
const CO: &str = "WHO guidelines for indoor air quality: selected pollutants (2010): 100 mg/m³ for 15 minutes \
                  (87 ppm), 35 mg/m³ for an hour (30 ppm), 10 mg/m³ for 8 hours (9 ppm)";

const LIMITS: [Limit; 6] = [
    ("radon", "Radon", "radon", Severity::Warning, 300.0, 250.0, 0, 3600, RADON),
    ("co2", "Carbon dioxide", "co2", Severity::Info, 1000.0, 900.0, 300, 0, CO2),
    ("co2-high", "Carbon dioxide, high", "co2", Severity::Warning, 2000.0, 1500.0, 300, 0, CO2),
    ("co-8h", "Carbon monoxide, 8 hours", "co", Severity::Warning, 9.0, 7.0, 0, 8 * 3600, CO),
    ("co-1h", "Carbon monoxide, an hour", "co", Severity::Critical, 30.0, 20.0, 0, 3600, CO),
    ("co-15min", "Carbon monoxide, 15 minutes", "co", Severity::Critical, 87.0, 50.0, 0, 900, CO),
];

/// The rules of a new twin.
pub(crate) fn rules() -> Vec<Rule> {
    let rule = |id: &str, name: &str, severity| {
        Some(Rule {
            id: id.parse().ok()?,
            name: name.to_owned(),
            quantity: None,
            home: None,
            severity,
            above: None,
            below: None,
            clear: None,
            for_s: 0,
            averaging_s: 0,
            silent_s: None,
            source: None,
            enabled: true,
            etag: String::new(),
        })
    };
    let limits = LIMITS.iter().filter_map(|limit| {
        let &(id, name, quantity, severity, above, clear, for_s, averaging_s, source) = limit;
        let (quantity, source) = (quantity.parse().ok(), Some(source.to_owned()));
        let (above, clear) = (Some(above), Some(clear));
        let rule = rule(id, name, severity)?;
        Some(Rule { quantity, above, clear, for_s, averaging_s, source, ..rule })
    });
    let silent = rule("silent", "Sensor silent", Severity::Warning);
    let silent = silent.map(|rule| Rule { silent_s: Some(3600), ..rule });
    limits.chain(silent).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_usual_rule_can_be_and_limits_name_their_source() {
        let rules = rules();
        assert_eq!(rules.len(), LIMITS.len() + 1);
        for rule in rules {
            assert_eq!(rule.check(), Ok(()), "{}", rule.id);
            assert!(rule.silent_s.is_some() || rule.source.is_some_and(|text| text.contains("20")));
        }
    }
}
