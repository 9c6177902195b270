//! `fulmar lab slow`: a program on a slower processor. The program is stopped whenever it has used more
//! than its share of the time that has passed, and goes on when the share has grown past it: a quota like
//! a control group's, without the rights that those take.
//!
//! The kernel counts a process's time when it stops running or at a tick of the clock (some ms), so the
//! share holds over tens of milliseconds, not within each.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::probe::tell;

/// How often the program's time is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Processor time a program that has waited may use at once.
const BURST_S: f64 = 0.000_2;

/// Run a program on a share of the processor, and tell what it used
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Share of one processor in percent; 100 does not slow it
    #[arg(long, value_name = "PERCENT", default_value_t = 100.0, value_parser = share)]
    share: f64,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true)]
    program: Vec<OsString>,
}

fn share(text: &str) -> Result<f64, String> {
    let percent: f64 = text.parse().map_err(|_| "use a number of percent".to_owned())?;
    if (0.1..=100.0).contains(&percent) { Ok(percent) } else { Err("use 0.1 to 100".to_owned()) }
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let (program, arguments) = args.program.split_first().context("no program")?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .spawn()
        .with_context(|| program.to_string_lossy().into_owned())?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("no process id")?;
    let share = args.share / 100.0;
    let begun = Instant::now();
    let (mut used_s, mut base_s) = (0.0, 0.0);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        used_s = cpu_s(pid).unwrap_or(used_s);
        let allowed_s = begun.elapsed().as_secs_f64() * share;
        // What was not used is not saved up.
        base_s = f64::max(base_s, allowed_s - used_s - BURST_S);
        let over_s = used_s + base_s - allowed_s;
        if share < 1.0 && over_s > 0.0 {
            kill_process(pid, Signal::STOP)?;
            std::thread::sleep(Duration::from_secs_f64(over_s / share));
            kill_process(pid, Signal::CONT)?;
        }
        std::thread::sleep(LOOK_EVERY);
    };
    // What it used since it was last looked at is not in the first figure, but in the kernel's.
    tell(
        "slow",
        json!({ "cpu_s": children_s().max(used_s), "wall_s": begun.elapsed().as_secs_f64() }),
    )?;
    if !status.success() {
        bail!("{}: {status}", program.to_string_lossy());
    }
    Ok(())
}

/// Processor time of all its threads, in s.
fn cpu_s(pid: Pid) -> Option<f64> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).ok()?;
    let ns = tasks.flatten().filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Some(ns.sum::<u64>() as f64 / 1e9)
}

/// Processor time of children that have ended, in s.
fn children_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name in parentheses: cutime and cstime are the 14th and 15th, in ticks.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(13) + ticks(14)) / rustix::param::clock_ticks_per_second() as f64
}
