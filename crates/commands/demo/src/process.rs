//! Processes that a demonstration starts: waiting until one is ready, and ending it.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};

/// The line with which `fulmar serve` says where it listens.
pub(super) struct Ready(pub(super) String);

impl Ready {
    pub(super) fn address(&self, listener: &str) -> Option<&str> {
        let mut words = self.0.split(' ').filter_map(|word| word.split_once('='));
        words.find(|(name, _)| *name == listener).map(|(_, address)| address)
    }
}

/// Waits until a process that was started says that it is ready.
fn ready(process: &mut Child, what: &str) -> anyhow::Result<Ready> {
    let mut line = String::new();
    if let Some(out) = process.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    if line.starts_with("ready ") {
        return Ok(Ready(line.trim_end().to_owned()));
    }
    let status = process.wait()?;
    bail!("{what} did not start: {status}");
}

/// Starts `fulmar serve`, and waits until it is ready.
pub(super) fn serve(config: &Path, data: &Path, what: &str) -> anyhow::Result<(Running, Ready)> {
    let mut process = Command::new(std::env::current_exe()?)
        .args([OsStr::new("serve"), OsStr::new("--config"), config.as_os_str()])
        .args([OsStr::new("--data"), data.as_os_str()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {what}"))?;
    let ready = ready(&mut process, what)?;
    Ok((Running(process), ready))
}

/// A process that is asked to end, and waited for, when this is dropped.
pub(super) struct Running(pub(super) Child);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.0.id().cast_signed()) {
            // It may have ended by itself.
            kill_process(pid, Signal::TERM).ok();
        }
        self.0.wait().ok();
    }
}
