//! Decides which samples to run, in which order, and side by side on which cores.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::Plan;
use super::environment::Environment;
use super::one::{Task, Trouble, run_sample};
use super::sample::{Outcome, Sample, StoreError};
use crate::experiment::Cell;
use crate::network::NetworkFactory;

/// Folder of working folders in the folder of results.
pub(super) const WORK: &str = "work";

/// A sample to take.
#[derive(Clone, Debug)]
struct Job {
    cell: Cell,
    repetition: u32,
    seed: u64,
    alone: bool,
}

/// The samples to take, in their order.
#[derive(Debug)]
pub(super) struct Jobs {
    together: VecDeque<Job>,
    alone: VecDeque<Job>,
    pub(super) side_by_side: usize,
}

impl Jobs {
    pub(super) fn new(plan: &Plan<'_>, done: &BTreeSet<(BTreeMap<String, String>, u32)>) -> Jobs {
        let experiment = plan.experiment;
        let repetitions = plan.repetitions.unwrap_or(*experiment.repetitions.get_ref());
        let mut jobs: Vec<Job> = Vec::new();
        for cell in experiment.cells().into_iter().filter(|cell| wanted(&plan.only, cell)) {
            for repetition in 0..repetitions {
                if done.contains(&(cell.to_map(), repetition)) {
                    continue;
                }
                let seed = seed(experiment.seed, &cell, repetition);
                // The seed decides it, so that a continued run decides the same.
                let share = (mix(seed) >> 11) as f64 / (1_u64 << 53) as f64;
                let alone = share < *experiment.alone.get_ref();
                jobs.push(Job { cell: cell.clone(), repetition, seed, alone });
            }
        }
        fastrand::Rng::with_seed(experiment.seed).shuffle(&mut jobs);
        let available = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let fit = (available / experiment.cores.get_ref()).floor().max(1.0) as usize;
        let side_by_side = plan.jobs.unwrap_or(fit).max(1);
        let (alone, together) = jobs.into_iter().partition(|job| job.alone || side_by_side == 1);
        Jobs { together, alone, side_by_side }
    }

    pub(super) fn len(&self) -> usize {
        self.together.len() + self.alone.len()
    }
}

pub(super) fn wanted(only: &BTreeMap<String, Vec<String>>, cell: &Cell) -> bool {
    only.iter().all(|(condition, values)| {
        cell.get(condition).is_some_and(|value| values.iter().any(|one| one == value))
    })
}

/// The seed of a sample: the same for the same file, cell and repetition, on every machine.
fn seed(experiment: u64, cell: &Cell, repetition: u32) -> u64 {
    // FNV-1a, which unlike the standard library's hash will never change.
    let text = format!("{} {repetition}", cell.label());
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // JSON parsers commonly support integers up to 2^53 only.
    mix(mix(experiment) ^ hash) >> 11
}

/// The finaliser of SplitMix64: each bit of the input changes half of the output's.
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// State that all workers share.
struct Shop<'a> {
    plan: &'a Plan<'a>,
    networks: &'a dyn NetworkFactory,
    stop: &'a AtomicBool,
    environment: Environment,
    running: AtomicUsize,
    number: AtomicUsize,
}

/// Runs the samples and passes each to `keep`.
pub(super) fn carry_out(
    plan: &Plan<'_>,
    jobs: Jobs,
    networks: &dyn NetworkFactory,
    stop: &AtomicBool,
    keep: &mut dyn FnMut(Sample) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let shop = Shop {
        plan,
        networks,
        stop,
        environment: Environment::read(plan.version),
        running: AtomicUsize::new(0),
        number: AtomicUsize::new(0),
    };
    for (queue, workers) in [(jobs.together, jobs.side_by_side), (jobs.alone, 1)] {
        let queue = Mutex::new(queue);
        let (sender, samples) = channel();
        let kept = std::thread::scope(|scope| {
            for worker in 0..workers {
                let (shop, queue, sender) = (&shop, &queue, sender.clone());
                scope.spawn(move || shop.work(worker, queue, &sender));
            }
            drop(sender);
            samples.iter().try_for_each(|sample| {
                keep(sample).inspect_err(|_| stop.store(true, Ordering::Relaxed))
            })
        });
        kept?;
    }
    Ok(())
}

impl Shop<'_> {
    fn work(&self, worker: usize, queue: &Mutex<VecDeque<Job>>, samples: &Sender<Sample>) {
        pin(worker, *self.plan.experiment.cores.get_ref());
        loop {
            let job = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(job) = job.filter(|_| !self.stop.load(Ordering::Relaxed)) else { return };
            let sample = self.run_job(&job);
            // The receiver is gone only after `stop` was set.
            if sample.is_none_or(|sample| samples.send(sample).is_err()) {
                return;
            }
        }
    }

    /// `None` when stopped.
    fn run_job(&self, job: &Job) -> Option<Sample> {
        let plan = self.plan;
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let own = std::process::id();
        let folder = plan.folder.join(WORK).join(format!("{own}-{number}"));
        // Roles run in it, so the path must be absolute.
        let folder = std::path::absolute(&folder).unwrap_or(folder);
        let beside = self.running.fetch_add(1, Ordering::Relaxed);
        let environment = self.environment.now(beside);
        let began_s = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let began = Instant::now();
        // Roles run in another folder.
        let here = std::path::absolute(plan.source).unwrap_or_else(|_| plan.source.to_owned());
        let task = Task {
            experiment: plan.experiment,
            cell: &job.cell,
            repetition: job.repetition,
            seed: job.seed,
            folder: folder.clone(),
            fulmar: &plan.fulmar,
            here: &here,
        };
        let (taken, outcome) = run_sample(&task, self.networks, self.stop);
        self.running.fetch_sub(1, Ordering::Relaxed);
        let (outcome, reason) = match outcome {
            Ok(()) => (Outcome::Ok, String::new()),
            Err(Trouble::Kept(outcome, reason)) => (outcome, reason),
            Err(Trouble::Stopped) => {
                remove(&folder);
                return None;
            }
        };
        let kept = if outcome == Outcome::Ok && !plan.keep {
            remove(&folder);
            None
        } else {
            tracing::info!(folder = %folder.display(), "kept the working folder");
            Some(folder)
        };
        Some(Sample {
            experiment: plan.experiment.name.clone(),
            cell: job.cell.to_map(),
            repetition: job.repetition,
            seed: job.seed,
            outcome,
            reason,
            began_s: began_s.map_or(0.0, |since| since.as_secs_f64()),
            took_s: began.elapsed().as_secs_f64(),
            alone: job.alone,
            values: taken.values,
            points: taken.points,
            counters: taken.observed.counters,
            lateness: taken.observed.lateness,
            environment,
            kept,
        })
    }
}

fn remove(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder) {
        tracing::debug!(folder = %folder.display(), %error, "a working folder stays");
    }
}

/// Pins a worker and its descendants to as many cores as its samples use. Where that is not allowed, samples still
/// run, but are less isolated.
fn pin(worker: usize, cores: f64) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let usable: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    let wide = cores.ceil().max(1.0) as usize;
    if wide >= usable.len() {
        return;
    }
    let mut own = CpuSet::new();
    for offset in 0..wide {
        own.set(usable[(worker * wide + offset) % usable.len()]);
    }
    if let Err(error) = sched_setaffinity(None, &own) {
        tracing::debug!(%error, "samples are not pinned");
    }
}
