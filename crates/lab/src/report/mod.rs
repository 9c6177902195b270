//! Reports: one self-contained HTML page, a CSV file and a workbook from a folder of samples.
//!
//! Data flow is file order: `results` reads, `goal` judges, `compare` sets published figures beside
//! ours, `figure` draws, `page` writes HTML with `style.css` in it, `export` writes the tables for other programs.
//! The page needs no script and loads nothing. Failures and timeouts stand beside every figure.

mod compare;
mod export;
mod figure;
mod goal;
mod number;
mod page;
mod results;

use std::path::{Path, PathBuf};

pub use results::SUITE_FILE;

use crate::experiment::Mistake;
use crate::run::StoreError;

/// What can go wrong with a report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The folder has no results.
    #[error("{folder} contains no results; `fulmar lab run` creates them", folder = folder.display())]
    Empty {
        /// The folder.
        folder: PathBuf,
    },
    /// The experiment noted in the folder cannot be read.
    #[error(transparent)]
    Experiment(#[from] Mistake),
    /// The samples cannot be read.
    #[error(transparent)]
    Samples(#[from] StoreError),
    /// Published figures cannot be read.
    #[error("{path}: {source}", path = path.display())]
    Paper {
        /// The file.
        path: PathBuf,
        /// Why.
        source: csv::Error,
    },
    /// The workbook cannot be made.
    #[error("the workbook: {0}")]
    Workbook(#[from] rust_xlsxwriter::XlsxError),
    /// The file system said no.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl ReportError {
    fn io(path: &Path) -> impl Fn(std::io::Error) -> ReportError {
        let path = path.to_owned();
        move |source| ReportError::Io { path: path.clone(), source }
    }
}

/// Where a report was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The page.
    pub html: PathBuf,
    /// All figures as comma-separated values.
    pub csv: PathBuf,
    /// The same and every sample as a workbook.
    pub xlsx: PathBuf,
    /// Cells and comparisons that miss their goal.
    pub missed: usize,
}

/// Writes `report.html`, `report.csv` and `report.xlsx` into a folder of results.
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
    let judged =
        tables.iter().flatten().flat_map(|table| table.rows.iter().map(|row| table.meets(row)));
    let verdicts: Vec<_> = all.parts.iter().map(goal::judge).collect();
    let rows = verdicts.iter().flatten().flat_map(|verdicts| &verdicts.rows);
    let missed = judged.chain(rows.map(|row| row.met)).filter(|met| *met == Some(false)).count();
    let [html, csv, xlsx] =
        ["report.html", "report.csv", "report.xlsx"].map(|name| folder.join(name));
    std::fs::write(&html, page::page(&all, &tables, &verdicts)).map_err(ReportError::io(&html))?;
    std::fs::write(&csv, export::csv(&all)?).map_err(ReportError::io(&csv))?;
    std::fs::write(&xlsx, export::workbook(&all, &tables, &verdicts)?)
        .map_err(ReportError::io(&xlsx))?;
    Ok(Written { html, csv, xlsx, missed })
}

#[cfg(test)]
mod tests;
