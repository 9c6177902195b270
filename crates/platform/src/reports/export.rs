//! Readings as tables to take away: CSV (RFC 4180), as long as it takes, and Excel files, within a bound.

use std::collections::HashMap;

use crate::meters::Method;
use crate::prelude::*;
use crate::readings::Reading;
use crate::readings::types::ReadingQuery;
use crate::store::meters;
use crate::store::readings;
use crate::table::{self, Cell, Outline, RowSource};

/// Readings that are looked up at once, if they are short.
const PART: usize = 1000;
/// Readings that are looked up first.
const FIRST_PART: usize = 100;
const COLUMNS: [&str; 27] = strings![
    id meter serial street at value unit method work_list reader device received_at lat lon rssi_dbm flags conflict_with
    implausible_confirmed photo note original_value original_at changed changed_by changed_at change_reason protection
];

/// Filter of readings.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ExportQuery {
    meter: Option<Name>,
    work_list: Option<Uuid>,
    /// Taken at this time or later.
    since: Option<Time>,
    /// Taken before this time.
    until: Option<Time>,
    method: Option<Method>,
    /// Only readings in an unresolved conflict (true), or only the others (false).
    conflict: Option<bool>,
}

impl From<ExportQuery> for ReadingQuery {
    fn from(query: ExportQuery) -> ReadingQuery {
        let ExportQuery { meter, work_list, since, until, method, conflict } = query;
        let usual = ReadingQuery::default();
        ReadingQuery { meter, work_list, since, until, method, conflict, ..usual }
    }
}

const TABLE: Outline = Outline {
    name: "readings",
    sheet: "Readings",
    columns: &COLUMNS,
    rows: "readings",
    narrow: "since",
};

/// A row, in the order of [`COLUMNS`].
type Row = [Cell; COLUMNS.len()];

fn row(reading: Reading, serial: Option<&str>, street: Option<&str>) -> Row {
    let flags: Vec<&str> = reading.flags.iter().map(|flag| flag.word()).collect();
    let others: Vec<String> = reading.conflict_with.iter().map(Uuid::to_string).collect();
    let change = reading.changed.as_ref();
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
        Cell::number(reading.original.as_ref().map(|sent| sent.value)),
        reading.original.map_or(Cell::Nothing, |sent| Cell::Moment(sent.at)),
        Cell::text(change.map(|change| change.action.word())),
        Cell::text(change.map(|change| &change.by)),
        change.map_or(Cell::Nothing, |change| Cell::Moment(change.at)),
        Cell::text(change.and_then(|change| change.reason.as_deref())),
        Cell::text(reading.protection.map(|protection| protection.word())),
    ]
}

/// A look at what is wanted, a part at a time.
struct Parts {
    app: App,
    twin: Name,
    query: ReadingQuery,
    /// Time and number of the last reading so far.
    after: Option<(Time, i64)>,
    /// Readings that are looked up next: about those of a part of an answer.
    wanted: usize,
    done: bool,
}

impl Parts {
    fn new(app: App, twin: Name, query: ExportQuery) -> Parts {
        Parts { app, twin, query: query.into(), after: None, wanted: FIRST_PART, done: false }
    }
}

impl RowSource for Parts {
    type Row = Row;

    async fn next(&mut self) -> Result<Vec<Row>> {
        if self.done {
            return Ok(Vec::new());
        }
        let (twin, query) = (self.twin.clone(), self.query.clone());
        let (after, wanted) = (self.after, self.wanted);
        let look = move |db: &Db| part(db.within(&twin), &query, after, wanted);
        let Part { rows, after, is_cut } = self.app.store.read(look).await?;
        self.done = !is_cut && rows.len() < wanted;
        self.wanted = if is_cut { rows.len() } else { PART.min(2 * wanted) };
        self.after = after;
        Ok(rows)
    }
}

struct Part {
    rows: Vec<Row>,
    /// Key behind which the next ones begin.
    after: Option<(Time, i64)>,
    /// Whether the readings found were too long for a part of an answer.
    is_cut: bool,
}

fn part(
    db: TwinDb<'_>,
    query: &ReadingQuery,
    after: Option<(Time, i64)>,
    wanted: usize,
) -> Result<Part> {
    let found = readings::list(db, query, after, wanted)?;
    let keys: Vec<_> = found.iter().map(|(reading, number)| (reading.at, *number)).collect();
    let mut labels: HashMap<Name, meters::Label> = HashMap::new();
    let mut rows = Vec::with_capacity(found.len());
    for (reading, _) in found {
        if !labels.contains_key(&reading.meter) {
            let label = meters::label(db, &reading.meter)?.unwrap_or_default();
            labels.insert(reading.meter.clone(), label);
        }
        let (serial, street) = labels.get(&reading.meter).cloned().unwrap_or_default();
        rows.push(row(reading, serial.as_deref(), street.as_deref()));
    }
    let rows = table::first_part(rows.into_iter());
    let after = keys.get(..rows.len()).and_then(<[_]>::last).copied();
    Ok(Part { after, is_cut: rows.len() < keys.len(), rows })
}

/// Readings as CSV
///
/// All of them, by the time they were taken. Text that begins like a formula (`=`, `+`, `-`, `@`) has an apostrophe
/// before it. A table that ends before its last row ends with an error of the connection.
#[utoipa::path(get, path = "/{twin}/export/readings.csv", tag = "reports", params(ExportQuery),
    responses((status = 200, content_type = "text/csv", body = String)))]
pub(crate) async fn csv(Call(app, member): Call, Params(query): Params<ExportQuery>) -> Answer {
    member.may(Deed::Report)?;
    let parts = Parts::new(app.clone(), member.twin.clone(), query);
    TABLE.csv(&app, &member, parts).await
}

/// Readings as an Excel file
///
/// By the time they were taken; at most 50000, for more there is CSV.
#[utoipa::path(get, path = "/{twin}/export/readings.xlsx", tag = "reports", params(ExportQuery),
    responses((status = 200, body = Vec<u8>,
        content_type = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet")))]
pub(crate) async fn xlsx(Call(app, member): Call, Params(query): Params<ExportQuery>) -> Answer {
    member.may(Deed::Report)?;
    let parts = Parts::new(app.clone(), member.twin.clone(), query);
    TABLE.xlsx(&app, &member, parts).await
}
