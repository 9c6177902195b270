//! The content of a folder of results: experiments, their samples, and each cell's results.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::ReportError;
use crate::experiment::{Cell, Document, Experiment, load_noted};
use crate::run::{EXPERIMENT_FILE, Outcome, Sample, read};
use crate::stats::{Estimate, estimate};

/// The file that joins several experiments to a suite.
pub const SUITE_FILE: &str = "suite.toml";

/// One experiment's results.
#[derive(Debug)]
pub(super) struct Results {
    pub(super) experiment: Experiment,
    pub(super) samples: Vec<Sample>,
    pub(super) cells: Vec<CellResults>,
    pub(super) folder: PathBuf,
}

/// One cell's results.
#[derive(Debug)]
pub(super) struct CellResults {
    pub(super) cell: Cell,
    /// Indices into the samples.
    samples: Vec<usize>,
    pub(super) ok: usize,
    pub(super) failed: usize,
    pub(super) timeout: usize,
    /// Figure of each measure that has one.
    pub(super) figures: BTreeMap<String, Estimate>,
}

/// All that is reported on in one page.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) title: String,
    pub(super) about: String,
    pub(super) parts: Vec<Results>,
}

/// Reads a folder: of one experiment, or of several in folders of their own.
pub(super) fn read_all(folder: &Path) -> Result<Report, ReportError> {
    if folder.join(EXPERIMENT_FILE).is_file() {
        let results = read_one(folder)?;
        let (title, about) = (results.experiment.title.clone(), String::new());
        return Ok(Report { title, about, parts: vec![results] });
    }
    let listed = std::fs::read_dir(folder).map_err(ReportError::io(folder))?;
    let mut folders: Vec<PathBuf> = listed
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.join(EXPERIMENT_FILE).is_file())
        .collect();
    folders.sort();
    if folders.is_empty() {
        return Err(ReportError::Empty { folder: folder.to_owned() });
    }
    let suite = folder.join(SUITE_FILE);
    let (mut title, mut about) = ("Results".to_owned(), String::new());
    if suite.is_file() {
        let text = std::fs::read_to_string(&suite).map_err(ReportError::io(&suite))?;
        let suite = crate::experiment::noted_suite(&suite, &text)?;
        let place = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            suite.parts.iter().position(|part| part.get_ref() == name.as_ref())
        };
        folders.sort_by_key(|path| place(path).unwrap_or(usize::MAX));
        (title, about) = (suite.title.clone(), suite.about.clone());
    }
    let parts = folders.iter().map(|folder| read_one(folder)).collect::<Result<_, _>>()?;
    Ok(Report { title, about, parts })
}

fn read_one(folder: &Path) -> Result<Results, ReportError> {
    let document = load_noted(&folder.join(EXPERIMENT_FILE))?;
    let Document::Experiment(mut experiment, _) = document else {
        return Err(ReportError::Empty { folder: folder.to_owned() });
    };
    let samples = read(folder)?;
    if let Some(sample) = samples.first() {
        experiment.name.clone_from(&sample.experiment);
    }
    let cells = experiment.cells().into_iter();
    let cells = cells.map(|cell| CellResults::new(&experiment, cell, &samples)).collect();
    Ok(Results { experiment: *experiment, samples, cells, folder: folder.to_owned() })
}

impl CellResults {
    fn new(experiment: &Experiment, cell: Cell, all: &[Sample]) -> CellResults {
        let key = cell.to_map();
        let samples: Vec<usize> = (0..all.len()).filter(|index| all[*index].cell == key).collect();
        let count =
            |outcome: Outcome| samples.iter().filter(|i| all[**i].outcome == outcome).count();
        let (ok, failed, timeout) =
            (count(Outcome::Ok), count(Outcome::Failed), count(Outcome::Timeout));
        let figures = experiment.measures.iter().filter_map(|(name, measure)| {
            let values: Vec<f64> =
                samples.iter().filter_map(|i| all[*i].values.get(name).copied()).collect();
            Some((name.to_owned(), estimate(&values, measure.centre)?))
        });
        let figures = figures.collect();
        CellResults { cell, samples, ok, failed, timeout, figures }
    }
}

impl Results {
    pub(super) fn samples_of<'a>(
        &'a self,
        cell: &'a CellResults,
    ) -> impl Iterator<Item = &'a Sample> + 'a {
        cell.samples.iter().map(|index| &self.samples[*index])
    }

    pub(super) fn count(&self, outcome: Outcome) -> usize {
        self.samples.iter().filter(|sample| sample.outcome == outcome).count()
    }

    /// The label of a condition's value for people, from `define`.
    pub(super) fn label<'a>(&'a self, condition: &str, level: &'a str) -> &'a str {
        let defined = || self.experiment.define.get(condition)?.get(level)?.get("label");
        defined().map_or(level, |label| label.get_ref())
    }

    /// Values of a condition in the order of the file.
    pub(super) fn levels(&self, condition: &str) -> Vec<&str> {
        let levels = self.experiment.matrix.get(condition).map_or(&[][..], Vec::as_slice);
        levels.iter().map(|level| level.get_ref().as_str()).collect()
    }
}

/// The influence of other samples on a cell: its samples run alone, and those run side by side.
#[derive(Debug)]
pub(super) struct Disturbance<'a> {
    pub(super) cell: &'a Cell,
    /// Median and number of samples.
    pub(super) alone: (f64, usize),
    pub(super) beside: (f64, usize),
}

impl Disturbance<'_> {
    /// By how many percent neighbours increase the result; `None` if it is 0 alone.
    pub(super) fn change_pct(&self) -> Option<f64> {
        (self.alone.0 != 0.0).then(|| 100.0 * (self.beside.0 / self.alone.0 - 1.0))
    }
}

impl Results {
    /// The cells in which a measure was measured both alone and side by side.
    pub(super) fn disturbances(&self, measure: &str) -> Vec<Disturbance<'_>> {
        let of = |cell: &CellResults, alone: bool| {
            let samples = self.samples_of(cell).filter(|sample| sample.alone == alone);
            let values: Vec<f64> =
                samples.filter_map(|sample| sample.values.get(measure).copied()).collect();
            Some((crate::stats::median(&values)?, values.len()))
        };
        let both = self.cells.iter().filter_map(|cell| {
            Some(Disturbance { cell: &cell.cell, alone: of(cell, true)?, beside: of(cell, false)? })
        });
        both.collect()
    }
}
