//! `fulmar demo cluster`: three NATS servers and three nodes of a cluster, a publisher and a subscriber, and the death of
//! the node that serves. In the end, what was acknowledged is compared with what was received.
//!
//! Servers and nodes are ordinary programs in processes of their own, in a folder that goes afterwards.

mod nats;
mod nodes;
mod traffic;

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use signal_hook::iterator::Signals;

use super::data_folder::data_folder;
use nats::Servers;
use nodes::{Nodes, Role};
use traffic::{Totals, Traffic};

const EXAMPLES: &str = "\
Examples:
  fulmar demo cluster
      the node that serves is killed after ten seconds, and with each Enter
  fulmar demo cluster --seconds 30 --rate 1000
      a thousand messages per second, for half a minute
  fulmar demo cluster --nats-server ~/bin/nats-server

It needs the program nats-server, 2.15 or later, and runs until Ctrl-C.";

/// Time between two looks at processes, signals and counters.
const LOOK: Duration = Duration::from_millis(20);
/// Time between two lines with counters.
const REPORT: Duration = Duration::from_secs(1);
/// Until a killed node is started again, once another one serves.
const AWAY: Duration = Duration::from_secs(3);
/// For the first node to serve.
const START: Duration = Duration::from_secs(90);
/// In the end, for what is in flight: another node may have to take over for it.
const REST: Duration = Duration::from_secs(60);

/// Settings of the demonstration.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The program nats-server [default: the one in PATH]
    #[arg(long, value_name = "FILE")]
    nats_server: Option<PathBuf>,
    /// Seconds after which the node that serves is killed; 0: only with Enter
    #[arg(long, value_name = "SECONDS", default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(0..=3600))]
    kill_after: u32,
    /// Seconds after which the demonstration ends; 0: with Ctrl-C
    #[arg(long, value_name = "SECONDS", default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(0..=86_400))]
    seconds: u32,
    /// Messages per second
    #[arg(long, value_name = "NUMBER", default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// Folder for all data, kept afterwards [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

/// A process that ends with this.
pub(super) struct Process(pub(super) Child);

impl Process {
    /// Starts it in a process group of its own, so that Ctrl-C on a terminal does not reach it: first, the messages in
    /// flight are counted.
    pub(super) fn start(command: &mut Command) -> std::io::Result<Process> {
        use std::os::unix::process::CommandExt as _;
        command.process_group(0).spawn().map(Process)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Ports that are free now, different ones: below those that systems give to outgoing connections (from 32768 on Linux),
/// as nodes bind theirs seconds later, and again after they were killed.
fn free_ports(count: usize) -> anyhow::Result<Vec<u16>> {
    const FIRST: u16 = 10_000;
    const PORTS: u16 = 10_000;
    // Another demonstration begins elsewhere.
    let begin = (std::process::id() % u32::from(PORTS)) as u16;
    let ports = (0..PORTS).map(|n| FIRST + (begin + n) % PORTS);
    let bind = |port| TcpListener::bind(("127.0.0.1", port)).ok();
    let listeners: Vec<_> = ports.filter_map(bind).take(count).collect();
    if listeners.len() < count {
        bail!("no {count} ports are free from {FIRST} to {}", FIRST + PORTS - 1);
    }
    listeners.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

/// Runs the demonstration.
pub(super) fn run(args: &Args, signals: Signals) -> anyhow::Result<()> {
    let program = nats::find(args.nats_server.as_deref())?;
    let (data, _folder) = &data_folder(args.data.as_deref())?;
    print_line("Starting three NATS servers and three nodes …")?;
    // At once: the servers have not bound theirs when the nodes need some.
    let ports = free_ports(Servers::PORTS + Nodes::PORTS)?;
    let (servers, nodes) = ports.split_at(Servers::PORTS);
    let servers = Servers::start(&program, data, servers)?;
    let nodes = Nodes::start(&servers, data, nodes)?;
    let mut show = Show { nodes, servers, signals, enter: lines_of_stdin(), killed: None, args };
    let Some(first) = show.first_node()? else { return Ok(()) };
    print_line(&format!("{first} serves, at {}. The others stand by.", show.nodes.address(first)))?;
    if args.kill_after > 0 {
        print_line(&format!(
            "In {} s, it is killed. Enter kills the node that serves.",
            args.kill_after
        ))?;
    }
    print_line("ready")?;
    let traffic = Traffic::start(&show.nodes.url(), args.rate)?;
    let watched = show.watch(&traffic);
    let totals = watched.and_then(|()| {
        print_line("Waiting for what is in flight …")?;
        traffic.finish(REST, &mut || if show.step()? { bail!("interrupted") } else { Ok(()) })
    });
    let totals = totals?;
    print_line(&summary(&totals))?;
    if totals.lost > 0 {
        bail!("{} acknowledged messages were not received", totals.lost);
    }
    Ok(())
}

fn summary(totals: &Totals) -> String {
    let Totals { sent, acknowledged, received, .. } = totals;
    let nothing = if totals.lost == 0 { " Nothing acknowledged was lost." } else { "" };
    format!("{sent} messages sent, {acknowledged} acknowledged, {received} received.{nothing}")
}

fn print_line(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// One message per line that somebody types.
fn lines_of_stdin() -> Receiver<()> {
    let (sender, receiver) = channel();
    if std::io::stdin().is_terminal() {
        // It ends with the process: nothing can interrupt it.
        std::thread::spawn(move || {
            let lines = std::io::stdin().lock().lines();
            for _ in lines.map_while(Result::ok) {
                if sender.send(()).is_err() {
                    return;
                }
            }
        });
    }
    receiver
}

/// A node that was killed.
struct Killed {
    node: &'static str,
    at: Instant,
    /// When another one served.
    served_at: Option<Instant>,
    /// Whether the time of the first acknowledgement was shown.
    acknowledged: bool,
}

/// State of the demonstration: its processes, and the node that was killed last.
struct Show<'a> {
    nodes: Nodes,
    servers: Servers,
    signals: Signals,
    enter: Receiver<()>,
    killed: Option<Killed>,
    args: &'a Args,
}

impl Show<'_> {
    /// Looks after the processes. Returns whether somebody has ended the demonstration.
    fn step(&mut self) -> anyhow::Result<bool> {
        self.servers.check()?;
        for (node, role) in self.nodes.news()? {
            if let Some(killed) = &mut self.killed
                && role == Role::Serves
                && killed.served_at.is_none()
            {
                killed.served_at = Some(Instant::now());
                let seconds = killed.at.elapsed().as_secs_f64();
                print_line(&format!("{node} serves, {seconds:.1} s after that."))?;
            }
        }
        std::thread::sleep(LOOK);
        Ok(self.signals.pending().next().is_some())
    }

    /// Waits for the first node to serve; `None` if somebody has ended the demonstration.
    fn first_node(&mut self) -> anyhow::Result<Option<&'static str>> {
        let end = Instant::now() + START;
        while Instant::now() < end {
            if self.step()? {
                return Ok(None);
            }
            if let Some(node) = self.nodes.serving() {
                return Ok(Some(node));
            }
        }
        bail!("no node serves after {} s; the logs are in the folder of --data", START.as_secs())
    }

    /// Until it is to end.
    fn watch(&mut self, traffic: &Traffic) -> anyhow::Result<()> {
        let begun = Instant::now();
        let mut report_at = begun + REPORT;
        let mut kill_at = (self.args.kill_after > 0)
            .then(|| begun + Duration::from_secs(self.args.kill_after.into()));
        loop {
            let elapsed = begun.elapsed();
            let over = self.args.seconds > 0 && elapsed.as_secs() >= self.args.seconds.into();
            if over && self.killed.is_none() || self.step()? {
                return Ok(());
            }
            if self.enter.try_recv().is_ok()
                || kill_at.take_if(|at| *at <= Instant::now()).is_some()
            {
                self.kill()?;
            }
            self.after_death(traffic)?;
            if Instant::now() >= report_at {
                report_at += REPORT;
                let node = self.nodes.serving().unwrap_or("no node");
                let Totals { sent, acknowledged, received, .. } = traffic.totals();
                print_line(&format!(
                    "{:>4} s  {node} serves  sent {sent}  acknowledged {acknowledged}  received {received}",
                    elapsed.as_secs()
                ))?;
            }
        }
    }

    /// Kills the node that serves.
    fn kill(&mut self) -> anyhow::Result<()> {
        let serving = self.nodes.serving().filter(|_| self.killed.is_none());
        let Some(node) = serving else {
            return print_line("Not now: another node is taking over.");
        };
        let process = self.nodes.kill(node).context("cannot kill the node")?;
        print_line(&format!("Killed {node} (process {process}), which served."))?;
        self.killed =
            Some(Killed { node, at: Instant::now(), served_at: None, acknowledged: false });
        Ok(())
    }

    /// Shows when publishers are answered again, and starts the killed node.
    fn after_death(&mut self, traffic: &Traffic) -> anyhow::Result<()> {
        let Some(killed) = &mut self.killed else { return Ok(()) };
        let Some(served_at) = killed.served_at else { return Ok(()) };
        if !killed.acknowledged
            && let Some(at) = traffic.acknowledged_after(served_at)
        {
            killed.acknowledged = true;
            let seconds = at.duration_since(killed.at).as_secs_f64();
            print_line(&format!(
                "The publisher is answered again, {seconds:.1} s after the death."
            ))?;
        }
        if killed.acknowledged && served_at.elapsed() >= AWAY {
            let node = killed.node;
            self.killed = None;
            self.nodes.restart(node)?;
            print_line(&format!("Started {node} again, to stand by."))?;
        }
        Ok(())
    }
}
