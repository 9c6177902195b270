//! Reads from the system what `machine` judges: thin code, no decisions.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Resource, getrlimit};

use crate::serve::check::processes::Process;
use fulmar_config::{Config, available_to};

/// Number of writes of a page that measure the data folder's disk, and the time limit for them.
const WRITES: usize = 20;
const WRITE_BYTES: usize = 4096;
const MEASURE_FOR: Duration = Duration::from_secs(2);

/// The kernel counts a clock's error up to this (include/linux/timex.h: `NTP_PHASE_LIMIT`).
const NOT_SET: Duration = Duration::from_secs(16);

/// `statfs` of a file system in memory (linux/magic.h: tmpfs and ramfs).
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// Facts about the machine, and what the configuration wants of it. `None` is not known.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) now: SystemTime,
    pub(super) clock: Option<Clock>,
    /// Bytes that a QUIC listener asks for and that it gets; `None` also without one.
    pub(super) receive_buffer: Option<(u64, u64)>,
    pub(super) open_files: Option<OpenFiles>,
    pub(super) max_connections: u64,
    /// Bytes that the process may use, the machine's or its control group's, and its budget.
    pub(super) memory: Option<(u64, u64)>,
    pub(super) disk: Option<Disk>,
    /// Bytes that the configuration wants to store at most; 0 if it sets no bound.
    pub(super) stored_bytes: u64,
}

/// State of the kernel's clock.
#[derive(Clone, Copy, Debug)]
pub(super) enum Clock {
    /// Something sets it by another clock, to within this.
    Synchronised(Duration),
    Unsynchronised,
}

/// A process's limit of open files.
#[derive(Clone, Debug)]
pub(super) struct OpenFiles {
    pub(super) limit: u64,
    /// The running server; `None` for this process, whose limit a server started in the same way would have.
    pub(super) of: Option<Process>,
}

/// The data folder's file system.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub(super) folder: PathBuf,
    pub(super) free_bytes: u64,
    pub(super) in_memory: bool,
    /// Durations of the writes until they were on the disk; empty if nothing could be written.
    pub(super) writes: Vec<Duration>,
}

impl Facts {
    pub(super) fn gather(config: &Config, server: Option<&Process>) -> Facts {
        let listeners = &config.listeners;
        let quic = !listeners.quic.is_empty() || !listeners.https.is_empty();
        let bytes = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX);
        let buffer = || fulmar_transport::receive_buffer().ok();
        let mut stored = config.storage.max_bytes;
        for upstream in config.upstreams().filter(|upstream| upstream.is_on()) {
            stored = stored.saturating_add(upstream.outbox.max_bytes);
        }
        // Under a service manager, the server's control group is another than the shell's.
        let process = server.map_or("self".to_owned(), |process| process.id.to_string());
        let memory = available_to(&process);
        Facts {
            now: SystemTime::now(),
            clock: clock(),
            receive_buffer: quic
                .then(buffer)
                .flatten()
                .map(|(wanted, granted)| (bytes(wanted), bytes(granted))),
            open_files: open_files(server),
            max_connections: bytes(config.limits.max_connections),
            memory: config.limits.memory.bytes_of(memory).ok().map(|budget| (memory, budget)),
            disk: disk(&config.data_dir()),
            stored_bytes: stored,
        }
    }
}

/// Reads the clock's state like `timedatectl`: the kernel counts the error up from when another one set the clock last.
#[allow(unsafe_code)]
fn clock() -> Option<Clock> {
    // SAFETY: a structure of integers, for which zeros are values.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: it writes to the structure alone; `modes`, which is 0, names nothing to change.
    let answer = unsafe { libc::adjtimex(&raw mut state) };
    let error = u64::try_from(state.maxerror).ok()?;
    (answer >= 0).then(|| clock_of(state.status, Duration::from_micros(error)))
}

fn clock_of(status: libc::c_int, error: Duration) -> Clock {
    match status & libc::STA_UNSYNC == 0 && error < NOT_SET {
        true => Clock::Synchronised(error),
        false => Clock::Unsynchronised,
    }
}

fn open_files(server: Option<&Process>) -> Option<OpenFiles> {
    let theirs = server.and_then(|process| {
        let limits = fs::read_to_string(format!("/proc/{}/limits", process.id)).ok()?;
        Some(OpenFiles { limit: open_files_in(&limits)?, of: Some(process.clone()) })
    });
    theirs.or_else(|| {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Some(OpenFiles { limit, of: None })
    })
}

/// The soft limit in /proc/PID/limits.
fn open_files_in(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

fn disk(data: &Path) -> Option<Disk> {
    // Before the first start, it is on the file system of the folder in which it will be.
    let folder = data.ancestors().find(|folder| folder.is_dir())?;
    let about = rustix::fs::statvfs(folder).ok()?;
    let kind = rustix::fs::statfs(folder).ok()?;
    // Signed or not, and of 32 or 64 bits, depending on the processor.
    let kind = kind.f_type as u64 & 0xffff_ffff;
    Some(Disk {
        folder: folder.to_owned(),
        free_bytes: about.f_bavail.saturating_mul(about.f_frsize),
        in_memory: IN_MEMORY.contains(&kind),
        writes: measure(folder).unwrap_or_default(),
    })
}

/// Times writes to a file that is removed again.
fn measure(folder: &Path) -> std::io::Result<Vec<Duration>> {
    let mut file = tempfile::tempfile_in(folder)?;
    let (begun, mut writes) = (Instant::now(), Vec::new());
    while writes.len() < WRITES && begun.elapsed() < MEASURE_FOR {
        let one = Instant::now();
        file.write_all(&[0x5a; WRITE_BYTES])?;
        file.sync_data()?;
        writes.push(one.elapsed());
    }
    Ok(writes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_kernel_are_understood() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max cpu time              unlimited            unlimited            seconds   \n\
                      Max open files            1024                 524288               files     \n";
        assert_eq!(open_files_in(limits), Some(1024));
        assert_eq!(open_files_in("Max open files unlimited unlimited files"), Some(u64::MAX));
        assert_eq!(open_files_in(""), None);
    }

    #[test]
    fn a_clock_is_synchronised_if_the_kernel_says_so_and_its_error_is_bounded() {
        let error = Duration::from_millis(20);
        assert!(matches!(clock_of(0, error), Clock::Synchronised(of) if of == error));
        assert!(matches!(clock_of(libc::STA_UNSYNC, error), Clock::Unsynchronised));
        assert!(matches!(clock_of(0, NOT_SET), Clock::Unsynchronised));
    }

    #[test]
    fn this_machine_has_facts() {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::default().with_data_dir(folder.path().join("not/there/yet"));
        let facts = Facts::gather(&config, None);
        let disk = facts.disk.unwrap();
        assert_eq!(disk.folder, folder.path());
        assert!(!disk.writes.is_empty());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(facts.open_files.unwrap().limit > 0 && facts.memory.is_some());
        assert!(facts.receive_buffer.is_some() && facts.clock.is_some());
    }
}
