//! Three nodes, which print a line when they serve or stand by.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::Process;
use super::nats::Servers;

const NAMES: [&str; 3] = ["n1", "n2", "n3"];
/// Until the NATS servers have chosen a leader, a cluster cannot be created.
const CREATE: Duration = Duration::from_secs(60);
const CREATE_AGAIN: Duration = Duration::from_millis(500);

/// Activity of a node, as it reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Starts,
    StandsBy,
    Serves,
    Dead,
}

struct Node {
    name: &'static str,
    config: PathBuf,
    log: PathBuf,
    port: u16,
    role: Role,
    /// Number of starts: a line of an earlier process does not count.
    start: u32,
    process: Option<Process>,
}

pub(super) struct Nodes {
    nodes: Vec<Node>,
    said: Receiver<(usize, u32, Role)>,
    sayer: Sender<(usize, u32, Role)>,
}

impl Nodes {
    /// The ports that they need.
    pub(super) const PORTS: usize = 2 * NAMES.len();

    /// Creates a cluster, and starts its nodes, with `PORTS` ports.
    pub(super) fn start(servers: &Servers, data: &Path, ports: &[u16]) -> anyhow::Result<Nodes> {
        let (sayer, said) = channel();
        let mut nodes = Nodes { nodes: Vec::new(), said, sayer };
        for (index, name) in NAMES.into_iter().enumerate() {
            let (port, http) = (ports[index], ports[NAMES.len() + index]);
            let config = data.join(format!("{name}.toml"));
            let text = format!(
                "[server]\ndata_dir = \"{}\"\n[listeners]\nmqtt = [\"127.0.0.1:{port}\"]\nmqtts = []\nws = []\nquic = []\n\
                 https = []\ncoap = []\ncoaps = []\nhttp = [\"127.0.0.1:{http}\"]\n[cluster]\nnode = \"{name}\"\n\
                 address = \"127.0.0.1:{port}\"\n{}",
                data.join(name).display(),
                servers.settings()
            );
            fulmar_certs::files::write(&config, text.as_bytes(), false)?;
            let log = data.join(format!("{name}.log"));
            let (role, start, process) = (Role::Dead, 0, None);
            nodes.nodes.push(Node { name, config, log, port, role, start, process });
        }
        create(&nodes.nodes[0].config)?;
        for name in NAMES {
            nodes.restart(name)?;
        }
        Ok(nodes)
    }

    /// Starts a node that does not run.
    pub(super) fn restart(&mut self, name: &str) -> anyhow::Result<()> {
        let index = self.index(name)?;
        let node = &mut self.nodes[index];
        let log = File::options().create(true).append(true).open(&node.log)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", "--config"]).arg(&node.config);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut process = Process::start(&mut command).context("cannot start a node")?;
        let out = process.0.stdout.take().context("a node's output")?;
        node.start += 1;
        (node.role, node.process) = (Role::Starts, Some(process));
        let (sayer, start) = (self.sayer.clone(), node.start);
        // Ends with the node's output.
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let role = match line.split(' ').next() {
                    Some("ready") => Role::Serves,
                    Some("standby") => Role::StandsBy,
                    _ => continue,
                };
                if sayer.send((index, start, role)).is_err() {
                    return;
                }
            }
        });
        Ok(())
    }

    /// Returns what nodes have said since the last call. Fails if one has ended by itself.
    pub(super) fn news(&mut self) -> anyhow::Result<Vec<(&'static str, Role)>> {
        let mut news = Vec::new();
        while let Ok((index, start, role)) = self.said.try_recv() {
            let node = &mut self.nodes[index];
            if node.start == start && node.role != Role::Dead {
                node.role = role;
                news.push((node.name, role));
            }
        }
        for node in &mut self.nodes {
            if let Some(process) = &mut node.process
                && let Some(status) = process.0.try_wait()?
            {
                let text = std::fs::read_to_string(&node.log).unwrap_or_default();
                let last = text.lines().last().unwrap_or_default();
                bail!("{} ended: {status}: {last}", node.name);
            }
        }
        Ok(news)
    }

    /// The node that serves.
    pub(super) fn serving(&self) -> Option<&'static str> {
        self.nodes.iter().find(|node| node.role == Role::Serves).map(|node| node.name)
    }

    /// Kills a node, as a power cut would; returns its process identifier.
    pub(super) fn kill(&mut self, name: &str) -> anyhow::Result<u32> {
        let index = self.index(name)?;
        let node = &mut self.nodes[index];
        node.role = Role::Dead;
        let process = node.process.take().context("it does not run")?;
        let id = process.0.id();
        drop(process);
        Ok(id)
    }

    /// A node's address.
    pub(super) fn address(&self, name: &str) -> String {
        let node = self.nodes.iter().find(|node| node.name == name);
        node.map_or_else(String::new, |node| format!("127.0.0.1:{}", node.port))
    }

    /// All addresses, as clients have them.
    pub(super) fn url(&self) -> String {
        let all: Vec<_> = self.nodes.iter().map(|node| self.address(node.name)).collect();
        format!("mqtt://{}", all.join(","))
    }

    fn index(&self, name: &str) -> anyhow::Result<usize> {
        self.nodes.iter().position(|node| node.name == name).context("no such node")
    }
}

/// `fulmar cluster init`.
fn create(config: &Path) -> anyhow::Result<()> {
    let end = Instant::now() + CREATE;
    loop {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["cluster", "init", "--config"]).arg(config).stdin(Stdio::null());
        let output = command.output().context("fulmar cluster init")?;
        if output.status.success() {
            return Ok(());
        }
        if Instant::now() > end || output.status.code() == Some(2) {
            let text = String::from_utf8_lossy(&output.stderr);
            bail!("fulmar cluster init: {}", text.trim_end());
        }
        std::thread::sleep(CREATE_AGAIN);
    }
}
