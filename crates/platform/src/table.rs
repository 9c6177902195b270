//! Tables to take away: CSV (RFC 4180), as long as they are, and Excel files, within a bound. Rows come a part at a time.
//!
//! Text that a spreadsheet would take for a formula is made text: in CSV with an apostrophe before it, also where a
//! semicolon or tab separates cells, in Excel files by the kind of the cell. Numbers are numbers, negative ones too, and
//! the only cells of a CSV file without quotation marks.

#[cfg_attr(not(feature = "spreadsheet"), path = "table/no_xlsx.rs")]
mod xlsx;

use axum::body::Body;
use axum::http::header;
use axum::response::IntoResponse as _;
use bytes::Bytes;
use fulmar_http::{NoLongerAllowed, PART_BYTES};
use fulmar_text::spreadsheet::without_formulas;
use futures_util::{Stream, StreamExt as _, stream};

use crate::accounts::caller::Member;
use crate::app::App;
use crate::problem::{Problem, Result, internal};
use crate::respond::Answer;
use crate::text::Name;
use crate::time::Time;

/// Rows that come a part at a time.
pub(crate) trait RowSource: Send + Sized + 'static {
    type Row: AsRef<[Cell]> + Send + 'static;

    /// The next rows; none at the end.
    fn next(&mut self) -> impl Future<Output = Result<Vec<Self::Row>>> + Send;

    /// All rows, a part at a time.
    fn stream(self) -> impl Stream<Item = Result<Vec<Self::Row>>> + Send + 'static {
        stream::try_unfold(self, |mut source| async {
            let rows = source.next().await?;
            Ok((!rows.is_empty()).then_some((rows, source)))
        })
    }
}

/// A table's names and columns.
#[cfg_attr(not(feature = "spreadsheet"), allow(dead_code, reason = "CSV has no need of all"))]
pub(crate) struct Outline {
    /// Part of the file's name.
    pub(crate) name: &'static str,
    /// Name of the sheet in an Excel file.
    pub(crate) sheet: &'static str,
    pub(crate) columns: &'static [&'static str],
    /// Name of its rows.
    pub(crate) rows: &'static str,
    /// The parameter that asks for less of them.
    pub(crate) narrow: &'static str,
}

impl Outline {
    /// As CSV. Should a part fail when the answer has begun, the connection ends with an error.
    pub(crate) async fn csv(&self, app: &App, member: &Member, rows: impl RowSource) -> Answer {
        let parts = stream::unfold(
            (Box::pin(rows.stream()), Some(self.columns)),
            |(mut parts, heading)| async move {
                // The heading comes even if there are no rows.
                let none = || heading.map(|_| Ok(Vec::new()));
                let rows = parts.next().await.or_else(none)?;
                Some((rows.and_then(|rows| csv(&rows, heading)), (parts, None)))
            },
        );
        let body = in_parts(member.parts(app, parts)).await?;
        file(&member.twin, self.name, Kind::Csv, body)
    }

    /// As an Excel file, if it is not too long.
    pub(crate) async fn xlsx(&self, app: &App, member: &Member, rows: impl RowSource) -> Answer {
        let made = xlsx::made(self, rows.stream()).await?;
        // It took its time.
        if !member.still_is(app) {
            return Err(NoLongerAllowed.into());
        }
        file(&member.twin, self.name, Kind::Xlsx, made.into())
    }
}

/// File format of a table.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Csv,
    Xlsx,
}

/// Contents of a table.
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

    /// About how long it is in CSV, with quotation marks; no less.
    fn length(&self) -> usize {
        match self {
            Cell::Text(text) => {
                let longer = |byte: &u8| matches!(byte, b'"' | b';' | b'\t' | b'\r' | b'\n');
                text.len() + text.bytes().filter(|byte| longer(byte)).count() + 4
            }
            // Without an exponent, the smallest and the largest have more than 300 digits.
            Cell::Number(number) if *number != 0.0 && !(1e-5..1e17).contains(&number.abs()) => 350,
            Cell::Number(_) | Cell::Moment(_) => 32,
            Cell::Nothing => 3,
        }
    }

    /// Text of the cell in CSV, before quoting.
    fn plain(&self) -> String {
        match self {
            Cell::Text(text) => without_formulas(text).into_owned(),
            Cell::Number(number) => number.to_string(),
            Cell::Moment(at) => at.to_string(),
            Cell::Nothing => String::new(),
        }
    }
}

/// The first of these rows that are together a part of an answer, and one at least.
pub(crate) fn first_part<R: AsRef<[Cell]>>(rows: impl Iterator<Item = R>) -> Vec<R> {
    let (mut part, mut bytes) = (Vec::new(), 0);
    for row in rows {
        bytes += length(row.as_ref());
        if bytes > PART_BYTES && !part.is_empty() {
            break;
        }
        part.push(row);
    }
    part
}

/// About how long a row is in CSV.
fn length(row: &[Cell]) -> usize {
    row.iter().map(Cell::length).sum()
}

/// Rows as CSV, behind a heading if they are the first.
fn csv<R: AsRef<[Cell]>>(rows: &[R], heading: Option<&[&str]>) -> Result<Bytes> {
    let lengths = rows.iter().map(|row| length(row.as_ref()));
    let mut to = Vec::with_capacity(lengths.sum::<usize>() + 1024);
    // Without it, Excel reads the system's code page.
    to.extend_from_slice(heading.map_or("", |_| "\u{feff}").as_bytes());
    let mut table = csv::WriterBuilder::new()
        .terminator(csv::Terminator::CRLF)
        .quote_style(csv::QuoteStyle::NonNumeric)
        .from_writer(to);
    let failed = |error: csv::Error| internal(&error);
    if let Some(heading) = heading {
        table.write_record(heading).map_err(failed)?;
    }
    for row in rows {
        table.write_record(row.as_ref().iter().map(Cell::plain)).map_err(failed)?;
    }
    table.into_inner().map(Bytes::from).map_err(|error| internal(&error))
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

/// A body of these parts. The first is looked up before the answer begins, so that what fails can still be said.
pub(crate) async fn in_parts(
    parts: impl Stream<Item = Result<Bytes>> + Send + 'static,
) -> Result<Body> {
    let mut parts = Box::pin(parts);
    let first = parts.next().await.transpose()?.unwrap_or_default();
    let first = stream::once(std::future::ready(Ok(first)));
    Ok(Body::from_stream(first.chain(parts.map(|part| part.map_err(broken)))))
}

/// Error that ends an answer that has begun.
fn broken(problem: Problem) -> std::io::Error {
    tracing::warn!("platform: an answer was cut off: {}", problem.detail());
    std::io::Error::other(problem.detail().to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn text_is_quoted_and_no_formula_also_where_semicolons_separate() {
        let row = [
            Cell::Text("a;=1+1".into()),
            Cell::Text("@SUM(A1)".into()),
            Cell::Number(-71.5),
            Cell::Nothing,
        ];
        assert_eq!(
            csv(&[row], Some(&["x", "y", "z", "n"])).unwrap(),
            "\u{feff}\"x\",\"y\",\"z\",\"n\"\r\n\"a;'=1+1\",\"'@SUM(A1)\",-71.5,\"\"\r\n"
        );
    }

    /// As programs open it whose separator is another one, and which may overlook quotation marks.
    #[test]
    fn no_separator_makes_a_formula_of_a_text() {
        let hostile = ["x;=1+1", "x;\"=1", "x\t=1", "x\n=1+1;@A", "=1", "x;-1+1", "x,+1"];
        let row: Vec<Cell> = [3.0]
            .map(Cell::Number)
            .into_iter()
            .chain(hostile.map(|text| Cell::Text(text.into())))
            .collect();
        let table = csv(&[row], None).unwrap();
        for (delimiter, quoting) in
            [(b',', true), (b';', true), (b';', false), (b'\t', true), (b'\t', false)]
        {
            let mut reader = csv::ReaderBuilder::new();
            reader.has_headers(false).flexible(true).delimiter(delimiter).quoting(quoting);
            for record in reader.from_reader(&*table).records() {
                for cell in &record.unwrap() {
                    let begin = cell.trim_start_matches(['"', ' ', '\t', '\r', '\n']);
                    assert!(!begin.starts_with(['=', '+', '-', '@']), "{cell:?} at {delimiter}");
                }
            }
        }
    }
}
