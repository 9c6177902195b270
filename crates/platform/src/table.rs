//! Tables to take away: CSV (RFC 4180), as long as they are, and Excel files, within a bound. Rows come a part at a time.
//!
//! Text that a spreadsheet would take for a formula is made text: in CSV with an apostrophe before it,
//! in Excel files by the kind of the cell. Numbers are numbers, negative ones too.

use std::time::Duration;

use axum::body::Body;
use axum::http::header;
use axum::response::IntoResponse as _;
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use rust_xlsxwriter::{ExcelDateTime, Format, Workbook, Worksheet, XlsxError};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::problem::Problem;
use crate::respond::Answer;
use crate::text::Name;
use crate::time::{SECOND_MS, Time};

/// Rows of an Excel file, which is made in memory: about 25 MB of it.
const MAX_XLSX_ROWS: usize = 50_000;
/// Excel files that are made at once.
static XLSX_TURNS: Semaphore = Semaphore::const_new(2);
/// How long one waits for its turn.
const PATIENCE: Duration = Duration::from_secs(10);

/// A table's names and columns.
pub(crate) struct Outline {
    /// Part of the file's name.
    pub(crate) name: &'static str,
    /// Of the sheet in an Excel file.
    pub(crate) sheet: &'static str,
    pub(crate) columns: &'static [&'static str],
    /// What its rows are called.
    pub(crate) rows: &'static str,
    /// The parameter that asks for less of them.
    pub(crate) narrow: &'static str,
}

impl Outline {
    /// As CSV. Should a part fail when the answer has begun, the connection ends with an error.
    pub(crate) async fn csv<R: AsRef<[Cell]>>(
        &self,
        twin: &Name,
        parts: impl Stream<Item = Result<Vec<R>, Problem>> + Send + 'static,
    ) -> Answer {
        let mut parts = Box::pin(parts);
        // The first part is looked up before the answer begins, so that what fails can still be said.
        let first = parts.next().await.transpose()?.unwrap_or_default();
        let first = csv(&first, Some(self.columns))?;
        let rest = parts.map(|rows| rows.and_then(|rows| csv(&rows, None)).map_err(broken));
        let first = stream::once(std::future::ready(Ok(first)));
        file(twin, self.name, Kind::Csv, Body::from_stream(first.chain(rest)))
    }

    /// As an Excel file, if it is not too long.
    pub(crate) async fn xlsx<R: AsRef<[Cell]> + Send + 'static>(
        &self,
        twin: &Name,
        parts: impl Stream<Item = Result<Vec<R>, Problem>> + Send,
    ) -> Answer {
        let _turn = turn().await?;
        let (mut parts, mut rows) = (std::pin::pin!(parts), Vec::new());
        while let Some(part) = parts.next().await {
            rows.extend(part?);
            if rows.len() > MAX_XLSX_ROWS {
                let what = self.rows;
                let detail = format!("more than {MAX_XLSX_ROWS} {what}: ask for less, or for CSV");
                return Err(Problem::invalid(self.narrow, detail));
            }
        }
        let book = workbook(self.sheet, self.columns, rows).await?;
        file(twin, self.name, Kind::Xlsx, book.into())
    }
}

/// What kind of file a table becomes.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Csv,
    Xlsx,
}

/// What stands in a table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    Text(String),
    Number(f64),
    Moment(Time),
    Nothing,
}

impl Cell {
    pub(crate) fn text(text: Option<impl ToString>) -> Cell {
        text.map_or(Cell::Nothing, |text| Cell::Text(text.to_string()))
    }

    pub(crate) fn number(number: Option<f64>) -> Cell {
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

/// Rows as CSV, behind a heading if they are the first.
fn csv<R: AsRef<[Cell]>>(rows: &[R], heading: Option<&[&str]>) -> Result<Bytes, Problem> {
    let to = Vec::with_capacity(rows.len() * 256);
    let mut table = csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(to);
    let failed = |error: csv::Error| Problem::internal(&error);
    if let Some(heading) = heading {
        table.write_record(heading).map_err(failed)?;
    }
    for row in rows {
        table.write_record(row.as_ref().iter().map(Cell::plain)).map_err(failed)?;
    }
    table.into_inner().map(Bytes::from).map_err(|error| Problem::internal(&error))
}

/// A file to take away: what it is of is part of its name.
fn file(twin: &Name, what: &str, kind: Kind, body: Body) -> Answer {
    let (ending, kind) = match kind {
        Kind::Csv => ("csv", "text/csv; charset=utf-8; header=present"),
        Kind::Xlsx => ("xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
    };
    let name = format!("attachment; filename=\"{twin}-{what}.{ending}\"");
    let headers = [
        (header::CONTENT_TYPE, kind.to_owned()),
        (header::CONTENT_DISPOSITION, name),
        (header::CACHE_CONTROL, "private, no-store".to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
    ];
    Ok((headers, body).into_response())
}

/// What ends a table that has begun.
fn broken(problem: Problem) -> std::io::Error {
    tracing::warn!("platform export: cut off: {}", problem.detail());
    std::io::Error::other(problem.detail().to_owned())
}

/// The turn to make an Excel file.
async fn turn() -> Result<SemaphorePermit<'static>, Problem> {
    let turn = tokio::time::timeout(PATIENCE, XLSX_TURNS.acquire()).await;
    match turn {
        Ok(Ok(turn)) => Ok(turn),
        _ => Err(Problem::unavailable("other exports are being made")),
    }
}

/// Rows as an Excel file, made off the runtime's thread.
async fn workbook<R: AsRef<[Cell]> + Send + 'static>(
    name: &'static str,
    columns: &'static [&'static str],
    rows: Vec<R>,
) -> Result<Vec<u8>, Problem> {
    let made = tokio::task::spawn_blocking(move || sheet(name, columns, &rows));
    let made = made.await.map_err(|error| Problem::internal(&error))?;
    made.map_err(|error| Problem::internal(&error))
}

fn sheet<R: AsRef<[Cell]>>(name: &str, columns: &[&str], rows: &[R]) -> Result<Vec<u8>, XlsxError> {
    let mut book = Workbook::new();
    let sheet = book.add_worksheet().set_name(name)?;
    let heading = Format::new().set_bold();
    let moment = Format::new().set_num_format("yyyy-mm-dd hh:mm:ss");
    for (column, name) in (0..).zip(columns) {
        sheet.write_string_with_format(0, column, *name, &heading)?;
        if name.ends_with("at") && *name != "lat" {
            sheet.set_column_width(column, 20)?;
        }
    }
    sheet.set_freeze_panes(1, 0)?;
    for (at, row) in (1..).zip(rows) {
        for (column, cell) in (0..).zip(row.as_ref()) {
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
