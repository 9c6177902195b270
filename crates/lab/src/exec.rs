//! Runs programs over an emulated link: one program behind it ([`run_behind_link`]), or two joined by it
//! ([`run_pair`]), each in a network namespace as with `ip netns exec`.
//!
//! The first or only program runs on host 0, at the near side of the link: `up` is the direction in which it sends.
//! With [`run_behind_link`], host 1 is the gateway (see `relay`): the program reaches services on this machine's
//! loopback at the gateway's address, `198.18.1.2`, and the rest of the world at its usual addresses. With
//! [`run_pair`], the second program runs on host 1.
//!
//! Programs learn addresses from environment variables: `LAB_SELF` is their own address, `LAB_PEER` that of the
//! other host.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::Error;
use crate::clock::Clock;
use crate::emulator::Emulator;
use crate::link::{Ends, HostId, LinkConfig, Topology};
use crate::net::{self, Host, Privilege};
use crate::observe::{Capture, Flows, Observer, add_secrets};
use crate::relay::Relay;
use crate::router::Outcome;
use crate::summary::Summary;

/// Time for a program to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(3);
/// Longest time that the link keeps running after the program's end to deliver packets in flight.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of checks whether the link is idle; it must be idle twice in a row.
const IDLE_POLL: Duration = Duration::from_millis(10);
/// Interval of checks whether a program has ended.
const EXIT_POLL: Duration = Duration::from_millis(5);

const NEAR: HostId = HostId(0);
const FAR: HostId = HostId(1);

/// A link and what is recorded on it.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The link.
    pub link: LinkConfig,
    /// Seed of all its decisions.
    pub seed: u64,
    /// File for a pcapng capture of the packets.
    pub capture: Option<PathBuf>,
    /// File for the decision log: one line per packet that was impaired.
    pub decisions: Option<PathBuf>,
    /// Set from outside, for instance by a signal handler, to end the programs; the summary is still returned.
    pub interrupted: Arc<AtomicBool>,
}

/// Runs a program behind a link to this machine and the world.
///
/// # Errors
/// The link's settings are impossible, this machine lacks something, or the program cannot be started.
pub fn run_behind_link(
    options: &Options,
    command: Command,
) -> Result<(ExitStatus, Summary), Error> {
    run(options, command, None)
}

/// Runs two programs joined by a link. When the second ends, the first gets SIGTERM, and is killed if it does not
/// end; the status is that of the second.
///
/// # Errors
/// As for [`run_behind_link`].
pub fn run_pair(
    options: &Options,
    first: Command,
    second: Command,
) -> Result<(ExitStatus, Summary), Error> {
    run(options, first, Some(second))
}

fn run(
    options: &Options,
    mut near: Command,
    mut far: Option<Command>,
) -> Result<(ExitStatus, Summary), Error> {
    let privilege = net::acquire()?;
    net::kill_orphans().map_err(Error::when("looking for what an earlier run left behind"))?;
    let mut topology = Topology::new(2, options.seed)?;
    topology.add_link(Ends::Access(NEAR), options.link.clone())?;
    if far.is_none() {
        topology.set_gateway(FAR);
    }
    let hosts = Emulator::make_hosts(&topology)?;
    let [near_host, far_host] = [Arc::clone(&hosts[0]), Arc::clone(&hosts[1])];
    let clock = Clock::start();
    let mut observers: Vec<Box<dyn Observer>> = Vec::new();
    if far.is_none() {
        far_host.answer_for_all()?;
        observers.push(Box::new(Relay::new(Arc::clone(&far_host))));
    }
    let flows = Arc::new(Mutex::new(Flows::at(NEAR)));
    observers.push(Box::new(Arc::clone(&flows)));
    let capture = options.capture.as_deref().map(|path| capture(path, clock)).transpose()?;
    if let Some(capture) = &capture {
        observers.push(Box::new(Arc::clone(capture)));
    }
    let secrets = options.capture.as_deref().map(|path| path.with_extension("keys"));
    let secrets =
        secrets.map(std::path::absolute).transpose().map_err(Error::when("this folder"))?;
    if let Some(secrets) = &secrets {
        for command in std::iter::once(&mut near).chain(&mut far) {
            // The link is this machine's own, and nothing else's traffic is in the capture.
            command.env("SSLKEYLOGFILE", secrets).env("FULMAR_KEYLOG_REMOTE", "1");
        }
    }
    let emulator = Emulator::start_with(clock, topology, hosts, observers)?;
    let status = match far {
        None => {
            let child = start(&near_host, &mut near, &far_host)?;
            let status = wait(child, &options.interrupted)?;
            drain(&emulator, &options.interrupted);
            status
        }
        Some(mut far) => {
            let first = start(&near_host, &mut near, &far_host)?;
            let second = start(&far_host, &mut far, &near_host);
            let status = second.and_then(|second| wait(second, &options.interrupted));
            drain(&emulator, &options.interrupted);
            end(first)?;
            status?
        }
    };
    for host in [&near_host, &far_host] {
        host.end_all().map_err(Error::when("ending what the programs left behind"))?;
    }
    let overflowed = emulator.overflowed();
    let took = clock.now();
    let outcome = emulator.finish()?;
    if let (Some(capture), Some(path)) = (capture, &options.capture) {
        let written = capture.lock().unwrap_or_else(PoisonError::into_inner).finish();
        let writing = || Error::when(format!("writing {}", path.display()));
        written.map_err(writing())?;
        if let Some((secrets, key_log)) =
            secrets.and_then(|path| fs::read(&path).ok().map(|log| (path, log)))
        {
            add_secrets(path, &key_log).map_err(writing())?;
            fs::remove_file(secrets).map_err(writing())?;
        }
    }
    if let Some(path) = &options.decisions {
        let doing = format!("writing {}", path.display());
        write_decisions(path, &outcome).map_err(Error::when(doing))?;
    }
    let unprivileged = privilege == Privilege::UserNamespace;
    let flows = flows.lock().unwrap_or_else(PoisonError::into_inner);
    Ok((status, Summary::new(options.seed, took, unprivileged, overflowed, &outcome, &flows)))
}

/// Writes the link's decision log, in the order of flows, so that two runs can be compared.
fn write_decisions(path: &Path, outcome: &Outcome) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    for (_, link) in outcome.topology.links() {
        for entry in link.log().entries() {
            writeln!(file, "{entry}")?;
        }
    }
    file.flush()
}

/// Begins a capture at the near host's interface, where every packet is seen once.
fn capture(path: &Path, clock: Clock) -> Result<Arc<Mutex<Capture<BufWriter<File>>>>, Error> {
    let doing = format!("writing {}", path.display());
    let file = File::create(path).map_err(Error::when(doing))?;
    let hosts = [(NEAR, "near".to_owned())];
    Ok(Arc::new(Mutex::new(Capture::new(BufWriter::new(file), clock, &hosts))))
}

fn start(host: &Host, command: &mut Command, peer: &Host) -> Result<Child, Error> {
    let first = |host: &Host| host.addresses().first().map(IpAddr::to_string).unwrap_or_default();
    command.env("LAB_SELF", first(host)).env("LAB_PEER", first(peer));
    let doing = format!("starting {}", command.get_program().to_string_lossy());
    host.spawn(command).map_err(Error::when(doing))
}

/// Waits for a program to end; an interruption ends it.
fn wait(mut child: Child, interrupted: &AtomicBool) -> Result<ExitStatus, Error> {
    loop {
        let ended = child.try_wait().map_err(Error::when("waiting for a program"))?;
        if let Some(status) = ended {
            return Ok(status);
        }
        if interrupted.load(Ordering::Relaxed) {
            return end(child);
        }
        std::thread::sleep(EXIT_POLL);
    }
}

/// Waits until the last packets that a program sent have arrived.
fn drain(emulator: &Emulator, interrupted: &AtomicBool) {
    let until = Instant::now() + DRAIN_TIMEOUT;
    let mut quiet = 0;
    while quiet < 2 && Instant::now() < until && !interrupted.load(Ordering::Relaxed) {
        std::thread::sleep(IDLE_POLL);
        quiet = if emulator.is_idle() { quiet + 1 } else { 0 };
    }
}

/// Sends SIGTERM to a program, and kills it if it does not end in time.
fn end(mut child: Child) -> Result<ExitStatus, Error> {
    let waiting = "waiting for a program";
    if let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) {
        // It may have ended by itself; its number is ours until it is waited for.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    let until = Instant::now() + GRACE;
    while Instant::now() < until {
        if let Some(status) = child.try_wait().map_err(Error::when(waiting))? {
            return Ok(status);
        }
        std::thread::sleep(EXIT_POLL);
    }
    child.kill().map_err(Error::when("killing a program"))?;
    child.wait().map_err(Error::when(waiting))
}
