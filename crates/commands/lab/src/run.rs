//! `fulmar lab run`.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fulmar_lab::emulated_network::EmulatedNetworkFactory;
use fulmar_lab::experiment::{Document, Experiment};
use fulmar_lab::network::{Loopback, NetworkFactory};
use fulmar_lab::report::SUITE_FILE;
use fulmar_lab::run::{Plan, Sample, Step, Tally, missing_programs, unmet_needs};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::experiment_files::{ExperimentFiles, FolderArg};
use super::{own_path, report};
use crate::exit::Usage;

const EXAMPLES: &str = "\
Examples:
  fulmar lab run mqtt-quic                          all samples; run again to continue after a stop
  fulmar lab run mqtt-quic-hol --only drop=10       a part of the matrix
  fulmar lab run my/own.toml --out /tmp/own --jobs 1

Samples are kept in OUT/samples.jsonl, one JSON object per line. Samples in it are not measured again.";

/// Interval at which a run without a terminal reports its progress.
const TELL_EVERY: Duration = Duration::from_secs(30);

/// Run experiments and report on them
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Experiments, by name or path
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    folder: FolderArg,
    /// Folder of results [default: results/NAME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Samples to run in parallel [default: as the machine and the experiment allow]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=256))]
    jobs: Option<u64>,
    /// Repetitions of each cell [default: the experiment's]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repetitions: Option<u32>,
    /// Only these values of a condition; repeat for more
    #[arg(long, value_name = "CONDITION=VALUE[,VALUE]", value_parser = condition)]
    only: Vec<(String, Vec<String>)>,
    /// Also keep the working folders of good samples
    #[arg(long)]
    keep: bool,
    /// Write no report
    #[arg(long)]
    no_report: bool,
}

fn condition(text: &str) -> Result<(String, Vec<String>), String> {
    let (name, values) = text.split_once('=').ok_or("use CONDITION=VALUE")?;
    Ok((name.to_owned(), values.split(',').map(str::to_owned).collect()))
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    if args.out.is_some() && args.names.len() > 1 {
        bail!(Usage("--out is for one experiment".to_owned()));
    }
    let files = args.folder.open()?;
    let documents = args.names.iter().map(|name| files.load(name));
    // All files are read before the first experiment runs: a mistake in the last one should not show hours later.
    let documents = documents.collect::<anyhow::Result<Vec<_>>>()?;
    let folders = args.names.iter().zip(&documents).map(|(name, document)| {
        experiments(&ExperimentFiles::in_folder_of(&files.find(name)), document)
    });
    let all = folders.collect::<anyhow::Result<Vec<_>>>()?.concat();
    check_only(&args.only, &all)?;
    // Before any thread: without root it takes this process into a namespace of its own.
    fulmar_lab::net::acquire()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // A second signal ends the process at once.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let ended =
        fulmar_lab::net::kill_orphans().context("looking for what an earlier lab left behind")?;
    if ended > 0 {
        tracing::warn!(processes = ended, "ended what an earlier lab left behind");
    }
    for (name, document) in args.names.iter().zip(documents) {
        let stem = Path::new(name).file_stem().unwrap_or_default();
        let out = args.out.clone().unwrap_or_else(|| Path::new("results").join(stem));
        let source = files.find(name);
        let tally = Go { args, stop: &stop }.document(document, &source, &out)?;
        eprintln!(
            "{name}: {} good, {} failed, {} timed out",
            tally.ok, tally.failed, tally.timeout
        );
        if tally.left > 0 {
            bail!("stopped with {} samples to go; the same command continues", tally.left);
        }
        if tally.ok == 0 {
            bail!("{name}: no good sample; {}/samples.jsonl shows why", out.display());
        }
        if !args.no_report {
            report::write(&out)?;
        }
    }
    Ok(())
}

/// The experiments of a document: itself, or a suite's.
fn experiments(files: &ExperimentFiles, document: &Document) -> anyhow::Result<Vec<Experiment>> {
    match document {
        Document::Experiment(experiment, _) => Ok(vec![(**experiment).clone()]),
        Document::Suite(suite, _) => {
            let parts = suite.parts.iter();
            parts.map(|part| Ok(*load_part(files, part.get_ref())?.0)).collect()
        }
    }
}

/// An experiment of a suite, and the text of its file.
fn load_part(files: &ExperimentFiles, name: &str) -> anyhow::Result<(Box<Experiment>, String)> {
    match files.load(name)? {
        Document::Experiment(experiment, text) => Ok((experiment, text)),
        Document::Suite(..) => bail!(Usage(format!("{name}: a suite cannot contain a suite"))),
    }
}

/// The values by condition, even if a condition was given more than once.
fn together(only: &[(String, Vec<String>)]) -> BTreeMap<String, Vec<String>> {
    let mut all = BTreeMap::<_, Vec<_>>::new();
    for (condition, values) in only {
        all.entry(condition.clone()).or_default().extend_from_slice(values);
    }
    all
}

/// A condition or value that no experiment has would select nothing.
fn check_only(only: &[(String, Vec<String>)], all: &[Experiment]) -> anyhow::Result<()> {
    for (condition, values) in only {
        let levels = all.iter().filter_map(|experiment| experiment.matrix.get(condition)).flatten();
        let levels: Vec<&str> = levels.map(|level| level.get_ref().as_str()).collect();
        if levels.is_empty() {
            let mut known: Vec<&str> =
                all.iter().flat_map(|experiment| experiment.matrix.keys()).collect();
            known.sort_unstable();
            known.dedup();
            bail!(Usage(format!("no condition `{condition}`; use one of: {}", known.join(", "))));
        }
        if let Some(value) = values.iter().find(|value| !levels.contains(&value.as_str())) {
            let known = levels.join(", ");
            bail!(Usage(format!("`{condition}` has no value `{value}`; use one of: {known}")));
        }
    }
    Ok(())
}

fn folder_of(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).to_owned()
}

fn sum(a: Tally, b: Tally) -> Tally {
    Tally {
        ok: a.ok + b.ok,
        failed: a.failed + b.failed,
        timeout: a.timeout + b.timeout,
        left: a.left + b.left,
    }
}

struct Go<'a> {
    args: &'a Args,
    stop: &'a AtomicBool,
}

impl Go<'_> {
    fn document(&self, document: Document, source: &Path, out: &Path) -> anyhow::Result<Tally> {
        let (suite, text) = match document {
            Document::Experiment(experiment, text) => {
                return self.experiment(*experiment, &text, source, out);
            }
            Document::Suite(suite, text) => (suite, text),
        };
        // All are read before the first one runs.
        let files = ExperimentFiles::in_folder_of(source);
        let parts = suite.parts.iter().map(|part| {
            let name = part.get_ref();
            anyhow::Ok((name, load_part(&files, name)?))
        });
        let parts = parts.collect::<anyhow::Result<Vec<_>>>()?;
        std::fs::create_dir_all(out).with_context(|| out.display().to_string())?;
        std::fs::write(out.join(SUITE_FILE), text)?;
        let mut all = Tally::default();
        for (name, (mut experiment, text)) in parts {
            let part_source = files.find(name);
            experiment.within.clone_from(&suite.only);
            if let Some(timeout_s) = &suite.timeout_s {
                experiment.timeout_s.clone_from(timeout_s);
            }
            if let Some(repetitions) = &suite.repetitions {
                experiment.repetitions.clone_from(repetitions);
            }
            all = sum(all, self.experiment(*experiment, &text, &part_source, &out.join(name))?);
        }
        Ok(all)
    }

    fn experiment(
        &self,
        mut experiment: Experiment,
        text: &str,
        source: &Path,
        out: &Path,
    ) -> anyhow::Result<Tally> {
        let args = self.args;
        let unmet = unmet_needs(&experiment, &folder_of(source));
        unmet.iter().for_each(|need| eprintln!("{}: {}", experiment.name, need.otherwise));
        let left_out: Vec<_> = unmet.into_iter().map(|need| need.only.clone()).collect();
        experiment.skip.extend(left_out);
        let experiment = &experiment;
        let only = together(&args.only);
        let missing = missing_programs(experiment, &only);
        if !missing.is_empty() {
            bail!(
                "{} cannot be run: this machine lacks {}; install what is missing and try again",
                experiment.name,
                missing.join(", ")
            );
        }
        let plan = Plan {
            experiment,
            text,
            source: &folder_of(source),
            folder: out,
            fulmar: own_path()?,
            version: env!("CARGO_PKG_VERSION"),
            jobs: args.jobs.map(|jobs| jobs as usize),
            repetitions: args.repetitions,
            only,
            keep: args.keep,
        };
        let mut progress = Progress::new(&experiment.name);
        let networks: &dyn NetworkFactory =
            if experiment.links.is_empty() { &Loopback } else { &EmulatedNetworkFactory };
        let tally =
            fulmar_lab::run::run(&plan, networks, self.stop, &mut |step| progress.step(&step))
                .with_context(|| out.display().to_string());
        progress.bar.finish_and_clear();
        tally
    }
}

/// The progress of a run on a terminal.
struct Progress {
    bar: ProgressBar,
    terminal: bool,
    began: Instant,
    told: Instant,
}

impl Progress {
    fn new(name: &str) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        // Hidden unless that is a terminal.
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(4));
        let shape = "{prefix} [{bar:30}] {pos}/{len} samples {wide_msg}";
        if let Ok(style) = ProgressStyle::with_template(shape) {
            bar.set_style(style);
        }
        bar.set_prefix(name.to_owned());
        bar.enable_steady_tick(Duration::from_millis(500));
        let now = Instant::now();
        Progress { bar, terminal, began: now, told: now }
    }

    fn step(&mut self, step: &Step<'_>) {
        match step {
            Step::Begin { todo, done, jobs } => {
                self.bar.set_length(*todo as u64);
                let there = if *done > 0 { format!(", {done} done before") } else { String::new() };
                let prefix = self.bar.prefix();
                self.bar.suspend(|| {
                    eprintln!("{prefix}: {todo} samples to run{there}, {jobs} in parallel");
                });
            }
            Step::Sample(sample) => self.sample(sample),
        }
    }

    fn sample(&mut self, sample: &Sample) {
        self.bar.inc(1);
        let (at, of) = (self.bar.position(), self.bar.length().unwrap_or(0));
        // Samples end in bursts, so an estimate from the last few would be misleading.
        let each_s = self.began.elapsed().as_secs_f64() / at.max(1) as f64;
        let left_s = each_s * of.saturating_sub(at) as f64;
        self.bar.set_message(format!("about {left_s:.0} s left"));
        if !sample.is_ok() {
            let cell: Vec<String> =
                sample.cell.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let (cell, reason) = (cell.join(" "), &sample.reason);
            let line = format!("{} #{}: {reason}", cell, sample.repetition);
            self.bar.suspend(|| {
                eprintln!("{:?}: {line}", sample.outcome);
                if let Some(folder) = &sample.kept {
                    eprintln!("  its files are in {}", folder.display());
                }
            });
        }
        if !self.terminal && self.told.elapsed() >= TELL_EVERY {
            self.told = Instant::now();
            eprintln!("{}: {at} of {of} samples, about {left_s:.0} s left", self.bar.prefix());
        }
    }
}
