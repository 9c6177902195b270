//! The outbox against real files: what it promises after power cuts, at its bounds and on a full disk.
#![allow(clippy::unwrap_used)]

use fulmar_mirror::Reading;

use super::*;

const BOUNDS: Bounds = Bounds {
    max_bytes: 1 << 20,
    max_age_ms: None,
    policy: Policy::DropOldest,
    max_file_bytes: None,
};

fn item(number: u64) -> Item {
    Item {
        topic: format!("sensor/{}", number % 3),
        payload: number.to_string().into_bytes(),
        properties: vec![1, 2],
        qos: QoS::AtLeastOnce,
        retain: false,
        priority: Priority::Normal,
        id: format!("gw-1-{number}"),
        at: "2026-01-01T00:00:00.000Z".into(),
        origin: Some((number, false)),
        expires_ms: None,
    }
}

fn waiting(outbox: &Outbox) -> Vec<String> {
    let read = outbox.read(Priority::Normal, 0, 1000, usize::MAX).unwrap();
    read.messages
        .into_iter()
        .map(|message| String::from_utf8(message.payload.to_vec()).unwrap())
        .collect()
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn open(&self, bounds: Bounds) -> Outbox {
        Outbox::open(&self.0.path().join("outbox.db"), bounds).unwrap()
    }
}

#[test]
fn what_was_put_in_is_there_in_order_after_opening_again() {
    let folder = Folder::new();
    let items: Vec<Item> = (0..5).map(item).collect();
    let mut outbox = folder.open(BOUNDS);
    assert_eq!(outbox.store(&items, 7).unwrap(), StoredCounts { taken: [0, 5], known: 0 });
    let before = outbox.totals();
    drop(outbox);
    let mut outbox = folder.open(BOUNDS);
    assert_eq!(outbox.totals(), before);
    assert_eq!((before.messages, before.oldest_ms), (5, Some(7)));
    assert_eq!(waiting(&outbox), ["0", "1", "2", "3", "4"]);
    let first = outbox.read(Priority::Normal, 0, 2, usize::MAX).unwrap();
    assert!(first.more);
    let first = first.messages;
    outbox.remove(&[first[0].seq, first[1].seq, 999]).unwrap();
    assert_eq!(waiting(&outbox), ["2", "3", "4"]);
    assert_eq!(outbox.totals().messages, 3);
    let rest = outbox.read(Priority::Normal, first[1].seq, 1000, 1).unwrap();
    assert_eq!(
        (rest.messages.len(), rest.more),
        (1, true),
        "bytes end a reading, but one message always comes"
    );
}

#[test]
fn what_is_repeated_is_taken_once() {
    let folder = Folder::new();
    let mut outbox = folder.open(BOUNDS);
    outbox.store(&[item(1)], 0).unwrap();
    let again = outbox.store(&[item(1)], 0).unwrap();
    assert_eq!(again, StoredCounts { taken: [0, 0], known: 1 }, "the same identifier");
    let sent = outbox.read(Priority::Normal, 0, 10, usize::MAX).unwrap();
    outbox.remove(&[sent.to]).unwrap();
    drop(outbox);
    let mut outbox = folder.open(BOUNDS);
    assert_eq!(outbox.store(&[item(1)], 0).unwrap().known, 1, "it was sent before");
    let repeated = Item { id: "gw-2-1".into(), origin: Some((1, true)), ..item(1) };
    assert_eq!(outbox.store(&[repeated], 0).unwrap().known, 1, "the device sends it again");
    let same_packet = Item { id: "gw-2-2".into(), origin: Some((1, false)), ..item(1) };
    assert_eq!(
        outbox.store(&[same_packet], 0).unwrap().known,
        0,
        "it does not say that it repeats"
    );
}

#[test]
fn at_its_bound_it_drops_by_policy_and_counts() {
    let size = (item(0).topic.len() + 1 + 2 + ROW_BYTES) as u64;
    let full = |policy| {
        let folder = Folder::new();
        let mut outbox = folder.open(Bounds { max_bytes: size * 3, policy, ..BOUNDS });
        let urgent = Item { priority: Priority::Urgent, ..item(0) };
        outbox.store(&[urgent, item(1), item(2)], 0).unwrap();
        let outcome = outbox.store(&[item(3)], 0);
        (waiting(&outbox), outbox.totals().dropped.full, outcome.is_ok())
    };
    assert_eq!(full(Policy::DropOldest), (texts(&["2", "3"]), 1, true));
    assert_eq!(full(Policy::DropNewest), (texts(&["1", "2"]), 1, true));
    assert_eq!(full(Policy::Refuse), (texts(&["1", "2"]), 0, false));
}

#[test]
fn what_is_too_old_or_expired_goes() {
    let folder = Folder::new();
    let mut outbox = folder.open(Bounds { max_age_ms: Some(100), ..BOUNDS });
    outbox.store(&[item(1)], 1000).unwrap();
    outbox.store(&[Item { expires_ms: Some(1060), ..item(2) }, item(3)], 1050).unwrap();
    outbox.tidy(1059).unwrap();
    assert_eq!(waiting(&outbox).len(), 3);
    outbox.tidy(1101).unwrap();
    assert_eq!(waiting(&outbox), ["3"]);
    let totals = outbox.totals();
    assert_eq!((totals.dropped.age, totals.dropped.expired, totals.messages), (1, 1, 1));
}

#[test]
fn the_time_that_is_left_stays_when_the_clock_is_set() {
    let folder = Folder::new();
    let shows =
        |time, since_boot| Clocks::new(move || Reading { time, wall: time, since_boot, boot: 7 });
    let mut outbox = folder.open(Bounds { max_age_ms: Some(60_000), ..BOUNDS });
    assert_eq!(outbox.keep_clock(&shows(5_000, 0)).unwrap(), None);
    outbox.store(&[Item { expires_ms: Some(65_000), ..item(1) }], 5_000).unwrap();
    drop(outbox);
    // 1970 has become 2026, and ten seconds have passed.
    let now = 1_780_000_000_000;
    let mut outbox = folder.open(Bounds { max_age_ms: Some(60_000), ..BOUNDS });
    assert_eq!(outbox.keep_clock(&shows(now, 10_000)).unwrap(), Some(now - 15_000));
    outbox.tidy(now.cast_unsigned() + 49_000).unwrap();
    assert_eq!(waiting(&outbox), ["1"]);
    outbox.tidy(now.cast_unsigned() + 50_000).unwrap();
    assert_eq!(waiting(&outbox), [""; 0]);
}

#[test]
fn a_full_disk_is_an_error_and_no_damage() {
    let folder = Folder::new();
    let bounds = Bounds {
        max_bytes: u64::MAX,
        max_file_bytes: Some(256 * 1024),
        policy: Policy::Refuse,
        ..BOUNDS
    };
    let mut outbox = folder.open(bounds);
    let large = |number| Item { payload: vec![b'x'; 4000], ..item(number) };
    let mut taken = 0;
    let error = loop {
        match outbox.store(&[large(taken)], 0) {
            Ok(_) => taken += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Full(_)) && error.to_string().contains("make room"), "{error}");
    assert!(taken > 10);
    assert_eq!(outbox.totals().messages, taken);
    let some = outbox.read(Priority::Normal, 0, 20, usize::MAX).unwrap();
    outbox.remove(&some.messages.iter().map(|message| message.seq).collect::<Vec<_>>()).unwrap();
    outbox.store(&[large(taken)], 0).unwrap();
    drop(outbox);
    assert_eq!(folder.open(bounds).totals().messages, taken - 20 + 1, "no corruption");
}

#[test]
fn only_one_process_has_it_and_strangers_files_are_left_alone() {
    let folder = Folder::new();
    let path = folder.0.path().join("outbox.db");
    let mut outbox = folder.open(BOUNDS);
    assert_eq!(outbox.meta("name", || "a".into()).unwrap(), "a");
    assert_eq!(outbox.meta("name", || "b".into()).unwrap(), "a");
    assert!(matches!(Outbox::open(&path, BOUNDS).unwrap_err(), Error::InUse(_)));
    let other = folder.0.path().join("other.db");
    rusqlite::Connection::open(&other).unwrap().pragma_update(None, "user_version", 9).unwrap();
    assert!(matches!(Outbox::open(&other, BOUNDS).unwrap_err(), Error::Foreign(_)));
    let text = folder.0.path().join("text.db");
    std::fs::write(&text, "no database, but long enough to be looked at as one".repeat(100))
        .unwrap();
    assert!(matches!(Outbox::open(&text, BOUNDS).unwrap_err(), Error::Damaged { .. }));
}

#[test]
fn a_half_written_file_is_refused_and_stays_as_it_is() {
    let folder = Folder::new();
    let path = folder.0.path().join("outbox.db");
    drop(folder.open(BOUNDS));
    let whole = std::fs::read(&path).unwrap();
    for length in [1, 16, 99, 100, 511, 512, 4096, whole.len() / 2] {
        std::fs::write(&path, &whole[..length]).unwrap();
        let error = Outbox::open(&path, BOUNDS).unwrap_err();
        assert!(error.to_string().contains("damaged"), "{length}: {error}");
        assert_eq!(std::fs::read(&path).unwrap(), whole[..length], "{length} bytes");
    }
    std::fs::write(&path, []).unwrap();
    drop(folder.open(BOUNDS));
    // Another program's that has not set SQLite's version and identifier.
    let theirs = folder.0.path().join("theirs.db");
    rusqlite::Connection::open(&theirs).unwrap().execute_batch("CREATE TABLE x (y)").unwrap();
    assert!(matches!(Outbox::open(&theirs, BOUNDS).unwrap_err(), Error::Foreign(_)));
}

#[test]
fn repetitions_are_forgotten_in_time() {
    let folder = Folder::new();
    let mut outbox = folder.open(Bounds { max_bytes: 1 << 30, ..BOUNDS });
    let many: Vec<Item> = (0..REMEMBERED + FORGET_EVERY + 2).map(item).collect();
    for some in many.chunks(5000) {
        outbox.store(some, 0).unwrap();
    }
    let kept: u64 =
        outbox.connection.query_row("SELECT count(*) FROM seen", [], |row| number(row, 0)).unwrap();
    assert!(kept < 2 * (REMEMBERED + FORGET_EVERY), "{kept}");
    assert_eq!(outbox.store(&[item(REMEMBERED)], 0).unwrap().known, 1);
}

#[test]
fn messages_are_removed_with_the_write_of_others_or_not_at_all() {
    let folder = Folder::new();
    let bounds =
        Bounds { max_bytes: 3 * (ROW_BYTES as u64 + 16), policy: Policy::Refuse, ..BOUNDS };
    let mut outbox = folder.open(bounds);
    outbox.store(&[item(1), item(2)], 0).unwrap();
    let [first, ..] = &outbox.read(Priority::Normal, 0, 9, 9_000).unwrap().messages[..] else {
        panic!("nothing stored");
    };
    let first = first.seq;
    let too_many: Vec<Item> = (10..30).map(item).collect();
    assert!(matches!(outbox.store_and_remove(&too_many, &[first], 0), Err(Error::Full(_))));
    assert_eq!(waiting(&outbox), ["1", "2"]);
    outbox.store_and_remove(&[item(3), item(4)], &[first], 0).unwrap();
    assert_eq!((waiting(&outbox), outbox.totals().messages), (texts(&["2", "3", "4"]), 3));
}
