//! The van: a receiver that publishes the telegrams that it receives by MQTT over QUIC, through an emulated bad link
//! if this machine allows one.
//!
//! The receiver is `fulmar pub`, behind `fulmar lab link` if there is a link. What it is given on its standard
//! input is the simulated drive, in real time: like a real receiver, it forwards frames whose checksums are
//! right and drops repetitions.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use fulmar_text::hex;
use fulmar_wmbus::MeterId;
use fulmar_wmbus::simulate::{Drive, Reception};
use serde_json::json;

use super::api::rfc3339;
use super::process::Running;
use super::town::{TWIN, Town};

/// Where this machine is for a program behind `fulmar lab link`.
pub(super) const GATEWAY: &str = "198.18.1.2";

/// The van's user, and the name of its receiver.
pub(super) const USER: &str = "van";

/// The shortest interval between two forwarded frames of a meter.
const MIN_INTERVAL_MS: u64 = 30_000;

/// Pause before a receiver that ended is restarted.
const PAUSE: Duration = Duration::from_secs(3);

/// A running van.
pub(super) struct Van {
    /// Description of the van's link, in a sentence.
    pub(super) about: String,
    /// Dropped to stop the thread.
    stop: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

/// Program, arguments and token of the van's receiver.
struct Receiver {
    program: PathBuf,
    arguments: Vec<String>,
    token: String,
}

impl Van {
    /// Starts. `link` is a profile and a loss.
    pub(super) fn start(
        town: &Town,
        quic: &str,
        data: &Path,
        token: &str,
        link: &str,
        loss: &str,
    ) -> anyhow::Result<Van> {
        let program = std::env::current_exe()?;
        let over = link_arguments(link, loss);
        let (arguments, about) = if link == "none" {
            (Vec::new(), "Its van's receiver is on this machine's own network.".to_owned())
        } else if can_link(&program, &over)? {
            let about =
                format!("Its van's receiver sends through an emulated link: {link}, {loss} lost.");
            (over, about)
        } else {
            let about = "Its van's receiver is on this machine's own network: emulating a bad \
                         link needs more rights than this user has (`fulmar lab link --help`).";
            (Vec::new(), about.to_owned())
        };
        let port = quic.rsplit_once(':').map_or("", |(_, port)| port);
        let host = if arguments.is_empty() { "127.0.0.1" } else { GATEWAY };
        let mut receiver = Receiver { program, arguments, token: token.to_owned() };
        receiver.publish_to(&format!("quic://{host}:{port}"), &data.join("ca").join("ca.pem"));
        let last_forwarded = town.meters.iter().filter(|meter| meter.radio);
        let last_forwarded =
            last_forwarded.map(|meter| (meter.installed.address.id, u64::MAX)).collect();
        let drive = town.drive();
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("fulmar-van".into())
            .spawn(move || Route { drive, last_forwarded, stopped }.run(&receiver))?;
        Ok(Van { about, stop, thread })
    }

    pub(super) fn stop(self) {
        drop(self.stop);
        if self.thread.join().is_err() {
            tracing::error!("the van's thread panicked");
        }
    }
}

fn link_arguments(link: &str, loss: &str) -> Vec<String> {
    ["lab", "link", "--profile", link, "--loss", loss, "--"].map(str::to_owned).to_vec()
}

/// Whether this machine can emulate the link; an error if the link itself is wrong.
fn can_link(program: &Path, over: &[String]) -> anyhow::Result<bool> {
    let tried = Command::new(program).args(over).arg("true").stdin(Stdio::null()).output()?;
    if tried.status.code() == Some(2) {
        let said = String::from_utf8_lossy(&tried.stderr);
        return Err(crate::exit::Usage(format!("--link or --loss: {}", said.trim())).into());
    }
    Ok(tried.status.success())
}

impl Receiver {
    fn publish_to(&mut self, url: &str, authority: &Path) {
        if !self.arguments.is_empty() {
            self.arguments.push(self.program.display().to_string());
        }
        let topic = format!("fulmar/{TWIN}/receiver/{USER}/frame");
        let authority = authority.display().to_string();
        let words = [
            "pub", url, "-i", USER, "-u", USER, "-t", &topic, "-q", "1", "-l", "--cafile",
            &authority,
        ];
        self.arguments.extend(words.map(str::to_owned));
    }

    fn start(&self) -> anyhow::Result<(Running, ChildStdin)> {
        let mut process = Command::new(&self.program)
            .args(&self.arguments)
            // Others see a process's arguments.
            .env("FULMAR_PASSWORD", &self.token)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start the van's receiver")?;
        let input = process.stdin.take().context("the van's receiver has no input")?;
        Ok((Running(process), input))
    }
}

/// The telegrams that the van receives on its route.
struct Route {
    drive: Drive,
    /// Meters with a radio, and when each was last forwarded.
    last_forwarded: HashMap<MeterId, u64>,
    stopped: mpsc::Receiver<()>,
}

impl Route {
    /// Drives until it is stopped; a receiver that ends is started again.
    fn run(mut self, receiver: &Receiver) {
        let started = Instant::now();
        loop {
            match receiver.start() {
                Ok((process, mut input)) => {
                    let on = self.feed(started, &mut input);
                    drop(input);
                    drop(process);
                    if !on {
                        return;
                    }
                    tracing::warn!("the van's receiver ended; starting it again");
                }
                Err(error) => tracing::warn!("{error:#}"),
            }
            if self.stopped.recv_timeout(PAUSE) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    /// Writes each telegram when it is due; returns false when the van is stopped, true when the receiver has ended.
    fn feed(&mut self, started: Instant, input: &mut ChildStdin) -> bool {
        while let Some(reception) = self.next() {
            let due = Duration::from_millis(reception.elapsed_ms);
            let wait = due.saturating_sub(started.elapsed());
            if self.stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                return false;
            }
            if writeln!(input, "{}", frame(&reception)).and_then(|()| input.flush()).is_err() {
                return true;
            }
        }
        false
    }

    /// The next telegram to be forwarded.
    fn next(&mut self) -> Option<Reception> {
        let last_forwarded = &mut self.last_forwarded;
        self.drive.find(|reception| {
            let Some(last) = last_forwarded.get_mut(&reception.meter.id) else { return false };
            let again = *last != u64::MAX && reception.elapsed_ms < *last + MIN_INTERVAL_MS;
            if reception.damaged || again {
                return false;
            }
            *last = reception.elapsed_ms;
            true
        })
    }
}

fn frame(reception: &Reception) -> serde_json::Value {
    let hex = hex::encode(&reception.frame);
    let place = reception.place;
    json!({
        "hex": hex,
        "mode": "T1",
        "at": rfc3339(SystemTime::now()),
        "rssi_dbm": (reception.rssi_dbm * 10.0).round() / 10.0,
        "place": { "lat": place.latitude, "lon": place.longitude },
    })
}
