//! CPU time and memory of the broker's processes and of the generator itself, from `/proc`.
//!
//! CPU time has a resolution of one clock tick (10 ms): runs shorter than a second say little.

use std::fs;

use anyhow::{Context, bail};

/// Processes looked at together: a broker and its children, or the generator.
#[derive(Clone, Debug)]
pub(super) struct Processes(Vec<u32>);

impl Processes {
    /// Processes by number; each must exist.
    pub(super) fn new(pids: &[u32]) -> anyhow::Result<Processes> {
        let processes = Processes(pids.to_vec());
        processes.cpu_seconds()?;
        Ok(processes)
    }

    pub(super) fn own() -> Processes {
        Processes(vec![std::process::id()])
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// User and system time used so far, dead threads included.
    pub(super) fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let ticks_per_s = rustix::param::clock_ticks_per_second() as f64;
        let mut ticks = 0;
        for pid in &self.0 {
            let stat = read(*pid, "stat")?;
            ticks += cpu_ticks(&stat).with_context(|| format!("cannot read process {pid}"))?;
        }
        Ok(ticks as f64 / ticks_per_s)
    }

    /// Resident memory.
    pub(super) fn rss_kib(&self) -> anyhow::Result<u64> {
        let mut total = 0;
        for pid in &self.0 {
            let status = read(*pid, "status")?;
            total +=
                resident_kib(&status).with_context(|| format!("no memory of process {pid}"))?;
        }
        Ok(total)
    }
}

fn read(pid: u32, file: &str) -> anyhow::Result<String> {
    match fs::read_to_string(format!("/proc/{pid}/{file}")) {
        Ok(text) => Ok(text),
        Err(error) => bail!("no process {pid} to measure: {error}"),
    }
}

/// Fields 14 and 15 of proc_pid_stat(5), counted after the name, which may hold spaces.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

fn resident_kib(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_ticks_are_found_behind_a_name_with_spaces_and_brackets() {
        let stat = "17 (a ) b) S 1 17 17 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 4 0 100";
        assert_eq!(cpu_ticks(stat), Some(300));
        assert_eq!(cpu_ticks("17 (a) S 1"), None);
    }

    #[test]
    fn memory_is_the_resident_set() {
        assert_eq!(resident_kib("VmSize:\t 9 kB\nVmRSS:\t  5120 kB\n"), Some(5_120));
        assert_eq!(resident_kib("VmSize:\t 9 kB\n"), None);
    }
}
