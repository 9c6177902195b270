//! What the machine gives to this program: processor time, memory, and room in the data folder; and the end of the
//! certificate.
//!
//! The names that begin with `process_` are those of Prometheus' client libraries, so that dashboards for any program
//! show this one.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fulmar_text::metrics::{Kind, Metrics};
use fulmar_transport::tls::Identity;
use rustix::time::{ClockId, clock_gettime};

/// Where the values come from.
#[derive(Clone)]
pub struct Machine {
    data: PathBuf,
    identity: Option<Arc<Identity>>,
    started: SystemTime,
}

impl Machine {
    /// The machine with this data folder; the certificate is for metrics.
    pub fn new(data: PathBuf, identity: Option<Arc<Identity>>) -> Machine {
        Machine { data, identity, started: SystemTime::now() }
    }

    /// When the certificate of the listeners expires.
    pub fn certificate_end(&self) -> Option<SystemTime> {
        self.identity.as_ref()?.not_after()
    }

    /// Processor time used, resident bytes, and bytes free in the data folder's file system.
    pub fn usage(&self) -> (Duration, Option<u64>, Option<u64>) {
        let room = rustix::fs::statvfs(&self.data).ok();
        let free = room.map(|room| room.f_bavail.saturating_mul(room.f_frsize));
        (processor_time(), resident_bytes().map(|bytes| bytes as u64), free)
    }

    /// Reports what the system reports.
    pub fn report(&self, to: &mut Metrics) {
        to.counter(
            "process_cpu_seconds_total",
            "Processor time used",
            processor_time().as_secs_f64(),
        );
        let mut gauge = |name, help, value: Option<f64>| {
            if let Some(value) = value {
                to.gauge(name, help, value);
            }
        };
        gauge("process_resident_memory_bytes", "Resident memory", resident_bytes());
        let help = "Unix time at which the server started";
        gauge("process_start_time_seconds", help, unix_seconds(self.started));
        let room = rustix::fs::statvfs(&self.data).ok();
        let bytes = |blocks: fn(&rustix::fs::StatVfs) -> u64| {
            room.as_ref().map(|room| blocks(room) as f64 * room.f_frsize as f64)
        };
        let help = "Bytes that the broker may still write to the file system of the data folder";
        gauge("data_free_bytes", help, bytes(|room| room.f_bavail));
        let help = "Size of the file system of the data folder";
        gauge("data_size_bytes", help, bytes(|room| room.f_blocks));
        let own = self.identity.as_ref().and_then(|own| own.not_after());
        if let Some(end) = own.and_then(unix_seconds) {
            let help = "Unix time at which the certificate of the listeners expires";
            let family = to.family(Kind::Gauge, "certificate_expires_seconds", help);
            family.add(&[("certificate", "server")], end);
        }
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

/// The second number of proc(5)'s `statm`, which counts pages.
fn resident_bytes() -> Option<f64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages as f64 * rustix::param::page_size() as f64)
}

fn unix_seconds(time: SystemTime) -> Option<f64> {
    Some(time.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs_f64())
}
