//! Reports: one self-contained HTML page, a CSV file and a workbook from a folder of samples.
//!
//! The files in the order of the data: `results` reads, `goal` judges, `compare` sets published results beside ours,
//! `figure` draws, `page` writes HTML with `style.css` in it, `export` writes the tables for other programs. The page
//! needs no script and loads nothing. Failures and timeouts are shown beside every result.

mod compare;
mod error;
mod export;
mod figure;
mod goal;
mod number;
mod page;
mod results;

use std::path::{Path, PathBuf};

pub use error::ReportError;
pub use results::SUITE_FILE;

/// Where a report was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The page.
    pub html: PathBuf,
    /// All figures as comma-separated values.
    pub csv: PathBuf,
    /// The same and every sample as a workbook.
    pub xlsx: PathBuf,
    /// Cells and comparisons that miss their goal, a line of text each.
    pub missed: Vec<String>,
}

/// Writes `report.html`, `report.csv`, `report.xlsx` and a folder of `figures` into a folder of results.
///
/// # Errors
/// There are no results, something in them cannot be read, or a file cannot be written.
pub fn write(folder: &Path) -> Result<Written, ReportError> {
    let all = results::read_all(folder)?;
    let mut tables = Vec::new();
    for part in &all.parts {
        let compared = part.experiment.compare.iter();
        tables.push(
            compared.map(|compare| compare::table(part, compare)).collect::<Result<Vec<_>, _>>()?,
        );
    }
    let verdicts: Vec<_> = all.parts.iter().map(goal::judge).collect();
    let compared = tables.iter().flatten().flat_map(|table| table.missed());
    let judged = verdicts.iter().flatten().flat_map(|verdicts| verdicts.missed());
    let missed = judged.chain(compared).collect();
    let [html, csv, xlsx] =
        ["report.html", "report.csv", "report.xlsx"].map(|name| folder.join(name));
    std::fs::write(&html, page::page(&all, &tables, &verdicts)).map_err(ReportError::io(&html))?;
    std::fs::write(&csv, export::csv(&all)?).map_err(ReportError::io(&csv))?;
    std::fs::write(&xlsx, export::workbook(&all, &tables, &verdicts)?)
        .map_err(ReportError::io(&xlsx))?;
    write_figures(&all, &folder.join("figures"))?;
    Ok(Written { html, csv, xlsx, missed })
}

/// Writes each figure as a file with the page's colours, for light and dark. Its name has the numbers of part and figure,
/// as the name of an experiment may be none of a file.
fn write_figures(all: &results::Report, folder: &Path) -> Result<(), ReportError> {
    let (colours, _) = page::STYLE.split_once("@media print").unwrap_or_default();
    let style = format!("><style>{colours}svg {{ font-family: sans-serif; }}</style>");
    std::fs::create_dir_all(folder).map_err(ReportError::io(folder))?;
    for (index, part) in all.parts.iter().enumerate() {
        for (number, drawn) in page::figures(part, index).iter().enumerate() {
            let path = folder.join(format!("{}-{}.svg", index + 1, number + 1));
            std::fs::write(&path, drawn.wide.replacen('>', &style, 1))
                .map_err(ReportError::io(&path))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
