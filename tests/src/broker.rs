//! A broker process of one test.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ExitStatus, Stdio};

use tempfile::TempDir;

use crate::binary::fulmar;
use crate::log::Log;
use crate::{PATIENCE, eventually, ports};

/// Every listener the program has; each gets a free port on loopback.
pub(crate) const LISTENERS: [&str; 10] =
    ["mqtt", "mqtts", "ws", "wss", "quic", "https", "webtransport", "http", "coap", "coaps"];

/// What the log of a broker says that cannot have its port.
const PORT_TAKEN: &str = "Address already in use";

/// How a broker is to be started.
#[derive(Debug, Default)]
pub struct Builder {
    config: String,
    env: BTreeMap<String, String>,
    log_level: Option<String>,
    arguments: Vec<String>,
    unread_log: bool,
}

impl Builder {
    /// A configuration file with this text. Listeners are better set by [`Builder::listen`].
    #[must_use]
    pub fn config(mut self, toml: &str) -> Builder {
        toml.clone_into(&mut self.config);
        self
    }

    /// An environment variable, such as `FULMAR_LIMITS__MAX_PACKET_BYTES`.
    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Builder {
        self.env.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Addresses of one listener, as `ADDRESS:PORT`; none switches it off.
    #[must_use]
    pub fn listen(self, name: &str, addresses: &[&str]) -> Builder {
        self.env(&variable(name), &format!("{addresses:?}"))
    }

    /// The log filter; `info` without it.
    #[must_use]
    pub fn log_level(mut self, filter: &str) -> Builder {
        self.log_level = Some(filter.to_owned());
        self
    }

    /// An argument of `fulmar serve`.
    #[must_use]
    pub fn arg(mut self, argument: &str) -> Builder {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Standard error becomes a pipe of one page that nobody reads until [`TestBroker::read_log`].
    #[must_use]
    pub fn unread_log(mut self) -> Builder {
        self.unread_log = true;
        self
    }

    /// Starts it and waits for its ready line.
    ///
    /// # Panics
    /// It does not become ready; shows its log.
    #[must_use]
    pub fn start(mut self) -> TestBroker {
        for name in LISTENERS {
            self.env.entry(variable(name)).or_insert_with(|| r#"["127.0.0.1:0"]"#.to_owned());
        }
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("fulmar.toml"), &self.config).unwrap();
        let process = Process::start(&self, folder.path()).unwrap_or_else(|log| panic!("{log}"));
        TestBroker { builder: self, folder, process }
    }
}

fn variable(listener: &str) -> String {
    format!("FULMAR_LISTENERS__{}", listener.to_uppercase())
}

/// A running broker; dropping it kills it and removes its data.
#[derive(Debug)]
pub struct TestBroker {
    builder: Builder,
    folder: TempDir,
    process: Process,
}

impl TestBroker {
    /// A broker with default settings on free loopback ports.
    ///
    /// # Panics
    /// It does not become ready; shows its log.
    #[must_use]
    pub fn start() -> TestBroker {
        TestBroker::builder().start()
    }

    /// A broker with settings of the test's own.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Where the listener `name` (`mqtt`, `mqtts`, `ws`, `wss`, `quic`, `https`,
    /// `webtransport`, `http`, `coap`, `coaps`) is bound.
    ///
    /// # Panics
    /// The ready line does not name it.
    #[must_use]
    pub fn address(&self, name: &str) -> SocketAddr {
        let found = self.process.bound.iter().find(|(bound, _)| bound == name);
        found.unwrap_or_else(|| panic!("no {name} in {:?}", self.process.bound)).1
    }

    /// Every `name=address` of the ready line.
    #[must_use]
    pub fn bound(&self) -> &[(String, SocketAddr)] {
        &self.process.bound
    }

    /// Data folder.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        data(self.folder.path())
    }

    /// The certificate of its development authority, for clients.
    #[must_use]
    pub fn ca_file(&self) -> PathBuf {
        self.data().join("ca").join("ca.pem")
    }

    /// The configuration file, to be changed before [`TestBroker::hang_up`].
    #[must_use]
    pub fn config_file(&self) -> PathBuf {
        self.folder.path().join("fulmar.toml")
    }

    /// Process identifier.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// What it has written to standard error so far.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.log.text()
    }

    /// Reads standard error from now on.
    ///
    /// # Panics
    /// It was read from the beginning.
    pub fn read_log(&mut self) {
        self.process.log = Log::follow(self.process.unread.take().unwrap());
    }

    /// Closes the end of standard error that is read.
    pub fn close_log(&mut self) {
        self.process.unread = None;
    }

    /// Waits for a line of the log that contains `text` and gives it.
    ///
    /// # Panics
    /// No such line comes.
    pub fn wait_for_log(&self, text: &str) -> String {
        let line = self.process.log.find(PATIENCE, |line| line.contains(text));
        line.unwrap_or_else(|| panic!("no {text:?} in the log:\n{}", self.log()))
    }

    /// A figure of its `/metrics`, by its name without `fulmar_` and with its labels.
    ///
    /// # Panics
    /// There is no such figure.
    #[must_use]
    pub fn metric(&self, name: &str) -> f64 {
        let (_, page) = http_get(self.address("http"), "/metrics");
        let mut lines = page.lines().filter_map(|line| line.strip_prefix("fulmar_"));
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name} in\n{page}")).parse().unwrap()
    }

    /// What it has written to standard output so far.
    #[must_use]
    pub fn output(&self) -> String {
        self.process.output.text()
    }

    /// SIGHUP: read certificates, passwords and access rules again.
    pub fn hang_up(&self) {
        self.process.signal(libc::SIGHUP);
    }

    /// Sends another signal.
    pub fn signal(&self, signal: i32) {
        self.process.signal(signal);
    }

    /// SIGTERM, and how it ended.
    ///
    /// # Panics
    /// It does not end in time.
    pub fn terminate(&mut self) -> ExitStatus {
        self.process.signal(libc::SIGTERM);
        self.process.wait()
    }

    /// SIGKILL: it gets no chance to save anything.
    pub fn kill(&mut self) {
        self.process.child.kill().unwrap();
        self.process.child.wait().unwrap();
    }

    /// Starts it again, after [`TestBroker::kill`] or [`TestBroker::terminate`], with the same data
    /// on the same ports. While it was away the system may have given one of them to another test's
    /// broker; then it waits until that has gone.
    ///
    /// # Panics
    /// It still runs, or does not become ready.
    pub fn restart(&mut self) {
        let ended = self.process.child.try_wait().unwrap();
        assert!(ended.is_some(), "it still runs");
        for (name, address) in &self.process.bound {
            self.builder.env.insert(variable(name), format!("[\"{address}\"]"));
        }
        let mut started = None;
        eventually("its ports, which another program was given meanwhile", || {
            match Process::start(&self.builder, self.folder.path()) {
                Ok(process) => started = Some(process),
                Err(log) => assert!(log.contains(PORT_TAKEN), "{log}"),
            }
            started.is_some()
        });
        self.process = started.unwrap();
    }
}

fn data(folder: &Path) -> PathBuf {
    folder.join("data")
}

/// Lets a pipe accept one page before it blocks.
///
/// # Panics
/// It is no pipe.
#[allow(unsafe_code)]
pub fn shrink_pipe(pipe: &impl AsRawFd) {
    // SAFETY: this command of fcntl reads and writes no memory of ours.
    let bytes = unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETPIPE_SZ, 4096) };
    assert_eq!(bytes, 4096);
}

#[derive(Debug)]
struct Process {
    child: Child,
    output: Log,
    log: Log,
    bound: Vec<(String, SocketAddr)>,
    unread: Option<ChildStderr>,
}

impl Process {
    /// A process that is ready, or why there is none, with its log.
    fn start(builder: &Builder, folder: &Path) -> Result<Process, String> {
        let mut command = fulmar();
        command.arg("serve").arg("--data").arg(data(folder));
        command.arg("--config").arg(folder.join("fulmar.toml"));
        command.args(["--log-level", builder.log_level.as_deref().unwrap_or("info")]);
        command.args(&builder.arguments).envs(&builder.env).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let output = Log::follow(child.stdout.take().unwrap());
        let stderr = child.stderr.take().unwrap();
        let (log, unread) = match builder.unread_log {
            true => (Log::default(), Some(stderr)),
            false => (Log::follow(stderr), None),
        };
        if let Some(unread) = &unread {
            shrink_pipe(unread);
        }
        // Owned from here on, so that a broker that never gets ready is killed all the same.
        let mut process = Process { child, output, log, bound: Vec::new(), unread };
        let Some(line) = process.output.find(PATIENCE, |line| line.starts_with("ready")) else {
            // What it says last may come after the end of its output.
            let _ = process.child.kill();
            process.log.end(PATIENCE);
            return Err(format!("the broker did not get ready:\n{}", process.log.text()));
        };
        process.bound = parse_ready(&line);
        Ok(process)
    }

    fn signal(&self, signal: i32) {
        let pid = self.child.id().to_string();
        let number = format!("-{signal}");
        let sent = std::process::Command::new("kill").args([&number, &pid]).status().unwrap();
        assert!(sent.success(), "the broker is gone:\n{}", self.log.text());
    }

    fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the broker to end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        // What it has written last may still be on its way here.
        self.output.end(PATIENCE);
        self.log.end(PATIENCE);
        status.unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail when it has ended already, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Status and body of a GET over plain HTTP/1.1.
///
/// # Panics
/// There is no answer.
#[must_use]
pub fn http_get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

pub(crate) fn parse_ready(line: &str) -> Vec<(String, SocketAddr)> {
    let parse = |word: &str| {
        let (name, address) = word.split_once('=')?;
        Some((name.to_owned(), address.parse().ok()?))
    };
    let words = line.split(' ').skip(1);
    let bound: Vec<_> =
        words.map(|word| parse(word).unwrap_or_else(|| panic!("{word:?} in {line:?}"))).collect();
    ports::check(&bound);
    bound
}
