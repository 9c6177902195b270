//! The log, the control records and the snapshots against real servers: one, and three with kills.
#![cfg(feature = "client")]
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{PATIENCE, Servers, poll};
use fulmar_cluster_nats::{
    AppendError, Connection, Creation, Error, GiveUp, LEFT_OVER, LogStream, MAX_RECORD_BYTES,
    Settings, Snapshots,
};

/// Appends until it is accepted or refused.
fn append(log: &LogStream, number: u64, name: &str, bytes: &[u8]) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match log.append(number, name, bytes) {
            Ok(()) => return Ok(()),
            Err(error @ (AppendError::Refused(_) | AppendError::Displaced(_))) => {
                return Err(error.to_string());
            }
            Err(AppendError::Unknown(why)) => assert!(Instant::now() < deadline, "{why}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// All records from `number` to the end.
fn records(log: &LogStream, mut number: u64) -> Vec<(u64, Vec<u8>)> {
    let end = poll("state", || log.state().ok()).last;
    let mut all = Vec::new();
    while number <= end {
        for record in poll("records", || log.read(number).ok()) {
            number = record.number + 1;
            all.push((record.number, record.bytes.to_vec()));
        }
    }
    all
}

#[test]
fn records_are_read_as_they_were_appended() {
    let Some(servers) = Servers::start(1) else { return };
    let connection = servers.connect();
    let log = servers.create(&connection, "c1", 1);
    let big = vec![9; MAX_RECORD_BYTES];
    for number in 1..=20 {
        let bytes = if number % 5 == 0 { big.clone() } else { vec![number as u8; number as usize] };
        append(&log, number, &format!("1.{number}"), &bytes).unwrap();
    }
    let found = records(&log, 1);
    assert_eq!(found.len(), 20);
    assert_eq!(found[4].1, big);
    assert_eq!(found[6], (7, vec![7; 7]));
    assert_eq!(log.read(21).unwrap(), []);
    assert_eq!(records(&log, 19).len(), 2);
    let state = log.state().unwrap();
    assert_eq!((state.first, state.last, state.replicas), (1, 20, 1));
}

#[test]
fn a_record_has_one_place_and_a_place_one_record() {
    let Some(servers) = Servers::start(1) else { return };
    let log = servers.create(&servers.connect(), "c1", 1);
    append(&log, 1, "1.1", b"a").unwrap();
    // The answer was lost: the same again.
    append(&log, 1, "1.1", b"a").unwrap();
    // JetStream does not know the name any more: recognised by its contents.
    append(&log, 1, "forgotten", b"a").unwrap();
    assert_eq!(log.state().unwrap().last, 1);

    let other = LogStream::open(&servers.connect(), true).unwrap();
    append(&other, 2, "2.2", b"claim").unwrap();
    let refused = append(&log, 2, "1.2", b"b").unwrap_err();
    assert!(refused.contains("something else at record 2"), "{refused}");
    let refused = append(&log, 9, "1.9", b"b").unwrap_err();
    assert!(refused.contains("no place for record 9"), "{refused}");
    assert_eq!(records(&log, 1), [(1, b"a".to_vec()), (2, b"claim".to_vec())]);
}

#[test]
fn what_was_removed_behind_a_snapshot_is_not_missing() {
    let Some(servers) = Servers::start(1) else { return };
    let log = servers.create(&servers.connect(), "c1", 100);
    assert_eq!(log.state().unwrap().last, 99);
    for number in 100..110 {
        append(&log, number, &format!("1.{number}"), b"x").unwrap();
    }
    log.remove_before(105).unwrap();
    assert!(matches!(log.read(104), Err(Error::Removed { wanted: 104, first: 105 })));
    assert_eq!(records(&log, 105).len(), 5);
    log.remove_before(110).unwrap();
    assert!(matches!(log.read(109), Err(Error::Removed { wanted: 109, first: 110 })));
    assert_eq!(log.read(110).unwrap(), []);
    append(&log, 110, "1.110", b"x").unwrap();
    assert_eq!(records(&log, 110), [(110, b"x".to_vec())]);
}

#[test]
fn what_is_no_cluster_of_ours_is_refused_with_what_to_do() {
    let Some(servers) = Servers::start(1) else { return };
    let connection = servers.connect();
    let error = LogStream::open(&connection, true).unwrap_err().to_string();
    assert!(error.contains("fulmar cluster init"), "{error}");
    servers.create(&connection, "c1", 1);
    let creation = Creation { cluster: "c2".into(), first: 1, replicas: 1 };
    let error = LogStream::create(&connection, &creation).unwrap_err();
    assert!(matches!(&error, Error::Exists(cluster) if cluster == "c1"), "{error}");
    let error = LogStream::open(&connection, false).unwrap_err().to_string();
    assert!(error.contains("--replicas 3") && error.contains("development"), "{error}");

    let nowhere = Settings { servers: vec!["nats://127.0.0.1:1".into()], ..Settings::default() };
    let error = Connection::open(&nowhere).unwrap_err().to_string();
    assert!(error.contains("nats://127.0.0.1:1") && error.contains("refused"), "{error}");
    for servers in [vec![], vec!["not an address".to_owned()]] {
        let error = Connection::open(&Settings { servers, ..Settings::default() }).unwrap_err();
        assert!(matches!(error, Error::Settings(_)), "{error}");
    }
}

#[test]
fn servers_that_cannot_carry_a_log_are_refused() {
    let Some(servers) = Servers::with(1, "max_payload: 65536") else { return };
    let settings = Settings { servers: servers.addresses(), ..Settings::default() };
    let error = Connection::open(&settings).unwrap_err().to_string();
    assert!(error.contains("max_payload") && error.contains("525312"), "{error}");

    let accounts = "accounts { A { users: [{ user: a, password: a }] } }\nno_auth_user: a";
    let servers = Servers::with(1, accounts).unwrap();
    let settings = Settings { servers: servers.addresses(), ..Settings::default() };
    let error = Connection::open(&settings).unwrap_err();
    assert!(matches!(error, Error::NoJetStream(_)), "{error}");
    assert!(error.to_string().contains("enable it"), "{error}");
}

#[test]
fn a_full_log_says_what_to_do_and_goes_on_when_there_is_room() {
    let Some(servers) = Servers::with(
        1,
        "accounts { A { users: [{ user: a, password: a }], \
        jetstream: { max_file: 3MB } } }\nno_auth_user: a",
    ) else {
        return;
    };
    let log = servers.create(&servers.connect(), "c1", 1);
    let record = vec![1; MAX_RECORD_BYTES];
    let mut number = 1;
    let error = loop {
        match log.append(number, &format!("1.{number}"), &record) {
            Ok(()) => number += 1,
            Err(error) => break error,
        }
        assert!(number < 10);
    };
    assert!(
        matches!(&error, AppendError::Unknown(why) if why.contains("free disk space")),
        "{error}"
    );
    log.remove_before(number).unwrap();
    append(&log, number, &format!("1.{number}"), &record).unwrap();
}

#[test]
fn control_records_change_by_compare_and_swap() {
    let Some(servers) = Servers::start(1) else { return };
    let control = servers.control(&servers.connect());
    assert_eq!(control.get("lease").unwrap(), None);
    let first = control.swap("lease", b"a", 0).unwrap();
    assert!(matches!(control.swap("lease", b"b", 0), Err(AppendError::Refused(_))));
    let second = control.swap("lease", b"a", first).unwrap();
    assert!(matches!(control.swap("lease", b"b", first), Err(AppendError::Refused(_))));
    let entry = control.get("lease").unwrap().unwrap();
    assert_eq!((entry.revision, &entry.value[..]), (second, &b"a"[..]));
    control.overwrite("node.b", b"2").unwrap();
    control.overwrite("node.a", b"1").unwrap();
    assert_eq!(control.keys("node.").unwrap(), ["node.a", "node.b"]);
    control.remove("node.a").unwrap();
    assert_eq!(control.keys("node.").unwrap(), ["node.b"]);
    assert_eq!(control.get("node.a").unwrap(), None);
}

#[test]
fn snapshots_come_back_whole() {
    let Some(servers) = Servers::start(1) else { return };
    let connection = servers.connect();
    let snapshots = Snapshots::open(&connection, 1).unwrap();
    assert_eq!(snapshots.list().unwrap(), []);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("database");
    let contents: Vec<u8> = (0..1_000_000_u32).map(|n| (n.wrapping_mul(n) >> 3) as u8).collect();
    std::fs::write(&file, &contents).unwrap();
    let notes = HashMap::from([("epoch".to_owned(), "7".to_owned())]);
    let stored = snapshots.upload(41, &file, notes, &GiveUp::default()).unwrap();
    std::fs::write(&file, b"newer").unwrap();
    snapshots.upload(107, &file, HashMap::new(), &GiveUp::default()).unwrap();
    let list = snapshots.list().unwrap();
    assert_eq!(list.iter().map(|s| s.number).collect::<Vec<_>>(), [107, 41]);
    assert_eq!(list[1], stored);
    assert_eq!(list[1].notes["epoch"], "7");
    let back = folder.path().join("back");
    snapshots.get(&stored, &back).unwrap();
    assert_eq!(std::fs::read(&back).unwrap(), contents);
    let mut wrong = stored.clone();
    wrong.sha256 = list[0].sha256.clone();
    let error = snapshots.get(&wrong, &folder.path().join("wrong")).unwrap_err();
    assert!(matches!(error, Error::Damaged(_)), "{error}");
    snapshots.remove(41).unwrap();
    assert_eq!(snapshots.list().unwrap().len(), 1);
}

/// The object store as the stream that it is.
struct Objects {
    runtime: tokio::runtime::Runtime,
    stream: async_nats::jetstream::stream::Stream,
}

impl Objects {
    fn open(servers: &Servers) -> Objects {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let stream = runtime.block_on(async {
            let client = async_nats::connect(servers.addresses()).await.unwrap();
            let jetstream = async_nats::jetstream::new(client);
            jetstream.get_stream("OBJ_FULMAR_SNAPSHOTS").await.unwrap()
        });
        Objects { runtime, stream }
    }

    /// Chunks and descriptions of objects.
    fn messages(&mut self) -> u64 {
        poll("the object store", || {
            let info = self.runtime.block_on(self.stream.info());
            info.ok().map(|info| info.state.messages)
        })
    }
}

/// Begins to store the file, and gives that up. Returns how it ended, and how long that took.
fn give_up_midway(
    servers: &Servers,
    (snapshots, objects): (&Snapshots, &mut Objects),
    file: &Path,
    answers: bool,
) -> (Error, Duration) {
    let (give_up, before) = (GiveUp::default(), objects.messages());
    std::thread::scope(|scope| {
        let upload = scope.spawn(|| {
            let stored = snapshots.upload(50, file, HashMap::new(), &give_up);
            (stored.unwrap_err(), Instant::now())
        });
        poll("chunks", || (objects.messages() > before + 2).then_some(()));
        if !answers {
            servers.pause(0);
        }
        let begun = Instant::now();
        give_up.give_up();
        let (error, ended) = upload.join().unwrap();
        servers.go_on(0);
        (error, ended - begun)
    })
}

#[test]
fn an_upload_that_is_given_up_ends_at_once_and_what_it_leaves_is_removed() {
    let Some(servers) = Servers::start(1) else { return };
    let snapshots = Snapshots::open(&servers.connect(), 1).unwrap();
    let mut objects = Objects::open(&servers);
    let (folder, never) = (tempfile::tempdir().unwrap(), GiveUp::default());
    let [small, large, back] = ["small", "large", "back"].map(|name| folder.path().join(name));
    let contents = vec![7; 300_000];
    std::fs::write(&small, &contents).unwrap();
    std::fs::File::create(&large).unwrap().set_len(64 << 20).unwrap();
    let kept = snapshots.upload(41, &small, HashMap::new(), &never).unwrap();
    snapshots.upload(42, &small, HashMap::new(), &never).unwrap();
    snapshots.remove(42).unwrap();
    assert_eq!(objects.messages(), 3 + 1 + 1, "the kept one, and that the other was removed");
    for answers in [true, false] {
        let parts = (&snapshots, &mut objects);
        let (error, took) = give_up_midway(&servers, parts, &large, answers);
        assert!(matches!(error, Error::GivenUp { .. }), "{error}");
        assert!(error.to_string().contains("given up"), "{error}");
        // The client waits 5 s for an answer.
        assert!(took < Duration::from_secs(3), "{took:?}, NATS answers: {answers}");
    }
    assert_eq!(poll("a list", || snapshots.list().ok()), std::slice::from_ref(&kept));
    let before = objects.messages();
    // Another node may be storing these.
    assert_eq!(snapshots.sweep(LEFT_OVER, &never).unwrap(), 0);
    assert_eq!(objects.messages(), before);
    assert_eq!(snapshots.sweep(Duration::ZERO, &never).unwrap(), 2);
    assert_eq!(objects.messages(), 3 + 1);
    snapshots.get(&kept, &back).unwrap();
    assert_eq!(std::fs::read(&back).unwrap(), contents);
    assert_eq!(snapshots.sweep(Duration::ZERO, &never).unwrap(), 0);
    let given_up = GiveUp::default();
    given_up.give_up();
    assert!(matches!(snapshots.sweep(LEFT_OVER, &given_up), Err(Error::GivenUp { .. })));
}

/// What a writer of the next test was promised: by number.
type Promised = BTreeMap<u64, Vec<u8>>;

/// Appends as long as `goes_on`; behind a refusal, it reads what is there and claims the next number.
fn write(
    settings: &Settings,
    writer: u8,
    acked: &AtomicU64,
    goes_on: &AtomicBool,
) -> (Promised, u64, Duration) {
    let connection = poll("a connection", || Connection::open(settings).ok());
    let log = poll("the log", || LogStream::open(&connection, true).ok());
    let (mut promised, mut refused, mut attempt) = (Promised::new(), 0, 0_u64);
    let mut next = 1;
    let (mut last, mut gap) = (Instant::now(), Duration::ZERO);
    while goes_on.load(Ordering::Relaxed) {
        attempt += 1;
        let bytes = format!("{writer} {attempt}").into_bytes();
        match append(&log, next, &format!("{writer}.{attempt}"), &bytes) {
            Ok(()) => {
                gap = gap.max(last.elapsed());
                last = Instant::now();
                promised.insert(next, bytes);
                next += 1;
                acked.fetch_add(1, Ordering::Relaxed);
                // A pause now and then, so that the other one gets its turn.
                if attempt % 8 == 0 {
                    std::thread::sleep(Duration::from_millis(30));
                }
            }
            Err(_) => {
                refused += 1;
                next = poll("state", || log.state().ok()).last + 1;
            }
        }
    }
    (promised, refused, gap)
}

#[test]
fn two_writers_and_servers_that_are_killed_lose_nothing_and_share_no_number() {
    let Some(mut servers) = Servers::start(3) else { return };
    let connection = servers.connect();
    let log = servers.create(&connection, "c1", 1);
    let settings = Settings { servers: servers.addresses(), ..Settings::default() };
    let (acked, goes_on) = (AtomicU64::new(0), AtomicBool::new(true));
    let results = std::thread::scope(|scope| {
        let writers: Vec<_> = [1, 2]
            .map(|writer| {
                scope.spawn({
                    let (settings, acked, goes_on) = (&settings, &acked, &goes_on);
                    move || write(settings, writer, acked, goes_on)
                })
            })
            .into();
        for index in 0..3 {
            wait_for_acks(&acked, 50);
            servers.kill(index);
            wait_for_acks(&acked, 50);
            servers.run(index);
            poll("replicas in step", || (log.state().ok()?.current == 3).then_some(()));
        }
        wait_for_acks(&acked, 50);
        goes_on.store(false, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
    });
    let stored: BTreeMap<u64, Vec<u8>> = records(&log, 1).into_iter().collect();
    let mut promised = Promised::new();
    for (writer, (own, refused, gap)) in results.into_iter().enumerate() {
        println!(
            "writer {writer}: {} acknowledged, {refused} refused, longest gap {gap:?}",
            own.len()
        );
        for (number, bytes) in own {
            assert_eq!(
                promised.insert(number, bytes),
                None,
                "number {number} was acknowledged twice"
            );
        }
    }
    for (number, bytes) in &promised {
        assert_eq!(stored.get(number), Some(bytes), "record {number} was acknowledged");
    }
    println!("{} acknowledged, {} stored", promised.len(), stored.len());
}

fn wait_for_acks(acked: &AtomicU64, more: u64) {
    let target = acked.load(Ordering::Relaxed) + more;
    poll("acknowledgements", || (acked.load(Ordering::Relaxed) >= target).then_some(()));
}
