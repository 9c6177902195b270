//! Tables for other programs: one CSV file of all figures, and a workbook with every sample.

use fulmar_text::spreadsheet::without_formulas;
use rust_xlsxwriter::{Format, Workbook, Worksheet, XlsxError};

use super::ReportError;
use super::compare::Table;
use super::goal::Verdicts;
use super::results::{Report, Results};

/// Maximum number of sheets whose names are made unique by a number; more parts share the last number.
const NAME_CHARS: usize = 24;

/// A row for each cell and measure; behind the figures a column for each condition.
pub(super) fn csv(all: &Report) -> Result<Vec<u8>, ReportError> {
    let mut writer =
        csv::WriterBuilder::new().quote_style(csv::QuoteStyle::NonNumeric).from_writer(Vec::new());
    let broken = |source: csv::Error| ReportError::Paper { path: "report.csv".into(), source };
    let conditions = conditions(all);
    writer.write_record(headings_with(&conditions).into_iter().map(safe)).map_err(broken)?;
    for part in &all.parts {
        for row in figures(part, &conditions) {
            writer.write_record(row.iter().map(|cell| safe(cell))).map_err(broken)?;
        }
    }
    writer
        .into_inner()
        .map_err(|error| ReportError::Io { path: "report.csv".into(), source: error.into_error() })
}

/// Names are those of the experiment's author; negative figures are no formulas.
fn safe(cell: &str) -> String {
    if cell.parse::<f64>().is_ok() { cell.to_owned() } else { without_formulas(cell).into_owned() }
}

const HEADINGS: [&str; 11] = [
    "experiment",
    "conditions",
    "measure",
    "unit",
    "figure",
    "low_95",
    "high_95",
    "samples",
    "ok",
    "failed",
    "timeout",
];

/// The conditions of all parts, each once.
fn conditions(all: &Report) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for name in all.parts.iter().flat_map(|part| part.experiment.matrix.keys()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn headings_with<'a>(conditions: &[&'a str]) -> Vec<&'a str> {
    HEADINGS.iter().chain(conditions).copied().collect()
}

fn figures(part: &Results, conditions: &[&str]) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for cell in &part.cells {
        for (name, measure) in part.experiment.measures.iter() {
            if !cell.cell.matches(&measure.only) {
                continue;
            }
            let figure = cell.figures.get(name);
            let text = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
            let levels = conditions.iter().map(|condition| cell.cell.get(condition).unwrap_or(""));
            let row = [
                part.experiment.name.clone(),
                cell.cell.label(),
                name.to_owned(),
                measure.unit.clone(),
                text(figure.map(|e| e.value)),
                text(figure.map(|e| e.low)),
                text(figure.map(|e| e.high)),
                figure.map_or(0, |e| e.count).to_string(),
                cell.ok.to_string(),
                cell.failed.to_string(),
                cell.timeout.to_string(),
            ];
            rows.push(row.into_iter().chain(levels.map(str::to_owned)).collect());
        }
    }
    rows
}

/// The workbook: figures, comparisons, goals, and a sheet of samples for each experiment.
pub(super) fn workbook(
    all: &Report,
    tables: &[Vec<Table<'_>>],
    verdicts: &[Vec<Verdicts<'_>>],
) -> Result<Vec<u8>, XlsxError> {
    let mut book = Workbook::new();
    let sheet = book.add_worksheet().set_name("Figures")?;
    let conditions = conditions(all);
    headings(sheet, &headings_with(&conditions))?;
    let rows = all.parts.iter().flat_map(|part| figures(part, &conditions));
    for (row, cells) in rows.enumerate() {
        write_row(sheet, row as u32 + 1, &cells)?;
    }
    sheet.autofit();
    compared(book.add_worksheet().set_name("Published")?, tables)?;
    judged(book.add_worksheet().set_name("Goals")?, verdicts)?;
    for (index, part) in all.parts.iter().enumerate() {
        let name: String = part.experiment.name.chars().take(NAME_CHARS).collect();
        samples(book.add_worksheet().set_name(format!("{} {name}", index + 1))?, part)?;
    }
    book.save_to_buffer()
}

fn headings(sheet: &mut Worksheet, names: &[impl AsRef<str>]) -> Result<(), XlsxError> {
    let bold = Format::new().set_bold();
    for (column, name) in names.iter().enumerate() {
        sheet.write_with_format(0, column as u16, name.as_ref(), &bold)?;
    }
    sheet.set_freeze_panes(1, 0)?;
    Ok(())
}

/// Text that is a number is written as one.
fn write_row(sheet: &mut Worksheet, row: u32, cells: &[impl AsRef<str>]) -> Result<(), XlsxError> {
    for (column, cell) in cells.iter().enumerate() {
        let text = cell.as_ref();
        match text.parse::<f64>().ok().filter(|number| number.is_finite()) {
            Some(number) => sheet.write(row, column as u16, number)?,
            None => sheet.write(row, column as u16, text)?,
        };
    }
    Ok(())
}

fn compared(sheet: &mut Worksheet, tables: &[Vec<Table<'_>>]) -> Result<(), XlsxError> {
    let names = [
        "table",
        "source",
        "row",
        "published",
        "ours",
        "low_95",
        "high_95",
        "ratio",
        "goal",
        "met",
    ];
    headings(sheet, &names)?;
    let mut line = 1;
    for table in tables.iter().flatten() {
        for row in &table.rows {
            let number =
                |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
            let met = table.meets(row).map_or("", |met| if met { "yes" } else { "no" });
            let cells = [
                table.compare.title.clone(),
                table.compare.source.clone(),
                row.key.join(" "),
                row.published.to_string(),
                number(row.ours.map(|e| e.value)),
                number(row.ours.map(|e| e.low)),
                number(row.ours.map(|e| e.high)),
                number(row.ratio()),
                number(table.compare.goal),
                met.to_owned(),
            ];
            write_row(sheet, line, &cells)?;
            line += 1;
        }
    }
    sheet.autofit();
    Ok(())
}

fn judged(sheet: &mut Worksheet, verdicts: &[Vec<Verdicts<'_>>]) -> Result<(), XlsxError> {
    let names = [
        "goal",
        "measure",
        "unit",
        "at_least",
        "at_most",
        "conditions",
        "figure",
        "low_95",
        "high_95",
        "worst_sample",
        "failed",
        "timeout",
        "met",
    ];
    headings(sheet, &names)?;
    let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    let rows = verdicts.iter().flatten().flat_map(|one| one.rows.iter().map(move |row| (one, row)));
    for (line, (one, row)) in rows.enumerate() {
        let cells = [
            one.goal.title.clone(),
            one.goal.measure.get_ref().clone(),
            one.unit.to_owned(),
            number(one.goal.at_least),
            number(one.goal.at_most),
            row.cell.label(),
            number(row.figure.map(|e| e.value)),
            number(row.figure.map(|e| e.low)),
            number(row.figure.map(|e| e.high)),
            number(row.worst),
            row.lost.0.to_string(),
            row.lost.1.to_string(),
            row.met.map_or("", |met| if met { "yes" } else { "no" }).to_owned(),
        ];
        write_row(sheet, line as u32 + 1, &cells)?;
    }
    sheet.autofit();
    Ok(())
}

fn samples(sheet: &mut Worksheet, part: &Results) -> Result<(), XlsxError> {
    let conditions: Vec<&str> = part.experiment.matrix.keys().collect();
    let measures: Vec<&str> = part.experiment.measures.keys().collect();
    let fixed =
        ["repetition", "seed", "outcome", "reason", "alone", "took_s", "load", "late_p99_us"];
    let names: Vec<&str> = conditions.iter().chain(&fixed).chain(&measures).copied().collect();
    headings(sheet, &names)?;
    for (row, sample) in part.samples.iter().enumerate() {
        let late = sample.lateness.map_or(String::new(), |late| late.p99_us.to_string());
        let mut cells: Vec<String> = conditions
            .iter()
            .map(|condition| sample.cell.get(*condition).cloned().unwrap_or_default())
            .collect();
        cells.extend([
            sample.repetition.to_string(),
            sample.seed.to_string(),
            format!("{:?}", sample.outcome).to_lowercase(),
            sample.reason.clone(),
            sample.alone.to_string(),
            sample.took_s.to_string(),
            sample.environment.load.to_string(),
            late,
        ]);
        let values = measures.iter().map(|measure| sample.values.get(*measure));
        cells.extend(values.map(|value| value.map_or(String::new(), f64::to_string)));
        write_row(sheet, row as u32 + 1, &cells)?;
    }
    sheet.autofit();
    Ok(())
}
