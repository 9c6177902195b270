//! What the facts about a machine mean for a broker on it. No input or output.

use std::time::{Duration, SystemTime};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::facts::{Clock, Facts};
use crate::serve::check::finding::Finding;

/// No machine runs this program before it was written: 2026-11-23, in seconds since 1970.
const WRITTEN: Duration = Duration::from_secs(1_795_392_000);
/// Files besides connections: listeners, databases, folders, threads' own.
const OTHER_FILES: u64 = 200;
/// Fewer open files are a few clients.
const FEW_FILES: u64 = 512;
const MIB: u64 = 1 << 20;
/// Free space below which nothing should be started, and below which a person should act.
const NO_SPACE: u64 = 16 * MIB;
const LITTLE_SPACE: u64 = 256 * MIB;
/// A write that takes longer is slow for an acknowledgement; a disk of spinning platters takes half of it.
const SLOW_WRITE: Duration = Duration::from_millis(30);

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let all = [clock(facts), receive_buffer(facts), open_files(facts), memory(facts)];
    all.into_iter().flatten().chain(disk(facts)).collect()
}

fn clock(facts: &Facts) -> Option<Finding> {
    const CHECK: &str = "clock";
    let since = facts.now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let utc = OffsetDateTime::from(facts.now).replace_nanosecond(0).ok();
    let utc = utc.and_then(|utc| utc.format(&Rfc3339).ok());
    let set = utc.unwrap_or_else(|| format!("{} s since 1970", since.as_secs()));
    if since < WRITTEN {
        let text = set + ": it is not set, and every certificate seems to begin in the future";
        let next = "timedatectl set-ntp true, or on a machine without a clock wait for the time in the service (After=time-sync.target)";
        return Some(Finding::problem(CHECK, text, next));
    }
    Some(match facts.clock {
        None => Finding::ok(CHECK, set),
        Some(Clock::Synchronised(error)) => {
            Finding::ok(CHECK, format!("{set}, synchronised to within {} ms", error.as_millis()))
        }
        Some(Clock::Unsynchronised) => Finding::warning(
            CHECK,
            set + ", but nothing keeps it right: in time, certificates and the times of readings are wrong",
            "timedatectl set-ntp true, or install chrony; nothing to do if the host of this virtual machine sets its clock",
        ),
    })
}

fn receive_buffer(facts: &Facts) -> Option<Finding> {
    const CHECK: &str = "receive buffers";
    let (wanted, granted) = facts.receive_buffer?;
    if granted >= wanted {
        return Some(Finding::ok(CHECK, format!("a QUIC listener gets its {granted} bytes")));
    }
    let text = format!(
        "a QUIC listener gets {granted} of {wanted} bytes: when many clients send at once, packets are lost"
    );
    let next = format!(
        "sysctl -w net.core.rmem_max={wanted} net.core.wmem_max={wanted}; to keep it, write both lines to \
         /etc/sysctl.d/60-fulmar.conf"
    );
    Some(Finding::warning(CHECK, text, next))
}

fn open_files(facts: &Facts) -> Option<Finding> {
    const CHECK: &str = "open files";
    let open = facts.open_files.as_ref()?;
    let wanted = facts.max_connections.saturating_add(OTHER_FILES);
    let of = open.of.as_ref().map_or("this shell".to_owned(), ToString::to_string);
    if open.limit >= wanted {
        return Some(Finding::ok(CHECK, format!("the limit of {of} is {}", open.limit)));
    }
    let text = format!(
        "the limit of {of} is {}: some {} clients can connect over TCP, fewer than [limits] max_connections = {}",
        open.limit,
        open.limit.saturating_sub(OTHER_FILES),
        facts.max_connections
    );
    let next =
        format!("ulimit -n {wanted} before `fulmar serve`, or LimitNOFILE={wanted} in its service");
    Some(match open.limit < FEW_FILES {
        true => Finding::problem(CHECK, text, next),
        false => Finding::warning(CHECK, text, next),
    })
}

fn memory(facts: &Facts) -> Option<Finding> {
    const CHECK: &str = "memory";
    let (available, budget) = facts.memory?;
    let text = format!(
        "the broker may keep {} MiB ([limits] memory); its process can have {} MiB",
        budget / MIB,
        available / MIB
    );
    if budget <= available {
        return Some(Finding::ok(CHECK, text));
    }
    let next = format!(
        "lower [limits] memory to {} MiB or less, or raise MemoryMax= or the container's limit if there is one",
        available / MIB / 2
    );
    Some(Finding::warning(CHECK, text, next))
}

fn disk(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "disk";
    let Some(disk) = &facts.disk else { return Vec::new() };
    let folder = disk.folder.display();
    let mut findings = Vec::new();
    if disk.in_memory {
        let text = format!("{folder} is in memory: everything is lost when the machine stops");
        findings.push(Finding::warning(CHECK, text, "choose a data folder on a disk: --data DIR"));
    }
    let free = format!("{folder} has {} MiB free", disk.free_bytes / MIB);
    let next = format!("make room, or choose another data folder: df -h {folder}");
    let wanted = LITTLE_SPACE.max(facts.stored_bytes);
    findings.push(if disk.free_bytes < NO_SPACE {
        Finding::problem(CHECK, format!("{free}: the broker will soon refuse messages"), next)
    } else if disk.free_bytes < wanted {
        let text = format!("{free}, less than the {} MiB that may be stored", wanted / MIB);
        Finding::warning(CHECK, text, next)
    } else {
        Finding::ok(CHECK, free)
    });
    let mut writes = disk.writes.clone();
    writes.sort_unstable();
    let Some((median, longest)) = writes.get(writes.len() / 2).zip(writes.last()) else {
        return findings;
    };
    let text = format!(
        "a write to {folder} is on the disk after {:.1} ms (median of {}), {:.1} ms at most",
        median.as_secs_f64() * 1e3,
        writes.len(),
        longest.as_secs_f64() * 1e3
    );
    findings.push(if *median > SLOW_WRITE {
        let text = text + ": acknowledgements at QoS 1 and 2 wait as long";
        Finding::warning(CHECK, text, "use a faster disk, and no SD card, for the data folder")
    } else {
        Finding::ok(CHECK, text)
    });
    findings
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::facts::{Disk, OpenFiles};
    use super::*;
    use crate::serve::check::finding::Level;
    use crate::serve::check::processes::Process;

    /// A machine with which nothing is wrong.
    fn good() -> Facts {
        let server = Process { id: 7, name: "fulmar".to_owned() };
        Facts {
            now: SystemTime::UNIX_EPOCH + WRITTEN,
            clock: Some(Clock::Synchronised(Duration::from_millis(5))),
            receive_buffer: Some((4 << 20, 4 << 20)),
            open_files: Some(OpenFiles { limit: 1_048_576, of: Some(server) }),
            max_connections: 100_000,
            memory: Some((4 << 30, 2 << 30)),
            disk: Some(Disk {
                folder: "/var/lib/fulmar".into(),
                free_bytes: 10 << 30,
                in_memory: false,
                writes: vec![Duration::from_millis(1); 20],
            }),
            stored_bytes: 0,
        }
    }

    /// The worst finding of a machine with a change, which must be the only one that is not ok.
    fn worst(change: impl FnOnce(&mut Facts)) -> (Level, String, String) {
        let mut facts = good();
        change(&mut facts);
        let mut findings = findings(&facts);
        findings.retain(|finding| finding.level != Level::Ok);
        assert_eq!(findings.len(), 1, "{findings:?}");
        let finding = findings.remove(0);
        (finding.level, format!("{}: {}", finding.check, finding.text), finding.next.unwrap())
    }

    #[test]
    fn nothing_is_wrong_with_a_good_machine() {
        let findings = findings(&good());
        assert!(findings.iter().all(|finding| finding.level == Level::Ok), "{findings:?}");
        assert_eq!(findings.len(), 6);
    }

    #[test]
    fn what_is_not_known_is_not_judged() {
        let facts =
            Facts { receive_buffer: None, open_files: None, memory: None, disk: None, ..good() };
        assert_eq!(findings(&facts).len(), 1);
    }

    #[test]
    fn a_clock_from_before_the_program_is_not_set() {
        let (level, text, _) = worst(|facts| facts.now = SystemTime::UNIX_EPOCH);
        assert!(level == Level::Problem && text.contains("not set"), "{text}");
        worst(|facts| facts.now -= Duration::from_secs(1));
    }

    #[test]
    fn a_clock_that_nothing_sets_is_found() {
        let (level, text, next) = worst(|facts| facts.clock = Some(Clock::Unsynchronised));
        assert!(level == Level::Warning && text.contains("nothing keeps it right"), "{text}");
        assert!(next.starts_with("timedatectl set-ntp true"), "{next}");
    }

    #[test]
    fn small_receive_buffers_come_with_the_line_to_type() {
        let (level, text, next) = worst(|f| f.receive_buffer = Some((4_194_304, 212_992)));
        assert!(level == Level::Warning && text.contains("212992 of 4194304"), "{text}");
        assert!(next.starts_with("sysctl -w net.core.rmem_max=4194304 "), "{next}");
    }

    #[test]
    fn few_open_files_are_named_with_how_many_clients_they_allow() {
        let limit = |limit| worst(|f| f.open_files = Some(OpenFiles { limit, of: None }));
        let (level, text, next) = limit(1024);
        assert!(level == Level::Warning && text.contains("some 824 clients"), "{text}");
        assert!(next.contains("ulimit -n 100200") && next.contains("LimitNOFILE=100200"), "{next}");
        assert_eq!(limit(256).0, Level::Problem);
        // Exactly enough.
        let mut facts = good();
        facts.open_files = Some(OpenFiles { limit: 100_200, of: None });
        assert!(findings(&facts).iter().all(|finding| finding.level == Level::Ok));
    }

    #[test]
    fn a_budget_above_the_memory_is_found() {
        let (level, text, next) = worst(|f| f.memory = Some((256 * MIB, 512 * MIB)));
        assert!(level == Level::Warning && text.contains("keep 512 MiB"), "{text}");
        assert!(next.contains("to 128 MiB") && next.contains("MemoryMax="), "{next}");
    }

    #[test]
    fn a_disk_that_is_full_slow_or_none_is_found() {
        let disk = |change: &dyn Fn(&mut Disk)| worst(|f| change(f.disk.as_mut().unwrap()));
        assert_eq!(disk(&|disk| disk.free_bytes = MIB).0, Level::Problem);
        assert_eq!(disk(&|disk| disk.free_bytes = 100 * MIB).0, Level::Warning);
        assert!(disk(&|disk| disk.in_memory = true).1.contains("is in memory"));
        let (level, text, _) = disk(&|disk| disk.writes[..11].fill(Duration::from_millis(80)));
        assert!(level == Level::Warning && text.contains("80.0 ms (median of 20)"), "{text}");
        // What the configuration may store has to fit.
        assert!(worst(|f| f.stored_bytes = 20 << 30).1.contains("less than the 20480 MiB"));
        // One slow write among many is not a slow disk.
        let mut facts = good();
        facts.disk.as_mut().unwrap().writes[3] = Duration::from_secs(1);
        assert!(findings(&facts).iter().all(|finding| finding.level == Level::Ok));
    }
}
