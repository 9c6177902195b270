//! What a ticket may survive, and what it may not.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use rustls::pki_types::UnixTime;
use tempfile::TempDir;

use super::*;

/// A clock that stands until it is set.
#[derive(Debug)]
struct Clock(AtomicU64);

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(self.0.load(Ordering::Relaxed))))
    }
}

struct Machine {
    dir: TempDir,
    clock: Arc<Clock>,
    max: usize,
}

impl Machine {
    fn new() -> Machine {
        let clock = Arc::new(Clock(AtomicU64::new(1_800_000_000)));
        Machine { dir: tempfile::tempdir().unwrap(), clock, max: MAX_TICKETS }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("tickets.db")
    }

    fn open(&self, boot: &str) -> Arc<Tickets> {
        let clock = Arc::clone(&self.clock) as Arc<dyn TimeProvider>;
        Tickets::open_with(&self.path(), self.max, Trust::of_boot(boot), clock).unwrap()
    }

    /// The disk as it is now, for the next process; the old one goes on for itself.
    fn crash(&self) -> Machine {
        let dir = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(self.dir.path()).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
        }
        Machine { dir, clock: Arc::clone(&self.clock), max: self.max }
    }

    fn pass(&self, seconds: u64) {
        self.clock.0.fetch_add(seconds, Ordering::Relaxed);
    }
}

fn put(tickets: &Arc<Tickets>, ticket: u32) -> bool {
    StoresServerSessions::put(
        &**tickets,
        ticket.to_be_bytes().to_vec(),
        format!("session {ticket}").into(),
    )
}

fn take(tickets: &Arc<Tickets>, ticket: u32) -> bool {
    let found = tickets.take(&ticket.to_be_bytes());
    found.inspect(|s| assert_eq!(*s, format!("session {ticket}").into_bytes())).is_some()
}

#[test]
fn a_killed_process_loses_no_ticket_and_brings_none_back() {
    let machine = Machine::new();
    let tickets = machine.open("boot 1");
    assert!(put(&tickets, 1) && put(&tickets, 2));
    assert!(take(&tickets, 1) && !take(&tickets, 1));
    let after = machine.crash().open("boot 1");
    assert!(!take(&after, 1), "taken before the crash");
    assert!(take(&after, 2), "issued before the crash");
}

#[test]
fn at_another_node_of_a_cluster_a_ticket_does_not_work_and_here_it_works_once() {
    let [here, there] = [Machine::new(), Machine::new()];
    let (here, there) = (here.open("boot 1"), there.open("boot 2"));
    assert!(put(&here, 1));
    assert!(!take(&there, 1));
    assert!(take(&here, 1) && !take(&here, 1) && !take(&there, 1));
}

#[test]
fn a_machine_that_goes_down_under_the_broker_costs_the_tickets() {
    let machine = Machine::new();
    let tickets = machine.open("boot 1");
    assert!(put(&tickets, 1));
    // What the disk holds: the state before the ticket was taken.
    let disk = machine.crash();
    assert!(take(&tickets, 1));
    let after = disk.open("boot 2");
    assert!(!take(&after, 1));
    assert_eq!(after.counts().held, 0);
    assert!(put(&after, 3) && take(&after, 3), "the new store works");
}

#[test]
fn after_an_ordered_stop_tickets_survive_the_machine() {
    let machine = Machine::new();
    let tickets = machine.open("boot 1");
    assert!(put(&tickets, 1) && put(&tickets, 2) && take(&tickets, 1));
    tickets.close().unwrap();
    assert!(!put(&tickets, 3) && !take(&tickets, 2), "closed");
    let after = machine.open("boot 2");
    assert!(!take(&after, 1) && take(&after, 2));
}

#[test]
fn one_ordered_stop_is_good_for_one_start() {
    let machine = Machine::new();
    let tickets = machine.open("boot 1");
    assert!(put(&tickets, 1));
    tickets.close().unwrap();
    let tickets = machine.open("boot 2");
    let disk = machine.crash();
    assert!(take(&tickets, 1));
    assert!(!take(&disk.open("boot 3"), 1), "the disk's state is older than the take");
}

#[test]
fn dropping_without_closing_is_no_ordered_stop() {
    let machine = Machine::new();
    assert!(put(&machine.open("boot 1"), 1));
    assert!(take(&machine.open("boot 1"), 1));
    assert!(put(&machine.open("boot 1"), 2));
    assert!(!take(&machine.open("boot 2"), 2));
}

#[test]
fn two_threads_share_a_ticket_once() {
    let machine = Machine::new();
    let tickets = machine.open("boot");
    for ticket in 0..200 {
        assert!(put(&tickets, ticket));
        let both = std::thread::scope(|scope| {
            let racers = [(); 2].map(|()| scope.spawn(|| take(&tickets, ticket)));
            racers.map(|racer| u32::from(racer.join().unwrap()))
        });
        assert_eq!(both[0] + both[1], 1, "ticket {ticket}");
    }
    assert_eq!((tickets.counts().taken, tickets.counts().missed), (200, 200));
}

#[test]
fn the_oldest_make_room() {
    let machine = Machine { max: 100, ..Machine::new() };
    let tickets = machine.open("boot");
    for ticket in 0..1000 {
        assert!(put(&tickets, ticket));
        assert!(tickets.counts().held <= 100);
    }
    let counts = tickets.counts();
    assert_eq!((counts.issued, counts.held + counts.evicted), (1000, 1000));
    assert!(!take(&tickets, 899) && take(&tickets, 900) && take(&tickets, 999));
}

#[test]
fn a_ticket_ends_with_its_day() {
    let machine = Machine::new();
    let tickets = machine.open("boot");
    assert!(put(&tickets, 1) && put(&tickets, 2));
    machine.pass(LIFETIME_S - 1);
    assert!(take(&tickets, 1));
    machine.pass(1);
    assert!(!take(&tickets, 2));
    assert_eq!(tickets.counts().expired, 1);
}

#[test]
fn expired_tickets_are_removed_without_being_asked_for() {
    let machine = Machine::new();
    let tickets = machine.open("boot");
    (0..50).for_each(|ticket| assert!(put(&tickets, ticket)));
    machine.pass(LIFETIME_S);
    (50..200).for_each(|ticket| assert!(put(&tickets, ticket)));
    let counts = tickets.counts();
    assert_eq!((counts.expired, counts.held), (50, 150));
}

#[test]
fn a_ticket_from_the_future_has_no_age() {
    let machine = Machine::new();
    let tickets = machine.open("boot");
    assert!(put(&tickets, 1) && put(&tickets, 2));
    machine.clock.0.fetch_sub(CLOCK_SKEW_S, Ordering::Relaxed);
    assert!(take(&tickets, 1));
    machine.clock.0.fetch_sub(1, Ordering::Relaxed);
    assert!(!take(&tickets, 2));
}

#[test]
fn nothing_is_found_without_being_taken() {
    let tickets = Tickets::in_memory().unwrap();
    assert!(put(&tickets, 1));
    assert_eq!(tickets.get(&1_u32.to_be_bytes()), None);
}

#[test]
fn a_huge_session_is_refused() {
    let tickets = Tickets::in_memory().unwrap();
    assert!(tickets.put(vec![1], vec![0; MAX_SESSION_BYTES]));
    assert!(!tickets.put(vec![2], vec![0; MAX_SESSION_BYTES + 1]));
    assert_eq!(tickets.counts().failed, 1);
}

#[test]
fn the_file_stays_within_its_bound_and_goes_on_working() {
    let tickets = Tickets::in_memory().unwrap();
    for ticket in 0..10_000_u32 {
        assert!(tickets.put(ticket.to_be_bytes().to_vec(), vec![9; MAX_SESSION_BYTES]));
    }
    let counts = tickets.counts();
    // 64 MiB over 8 KiB, less what SQLite needs.
    assert!((5_000..8_192).contains(&counts.held), "{counts:?}");
    assert_eq!((counts.held + counts.evicted, counts.failed), (10_000, 0));
    assert!(tickets.take(&9_999_u32.to_be_bytes()).is_some());
}

#[test]
fn a_damaged_store_is_replaced() {
    let machine = Machine::new();
    fs::write(machine.path(), b"not a database at all, but longer than a header of one").unwrap();
    let tickets = machine.open("boot");
    assert!(put(&tickets, 1) && take(&tickets, 1));
}

#[test]
fn a_second_process_is_refused() {
    let machine = Machine::new();
    let _first = machine.open("boot");
    let error = Tickets::open(&machine.path()).unwrap_err();
    assert!(matches!(error, TicketError::InUse(_)), "{error}");
}

#[test]
fn the_files_are_their_owners_only() {
    let machine = Machine::new();
    let tickets = machine.open("boot");
    assert!(put(&tickets, 1));
    let files: Vec<_> = fs::read_dir(machine.dir.path()).unwrap().map(Result::unwrap).collect();
    assert!(files.len() >= 3, "database, log and lock");
    for file in files {
        let mode = file.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.path().display());
    }
}

#[test]
fn this_machine_tells_its_run() {
    let machine = Machine::new();
    let tickets = Tickets::open(&machine.path()).unwrap();
    assert!(put(&tickets, 1));
    let after = machine.crash();
    assert!(take(&Tickets::open(&after.path()).unwrap(), 1));
}
