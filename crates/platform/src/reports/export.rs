//! Readings as tables to take away: CSV (RFC 4180), as long as it takes, and Excel files, within a bound.
//!
//! Text that a spreadsheet would take for a formula is made text: in CSV with an apostrophe before it,
//! in Excel files by the kind of the cell. Numbers are numbers, negative ones too.

use std::collections::HashMap;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse as _;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use rust_xlsxwriter::{ExcelDateTime, Format, Workbook, Worksheet, XlsxError};
use serde::Deserialize;
use tokio::sync::Semaphore;
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
use crate::text::Name;
use crate::time::{SECOND_MS, Time};

/// Readings that are looked up at once.
const PART: usize = 1000;
/// Rows of an Excel file, which is made in memory: about 25 MB of it.
const MAX_XLSX_ROWS: usize = 50_000;
/// Excel files that are made at once.
static XLSX_TURNS: Semaphore = Semaphore::const_new(2);
/// How long one waits for its turn.
const PATIENCE: Duration = Duration::from_secs(10);
const XLSX: &str = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet";

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

/// What stands in a table.
#[derive(Clone, Debug, PartialEq)]
enum Cell {
    Text(String),
    Number(f64),
    Moment(Time),
    Nothing,
}

impl Cell {
    fn text(text: Option<impl ToString>) -> Cell {
        text.map_or(Cell::Nothing, |text| Cell::Text(text.to_string()))
    }

    fn number(number: Option<f64>) -> Cell {
        number.map_or(Cell::Nothing, Cell::Number)
    }

    /// As CSV has it, before quoting.
    fn plain(&self) -> String {
        match self {
            Cell::Text(text) if looks_active(text) => format!("'{text}"),
            Cell::Text(text) => text.clone(),
            Cell::Number(number) => number.to_string(),
            Cell::Moment(at) => at.to_string(),
            Cell::Nothing => String::new(),
        }
    }

    fn write(
        &self,
        sheet: &mut Worksheet,
        (row, column): (u32, u16),
        moment: &Format,
    ) -> Result<(), XlsxError> {
        match self {
            Cell::Text(text) => sheet.write_string(row, column, text)?,
            Cell::Number(number) => sheet.write_number(row, column, *number)?,
            Cell::Moment(at) => match ExcelDateTime::from_timestamp(at.0.div_euclid(SECOND_MS)) {
                Ok(date) => sheet.write_datetime_with_format(row, column, date, moment)?,
                // Before 1900, which Excel does not know.
                Err(_) => sheet.write_string(row, column, at.to_string())?,
            },
            Cell::Nothing => return Ok(()),
        };
        Ok(())
    }
}

/// Whether a spreadsheet might run it: formulas begin so, behind white space too.
fn looks_active(text: &str) -> bool {
    text.starts_with(['\t', '\r', '\n']) || text.trim_start().starts_with(['=', '+', '-', '@'])
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

fn csv_of(rows: &[Row], heading: bool) -> Result<Bytes, Problem> {
    let to = Vec::with_capacity(rows.len() * 256);
    let mut table = csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(to);
    let failed = |error: csv::Error| Problem::internal(&error);
    if heading {
        table.write_record(COLUMNS).map_err(failed)?;
    }
    for row in rows {
        table.write_record(row.iter().map(Cell::plain)).map_err(failed)?;
    }
    table.into_inner().map(Bytes::from).map_err(|error| Problem::internal(&error))
}

fn file(twin: &Name, kind: &'static str, ending: &str, body: Body) -> Answer {
    let name = format!("attachment; filename=\"{twin}-readings.{ending}\"");
    let headers = [
        (header::CONTENT_TYPE, kind.to_owned()),
        (header::CONTENT_DISPOSITION, name),
        (header::CACHE_CONTROL, "private, no-store".to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
    ];
    Ok((headers, body).into_response())
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
    let first = csv_of(&parts.next().await?, true)?;
    let first = stream::once(std::future::ready(Ok(first)));
    let body = Body::from_stream(first.chain(stream::try_unfold(parts, next_csv)));
    file(&member.twin, "text/csv; charset=utf-8; header=present", "csv", body)
}

/// The next part of a table that has begun.
async fn next_csv(mut parts: Parts) -> std::io::Result<Option<(Bytes, Parts)>> {
    let rows = parts.next().await.map_err(broken)?;
    if rows.is_empty() {
        return Ok(None);
    }
    Ok(Some((csv_of(&rows, false).map_err(broken)?, parts)))
}

/// What ends a table that has begun.
fn broken(problem: Problem) -> std::io::Error {
    tracing::warn!("platform export: cut off: {}", problem.detail());
    std::io::Error::other(problem.detail().to_owned())
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
    let turn = tokio::time::timeout(PATIENCE, XLSX_TURNS.acquire()).await;
    let Ok(Ok(_turn)) = turn else {
        return Err(Problem::unavailable("other exports are being made"));
    };
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
    let made = tokio::task::spawn_blocking(move || workbook(&rows));
    let made = made.await.map_err(|error| Problem::internal(&error))?;
    let bytes = made.map_err(|error| Problem::internal(&error))?;
    file(&member.twin, XLSX, "xlsx", bytes.into())
}

fn workbook(rows: &[Row]) -> Result<Vec<u8>, XlsxError> {
    let mut book = Workbook::new();
    let sheet = book.add_worksheet().set_name("Readings")?;
    let heading = Format::new().set_bold();
    let moment = Format::new().set_num_format("yyyy-mm-dd hh:mm:ss");
    for (column, name) in (0..).zip(COLUMNS) {
        sheet.write_string_with_format(0, column, name, &heading)?;
        if name.ends_with("at") && name != "lat" {
            sheet.set_column_width(column, 20)?;
        }
    }
    sheet.set_freeze_panes(1, 0)?;
    for (at, row) in (1..).zip(rows) {
        for (column, cell) in (0..).zip(row) {
            cell.write(sheet, (at, column), &moment)?;
        }
    }
    book.save_to_buffer()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_formula_is_text() {
        for active in ["=1+1", "+49 40", "-2", "@SUM(A1)", "\t=1", "\r=1", " =1"] {
            assert_eq!(Cell::Text(active.into()).plain(), format!("'{active}"));
        }
        for harmless in ["", "Hafenstr. 1", "a=b", "1-2"] {
            assert_eq!(Cell::Text(harmless.into()).plain(), harmless);
        }
        assert_eq!(Cell::Number(-71.5).plain(), "-71.5", "a number runs nothing");
    }
}
