//! The runner: an experiment's cells and repetitions, side by side as far as the machine allows.
//!
//! Samples run in an order shuffled by the seed, so that a machine that slowly changes does not
//! favour a condition. A share of them runs alone, last; the report sets them beside the others.
//! Everything is kept in a folder (`sample`), and what is there already is not run again.
//!
//! Not here: what a terminal shows. The caller is told of each step.

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

/// Keys of an experiment file that change nothing of a sample.
const COSMETIC: [&str; 8] =
    ["title", "about", "repetitions", "figures", "compare", "goals", "alone", "needs"];

/// What to run and how.
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
    /// This program, for roles that are our own.
    pub fulmar: PathBuf,
    /// Version to note in samples.
    pub version: &'a str,
    /// Samples side by side; by the machine and the file's `cores` if `None`.
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
    /// It begins.
    Begin {
        /// Samples to take now.
        todo: usize,
        /// Samples there already.
        done: usize,
        /// Side by side.
        jobs: usize,
    },
    /// A sample is there.
    Sample(&'a Sample),
}

/// How a run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Samples with figures, those of earlier runs included.
    pub ok: usize,
    /// Failures among them all.
    pub failed: usize,
    /// Timeouts among them all.
    pub timeout: usize,
    /// Not taken, because the run was stopped.
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

/// Takes all samples that are not there yet. Setting `stop` ends it soon; what is under way then is
/// not kept and is taken by the next run.
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
    // Only folders of trouble are left in it; else it goes.
    let _ = fs::remove_dir(plan.folder.join(schedule::WORK));
    Ok(tally)
}

/// Notes the experiment in the folder, or finds that it is the one noted there.
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
    // The folder is complete in itself: a report needs nothing from where it was run.
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

/// The file without what changes nothing of a sample.
fn substance(text: &str) -> Option<toml::Table> {
    let mut table: toml::Table = toml::from_str(text).ok()?;
    table.retain(|key, _| !COSMETIC.contains(&key));
    Some(table)
}

#[cfg(test)]
mod tests;
