//! Orphans: processes that outlived the lab that started them.
//!
//! If the lab dies, the kernel kills its children, but not their children. Therefore every program is started with
//! an environment variable that its descendants inherit: the lab's process ID, start time and PID namespace, and the
//! host in which the program runs. [`kill_orphans`] kills processes whose lab no longer runs, and
//! [`Host::end_all`](super::Host::end_all) those of a host. A program that clears its environment escapes.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The environment variable that names the owner of a process.
const OWNER_VARIABLE: &str = "LAB_OWNER";

/// The number of programs that run in no host.
const NO_HOST: u64 = 0;

/// A number for a host, unique in this process.
pub(super) fn next_host_number() -> u64 {
    static HOSTS: AtomicU64 = AtomicU64::new(NO_HOST + 1);
    HOSTS.fetch_add(1, Ordering::Relaxed)
}

/// The owner variable, name and value, of programs that run in no host.
pub(crate) fn owner_variable() -> io::Result<(&'static str, String)> {
    owner_variable_of(NO_HOST)
}

/// The owner variable, name and value, of a host's programs.
pub(super) fn owner_variable_of(host: u64) -> io::Result<(&'static str, String)> {
    let own = fs::read_to_string("/proc/self/stat")?;
    let pid = std::process::id();
    let start = start_time(&own).ok_or(io::ErrorKind::InvalidData)?;
    Ok((OWNER_VARIABLE, format!("{pid}:{start}:{host}:{}", pid_namespace()?)))
}

fn pid_namespace() -> io::Result<String> {
    Ok(fs::read_link("/proc/self/ns/pid")?.to_string_lossy().into_owned())
}

/// The start time of a process in ticks since boot: field 22 of its `stat`, counted from the end of the
/// command's name, which may contain anything.
fn start_time(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(19)?.parse().ok()
}

/// Kills the processes that a killed lab left behind; returns how many.
///
/// Only processes of this user and this PID namespace are looked at.
///
/// # Errors
/// `/proc` cannot be read.
pub fn kill_orphans() -> io::Result<usize> {
    kill_where(|owner| !is_running(owner))
}

/// Kills the programs that this process has started in a host; returns how many still ran.
pub(super) fn kill_programs_of(host: u64) -> io::Result<usize> {
    let own = std::process::id();
    kill_where(|owner| owner.lab == own && owner.host == host && is_running(owner))
}

/// Kills the processes whose owner is `chosen`.
fn kill_where(chosen: impl Fn(&Owner) -> bool) -> io::Result<usize> {
    let namespace = pid_namespace()?;
    let mut killed = 0;
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry.ok().and_then(|entry| entry.file_name().to_str()?.parse().ok())
        else {
            continue;
        };
        if Pid::from_raw(pid).is_some_and(|pid| kill_if(pid, &namespace, &chosen)) {
            killed += 1;
        }
    }
    Ok(killed)
}

/// Opens a pidfd before it reads the owner, so that a reused process ID is never killed.
fn kill_if(pid: Pid, namespace: &str, chosen: impl Fn(&Owner) -> bool) -> bool {
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero()));
    let owner = environment.ok().and_then(|environment| owner(&environment, namespace));
    owner.is_some_and(|owner| chosen(&owner)) && pidfd_send_signal(&process, Signal::KILL).is_ok()
}

/// The lab and host to which a process belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    /// The lab's process ID and start time.
    lab: u32,
    start: u64,
    host: u64,
}

/// The owner that an environment names, if it is one of this PID namespace.
fn owner(environment: &[u8], namespace: &str) -> Option<Owner> {
    let value = environment.split(|byte| *byte == 0).find_map(|variable| {
        variable.strip_prefix(OWNER_VARIABLE.as_bytes())?.strip_prefix(b"=")
    })?;
    let mut parts = std::str::from_utf8(value).ok()?.splitn(4, ':');
    let mut number = || parts.next()?.parse::<u64>().ok();
    let (lab, start, host) = (number()?.try_into().ok()?, number()?, number()?);
    (parts.next()? == namespace).then_some(Owner { lab, start, host })
}

fn is_running(owner: &Owner) -> bool {
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
    fn owners_in_other_namespaces_are_ignored() {
        let environment = b"A=1\0LAB_OWNER=12:34:5:pid:[99]\0B=2\0";
        let expected = Owner { lab: 12, start: 34, host: 5 };
        assert_eq!(owner(environment, "pid:[99]"), Some(expected));
        assert_eq!(owner(environment, "pid:[98]"), None);
        assert_eq!(owner(b"LAB_OWNER=x:y\0", "pid:[99]"), None);
        assert_eq!(owner(b"XLAB_OWNER=12:34:5:pid:[99]\0", "pid:[99]"), None);
    }

    #[test]
    fn orphans_of_a_dead_lab_are_killed_and_of_a_running_one_only_the_programs_of_the_given_host() {
        let start = |owner: &str| {
            Command::new("sleep").arg("600").env(OWNER_VARIABLE, owner).spawn().unwrap()
        };
        let (host, other) = (next_host_number(), next_host_number());
        let [(_, one), (_, two)] = [host, other].map(|host| owner_variable_of(host).unwrap());
        // A start time that no process has: a lab whose process ID was reused.
        let dead = format!("{}:1:{host}:{}", std::process::id(), pid_namespace().unwrap());
        let (mut ours, mut theirs, mut orphan) = (start(&one), start(&two), start(&dead));
        assert!(!killed_by(kill_orphans, &mut orphan).success());
        assert!(ours.try_wait().unwrap().is_none());
        assert!(!killed_by(|| kill_programs_of(host), &mut ours).success());
        assert!(theirs.try_wait().unwrap().is_none());
        assert!(!killed_by(|| kill_programs_of(other), &mut theirs).success());
    }

    /// Repeats `kill` until `child` has ended: the environment of a program that has only just started
    /// cannot be read yet.
    fn killed_by(kill: impl Fn() -> io::Result<usize>, child: &mut Child) -> ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            kill().unwrap();
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "not killed");
            std::thread::yield_now();
        }
    }
}
