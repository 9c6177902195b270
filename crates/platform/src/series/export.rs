//! What sensors measured as tables to take away, series by series, a part at a time.
//!
//! Gaps are rows that are not there.

use std::collections::VecDeque;

use fulmar_http::AnswerRoom;

use super::handlers::{Point, Step, range};
use super::step::RetentionStart;
use crate::measurements::Quantity;
use crate::prelude::*;
use crate::store::measurements::{self, Label, RawKey};
use crate::table::{self, Cell, Outline, RowSource};

/// Rows that are looked up at once.
const PART: usize = 1000;

const COLUMNS: [&str; 11] =
    strings![home home_name device room quantity unit at value min max count];

const TABLE: Outline = Outline {
    name: "series",
    sheet: "Measurements",
    columns: &COLUMNS,
    rows: "rows",
    narrow: "from",
};

/// A row, in the order of [`COLUMNS`].
type Row = [Cell; COLUMNS.len()];

/// Filter of measurements.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SeriesExport {
    home: Option<Name>,
    device: Option<Name>,
    quantity: Option<Quantity>,
    /// From then on; a day before the end, unless it says otherwise.
    from: Option<Time>,
    /// Until then; now, unless it says otherwise.
    to: Option<Time>,
    /// `raw`, which is usual, or how many seconds are one row.
    #[param(value_type = Option<String>, pattern = "^(raw|[1-9][0-9]{0,8})$", default = "raw")]
    step: Option<Step>,
}

/// A look at what is wanted.
struct Parts {
    app: App,
    /// Numbers of series still to be looked at, the first of which is under way.
    series: VecDeque<i64>,
    /// Permit of the memory for answers: a client that does not take its export keeps them.
    _room: Option<AnswerRoom>,
    from: Time,
    until: Time,
    /// Milliseconds; none for single measurements.
    step_ms: Option<i64>,
    /// Where the first series goes on.
    place: ExportPosition,
}

/// Position up to which a series has been read.
#[derive(Clone, Copy)]
enum ExportPosition {
    After(Option<RawKey>),
    From(Time),
}

impl ExportPosition {
    fn begin(from: Time, step_ms: Option<i64>) -> ExportPosition {
        step_ms.map_or(ExportPosition::After(None), |_| ExportPosition::From(from))
    }
}

impl Parts {
    async fn new(app: App, member: &Member, query: SeriesExport) -> Result<Parts> {
        let (mut from, mut until) = range(query.from, query.to)?;
        let now = Time::now();
        let settings = &app.settings.monitoring;
        let kept = RetentionStart::new(settings, now);
        let step_ms = match query.step {
            None | Some(Step::Raw) => None,
            Some(Step::Auto) => return Err(Problem::invalid("step", "expected raw or seconds")),
            Some(Step::Seconds(seconds)) => {
                Some(kept.coarsen(i64::from(seconds) * SECOND_MS, from))
            }
        };
        if let Some(step) = step_ms {
            from = Time(from.0.div_euclid(step) * step);
            until = Time((until.0 - 1).div_euclid(step) * step + step);
        }
        let SeriesExport { home, device, quantity, .. } = query;
        let found = member.read(&app, move |db| {
            let (home, device) = (home.as_deref(), device.as_deref());
            Ok(measurements::series_of(db, home, device, quantity.as_deref())?)
        });
        let mut series: VecDeque<i64> = found.await?.into();
        series.shrink_to_fit();
        let kept = series.capacity() * size_of::<i64>();
        let room = app.settings.answers.reserve_stored(member.name(), kept)?;
        let place = ExportPosition::begin(from, step_ms);
        Ok(Parts { app, series, _room: room, from, until, step_ms, place })
    }
}

impl RowSource for Parts {
    type Row = Row;

    async fn next(&mut self) -> Result<Vec<Row>> {
        while let Some(series) = self.series.front().copied() {
            let (from, until, place, step) = (self.from, self.until, self.place, self.step_ms);
            let look = move |db: &Db| part(db, series, from, until, place, step);
            let (rows, more) = self.app.store.read(look).await?;
            match more {
                Some(place) => self.place = place,
                None => {
                    self.series.pop_front();
                    self.place = ExportPosition::begin(from, step);
                }
            }
            if !rows.is_empty() {
                return Ok(rows);
            }
        }
        Ok(Vec::new())
    }
}

/// Rows of a series, and where it goes on if that is not its end. One that was removed meanwhile has none.
fn part(
    db: &Db,
    series: i64,
    from: Time,
    until: Time,
    place: ExportPosition,
    step_ms: Option<i64>,
) -> Result<(Vec<Row>, Option<ExportPosition>)> {
    let Some(label) = measurements::label(db, series)? else { return Ok((Vec::new(), None)) };
    match (place, step_ms) {
        (ExportPosition::From(begin), Some(step)) => {
            let end = begin.plus_ms(step.saturating_mul(PART as i64)).min(until);
            let found = measurements::stepped(db, series, begin, end, step)?;
            let points: Vec<Point> =
                found.into_iter().map(|(at, sums)| Point::from_sums(at, sums)).collect();
            let rows = table::first_part(points.iter().map(|point| row(&label, *point)));
            let next = points.get(rows.len()).map_or(end, |point| point.at);
            Ok((rows, (next < until).then_some(ExportPosition::From(next))))
        }
        (place, _) => {
            let after = if let ExportPosition::After(after) = place { after } else { None };
            let found = measurements::raw_after(db, series, from, until, after, PART)?;
            let points = found.iter().map(|(at, value, _)| Point::from_value(*at, *value));
            let rows = table::first_part(points.map(|point| row(&label, point)));
            let is_end = rows.len() == found.len() && found.len() < PART;
            let last = found.get(..rows.len()).and_then(<[RawKey]>::last).filter(|_| !is_end);
            Ok((rows, last.map(|last| ExportPosition::After(Some(*last)))))
        }
    }
}

fn row(series: &Label, point: Point) -> Row {
    [
        Cell::text(series.home.as_ref()),
        Cell::text(series.home_name.as_ref()),
        Cell::Text(series.device.to_string()),
        Cell::text(series.room.as_ref()),
        Cell::Text(series.quantity.to_string()),
        Cell::Text(series.unit.clone()),
        Cell::Moment(point.at),
        Cell::number(point.value),
        Cell::number(point.min),
        Cell::number(point.max),
        Cell::Number(point.count as f64),
    ]
}

/// Measurements as CSV
///
/// All of them, by home, device, quantity and time. Text that begins like a formula (`=`, `+`, `-`, `@`) has an
/// apostrophe before it. A table that ends before its last row ends with an error of the connection.
#[utoipa::path(get, path = "/{twin}/export/series.csv", tag = "homes", params(SeriesExport),
    responses((status = 200, content_type = "text/csv", body = String)))]
pub(crate) async fn csv(Call(app, member): Call, Params(query): Params<SeriesExport>) -> Answer {
    member.may(Deed::Report)?;
    let parts = Parts::new(app.clone(), &member, query).await?;
    TABLE.csv(&app, &member, parts).await
}

/// Measurements as an Excel file
///
/// By home, device, quantity and time; at most 50000, for more there is CSV.
#[utoipa::path(get, path = "/{twin}/export/series.xlsx", tag = "homes", params(SeriesExport),
    responses((status = 200, body = Vec<u8>,
        content_type = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet")))]
pub(crate) async fn xlsx(Call(app, member): Call, Params(query): Params<SeriesExport>) -> Answer {
    member.may(Deed::Report)?;
    let parts = Parts::new(app.clone(), &member, query).await?;
    TABLE.xlsx(&app, &member, parts).await
}
