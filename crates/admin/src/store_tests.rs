#![allow(clippy::unwrap_used)]

use super::*;

const ALL: AuditQuery = AuditQuery { since_ms: 0, before: i64::MAX, most: 1_000_000 };

fn entry() -> NewEntry {
    NewEntry::local("ann", "test", "x", String::new())
}

#[test]
fn the_log_is_bounded_by_bytes_and_names_are_cut() {
    let store = Store::in_memory();
    let long = NewEntry {
        who: "é".repeat(10_000),
        object: "x".repeat(10_000),
        detail: "y".repeat(MAX_DETAIL_BYTES),
        ..entry()
    };
    let number = MAX_BYTES / MAX_DETAIL_BYTES as u64 + 200;
    let mut last = 0;
    for _ in 0..number {
        last = store.begin(&long, 5).unwrap();
    }
    while store.begin(&entry(), 5).unwrap() % PRUNE_EVERY != 0 {}
    let left = store.entries(ALL).unwrap();
    assert!(left.iter().any(|entry| entry.id == last), "the newest stay");
    assert!(left.iter().all(|entry| entry.who.len() < 520 && entry.object.len() < 520));
    let bytes: usize =
        left.iter().map(|entry| entry.who.len() + entry.object.len() + entry.detail.len()).sum();
    assert!(bytes as u64 <= MAX_BYTES && bytes as u64 > MAX_BYTES / 2, "{bytes}");
}

#[test]
fn the_log_survives_and_is_bounded_by_number_and_age() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let first = store.begin(&entry(), 5).unwrap();
    store.end(first, "ok").unwrap();
    let long = NewEntry { detail: "é".repeat(MAX_DETAIL_BYTES), ..entry() };
    store.begin(&long, 6).unwrap();
    // Of another process.
    let read = read_audit(folder.path(), ALL).unwrap();
    assert_eq!((read.len(), read[1].result.as_deref()), (2, Some("ok")));
    assert_eq!((&read[0].result, read[0].detail.len() < MAX_DETAIL_BYTES + 4), (&None, true));
    drop(store);
    let store = Store::open(folder.path()).unwrap();
    let later = MAX_AGE_MS.cast_signed() + 100;
    while store.begin(&entry(), later).unwrap() % PRUNE_EVERY != 0 {}
    let left = store.entries(ALL).unwrap();
    assert!(left.iter().all(|entry| entry.at_ms == later), "{left:?}");
    // As if many entries had been made.
    let jump = "UPDATE sqlite_sequence SET seq = 250000 WHERE name = 'audit'";
    store.0.lock().connection.execute(jump, []).unwrap();
    while store.begin(&entry(), later).unwrap() % PRUNE_EVERY != 0 {}
    let left = store.entries(ALL).unwrap();
    assert!(left.iter().all(|entry| entry.id > 250_000), "{}", left.len());
}

#[test]
fn a_change_whose_result_cannot_be_logged_has_been_made() {
    let store = Store::in_memory();
    let made = store.logged(entry(), || {
        store.0.lock().connection.execute("DROP TABLE audit", [])?;
        Ok::<_, StoreError>("made")
    });
    assert_eq!(made.unwrap(), "made");
}

#[test]
fn the_file_belongs_to_the_owner_of_its_folder() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
    let folder = tempfile::tempdir().unwrap();
    // Only root can give files away.
    let is_root = chown(folder.path(), Some(990), Some(990)).is_ok();
    drop(Store::open(folder.path()).unwrap());
    let path = folder.path().join(DATABASE_FILE);
    let file = path.metadata().unwrap();
    assert_eq!((file.uid() == 990, file.mode() & 0o777), (is_root, 0o600));
    if !is_root {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
        let error = Store::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("chown --reference=") && error.contains("admin.db"), "{error}");
    }
}

#[test]
fn a_newer_file_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    drop(Store::open(folder.path()).unwrap());
    let connection = Connection::open(folder.path().join(DATABASE_FILE)).unwrap();
    connection.pragma_update(None, "user_version", VERSION + 1).unwrap();
    assert!(matches!(Store::open(folder.path()), Err(StoreError::Newer(2))));
}

#[test]
fn half_a_file_and_another_programs_are_refused_and_stay_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(DATABASE_FILE);
    drop(Store::open(folder.path()).unwrap());
    let whole = std::fs::read(&path).unwrap();
    for length in [1, 16, 99, 100, 511, 512, 4096, whole.len() / 2] {
        std::fs::write(&path, &whole[..length]).unwrap();
        assert!(Store::open(folder.path()).is_err(), "{length} bytes");
        assert_eq!(std::fs::read(&path).unwrap(), whole[..length], "{length} bytes");
    }
    std::fs::write(&path, []).unwrap();
    drop(Store::open(folder.path()).unwrap());
    for version in [0, VERSION] {
        std::fs::remove_file(&path).unwrap();
        let theirs = Connection::open(&path).unwrap();
        theirs.execute_batch("CREATE TABLE x (y)").unwrap();
        theirs.pragma_update(None, "user_version", version).unwrap();
        drop(theirs);
        let whole = std::fs::read(&path).unwrap();
        assert!(matches!(Store::open(folder.path()), Err(StoreError::Foreign)));
        assert_eq!(std::fs::read(&path).unwrap(), whole);
    }
}

#[test]
fn bans_end_and_replace_each_other() {
    let store = Store::in_memory();
    let row = BanRow {
        id: 0,
        kind: "client".to_owned(),
        value: "a".to_owned(),
        until_ms: 10,
        created_ms: 1,
        created_by: "ann".to_owned(),
        reason: String::new(),
    };
    store.add_ban(&row).unwrap();
    let id = store.add_ban(&BanRow { until_ms: 20, ..row }).unwrap();
    assert_eq!(store.bans(10).unwrap().len(), 1);
    assert_eq!(store.remove_ban(id).unwrap().unwrap().until_ms, 20);
    assert_eq!(store.remove_ban(id).unwrap(), None);
}
