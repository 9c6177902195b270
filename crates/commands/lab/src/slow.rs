//! `fulmar lab slow`: a program on a slower processor. The program is stopped whenever it has used more than its
//! share of the elapsed time, and continues when its share has grown: a quota like a control group's, without the
//! privileges that those require.
//!
//! The kernel accounts a process's time when the process stops running or at a clock tick (some ms), so the share
//! holds over tens of milliseconds, not within each.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::probe::print_event;

/// Interval at which the program's time is checked.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Processor time that a program may use at once after waiting.
const BURST_S: f64 = 0.000_2;

/// Run a program on a share of the processor, and report what it used
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
    let percent: f64 = text.parse().map_err(|_| "use a percentage".to_owned())?;
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
    let mut quota = Quota { share, unused_s: 0.0 };
    let mut used_s = 0.0;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        used_s = cpu_s(pid).unwrap_or(used_s);
        if let Some(pause) = quota.pause(begun.elapsed().as_secs_f64(), used_s) {
            kill_process(pid, Signal::STOP)?;
            std::thread::sleep(pause);
            kill_process(pid, Signal::CONT)?;
        }
        std::thread::sleep(LOOK_EVERY);
    };
    // The first figure lacks the time since the last check; the kernel's includes it.
    print_event(
        "slow",
        json!({ "cpu_s": children_s().max(used_s), "wall_s": begun.elapsed().as_secs_f64() }),
    )?;
    if !status.success() {
        bail!("{}: {status}", program.to_string_lossy());
    }
    Ok(())
}

/// The processor quota of a program.
struct Quota {
    /// From 0 to 1; at 1 it is never stopped.
    share: f64,
    /// Unused time in s, which is not saved up.
    unused_s: f64,
}

impl Quota {
    /// Time to stop the program for after it has used `used_s` in `elapsed_s`.
    fn pause(&mut self, elapsed_s: f64, used_s: f64) -> Option<Duration> {
        let allowed_s = elapsed_s * self.share;
        self.unused_s = self.unused_s.max(allowed_s - used_s - BURST_S);
        let over_s = used_s + self.unused_s - allowed_s;
        let stops = self.share < 1.0 && over_s > 0.0;
        stops.then(|| Duration::from_secs_f64(over_s / self.share))
    }
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
    children_ticks(&stat) / rustix::param::clock_ticks_per_second() as f64
}

/// The same in ticks, from a process's `stat` file (proc_pid_stat(5)).
fn children_ticks(stat: &str) -> f64 {
    // After the name in parentheses: cutime and cstime are the 14th and 15th field.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    ticks(13) + ticks(14)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The time used by a program that would use the whole processor, checked every millisecond.
    fn used_s(quota: &mut Quota, from_s: f64, to_s: f64) -> f64 {
        let (mut now_s, mut used_s) = (from_s, 0.0);
        while now_s < to_s {
            now_s += 0.001;
            used_s += 0.001;
            now_s += quota.pause(now_s, used_s).map_or(0.0, |pause| pause.as_secs_f64());
        }
        used_s
    }

    #[test]
    fn a_busy_program_gets_its_share() {
        for share in [0.01, 0.1, 0.5, 0.9] {
            let used_s = used_s(&mut Quota { share, unused_s: 0.0 }, 0.0, 10.0);
            assert!((used_s / (10.0 * share) - 1.0).abs() < 0.05, "{share}: {used_s}");
        }
        let used_s = used_s(&mut Quota { share: 1.0, unused_s: 0.0 }, 0.0, 1.0);
        assert!(used_s > 0.99, "never stopped: {used_s}");
    }

    #[test]
    fn waiting_saves_nothing_up() {
        let mut quota = Quota { share: 0.1, unused_s: 0.0 };
        assert_eq!(quota.pause(100.0, 0.0), None, "it waits");
        let used_s = used_s(&mut quota, 100.0, 101.0);
        assert!((0.09..0.11).contains(&used_s), "{used_s}");
    }

    #[test]
    fn shares_that_make_sense() {
        assert_eq!(share("2.5"), Ok(2.5));
        assert_eq!(share("100"), Ok(100.0));
        for wrong in ["0", "0.05", "101", "-1", "NaN", "half"] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_times_of_children_are_found_whatever_the_name() {
        let stat = "7 (a (b) 1 2) S 1 1 1 0 -1 0 0 0 0 0 11 12 130 14 20 0 1 0";
        assert!((children_ticks(stat) - 144.0).abs() < 1e-9);
        assert!(children_ticks("").abs() < 1e-9);
    }

    #[test]
    fn this_process_has_used_time() {
        let pid = rustix::process::getpid();
        let before = cpu_s(pid).unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while cpu_s(pid).unwrap() <= before {
            assert!(Instant::now() < end, "a minute of work was not counted");
        }
        let nobody = Pid::from_raw(i32::MAX).unwrap();
        assert!(cpu_s(nobody).is_none_or(|used_s| used_s.abs() < 1e-9));
    }
}
