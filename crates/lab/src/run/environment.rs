//! Where a sample was measured: kernel, processor, version, and how busy the machine was.

use std::fs;

use serde::{Deserialize, Serialize};

/// Where a sample was measured.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Environment {
    /// Kernel's name and release.
    pub kernel: String,
    /// Processor's name.
    pub cpu: String,
    /// Cores this program may use.
    pub cores: usize,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Version of Fulmar.
    pub version: String,
    /// The congestion control of the kernel's TCP, unless a program chooses another.
    #[serde(default)]
    pub tcp: String,
    /// The machine's load average over the last minute, before the sample.
    pub load: f64,
    /// Samples that ran beside it when it began.
    pub beside: usize,
}

impl Environment {
    /// Reads the environment. Values that cannot be read stay empty: a sample is worth keeping without them.
    pub fn read(version: &str) -> Environment {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpu_info = read("/proc/cpuinfo");
        let cpu = field(&cpu_info, "model name").or_else(|| field(&cpu_info, "Model"));
        let memory = field(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
        let memory_kib = memory.split(' ').next().and_then(|n| n.parse::<u64>().ok());
        Environment {
            kernel: format!("Linux {}", read("/proc/sys/kernel/osrelease").trim()),
            cpu: cpu.unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: memory_kib.unwrap_or(0) / 1024,
            version: version.to_owned(),
            tcp: read("/proc/sys/net/ipv4/tcp_congestion_control").trim().to_owned(),
            load: load(),
            beside: 0,
        }
    }

    pub(super) fn now(&self, beside: usize) -> Environment {
        Environment { load: load(), beside, ..self.clone() }
    }
}

fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|one| one.parse().ok()).unwrap_or(0.0)
}

/// The first `NAME : VALUE`.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_can_be_described() {
        let here = Environment::read("1.2.3");
        assert!(here.kernel.len() > "Linux ".len() && here.cores > 0 && here.memory_mib > 0);
        assert_eq!(field("a : x y\nb: 2\n", "b").as_deref(), Some("2"));
    }
}
