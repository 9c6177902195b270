//! Tables as Excel files, which are made in memory, within a bound.

use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use rust_xlsxwriter::{ExcelDateTime, Format, Workbook, Worksheet, XlsxError};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{Cell, Outline};
use crate::blocking;
use crate::problem::{Problem, Result, internal};
use crate::time::SECOND_MS;

/// Rows of an Excel file, which is made in memory: their cells have 40 MB.
const MAX_XLSX_ROWS: usize = 50_000;
/// Bytes of text in an Excel file, which are in memory three times when it is made. Without notes, 50,000 readings
/// have 12 MB.
const MAX_XLSX_TEXT_BYTES: usize = 32 << 20;
/// Excel files that are made at once.
static XLSX_TURNS: Semaphore = Semaphore::const_new(2);
/// Longest wait for a turn.
const PATIENCE: Duration = Duration::from_secs(10);

/// The file, if it is not too long.
pub(super) async fn made<R: AsRef<[Cell]> + Send + 'static>(
    outline: &Outline,
    parts: impl Stream<Item = Result<Vec<R>>> + Send,
) -> Result<Vec<u8>> {
    let turn = turn().await?;
    let (mut parts, mut rows, mut text) = (std::pin::pin!(parts), Vec::new(), 0);
    while let Some(part) = parts.next().await {
        let part = part?;
        text += part.iter().map(|row| text_bytes(row.as_ref())).sum::<usize>();
        rows.extend(part);
        let too_much = if rows.len() > MAX_XLSX_ROWS {
            format!("more than {MAX_XLSX_ROWS} {}", outline.rows)
        } else if text > MAX_XLSX_TEXT_BYTES {
            format!("more than {} MiB of text", MAX_XLSX_TEXT_BYTES >> 20)
        } else {
            continue;
        };
        let detail = format!("{too_much}: ask for less, or for CSV");
        return Err(Problem::invalid(outline.narrow, detail));
    }
    workbook(turn, outline.sheet, outline.columns, rows).await
}

fn text_bytes(row: &[Cell]) -> usize {
    row.iter().map(|cell| if let Cell::Text(text) = cell { text.len() } else { 0 }).sum()
}

/// The turn to make an Excel file.
async fn turn() -> Result<SemaphorePermit<'static>> {
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
) -> Result<Vec<u8>> {
    let made = blocking::run(turn, move || sheet(name, columns, rows)).await?;
    made.map_err(|error| internal(&error))
}

/// Each row is dropped once it is in the sheet, which copies its text.
fn sheet<R: AsRef<[Cell]>>(
    name: &str,
    columns: &[&str],
    rows: Vec<R>,
) -> Result<Vec<u8>, XlsxError> {
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
            write(cell, sheet, at, column, &moment)?;
        }
    }
    book.save_to_buffer()
}

fn write(
    cell: &Cell,
    sheet: &mut Worksheet,
    row: u32,
    column: u16,
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use futures_util::stream;

    use super::*;

    #[tokio::test]
    async fn a_file_with_too_much_text_is_refused_before_it_is_made() {
        let outline = Outline {
            name: "notes",
            sheet: "Notes",
            columns: &["note"],
            rows: "notes",
            narrow: "since",
        };
        let mut asked = 0;
        let parts = std::iter::from_fn(|| {
            asked += 1;
            (asked <= 50).then(|| Ok(vec![[Cell::Text("x".repeat(8000))]; 100]))
        });
        let refused = made(&outline, stream::iter(parts)).await.unwrap_err();
        assert_eq!(refused.status(), 422);
        assert!(refused.detail().contains("CSV"), "{}", refused.detail());
        assert!(asked < 50, "the rest is not looked at");
    }
}
