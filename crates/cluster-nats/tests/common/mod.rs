//! Real servers: one or three of nats-server on loopback, in folders of their own, killed by process id.
//!
//! FULMAR_NATS_SERVER names the program (`make test-nats`); without it there are none.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fulmar_cluster_nats::{Connection, Control, Creation, LogStream, Settings};

/// Time for anything that a server has to do: an election takes up to 9 s, on a busy machine more.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Servers of one NATS cluster.
pub(crate) struct Servers {
    folder: tempfile::TempDir,
    program: PathBuf,
    ports: Vec<u16>,
    routes: Vec<u16>,
    processes: Vec<Option<Child>>,
    /// More lines of each configuration.
    extra: String,
}

impl Servers {
    /// Starts so many, or returns `None` where there is no program.
    pub(crate) fn start(count: usize) -> Option<Servers> {
        Servers::with(count, "")
    }

    pub(crate) fn with(count: usize, extra: &str) -> Option<Servers> {
        let Some(program) = std::env::var_os("FULMAR_NATS_SERVER") else {
            println!("skipped: FULMAR_NATS_SERVER names no nats-server (make test-nats)");
            return None;
        };
        let ports = free_ports(2 * count);
        let (ports, routes) = (ports[..count].to_vec(), ports[count..].to_vec());
        let mut servers = Servers {
            folder: tempfile::tempdir().unwrap(),
            program: program.into(),
            ports,
            routes,
            processes: (0..count).map(|_| None).collect(),
            extra: extra.to_owned(),
        };
        for index in 0..count {
            servers.run(index);
        }
        for index in 0..count {
            servers.wait_listening(index);
        }
        Some(servers)
    }

    pub(crate) fn addresses(&self) -> Vec<String> {
        self.ports.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect()
    }

    /// Starts a server, again perhaps, with the data it has.
    pub(crate) fn run(&mut self, index: usize) {
        let config = self.folder.path().join(format!("{index}.conf"));
        fs::write(&config, self.config(index)).unwrap();
        let log = fs::File::create(self.folder.path().join(format!("{index}.log"))).unwrap();
        let child = Command::new(&self.program)
            .arg("-c")
            .arg(config)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.processes[index] = Some(child);
    }

    fn config(&self, index: usize) -> String {
        let store = self.folder.path().join(format!("data-{index}"));
        let routes: Vec<_> =
            self.routes.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        let cluster = if self.ports.len() == 1 {
            String::new()
        } else {
            format!(
                "cluster {{ name: test, listen: \"127.0.0.1:{}\", routes: [{}] }}",
                self.routes[index],
                routes.join(", ")
            )
        };
        format!(
            "server_name: n{index}\nlisten: \"127.0.0.1:{}\"\n{cluster}\n\
             jetstream {{ store_dir: \"{}\", sync_interval: always, max_file_store: 200MB }}\n{}\n",
            self.ports[index],
            store.display(),
            self.extra
        )
    }

    fn wait_listening(&mut self, index: usize) {
        let log = self.folder.path().join(format!("{index}.log"));
        poll("a server that listens", || {
            let ended = self.processes[index].as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "{}", fs::read_to_string(&log).unwrap());
            TcpStream::connect((Ipv4Addr::LOCALHOST, self.ports[index])).ok()
        });
    }

    /// As kill -9.
    pub(crate) fn kill(&mut self, index: usize) {
        if let Some(mut child) = self.processes[index].take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// It answers nothing until it goes on, and its connections stay.
    pub(crate) fn pause(&self, index: usize) {
        self.signal(index, "-STOP");
    }

    pub(crate) fn go_on(&self, index: usize) {
        self.signal(index, "-CONT");
    }

    fn signal(&self, index: usize, signal: &str) {
        let process = self.processes[index].as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([signal, &process]).status().unwrap().success());
    }

    /// A connection for a node, when JetStream answers.
    pub(crate) fn connect(&self) -> Connection {
        let settings = Settings { servers: self.addresses(), ..Settings::default() };
        poll("JetStream", || Connection::open(&settings).ok())
    }

    /// A log on as many servers as there are.
    pub(crate) fn create(&self, connection: &Connection, cluster: &str, first: u64) -> LogStream {
        let replicas = self.ports.len();
        let creation = Creation { cluster: cluster.to_owned(), first, replicas };
        // After the servers have found each other.
        let log = poll("a log", || LogStream::create(connection, &creation).ok());
        poll("replicas in step", || (log.state().ok()?.current == replicas).then_some(()));
        log
    }

    pub(crate) fn control(&self, connection: &Connection) -> Control {
        poll("control records", || Control::open(connection, self.ports.len()).ok())
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for index in 0..self.processes.len() {
            self.kill(index);
        }
    }
}

/// Waits until there is a result.
pub(crate) fn poll<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        assert!(Instant::now() < deadline, "no {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<_> =
        (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}
