//! Processes that outlived the lab that started them.
//!
//! The kernel kills the lab's own children when it dies, but not theirs. Every program is started
//! with a mark in its environment that its descendants inherit: the lab's process number, start
//! time and PID namespace, and the host that it was started in. A marked process whose lab no longer
//! runs is ended by [`sweep`], and a host's own by [`Host::end_all`](super::Host::end_all). A program
//! that empties its environment escapes.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The environment variable that marks the lab's programs.
const MARK: &str = "LAB_OWNER";

/// The number of programs that run in no host.
const NO_HOST: u64 = 0;

/// A number for a host that no other one of this process has.
pub(super) fn new_host() -> u64 {
    static HOSTS: AtomicU64 = AtomicU64::new(NO_HOST + 1);
    HOSTS.fetch_add(1, Ordering::Relaxed)
}

/// Name and value of the mark of programs that run in no host.
pub(crate) fn mark() -> io::Result<(&'static str, String)> {
    mark_of(NO_HOST)
}

/// Name and value of the mark of a host's programs.
pub(super) fn mark_of(host: u64) -> io::Result<(&'static str, String)> {
    let own = fs::read_to_string("/proc/self/stat")?;
    let pid = std::process::id();
    let start = start_time(&own).ok_or(io::ErrorKind::InvalidData)?;
    Ok((MARK, format!("{pid}:{start}:{host}:{}", pid_namespace()?)))
}

fn pid_namespace() -> io::Result<String> {
    Ok(fs::read_link("/proc/self/ns/pid")?.to_string_lossy().into_owned())
}

/// When a process started, in ticks since boot: field 22 of its `stat`, counted from behind the
/// command's name, which may contain anything.
fn start_time(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(19)?.parse().ok()
}

/// Ends the processes that a killed lab has left behind; gives their number.
///
/// Only processes of this user and this PID namespace are seen and touched.
///
/// # Errors
/// `/proc` cannot be read.
pub fn sweep() -> io::Result<usize> {
    end_marked(|owner| !runs(owner))
}

/// Ends what runs of the programs that this process has started in a host; gives the number.
pub(super) fn end_of_host(host: u64) -> io::Result<usize> {
    let own = std::process::id();
    end_marked(|owner| owner.lab == own && owner.host == host && runs(owner))
}

/// Ends the marked processes whose owner is chosen.
fn end_marked(chosen: impl Fn(&Owner) -> bool) -> io::Result<usize> {
    let namespace = pid_namespace()?;
    let mut ended = 0;
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry.ok().and_then(|entry| entry.file_name().to_str()?.parse().ok())
        else {
            continue;
        };
        if Pid::from_raw(pid).is_some_and(|pid| end_if(pid, &namespace, &chosen)) {
            ended += 1;
        }
    }
    Ok(ended)
}

/// Holds the process by a descriptor before it looks, so that what it ends is what it saw.
fn end_if(pid: Pid, namespace: &str, chosen: impl Fn(&Owner) -> bool) -> bool {
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero()));
    let owner = environment.ok().and_then(|environment| owner(&environment, namespace));
    owner.is_some_and(|owner| chosen(&owner)) && pidfd_send_signal(&process, Signal::KILL).is_ok()
}

/// Whom a marked process belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    /// The lab's process number and start time.
    lab: u32,
    start: u64,
    host: u64,
}

/// The owner that an environment names, if it is one of this PID namespace.
fn owner(environment: &[u8], namespace: &str) -> Option<Owner> {
    let value = environment
        .split(|byte| *byte == 0)
        .find_map(|variable| variable.strip_prefix(MARK.as_bytes())?.strip_prefix(b"="))?;
    let mut parts = std::str::from_utf8(value).ok()?.splitn(4, ':');
    let mut number = || parts.next()?.parse::<u64>().ok();
    let (lab, start, host) = (number()?.try_into().ok()?, number()?, number()?);
    (parts.next()? == namespace).then_some(Owner { lab, start, host })
}

fn runs(owner: &Owner) -> bool {
    let stat = Path::new("/proc").join(owner.lab.to_string()).join("stat");
    fs::read_to_string(stat).is_ok_and(|stat| start_time(&stat) == Some(owner.start))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::process::{Child, Command, ExitStatus};
    use std::time::{Duration, Instant};

    #[test]
    fn a_start_time_is_found_behind_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 8000 1";
        assert_eq!(start_time(stat), Some(4711));
        assert_eq!(start_time("7 broken"), None);
    }

    #[test]
    fn marks_of_other_namespaces_are_not_ours() {
        let environment = b"A=1\0LAB_OWNER=12:34:5:pid:[99]\0B=2\0";
        let expected = Owner { lab: 12, start: 34, host: 5 };
        assert_eq!(owner(environment, "pid:[99]"), Some(expected));
        assert_eq!(owner(environment, "pid:[98]"), None);
        assert_eq!(owner(b"LAB_OWNER=x:y\0", "pid:[99]"), None);
        assert_eq!(owner(b"XLAB_OWNER=12:34:5:pid:[99]\0", "pid:[99]"), None);
    }

    #[test]
    fn orphans_of_a_dead_lab_are_ended_and_of_a_living_one_only_the_hosts_asked_for() {
        let start = |mark: &str| Command::new("sleep").arg("600").env(MARK, mark).spawn().unwrap();
        let (host, other) = (new_host(), new_host());
        let [(_, one), (_, two)] = [host, other].map(|host| mark_of(host).unwrap());
        // A start time that no process has: a lab whose number was given to another since.
        let dead = format!("{}:1:{host}:{}", std::process::id(), pid_namespace().unwrap());
        let (mut ours, mut theirs, mut orphan) = (start(&one), start(&two), start(&dead));
        assert!(!ended_by(sweep, &mut orphan).success());
        assert!(ours.try_wait().unwrap().is_none());
        assert!(!ended_by(|| end_of_host(host), &mut ours).success());
        assert!(theirs.try_wait().unwrap().is_none());
        assert!(!ended_by(|| end_of_host(other), &mut theirs).success());
    }

    /// Sweeps until it has ended `child`: for a moment after its start a program's environment, and
    /// with it the mark, cannot be read yet.
    fn ended_by(sweep: impl Fn() -> io::Result<usize>, child: &mut Child) -> ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            sweep().unwrap();
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "not ended");
            std::thread::yield_now();
        }
    }
}
