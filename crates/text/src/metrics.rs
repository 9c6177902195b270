//! Metrics as values: families of samples, as parts of a program report them. [`Metrics::prometheus`] writes them for
//! Prometheus; other forms are made from [`Metrics::families`].

use std::fmt::Write as _;

/// The kind of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number that only grows while the program runs.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// Values by size.
    Histogram,
}

impl Kind {
    /// The word for it in Prometheus' format.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// The value of a sample.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// That of a counter or gauge.
    Number(f64),
    /// That of a histogram.
    Histogram(Distribution),
}

/// Values by size.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Distribution {
    /// Upper bounds, ascending, each with how many values were at most that.
    pub buckets: Vec<(f64, u64)>,
    /// Number of all values, those above the last bound included.
    pub count: u64,
    /// Sum of all values.
    pub sum: f64,
}

/// Names and values of a sample's labels.
pub type Labels = Vec<(&'static str, String)>;

/// Samples with one meaning.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// The whole name, with its unit.
    pub name: String,
    /// Kind of all samples.
    pub kind: Kind,
    /// Meaning, in one line.
    pub help: &'static str,
    /// Samples, each with other labels.
    pub samples: Vec<(Labels, Value)>,
}

impl Family {
    /// Adds a number with labels.
    pub fn add<V: ToString>(
        &mut self,
        labels: &[(&'static str, V)],
        value: impl Number,
    ) -> &mut Family {
        let labels = labels.iter().map(|(name, value)| (*name, value.to_string())).collect();
        self.samples.push((labels, Value::Number(value.to_f64())));
        self
    }
}

/// A number that a sample can have.
pub trait Number: Copy {
    /// The number, rounded where it has more than 53 bits.
    fn to_f64(self) -> f64;
}

macro_rules! numbers {
    ($($kind:ty),*) => {
        $(impl Number for $kind {
            fn to_f64(self) -> f64 {
                self as f64
            }
        })*
    };
}

numbers!(f64, i64, u8, u64, usize);

impl Number for bool {
    fn to_f64(self) -> f64 {
        u8::from(self).into()
    }
}

/// Measurements of a program, in the order in which they were added.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    families: Vec<Family>,
}

impl Metrics {
    /// All families; each name is there once.
    #[must_use]
    pub fn families(&self) -> &[Family] {
        &self.families
    }

    /// The family with this name, which is added if it is missing. The name begins with `fulmar_` in all forms, except
    /// names that all programs share, which begin with `process_`.
    pub fn family(&mut self, kind: Kind, name: &str, help: &'static str) -> &mut Family {
        let prefix = if name.starts_with("process_") { "" } else { "fulmar_" };
        let name = format!("{prefix}{name}");
        let known = self.families.iter().position(|family| family.name == name);
        let at = known.unwrap_or_else(|| {
            self.families.push(Family { name, kind, help, samples: Vec::new() });
            self.families.len() - 1
        });
        &mut self.families[at]
    }

    /// The sum of the numbers of a family, named without `fulmar_`; 0 without one.
    #[must_use]
    pub fn sum(&self, name: &str) -> f64 {
        let family = self
            .families
            .iter()
            .find(|family| family.name.strip_prefix("fulmar_").unwrap_or(&family.name) == name);
        let numbers = family.into_iter().flat_map(|family| &family.samples);
        let number = |(_, value): &(Labels, Value)| match value {
            Value::Number(number) => *number,
            Value::Histogram(_) => 0.0,
        };
        numbers.map(number).sum()
    }

    /// Adds a gauge without labels.
    pub fn gauge(&mut self, name: &str, help: &'static str, value: impl Number) {
        self.family(Kind::Gauge, name, help).add::<&str>(&[], value);
    }

    /// Adds a counter without labels. Its name ends in `_total`.
    pub fn counter(&mut self, name: &str, help: &'static str, value: impl Number) {
        self.family(Kind::Counter, name, help).add::<&str>(&[], value);
    }

    /// Adds a histogram without labels.
    pub fn histogram(&mut self, name: &str, help: &'static str, values: Distribution) {
        let family = self.family(Kind::Histogram, name, help);
        family.samples.push((Vec::new(), Value::Histogram(values)));
    }

    /// The text format of Prometheus, version 0.0.4.
    #[must_use]
    pub fn prometheus(&self) -> String {
        let mut text = String::new();
        for Family { name, kind, help, samples } in &self.families {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {}", kind.name());
            for (labels, value) in samples {
                match value {
                    Value::Number(value) => {
                        let _ = writeln!(text, "{name}{} {value}", written(labels));
                    }
                    Value::Histogram(values) => write_histogram(&mut text, name, values),
                }
            }
        }
        text
    }
}

fn write_histogram(text: &mut String, name: &str, values: &Distribution) {
    for (bound, below) in &values.buckets {
        let _ = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {below}");
    }
    let Distribution { count, sum, .. } = values;
    let _ = writeln!(
        text,
        "{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_sum {sum}\n{name}_count {count}"
    );
}

fn written(labels: &Labels) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let escaped =
        |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let all: Vec<String> =
        labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    format!("{{{}}}", all.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_written_once_with_all_their_samples() {
        let mut metrics = Metrics::default();
        metrics.family(Kind::Gauge, "used_bytes", "Bytes").add(&[("account", "a\"b")], 2_u64);
        metrics.counter("seen_total", "Seen", 1_usize << 40);
        metrics
            .family(Kind::Gauge, "used_bytes", "Bytes")
            .add(&[("account", "c"), ("of", "d")], 0.5);
        metrics.gauge("process_start_time_seconds", "Start", 7.25);
        let values = Distribution { buckets: vec![(0.25, 2), (1.0, 3)], count: 4, sum: 4.5 };
        metrics.histogram("wait_seconds", "Waits", values);
        let expected = "\
# HELP fulmar_used_bytes Bytes
# TYPE fulmar_used_bytes gauge
fulmar_used_bytes{account=\"a\\\"b\"} 2
fulmar_used_bytes{account=\"c\",of=\"d\"} 0.5
# HELP fulmar_seen_total Seen
# TYPE fulmar_seen_total counter
fulmar_seen_total 1099511627776
# HELP process_start_time_seconds Start
# TYPE process_start_time_seconds gauge
process_start_time_seconds 7.25
# HELP fulmar_wait_seconds Waits
# TYPE fulmar_wait_seconds histogram
fulmar_wait_seconds_bucket{le=\"0.25\"} 2
fulmar_wait_seconds_bucket{le=\"1\"} 3
fulmar_wait_seconds_bucket{le=\"+Inf\"} 4
fulmar_wait_seconds_sum 4.5
fulmar_wait_seconds_count 4
";
        assert_eq!(metrics.prometheus(), expected);
    }
}
