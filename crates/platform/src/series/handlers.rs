//! What can be asked of time series.

use super::step::{self, MAX_POINTS, MAX_STEP_S, RetentionStart};
use crate::measurements::Quantity;
use crate::prelude::*;
use crate::settings::Monitoring;
use crate::store::measurements::{self, SeriesRow, Sums};

/// Measurements from which the usual interval is computed: few, so that a sensor that measures more often soon has
/// finer curves.
const INTERVALS: usize = 20;

/// Series that is requested, and its form.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SeriesQuery {
    device: Name,
    quantity: Quantity,
    /// From then on; a day before the end, unless it says otherwise.
    from: Option<Time>,
    /// Until then; now, unless it says otherwise.
    to: Option<Time>,
    /// `raw`, or how many seconds are one point; `auto` chooses.
    #[param(value_type = Option<String>, pattern = "^(auto|raw|[1-9][0-9]{0,8})$", default = "auto")]
    step: Option<Step>,
}

/// Form in which a series is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Step {
    #[default]
    Auto,
    Raw,
    Seconds(u32),
}

impl<'de> Deserialize<'de> for Step {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Step, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(from)?;
        let seconds = || text.parse().ok().filter(|seconds| (1..=MAX_STEP_S).contains(seconds));
        match &*text {
            "auto" => Ok(Step::Auto),
            "raw" => Ok(Step::Raw),
            _ => seconds().map(Step::Seconds).ok_or_else(|| {
                serde::de::Error::custom("expected auto, raw or 1 to 31622400 seconds")
            }),
        }
    }
}

/// A value: measured at one time, or over a step that begins then.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct Point {
    pub(crate) at: Time,
    /// The measured value, or the step's mean; null for a gap.
    pub(crate) value: Option<f64>,
    pub(crate) min: Option<f64>,
    pub(crate) max: Option<f64>,
    /// Number of measurements in it.
    pub(crate) count: u64,
}

impl Point {
    pub(crate) fn from_value(at: Time, value: f64) -> Point {
        Point { at, value: Some(value), min: Some(value), max: Some(value), count: 1 }
    }

    fn gap(at: Time) -> Point {
        Point { at, value: None, min: None, max: None, count: 0 }
    }

    pub(crate) fn from_sums(at: Time, sums: Sums) -> Point {
        let Sums { sum, low, high, count } = sums;
        let value = Some(sum / count as f64);
        Point { at, value, min: Some(low), max: Some(high), count }
    }
}

/// A quantity of a device over time.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Series {
    device: Name,
    quantity: Quantity,
    unit: String,
    /// Seconds per point; 0 if the points are single measurements.
    step_s: i64,
    /// By time; with steps, every one of the range, those that nothing was measured in too.
    points: Vec<Point>,
}

/// The range that is asked for.
pub(crate) fn range(from: Option<Time>, to: Option<Time>) -> Result<(Time, Time)> {
    let until = to.unwrap_or_else(Time::now);
    // Nothing was measured before 1970.
    let from = from.unwrap_or_else(|| until.plus_ms(-DAY_MS)).max(Time(0));
    if from >= until {
        return Err(Problem::invalid("from", "from must be before to"));
    }
    Ok((from, until))
}

/// A device's measurements over time
///
/// Raw, or summed up in steps that begin at multiples of the step since 1970; at most 2000 points. Steps
/// grow to an hour, then a day, where measurements are no longer kept singly.
#[utoipa::path(get, path = "/{twin}/series", tag = "homes", params(SeriesQuery),
    responses((status = 200, body = Series)))]
pub(crate) async fn show(Lookup(app, member, query, conditions): Lookup<SeriesQuery>) -> Answer {
    member.may(Deed::Report)?;
    let (from, until) = range(query.from, query.to)?;
    let settings = app.settings.monitoring.clone();
    let series = member.read(&app, move |db| {
        let (device, quantity) = (query.device, query.quantity);
        let found = measurements::find(db, &device, &quantity)?;
        let found = found.ok_or_else(|| Problem::missing("series"))?;
        let step = query.step.unwrap_or_default();
        let (step_ms, points) = points(&db, &settings, &found, from, until, step)?;
        Ok(Series { device, quantity, unit: found.unit, step_s: step_ms / SECOND_MS, points })
    });
    conditions.json(&series.await?)
}

/// Step in milliseconds, and points.
fn points(
    db: &Db,
    settings: &Monitoring,
    series: &SeriesRow,
    from: Time,
    until: Time,
    step: Step,
) -> Result<(i64, Vec<Point>)> {
    let too_many = || {
        let detail = format!("more than {MAX_POINTS} points: ask for less, or for a longer step");
        Problem::invalid("step", detail)
    };
    let kept = RetentionStart::new(settings, Time::now());
    let step_ms = match step {
        Step::Raw => {
            let raw = measurements::raw(db, series.seq, from, until, MAX_POINTS + 1)?;
            if raw.len() > MAX_POINTS {
                return Err(too_many());
            }
            let points = raw.into_iter().map(|(at, value)| Point::from_value(at, value));
            return Ok((0, points.collect()));
        }
        Step::Seconds(seconds) => kept.coarsen(i64::from(seconds) * SECOND_MS, from),
        Step::Auto => {
            let times = measurements::times_before(db, series.seq, until, INTERVALS)?;
            step::automatic(from, until, step::usual_interval(&times), kept)
        }
    };
    let first = from.0.div_euclid(step_ms);
    let last = (until.0 - 1).div_euclid(step_ms);
    if usize::try_from(last - first).is_ok_and(|steps| steps >= MAX_POINTS) {
        return Err(too_many());
    }
    let (from, until) = (Time(first * step_ms), Time((last + 1) * step_ms));
    let found = measurements::stepped(db, series.seq, from, until, step_ms)?;
    Ok((step_ms, with_gaps(first..=last, step_ms, found)))
}

/// Every step, those too that nothing was measured in.
fn with_gaps(
    steps: std::ops::RangeInclusive<i64>,
    step_ms: i64,
    found: Vec<(Time, Sums)>,
) -> Vec<Point> {
    let mut found = found.into_iter().peekable();
    steps
        .map(|step| {
            let at = Time(step * step_ms);
            found
                .next_if(|(found, _)| *found == at)
                .map_or(Point::gap(at), |(at, sums)| Point::from_sums(at, sums))
        })
        .collect()
}
