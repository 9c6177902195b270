//! The runner: runs an experiment's cells and repetitions, side by side as far as the machine allows.
//!
//! Samples run in an order shuffled by the seed, so that a machine that slowly changes does not favour a condition. A
//! share of them runs alone, last; the report compares them with the others. All results are kept in a folder
//! (`sample`), and samples that exist already are not run again.
//!
//! Not here: the terminal's output. The caller gets a callback per step.

mod environment;
mod measure;
mod one;
mod process;
mod program;
mod sample;
mod schedule;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

pub use environment::Environment;
pub use program::{missing_programs, unmet_needs};
pub use sample::{FILE, Outcome, Sample, StoreError, read};

use crate::experiment::Experiment;
use crate::network::NetworkFactory;
use sample::Store;

/// Copy of the experiment file in the folder of results.
pub const EXPERIMENT_FILE: &str = "experiment.toml";

/// Keys of an experiment file that do not change samples.
const COSMETIC: [&str; 8] =
    ["title", "about", "repetitions", "figures", "compare", "goals", "alone", "needs"];

/// Experiment to run, and the options for it.
#[derive(Debug)]
pub struct Plan<'a> {
    /// The experiment.
    pub experiment: &'a Experiment,
    /// The text of its file.
    pub text: &'a str,
    /// The folder of its file, where published figures are.
    pub source: &'a Path,
    /// Folder of results.
    pub folder: &'a Path,
    /// This program, for roles that use it.
    pub fulmar: PathBuf,
    /// The version recorded in samples.
    pub version: &'a str,
    /// Samples side by side; `None`: by the number of cores and the file's `cores`.
    pub jobs: Option<usize>,
    /// Repetitions instead of the file's.
    pub repetitions: Option<u32>,
    /// The only values of conditions to run.
    pub only: BTreeMap<String, Vec<String>>,
    /// Whether working folders of good samples are kept too.
    pub keep: bool,
}

/// A step of a run.
#[derive(Debug)]
pub enum Step<'a> {
    /// The run begins.
    Begin {
        /// Samples to run.
        todo: usize,
        /// Samples that exist already.
        done: usize,
        /// Side by side.
        jobs: usize,
    },
    /// A sample is complete.
    Sample(&'a Sample),
}

/// Outcome of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Samples with results, those of earlier runs included.
    pub ok: usize,
    /// Failures among them all.
    pub failed: usize,
    /// Timeouts among them all.
    pub timeout: usize,
    /// Samples not run, because the run was stopped.
    pub left: usize,
}

impl Tally {
    fn count(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Ok => self.ok += 1,
            Outcome::Failed => self.failed += 1,
            Outcome::Timeout => self.timeout += 1,
        }
    }
}

/// Runs all samples that do not exist yet. Setting `stop` ends it soon; running samples are then discarded, and the
/// next run repeats them.
///
/// # Errors
/// The folder cannot be used, or holds results of something else.
pub fn run(
    plan: &Plan<'_>,
    networks: &dyn NetworkFactory,
    stop: &AtomicBool,
    on_step: &mut dyn FnMut(Step<'_>),
) -> Result<Tally, StoreError> {
    fs::create_dir_all(plan.folder).map_err(StoreError::io(plan.folder))?;
    claim(plan)?;
    let there = read(plan.folder)?;
    let mut tally = Tally::default();
    for sample in &there {
        tally.count(sample.outcome);
    }
    let done: BTreeSet<_> = there.into_iter().map(|s| (s.cell, s.repetition)).collect();
    let jobs = schedule::Jobs::new(plan, &done);
    on_step(Step::Begin { todo: jobs.len(), done: done.len(), jobs: jobs.side_by_side });
    let mut store = Store::open(plan.folder)?;
    let todo = jobs.len();
    let mut taken = 0;
    schedule::carry_out(plan, jobs, networks, stop, &mut |sample| {
        store.append(&sample)?;
        taken += 1;
        tally.count(sample.outcome);
        on_step(Step::Sample(&sample));
        Ok(())
    })?;
    tally.left = todo - taken;
    // It now has only folders of failures; if there are none, it is removed.
    let _ = fs::remove_dir(plan.folder.join(schedule::WORK));
    Ok(tally)
}

/// Records the experiment in the folder, or checks that it is the one recorded there.
fn claim(plan: &Plan<'_>) -> Result<(), StoreError> {
    let path = plan.folder.join(EXPERIMENT_FILE);
    let other = || StoreError::Other { path: plan.folder.to_owned() };
    match fs::read_to_string(&path) {
        Ok(noted) if substance(&noted) != substance(plan.text) => return Err(other()),
        Ok(_) => {}
        Err(_) if plan.folder.join(FILE).exists() => return Err(other()),
        Err(_) => {}
    }
    fs::write(&path, plan.text).map_err(StoreError::io(&path))?;
    // The folder is complete: a report needs no files from outside.
    for compare in &plan.experiment.compare {
        let name = compare.paper.get_ref();
        let (from, to) = (plan.source.join(name), plan.folder.join(name));
        let copy = || -> std::io::Result<()> {
            fs::create_dir_all(to.parent().unwrap_or(plan.folder))?;
            fs::write(&to, fs::read(&from)?)
        };
        copy().map_err(StoreError::io(&from))?;
    }
    Ok(())
}

/// The file without the keys that do not change samples.
fn substance(text: &str) -> Option<toml::Table> {
    let mut table: toml::Table = toml::from_str(text).ok()?;
    table.retain(|key, _| !COSMETIC.contains(&key));
    Some(table)
}

#[cfg(test)]
mod tests;
