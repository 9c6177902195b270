//! The programs of a sample: starts them on their hosts, reads their output line by line, watches and ends them.
//!
//! Every program and its descendants have the sample's mark in their environment, by which [`end_marked`] ends even
//! processes that have left the process group. Signals go through pidfds, so that a reused process ID is never hit. A
//! second variable names the lab: [`kill_orphans`](crate::net::kill_orphans) finds by it what a killed lab left
//! behind.

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::thread;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open,
    pidfd_send_signal, waitid,
};

use crate::network::Network;

/// Longest line of output that is kept, in bytes; the rest of it is dropped.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// Environment variable of all programs of a sample.
const MARK: &str = "FULMAR_LAB_SAMPLE";

/// Event of a program.
#[derive(Debug)]
pub(super) enum Event {
    /// It printed a line.
    Line { program: usize, at_ns: u64, error: bool, text: String },
    /// One of its two outputs is at its end.
    Closed { program: usize },
    /// It ended, but is not yet reaped.
    Ended { program: usize },
}

/// A program that was started.
#[derive(Debug)]
pub(super) struct Program {
    child: Child,
    ended: Option<ExitStatus>,
}

/// Nanoseconds of the monotonic clock, which all processes of this machine share.
pub(super) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// A mark that is unique among the samples of running labs.
pub(super) fn new_mark() -> String {
    static SAMPLES: AtomicU64 = AtomicU64::new(0);
    format!("{}.{}", std::process::id(), SAMPLES.fetch_add(1, Ordering::Relaxed))
}

impl Program {
    /// Starts a program in a process group of its own; `number` names it in events.
    pub(super) fn start(
        network: &mut dyn Network,
        host: &str,
        mut command: Command,
        mark: &str,
        number: usize,
        events: &SyncSender<Event>,
    ) -> io::Result<Program> {
        use std::os::unix::process::CommandExt;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (owner, lab) = crate::net::owner_variable()?;
        command.process_group(0).env(MARK, mark).env(owner, lab);
        let mut child = network.spawn(host, &mut command)?;
        if let Some(output) = child.stdout.take() {
            listen(output, number, false, events.clone());
        }
        if let Some(output) = child.stderr.take() {
            listen(output, number, true, events.clone());
        }
        watch(&child, number, events.clone());
        Ok(Program { child, ended: None })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Reaps a program that has ended, after killing the rest of its process group.
    pub(super) fn reap(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.ended {
            return Ok(status);
        }
        self.signal(Signal::KILL);
        let status = self.child.wait()?;
        self.ended = Some(status);
        Ok(status)
    }

    /// Signals the group of a program that is not reaped.
    pub(super) fn signal(&self, signal: Signal) {
        let group = Pid::from_raw(self.child.id() as i32).filter(|_| self.ended.is_none());
        if let Some(group) = group {
            // It may have ended by itself.
            let _ = kill_process_group(group, signal);
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Err(error) = self.reap() {
            tracing::warn!(process = self.child.id(), %error, "cannot end a program");
        }
    }
}

fn listen(
    output: impl Read + Send + 'static,
    program: usize,
    error: bool,
    events: SyncSender<Event>,
) {
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while let Ok(read) = (&mut output).take(MAX_LINE_BYTES).read_until(b'\n', &mut line) {
            if read == 0 {
                break;
            }
            let at_ns = now_ns();
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            line.clear();
            if events.send(Event::Line { program, at_ns, error, text }).is_err() {
                // The sample is over; unread output would block the program.
                let _ = io::copy(&mut output, &mut io::sink());
                return;
            }
        }
        // Nobody receives events when the sample is over.
        let _ = events.send(Event::Closed { program });
    });
}

fn watch(child: &Child, program: usize, events: SyncSender<Event>) {
    let id = Pid::from_child(child);
    thread::spawn(move || {
        // Not reaped here: until the owner does, the process ID stays in use.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(id), options) {}
        // As in `listen`.
        let _ = events.send(Event::Ended { program });
    });
}

/// Ends every process with this mark.
pub(super) fn end_marked(mark: &str) {
    let Ok(all) = fs::read_dir("/proc") else { return };
    let numbers = all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for number in numbers {
        end_if_marked(number, mark);
    }
}

fn end_if_marked(number: i32, mark: &str) {
    let is_marked = || mark_of(number).is_some_and(|found| found == mark);
    let Some(pid) = Pid::from_raw(number).filter(|_| is_marked()) else { return };
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    // Checks again, now that the process ID cannot be reused; the process may still end by itself.
    if is_marked() {
        let _ = pidfd_send_signal(handle, Signal::KILL);
    }
}

fn mark_of(number: i32) -> Option<String> {
    let environment = fs::read(format!("/proc/{number}/environ")).ok()?;
    environment.split(|byte| *byte == 0).find_map(|variable| {
        let value = variable.strip_prefix(MARK.as_bytes())?.strip_prefix(b"=")?;
        Some(String::from_utf8_lossy(value).into_owned())
    })
}

/// The resources of a process: CPU seconds so far and resident KiB; `None` if it has ended.
pub(super) fn usage(number: u32) -> Option<(f64, f64)> {
    let stat = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let ticks: f64 = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    let pages: f64 = fields.get(21)?.parse().ok()?;
    let page_kib = rustix::param::page_size() as f64 / 1024.0;
    Some((ticks / rustix::param::clock_ticks_per_second() as f64, pages * page_kib))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::network::Loopback;
    use std::sync::mpsc::sync_channel;
    use std::time::{Duration, Instant};

    fn shell(script: &str, mark: &str, events: &SyncSender<Event>) -> Program {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Program::start(&mut Loopback, "here", command, mark, 3, events).unwrap()
    }

    #[test]
    fn lines_and_ends_are_told() {
        let (sender, events) = sync_channel(16);
        let mut program = shell("echo one; echo two >&2; exit 5", "test.lines", &sender);
        let (mut lines, mut ended) = (Vec::new(), false);
        while lines.len() < 2 || !ended {
            match events.recv_timeout(Duration::from_secs(20)).unwrap() {
                Event::Line { program: 3, error, text, .. } => lines.push((error, text)),
                Event::Ended { program: 3 } => ended = true,
                Event::Closed { program: 3 } => {}
                other => panic!("{other:?}"),
            }
        }
        lines.sort();
        assert_eq!(lines, [(false, "one".to_owned()), (true, "two".to_owned())]);
        assert_eq!(program.reap().unwrap().code(), Some(5));
    }

    #[test]
    fn what_left_its_group_is_ended_by_its_mark() {
        let (sender, events) = sync_channel(16);
        let mark = new_mark();
        let mut program = shell("setsid sleep 600 & echo $!", &mark, &sender);
        let number = loop {
            let event = events.recv_timeout(Duration::from_secs(20)).unwrap();
            if let Event::Line { text, .. } = event {
                break text.parse::<u32>().unwrap();
            }
        };
        program.reap().unwrap();
        // setsid may fork: its child has the mark all the same. Standard output of the escaped process is this pipe,
        // so the reader ends only when that process has ended.
        end_marked(&mark);
        drop(sender);
        while events.recv_timeout(Duration::from_secs(20)).is_ok() {}
        // A process closes its files a moment before it has ended.
        let deadline = Instant::now() + Duration::from_secs(20);
        while usage(number).is_some() && !zombie(number) {
            assert!(Instant::now() < deadline, "process {number} still runs");
            std::thread::yield_now();
        }
    }

    fn zombie(number: u32) -> bool {
        let stat = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        stat.contains(") Z ")
    }

    #[test]
    fn this_process_uses_memory() {
        let (_, rss) = usage(std::process::id()).unwrap();
        assert!(rss > 100.0, "{rss} KiB");
    }
}
