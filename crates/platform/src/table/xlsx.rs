//! Tables as Excel files, which are made in memory, within a bound.

use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use rust_xlsxwriter::{ExcelDateTime, Format, Workbook, Worksheet, XlsxError};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{Cell, Outline};
use crate::blocking;
use crate::problem::Problem;
use crate::time::SECOND_MS;

/// Rows of an Excel file, which is made in memory: about 25 MB of it.
const MAX_XLSX_ROWS: usize = 50_000;
/// Excel files that are made at once.
static XLSX_TURNS: Semaphore = Semaphore::const_new(2);
/// How long one waits for its turn.
const PATIENCE: Duration = Duration::from_secs(10);

/// The file, if it is not too long.
pub(super) async fn made<R: AsRef<[Cell]> + Send + 'static>(
    outline: &Outline,
    parts: impl Stream<Item = Result<Vec<R>, Problem>> + Send,
) -> Result<Vec<u8>, Problem> {
    let turn = turn().await?;
    let (mut parts, mut rows) = (std::pin::pin!(parts), Vec::new());
    while let Some(part) = parts.next().await {
        rows.extend(part?);
        if rows.len() > MAX_XLSX_ROWS {
            let what = outline.rows;
            let detail = format!("more than {MAX_XLSX_ROWS} {what}: ask for less, or for CSV");
            return Err(Problem::invalid(outline.narrow, detail));
        }
    }
    workbook(turn, outline.sheet, outline.columns, rows).await
}

/// The turn to make an Excel file.
async fn turn() -> Result<SemaphorePermit<'static>, Problem> {
    let turn = tokio::time::timeout(PATIENCE, XLSX_TURNS.acquire()).await;
    match turn {
        Ok(Ok(turn)) => Ok(turn),
        _ => Err(Problem::unavailable("other exports are in progress")),
    }
}

/// Rows as an Excel file, made off the runtime's thread.
async fn workbook<R: AsRef<[Cell]> + Send + 'static>(
    turn: SemaphorePermit<'static>,
    name: &'static str,
    columns: &'static [&'static str],
    rows: Vec<R>,
) -> Result<Vec<u8>, Problem> {
    let made = blocking::run(turn, move || sheet(name, columns, &rows)).await?;
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
            write(cell, sheet, (at, column), &moment)?;
        }
    }
    book.save_to_buffer()
}

fn write(
    cell: &Cell,
    sheet: &mut Worksheet,
    (row, column): (u32, u16),
    moment: &Format,
) -> Result<(), XlsxError> {
    match cell {
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
