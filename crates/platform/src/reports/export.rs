//! Readings as tables to take away: CSV (RFC 4180), as long as it takes, and Excel files, within a bound.

use std::collections::HashMap;

use axum::body::Body;
use axum::extract::State;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use serde::Deserialize;
use utoipa::IntoParams;
use uuid::Uuid;

use crate::accounts::caller::Member;
use crate::extract::Params;
use crate::meters::Method;
use crate::platform::App;
use crate::problem::Problem;
use crate::readings::Reading;
use crate::respond::Answer;
use crate::role::Deed;
use crate::store::readings::{self, Query};
use crate::store::{Db, meters};
use crate::table::{self, Cell, Kind, MAX_XLSX_ROWS, broken};
use crate::text::Name;
use crate::time::Time;

/// Readings that are looked up at once.
const PART: usize = 1000;
const COLUMNS: [&str; 20] = [
    "id",
    "meter",
    "serial",
    "street",
    "at",
    "value",
    "unit",
    "method",
    "work_list",
    "reader",
    "device",
    "received_at",
    "lat",
    "lon",
    "rssi_dbm",
    "flags",
    "conflict_with",
    "implausible_confirmed",
    "photo",
    "note",
];

/// Which readings.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ExportQuery {
    meter: Option<Name>,
    work_list: Option<Uuid>,
    /// Taken then or later.
    since: Option<Time>,
    /// Taken earlier.
    until: Option<Time>,
    method: Option<Method>,
}

impl From<ExportQuery> for Query {
    fn from(query: ExportQuery) -> Query {
        let ExportQuery { meter, work_list, since, until, method } = query;
        Query { meter, work_list, since, until, method, after: None }
    }
}

/// A row, in the order of [`COLUMNS`].
type Row = [Cell; COLUMNS.len()];

fn row(reading: Reading, serial: Option<&str>, street: Option<&str>) -> Row {
    let flags: Vec<&str> = reading.flags.iter().map(|flag| flag.word()).collect();
    let others: Vec<String> = reading.conflict_with.iter().map(Uuid::to_string).collect();
    let joined = |words: String| Cell::text(Some(words).filter(|words| !words.is_empty()));
    [
        Cell::Text(reading.id.to_string()),
        Cell::Text(reading.meter.to_string()),
        Cell::text(serial),
        Cell::text(street),
        Cell::Moment(reading.at),
        Cell::Number(reading.value),
        Cell::Text(reading.unit),
        Cell::Text(reading.method.word().to_owned()),
        Cell::text(reading.work_list),
        Cell::Text(reading.reader.to_string()),
        Cell::text(reading.device),
        Cell::Moment(reading.received_at),
        Cell::number(reading.place.map(|place| *place.lat)),
        Cell::number(reading.place.map(|place| *place.lon)),
        Cell::number(reading.rssi_dbm),
        joined(flags.join(" ")),
        joined(others.join(" ")),
        Cell::Text(reading.implausible_confirmed.to_string()),
        Cell::text(reading.photo),
        Cell::text(reading.note),
    ]
}

/// A look at what is wanted, a part at a time.
struct Parts {
    app: App,
    twin: Name,
    query: Query,
    done: bool,
}

impl Parts {
    fn new(app: App, twin: Name, query: ExportQuery) -> Parts {
        Parts { app, twin, query: query.into(), done: false }
    }

    /// The next rows; none at the end.
    async fn next(&mut self) -> Result<Vec<Row>, Problem> {
        if self.done {
            return Ok(Vec::new());
        }
        let (twin, query) = (self.twin.clone(), self.query.clone());
        let (rows, after) = self.app.store.read(move |db| part(db, &twin, &query)).await?;
        self.done = rows.len() < PART;
        self.query.after = after;
        Ok(rows)
    }
}

/// Rows, and what to begin behind for the next ones.
type Part = (Vec<Row>, Option<(Time, i64)>);

fn part(db: &Db, twin: &Name, query: &Query) -> Result<Part, Problem> {
    let found = readings::list(db, twin, query, PART)?;
    let after = found.last().map(|(reading, number)| (reading.at, *number));
    let mut labels: HashMap<Name, meters::Label> = HashMap::new();
    let mut rows = Vec::with_capacity(found.len());
    for (reading, _) in found {
        if !labels.contains_key(&reading.meter) {
            let label = meters::label(db, twin, &reading.meter)?.unwrap_or_default();
            labels.insert(reading.meter.clone(), label);
        }
        let (serial, street) = labels.get(&reading.meter).cloned().unwrap_or_default();
        rows.push(row(reading, serial.as_deref(), street.as_deref()));
    }
    Ok((rows, after))
}

/// Readings as CSV
///
/// By the time they were taken; as many as there are. Text that begins like a formula (`=`, `+`, `-`, `@`)
/// has an apostrophe before it. A table that ends before its last row ends with an error of the connection.
#[utoipa::path(get, path = "/{twin}/export/readings.csv", tag = "reports",
    params(("twin" = Name, Path), ExportQuery),
    responses((status = 200, content_type = "text/csv", body = String)))]
pub(crate) async fn csv(
    State(app): State<App>,
    member: Member,
    Params(query): Params<ExportQuery>,
) -> Answer {
    member.may(Deed::Report)?;
    let mut parts = Parts::new(app, member.twin.clone(), query);
    // The first part is looked up before the answer begins, so that what fails can still be said.
    let first = table::csv(&parts.next().await?, Some(&COLUMNS))?;
    let first = stream::once(std::future::ready(Ok(first)));
    let body = Body::from_stream(first.chain(stream::try_unfold(parts, next_csv)));
    table::file(&member.twin, "readings", Kind::Csv, body)
}

/// The next part of a table that has begun.
async fn next_csv(mut parts: Parts) -> std::io::Result<Option<(Bytes, Parts)>> {
    let rows = parts.next().await.map_err(broken)?;
    if rows.is_empty() {
        return Ok(None);
    }
    Ok(Some((table::csv(&rows, None).map_err(broken)?, parts)))
}

/// Readings as an Excel file
///
/// By the time they were taken; at most 50000, for more there is CSV.
#[utoipa::path(get, path = "/{twin}/export/readings.xlsx", tag = "reports",
    params(("twin" = Name, Path), ExportQuery),
    responses((status = 200, body = Vec<u8>,
        content_type = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet")))]
pub(crate) async fn xlsx(
    State(app): State<App>,
    member: Member,
    Params(query): Params<ExportQuery>,
) -> Answer {
    member.may(Deed::Report)?;
    let _turn = table::turn().await?;
    let mut parts = Parts::new(app, member.twin.clone(), query);
    let mut rows = Vec::new();
    loop {
        let part = parts.next().await?;
        if part.is_empty() {
            break;
        }
        rows.extend(part);
        if rows.len() > MAX_XLSX_ROWS {
            let detail = format!("more than {MAX_XLSX_ROWS} readings: ask for less, or for CSV");
            return Err(Problem::invalid("since", detail));
        }
    }
    let book = table::workbook("Readings", &COLUMNS, rows).await?;
    table::file(&member.twin, "readings", Kind::Xlsx, book.into())
}
