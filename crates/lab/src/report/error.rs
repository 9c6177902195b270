//! What can go wrong with a report.

use std::path::{Path, PathBuf};

use crate::experiment::Mistake;
use crate::run::StoreError;

/// Error of a report.
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
    pub(super) fn io(path: &Path) -> impl Fn(std::io::Error) -> ReportError {
        let path = path.to_owned();
        move |source| ReportError::Io { path: path.clone(), source }
    }
}
