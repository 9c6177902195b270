//! Computes one number per measure from a sample's records.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde_json::Value;

use crate::experiment::{Cell, Experiment, From, Measure, Take, What};
use crate::network::{CapturedPacket, Observed};
use crate::stats::{mean, median, quantile, sorted};

/// The records of a sample, except the network's.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// When it began, by the monotonic clock.
    pub(super) began_ns: u64,
    /// JSON objects by role, with their time.
    pub(super) objects: BTreeMap<String, Vec<(u64, Value)>>,
    /// The time of each mark.
    pub(super) marks: BTreeMap<String, u64>,
    /// Use of the machine by role: time, CPU seconds, resident KiB.
    pub(super) usage: BTreeMap<String, Vec<(u64, f64, f64)>>,
}

/// The time over which the use of a core is averaged. The kernel counts it in ticks of 10 ms; over a second that is a
/// resolution of 1 %.
const CPU_OVER_NS: u64 = 1_000_000_000;

/// The numbers of a measure, with their time.
type Points = Vec<(u64, f64)>;

/// Values and points of a sample.
pub(super) type Measured = (BTreeMap<String, f64>, BTreeMap<String, Vec<[f64; 2]>>);

/// Computes all measures of a cell. Fails with the first one without a number, and why; one that is optional is left
/// out instead.
pub(super) fn measure_all(
    experiment: &Experiment,
    cell: &Cell,
    record: &Record,
    observed: &Observed,
) -> Result<Measured, String> {
    let (mut values, mut all_points) = (BTreeMap::new(), BTreeMap::new());
    for (name, measure) in experiment.measures.iter() {
        if !cell.matches(&measure.only) {
            continue;
        }
        let (points, keep) = match points(measure, &values, record, observed) {
            Ok(found) => found,
            Err(_) if measure.optional => continue,
            Err(reason) => return Err(format!("measure {name}: {reason}")),
        };
        let scaled: Vec<f64> = points.iter().map(|(_, value)| value * measure.scale).collect();
        let Some(value) = evaluate(measure.take, &scaled) else {
            if measure.optional {
                continue;
            }
            return Err(format!("measure {name}: not a single number"));
        };
        values.insert(name.to_owned(), value);
        if keep {
            let seconds = |at_ns: u64| at_ns.saturating_sub(record.began_ns) as f64 / 1e9;
            let kept = points.iter().zip(scaled);
            let kept = kept.map(|((at, _), value)| [round(seconds(*at)), value]).collect();
            all_points.insert(name.to_owned(), kept);
        }
    }
    Ok((values, all_points))
}

/// Rounds to a tenth of a millisecond: the rest is noise, and takes room in the file.
fn round(seconds: f64) -> f64 {
    (seconds * 1e4).round() / 1e4
}

/// The numbers, and whether to keep each of them.
fn points(
    measure: &Measure,
    values: &BTreeMap<String, f64>,
    record: &Record,
    observed: &Observed,
) -> Result<(Points, bool), String> {
    let role = measure.role.as_ref().map_or("", |role| role.get_ref());
    let mark = |mark: &Option<toml::Spanned<String>>| match mark {
        None => Ok(None),
        Some(mark) => match record.marks.get(mark.get_ref()) {
            Some(at) => Ok(Some(*at)),
            None => Err(format!("no line was the mark `{}`", mark.get_ref())),
        },
    };
    let (since, until) = (mark(&measure.since)?, mark(&measure.until)?);
    match measure.from {
        From::Lines => {
            let field = measure.field.as_ref().map_or("", |field| field.get_ref());
            let objects = record.objects.get(role).map_or(&[][..], Vec::as_slice);
            let mut points = numbers(objects, field);
            if points.is_empty() && measure.take != Take::Count {
                return Err(format!(
                    "{role} printed {} JSON objects, none with a number `{field}`",
                    objects.len()
                ));
            }
            let window = window(measure, record, since, until);
            points.retain(|(at, _)| window.contains(at));
            Ok((points, true))
        }
        From::Process => {
            let usage = record.usage.get(role).map_or(&[][..], Vec::as_slice);
            let mut points = used(usage, measure.what.as_ref().map(|what| *what.get_ref()));
            let window = window(measure, record, since, until);
            points.retain(|(at, _)| window.contains(at));
            Ok((points, true))
        }
        From::Packets => {
            Ok((vec![(record.began_ns, count(measure, observed, since, until)?)], false))
        }
        From::Spin => {
            let window = window(measure, record, since, until);
            Ok((round_trips(measure, observed, &window), true))
        }
        From::Sum => {
            let sum = summands(measure, values)?.iter().sum();
            Ok((vec![(record.began_ns, sum)], false))
        }
        From::Difference => {
            let all = summands(measure, values)?;
            // The first counts once on its own and once in the sum.
            let rest = 2.0 * all.first().copied().unwrap_or(0.0) - all.iter().sum::<f64>();
            Ok((vec![(record.began_ns, rest)], false))
        }
        From::Quotient => {
            let all = summands(measure, values)?;
            let &[over, under] = &all[..] else { return Err("it needs two measures".to_owned()) };
            if under == 0.0 {
                return Err("it would be divided by zero".to_owned());
            }
            Ok((vec![(record.began_ns, over / under)], false))
        }
        From::Marks => {
            let (since, until) = (since.unwrap_or(0), until.unwrap_or(0));
            Ok((vec![(until, (until as f64 - since as f64) / 1e9)], false))
        }
    }
}

/// The time window in which numbers of a measure count.
fn window(
    measure: &Measure,
    record: &Record,
    since: Option<u64>,
    until: Option<u64>,
) -> RangeInclusive<u64> {
    let after = |seconds: &toml::Spanned<f64>| record.began_ns + (seconds.get_ref() * 1e9) as u64;
    let from = measure.from_s.as_ref().map_or(0, after);
    let to = measure.to_s.as_ref().map_or(u64::MAX, after);
    since.unwrap_or(0).max(from)..=until.unwrap_or(u64::MAX).min(to)
}

/// The values from which a measure is computed.
fn summands(measure: &Measure, values: &BTreeMap<String, f64>) -> Result<Vec<f64>, String> {
    let summands = measure.of.iter().map(|of| {
        let value = values.get(of.get_ref()).copied();
        value.ok_or_else(|| format!("no value of `{}` to add", of.get_ref()))
    });
    summands.collect()
}

fn numbers(objects: &[(u64, Value)], field: &str) -> Points {
    let mut points = Vec::new();
    for (at, object) in objects {
        match object.get(field) {
            Some(Value::Array(list)) => {
                points.extend(list.iter().filter_map(Value::as_f64).map(|number| (*at, number)));
            }
            Some(one) => points.extend(one.as_f64().map(|number| (*at, number))),
            None => {}
        }
    }
    points
}

fn used(usage: &[(u64, f64, f64)], what: Option<What>) -> Points {
    match what {
        Some(What::RssKib) => usage.iter().map(|(at, _, rss)| (*at, *rss)).collect(),
        Some(What::CpuPct) => shares(usage),
        _ => usage.iter().map(|(at, cpu, _)| (*at, *cpu)).collect(),
    }
}

/// Shares of a core in percent, each averaged over the time before it.
fn shares(usage: &[(u64, f64, f64)]) -> Points {
    let mut begin = 0;
    let mut points = Points::new();
    for (index, (at, cpu, _)) in usage.iter().enumerate().skip(1) {
        while begin + 1 < index && at - usage[begin + 1].0 >= CPU_OVER_NS {
            begin += 1;
        }
        let (since, before, _) = usage[begin];
        if *at > since {
            points.push((*at, 100.0 * (cpu - before) * 1e9 / (at - since) as f64));
        }
    }
    points
}

fn count(
    measure: &Measure,
    observed: &Observed,
    since: Option<u64>,
    until: Option<u64>,
) -> Result<f64, String> {
    if observed.packets.is_empty() {
        return Err("the network has seen no packet; it has no observer".to_owned());
    }
    let host = measure.host.as_ref().map_or("", |host| host.get_ref());
    let kind = measure.kind.as_ref().map(|kind| *kind.get_ref());
    let window = since.unwrap_or(0)..=until.unwrap_or(u64::MAX);
    let counts = |seen: &&CapturedPacket| {
        seen.host == host
            && window.contains(&seen.at_ns)
            && kind.is_none_or(|kind| seen.kind == kind)
    };
    let mut counted: Vec<&CapturedPacket> = observed.packets.iter().filter(counts).collect();
    if measure.received {
        let last_got = counted.iter().rposition(|seen| !seen.sent);
        counted.truncate(last_got.map_or(0, |last| last + 1));
    }
    Ok(match measure.what.as_ref().map(|what| *what.get_ref()) {
        Some(What::Bytes) => counted.iter().map(|seen| f64::from(seen.bytes)).sum(),
        Some(What::Seconds) => {
            let (Some(first), Some(last)) = (counted.first(), counted.last()) else {
                return Err("not a single packet".to_owned());
            };
            let end = until.unwrap_or(last.at_ns);
            end.saturating_sub(first.at_ns) as f64 / 1e9
        }
        _ => counted.len() as f64,
    })
}

/// Round trips by the spin bit in milliseconds, or by how much they differ from the path's.
fn round_trips(measure: &Measure, observed: &Observed, window: &RangeInclusive<u64>) -> Points {
    let host = measure.host.as_ref().map_or("", |host| host.get_ref());
    let shown = observed.round_trips.iter();
    let shown = shown.filter(|trip| trip.host == host && window.contains(&trip.at_ns));
    let errors = measure.what.as_ref().is_some_and(|what| *what.get_ref() == What::Error);
    let told = shown.filter_map(|trip| {
        let ns = if errors { trip.took_ns.abs_diff(trip.path_ns?) } else { trip.took_ns };
        Some((trip.at_ns, ns as f64 / 1e6))
    });
    told.collect()
}

fn evaluate(take: Take, numbers: &[f64]) -> Option<f64> {
    match take {
        Take::Median => median(numbers),
        Take::Mean => mean(numbers),
        Take::Min => numbers.iter().copied().reduce(f64::min),
        Take::Max => numbers.iter().copied().reduce(f64::max),
        Take::P95 => quantile(&sorted(numbers), 0.95),
        Take::P99 => quantile(&sorted(numbers), 0.99),
        Take::Sum => (!numbers.is_empty()).then(|| numbers.iter().sum()),
        Take::Count => Some(numbers.len() as f64),
        Take::First => numbers.first().copied(),
        Take::Last => numbers.last().copied(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::network::RoundTrip;
    use crate::observe::Kind;

    fn measure(keys: &str) -> Measure {
        toml::from_str(&format!("title = 't'\nunit = 'u'\n{keys}")).unwrap()
    }

    fn value(keys: &str, record: &Record, observed: &Observed) -> Result<f64, String> {
        let measure = measure(keys);
        let values = [("a".to_owned(), 4.0), ("b".to_owned(), 3.0)].into();
        let (points, _) = points(&measure, &values, record, observed)?;
        let numbers: Vec<f64> = points.iter().map(|(_, number)| *number).collect();
        evaluate(measure.take, &numbers).ok_or_else(|| "none".to_owned())
    }

    fn record() -> Record {
        let json = |text: &str| serde_json::from_str(text).unwrap();
        let lines = vec![(5, json(r#"{"ms": 3}"#)), (6, json(r#"{"ms": [1, 8]}"#))];
        Record {
            began_ns: 1,
            objects: [("client".to_owned(), lines)].into(),
            marks: [("begin".to_owned(), 10), ("end".to_owned(), 30)].into(),
            usage: [("server".to_owned(), vec![(0, 0.0, 50.0), (1_000_000_000, 0.25, 60.0)])]
                .into(),
        }
    }

    #[test]
    fn numbers_come_from_lines_processes_and_marks() {
        let none = Observed::default();
        let lines = "from = 'lines'\nrole = 'client'\nfield = 'ms'\n";
        for (take, expected) in [
            ("median", 3.0),
            ("max", 8.0),
            ("min", 1.0),
            ("sum", 12.0),
            ("count", 3.0),
            ("last", 8.0),
        ] {
            let keys = format!("{lines}take = '{take}'");
            assert_eq!(value(&keys, &record(), &none), Ok(expected), "{take}");
        }
        let missing = value(&lines.replace("'ms'", "'s'"), &record(), &none).unwrap_err();
        assert_eq!(missing, "client printed 2 JSON objects, none with a number `s`");
        let process = "from = 'process'\nrole = 'server'\ntake = 'last'\nwhat = ";
        assert_eq!(value(&format!("{process}'rss_kib'"), &record(), &none), Ok(60.0));
        assert_eq!(value(&format!("{process}'cpu_pct'"), &record(), &none), Ok(25.0));
        assert_eq!(value(&format!("{process}'cpu_s'"), &record(), &none), Ok(0.25));
        assert_eq!(value("from = 'sum'\nof = ['a', 'b']", &record(), &none), Ok(7.0));
        assert_eq!(value("from = 'difference'\nof = ['a', 'b']", &record(), &none), Ok(1.0));
        let quotient = value("from = 'quotient'\nof = ['a', 'b']", &record(), &none);
        assert_eq!(quotient, Ok(4.0 / 3.0));
        let nothing = value("from = 'sum'\nof = ['a', 'c']", &record(), &none).unwrap_err();
        assert_eq!(nothing, "no value of `c` to add");
        let marks = "from = 'marks'\nsince = 'begin'\nuntil = 'end'";
        assert_eq!(value(marks, &record(), &none), Ok(20e-9));
        let marks = "from = 'marks'\nsince = 'begin'\nuntil = 'never'";
        assert_eq!(value(marks, &record(), &none).unwrap_err(), "no line was the mark `never`");
    }

    #[test]
    fn a_sample_without_a_number_has_failed_unless_that_was_allowed() {
        let experiment = |optional: bool| -> Experiment {
            toml::from_str(&format!(
                "title = 't'\nrepetitions = 1\ntimeout_s = 9\nhosts = []\nroles = {{}}\n[measures.time]\ntitle = 't'\nunit = 's'\nfrom = 'lines'\nrole = 'client'\n\
                 field = 's'\noptional = {optional}\n[measures.twice]\ntitle = 't'\nunit = 's'\nfrom = 'sum'\n\
                 of = ['time', 'time']\noptional = {optional}\n[measures.ms]\ntitle = 't'\nunit = 'ms'\n\
                 from = 'lines'\nrole = 'client'\nfield = 'ms'\ntake = 'last'"
            ))
            .unwrap()
        };
        let (cell, none) = (Cell(Vec::new()), Observed::default());
        let (values, _) = measure_all(&experiment(true), &cell, &record(), &none).unwrap();
        assert_eq!(values, [("ms".to_owned(), 8.0)].into());
        let reason = measure_all(&experiment(false), &cell, &record(), &none).unwrap_err();
        assert!(reason.starts_with("measure time: client printed"), "{reason}");
    }

    #[test]
    fn a_window_limits_lines_and_processes() {
        let second = |n: u64| 1 + n * 1_000_000_000;
        let usage = (0..=10).map(|n| (second(n), n as f64 / 10.0, 50.0 + n as f64)).collect();
        let json = |ms: u32| serde_json::json!({ "ms": ms });
        let record = Record {
            began_ns: 1,
            objects: [("client".to_owned(), vec![(second(2), json(3)), (second(5), json(4))])]
                .into(),
            marks: [("half".to_owned(), second(5))].into(),
            usage: [("server".to_owned(), usage)].into(),
        };
        let value = |keys: &str| value(keys, &record, &Observed::default());
        let rss = "from = 'process'\nrole = 'server'\nwhat = 'rss_kib'\n";
        assert_eq!(value(&format!("{rss}take = 'last'\nuntil = 'half'")), Ok(55.0));
        assert_eq!(value(&format!("{rss}take = 'first'\nsince = 'half'\nfrom_s = 3")), Ok(55.0));
        assert_eq!(value(&format!("{rss}take = 'max'\nto_s = 3.5")), Ok(53.0));
        assert_eq!(value(&format!("{rss}take = 'min'\nfrom_s = 8")), Ok(58.0));
        assert_eq!(value(&format!("{rss}from_s = 11")), Err("none".to_owned()));
        let lines = "from = 'lines'\nrole = 'client'\nfield = 'ms'\n";
        assert_eq!(value(&format!("{lines}from_s = 3")), Ok(4.0));
        assert_eq!(value(&format!("{lines}to_s = 3")), Ok(3.0));
    }

    #[test]
    fn processor_use_is_told_over_a_second() {
        let tick = 100_000_000;
        // Every tenth sample has a clock tick of 10 ms more.
        let usage: Vec<_> = (0..=30).map(|n| (n * tick, (n / 10) as f64 / 100.0, 1.0)).collect();
        let shares = used(&usage, Some(What::CpuPct));
        assert_eq!(shares.len(), 30);
        let settled: Vec<f64> = shares[9..].iter().map(|(_, share)| *share).collect();
        assert!(settled.iter().all(|share| (share - 1.0).abs() < 1e-9), "{settled:?}");
    }

    #[test]
    fn packets_are_counted_by_host_kind_and_moment() {
        let seen = |at_ns, host: &str, sent, bytes, kind| {
            let host = host.to_owned();
            CapturedPacket { at_ns, host, sent, bytes, kind }
        };
        let packets = vec![
            seen(5, "a", true, 100, Kind::Handshake),
            seen(12, "a", false, 200, Kind::Handshake),
            seen(20, "a", true, 50, Kind::Data),
            seen(20, "c", true, 70, Kind::Data),
            seen(40, "a", false, 60, Kind::Ack),
        ];
        let observed = Observed { packets, ..Observed::default() };
        let packets = "from = 'packets'\nhost = 'a'\nwhat = ";
        for (keys, expected) in [
            ("'count'", 4.0),
            ("'bytes'", 410.0),
            ("'count'\nkind = 'handshake'", 2.0),
            ("'count'\nuntil = 'end'", 3.0),
            ("'count'\nuntil = 'end'\nreceived = true", 2.0),
            ("'bytes'\nsince = 'begin'\nuntil = 'end'", 250.0),
            ("'seconds'\nsince = 'begin'\nuntil = 'end'", 18e-9),
            ("'seconds'", 35e-9),
        ] {
            assert_eq!(value(&format!("{packets}{keys}"), &record(), &observed), Ok(expected));
        }
        let blind = value(&format!("{packets}'count'"), &record(), &Observed::default());
        assert!(blind.unwrap_err().contains("no observer"));
    }

    #[test]
    fn round_trips_of_the_spin_bit_are_told_by_host_and_moment() {
        let trip = |at_ns, host: &str, ms: u64| {
            let (host, took_ns) = (host.to_owned(), ms * 1_000_000);
            RoundTrip { at_ns, host, took_ns, path_ns: (ms < 70).then_some(42_000_000) }
        };
        let round_trips = vec![trip(5, "a", 40), trip(12, "a", 50), trip(13, "c", 70)];
        let observed = Observed { round_trips, ..Observed::default() };
        let value = |keys: &str| value(&format!("from = 'spin'\n{keys}"), &record(), &observed);
        assert_eq!(value("host = 'a'"), Ok(45.0));
        assert_eq!(value("host = 'a'\nsince = 'begin'"), Ok(50.0));
        assert_eq!(value("host = 'a'\nwhat = 'error'"), Ok(5.0));
        for unknown in ["host = 'b'", "host = 'c'\nwhat = 'error'"] {
            assert_eq!(value(unknown), Err("none".to_owned()));
        }
    }
}
