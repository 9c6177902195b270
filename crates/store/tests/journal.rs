//! A log outside the process instead of the database as what makes operations durable: a log in memory with the faults of a real one
//! (answers that get lost, appends that are in the log all the same, another writer), and followers that take over.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{Opened, database, dequeue, enqueue, message, positions};
use fulmar_broker::storage::{Op, Restored, Seq, SessionKey, Storage};
use fulmar_store::journal::{
    Append, AppendError, Claimant, Journal, LogEntry, LogPosition, MAX_RECORD_BYTES,
};
use fulmar_store::{
    Applied, Error, FOLLOWED, Follower, Lease, Options, RowChange, ShareError, SqliteStorage,
};
use parking_lot::Mutex;

/// What the next appends meet; afterwards all is well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It does not reach the log.
    Lost,
    /// It is in the log, and the answer gets lost.
    AnswerLost,
    /// Somebody else publishes to the log before.
    Stranger,
}

/// A log as a stream with compare-and-swap on its end is one: it refuses what does not follow its last record, and
/// knows a record that it has.
#[derive(Default)]
struct Stream {
    records: Vec<Vec<u8>>,
    /// Of what nodes appended; empty for what others published.
    names: Vec<String>,
    faults: Vec<Fault>,
    appends: usize,
}

impl Stream {
    fn push(&mut self, position: LogPosition, bytes: &[u8]) -> bool {
        let name = position.id();
        if self.names.contains(&name) {
            return true;
        }
        if self.names.len() as u64 + 1 != position.number {
            return false;
        }
        self.names.push(name);
        self.records.push(bytes.to_vec());
        true
    }

    /// Somebody publishes this, without compare-and-swap.
    fn publish(&mut self, bytes: &[u8]) {
        self.names.push(String::new());
        self.records.push(bytes.to_vec());
    }

    fn entry(&self, number: u64) -> Option<LogEntry<'_>> {
        let at = usize::try_from(number - 1).unwrap();
        let (bytes, name) = (self.records.get(at)?, self.names.get(at)?);
        Some(LogEntry { bytes, conditional: !name.is_empty() })
    }

    /// From now on the appends meet `faults`, in this order. Returns how many there were before.
    fn then(&mut self, faults: &[Fault]) -> usize {
        self.faults = faults.iter().rev().copied().collect();
        self.appends
    }
}

#[derive(Clone, Default)]
struct SharedStream(Arc<Mutex<Stream>>);

impl Journal for SharedStream {
    fn append(&mut self, record: &Append<'_>) -> Result<(), AppendError> {
        assert!(record.bytes.len() <= MAX_RECORD_BYTES);
        let mut stream = self.0.lock();
        stream.appends += 1;
        let fault = stream.faults.pop();
        if fault == Some(Fault::Lost) {
            return Err(AppendError::Unknown("no answer".into()));
        }
        if fault == Some(Fault::Stranger) {
            stream.publish(b"hello");
        }
        if !stream.push(record.position, record.bytes) {
            let found = stream.entry(record.position.number).unwrap();
            return Err(record.displaced_by(found));
        }
        match fault {
            Some(Fault::AnswerLost) => Err(AppendError::Unknown("no answer".into())),
            _ => Ok(()),
        }
    }
}

/// Appends are repeated soon.
fn options() -> Options {
    let (retry_first, retry_last) = (Duration::from_millis(1), Duration::from_millis(5));
    Options { retry_first, retry_last, ..Options::default() }
}

/// A node's follower, brought to the end of the log.
fn follower(folder: &tempfile::TempDir, stream: &SharedStream) -> Follower {
    let mut follower = Follower::open(&database(folder.path()), &options()).unwrap();
    follow(&mut follower, stream);
    follower
}

fn follow(follower: &mut Follower, stream: &SharedStream) {
    let stream = stream.0.lock();
    while let Some(entry) = stream.entry(follower.position().number + 1) {
        follower.apply(entry).unwrap();
    }
}

fn claimant(incarnation: u64) -> Claimant<'static> {
    Claimant { node: "node-1", incarnation }
}

/// Claims the log and takes over, as a node does.
fn take_over(mut follower: Follower, stream: &SharedStream) -> (Opened, Restored) {
    follow(&mut follower, stream);
    let (position, claim) = follower.position().claim(claimant(7));
    assert!(stream.0.lock().push(position, &claim));
    let claimed = Applied::Claimed { node: "node-1".into(), incarnation: 7 };
    assert_eq!(follower.apply(LogEntry::by_node(&claim)).unwrap(), claimed);
    let (wake, woken) = channel();
    let wake = Box::new(move || {
        let _ = wake.send(());
    });
    let (storage, restored) = follower.take_over(7, Box::new(stream.clone()), wake).unwrap();
    (Opened::from_parts(storage, woken), restored)
}

fn start(folder: &tempfile::TempDir, stream: &SharedStream) -> Opened {
    take_over(follower(folder, stream), stream).0
}

/// What a node that takes over now would begin with.
fn seen(stream: &SharedStream) -> Restored {
    let folder = tempfile::tempdir().unwrap();
    let copy = SharedStream::default();
    copy.0.lock().records.clone_from(&stream.0.lock().records);
    copy.0.lock().names.clone_from(&stream.0.lock().names);
    let (opened, restored) = take_over(follower(&folder, &copy), &copy);
    opened.storage.close().unwrap();
    restored
}

fn new() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn what_is_durable_is_in_the_log_and_another_node_continues_from_it() {
    let (folder, stream) = (new(), SharedStream::default());
    let opened = start(&folder, &stream);
    let big = message(1, &vec![7; 3 * MAX_RECORD_BYTES]);
    let seq = opened.submit([enqueue(1, 1, Arc::clone(&big)), enqueue(2, 1, big)]);
    opened.wait(seq);
    assert_eq!(stream.0.lock().records.len(), 5, "a claim, and a group in four records");
    let seq = opened.submit([dequeue(2, 1), enqueue(1, 2, message(2, b"x"))]);
    opened.wait(seq);
    // Not closed: as after kill -9, the first node's database is nobody's.
    let restored = seen(&stream);
    assert_eq!(positions(&restored, 1), [1, 2]);
    assert_eq!(positions(&restored, 2), [0; 0]);
    assert_eq!(restored.queued[0].message.payload().len(), 3 * MAX_RECORD_BYTES);
    assert!(restored.last_message_id >= 2);
}

#[test]
fn lost_records_and_lost_answers_are_appended_again_and_only_once() {
    let (folder, stream) = (new(), SharedStream::default());
    let opened = start(&folder, &stream);
    stream.0.lock().faults = vec![Fault::Lost; 100_000];
    let seq = opened.submit([enqueue(1, 1, message(1, b"x"))]);
    opened.wait_until(|storage| storage.failure().is_some());
    assert!(opened.storage.failure().unwrap().contains("cluster's log: no answer"));
    assert!(opened.storage.committed() < seq);
    let before = stream.0.lock().then(&[Fault::Lost, Fault::AnswerLost, Fault::AnswerLost]);
    opened.wait(seq);
    assert_eq!(opened.storage.failure(), None);
    assert_eq!(stream.0.lock().records.len(), 2);
    assert_eq!(stream.0.lock().appends, before + 4);
    assert_eq!(positions(&seen(&stream), 1), [1]);
}

#[test]
fn a_node_whose_log_is_claimed_by_another_acknowledges_nothing_more() {
    let (folders, stream) = ([new(), new()], SharedStream::default());
    let first = start(&folders[0], &stream);
    first.wait(first.submit([enqueue(1, 1, message(1, b"x"))]));
    let second = start(&folders[1], &stream);

    let seq = first.submit([enqueue(1, 2, message(2, b"y"))]);
    first.wait_until(|storage| storage.failure().is_some());
    assert!(first.storage.failure().unwrap().contains("another node"));
    assert!(first.storage.committed() < seq);
    let third = first.submit([dequeue(1, 1)]);
    assert!(matches!(first.storage.close(), Err(Error::Unwritten { batches: 2, .. })));
    assert!(first.storage.committed() < seq && seq < third);

    second.wait(second.submit([enqueue(1, 9, message(100_000, b"z"))]));
    assert_eq!(positions(&seen(&stream), 1), [1, 9]);
}

#[test]
fn the_first_node_becomes_a_follower_again() {
    let (folders, stream) = ([new(), new()], SharedStream::default());
    let first = start(&folders[0], &stream);
    first.wait(first.submit([enqueue(1, 1, message(1, b"x"))]));
    first.storage.close().unwrap();
    drop(first);
    let mut last = follower(&new(), &SharedStream::default());
    let records = stream.0.lock().records.clone();
    let applied = records.iter().map(|record| last.apply(LogEntry::by_node(record)).unwrap());
    let applied: Vec<_> = applied.collect();
    assert_eq!(applied.last(), Some(&Applied::Released), "closed in order");

    let second = start(&folders[1], &stream);
    second.wait(second.submit([dequeue(1, 1), enqueue(1, 2, message(70_000, b"y"))]));
    let returned = follower(&folders[0], &stream);
    assert_eq!(returned.position().number as usize, stream.0.lock().records.len());
    // It appends that it has stopped.
    drop(second);
    let (third, restored) = take_over(returned, &stream);
    assert_eq!(positions(&restored, 1), [2]);
    assert!(restored.last_message_id >= 70_000);
    drop(third);
}

#[test]
fn a_group_that_its_writer_did_not_finish_does_not_count() {
    let (folders, stream) = ([new(), new()], SharedStream::default());
    let first = start(&folders[0], &stream);
    // The second of four records does not arrive for as long as nobody else has the log.
    stream.0.lock().faults = vec![Fault::Lost; 100_000];
    stream.0.lock().faults.push(Fault::AnswerLost);
    let big = message(1, &vec![7; 3 * MAX_RECORD_BYTES]);
    let seq = first.submit([enqueue(1, 1, big)]);
    first.wait_until(|storage| storage.failure().is_some());
    while stream.0.lock().records.len() < 2 {
        std::thread::yield_now();
    }
    let (second, restored) = take_over(follower(&folders[1], &stream), &stream);
    stream.0.lock().then(&[]);
    assert_eq!(positions(&restored, 1), [0; 0]);
    second.wait(second.submit([enqueue(1, 2, message(90_000, b"y"))]));
    assert!(first.storage.committed() < seq);
    assert_eq!(positions(&seen(&stream), 1), [2]);
}

#[test]
fn missing_mixed_up_and_damaged_records_are_refused_and_void_ones_skipped() {
    let (folders, stream) = ([new(), new()], SharedStream::default());
    let first = start(&folders[0], &stream);
    for position in 1..=3 {
        first.wait(first.submit([enqueue(1, position, message(position, b"x"))]));
    }
    let records = stream.0.lock().records.clone();
    let mut reader = follower(&new(), &SharedStream::default());
    reader.apply(LogEntry::by_node(&records[0])).unwrap();
    let before = reader.position();
    for bad in [&records[2], &records[0], &records[1][..20].to_vec(), &Vec::new()] {
        reader.apply(LogEntry::by_node(bad)).unwrap_err();
        assert_eq!(reader.position(), before);
    }
    for at in 0..records[1].len() {
        let mut damaged = records[1].clone();
        damaged[at] ^= 0x10;
        reader.apply(LogEntry::by_node(&damaged)).unwrap_err();
    }
    reader.apply(LogEntry::by_node(&records[1])).unwrap();

    // A claim directly behind it: what the first node appended later is of an earlier epoch, and void.
    let (_, claim) = reader.position().claim(claimant(8));
    reader.apply(LogEntry::by_node(&claim)).unwrap();
    assert_eq!(reader.apply(LogEntry::by_node(&records[2])).unwrap(), Applied::Void(1));
    assert_eq!(reader.position().epoch, 2);
}

/// The record with other bytes, and a checksum for them.
fn forged(record: &[u8], change: impl Fn(&mut [u8])) -> Vec<u8> {
    let mut forged = record[..record.len() - 4].to_vec();
    change(&mut forged);
    let checksum = crc32fast::hash(&forged).to_le_bytes();
    forged.extend_from_slice(&checksum);
    forged
}

#[test]
fn a_version_before_is_read_and_a_later_one_is_not_taken_for_damage() {
    let (folder, stream) = (new(), SharedStream::default());
    let first = start(&folder, &stream);
    first.wait(first.submit([enqueue(1, 1, message(1, b"x"))]));
    let records = stream.0.lock().records.clone();
    let versions: Vec<u8> = records.iter().map(|record| record[0]).collect();
    assert_eq!(versions, [2, 2], "programs before testators have to refuse them as newer");
    let mut reader = follower(&new(), &SharedStream::default());
    reader.apply(LogEntry::by_node(&records[0])).unwrap();
    let later = forged(&records[1], |record| record[0] = 3);
    let error = reader.apply(LogEntry::by_node(&later)).unwrap_err();
    assert!(error.to_string().contains("upgrade it"), "{error}");
    let before = forged(&records[1], |record| record[0] = 1);
    assert_eq!(reader.apply(LogEntry::by_node(&before)).unwrap(), Applied::Operations);
}

#[test]
fn what_strangers_publish_is_passed_over_by_the_writer_and_by_readers() {
    let (folders, stream) = ([new(), new(), new()], SharedStream::default());
    let first = start(&folders[0], &stream);
    first.wait(first.submit([enqueue(1, 1, message(1, b"x"))]));
    let record = stream.0.lock().records[1].clone();
    let number = |number: u8| move |record: &mut [u8]| record[9] = number;
    for (position, strange) in (2..).zip([
        Vec::new(),
        b"hello".to_vec(),
        vec![0; MAX_RECORD_BYTES + 1],
        record[..record.len() - 1].to_vec(),
        // The record before once more; and one of the right number and epoch that continues another one.
        record.clone(),
        forged(&record, number(13)),
        // Of an earlier epoch, a later one, a newer version.
        forged(&record, |record| record[1] = 0),
        forged(&record, |record| record[1] = 9),
        forged(&record, |record| record[0] = 3),
    ]) {
        stream.0.lock().publish(&strange);
        first.wait(first.submit([enqueue(1, position, message(position, b"x"))]));
    }
    // Between the records of a group, and several in a row.
    let big = message(20, &vec![7; 3 * MAX_RECORD_BYTES]);
    stream.0.lock().then(&[Fault::Stranger; 6]);
    first.wait(first.submit([enqueue(1, 11, big)]));
    assert!(first.storage.failure().is_none() && stream.0.lock().faults.is_empty());

    // At the end, where only the next claim comes.
    stream.0.lock().publish(b"hello");
    let (second, restored) = take_over(follower(&folders[1], &stream), &stream);
    assert_eq!(positions(&restored, 1), (1..=11).collect::<Vec<_>>());
    second.wait(second.submit([enqueue(1, 12, message(70_000, b"y"))]));
    second.storage.close().unwrap();
    drop(second);
    // A database that ends with a stranger's message continues behind it.
    stream.0.lock().publish(b"hello");
    let mut third = follower(&folders[2], &stream);
    third.flush().unwrap();
    assert_eq!(third.stored().unwrap().number, stream.0.lock().records.len() as u64);
    drop(third);
    let (_third, restored) = take_over(follower(&folders[2], &stream), &stream);
    assert_eq!(positions(&restored, 1), (1..=12).collect::<Vec<_>>());
}

#[test]
fn a_database_behind_a_log_is_not_opened_without_it() {
    let (folder, stream) = (new(), SharedStream::default());
    let path = database(folder.path());
    start(&folder, &stream).storage.close().unwrap();
    let opened = SqliteStorage::open(&path, &Options::default(), Box::new(|| {}));
    assert!(matches!(opened, Err(Error::BehindLog(_))));
    Follower::open(&path, &Options::default()).unwrap().leave().unwrap();
    drop(Opened::new(&path, &Options::default()));
}

#[test]
fn a_broker_with_contents_starts_a_log_only_on_purpose() {
    let (folder, stream) = (new(), SharedStream::default());
    let path = database(folder.path());
    let (opened, _) = Opened::new(&path, &Options::default());
    opened.wait(
        opened.submit([Op::RetainedPut(message(1, b"kept")), enqueue(1, 1, message(2, b"x"))]),
    );
    drop(opened);
    let refused = Follower::open(&path, &Options::default()).unwrap_err();
    assert!(refused.to_string().contains("contents of its own"), "{refused}");
    let (opened, restored) =
        take_over(Follower::adopt(&path, &Options::default()).unwrap(), &stream);
    assert_eq!(positions(&restored, 1), [1]);
    assert_eq!(restored.retained.len(), 1);
    opened.wait(opened.submit([Op::SessionRemove(SessionKey(1))]));
    assert!(opened.storage.committed() > Seq(0));
}

#[test]
fn of_two_processes_with_one_name_that_claim_at_once_one_becomes_the_writer() {
    let (folder, stream) = (new(), SharedStream::default());
    let mut follower = follower(&folder, &stream);
    let start = follower.position();
    let [(first, one), (second, two)] =
        [1, 2].map(|incarnation| start.claim(claimant(incarnation)));
    assert_eq!((first.epoch, first.number), (second.epoch, second.number));
    assert!(stream.0.lock().push(first, &one));
    assert!(!stream.0.lock().push(second, &two), "not taken for the first, appended again");
    follow(&mut follower, &stream);
    let refused = follower.take_over(2, Box::new(stream.clone()), Box::new(|| {}));
    assert!(matches!(refused, Err(Error::Unclaimed(_))));
}

#[test]
fn a_snapshot_continues_where_it_was_made() {
    let (folders, stream) = ([new(), new()], SharedStream::default());
    let first = start(&folders[0], &stream);
    first.wait(first.submit([enqueue(1, 1, message(1, b"x")), enqueue(1, 2, message(2, b"y"))]));
    let mut standby = follower(&folders[1], &stream);
    let elsewhere = new();
    let at = standby.snapshot(&database(elsewhere.path())).unwrap();
    assert_eq!(at, standby.stored().unwrap());
    standby.snapshot(&database(elsewhere.path())).unwrap_err();

    first.wait(first.submit([dequeue(1, 1)]));
    let fresh = follower(&elsewhere, &stream);
    assert_eq!(fresh.position().number, at.number + 1, "read from there on");
    drop(first);
    let (_, restored) = take_over(fresh, &stream);
    assert_eq!(positions(&restored, 1), [2]);
}

#[test]
fn a_snapshot_that_is_given_up_leaves_the_follower_as_it_was() {
    let (folders, stream) = ([new(), new()], SharedStream::default());
    let first = start(&folders[0], &stream);
    for position in 1..=200 {
        first.wait(first.submit([enqueue(1, position, message(position, &[7; 10_000]))]));
    }
    let mut standby = follower(&folders[1], &stream);
    let (elsewhere, asked) = (new(), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&asked);
    // In the middle: it is asked once per some rows.
    let goes_on = move || counted.fetch_add(1, Ordering::Relaxed) < 4;
    let error = standby.snapshot_while(&elsewhere.path().join("half"), goes_on).unwrap_err();
    assert!(error.to_string().contains("interrupted"), "{error}");
    assert_eq!(asked.load(Ordering::Relaxed), 5);
    first.wait(first.submit([dequeue(1, 1)]));
    follow(&mut standby, &stream);
    let at = standby.snapshot(&database(elsewhere.path())).unwrap();
    assert_eq!(at, standby.stored().unwrap());
}

#[test]
fn a_follower_writes_large_messages_before_they_fill_the_memory() {
    let (folders, stream) = ([new(), new()], SharedStream::default());
    let first = start(&folders[0], &stream);
    let mut standby = follower(&folders[1], &stream);
    // 66 MiB of messages in 132 operations.
    for position in 1..=132 {
        let big = message(position, &vec![7; 512 << 10]);
        first.wait(first.submit([enqueue(1, position, big)]));
    }
    let before = standby.stored().unwrap();
    follow(&mut standby, &stream);
    assert!(standby.stored().unwrap().number > before.number);
}

/// A log with a lease on it.
struct Leased(SharedStream, Arc<Lease>);

impl Journal for Leased {
    fn append(&mut self, record: &Append<'_>) -> Result<(), AppendError> {
        self.0.append(record)
    }

    fn lease(&self) -> Option<Arc<Lease>> {
        Some(Arc::clone(&self.1))
    }
}

#[test]
fn without_its_lease_a_node_stores_and_does_not_acknowledge() {
    let (folder, stream) = (new(), SharedStream::default());
    let mut follower = follower(&folder, &stream);
    let (position, claim) = follower.position().claim(claimant(7));
    assert!(stream.0.lock().push(position, &claim));
    follower.apply(LogEntry::by_node(&claim)).unwrap();
    let (wake, woken) = channel();
    let wake = Box::new(move || {
        let _ = wake.send(());
    });
    let lease = Arc::new(Lease::new());
    let journal = Box::new(Leased(stream, Arc::clone(&lease)));
    let (storage, _) = follower.take_over(7, journal, wake).unwrap();
    let opened = Opened::from_parts(storage, woken);
    opened.wait(opened.submit([enqueue(1, 1, message(1, b"x"))]));
    assert!(!opened.storage.may_acknowledge());
    // The broker is woken by the renewal alone.
    lease.extend(Instant::now() + Duration::from_secs(3600));
    opened.wait_until(Storage::may_acknowledge);
    lease.end();
    assert!(!opened.storage.may_acknowledge());
}

#[test]
fn a_database_without_a_log_has_no_trace_of_one() {
    let (folder, stream) = (new(), SharedStream::default());
    let path = database(folder.path());
    let written = |path: &std::path::Path| {
        let connection = rusqlite::Connection::open(path).unwrap();
        let version: i64 =
            connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
        let tables = "SELECT name FROM sqlite_schema WHERE name = 'shared_row'";
        let names = format!("SELECT name FROM meta UNION ALL {tables} ORDER BY name");
        let mut names = connection.prepare(&names).unwrap();
        let names = names.query_map([], |row| row.get::<_, String>(0)).unwrap();
        (version, names.map(Result::unwrap).collect::<Vec<_>>())
    };
    let as_before =
        (6, ["clean", "last_message_id", "last_session_key"].map(str::to_owned).to_vec());
    let (opened, _) = Opened::new(&path, &options());
    opened.wait(opened.submit([enqueue(1, 1, message(1, b"x"))]));
    opened.storage.close().unwrap();
    drop(opened);
    assert_eq!(written(&path), as_before);
    // Nor one that has been a cluster's.
    let follower = Follower::adopt(&path, &options()).unwrap();
    let (opened, _) = take_over(follower, &stream);
    opened.wait(opened.submit([enqueue(1, 2, message(2, b"y"))]));
    opened.storage.close().unwrap();
    drop(opened);
    assert_eq!(written(&path).1.len(), 7);
    Follower::open(&path, &options()).unwrap().leave().unwrap();
    assert_eq!(written(&path), as_before);
    assert_eq!(positions(&common::reopen(&path), 1), [1, 2]);
}

fn row(key: &str, value: Option<&str>) -> RowChange {
    (key.as_bytes().into(), value.map(|value| value.as_bytes().into()))
}

/// Rows of other parts that a node which takes over now would begin with.
fn rows(stream: &SharedStream, database: u8) -> Vec<(String, String)> {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let rows = follower(&new(), stream).rows(database).unwrap();
    rows.into_iter().map(|(key, value)| (text(key), text(value))).collect()
}

fn pair(key: &str, value: &str) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

#[test]
fn rows_of_other_parts_are_in_the_log_when_they_are_shared_and_in_snapshots() {
    let (folders, stream) = ([new(), new()], SharedStream::default());
    let first = start(&folders[0], &stream);
    stream.0.lock().faults = vec![Fault::AnswerLost, Fault::Lost];
    first.storage.share(0, vec![row("a", Some("1")), row("b", Some("2"))]).unwrap();
    first.storage.share(1, vec![row("a", Some("other"))]).unwrap();
    first.storage.share(0, vec![row("b", None), row("a", Some("3"))]).unwrap();
    let large = "x".repeat(2 * MAX_RECORD_BYTES);
    first.storage.share(0, vec![row("large", Some(&large))]).unwrap();
    // Not closed: as after kill -9.
    assert_eq!(rows(&stream, 0), [pair("a", "3"), pair("large", &large)]);
    assert_eq!(rows(&stream, 1), [pair("a", "other")]);

    let elsewhere = new();
    let snapshot = database(elsewhere.path());
    follower(&folders[1], &stream).snapshot(&snapshot).unwrap();
    let mut copy = Follower::open(&snapshot, &options()).unwrap();
    assert_eq!(copy.rows(0).unwrap().len(), 2);
    // A node that has caught up has what it shared itself.
    drop(first);
    assert_eq!(follower(&folders[0], &stream).rows(1).unwrap().len(), 1);
}

#[test]
fn a_node_that_does_not_serve_shares_nothing() {
    let (folders, stream) = ([new(), new()], SharedStream::default());
    let (alone, _) = Opened::new(&database(new().path()), &options());
    let change = || vec![row("a", Some("1"))];
    assert_eq!(alone.storage.share(0, change()), Err(ShareError::NotServing));

    let first = start(&folders[0], &stream);
    first.storage.share(0, change()).unwrap();
    let second = start(&folders[1], &stream);
    // It does not know that it has lost the log, and finds out.
    assert_eq!(first.storage.share(0, vec![row("a", None)]), Err(ShareError::Unknown));
    second.storage.share(0, vec![row("b", Some("2"))]).unwrap();
    assert_eq!(rows(&stream, 0), [pair("a", "1"), pair("b", "2")]);

    // A log that does not answer is waited for, until the node ends.
    stream.0.lock().faults = vec![Fault::Lost; 100_000];
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| second.storage.share(0, vec![row("c", Some("3"))]));
        second.wait_until(|storage| storage.failure().is_some());
        second.storage.abandon_shares();
        assert_eq!(waits.join().unwrap(), Err(ShareError::Unknown));
    });
    stream.0.lock().faults.clear();
}

#[test]
fn a_node_without_its_lease_refuses_to_share() {
    let (folder, stream) = (new(), SharedStream::default());
    let mut follower = follower(&folder, &stream);
    let (position, claim) = follower.position().claim(claimant(7));
    assert!(stream.0.lock().push(position, &claim));
    follower.apply(LogEntry::by_node(&claim)).unwrap();
    let lease = Arc::new(Lease::new());
    let journal = Box::new(Leased(stream.clone(), Arc::clone(&lease)));
    let (storage, _) = follower.take_over(7, journal, Box::new(|| {})).unwrap();
    let appended = stream.0.lock().records.len();
    assert_eq!(storage.share(0, vec![row("a", Some("1"))]), Err(ShareError::NotServing));
    assert_eq!(stream.0.lock().records.len(), appended);
    lease.extend(Instant::now() + Duration::from_secs(3600));
    storage.share(0, vec![row("a", Some("1"))]).unwrap();
    assert_eq!(rows(&stream, 0), [pair("a", "1")]);
}

/// What a copy that has everything up to record `after` would change, and up to which record it is then.
fn changes(follower: &mut Follower, after: u64) -> (Vec<(String, Option<String>)>, u64) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let mut seen = Vec::new();
    let number = follower.changes(FOLLOWED, after, &mut |key, value| {
        seen.push((text(key), value.map(text)));
        Ok(())
    });
    seen.sort();
    (seen, number.unwrap())
}

#[test]
fn a_copy_of_a_large_database_gets_what_has_changed_since_it_looked_last() {
    let (folders, stream) = ([new(), new()], SharedStream::default());
    let change = |key: &str, value| (key.to_owned(), value);
    let some = |value: &str| Some(value.to_owned());
    let first = start(&folders[0], &stream);
    let share = |changes| first.storage.share(FOLLOWED, changes).unwrap();
    let one = share(vec![row("a", Some("1")), row("b", Some("2"))]);
    let mut other = follower(&folders[1], &stream);
    let (seen, number) = changes(&mut other, 0);
    assert_eq!(seen, [change("a", some("1")), change("b", some("2"))]);
    assert_eq!(number, one);
    let two = share(vec![row("b", None), row("c", Some("3"))]);
    assert!(two > one);
    follow(&mut other, &stream);
    let expected = [change("b", None), change("c", some("3"))];
    assert_eq!(changes(&mut other, one), (expected.to_vec(), two));
    // What the copy has need not be kept; what it does not have yet is.
    other.forget_changes(FOLLOWED, one).unwrap();
    assert_eq!(changes(&mut other, 0).0, expected);
    assert!(other.has_row(FOLLOWED, b"c").unwrap() && !other.has_row(FOLLOWED, b"b").unwrap());
    let mut all = Vec::new();
    let each = other.each_row(FOLLOWED, &mut |key, _| {
        all.push(key.to_vec());
        Ok(())
    });
    assert_eq!((each.unwrap(), all), (two, vec![b"a".to_vec(), b"c".to_vec()]));

    // The copy of the node that serves may lack the last changes that its database has.
    first.storage.stored(FOLLOWED, one);
    share(vec![row("a", None)]);
    drop(first);
    let (seen, _) = changes(&mut follower(&folders[0], &stream), two);
    assert!(seen.contains(&change("a", None)), "{seen:?}");
}

#[test]
fn a_node_that_serves_forgets_which_changes_its_copy_has() {
    let (folder, stream) = (new(), SharedStream::default());
    let first = start(&folder, &stream);
    let changes = vec![row("a", Some("1")), row("b", None)];
    let number = first.storage.share(FOLLOWED, changes).unwrap();
    first.storage.stored(FOLLOWED, u64::MAX / 2);
    drop(first);
    assert_eq!(changes_of(&folder), 0, "after record {number}");
    assert!(follower(&folder, &stream).has_row(FOLLOWED, b"a").unwrap());
}

fn changes_of(folder: &tempfile::TempDir) -> i64 {
    let connection = rusqlite::Connection::open(database(folder.path())).unwrap();
    let sql = "SELECT count(*) FROM shared_change";
    connection.query_row(sql, [], |row| row.get(0)).unwrap()
}

#[test]
fn after_a_change_of_unknown_outcome_a_node_shares_nothing_more() {
    let (folder, stream) = (new(), SharedStream::default());
    let first = start(&folder, &stream);
    stream.0.lock().faults = vec![Fault::Lost; 100_000];
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| first.storage.share(FOLLOWED, vec![row("a", Some("1"))]));
        first.wait_until(|storage| storage.failure().is_some());
        first.storage.abandon_shares();
        assert_eq!(waits.join().unwrap(), Err(ShareError::Unknown));
    });
    // The log has it after all; what comes later would hide from a copy that it lacks it.
    stream.0.lock().faults.clear();
    first.wait_until(|storage| storage.failure().is_none());
    let later = first.storage.share(FOLLOWED, vec![row("b", Some("2"))]);
    assert_eq!(later, Err(ShareError::NotServing));
    assert_eq!(rows(&stream, FOLLOWED), [pair("a", "1")]);
}
