//! Notifies systemd of the broker's state (`sd_notify(3)`), so that services that depend on it start when it is ready.
//! Without a supervisor (`NOTIFY_SOCKET`) nothing happens. With a watchdog (`WATCHDOG_USEC`), it is notified as long as every
//! worker works.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use fulmar_transport::Handoff;
use parking_lot::Mutex;

/// Longest wait for a service manager that does not read its socket.
const PATIENCE: Duration = Duration::from_secs(5);

/// Keeps the service manager's watchdog from restarting the program. Ends when it is dropped.
#[derive(Debug, Default)]
pub(super) struct Watchdog {
    watched: Arc<Mutex<Option<Handoff>>>,
    _end: Option<Sender<()>>,
}

impl Watchdog {
    /// Starts it if the service manager has one for this process (`sd_watchdog_enabled(3)`).
    pub(super) fn start() -> io::Result<Watchdog> {
        let number = |key| std::env::var(key).ok().and_then(|text| text.parse::<u64>().ok());
        let is_meant =
            number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let Some(us) = number("WATCHDOG_USEC").filter(|us| *us > 0 && is_meant) else {
            return Ok(Watchdog::default());
        };
        let (end, ended) = channel();
        let watchdog = Watchdog { _end: Some(end), ..Watchdog::default() };
        let watched = Arc::clone(&watchdog.watched);
        let quarter = Duration::from_micros(us / 4);
        let thread = std::thread::Builder::new().name("fulmar-watchdog".into());
        thread.spawn(move || {
            while ended.recv_timeout(quarter) == Err(RecvTimeoutError::Timeout) {
                let workers = watched.lock().clone();
                match workers.and_then(|workers| workers.silent_worker(quarter)) {
                    None => notify("WATCHDOG=1"),
                    Some(worker) => tracing::error!(
                        worker,
                        "a worker does not answer; the service manager is not notified"
                    ),
                }
            }
        })?;
        Ok(watchdog)
    }

    /// Changes whose workers must work. Without any, as while no server runs, the process need only run.
    pub(super) fn watch(&self, workers: Option<Handoff>) {
        *self.watched.lock() = workers;
    }
}

/// Every listener is bound.
pub(super) fn ready() {
    notify("READY=1");
}

/// The broker drains.
pub(super) fn stopping() {
    notify("STOPPING=1");
}

fn notify(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
        return;
    };
    if let Err(error) = send(&socket, state) {
        tracing::warn!(%error, ?socket, "cannot notify the service manager of {state}");
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    // A name that begins with @ is in the abstract namespace.
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}
