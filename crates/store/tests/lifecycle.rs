//! Opening, closing, sharing and refusing: what the store promises around its commits.
#![allow(clippy::unwrap_used)]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Opened, database, dequeue, enqueue, message, positions, reopen};
use fulmar_broker::storage::{Op, Seq, SessionKey, SessionRecord, Storage};
use fulmar_store::{Error, Options, SqliteStorage};

/// The first batch is committed at once; what follows within the hour waits for the close.
fn one_group_after_the_first() -> Options {
    Options { commit_interval: Duration::from_secs(3600), ..Options::default() }
}

fn open_error(path: &std::path::Path) -> Error {
    match SqliteStorage::open(path, &Options::default(), Box::new(|| ())) {
        Ok(_) => panic!("opened"),
        Err(error) => error,
    }
}

#[test]
fn restored_queues_share_their_message() {
    let folder = tempfile::tempdir().unwrap();
    let path = database(folder.path());
    let (opened, _) = Opened::new(&path, &Options::default());
    let shared = message(5, b"payload");
    let seq = opened.submit((1..=3).map(|s| enqueue(s, 1, Arc::clone(&shared))));
    opened.wait(seq);
    opened.storage.close().unwrap();
    let restored = reopen(&path);
    assert_eq!(restored.queued.len(), 3);
    assert!(restored.queued.iter().all(|q| Arc::ptr_eq(&q.message, &restored.queued[0].message)));
    assert_eq!(restored.queued[0].message.payload(), b"payload");
    assert_eq!(restored.last_message_id, 5);
}

#[test]
fn a_message_lives_until_its_last_reference() {
    let folder = tempfile::tempdir().unwrap();
    let path = database(folder.path());
    let (opened, _) = Opened::new(&path, &Options::default());
    let shared = message(1, b"x");
    opened.submit([enqueue(1, 1, Arc::clone(&shared)), enqueue(2, 1, Arc::clone(&shared))]);
    opened.storage.close().unwrap();
    drop(opened);

    let (opened, _) = Opened::new(&path, &Options::default());
    let seq = opened.submit([dequeue(1, 1)]);
    opened.wait(seq);
    opened.storage.close().unwrap();
    let count = || -> i64 {
        let sqlite = rusqlite::Connection::open(&path).unwrap();
        sqlite.query_row("SELECT count(*) FROM message", [], |row| row.get(0)).unwrap()
    };
    assert_eq!(count(), 1);
    let (opened, restored) = Opened::new(&path, &Options::default());
    assert_eq!(positions(&restored, 2), [1]);
    opened.submit([dequeue(2, 1)]);
    opened.storage.close().unwrap();
    assert_eq!(count(), 0);
}

#[test]
fn what_cancels_out_is_not_written_but_counts_as_committed() {
    let folder = tempfile::tempdir().unwrap();
    let path = database(folder.path());
    let (opened, _) = Opened::new(&path, &one_group_after_the_first());
    let first = opened.submit([enqueue(1, 1, message(1, b"kept"))]);
    opened.wait(first);
    opened.submit([enqueue(1, 2, message(2, b"gone"))]);
    let last = opened.submit([dequeue(1, 2)]);
    assert!(opened.storage.backlog() > 0);
    opened.storage.close().unwrap();
    assert_eq!(opened.storage.committed(), last);
    assert_eq!(opened.storage.backlog(), 0);
    let stats = opened.storage.stats();
    assert_eq!((stats.commits, stats.batches, stats.ops, stats.cancelled_ops), (1, 3, 3, 2));
    assert_eq!(positions(&reopen(&path), 1), [1]);
}

#[test]
fn the_backlog_weighs_a_shared_message_once() {
    let folder = tempfile::tempdir().unwrap();
    let (opened, _) = Opened::new(&database(folder.path()), &one_group_after_the_first());
    let first = opened.submit([dequeue(1, 1)]);
    opened.wait(first);
    let large = message(1, &vec![0; 100 << 10]);
    opened.submit([enqueue(1, 2, Arc::clone(&large)), enqueue(2, 2, large)]);
    assert_eq!(opened.storage.backlog(), 2 + 100);
}

/// A folder of an earlier version opens as it is; whether a session was MQTT-SN's is not known then.
#[test]
fn sessions_stored_by_version_2_have_their_user() {
    let folder = tempfile::tempdir().unwrap();
    let path = database(folder.path());
    drop(Opened::new(&path, &Options::default()));
    let sql = "ALTER TABLE session DROP COLUMN mqtt_sn; PRAGMA user_version = 2;
               ALTER TABLE subscription DROP COLUMN replay; ALTER TABLE queue DROP COLUMN share;
               ALTER TABLE will DROP COLUMN address; ALTER TABLE will DROP COLUMN until;
               ALTER TABLE will DROP COLUMN credential; ALTER TABLE will DROP COLUMN certificate;
               ALTER TABLE will DROP COLUMN by_login;
               INSERT INTO session VALUES (7, 'device', 'ann', 3600, NULL)";
    rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    let restored = reopen(&path);
    let [session] = &restored.sessions[..] else { panic!("{:?}", restored.sessions) };
    assert_eq!((&*session.client_id, session.username.as_deref()), ("device", Some("ann")));
    assert_eq!(session.mqtt_sn, None);
}

#[test]
fn an_empty_batch_has_the_number_of_the_newest() {
    let folder = tempfile::tempdir().unwrap();
    let (opened, _) = Opened::new(&database(folder.path()), &Options::default());
    assert_eq!(opened.submit([]), Seq(0));
    let seq = opened.submit([Op::SessionRemove(SessionKey(1))]);
    assert_eq!(opened.submit([]), seq);
}

#[test]
fn threads_submit_side_by_side_and_each_keeps_its_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = database(folder.path());
    let options = Options { commit_max_ops: 64, ..Options::default() };
    let (opened, _) = Opened::new(&path, &options);
    std::thread::scope(|scope| {
        for session in 1..=2u64 {
            let storage = &opened.storage;
            scope.spawn(move || {
                let mut last = Seq(0);
                for position in 1..=2_000 {
                    let id = session * 10_000 + position;
                    let seq =
                        storage.submit(&mut vec![enqueue(session, position, message(id, b"x"))]);
                    assert!(seq > last);
                    last = seq;
                }
            });
        }
    });
    opened.wait(Seq(4_000));
    drop(opened);
    let restored = reopen(&path);
    let expected: Vec<u64> = (1..=2_000).collect();
    assert_eq!(positions(&restored, 1), expected);
    assert_eq!(positions(&restored, 2), expected);
}

#[test]
fn dropping_without_close_writes_everything() {
    let folder = tempfile::tempdir().unwrap();
    let path = database(folder.path());
    let (opened, _) = Opened::new(&path, &one_group_after_the_first());
    for position in 1..=100 {
        opened.submit([enqueue(1, position, message(position, b"x"))]);
    }
    drop(opened);
    assert_eq!(reopen(&path).queued.len(), 100);
}

#[test]
fn the_last_owner_may_let_go_when_it_hears_of_a_commit() {
    let folder = tempfile::tempdir().unwrap();
    let path = database(folder.path());
    let owner: Arc<Mutex<Option<SqliteStorage>>> = Arc::default();
    let heard = Arc::clone(&owner);
    let let_go = move || drop(heard.lock().unwrap().take());
    let (storage, _) = SqliteStorage::open(&path, &Options::default(), Box::new(let_go)).unwrap();
    // Held while submitting, so that the storage is in its place when the commit is reported.
    let mut place = owner.lock().unwrap();
    storage.submit(&mut vec![enqueue(1, 1, message(1, b"x"))]);
    *place = Some(storage);
    drop(place);
    let deadline = Instant::now() + Duration::from_secs(20);
    let restored = loop {
        match SqliteStorage::open(&path, &Options::default(), Box::new(|| ())) {
            Ok((_, restored)) => break restored,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::yield_now();
    };
    assert_eq!(restored.queued.len(), 1);
}

#[test]
fn after_close_nothing_is_reported_durable() {
    let folder = tempfile::tempdir().unwrap();
    let (opened, _) = Opened::new(&database(folder.path()), &Options::default());
    opened.storage.close().unwrap();
    let seq = opened.submit([dequeue(1, 1)]);
    assert!(opened.storage.committed() < seq);
    assert!(opened.storage.failure().unwrap().contains("closed"));
    assert!(matches!(opened.storage.close(), Err(Error::Unwritten { batches: 1, .. })));
}

#[test]
fn session_keys_are_never_given_out_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = database(folder.path());
    let (opened, _) = Opened::new(&path, &Options::default());
    let seq = opened.submit([Op::SessionPut(SessionRecord {
        key: SessionKey(77),
        client_id: "c".into(),
        username: None,
        mqtt_sn: None,
        expiry_interval_s: 0,
        expires_at: None,
        will: None,
        will_at: None,
    })]);
    opened.wait(seq);
    let seq = opened.submit([Op::SessionRemove(SessionKey(77))]);
    opened.wait(seq);
    drop(opened);
    assert_eq!(reopen(&path).last_session_key, 77);
}

#[test]
fn the_file_is_private() {
    let folder = tempfile::tempdir().unwrap();
    let path = database(folder.path());
    let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    reopen(&path);
    assert_eq!(mode(), 0o600);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    reopen(&path);
    assert_eq!(mode(), 0o600);
}

#[test]
fn a_second_opener_is_refused_until_the_first_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let path = database(folder.path());
    let (opened, _) = Opened::new(&path, &Options::default());
    for _ in 0..2 {
        assert!(matches!(open_error(&path), Error::InUse(p) if p == path));
    }
    let seq = opened.submit([dequeue(1, 1)]);
    opened.wait(seq);
    drop(opened);
    reopen(&path);
}

#[test]
fn a_newer_schema_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = database(folder.path());
    reopen(&path);
    let sqlite = rusqlite::Connection::open(&path).unwrap();
    sqlite.pragma_update(None, "user_version", 99).unwrap();
    drop(sqlite);
    let error = open_error(&path);
    assert!(matches!(error, Error::TooNew { found: 99, .. }));
    assert!(error.to_string().contains("newer Fulmar"), "{error}");
    assert!(matches!(open_error(&path), Error::TooNew { found: 99, .. }));
}

#[test]
fn another_programs_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = database(folder.path());
    let sqlite = rusqlite::Connection::open(&path).unwrap();
    sqlite.execute_batch("CREATE TABLE theirs (x)").unwrap();
    drop(sqlite);
    assert!(matches!(open_error(&path), Error::Foreign(_)));
}

#[test]
fn a_file_that_is_no_database_is_reported_as_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let path = database(folder.path());
    std::fs::write(&path, vec![b'x'; 8192]).unwrap();
    assert!(matches!(open_error(&path), Error::Damaged { .. }));
}

#[test]
fn a_half_written_file_is_refused_and_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = database(folder.path());
    reopen(&path);
    let whole = std::fs::read(&path).unwrap();
    for length in [1, 16, 99, 100, 511, 512, 4096, whole.len() / 2] {
        std::fs::write(&path, &whole[..length]).unwrap();
        let inspected = fulmar_store::inspect(&path);
        assert!(matches!(inspected, Err(Error::Damaged { .. })), "{length}: {inspected:?}");
        let error = open_error(&path).to_string();
        assert!(error.contains("restore a backup, or move the file away"), "{length}: {error}");
        assert_eq!(std::fs::read(&path).unwrap(), whole[..length], "{length} bytes");
    }
    // A file that was created and not filled before the power failed.
    std::fs::write(&path, []).unwrap();
    reopen(&path);
}

#[test]
fn the_folder_must_exist() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    assert!(matches!(open_error(&database(&missing)), Error::MissingFolder(p) if p == missing));
}

/// Removals that wait for another batch wait for the close.
fn patient_removals() -> Options {
    Options { removal_delay: Duration::from_secs(3600), ..Options::default() }
}

#[test]
fn removals_are_written_with_the_next_batch() {
    let folder = tempfile::tempdir().unwrap();
    let path = database(folder.path());
    let (opened, _) = Opened::new(&path, &patient_removals());
    let first = opened.submit([enqueue(1, 1, message(1, b"x"))]);
    opened.wait(first);
    opened.storage.submit_removals(&mut vec![dequeue(1, 1)]);
    // Nobody waits for a removal, and so not for what needs no storage either.
    assert_eq!(opened.submit([]), first);
    opened.wait(opened.submit([enqueue(1, 2, message(2, b"y"))]));
    let stats = opened.storage.stats();
    assert_eq!((stats.commits, stats.batches), (2, 3));
    opened.storage.submit_removals(&mut vec![dequeue(1, 2)]);
    opened.storage.close().unwrap();
    assert_eq!(positions(&reopen(&path), 1), [] as [u64; 0]);
}

#[test]
fn a_crash_keeps_what_was_removed_while_nobody_waited() {
    let folder = tempfile::tempdir().unwrap();
    let path = database(folder.path());
    let (opened, _) = Opened::new(&path, &patient_removals());
    opened.wait(opened.submit([enqueue(1, 1, message(1, b"x"))]));
    opened.storage.submit_removals(&mut vec![dequeue(1, 1)]);
    let copy = folder.path().join("copy.db");
    std::fs::copy(&path, &copy).unwrap();
    std::fs::copy(path.with_extension("db-wal"), copy.with_extension("db-wal")).unwrap();
    assert_eq!(positions(&reopen(&copy), 1), [1]);
}

#[test]
fn removals_are_written_alone_after_a_while() {
    let folder = tempfile::tempdir().unwrap();
    let path = database(folder.path());
    let options = Options { removal_delay: Duration::from_millis(20), ..Options::default() };
    let (opened, _) = Opened::new(&path, &options);
    opened.wait(opened.submit([enqueue(1, 1, message(1, b"x"))]));
    opened.storage.submit_removals(&mut vec![dequeue(1, 1)]);
    opened.wait_until(|storage| storage.stats().batches == 2);
}

#[test]
fn many_removals_are_written_at_once() {
    for (commit_max_ops, removals) in [(Options::default().commit_max_ops, 2_000), (10, 20)] {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { commit_max_ops, ..patient_removals() };
        let (opened, _) = Opened::new(&database(folder.path()), &options);
        opened.wait(opened.submit((1..=removals).map(|n| enqueue(1, n, message(n, b"x")))));
        for position in 1..=removals {
            opened.storage.submit_removals(&mut vec![dequeue(1, position)]);
        }
        opened.wait_until(|storage| storage.stats().batches > 1);
    }
}
