//! What nodes of a cluster share: everything, before it is answered.
#![allow(clippy::unwrap_used)]

use fulmar_mirror::{NotShared, RowChange, Rows, Shared};
use parking_lot::Mutex;

use super::*;
use crate::accounts::token::Signer;
use crate::store::measurements::Sample;
use crate::store::twins;
use crate::text::Name;
use crate::time::Time;
use crate::twins::types::TwinKind;

/// A log, and what it does with the next changes.
#[derive(Debug, Default)]
struct Log(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    records: Vec<Vec<RowChange>>,
    refuses: bool,
    /// Called when changes are to be shared.
    look: Option<Look>,
}

struct Look(Box<dyn Fn() + Send>);

fulmar_text::opaque_debug!(Look);

impl Share for Log {
    fn share(&self, changes: Vec<RowChange>) -> Result<u64, NotShared> {
        let mut log = self.0.lock();
        if log.refuses {
            return Err(NotShared("n2 serves".to_owned()));
        }
        if let Some(Look(look)) = &log.look {
            look();
        }
        log.records.push(changes);
        Ok(log.records.len() as u64)
    }

    fn serves(&self) -> bool {
        !self.0.lock().refuses
    }

    fn stored(&self, _: u64) {}

    fn lags_behind(&self, why: &str) {
        panic!("{why}");
    }
}

fn add(name: &'static str) -> impl FnOnce(&Db) -> Result<(), Problem> {
    move |db| {
        twins::add(db.within(name), name, TwinKind::Homes, None, Time(1))?;
        Ok(())
    }
}

fn names(folder: &Path) -> Vec<String> {
    let db = Source::File(folder.join(DATABASE_FILE)).open_to_read().unwrap();
    twins::names(&db).unwrap().into_iter().map(|(name, _, _)| name.to_string()).collect()
}

/// A copy that has all that is in the log.
fn followed(folder: &Path, log: &Log) -> Rows {
    let mut copy = copy(folder).unwrap();
    for (number, record) in (1..).zip(&log.0.lock().records) {
        let mut changes = copy.change().unwrap();
        for (key, value) in record {
            changes.set(key, value.as_deref()).unwrap();
        }
        changes.commit(number).unwrap();
    }
    all(&copy)
}

fn all(copy: &Copy) -> Rows {
    let mut rows = Rows::new();
    copy.for_each_row(&mut |key, value| {
        rows.push((key.to_vec(), value.to_vec()));
        Ok(())
    })
    .unwrap();
    rows.sort();
    rows
}

fn open(folder: &tempfile::TempDir, log: &Arc<Log>) -> Store {
    drop(copy(folder.path()).unwrap());
    Store::open_shared(folder.path(), &Database::File, Arc::clone(log) as _).unwrap()
}

#[test]
fn all_tables_are_shared() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), &Database::File, Purpose::Server).unwrap();
    let tables = store.write_now(|db| {
        let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name";
        let tables: sql::Result<Vec<String>> =
            db.list(sql, ());
        Ok(tables?)
    });
    assert_eq!(tables.unwrap(), schema::TABLES);
}

#[test]
fn a_change_is_in_the_log_before_anybody_sees_it_and_another_node_has_it() {
    let (folder, other, log) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Arc::<Log>::default());
    let store = open(&folder, &log);
    store.write_now(add("ann")).unwrap();
    let path = folder.path().to_owned();
    let look = move || assert_eq!(names(&path), ["ann"], "not in effect before it is shared");
    log.0.lock().look = Some(Look(Box::new(look)));
    store.write_now(add("bob")).unwrap();
    assert_eq!(names(folder.path()), ["ann", "bob"]);
    log.0.lock().look = None;

    // What refers to a row goes with it.
    store
        .write_now(|db| {
            let sensor: Name = "attic".parse().unwrap();
            sensors::register(db.within("bob"), &sensor)?;
            Ok(())
        })
        .unwrap();
    store.write_now(|db| Ok(db.execute("DELETE FROM twin WHERE id = 'bob'", ())?)).unwrap();
    store.close();
    let rows = followed(other.path(), &log);
    assert_eq!(rows, all(&copy(folder.path()).unwrap()));
    assert_eq!(names(other.path()), ["ann"]);

    // And goes on from there.
    let store = Store::open_shared(other.path(), &Database::File, Arc::clone(&log) as _).unwrap();
    store.write_now(add("carl")).unwrap();
    store.close();
    let number = log.0.lock().records.len() as u64;
    assert_eq!(copy(other.path()).unwrap().position().unwrap(), Some(number));
}

#[test]
fn another_node_lacks_a_removed_sensor_and_goes_on_deleting_what_it_measured() {
    let (folder, other, log) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Arc::<Log>::default());
    let store = open(&folder, &log);
    store
        .write_now(|db| {
            let twin: Name = "t".parse().unwrap();
            twins::add(db.within(&twin), "T", TwinKind::Homes, None, Time(1))?;
            sensors::register(db.within(&twin), &twin)?;
            let series = measurements::add_series(db.within("t"), "t", "radon", "Bq/m³")?.seq;
            let sample = |at| Sample { series, at: Time(at), value: 1.0, id: None };
            measurements::insert(db.within(&twin), &[sample(1), sample(2)], Time(9))?;
            Ok(())
        })
        .unwrap();
    // It comes back, under another number.
    store.write_now(|db| Ok(removed::remove_sensor(db.within("t"), "t", 10)?)).unwrap();
    store
        .write_now(|db| {
            let twin: Name = "t".parse().unwrap();
            sensors::register(db.within(&twin), &twin)?;
            Ok(measurements::add_series(db.within("t"), "t", "radon", "Bq/m³")?)
        })
        .unwrap();
    store.close();
    assert_eq!(followed(other.path(), &log), all(&copy(folder.path()).unwrap()));

    let store = Store::open_shared(other.path(), &Database::File, Arc::clone(&log) as _).unwrap();
    let left = store.write_now(|db| {
        let count = |table: &str| {
            let sql = format!("SELECT count(*) FROM {table}");
            db.get::<i64>(&sql, ())
        };
        let before = [count("series")?, count("measurement")?];
        while removed::is_left(db)? {
            removed::forget(db, 2)?;
        }
        Ok((before, [count("series")?, count("measurement")?]))
    });
    assert_eq!(left.unwrap(), ([1, 2], [1, 0]));
}

#[test]
fn what_is_not_shared_is_not_stored_and_the_answer_says_who_serves() {
    let (folder, log) = (tempfile::tempdir().unwrap(), Arc::<Log>::default());
    let store = open(&folder, &log);
    store.write_now(add("ann")).unwrap();
    log.0.lock().refuses = true;
    let problem = store.write_now(add("bob")).unwrap_err();
    assert_eq!(problem.detail(), "n2 serves");
    assert_eq!(names(folder.path()), ["ann"]);
    log.0.lock().refuses = false;
    store.write_now(add("carl")).unwrap();
    store.close();
    assert_eq!(names(folder.path()), ["ann", "carl"]);
    assert_eq!(log.0.lock().records.len(), 2);
}

#[test]
fn nodes_sign_with_one_secret_and_only_with_one_that_is_shared() {
    let (folder, other, log) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Arc::<Log>::default());
    let key = |folder: &tempfile::TempDir| folder.path().join(crate::KEY_FILE);
    let shared = |rows| Shared { rows, with: Arc::clone(&log) as _ };
    log.0.lock().refuses = true;
    Signer::open_shared(&key(&folder), &shared(Rows::new())).unwrap_err();
    log.0.lock().refuses = false;
    let first = Signer::open_shared(&key(&folder), &shared(Rows::new())).unwrap();
    let row = |(name, secret): &RowChange| (name.to_vec(), secret.as_deref().unwrap().to_vec());
    let rows: Rows = log.0.lock().records[0].iter().map(row).collect();
    let second = Signer::open_shared(&key(&other), &shared(rows)).unwrap();
    assert_eq!(first.installation(), second.installation());
    let voucher = first.vouch("ann", "t", b"x");
    assert_eq!(second.vouched(&voucher, "t", b"x"), Some("ann"));
}
